"""Decides how the members of a population continue: from their own state, or from that of a better one, with changes.

Pure: a function of the ledger's rows, the seed and the settings.

Population based training (Jaderberg et al. 2017). All members are paused at the same numbers of steps. Those that have
reached a step are compared by their losses at it, and the donor's state is that of this step too. So a member has exactly
one segment up to each step, and the steps of a whole population are known. A member continues once a quorum has reached its
step; the member with the fewest steps first, as there may be more members than slots. With a quorum of all, what a member
does depends on no order of ends. Otherwise it depends on who has reached the step by then; the ledger writes it with the
start of the segment, so it is decided once. With a schedule, members change their parameters at its steps, and nothing else.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane.controller.promotion import Losses, Stretch
from trialplane.job import space
from trialplane.job.population import Intervals, Population
from trialplane.job.space import AnyParameter
from trialplane.wire.paths import TrialFolder
from trialplane.wire.states import TrialState

_SHOWN = 5  # steps in the status


def choose_donor(population: Population, seed: int, member: int, step: int, losses: Mapping[int, float]) -> int:
    """Return the member whose state another one takes over at a step; its own number if it keeps its own.

    Args:
        population: Settings.
        seed: Seed of the job.
        member: Number of the member that continues.
        step: Number of steps at which members are compared.
        losses: Losses of the members that have reached the step, itself included; smaller is better.
    """
    order = sorted(losses, key=lambda other: (losses[other], other))
    others = sorted(order)
    others.remove(member)
    generator = _generator(seed, member, step, "exploit")
    chosen = member
    if population.exploit == "truncation":
        number = max(1, int(population.share * len(order)))
        if others and member in order[-number:]:
            chosen = generator.choice(order[:number])
    elif others:
        chosen = generator.choice(others)
    return chosen if losses[chosen] < losses[member] else member


def explore(
    population: Population, seed: int, member: int, step: int, space_: Mapping[str, AnyParameter], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a member that takes over the state of another one.

    A parameter that begins to exist with the value of another one is drawn from the space, as is one whose value is not in
    it any more. One that no longer exists is left out.

    Args:
        population: Settings.
        seed: Seed of the job.
        member: Number of the member.
        step: Number of steps at which it does so.
        space_: The space, each parameter after those in its conditions.
        params: Parameters of the other member.
    """
    generator = _generator(seed, member, step, "explore")
    changed: dict[str, Any] = {}
    for name, parameter in space_.items():
        if not space.is_active(parameter, changed):
            continue
        factors, resample = population.exploration(name)
        if name not in params or not parameter.contains(params[name]):
            changed[name] = draw(parameter, generator)
        elif name in population.fixed:
            changed[name] = params[name]
        elif generator.random() < resample:
            changed[name] = draw(parameter, generator)
        else:
            changed[name] = perturb(parameter, params[name], factors, generator)
    return changed


def perturb(parameter: AnyParameter, value: Any, factors: Sequence[float], generator: random.Random) -> Any:
    """Return a value near another one: a number times a factor, within its range and on its steps; or a neighbor."""
    if isinstance(parameter, space.CategoricalParameter):
        position = next(index for index, choice in enumerate(parameter.choices) if space.is_same(choice, value))
        neighbors = [index for index in (position - 1, position + 1) if 0 <= index < len(parameter.choices)]
        return parameter.choices[generator.choice(neighbors)] if neighbors else value
    factor = generator.choice(factors)
    if isinstance(parameter, space.NormalParameter):
        low, high = parameter.ends
        return min(max(low, value * factor), high)
    if parameter.step is None:
        return min(max(parameter.low, value * factor), parameter.high)
    steps = round((value - parameter.low) / parameter.step)
    moved = round((value * factor - parameter.low) / parameter.step)
    if moved == steps and factor != 1:  # rounding must not undo every change of a small number
        moved += 1 if (factor > 1) == (value >= 0) else -1
    return _on_step(parameter, moved)


def draw(parameter: AnyParameter, generator: random.Random) -> Any:
    """Return a value drawn from the space."""
    if isinstance(parameter, space.CategoricalParameter):
        return generator.choice(parameter.choices)
    if isinstance(parameter, space.NormalParameter):
        return parameter.decode(generator.uniform(*parameter.shares))
    if parameter.log:
        half = 0.5 if isinstance(parameter, space.IntParameter) else 0.0  # so that the ends are as likely as the others
        value = math.exp(generator.uniform(math.log(parameter.low - half), math.log(parameter.high + half)))
        value = round(value) if isinstance(parameter, space.IntParameter) else value
        return min(max(parameter.low, value), parameter.high)
    if parameter.count is not None:
        return _on_step(parameter, generator.randrange(parameter.count))
    return generator.uniform(parameter.low, parameter.high)


def _on_step(parameter: space.FloatParameter | space.IntParameter, position: int) -> Any:
    """Return the value at a position among the steps of a range, or at the nearer end."""
    count = parameter.count
    assert count is not None
    return parameter.low + min(max(0, position), count - 1) * (parameter.step or 0)


def _generator(seed: int, member: int, step: int, use: str) -> random.Random:
    """Return random numbers for one decision, which depend on nothing else."""
    return random.Random(f"{seed}:{member}:{step}:{use}")


