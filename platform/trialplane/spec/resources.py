"""What one trial gets of a machine, where it saves itself, and what a run may spend."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from trialplane.spec import models, values

# Of fsspec. `file:///…` is left out: a folder of a pod, or of a laptop, is not what a job can know.
_URL = r"^[a-z][a-z0-9+.-]*://[^\s/]\S*$"
Url = Annotated[str, Field(pattern=_URL)]


class Resources(models.Model):
    """What one trial may use."""

    cpus: values.Cores = Field(default=1, description="CPU cores: 2, 0.5 or 500m.")
    memory: values.Quantity = Field(default="2Gi", description="Memory: 512Mi, 2Gi or bytes.")
    gpus: values.Integer = Field(default=0, ge=0, description="Whole GPUs.")
    shm: values.Quantity | None = Field(
        default=None, description="Size of /dev/shm, for data loaders with several workers; counts as memory."
    )

    @property
    def cores(self) -> str:
        """CPU cores in words."""
        return f"{self.cpus:g} core{'' if self.cpus == 1 else 's'}"

    @property
    def threads(self) -> int:
        """How many threads the cores are good for; of a part of one, one."""
        return max(1, int(self.cpus))

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return values.bytes_of(self.memory)

    @property
    def shm_bytes(self) -> int | None:
        """Size of /dev/shm in bytes, or None for the system's own."""
        return None if self.shm is None else values.bytes_of(self.shm)


class Budget(models.Model):
    """When a run stops before all its trials have ended."""

    max_failed: values.Integer | None = Field(default=None, ge=0, description="Stop when more trials than this failed.")
    failed_alike: values.Integer | None = Field(
        default=5,
        gt=0,
        description="Stop when so many of the first trials failed alike, in the same line of the job's code, and none ended "
        "well; null: never.",
    )
    time: values.Duration | None = Field(
        default=None,
        description="Start no trial when the run has worked this long without its pauses: seconds, or 90s, 30m, 2h, 1h30m.",
    )
    target: values.Number | None = Field(
        default=None, description="Stop when the objective is at least this good; with one objective only."
    )
    timeout: values.Duration | None = Field(
        default=None, description="Longest time for one trial: seconds, or 90s, 30m, 2h, 1h30m."
    )
    exit_timeout: values.Duration = Field(
        default=300.0,
        description="Longest time for a process to exit once its trial has its result: for exit hooks, and for ranks and "
        "nodes that are still at work. Then it is killed, and the result counts: 300, 5m.",
    )


class Retries(models.Model):
    """How often a trial is tried again when its process or its machine failed.

    Of a trial that keeps checkpoints: since it last came further than in all attempts before.
    """

    crashed: values.Integer = Field(
        default=1,
        ge=0,
        description="After the process was killed or ran out of memory. Of a training: this often without getting further, "
        "then they count anew.",
    )
    lost: values.Integer = Field(
        default=5,
        ge=0,
        description="After the pod, node or slot was lost. Of a training: this often without getting further, then they "
        "count anew.",
    )


class Keep(models.Model):
    """Which trials' checkpoints outlive the trials."""

    best: values.Integer = Field(
        gt=0,
        description="Of so many of the best trials. Those of a trial that was pruned, has failed for good, or was beaten by "
        "so many, are removed once that is recorded; those of one that is to go on are not.",
    )
    files: tuple[str, ...] = Field(
        default=(),
        description="Files of the folder in which a trial runs that are put beside its checkpoints, into files/, when it is "
        "complete, and sent to the best trials' runs in MLflow when the run ends: model.pt, out/*.safetensors.",
    )

    @field_validator("files")
    @classmethod
    def _below(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for path in files:
            if path.startswith("/") or ".." in path.split("/") or not path.strip("./"):
                raise ValueError(f"{path!r} must name files below the folder in which a trial runs: model.pt, out/*.pt")
        return files


class Checkpoints(models.Model):
    """What a job wants of the place of its checkpoints."""

    # How often a training is saved and which checkpoints stay is its code's to decide, by its `params`.

    url: Url | None = Field(
        default=None,
        description="Where they lie, as fsspec names it: s3://bucket/path; else the chart's volume, or the run's folder.",
    )
    grace: values.Duration | None = Field(
        default=None,
        description="Time to save itself of a trial that must leave its pod: 120, 5m; else 30 s, of a training the chart's.",
    )
