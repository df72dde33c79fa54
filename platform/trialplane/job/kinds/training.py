"""A training: one trial, mostly of many ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trialplane.errors import Issue, Place
from trialplane.job import values
from trialplane.job.kinds import base, program
from trialplane.job.kinds.base import RUN, Objectives
from trialplane.job.kinds.ranked import Ranked
from trialplane.job.kinds.roles import Role
from trialplane.job.program import styled
from trialplane.job.resources import Retries
from trialplane.job.search import Objective

_SEARCH = "is for a search (kind: hpo), and a training is one trial"
_BUDGET = {
    "max_failed": f"{_SEARCH}: retries sets how often to retry",
    "failed_alike": f"{_SEARCH}: retries sets how often to retry",
    "time": f"{_SEARCH}: budget.timeout ends a training that takes too long",
    "target": f"{_SEARCH}: the job's own code stops when it is good enough",
}
_GRACE = 120.0  # seconds: a checkpoint may have many gigabytes
_MEMORY_GIB = 2  # of each rank: what a trial of a search gets


class PatientRetries(Retries):
    """As of every job, but with retries for a rank that ran out of memory on its node or had a GPU error.

    A restart from a checkpoint loses little.
    """

    crashed: values.Integer = Field(default=3, ge=0, description=Retries.model_fields["crashed"].description)


class Training(Ranked):
    """One trial of one or many ranks, which saves checkpoints and is retried from them."""

    title: ClassVar[str] = "training"
    is_for_gpus: ClassVar[bool] = True
    foreign: ClassVar[Mapping[str, str]] = {
        **base.search_fields(_SEARCH),
        "trials": f"{_SEARCH}; more processes are ranks, more pods are nodes",
        "parallel": f"{_SEARCH}; more processes are ranks, more pods are nodes",
        "collect": "is for kind: collect, and the kind is train",
    }
    loss: ClassVar[str] = "a lost pod starts the training from nothing"

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
    def _for_each_rank(cls, data: Any) -> Any:
        """Resources left out are those of a trial of a search, for each rank: one core and 2 GiB."""
        resources = data.get("resources", {}) if isinstance(data, dict) else None
        if not isinstance(resources, dict):
            return data
        count = _count(data.get("ranks"), resources.get("gpus"))
        return {**data, "resources": {"cpus": count, "memory": f"{count * _MEMORY_GIB}Gi", **resources}}

    @property
    def trials(self) -> int:
        """It is one trial."""
        return 1

    @property
    def width(self) -> int:
        """It is one trial, and its ranks are fixed."""
        return 1

    def widened(self, width: int) -> Training:
        """The same: nothing of it can be wider."""
        return self

    def roles(self) -> tuple[Role, ...]:
        """Its ranks, which meet before they begin."""
        return (
            Role(
                name="trial",
                title="the training",
                replicas=1,
                entrypoint=self.entrypoint,
                program=program.of(self),
                resources=self.resources,
                cluster=self.cluster,
                nodes=self.nodes,
                ranks=self.ranks_per_node,
                shm_bytes=self.shm_of_ranks,
                gang=True,
            ),
        )

    def grace(self, of_chart: float | None = None) -> float:
        """Seconds to save itself: as the job says, else the chart, else 120."""
        return self.checkpoints.grace or of_chart or _GRACE

    def with_gpus(self, field: str, gpus: int, nodes: int = 0) -> str:
        """What to type where no machine has the GPUs that a node of the training asks for."""
        if nodes:
            return f"--gpus {gpus} --nodes {nodes} spreads them over {nodes} nodes"
        here = f"--gpus {gpus} trains on those, " if gpus else ""
        cores = f"--gpus 0 --ranks {self.ranks_per_node} on its cores"
        return f"{here}{cores}, and without --local a cluster is asked"

    def facts(self) -> dict[str, Any]:
        """What MLflow shows of the run beside its objectives."""
        resume = {"resume": self.resume} if self.resume else {}
        return {"nodes": self.nodes, "ranks": self.world_size, **resume}

    def further(self, run: str, where: str) -> str:
        """What to type so that what a run of it has trained is trained on."""
        return (
            f"`platform submit train {self.name} --resume {run}{where}` starts another one from its newest checkpoint, with "
            "the code and the parameters of now"
        )

    def check(self, broken: Collection[Place]) -> Iterator[Issue]:
        """Of all jobs with ranks, and what it must leave to a search."""
        yield from super().check(broken)
        yield from base.refused_budget(self.budget, _BUDGET)
        if ("entrypoint",) not in broken and styled(self.entrypoint)[0]:
            why = "is called with what a search draws, so it is for kind: hpo; write a function run(ctx), and train:run here"
            yield Issue(("entrypoint",), why)
        if self.cluster.autoscale:
            why = "the pods of a training must all be there before it starts; drop it"
            yield Issue(("cluster", "autoscale"), why)


def scaled(written: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A training's resources for other GPUs than they were written for: to each rank what it would have had.

    Ranks on CPUs share the cores that are there, so without GPUs all stays as it is written.

    Args:
        written: the job's fields as its file and profile give them.
        asked: the same with the command line laid over them.

    Returns:
        The fields of `resources` that are others then.
    """
    old, new = written.get("resources", {}), asked.get("resources", {})
    if asked.get("kind") != "train" or not isinstance(old, dict) or not isinstance(new, dict):
        return {}
    if new.get("gpus", 0) in (0, old.get("gpus", 0)):
        return {}
    was, now = _count(written.get("ranks"), old.get("gpus")), _count(asked.get("ranks"), new["gpus"])
    made: dict[str, Any] = {}
    if (cpus := values.cores(old.get("cpus"))) is not None:
        made["cpus"] = -(-cpus * now // was) if isinstance(cpus, int) else cpus * now / was
    for name in ("memory", "shm"):
        if name in old and (amount := values.times(old[name], now / was)) is not None:
            made[name] = amount
    return made


def _count(*given: Any) -> int:
    """Ranks of a node, from fields nobody has looked at yet."""
    return next((one for one in given if isinstance(one, int) and not isinstance(one, bool) and 0 < one < 2**20), 1)
