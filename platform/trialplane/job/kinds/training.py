"""A training: one trial, often of many ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trialplane.errors import FieldPath, Issue
from trialplane.job import values
from trialplane.job.kinds import base, program
from trialplane.job.kinds.base import RUN, Objectives
from trialplane.job.kinds.ranked import Ranked
from trialplane.job.kinds.roles import Role
from trialplane.job.program import split_style
from trialplane.job.resources import Retries
from trialplane.job.search import Objective

_NO_SEARCH = "is for a search (kind: hpo), and a training is one trial"
_BUDGET_REFUSALS = {
    "max_failed": f"{_NO_SEARCH}: retries sets how often to retry",
    "failed_alike": f"{_NO_SEARCH}: retries sets how often to retry",
    "time": f"{_NO_SEARCH}: budget.timeout ends a training that takes too long",
    "target": f"{_NO_SEARCH}: the job's own code stops when it is good enough",
}
_GRACE = 120.0  # seconds: a checkpoint may have many gigabytes
_MEMORY_GIB = 2  # of each rank, as of a trial of a search


class PatientRetries(Retries):
    """Retries of a training. The default after a crash is higher, because a restart from a checkpoint loses little."""

    crashed: values.Integer = Field(default=3, ge=0, description=Retries.model_fields["crashed"].description)


class Training(Ranked):
    """One trial of one or many ranks, which saves checkpoints and continues from them when it is retried."""

    title: ClassVar[str] = "training"
    trial_name: ClassVar[str] = "training"
    is_for_gpus: ClassVar[bool] = True
    foreign_fields: ClassVar[Mapping[str, str]] = {
        **base.search_field_refusals(_NO_SEARCH),
        "trials": f"{_NO_SEARCH}; more processes are ranks, more pods are nodes",
        "parallel": f"{_NO_SEARCH}; more processes are ranks, more pods are nodes",
    }
    lost_pod_effect: ClassVar[str] = "a lost pod starts the training from nothing"

    kind: Literal["train"] = Field(description="One trial with one or more ranks, without a search.")
    objectives: Objectives = Field(
        default=(Objective(metric="loss", direction="minimize"),),
        description="Metrics to optimize. MLflow shows all of them. Default: minimize `loss`.",
    )
    retries: PatientRetries = Field(
        default_factory=PatientRetries, description="Number of retries of a crashed or lost trial."
    )
    resume: Annotated[str, Field(pattern=RUN)] | None = Field(
        default=None,
        description="Name of a run whose newest checkpoint to start from, as long as this run has none of its own.",
    )

    @model_validator(mode="before")
    @classmethod
    def _set_default_resources(cls, data: Any) -> Any:
        """Return the data of a job with the default resources of a node: one core and 2 GiB for each rank."""
        resources = data.get("resources", {}) if isinstance(data, dict) else None
        if not isinstance(resources, dict):
            return data
        ranks = _ranks_per_node(data.get("ranks"), resources.get("gpus"))
        return {**data, "resources": {"cpus": ranks, "memory": f"{ranks * _MEMORY_GIB}Gi", **resources}}

    @property
    def trials(self) -> int:
        """Number of trials: one."""
        return 1

    @property
    def width(self) -> int:
        """Number of trials at the same time: one."""
        return 1

    def widened(self, width: int) -> Training:
        """Return the job itself, because the number of its trials is fixed."""
        return self

    @property
    def origin(self) -> str | None:
        """Name of the run from whose checkpoint this one starts."""
        return self.resume

    def roles(self) -> tuple[Role, ...]:
        """Return the only role: the training, whose ranks start together."""
        return (
            Role(
                name="trial",
                title="the training",
                replicas=1,
                entrypoint=self.entrypoint,
                program=program.from_job(self),
                resources=self.resources,
                cluster=self.cluster,
                nodes=self.nodes,
                ranks=self.ranks_per_node,
                shm_bytes=self.shm_of_ranks,
                gang=True,
            ),
        )

    def grace(self, of_chart: float | None = None) -> float:
        """Return the grace period in seconds, as the job sets it, else as the chart sets it, else 120. See `Base.grace`."""
        return self.checkpoints.grace or of_chart or _GRACE

    def gpu_advice(self, field: str, gpus: int, nodes: int = 0) -> str:
        """Return the flags to type if no machine has the GPUs that a node requests: see `Base.gpu_advice`."""
        if nodes:
            return f"--gpus {gpus} --nodes {nodes} spreads them over {nodes} nodes"
        on_gpus = f"--gpus {gpus} trains on those, " if gpus else ""
        on_cores = f"--gpus 0 --ranks {self.ranks_per_node} on its cores"
        return f"{on_gpus}{on_cores}, and without --local a cluster is asked"

    def facts(self) -> dict[str, Any]:
        """Return facts that MLflow shows for the run in addition to its objectives."""
        resume = {"resume": self.resume} if self.resume else {}
        return {"nodes": self.nodes, "ranks": self.world_size, **resume}

    def continuation_advice(self, run: str, target_flags: str) -> str:
        """Return the command that continues the training of a successful run: see `Study.continuation_advice`."""
        return (
            f"`platform submit train {self.name} --resume {run}{target_flags}` starts another one from its newest "
            "checkpoint, with the current code and parameters"
        )

    def check(self, broken: Collection[FieldPath]) -> Iterator[Issue]:
        """Yield issues of all jobs with ranks, and fields that only a search supports."""
        yield from super().check(broken)
        yield from base.budget_issues(self.budget, _BUDGET_REFUSALS)
        style, _ = split_style(self.entrypoint)
        if ("entrypoint",) not in broken and style:
            reason = "is called with what a search draws, so it is for kind: hpo"
            yield Issue(("entrypoint",), f"{reason}; write a function run(ctx), and train:run here")
        if self.cluster.autoscale:
            yield Issue(("cluster", "autoscale"), "the pods of a training must all be there before it starts; drop it")


def scaled_resources(written: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of a training that change if an override changes its number of GPUs.

    Each rank keeps its share of the cores and the memory. Ranks on CPUs share the available cores, so without GPUs nothing
    changes.

    Args:
        written: Unvalidated fields of the job's file and profile.
        requested: The same fields with the overrides of the command line.

    Returns:
        The changed fields of `resources`, by name. Empty for other kinds of jobs.
    """
    old, new = written.get("resources", {}), requested.get("resources", {})
    if requested.get("kind") != "train" or not isinstance(old, dict) or not isinstance(new, dict):
        return {}
    if new.get("gpus", 0) in (0, old.get("gpus", 0)):  # none, or as many as before
        return {}
    old_ranks = _ranks_per_node(written.get("ranks"), old.get("gpus"))
    new_ranks = _ranks_per_node(requested.get("ranks"), new["gpus"])
    changed: dict[str, Any] = {}
    cpus = values.cores(old.get("cpus"))
    if isinstance(cpus, int):
        changed["cpus"] = -(-cpus * new_ranks // old_ranks)  # rounded up
    elif cpus is not None:
        changed["cpus"] = cpus * new_ranks / old_ranks
    for name in ("memory", "shm"):
        if name in old and (amount := values.multiply(old[name], new_ranks / old_ranks)) is not None:
            changed[name] = amount
    return changed


def _ranks_per_node(ranks: Any, gpus: Any) -> int:
    """Return the number of ranks of a node from unvalidated fields: `ranks`, else the number of GPUs, else 1."""
    for number in (ranks, gpus):
        if type(number) is int and 0 < number < 2**20:  # no node has more; the memory for them would not be valid
            return number
    return 1
