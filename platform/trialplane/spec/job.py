"""The job: everything a user asks for, resolved and frozen. Its JSON form reads back to an equal job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from trialplane.spec import collecting, faults, training, values
from trialplane.spec import space as spaces  # `space` is a field of the job
from trialplane.spec.checkpoints import Checkpoints
from trialplane.spec.cluster import Cluster
from trialplane.spec.collecting import Collect
from trialplane.spec.faults import Fault
from trialplane.spec.resources import Budget, Resources, Retries
from trialplane.spec.sampling import Pruner, Sampler

NAME = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
KINDS = ("hpo", training.KIND, collecting.KIND)
RUN = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"  # of a run; `plan.check_name` says more
# /dev/shm of each rank: NCCL's buffers between GPUs of a node, and the batches of a DataLoader's workers.
_SHM_OF_GPU_RANK = 2**30
_SHM_OF_CPU_RANK = 2**28


def _amount(value: Any) -> Any:
    terms = value if isinstance(value, (list, tuple)) else [value]
    for term in terms if value is not None else ():
        if not (isinstance(term, str) and term) and not (type(term) is int and term > 0):
            raise ValueError(f"must be a whole number over 0, the name of a parameter or a list of these, not {term!r}")
    if value == []:
        raise ValueError("is an empty sum; name what is added")
    return tuple(value) if isinstance(value, list) else value


_TERMS: list[dict[str, Any]] = [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}]
_Amount = Annotated[
    Any,
    BeforeValidator(_amount),
    WithJsonSchema(
        {"anyOf": [*_TERMS, {"type": "array", "items": {"anyOf": _TERMS}, "minItems": 1}, {"type": "null"}]},
    ),
]


class Input(faults.Model):
    """A data file that a parameter names, checked before anything starts."""

    format: Literal["table", "dataset", "lines"] = Field(
        default="table",
        description="table: CSV, TSV or JSON lines. dataset: these or Parquet. lines: plain UTF-8 text, a sample in each.",
    )
    columns: tuple[str, ...] = Field(default=(), description="Columns (CSV, TSV) or keys (JSON lines) it must have.")
    columns_of: tuple[str, ...] = Field(default=(), description="Parameters that each name a column it must have.")
    at_least: _Amount = Field(
        default=None,
        description="Lines it must have: a number, the parameter with it, or a list, which is a sum: [batch, eval_samples].",
    )
    per_rank: _Amount = Field(
        default=None, description="Lines it must have for each rank: as at_least, of a parameter such as a device's batch."
    )
    optional: bool = Field(default=False, strict=True, description="Whether the parameter may be null, which names no file.")

    @model_validator(mode="after")
    def _one_format(self) -> Input:
        if self.format == "lines":
            given = [name for name in ("columns", "columns_of") if getattr(self, name)]
            faults.refuse([Fault((name,), "plain text has no columns; drop them, or format: lines") for name in given])
        if self.format != "lines":
            faults.refuse([Fault((name,), "needs format: lines") for name in self.amounts])
        return self

    @property
    def amounts(self) -> dict[str, tuple[int | str, ...]]:
        """The terms of `at_least` and of `per_rank`, those that are given."""
        both = {"at_least": self.at_least, "per_rank": self.per_rank}
        return {name: value if isinstance(value, tuple) else (value,) for name, value in both.items() if value is not None}


class Objective(faults.Model):
    """A metric to make as large or as small as possible."""

    metric: str = Field(min_length=1, description="Name of the metric that the job returns.")
    direction: Literal["minimize", "maximize"] = Field(description="Which way is better.")


class Constraint(faults.Model):
    """Bounds of a metric, both included; a trial outside is infeasible and never the best."""

    metric: str = Field(min_length=1, description="Name of the metric that the job returns.")
    min: values.Number | None = Field(default=None, description="Smallest value allowed.")
    max: values.Number | None = Field(default=None, description="Largest value allowed.")

    @model_validator(mode="after")
    def _bounded(self) -> Constraint:
        if self.min is None and self.max is None:
            faults.refuse([Fault((), "needs min or max or both")])
        elif self.min is not None and self.max is not None and self.min > self.max:
            faults.refuse([Fault(("min",), f"{self.min} is over max ({self.max})")])
        return self

    def excess(self, value: float) -> float:
        """How far `value` lies outside: over 0 is infeasible, 0 or less feasible, as Optuna wants it."""
        sides = [
            bound
            for bound in (
                None if self.min is None else self.min - value,
                None if self.max is None else value - self.max,
            )
            if bound is not None
        ]
        return max(sides)


def _space_form(value: Any) -> str:
    return "function" if isinstance(value, str) else "parameters"


Space = Annotated[
    Annotated[dict[spaces.Name, spaces.Parameter], Tag("parameters")] | Annotated[values.Function, Tag("function")],
    Discriminator(_space_form),
]
Objectives = Annotated[tuple[Objective, ...], Field(min_length=1)]


class Job(faults.Model):
    """What `job.yaml` says, with profile, environment and flags applied."""

    name: str = Field(pattern=NAME, description="The name of the job's folder.")
    kind: Literal["hpo", "train", "collect"] = Field(
        description="What the job is: hpo, a search for good hyper-parameters; train, one training of many ranks; "
        "collect, results that producers make for a consumer."
    )
    description: str = Field(default="", description="For people.")
    entrypoint: values.Function = Field(
        default="train:run", description="module:function of the job's folder that runs one trial."
    )
    preload: tuple[str, ...] = Field(
        default=(), description="Modules to import once per slot, before trials are forked: torch, transformers."
    )
    params: dict[str, values.Plain] = Field(
        default_factory=dict,
        description="Fixed parameters, any JSON value. A parameter of the same name in `space` wins.",
    )
    inputs: dict[str, Input] = Field(
        default_factory=dict, description="Parameters that name data files, with what the file must hold."
    )
    divided: tuple[str, ...] = Field(
        default=(), description="Parameters that all ranks share evenly, as a global batch: the world size must divide them."
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="Environment variables that set a field: HPO_EPOCHS: params.epochs."
    )
    space: Space = Field(
        default_factory=dict, description="The parameters to search, or module:function of an Optuna trial."
    )
    objectives: Objectives = Field(description="What to optimize; several make a multi-objective study.")
    constraints: tuple[Constraint, ...] = Field(default=(), description="Metrics with bounds.")
    sampler: Sampler = Field(
        default_factory=lambda: Sampler(name="tpe"), description="How the next trial's parameters are drawn."
    )
    pruner: Pruner = Field(default_factory=lambda: Pruner(name="none"), description="How bad trials are ended early.")
    trials: values.Integer = Field(default=20, gt=0, description="Trials that must end; a retry is not counted.")
    parallel: values.Integer = Field(default=1, gt=0, description="Trials at the same time.")
    budget: Budget = Field(default_factory=Budget, description="When to stop before all trials have ended.")
    retries: Retries = Field(default_factory=Retries, description="How often to try a lost trial again.")
    resources: Resources = Field(default_factory=Resources, description="What one trial gets of a machine, of each node.")
    ranks: values.Integer | None = Field(
        default=None, gt=0, description="Processes of one trial on each node; left out: one per GPU, or one."
    )
    nodes: values.Integer = Field(default=1, gt=0, description="Machines (pods) that run one trial together.")
    checkpoints: Checkpoints = Field(
        default_factory=Checkpoints, description="When a trial saves itself, what is kept of that, and where."
    )
    resume: Annotated[str, Field(pattern=RUN)] | None = Field(
        default=None, description="A run whose newest checkpoint a training starts from while it has none of its own."
    )
    collect: Collect | None = Field(default=None, description="Of a collection: how results are made and who reads them.")
    cluster: Cluster = Field(default_factory=Cluster, description="How the run's pods are made in a cluster.")
    seed: values.Integer = Field(default=0, ge=0, lt=2**32, description="Of the sampler; trials derive theirs.")
    enqueue: tuple[dict[str, values.Choice], ...] = Field(
        default=(), description="Points to try first; parameters that a point leaves out are drawn."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        return collecting.filled(training.filled(data))

    @model_serializer(mode="wrap")
    def _without_search(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the fields of other kinds, so that its JSON reads back and nothing in it misleads."""
        made: dict[str, Any] = write(self)
        if self.is_training or self.is_collection:
            made = {name: value for name, value in made.items() if name not in training.SEARCH_ONLY}
        for name in ("trials", "parallel", "ranks") if self.is_collection else ("collect",):
            made.pop(name, None)
        return made

    @property
    def is_training(self) -> bool:
        """Whether it is one training, and no search."""
        return self.kind == training.KIND

    @property
    def is_collection(self) -> bool:
        """Whether producers make results for a consumer, iteration by iteration."""
        return self.kind == collecting.KIND

    @property
    def noun(self) -> str:
        """What one trial of it is called."""
        return "iteration" if self.is_collection else "trial"

    @property
    def ranks_per_node(self) -> int:
        """Processes of one trial on each of its nodes; 1 is the trial's own process."""
        return self.ranks or max(1, self.resources.gpus)

    @property
    def world_size(self) -> int:
        """Processes of one trial."""
        return self.ranks_per_node * self.nodes

    @property
    def slots(self) -> int:
        """Slots, and so pods, that the trials of this run fill when as many run as may: one for each node of each.

        Of a collection: one for each producer and one for the consumer.
        """
        if self.collect is not None:
            return self.collect.workers + 1
        return min(self.parallel, self.trials) * self.nodes

    @property
    def width(self) -> int:
        """How many do the work at the same time, which `platform scale` changes: trials, or workers of a collection."""
        return self.parallel if self.collect is None else self.collect.workers

    def widened(self, width: int) -> Job:
        """The same with another `width`."""
        if self.collect is None:
            return self.model_copy(update={"parallel": width})
        return self.model_copy(update={"collect": self.collect.model_copy(update={"workers": width})})

    @property
    def is_placed_whole(self) -> bool:
        """Whether its pods are of use only when all are there, so that none come and go."""
        return self.is_training or self.nodes > 1

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether its trials save themselves: a search does when it says something about it, the other kinds always."""
        return self.is_training or self.is_collection or self.checkpoints != Checkpoints()

    @property
    def shm_bytes(self) -> int | None:
        """Bytes of /dev/shm on each node, or None for the system's own: as the job says, else by its ranks.

        Of a collection: what the consumer keeps of its results lies there, and until it has read them, no more than
        `collect.in_flight`.
        """
        if self.resources.shm_bytes is not None:
            return self.resources.shm_bytes
        if self.collect is not None:
            return _SHM_OF_CPU_RANK + self.collect.in_flight_bytes
        if not self.is_training and self.world_size == 1:
            return None
        return self.ranks_per_node * (_SHM_OF_GPU_RANK if self.resources.gpus else _SHM_OF_CPU_RANK)

    @property
    def space_function(self) -> str | None:
        """module:function of the space, when it is given as code."""
        return self.space if isinstance(self.space, str) else None

    @property
    def parameters(self) -> dict[str, spaces.AnyParameter]:
        """The sampled parameters, each after those its condition names; empty when the space is code.

        Raises:
            ValueError: the conditions go round in a circle; no job that `load_job` gave does.
        """
        return {} if isinstance(self.space, str) else dict(spaces.ordered(self.space))

    @property
    def watched(self) -> Objective:
        """The metric of the reports that the pruner compares trials by, and which way of it is better."""
        first = self.objectives[0]
        return Objective(metric=self.pruner.metric or first.metric, direction=self.pruner.direction or first.direction)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names that a trial's result must hold."""
        return tuple(dict.fromkeys([*(o.metric for o in self.objectives), *(c.metric for c in self.constraints)]))
