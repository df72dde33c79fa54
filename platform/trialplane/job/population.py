"""The population of a study: members that train in parallel, take over the state of better ones, and change parameters.

A member is a trial, which is paused at intervals to be compared with the others. This module has the settings, and
`controller/population.py` the decisions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import models, values

MOST_DECISIONS = 1000  # of each member
_PATIENCE = 3  # comparisons, as in the paper, see `controller/population.py`


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The rungs of a population: the numbers of steps at which its members are paused and compared.

    It has the methods of `search.Ladder`, which has the rungs of a pruner. There is only one bracket, 0, because all members
    are paused at the same steps.

    Attributes:
        interval: Number of steps between two rungs.
        top: Number of steps of a whole trial.
        brackets: Number of brackets: 1.
    """

    interval: int
    top: int
    brackets: int = 1

    def rungs(self, bracket: int = 0) -> tuple[int, ...]:
        """Return the rungs, from the lowest."""
        return tuple(range(self.interval, self.top, self.interval))

    def next_rung(self, steps: int, bracket: int = 0) -> int:
        """Return the lowest rung above a number of steps. 0 if a trial with these steps trains to its end."""
        rung = (steps // self.interval + 1) * self.interval
        return rung if rung < self.top else 0

    def bracket(self, trial: int) -> int:
        """Return 0, the only bracket."""
        return 0


Steps = Annotated[
    Annotated[Annotated[values.Integer, Field(gt=0)], Tag("number")] | Annotated[values.Name, Tag("parameter")],
    Discriminator(lambda value: "parameter" if isinstance(value, str) else "number"),
]
Factors = Annotated[tuple[Annotated[values.Number, Field(gt=0)], ...], Field(min_length=1)]
Share = Annotated[values.Number, Field(ge=0, le=1)]


class Exploration(models.Model):
    """Change of one parameter when a member takes over the state of another one."""

    factors: Factors | None = Field(default=None, description="As of the population, for this parameter. Default: those.")
    resample: Share | None = Field(default=None, description="As of the population, for this parameter. Default: that.")


class Scheduled(models.Model):
    """Parameters of a schedule from a step on."""

    step: values.Integer = Field(ge=0, description="Number of steps done before: 0, or a multiple of `interval`.")
    params: dict[values.Name, values.Plain] = Field(description="Parameters from there on.")
    trial: values.Integer | None = Field(
        default=None, ge=0, description="Number of the trial in the population. That of the first entry gives the seed."
    )
    restart: bool = Field(
        default=False, strict=True, description="Whether the population restarted there, so that `ctx.is_restart` is true."
    )


class Population(models.Model):
    """Trials as members of a population: at each interval bad ones take over the state of good ones, with changes."""

    interval: values.Integer = Field(
        gt=0, description="Number of steps between two decisions. A member is paused at each with a checkpoint."
    )
    steps: Steps = Field(description="Number of steps of a whole trial, or the name of the parameter that sets it.")
    exploit: Literal["truncation", "tournament"] = Field(
        default="truncation",
        description="Members that take over the state of others. truncation: those of the worst `share` take over one of "
        "the best `share`. tournament: each is compared with another one, drawn at random, and takes it over if that is "
        "better.",
    )
    share: values.Number = Field(
        default=0.25, gt=0, le=0.5, description="Share of the members for exploit: truncation, and for restarts."
    )
    factors: Factors = Field(
        default=(0.8, 1.25),
        description="Factors of which one multiplies a number that is taken over. A choice becomes a neighbor in its list.",
    )
    resample: Share = Field(
        default=0.25, description="Probability that a parameter is drawn anew from the space instead of that."
    )
    explore: dict[values.Name, Exploration] = Field(
        default_factory=dict, description="Other factors and probabilities, by parameter: {lr: {factors: [0.5, 2]}}."
    )
    fixed: tuple[values.Name, ...] = Field(
        default=(), description="Parameters that are taken over unchanged, such as the number of layers: [layers]."
    )
    quorum: Share = Field(
        default=1.0,
        description="Share of the members that must have reached a step before one of them continues from it. 1: all, so "
        "that decisions do not depend on speed. 0: each continues at once, compared with those that have reached the step "
        "by then.",
    )
    growth: values.Integer = Field(
        default=1,
        gt=0,
        description="Factor of the interval at each restart. When the best loss improves no more, all members but the best "
        "take over the state of one of the best `share`. Half of them draw new parameters, half change those that they take "
        "over. From there on, members are compared at intervals that are longer by this factor. 1: no restarts.",
    )
    patience: values.Integer = Field(
        default=_PATIENCE,
        gt=0,
        description="Number of comparisons without a new best loss that cause a restart, with `growth`.",
    )
    schedule: tuple[Scheduled, ...] = Field(
        default=(),
        description="Replay: members are not compared, and train with these parameters, as `platform best --schedule` "
        "prints them.",
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Population:
        """Check that fields do not exclude each other, and the steps of the schedule."""
        both = sorted(set(self.fixed) & set(self.explore))
        issues = [Issue(("explore", name), "is among fixed as well; drop one of them") for name in both]
        if self.growth > 1 and self.quorum < 1:
            issues.append(Issue(("quorum",), "must be 1 with growth: all members restart at the same step"))
        if self.growth == 1 and self.patience != _PATIENCE:
            issues.append(Issue(("patience",), "has no effect without restarts; write growth: 2, or drop it"))
        models.refuse([*issues, *self._schedule_issues()])
        return self

    def _schedule_issues(self) -> Iterator[Issue]:
        """Yield issues of the steps of the schedule, which begin with 0, ascend, and are multiples of the interval."""
        previous_step = -1
        for index, entry in enumerate(self.schedule):
            field = ("schedule", index, "step")
            if not index and entry.step:
                yield Issue(field, "must be 0, where a trial begins")
            elif entry.step <= previous_step:
                yield Issue(field, f"{entry.step} must be over {previous_step}, the step before")
            elif entry.step % self.interval:
                yield Issue(field, f"{entry.step} must be a multiple of interval ({self.interval})")
            previous_step = entry.step

    def scheduled(self, step: int) -> Scheduled | None:
        """Return the entry of the schedule for a step. None if the schedule has none."""
        return next((entry for entry in self.schedule if entry.step == step), None)

    def seed_trial(self, trial: int) -> int:
        """Return the number of the trial from which the seed of a trial is derived: usually its own number.

        In a replay, trial 0 has the seed of the member whose schedule is replayed, if the schedule names it. Further trials
        have the seeds of the members after it.
        """
        first_member = self.schedule[0].trial if self.schedule else None
        return trial if first_member is None else first_member + trial

    def exploration(self, name: str) -> tuple[tuple[float, ...], float]:
        """Return the factors by which a parameter is multiplied, and the probability that it is drawn anew instead."""
        override = self.explore.get(name, Exploration())
        factors = self.factors if override.factors is None else override.factors
        return factors, self.resample if override.resample is None else override.resample

    @property
    def comparison(self) -> str:
        """When members are compared, as text."""
        text = f"compared every {errors.counted(self.interval, 'step')}"
        return text if self.growth == 1 else f"{text}, less often after restarts"

    def decisions(self, steps: int) -> int:
        """Return the number of decisions of a member whose whole training has `steps` steps."""
        return max(0, math.ceil(steps / self.interval) - 1)
