"""The job: everything a user asks for, resolved and frozen. Its JSON form reads back to an equal job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trialplane.spec import faults, values
from trialplane.spec import space as spaces  # `space` is a field of the job
from trialplane.spec.cluster import Cluster
from trialplane.spec.faults import Fault
from trialplane.spec.resources import Budget, Resources, Retries
from trialplane.spec.sampling import Pruner, Sampler

NAME = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"


class Input(faults.Model):
    """A data file that a parameter names, checked before anything starts."""

    columns: tuple[str, ...] = Field(default=(), description="Columns (CSV, TSV) or keys (JSON lines) it must have.")


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
    kind: Literal["hpo"] = Field(description="What the job is: hpo, a search for good hyper-parameters.")
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
    resources: Resources = Field(default_factory=Resources, description="What one trial gets of a machine.")
    cluster: Cluster = Field(default_factory=Cluster, description="How the run's pods are made in a cluster.")
    seed: values.Integer = Field(default=0, ge=0, lt=2**32, description="Of the sampler; trials derive theirs.")
    enqueue: tuple[dict[str, values.Choice], ...] = Field(
        default=(), description="Points to try first; parameters that a point leaves out are drawn."
    )

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
    def metrics(self) -> tuple[str, ...]:
        """Names that a trial's result must hold."""
        return tuple(dict.fromkeys([*(o.metric for o in self.objectives), *(c.metric for c in self.constraints)]))
