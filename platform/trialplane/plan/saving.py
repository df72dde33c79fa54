"""Location of checkpoints of a run on a cluster, and the grace period of its trials.

The location is the URL of the job or the chart, or else a volume at `wire.cluster.CHECKPOINTS`. If the chart has no volume
for checkpoints, they are on the pod's disk: they survive a crash of the trial, but not the loss of the pod.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from trialplane.job.kinds import Job
from trialplane.plan.site import CheckpointDefaults
from trialplane.wire import cluster

# Seconds that a pod lives longer than its trial. The hook waits for half of them, in which the slot may kill the trial. The
# controller must receive that before the pod's own process ends.
MARGIN = 10
LEAVING = ("python", "-m", "trialplane.worker.leaving")  # signals the trial, and waits for it for the given seconds
_VOLUME = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Folders:
    """Folders of the checkpoint volume that the pods of a run mount.

    Attributes:
        run: the run, whose folder is mounted for writing.
        start: the run from whose checkpoint this one starts, mounted for reading; None without one.
        limit: size of a volume on the pod's disk.
    """

    run: str
    start: str | None
    limit: str


@dataclasses.dataclass(frozen=True)
class Saving:
    """Location of a run's checkpoints and how its pods reach it.

    Attributes:
        location: folder or URL with all checkpoints.
        grace: seconds for saving a checkpoint when a pod is evicted.
        claim: claim of the volume; "" for the pod's disk, and for a URL.
        secret: Secret with credentials for the URL, or "".
    """

    location: str
    grace: float
    claim: str = ""
    secret: str = ""

    @classmethod
    def of(cls, job: Job, chart: CheckpointDefaults) -> Saving | None:
        """Return where a run saves checkpoints. None if its trials save none."""
        if not job.keeps_checkpoints:
            return None
        url = job.checkpoints.url or chart.url
        grace = job.grace(chart.grace)
        if url:
            return cls(url, grace, secret=chart.secret)
        return cls(cluster.CHECKPOINTS, grace, claim=chart.claim)

    @property
    def is_volume(self) -> bool:
        """Whether the location is a folder in the pod."""
        return self.location == cluster.CHECKPOINTS

    def add_to(self, spec: dict[str, Any], container: dict[str, Any], folders: Folders) -> None:
        """Add the checkpoint folders, the URL's credentials and the grace period to a trial pod.

        Args:
            spec: spec of the pod.
            container: the pod's main container.
            folders: folders of the volume to mount.
        """
        if self.is_volume:
            source = {"persistentVolumeClaim": {"claimName": self.claim}} if self.claim else None
            spec["volumes"].append({"name": _VOLUME, **(source or {"emptyDir": {"sizeLimit": folders.limit}})})
            container["volumeMounts"].append(self._mount(folders.run))
            if folders.start and folders.start != folders.run and self.claim:
                container["volumeMounts"].append({**self._mount(folders.start), "readOnly": True})
        elif self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        # Without the hook, Kubernetes would only signal the container's first process, Ray's, which ends at once.
        grace = math.ceil(self.grace)
        container["lifecycle"] = {"preStop": {"exec": {"command": [*LEAVING, str(grace + MARGIN // 2)]}}}
        spec["terminationGracePeriodSeconds"] = grace + MARGIN

    def _mount(self, run: str) -> dict[str, Any]:
        """Return the mount of one run's folder. The kubelet creates a missing folder."""
        return {"name": _VOLUME, "mountPath": f"{self.location}/{run}", **({"subPath": run} if self.claim else {})}


def elsewhere(run: str, other_location: str, own_location: str, url: str | None) -> str:
    """Return the message for a run that would not find the checkpoints of another run.

    Args:
        run: the other run.
        other_location: location of its checkpoints.
        own_location: location of the new run's checkpoints.
        url: `checkpoints.url` of the other run's job.
    """
    option = f"--set checkpoints.url={url or 'null'}"
    return f"{run} saved checkpoints in {other_location}, but this run would look in {own_location}. Add {option}"


def none_of(run: str) -> str:
    """Return the message for a run without checkpoints."""
    return f"{run} has saved no checkpoint to start from; see `platform logs {run}` and `platform docs trainings`"


def warnings(job: Job, chart: CheckpointDefaults) -> Iterator[str]:
    """Yield a warning if checkpoints would be lost with their pod."""
    saving = Saving.of(job, chart)
    if saving is not None and saving.is_volume and not saving.claim:
        yield (
            f"the chart has no volume for checkpoints, so they are lost with their pod, and {job.loss}. "
            "Run helm upgrade --set checkpoints.enabled=true, or add --set checkpoints.url=s3://bucket/path here. "
            "See `platform docs storage`"
        )
