"""Decides how each member of a population continues: from its own checkpoint, or from a better member's with changes.

This is population based training (Jaderberg et al. 2017). A member is a trial. Each member is paused at the same numbers of
steps. A member continues from a step once a quorum of the members has reached it, and is compared with those by the losses
at this step. If it takes over a better member's state, it starts from the checkpoint that the donor saved at the same step.
So a member has exactly one segment, the training between two such steps, up to each step. The number of steps of a whole
population is known in advance.

Among the paused members, those with the fewest steps continue first, as there may be more members than slots. With a quorum
of 1, a decision does not depend on the order in which segments end. With a smaller one it depends on which members have
reached the step. The ledger writes the decision together with the start of the segment, so it is never made twice. With a
schedule, members are not compared: they change their parameters at the steps of the schedule.

With `growth`, the population restarts when its best loss improves no more, and is then compared at longer intervals. This
follows Iterated Population Based Training (Chebykin, Alderliesten and Bosman 2025, arXiv 2511.09190), as its abstract, its
reviews and the settings of the authors' published code describe it. Theirs are the patience, the interval that is multiplied
at each restart, the states that come from the best members, and the half of new parameters that is drawn at random. What
differs is simpler here:

- The paper smooths the best losses by a Gaussian process, and also restarts when they improve too slowly. Here a restart
  follows `patience` comparisons without a new best loss since the restart before.
- The paper suggests the other half of new parameters by Bayesian optimization over the restarts. Here they are changed as
  after any other takeover.
- The paper shrinks and perturbs restored weights, and starts half of the members with new ones. Here the job decides what it
  takes from the state: `Context.is_restart` says that its optimizer should begin anew.
- The paper restarts every member, and trains twice as many until the first comparison. Here the best member continues
  unchanged, and no member is added, so a restart loses nothing and the number of steps stays known.

Members are still paused at every interval, but continue at once where they are not compared.

Pure: decisions are a function of the ledger's rows, the seed and the settings.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane.controller.promotion import Losses, PausedTrial, Stretch
from trialplane.job import space
from trialplane.job.population import Intervals, Population
from trialplane.job.space import AnyParameter
from trialplane.wire.paths import TrialFolder
from trialplane.wire.progress import RungProgress
from trialplane.wire.states import TrialState

_SHOWN_STEPS = 5  # steps in the status: the highest ones that members have reached


def choose_donor(population: Population, seed: int, member: int, step: int, losses: Mapping[int, float]) -> int:
    """Return the member from whose checkpoint another one continues; its own number if it keeps its own state.

    With truncation, a member of the worst share gets a random member of the best share as its candidate. In a tournament,
    each member gets any other one. The member takes over the candidate's state if that has a smaller loss.

    Args:
        population: Settings.
        seed: Seed of the job.
        member: Number of the member that continues.
        step: Number of steps at which the members are compared.
        losses: Losses of all members that have reached the step, including this one; smaller is better.
    """
    generator = _decision_generator(seed, member, step, "exploit")
    candidate = member
    if population.exploit == "truncation":
        best_first = sorted(losses, key=lambda other: (losses[other], other))
        group_size = max(1, int(population.share * len(best_first)))
        if member in best_first[-group_size:]:
            candidate = generator.choice(best_first[:group_size])
    elif len(losses) > 1:  # a tournament
        candidate = generator.choice(sorted(losses.keys() - {member}))
    return candidate if losses[candidate] < losses[member] else member


def restarts_by_comparison(population: Population, best_losses: Mapping[int, float]) -> dict[int, bool]:
    """Return for each step at which members have been compared whether the population restarts there.

    Members that report less often than the interval skip some of its multiples, and are compared at those that are left.

    Args:
        population: Settings.
        best_losses: Best loss of all members at each step at which members were paused.
    """
    restarts: dict[int, bool] = {}
    interval = next_step = population.interval
    best: float | None = None  # best loss since the last restart
    misses = 0  # number of comparisons in a row without a new best loss
    for step, loss in sorted(best_losses.items()):
        if step < next_step:
            continue
        if best is None or loss < best:
            best, misses = loss, 0
        else:
            misses += 1
        restarts[step] = population.growth > 1 and misses >= population.patience
        if restarts[step]:
            interval *= population.growth
            best, misses = None, 0
        next_step = step + interval
    return restarts


def choose_restart_donor(
    population: Population, seed: int, member: int, step: int, losses: Mapping[int, float]
) -> int | None:
    """Return the member from whose checkpoint another one restarts: a random one of the best share.

    The best member does not restart, so the result for it is None. For the arguments see `choose_donor`.
    """
    best_first = sorted(losses, key=lambda other: (losses[other], other))
    if member == best_first[0]:
        return None
    group_size = max(1, int(population.share * len(best_first)))
    return _decision_generator(seed, member, step, "restart").choice(best_first[:group_size])


def explore(
    population: Population,
    seed: int,
    member: int,
    step: int,
    parameters: Mapping[str, AnyParameter],
    donor_params: Mapping[str, Any],
    *,
    draws_all: bool = False,
) -> dict[str, Any]:
    """Return the changed parameters of a member that takes over a donor's state.

    A parameter that the donor does not have is drawn from the space. So is one whose value is outside the space, as after a
    change of the job. A parameter that no longer applies under the changed values of the others is left out. Each other
    parameter is kept if it is fixed, drawn anew with the probability `resample`, or else perturbed.

    Args:
        population: Settings.
        seed: Seed of the job.
        member: Number of the member.
        step: Number of steps at which the member takes over the state.
        parameters: The space, each parameter after those in its conditions.
        donor_params: Parameters of the donor.
        draws_all: Whether every parameter that is not fixed is drawn anew.
    """
    generator = _decision_generator(seed, member, step, "explore")
    changed: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if not space.is_active(parameter, changed):
            continue
        factors, resample_probability = population.exploration(name)
        if name not in donor_params or not parameter.contains(donor_params[name]):
            changed[name] = draw(parameter, generator)
        elif name in population.fixed:
            changed[name] = donor_params[name]
        elif draws_all or generator.random() < resample_probability:
            changed[name] = draw(parameter, generator)
        else:
            changed[name] = perturb(parameter, donor_params[name], factors, generator)
    return changed


def perturb(parameter: AnyParameter, value: Any, factors: Sequence[float], generator: random.Random) -> Any:
    """Return a value near another one.

    A number is multiplied by one of the factors, and stays within its range and on its steps. A choice is replaced by one
    beside it in the list of choices.
    """
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
    position = round((value - parameter.low) / parameter.step)
    new_position = round((value * factor - parameter.low) / parameter.step)
    if new_position == position and factor != 1:
        # Rounding has undone the change, as it always would for a small number. Move by one step in its direction.
        is_increase = (factor > 1) == (value >= 0)
        new_position += 1 if is_increase else -1
    return _value_at(parameter, new_position)


def draw(parameter: AnyParameter, generator: random.Random) -> Any:
    """Return a random value of a parameter, from the distribution that the space gives it."""
    if isinstance(parameter, space.CategoricalParameter):
        return generator.choice(parameter.choices)
    if isinstance(parameter, space.NormalParameter):
        return parameter.decode(generator.uniform(*parameter.shares))
    if parameter.log:
        is_integer = isinstance(parameter, space.IntParameter)
        margin = 0.5 if is_integer else 0.0  # without it, rounding would draw the ends of the range half as often
        value = math.exp(generator.uniform(math.log(parameter.low - margin), math.log(parameter.high + margin)))
        value = round(value) if is_integer else value
        return min(max(parameter.low, value), parameter.high)
    if parameter.count is not None:
        return _value_at(parameter, generator.randrange(parameter.count))
    return generator.uniform(parameter.low, parameter.high)


def _value_at(parameter: space.FloatParameter | space.IntParameter, position: int) -> Any:
    """Return the value at a position among the steps of a range; a position outside the range counts as the nearest end."""
    count = parameter.count
    assert count is not None
    step = parameter.step or 0  # a range of a single value may have no step
    nearest_position = min(max(0, position), count - 1)
    return parameter.low + nearest_position * step


def _decision_generator(seed: int, member: int, step: int, decision: str) -> random.Random:
    """Return a generator of random numbers for one decision on a member at a step, which no other decision influences."""
    return random.Random(f"{seed}:{member}:{step}:{decision}")


@dataclasses.dataclass(frozen=True)
class _Pause:
    """The state of a member that was paused at a step.

    Attributes:
        loss: Its loss at the step; infinite if it was NaN.
        done: Number of steps that it has done: more than the step if it reports less often.
    """

    loss: float
    done: int


class Members:
    """The members of one population: their pauses, and the decisions on how they continue.

    It has the methods of `Promotion`, so that the ledger treats both in the same way.

    Args:
        population: Settings.
        intervals: Numbers of steps at which members are paused.
        size: Number of members.
        seed: Seed of the job.

    Attributes:
        used_steps: Number of steps trained in segments that have ended.
        is_budget_spent: Always False: a population has no budget of steps.
    """

    def __init__(self, population: Population, intervals: Intervals, size: int, seed: int) -> None:
        self.used_steps = 0
        self.is_budget_spent = False
        self._population = population
        self._intervals = intervals
        self._size = size
        self._seed = seed
        self._pauses: dict[int, dict[int, _Pause]] = {}  # step → member → its pause
        self._best_losses: dict[int, float] = {}  # step → best loss of the members that have reached it
        self._steps: dict[int, int] = {}  # member → the last step at which it was paused, or 0
        self._unfinished: set[int] = set()  # members that have started, and are running or paused
        self._paused: set[int] = set()
        self._running: dict[int, Stretch] = {}
        self._unreleased: set[TrialFolder] = set()  # folders of checkpoints from which a member may still continue

    def first_stretch(self, trial: int) -> Stretch:
        """Return the first stretch of a member."""
        return Stretch(trial, rung=self._intervals.next_rung(0))

    def record_start(self, stretch: Stretch) -> None:
        """Record that an attempt at a segment starts."""
        assert stretch.trial is not None
        self._steps.setdefault(stretch.trial, 0)
        self._unfinished.add(stretch.trial)
        self._running[stretch.trial] = stretch
        self._paused.discard(stretch.trial)

    def record_end(self, trial: int, state: TrialState, done: int, losses: Losses) -> None:
        """Record that a segment has ended and is not retried.

        Args:
            trial: Number of the member.
            state: State of the member: PAUSED at a step, or the state in which it has ended.
            done: Number of steps that the member has done in all.
            losses: Its losses at the step; only the first one is used.
        """
        stretch = self._running.pop(trial)
        if state is TrialState.PAUSED:
            # A member may report fewer steps than it was paused at. Its next stretch would then end at the same step again,
            # forever.
            done = max(done, stretch.rung)
        self.used_steps += max(0, done - stretch.done)
        if stretch.rung:
            self._unreleased.add(TrialFolder(trial, stretch.rung))
        if state is TrialState.PAUSED:
            loss = math.inf if math.isnan(losses[0]) else losses[0]
            self._pauses.setdefault(stretch.rung, {})[trial] = _Pause(loss, done)
            self._best_losses[stretch.rung] = min(loss, self._best_losses.get(stretch.rung, math.inf))
            self._steps[trial] = stretch.rung
            self._paused.add(trial)
        else:
            self._unfinished.discard(trial)

    def drop(self, trial: int) -> None:
        """Record that a paused member will not continue."""
        self._paused.discard(trial)
        self._unfinished.discard(trial)

    def next_stretch(self, trial: int | None) -> Stretch | None:
        """Return the stretch that a free slot starts; None if there is none now.

        New members start before paused ones continue. The stretch of a new member has no trial yet. Of the paused members,
        the first one at the lowest step continues, if members are not compared at this step or a quorum has reached it.

        Args:
            trial: Number of the next new member; None if none is left to draw.
        """
        if trial is not None:
            return dataclasses.replace(self.first_stretch(trial), trial=None)
        restarts = restarts_by_comparison(self._population, self._best_losses)
        for step in sorted({self._steps[member] for member in self._paused}):
            is_compared = step in restarts
            if not is_compared or self._has_quorum(step):
                first_member = min(member for member in self._paused if self._steps[member] == step)
                return self._next_stretch_of(first_member, restarts)
        return None

    def params(
        self, stretch: Stretch, parameters: Mapping[str, AnyParameter], donor_params: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the new parameters for a stretch; None if the member keeps its own.

        A member gets those of the schedule if there is one. Otherwise its parameters change if it takes over another
        member's state. In a restart, every second member draws all of them anew.

        Args:
            stretch: A stretch that continues a paused member.
            parameters: The space, each parameter after those in its conditions.
            donor_params: Parameters of the member from whose checkpoint the stretch starts.
        """
        assert stretch.trial is not None
        assert stretch.parent is not None
        if self._population.schedule:
            entry = self._population.scheduled(stretch.done)
            return None if entry is None else dict(entry.params)
        if stretch.parent.trial == stretch.trial and not stretch.restart:
            return None
        draws_all = stretch.restart and stretch.trial % 2 == 1
        step = stretch.parent.rung
        return explore(self._population, self._seed, stretch.trial, step, parameters, donor_params, draws_all=draws_all)

    def find_hopeless(self) -> list[int]:
        """Return an empty list: a population drops no member."""
        return []

    @property
    def paused(self) -> list[int]:
        """The paused members, in order of their numbers."""
        return sorted(self._paused)

    def rung_progress(self) -> Iterator[RungProgress]:
        """Yield the progress at each of the last steps at which members were paused, the lowest first."""
        for step in sorted(self._pauses)[-_SHOWN_STEPS:]:
            paused_count = sum(self._steps[member] == step for member in self._paused)
            yield RungProgress(step, reached=len(self._pauses[step]), paused=paused_count)

    def take_released(self) -> set[TrialFolder]:
        """Return the folders of checkpoints that no member needs any more, each folder once.

        A checkpoint is needed until every member that has not ended has been paused at a later step.
        """
        if len(self._steps) < self._size:  # some members have not started
            return set()
        lowest_step = min((self._steps[member] for member in self._unfinished), default=math.inf)
        released = {folder for folder in self._unreleased if folder.step < lowest_step}
        self._unreleased -= released
        return released

    def _has_quorum(self, step: int) -> bool:
        """Return whether enough members have reached a step for a member to continue from it.

        Members that ended before the step do not count.
        """
        if self._population.schedule:
            return True
        reached_count = len(self._pauses[step])
        pending_count = sum(self._steps[member] < step for member in self._unfinished)
        return reached_count >= self._population.quorum * (reached_count + pending_count)

    def _next_stretch_of(self, member: int, restarts: Mapping[int, bool]) -> Stretch:
        """Return the stretch that continues a paused member, and choose the donor of its checkpoint.

        Args:
            member: Number of the member.
            restarts: For each step at which members are compared, whether the population restarts there.
        """
        step = self._steps[member]
        pauses = self._pauses[step]
        losses = {other: pause.loss for other, pause in pauses.items()}
        donor, is_restart = member, False
        if self._population.schedule:
            entry = self._population.scheduled(pauses[member].done)
            is_restart = entry is not None and entry.restart
        elif step in restarts:
            if restarts[step]:
                restart_donor = choose_restart_donor(self._population, self._seed, member, step, losses)
                is_restart = restart_donor is not None  # the best member continues as it is
                donor = member if restart_donor is None else restart_donor
            else:
                donor = choose_donor(self._population, self._seed, member, step, losses)
        done = pauses[donor].done
        rung = self._intervals.next_rung(done)
        return Stretch(member, rung=rung, done=done, parent=PausedTrial(donor, step), restart=is_restart)
