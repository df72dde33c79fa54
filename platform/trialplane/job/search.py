"""The search of a study: how trials are drawn, compared and stopped. Does not import Optuna."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trialplane.errors import Issue
from trialplane.job import models, values
from trialplane.job import space as spaces
from trialplane.job.population import Intervals, Population
from trialplane.job.sampling import Pruner, Sampler


class Objective(models.Model):
    """A metric to minimize or maximize."""

    metric: str = Field(min_length=1, description="Name of a metric that the job returns or reports.")
    direction: Literal["minimize", "maximize"] = Field(description="Direction of improvement.")
    of: Literal["best", "last"] = Field(
        default="last",
        description="last: the returned value, or the last reported one if none is returned. best: the best of all "
        "reported values and the returned one.",
    )

    def is_better(self, value: float, other: float) -> bool:
        """Whether `value` is better than `other`."""
        return value > other if self.direction == "maximize" else value < other


class Constraint(models.Model):
    """Bounds of a metric. A trial outside of them is infeasible and never the best."""

    metric: str = Field(min_length=1, description="Name of a metric that the job returns or reports.")
    min: values.Number | None = Field(default=None, description="Minimum, included.")
    max: values.Number | None = Field(default=None, description="Maximum, included.")

    @model_validator(mode="after")
    def _check_bounds(self) -> Constraint:
        """Check that there is a bound, and that the bounds are in order."""
        if self.min is None and self.max is None:
            models.refuse([Issue((), "needs min or max or both")])
        elif self.min is not None and self.max is not None and self.min > self.max:
            models.refuse([Issue(("min",), f"{self.min} is over max ({self.max})")])
        return self

    def excess(self, value: float) -> float:
        """Return how far `value` is outside of the bounds. As in Optuna, 0 or less is feasible."""
        below = -math.inf if self.min is None else self.min - value
        above = -math.inf if self.max is None else value - self.max
        return max(below, above)


class Stop(models.Model):
    """A rule that ends a trial early as complete: a bound of a metric, or a step."""

    metric: str = Field(default="", description="Name of a reported metric. Needs `above` or `below`.")
    above: values.Number | None = Field(default=None, description="End the trial when the metric is greater than this.")
    below: values.Number | None = Field(default=None, description="End the trial when the metric is less than this.")
    after: values.Integer = Field(default=0, ge=0, description="First step to compare. Earlier reports are ignored.")
    step: values.Integer | None = Field(
        default=None, ge=0, description="End the trial when it reports this step or a later one. Not with `metric`."
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Stop:
        """Check that the rule is either a metric with a bound, or a step."""
        has_bound = self.above is not None or self.below is not None
        if self.step is not None and (self.metric or has_bound or self.after):
            models.refuse([Issue(("step",), "is a rule of its own; write stop: [{metric: …, below: …}, {step: …}]")])
        if self.step is None and not self.metric:
            models.refuse([Issue((), "needs metric with above or below, or step")])
        if self.step is None and not has_bound:
            models.refuse([Issue((), f"needs above or below: what {self.metric} is compared with")])
        if self.above is not None and self.below is not None and self.below >= self.above:
            models.refuse(
                [Issue(("below",), f"{self.below} is not under above ({self.above}), so every report would end the trial")]
            )
        return self


# The golden ratio. The fractional parts of its multiples are spread evenly over the range from 0 to 1.
_GOLDEN = (math.sqrt(5) - 1) / 2


Stops = Annotated[
    Annotated[Stop, Tag("rule")] | Annotated[tuple[Stop, ...], Tag("rules")],
    Discriminator(lambda value: "rules" if isinstance(value, (list, tuple)) else "rule"),
]


@dataclasses.dataclass(frozen=True)
class Ladder:
    """The rungs of a study with promotion: numbers of steps at which trials are paused.

    Attributes:
        first: Lowest rung.
        factor: Ratio of two successive rungs. Also, the best of this many trials at a rung is promoted.
        top: Number of steps of a whole trial.
        brackets: Number of groups of trials. Each group begins one rung higher than the group before it, and has fewer
            trials.
        is_auto: Whether a trial is promoted from a rung above the first one only if the ranking of trials at this rung
            differs from their ranking at the rung below.
    """

    first: int
    factor: int
    top: int
    brackets: int = 1
    is_auto: bool = False

    def rungs(self, bracket: int = 0) -> tuple[int, ...]:
        """Return the rungs of a bracket, from the lowest. Empty if its trials are never paused."""
        steps = []
        rung = self.first * self.factor**bracket
        while rung < self.top:
            steps.append(rung)
            rung *= self.factor
        return tuple(steps)

    def next_rung(self, steps: int, bracket: int = 0) -> int:
        """Return the lowest rung above a number of steps. 0 if a trial with these steps trains to its end."""
        return next((rung for rung in self.rungs(bracket) if rung > steps), 0)

    def bracket(self, trial: int) -> int:
        """Return the bracket of a trial.

        Bracket b gets a share of trials that is proportional to `factor` ** -b. The trials of a bracket are spread evenly
        over the numbers of trials.

        The range from 0 to the sum of the shares is divided into an interval for each bracket, and each trial has a point in
        this range. The bracket is that of the interval with the point.
        """
        weights = [self.factor**-bracket for bracket in range(self.brackets)]
        distance = (trial * _GOLDEN) % 1.0 * sum(weights)  # of the point from the beginning of the current interval
        for bracket, weight in enumerate(weights):
            if distance < weight:
                return bracket
            distance -= weight
        return self.brackets - 1  # a rounding error left the point at the end of the last interval


@dataclasses.dataclass(frozen=True)
class Search:
    """The space of a study, how it is sampled, and how trials are compared.

    Attributes:
        space: Parameters by name, or module:function of a function that draws them from an Optuna trial.
        sampler: Algorithm that draws the parameters.
        pruner: Rule that ends trials early.
        enqueue: Points to try first.
        constraints: Metrics with bounds.
        suggests: Whether the entrypoint is an objective of Optuna, which draws its parameters one by one.
        ladder: Numbers of steps at which trials are paused. None if they are not paused.
        duplicates: Treatment of drawn parameters that an earlier trial has had; see `Study.duplicates`.
        avoid_oom: Parameters with which memory grows; see `Study.avoid_oom`.
        population: Settings of a population. None if trials are independent.
    """

    space: Mapping[str, spaces.AnyParameter] | str
    sampler: Sampler
    pruner: Pruner
    enqueue: tuple[dict[str, Any], ...] = ()
    constraints: tuple[Constraint, ...] = ()
    suggests: bool = False
    ladder: Ladder | Intervals | None = None
    duplicates: str = "allow"
    avoid_oom: tuple[str, ...] = ()
    population: Population | None = None

    @property
    def is_code(self) -> bool:
        """Whether only the job's code knows the parameters."""
        return self.suggests or isinstance(self.space, str)

    @property
    def function(self) -> str | None:
        """Function that draws the parameters, as module:function. None if the space is in the job file."""
        return self.space if isinstance(self.space, str) else None

    @property
    def names(self) -> Collection[str]:
        """Names of the parameters. Empty if the space is code."""
        return () if isinstance(self.space, str) else self.space.keys()

    @property
    def parameters(self) -> dict[str, spaces.AnyParameter]:
        """The sampled parameters, each after those in its condition. Empty if the space is code.

        Raises:
            ValueError: The conditions are circular, which `load_job` rules out.
        """
        return {} if isinstance(self.space, str) else dict(spaces.sort_by_condition(self.space))

    def start_point(self) -> dict[str, Any]:
        """Return a point of the space: the values of the first `enqueue` point, and the middle of the other ranges.

        Parameters whose conditions do not hold are left out.
        """
        first_point = self.enqueue[0] if self.enqueue else {}
        point: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if spaces.is_active(parameter, point):
                point[name] = first_point.get(name, _middle(parameter))
        return point

    @property
    def normal_parameters(self) -> dict[str, spaces.NormalParameter]:
        """The parameters with a normal distribution."""
        parameters = self.parameters.items()
        return {name: parameter for name, parameter in parameters if isinstance(parameter, spaces.NormalParameter)}

    def watched_objective(self, objective: Objective) -> Objective:
        """Return the metric that the pruner compares and its direction, as an objective.

        Args:
            objective: First objective of the job, whose metric and direction are the defaults.
        """
        pruner = self.pruner
        return Objective(metric=pruner.metric or objective.metric, direction=pruner.direction or objective.direction)

    def opposes(self, objective: Objective) -> bool:
        """Whether the pruner's metric improves in the opposite direction of `objective`."""
        return self.watched_objective(objective).direction != objective.direction


NO_SEARCH = Search(space={}, sampler=Sampler(name="random"), pruner=Pruner(name="none"))


def _middle(parameter: spaces.AnyParameter) -> Any:
    """Return a typical value of a parameter: its first choice, or the middle of its range or distribution, on its scale."""
    if isinstance(parameter, spaces.CategoricalParameter):
        return parameter.choices[0]
    if isinstance(parameter, spaces.NormalParameter):
        return parameter.decode(sum(parameter.shares) / 2)
    low, high = parameter.low, parameter.high
    value = math.sqrt(low * high) if parameter.log else (low + high) / 2
    return round(value) if isinstance(parameter, spaces.IntParameter) else value