@dataclasses.dataclass(frozen=True)
class _Pause:
    """A member at a step: its loss, and the number of steps that it has done."""

    loss: float
    done: int


class Members:
    """The members of one population; the ledger uses it like a `Promotion`.

    Args:
        population: Settings.
        intervals: Numbers of steps at which members are paused.
        number: Number of members.
        seed: Seed of the job.

    Attributes:
        used_steps: Number of steps trained in segments that have ended.
        is_budget_spent: Always False: a population has no budget of steps.
    """

    def __init__(self, population: Population, intervals: Intervals, number: int, seed: int) -> None:
        self.used_steps = 0
        self.is_budget_spent = False
        self._population = population
        self._intervals = intervals
        self._number = number
        self._seed = seed
        self._pauses: dict[int, dict[int, _Pause]] = {}  # step → member → its pause
        self._steps: dict[int, int] = {}  # member → the last step at which it was paused, or 0
        self._open: set[int] = set()  # members that have begun and not ended for good
        self._waiting: set[int] = set()
        self._running: dict[int, Stretch] = {}
        self._unreleased: set[TrialFolder] = set()  # may be needed

    def first_stretch(self, trial: int) -> Stretch:
        """The first stretch of a member."""
        return Stretch(trial, self._intervals.next_rung(0))

    def record_start(self, stretch: Stretch) -> None:
        """Record that an attempt at a segment starts."""
        assert stretch.trial is not None
        self._steps.setdefault(stretch.trial, 0)
        self._open.add(stretch.trial)
        self._running[stretch.trial] = stretch
        self._waiting.discard(stretch.trial)

    def record_end(self, trial: int, state: TrialState, done: int, losses: Losses) -> None:
        """Record that a segment has ended, and is not retried; see `Promotion.record_end`."""
        stretch = self._running.pop(trial)
        if state is TrialState.PAUSED:
            done = max(done, stretch.rung)  # else a segment would be repeated forever
        self.used_steps += max(0, done - stretch.done)
        if stretch.rung:
            self._unreleased.add(TrialFolder(trial, stretch.rung))
        if state is TrialState.PAUSED:
            loss = losses[0] if losses[0] == losses[0] else math.inf
            self._pauses.setdefault(stretch.rung, {})[trial] = _Pause(loss, done)
            self._steps[trial] = stretch.rung
            self._waiting.add(trial)
        else:
            self._open.discard(trial)

    def drop(self, trial: int) -> None:
        """Record that a paused member will not continue."""
        self._waiting.discard(trial)
        self._open.discard(trial)

    def next_stretch(self, trial: int | None) -> Stretch | None:
        """The segment that a free slot takes; None if there is none now.

        Args:
            trial: Number of the next new member; None if none is left to draw.
        """
        if trial is not None:
            return dataclasses.replace(self.first_stretch(trial), trial=None)
        at = self._steps
        for step in sorted({at[member] for member in self._waiting}):
            if self._has_quorum(step):
                return self._continued(min(member for member in self._waiting if at[member] == step))
        return None

    def params(
        self, stretch: Stretch, space_: Mapping[str, AnyParameter], params: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the new parameters of a segment; None if it keeps those of its member.

        Args:
            stretch: The segment.
            space_: The space, each parameter after those in its conditions.
            params: Parameters of the segment from whose state it continues.
        """
        assert stretch.trial is not None
        assert stretch.parent is not None
        donor, step = stretch.parent
        if self._population.schedule:
            return self._population.scheduled_params(step)
        if donor == stretch.trial:
            return None
        return explore(self._population, self._seed, stretch.trial, step, space_, params)

    def find_hopeless(self) -> list[int]:
        """An empty list: no member is dropped."""
        return []

    @property
    def paused(self) -> list[int]:
        """The paused members, in order of their numbers."""
        return sorted(self._waiting)

    def rung_counts(self) -> Iterator[tuple[int, int, int]]:
        """Each of the last steps from the lowest: how many members have reached it, and how many are paused there."""
        for step in sorted(self._pauses)[-_SHOWN:]:
            yield step, len(self._pauses[step]), sum(self._steps[member] == step for member in self._waiting)

    def take_released(self) -> set[TrialFolder]:
        """Return folders of checkpoints that no member needs any more, and forget them: all have passed their step."""
        lowest = min((self._steps[member] for member in self._open), default=math.inf)
        lowest = 0 if len(self._steps) < self._number else lowest  # some have not begun
        passed = {folder for folder in self._unreleased if folder.step < lowest}
        self._unreleased -= passed
        return passed

    def _has_quorum(self, step: int) -> bool:
        if self._population.schedule:
            return True
        reached = len(self._pauses[step])
        coming = sum(self._steps[member] < step for member in self._open)
        return reached >= self._population.quorum * (reached + coming)

    def _continued(self, member: int) -> Stretch:
        step = self._steps[member]
        pauses = self._pauses[step]
        losses = {other: pause.loss for other, pause in pauses.items()}
        parent = member
        if not self._population.schedule:
            parent = choose_donor(self._population, self._seed, member, step, losses)
        done = pauses[parent].done
        return Stretch(member, self._intervals.next_rung(done), done, (parent, step))
