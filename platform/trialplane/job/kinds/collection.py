"""A collection: iterations in which workers produce results for one learner, or for files.

Each iteration is a trial of the run, and they run one after another. This module has the model and its rules.
`controller/workloads/collection.py` distributes the work, and `worker/collect/` does it.
"""

from __future__ import annotations

import re
from collections.abc import Collection as Places
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from trialplane.errors import FieldPath, Issue
from trialplane.job import cluster, models, values
from trialplane.job.cluster import Cluster
from trialplane.job.kinds import base
from trialplane.job.kinds.base import RUN, Base, Objectives
from trialplane.job.kinds.ranked import SHM_OF_CPU_RANK
from trialplane.job.kinds.roles import Role
from trialplane.job.resources import Resources
from trialplane.job.search import Objective

# Metrics of an iteration that the platform adds to those of the learner.
FAILED_UNITS = "units_failed"
ADDED = ("units", FAILED_UNITS, "items", "gigabytes", "units_per_second", "items_per_second")
# Metrics of each worker, which start with its name. Tables leave them out.
OF_WORKER = re.compile(r"worker_\d+/")
_LOCATION = r"^([a-z][a-z0-9+.-]*://[^\s/]\S*|/\S.*)$"
_SHARE_FAILED = 10  # default: one in this many units may fail
_NO_SEARCH = "is for a search (kind: hpo), and a collection compares no trials"
_NO_RANKS = "is for trials of several processes (kind: hpo, kind: train); a collection has collect.workers"
_NO_PROGRAM = "is for trials that are scripts (kind: hpo, kind: train); what makes results calls ctx.give in a function"
_NO_FAILED_TRIALS = (
    "an iteration needs the weights of the one before, so the first that fails for good ends the run; "
    "collect.max_failed says how many units may fail"
)


def _check_location(value: str) -> str:
    """Return a URL or an absolute path unchanged.

    Raises:
        ValueError: The value is neither.
    """
    if not re.fullmatch(_LOCATION, value):
        raise ValueError(f"{value!r} is not a place; write a URL, s3://bucket/path, or a folder from the root, /data/games")
    return value


class Write(models.Model):
    """Output files of a collection without a learner."""

    format: Literal["npz", "parquet"] = Field(
        default="npz",
        description="npz: NumPy archives, for arrays of any shape. parquet: tables with one row per item.",
    )
    shard: values.Quantity = Field(default="256Mi", description="Maximum size of a file: 256Mi, 1Gi.")
    to: Annotated[str, AfterValidator(_check_location), Field(json_schema_extra={"pattern": _LOCATION})] | None = Field(
        default=None,
        description="URL or absolute path of the output folder: s3://bucket/path, /data/games. Default: beside the run's "
        "checkpoints.",
    )

    @property
    def shard_bytes(self) -> int:
        """Size of a file, in bytes."""
        return values.bytes_of(self.shard)


class LearnerResources(models.Model):
    """Resources of the learner. Default: the job's `resources`."""

    cpus: values.Cores | None = Field(default=None, description="CPU cores: 2, 0.5 or 500m.")
    memory: values.Quantity | None = Field(default=None, description="Memory: 2Gi, 512Mi or a number of bytes.")
    gpus: values.Gpus | None = Field(
        default=None, ge=0, description="Number of GPUs. Default: that of the job's `resources`, or 0 with `write`."
    )
    shm: values.Quantity | None = Field(default=None, description="Size of /dev/shm: 1Gi. It counts as memory.")

    def with_defaults(self, resources: Resources) -> Resources:
        """Return the resources of the learner.

        Args:
            resources: Resources of the workers, which are the defaults.
        """
        return resources.model_copy(update=self.model_dump(exclude_none=True))


