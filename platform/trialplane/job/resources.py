"""Resources, checkpoints, retries and budget of a run."""

from __future__ import annotations

import math
import sys
from typing import Annotated

from pydantic import Field, field_validator

from trialplane.job import models, values

# URLs of fsspec, except `file:///…`: the folders of pods and laptops are not a matter of the job.
_URL = r"^[a-z][a-z0-9+.-]*://[^\s/]\S*$"
Url = Annotated[str, Field(pattern=_URL)]


class Resources(models.Model):
    """Resources of a trial on each of its nodes."""

    cpus: values.Cores = Field(default=1, description="CPU cores: 2, 0.5 or 500m.")
    memory: values.Quantity = Field(default="2Gi", description="Memory: 2Gi, 512Mi or a number of bytes.")
    gpus: values.Gpus = Field(
        default=0,
        ge=0,
        description="Number of GPUs, or a share of one: 0.5. On a cluster, a share needs `studies.gpuShares` in the chart.",
    )
    shm: values.Quantity | None = Field(
        default=None, description="Size of /dev/shm, for data loaders with several workers: 1Gi. It counts as memory."
    )

    @property
    def cores(self) -> str:
        """Number of CPU cores in words."""
        return f"{self.cpus:g} core{'' if self.cpus == 1 else 's'}"

    @property
    def threads(self) -> int:
        """Number of threads for these cores, at least 1."""
        return max(1, int(self.cpus))

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that a trial sees."""
        return math.ceil(self.gpus)

    @property
    def gpu_share(self) -> float:
        """Share of a GPU that a trial has, from 0 to 1. 1 if it has whole GPUs or none."""
        return self.gpus if 0 < self.gpus < 1 else 1.0

    def most_trials(self, gpus: int) -> int:
        """Return the number of trials that can run at the same time on this many GPUs. Unlimited if a trial needs none.

        Each share of a GPU must fit on one GPU.
        """
        if self.gpu_share < 1:
            return gpus * math.floor(1 / self.gpu_share + 1e-9)  # 1 / 0.1 may be a little less than 10
        return gpus // self.gpu_count if self.gpu_count else sys.maxsize

    def gpus_for(self, trials: int) -> int:
        """Return the number of GPUs that this many trials need at the same time."""
        return math.ceil(trials / self.most_trials(1)) if self.gpu_share < 1 else trials * self.gpu_count

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return values.bytes_of(self.memory)

    @property
    def shm_bytes(self) -> int | None:
        """Size of /dev/shm in bytes, or None for the system's own."""
        return None if self.shm is None else values.bytes_of(self.shm)


class Budget(models.Model):
    """Limits after which a run stops early."""

    max_failed: values.Integer | None = Field(
        default=None, ge=0, description="Stop if more than this many trials failed. Default: no limit."
    )
    failed_alike: values.Integer | None = Field(
        default=5,
        gt=0,
        description="Stop if this many of the first trials failed alike, in the same line of the job's code, and none "
        "succeeded. null: never.",
    )
    time: values.Duration | None = Field(
        default=None,
        description="Start no more trials after the run has been active this long, pauses excluded: seconds, or 90s, 30m, "
        "2h, 1h30m.",
    )
    steps: values.Integer | None = Field(
        default=None,
        gt=0,
        description="Number of steps that the trials of a study with `promote: true` may train in all. Default: no limit.",
    )
    gpu_hours: values.Number | None = Field(
        default=None,
        gt=0,
        description="Number of GPU-hours that all attempts may use, also failed and lost ones. Then running trials are "
        "stopped, with time to save a checkpoint. Default: no limit.",
    )
    cost: values.Number | None = Field(
        default=None,
        gt=0,
        description="Amount of money that all attempts may cost, counted like `gpu_hours`. Prices are in the chart's "
        "values, on a laptop in TRIALPLANE_GPU_PRICE and TRIALPLANE_CPU_PRICE. Default: no limit.",
    )
    target: values.Number | None = Field(
        default=None, description="Stop when the objective is at least this good. Needs one objective."
    )
    timeout: values.Duration | None = Field(
        default=None, description="Maximum duration of a trial: seconds, or 90s, 30m, 2h, 1h30m. Default: no limit."
    )
    exit_timeout: values.Duration = Field(
        default=300.0,
        description="Maximum time for a process to exit after its trial has its result: seconds, or 5m. It covers exit "
        "hooks, and ranks and nodes that are still at work. Then the process is killed, and the result still counts.",
    )


class Retries(models.Model):
    """Number of retries after a process or a machine failed.

    Exceptions in the job's code are not retried. A trial with checkpoints gets all of its retries again whenever it gets
    further than before.
    """

    crashed: values.Integer = Field(
        default=1,
        ge=0,
        description="Number of retries after a process was killed or ran out of host memory.",
    )
    lost: values.Integer = Field(
        default=5,
        ge=0,
        description="Number of retries after a pod, a node or a slot was lost.",
    )
    failed_before: values.Integer = Field(
        default=0,
        ge=0,
        description="Try trials again whose last attempt failed and has a number below this. `platform retry` sets it.",
    )


class Keep(models.Model):
    """Trials whose checkpoints are kept."""

    best: values.Integer = Field(
        gt=0,
        description="Number of best trials whose checkpoints are kept. Those of a trial are removed when it was pruned, "
        "failed for good, or was beaten by this many others.",
    )
    files: tuple[str, ...] = Field(
        default=(),
        description="Files to keep from a trial's working directory: model.pt, out/*.safetensors. They are copied to "
        "files/ beside its checkpoints when it completes. Those of the best trials are sent to MLflow when the run ends.",
    )

    @field_validator("files")
    @classmethod
    def _check_paths(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        """Check that the paths are below the folder in which a trial runs."""
        for path in files:
            if values.leads_outside(path) or not path.strip("./"):  # the folder itself names no files
                raise ValueError(f"{path!r} must name files below the folder in which a trial runs: model.pt, out/*.pt")
        return files


class Checkpoints(models.Model):
    """Location and grace period of checkpoints. The job's code decides how often to save, and which checkpoints to keep."""

    url: Url | None = Field(
        default=None,
        description="URL of an object store, in fsspec's format: s3://bucket/path. Default: the chart's object store or "
        "volume on a cluster, else the run's folder.",
    )
    grace: values.Duration | None = Field(
        default=None,
        description="Time for a trial to save a checkpoint when its pod must go: seconds, or 5m. Default: 30 s; for a "
        "training, the chart's `checkpoints.grace`.",
    )
