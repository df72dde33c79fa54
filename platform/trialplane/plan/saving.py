"""The location of a run's checkpoints on a cluster, and the grace period in which its trials can save one.

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

# Seconds that a pod may live after the grace period of its trial. In the first half, the hook still waits for the trial, so
# that the slot can kill it. The second half is for the slot's message to the controller, before Ray's process ends.
MARGIN = 10
LEAVING = ("python", "-m", "trialplane.worker.leaving")  # hook that signals the trial, and waits a number of seconds for it
_VOLUME = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Saving:
    """Location of a run's checkpoints and how its pods reach it.

    Attributes:
        location: Folder or URL with all checkpoints.
        grace: Number of seconds for saving a checkpoint when a pod is evicted.
        claim: Claim of the volume; "" for the pod's disk, and for a URL.
        secret: Secret with credentials for the URL; "" if there is none.
    """

    location: str
    grace: float
    claim: str = ""
    secret: str = ""

    @classmethod
    def of(cls, job: Job, chart: CheckpointDefaults) -> Saving | None:
        """Return the location of a run's checkpoints on a cluster. None if its trials save none."""
        if not job.keeps_checkpoints:
            return None
        url = job.checkpoints.url or chart.url
        grace = job.grace(chart.grace)
        if url:
            return cls(location=url, grace=grace, secret=chart.secret)
        return cls(location=cluster.CHECKPOINTS, grace=grace, claim=chart.claim)

    @property
    def is_volume(self) -> bool:
        """Whether the location is a folder of the pod, on a volume or on the pod's disk, and not a URL."""
        return self.location == cluster.CHECKPOINTS

    def add_to(self, spec: dict[str, Any], container: dict[str, Any], run: str, origin: str | None, disk_limit: str) -> None:
        """Add the checkpoint folders, the URL's credentials and the grace period to a trial pod.

        Args:
            spec: Spec of the pod, which is changed.
            container: Main container of the pod, which is changed.
            run: Name of the run. Its folder is mounted for writing.
            origin: Name of the run from whose checkpoint it starts. Its folder is mounted for reading. None without one.
            disk_limit: Maximum size of a folder on the pod's disk, if there is no volume.
        """
        if self.is_volume:
            on_volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": self.claim}}
            on_disk: dict[str, Any] = {"emptyDir": {"sizeLimit": disk_limit}}
            spec["volumes"].append({"name": _VOLUME, **(on_volume if self.claim else on_disk)})
            container["volumeMounts"].append(self._mount(run))
            if origin and origin != run and self.claim:  # a pod's disk lacks the folder of another run
                container["volumeMounts"].append({**self._mount(origin), "readOnly": True})
        elif self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        # The hook signals the trial when the pod must go. By itself, Kubernetes would only signal the container's first
        # process, which is Ray's and ends at once.
        grace = math.ceil(self.grace)
        container["lifecycle"] = {"preStop": {"exec": {"command": [*LEAVING, str(grace + MARGIN // 2)]}}}
        spec["terminationGracePeriodSeconds"] = grace + MARGIN

    def _mount(self, run: str) -> dict[str, Any]:
        """Return the mount of a run's folder of checkpoints. The kubelet creates a missing folder on the volume."""
        return {"name": _VOLUME, "mountPath": f"{self.location}/{run}", **({"subPath": run} if self.claim else {})}


def obstacle(run: str, old_job: Job, job: Job, chart: CheckpointDefaults) -> str:
    """Return the reason why a new run would not find the checkpoints of an earlier one on a cluster; "" if it would.

    Args:
        run: Name of the earlier run.
        old_job: Its job.
        job: Job of the new run.
        chart: Defaults of the chart.
    """
    old_saving, new_saving = Saving.of(old_job, chart), Saving.of(job, chart)
    if old_saving is None or new_saving is None:
        return no_checkpoint_message(run)
    if old_saving.location != new_saving.location:
        return other_location_message(
            run, other_location=old_saving.location, own_location=new_saving.location, url=old_job.checkpoints.url
        )
    return ""


def other_location_message(run: str, other_location: str, own_location: str, url: str | None) -> str:
    """Return the message for a new run that would search the checkpoints of another run in the wrong location.

    Args:
        run: Name of the other run.
        other_location: Location of its checkpoints.
        own_location: Location of the new run's checkpoints.
        url: `checkpoints.url` of the other run's job. None if it is not set.
    """
    option = f"--set checkpoints.url={url or 'null'}"
    return f"{run} saved checkpoints in {other_location}, but this run would look in {own_location}. Add {option}"


def no_checkpoint_message(run: str) -> str:
    """Return the message for a run from whose checkpoint another one should start, but that has none."""
    return f"{run} has saved no checkpoint to start from; see `platform logs {run}` and `platform docs trainings`"


def warnings(job: Job, chart: CheckpointDefaults) -> Iterator[str]:
    """Yield a warning if checkpoints would be lost with their pod."""
    saving = Saving.of(job, chart)
    if saving is not None and saving.is_volume and not saving.claim:
        yield (
            f"the chart has no volume for checkpoints, so they are lost with their pod, and {job.lost_pod_effect}. "
            "Run helm upgrade --set checkpoints.enabled=true, or add --set checkpoints.url=s3://bucket/path here. "
            "See `platform docs storage`"
        )