class Learner(models.Model):
    """The function that reads the results of the workers, and its pod. Default: the settings of the workers."""

    entrypoint: values.Function | None = Field(
        default=None, description="Function that reads the results and returns weights: module:function. Not with `write`."
    )
    resources: LearnerResources = Field(default_factory=LearnerResources, description="Resources of the learner.")
    image: cluster.Image | None = Field(default=None, description="Image of the learner's pod. Default: `cluster.image`.")
    node_selector: dict[cluster.Key, cluster.Label] | None = Field(
        default=None, description="Node labels that the learner's pod requires. Default: `cluster.node_selector`."
    )
    tolerations: tuple[cluster.Toleration, ...] | None = Field(
        default=None, description="Taints that the learner's pod tolerates. Default: `cluster.tolerations`."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Return the short form `learner: train:learn`, or null, as a mapping with its entrypoint."""
        return {"entrypoint": data} if isinstance(data, str) or data is None else data

    def cluster_settings(self, workers: Cluster) -> Cluster:
        """Return the cluster settings of the learner.

        Args:
            workers: Cluster settings of the workers, which are the defaults.
        """
        overrides = {name: getattr(self, name) for name in ("image", "node_selector", "tolerations")}
        return workers.model_copy(update={name: value for name, value in overrides.items() if value is not None})


class Collect(models.Model):
    """Iterations, workers and learner of a collection."""

    units: values.Integer = Field(
        gt=0, description="Number of units per iteration, for example games, episodes or documents."
    )
    iterations: values.Integer = Field(
        default=1, gt=0, description="Number of iterations. Each starts with the weights of the previous one."
    )
    workers: values.Integer = Field(
        default=1, gt=0, description="Number of workers. Each has a slot, and the learner has one more."
    )
    learner: Learner = Field(
        default_factory=Learner,
        description="Learner: module:function, or a mapping to give it resources of its own. Required without `write`.",
    )
    write: Write | None = Field(default=None, description="Write the results to files, instead of a learner: {format: npz}.")
    in_flight: values.Quantity = Field(
        default="512Mi",
        description="Maximum size of the results that the learner has not read yet: 512Mi, 2Gi. A single result must fit "
        "too.",
    )
    timeout: values.Duration = Field(
        default=600.0, description="Maximum time for a worker to produce a unit: seconds, or 10m. Then the worker is killed."
    )
    max_failed: values.Integer | None = Field(
        default=None,
        ge=0,
        description="Number of units that may fail in an iteration before it fails. Default: a tenth of `units`.",
    )

    @field_validator("write", mode="after")
    @classmethod
    def _check_no_learner(cls, write: Write | None, info: ValidationInfo) -> Write | None:
        """Check that there is no learner beside `write`."""
        learner = info.data.get("learner")
        if learner is not None and learner.entrypoint is not None and write is not None:
            models.refuse([Issue((), f"stands beside learner ({learner.entrypoint}), and one of them takes the results")])
        return write

    @model_validator(mode="after")
    def _check_reader(self) -> Collect:
        """Check that something reads the results: a learner or `write`."""
        if self.learner.entrypoint is None and self.write is None:
            example = "learner: train:learn (code that reads them) or write: {format: npz} (files)"
            models.refuse([Issue((), f"nothing reads the results; write {example}")])
        return self

    @property
    def in_flight_bytes(self) -> int:
        """`in_flight` in bytes."""
        return values.bytes_of(self.in_flight)

    @property
    def most_failed(self) -> int:
        """Number of units of an iteration that may fail: set by the job, or a tenth of them."""
        return self.units // _SHARE_FAILED if self.max_failed is None else self.max_failed


class Collection(Base):
    """Workers that produce results, and a learner that reads them and returns new weights, in turns."""

    title: ClassVar[str] = "collection"
    noun: ClassVar[str] = "iteration"
    trial_name: ClassVar[str] = "iteration"
    stand_in: ClassVar[Mapping[str, Any]] = {**Base.stand_in, "collect": {"units": 1, "write": {}}}
    count_field: ClassVar[str] = "collect.iterations"
    width_option: ClassVar[str] = "--workers"
    width_field: ClassVar[str] = "collect.workers"
    changeable: ClassVar[tuple[str, ...]] = (
        *("collect.iterations", "collect.workers", "collect.in_flight", "collect.timeout", "collect.max_failed"),
        *Base.changeable,
    )
    foreign_fields: ClassVar[Mapping[str, str]] = {
        **base.search_field_refusals(_NO_SEARCH),
        "trials": "is for a search (kind: hpo); a collection has collect.iterations",
        "parallel": "is for a search (kind: hpo): iterations come one after another; a collection has collect.workers",
        "stop": "ends a trial by its reports (kind: hpo, kind: train); an iteration ends when its learner returns",
        "ranks": _NO_RANKS,
        "nodes": _NO_RANKS,
        "divided": _NO_RANKS,
        **dict.fromkeys(("script", "command", "arguments", "cwd", "metrics"), _NO_PROGRAM),
    }
    lost_pod_effect: ClassVar[str] = "a collection whose pods were lost has no weights to continue with"

    kind: Literal["collect"] = Field(description="Iterations in which workers produce data and a learner consumes it.")
    entrypoint: values.Function = Field(
        default="train:play", description="Function that workers call to produce units: module:function."
    )
    objectives: Objectives = Field(
        default=(Objective(metric=ADDED[0], direction="maximize"),),
        description="Metrics to optimize. MLflow shows all of them. Default: maximize `units`.",
    )
    collect: Collect = Field(description="Iterations, workers and learner.")
    resume: Annotated[str, Field(pattern=RUN)] | None = Field(
        default=None,
        description="Name of a run whose newest checkpoint to start from, as long as this run has none of its own.",
    )

    @property
    def trials(self) -> int:
        """Number of iterations."""
        return self.collect.iterations

    @property
    def width(self) -> int:
        """Number of workers, which `platform scale` changes."""
        return self.collect.workers

    def widened(self, width: int) -> Collection:
        """Return the job with another `width`."""
        return self.model_copy(update={"collect": self.collect.model_copy(update={"workers": width})})

    @property
    def origin(self) -> str | None:
        """Name of the run from whose checkpoint this one starts."""
        return self.resume

    def roles(self) -> tuple[Role, ...]:
        """Return the roles of the workers and of the learner.

        Each pod has room in /dev/shm for results that the learner has not read yet, which are at most `collect.in_flight`.
        """
        collect, learner = self.collect, self.collect.learner
        in_flight = collect.in_flight_bytes
        learner_resources = learner.resources.with_defaults(self.resources)
        if collect.write is not None and learner.resources.gpus is None:
            learner_resources = learner_resources.model_copy(update={"gpus": 0})  # writing files needs no GPU
        return (
            Role(
                name="worker",
                title="a worker",
                replicas=collect.workers,
                entrypoint=self.entrypoint,
                resources=self.resources,
                cluster=self.cluster,
                shm_bytes=self.resources.shm_bytes or SHM_OF_CPU_RANK + in_flight,
                in_flight_bytes=in_flight,
            ),
            Role(
                name="learner",
                title="the learner",
                replicas=1,
                entrypoint=learner.entrypoint or "",
                resources=learner_resources,
                cluster=learner.cluster_settings(self.cluster),
                shm_bytes=learner_resources.shm_bytes or SHM_OF_CPU_RANK + in_flight,
                in_flight_bytes=in_flight,
                field="collect.learner.resources",
                write={} if collect.write is None else collect.write.model_dump(),
            ),
        )

    @property
    def output_location(self) -> str | None:
        """URL or folder for output files. None if the job sets none."""
        return None if self.collect.write is None else self.collect.write.to

    def facts(self) -> dict[str, Any]:
        """Return facts that MLflow shows for the run in addition to its objectives."""
        collect = self.collect.model_dump(exclude={"write", "learner"}, exclude_none=True)
        learner = self.collect.learner.entrypoint
        return {**collect, **({"learner": learner} if learner else {})}

    def continuation_advice(self, run: str, target_flags: str) -> str:
        """Return the command that extends a successful run: see `Study.continuation_advice`."""
        return f"`platform resume {run} --iterations N` runs more than {self.trials}"

    def functions(self) -> Iterator[base.Function]:
        """Yield the functions that the job names: as its entrypoint, and as its learner."""
        yield from super().functions()
        learner = self.collect.learner.entrypoint
        if learner is not None and learner != self.entrypoint:  # `check` reports equal ones
            yield base.Function(field=("collect", "learner", "entrypoint"), text=learner, arguments=("ctx", "results"))

    def check(self, broken: Places[FieldPath]) -> Iterator[Issue]:
        """Yield the issues of all jobs, of a learner that is the entrypoint, and of a budget for other kinds."""
        yield from super().check(broken)
        if self.collect.learner.entrypoint == self.entrypoint and ("collect",) not in broken:
            message = f"is the entrypoint ({self.entrypoint}), which makes the results; name the function that reads them"
            yield Issue(("collect", "learner", "entrypoint"), message)
        if ("objectives",) not in broken:
            yield from base.target_issues(self)
        yield from base.budget_issues(self.budget, dict.fromkeys(("max_failed", "failed_alike"), _NO_FAILED_TRIALS))
