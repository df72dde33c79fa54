"""Where the trials of a run save checkpoints in a cluster, and their grace period. Pure: from a job and what the chart has.

A volume at `wire.cluster.CHECKPOINTS`, or a URL: the job's own, else the chart's. Where there is neither, the volume is the
pod's: a trial whose process died finds its checkpoint, one whose pod was lost does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from trialplane.job.kinds import Job
from trialplane.plan.site import Checkpoints
from trialplane.wire import cluster

# Seconds that a pod has longer than its trial: the hook waits for half of them, for the slot may have to kill the trial, and
# the controller must receive that before the pod's own process is ended.
MARGIN = 10
LEAVING = ("python", "-m", "trialplane.worker.leaving")  # signals the trial, and waits for it for the given seconds
_VOLUME = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Folders:
    """What the pods of a run see of the volume of all checkpoints.

    Attributes:
        run: whose folder is theirs to write.
        start: the run from whose checkpoint this one starts, whose folder they read; None for none.
        limit: size of a volume that is the pod's alone.
    """

    run: str
    start: str | None
    limit: str


@dataclasses.dataclass(frozen=True)
class Saving:
    """How the trials of one run save checkpoints.

    Attributes:
        place: folder or URL below which their checkpoints lie.
        grace: seconds they get to save a checkpoint when their pod is evicted.
        claim: of the volume; "" for one that is lost with the pod, and for a URL.
        secret: with variables that open the URL, or "".
    """

    place: str
    grace: float
    claim: str = ""
    secret: str = ""

    @classmethod
    def of(cls, job: Job, chart: Checkpoints) -> Saving | None:
        """Of a run, where the chart says this; None when its trials save nothing."""
        if not job.keeps_checkpoints:
            return None
        url = job.checkpoints.url or chart.url
        grace = job.grace(chart.grace)
        if url:
            return cls(url, grace, secret=chart.secret)
        return cls(cluster.CHECKPOINTS, grace, claim=chart.claim)

    @property
    def is_volume(self) -> bool:
        """Whether it is a folder of the pod's."""
        return self.place == cluster.CHECKPOINTS

    def add_to(self, spec: dict[str, Any], container: dict[str, Any], folders: Folders) -> None:
        """Add the run's folders of the volume, the URL's credentials, and the grace period to a trial pod.

        Args:
            spec: of the pod.
            container: in which trials run.
            folders: of the volume, which holds those of all runs.
        """
        if self.is_volume:
            source = {"persistentVolumeClaim": {"claimName": self.claim}} if self.claim else None
            spec["volumes"].append({"name": _VOLUME, **(source or {"emptyDir": {"sizeLimit": folders.limit}})})
            container["volumeMounts"].append(self._mount(folders.run))
            if folders.start and folders.start != folders.run and self.claim:
                container["volumeMounts"].append({**self._mount(folders.start), "readOnly": True})
        elif self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        # Without the hook Kubernetes signals the container's first process only, which is Ray's and ends at once.
        grace = math.ceil(self.grace)
        container["lifecycle"] = {"preStop": {"exec": {"command": [*LEAVING, str(grace + MARGIN // 2)]}}}
        spec["terminationGracePeriodSeconds"] = grace + MARGIN

    def _mount(self, run: str) -> dict[str, Any]:
        """The folder of one run, as `wire.paths` names it; the kubelet makes one that is not there."""
        return {"name": _VOLUME, "mountPath": f"{self.place}/{run}", **({"subPath": run} if self.claim else {})}


def elsewhere(run: str, there: str, here: str, url: str | None) -> str:
    """Why a training, or a collection, does not find the checkpoints of another run.

    Args:
        run: the other one.
        there: where its checkpoints lie.
        here: where the new one would look.
        url: what its job says of that place.
    """
    cure = f"--set checkpoints.url={url or 'null'}"
    return f"{run} saved checkpoints in {there}, and this run would look in {here}; {cure} makes them the same"


def none_of(run: str) -> str:
    """The message for a training that has saved nothing."""
    return f"{run} has saved no checkpoint to start from; see `platform logs {run}` and `platform docs trainings`"


def warnings(job: Job, chart: Checkpoints) -> Iterator[str]:
    """A warning for the user before the run starts."""
    saving = Saving.of(job, chart)
    if saving is not None and saving.is_volume and not saving.claim:
        yield (
            f"the chart has no volume for checkpoints, so they are lost with their pod, and {job.loss}; "
            "helm upgrade --set checkpoints.enabled=true, or --set checkpoints.url=s3://bucket/path here; "
            "see `platform docs storage`"
        )
