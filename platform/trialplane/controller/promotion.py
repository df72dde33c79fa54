"""Decides which trial of a study with promotion trains next, and up to which rung. Pure: a function of the ledger's rows.

The algorithm is asynchronous successive halving with promotion (Li et al. 2020). A rung is a number of steps at which trials
are compared. A trial that reaches a rung is paused. When a slot is free, a paused trial that is among the best 1/factor of
its rung is promoted: it trains up to the next rung. The rungs are searched from the highest one down. If no paused trial can
be promoted, the slot takes a new trial. So a decision depends only on how trials have ended. Trials may be divided into
brackets, each with rungs of its own, which begin at different numbers of steps.

A trial that cannot get among the best of its rung any more, whatever the others do, is dropped. If nothing else can be
started and no trial is complete, the best trial of the highest rung continues, so that the study has a result. A budget
reserves the steps for that.

With `max: auto`, at first only the lowest rung promotes. The top rung, from which no trial is promoted, is raised whenever a
trial reaches it and the ranking there differs from the ranking at the rung below, see `ranking`.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from trialplane.controller import ranking
from trialplane.job.search import Ladder
from trialplane.wire import rows
from trialplane.wire.progress import RungProgress
from trialplane.wire.states import TrialState

Losses = tuple[float, ...]  # of the objectives; smaller is better


class PausedTrial(NamedTuple):
    """A trial at the rung, in steps, at which it was paused and has saved a checkpoint."""

    trial: int
    rung: int


@dataclasses.dataclass(frozen=True)
class Stretch:
    """The part of a trial's training that a decision starts. The ledger records it as a segment.

    Attributes:
        trial: Number of the trial; None for a new trial, which the caller numbers.
        rung: Number of steps after which the trial is paused; 0 if it trains to its end.
        done: Number of steps that the trial has done before.
        parent: Paused trial whose checkpoint the stretch starts from; None for the trial's own newest checkpoint.
        restart: Whether the stretch restarts a member of a population from this checkpoint.
    """

    trial: int | None
    rung: int
    done: int = 0
    parent: PausedTrial | None = None
    restart: bool = False

    @property
    def trains_to_end(self) -> bool:
        """Whether it trains its trial to the end, instead of to a rung."""
        return self.rung == 0


class Rung:
    """The trials of one bracket that have reached one rung.

    Attributes:
        paused: Trials that are paused at the rung.
    """

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self._losses: dict[int, Losses] = {}
        self._sorted: list[tuple[Losses, int]] = []  # by losses, then by trial
        self._order: list[int] | None = None  # None if it must be computed again

    def __len__(self) -> int:
        return len(self._losses)

    def add(self, trial: int, losses: Losses) -> None:
        """Record that a trial has reached the rung."""
        if trial not in self._losses:
            self._losses[trial] = losses
            bisect.insort(self._sorted, (losses, trial))
            self._order = None

    @property
    def order(self) -> list[int]:
        """All trials that have reached the rung, best first: sorted by non-dominated front, losses and number."""
        if self._order is not None:
            return self._order
        if self.has_one_loss:
            self._order = [trial for _, trial in self._sorted]
        else:
            fronts = rows.front_numbers(self._losses)
            self._order = sorted(self._losses, key=lambda trial: (fronts[trial], self._losses[trial], trial))
        return self._order

    @property
    def first_losses(self) -> dict[int, float]:
        """The first loss of each trial."""
        return {trial: losses[0] for trial, losses in self._losses.items()}

    @property
    def has_one_loss(self) -> bool:
        """Whether trials have one loss each. Only then is the order of two trials final: fronts may change."""
        if not self._sorted:
            return True
        losses, _ = self._sorted[0]  # all trials of a study have the same number of losses
        return len(losses) == 1


class Promotion:
    """The rungs of one study.

    Args:
        ladder: Steps of the rungs.
        trials: Number of trials of the study.
        budget: Number of steps that all trials together may train; None for no limit.

    Attributes:
        top: Steps of the lowest rung from which no trial is promoted; the steps of a whole trial if all rungs promote. A
            later controller sets it to the stored one.
        used_steps: Number of steps trained in segments that have ended.
        is_budget_spent: Whether the budget allows no further segment.
    """

    def __init__(self, ladder: Ladder, trials: int, budget: int | None = None) -> None:
        self.used_steps = 0
        self.is_budget_spent = False
        self._ladder = ladder
        self._trials = trials
        self.top = ladder.top
        if ladder.is_auto:  # at first only the lowest rung promotes
            lowest = min(ladder.rungs(), default=ladder.top)
            self.top = self._rung_above(lowest)
        self._budget = math.inf if budget is None else budget
        self._rungs: list[dict[int, Rung]] = [  # bracket → step → rung
            {step: Rung() for step in ladder.rungs(bracket)} for bracket in range(ladder.brackets)
        ]
        self._paused_at: dict[int, int] = {}  # paused trial → its rung
        self._done_steps: dict[int, int] = {}  # trial → steps trained in segments that have ended
        self._running: dict[int, Stretch] = {}
        self._start_count = 0  # number of trials that have started
        self._complete_count = 0  # number of complete trials

    def first_stretch(self, trial: int) -> Stretch:
        """Return the first stretch of a trial."""
        return Stretch(trial, rung=self._ladder.next_rung(0, self._ladder.bracket(trial)))

    def record_start(self, stretch: Stretch) -> None:
        """Record that an attempt at a stretch starts."""
        trial = stretch.trial
        assert trial is not None
        self._start_count = max(self._start_count, trial + 1)
        self._running[trial] = stretch
        if (rung := self._paused_at.pop(trial, None)) is not None:
            self._rung(trial, rung).paused.discard(trial)

    def record_end(self, trial: int, state: TrialState, done: int, losses: Losses) -> None:
        """Record that a stretch has ended and is not retried.

        Args:
            trial: Number of the trial.
            state: State of the trial: PAUSED at the rung, PRUNED if it was dropped there later, or another final state.
            done: Number of steps that the trial has done in all.
            losses: Losses at the rung.
        """
        stretch = self._running.pop(trial)
        done_before = self._done_steps.get(trial, 0)
        self.used_steps += max(0, done - done_before)
        self._done_steps[trial] = max(done, done_before)
        if state is TrialState.COMPLETE:
            self._complete_count += 1
        has_reached_rung = not stretch.trains_to_end and done >= stretch.rung
        if has_reached_rung and state is not TrialState.FAILED:  # a failed one would take the place of one that can continue
            rung = self._rung(trial, stretch.rung)
            rung.add(trial, _comparable(losses))
            if state is TrialState.PAUSED:
                rung.paused.add(trial)
                self._paused_at[trial] = stretch.rung

    def raise_top(self, trial: int, done: int, losses: Losses) -> bool:
        """Raise the top rung if a trial has reached it and the ranking at it differs from the ranking at the rung below.

        Differences within the noise do not count, see `ranking`. Call this at the end of a stretch that has not failed,
        before `record_end`.

        Args:
            trial: Number of the trial.
            done: Number of steps that the trial has done in all.
            losses: Losses at the rung.

        Returns:
            Whether the top was raised.
        """
        rung = self._running[trial].rung  # may be above the top, if the trial reports so seldom that it has skipped the top
        has_reached_top = rung >= self.top and done >= rung
        if not self._ladder.is_auto or not has_reached_top:
            return False
        (rungs,) = self._rungs  # a ladder with `max: auto` has one bracket
        losses_at = {step: rungs[step].first_losses for step in self._ladder.rungs() if step <= rung}
        losses_at[rung].setdefault(trial, _comparable(losses)[0])  # `record_end` adds the trial to the rung only later
        reached_rungs = [losses_by_trial for losses_by_trial in losses_at.values() if losses_by_trial]  # lowest rung first
        if len(reached_rungs) < 2:  # there is no rung below to compare with
            return False
        below, at_top = reached_rungs[-2:]
        # This is mostly true, which saves the slow estimate of the noise.
        is_exactly_same = ranking.is_same(below, at_top, noise=0.0)
        if is_exactly_same or ranking.is_same(below, at_top, ranking.estimate_noise(reached_rungs)):
            return False
        self.top = self._rung_above(rung)
        return True

    def drop(self, trial: int) -> None:
        """Record that a paused trial will not continue."""
        self._rung(trial, self._paused_at.pop(trial)).paused.discard(trial)

    def next_stretch(self, trial: int | None) -> Stretch | None:
        """Return the stretch that a free slot starts, and set `is_budget_spent`. None means that nothing can start now.

        Args:
            trial: Number of the next new trial; None if none is left to draw.
        """
        candidates = list(self._candidates(trial))
        fitting = [stretch for stretch in candidates if self._fits(stretch)]
        if not fitting and not self._running and not self._complete_count:
            # A paused trial continues without being among the best of its rung, so that the study has a result.
            fitting = [stretch for stretch in self._best_paused() if self._fits(stretch)]
        # Without a fitting stretch, and without a running trial whose end could lead to one, the budget is spent if it is
        # the reason: it is too small for every candidate, or has no step left.
        is_stopped_by_budget = bool(candidates) or self._steps_left() <= 0
        self.is_budget_spent = not fitting and not self._running and is_stopped_by_budget
        return fitting[0] if fitting else None

    def find_hopeless(self) -> list[int]:
        """Return the paused trials that will not be promoted, whatever the others do, in order of their numbers.

        The more trials reach a rung, the more are promoted from it. So each rung's number of trials that may still arrive is
        counted, from the lowest rung up.
        """
        hopeless: list[int] = []
        for bracket in range(len(self._rungs)):
            arrivals = self._trials - self._start_count  # trials that may still reach the rung: first those not started
            for step, rung in self._rungs[bracket].items():
                arrivals += sum(
                    stretch.rung == step and self._ladder.bracket(trial) == bracket
                    for trial, stretch in self._running.items()
                )
                excluded: set[int] = set()  # trials that are paused here and will not be promoted
                if rung.has_one_loss and rung.paused:
                    # Even if all arrivals were worse than the trials here, no more than the best of these could be promoted.
                    most_promotions = (len(rung) + arrivals) // self._ladder.factor
                    excluded = rung.paused.difference(rung.order[:most_promotions])
                    if excluded == rung.paused and not self._complete_count:
                        # The best paused trial may be needed as the result of the study, so it stays.
                        excluded.remove(next(trial for trial in rung.order if trial in excluded))
                hopeless += excluded
                arrivals += len(rung.paused) - len(excluded)  # the other paused trials may reach the next rung
        return sorted(hopeless)

    @property
    def continues_one_by_one(self) -> bool:
        """Whether the end of a stretch lets at most one paused trial continue, so that the slot that it frees is enough.

        With several losses, an end may change the order of many. With `max: auto`, it may raise the top rung. With a budget,
        it may set reserved steps free.
        """
        has_one_loss = all(rung.has_one_loss for rungs in self._rungs for rung in rungs.values())
        return has_one_loss and not self._ladder.is_auto and self._budget == math.inf

    @property
    def paused(self) -> list[int]:
        """The paused trials, in order of their numbers."""
        return sorted(self._paused_at)

    def rung_progress(self) -> Iterator[RungProgress]:
        """Yield the progress at each rung, the lowest first. Rungs of several brackets at the same step are one."""
        steps = sorted({step for rungs in self._rungs for step in rungs})
        for step in steps:
            rungs_at_step = [rungs[step] for rungs in self._rungs if step in rungs]
            paused_count = sum(len(rung.paused) for rung in rungs_at_step)
            yield RungProgress(step, reached=sum(map(len, rungs_at_step)), paused=paused_count)

    def _candidates(self, new_trial: int | None) -> Iterator[Stretch]:
        """Yield the stretches that may be started, the preferred ones first: promotions from high rungs, then the new trial.

        Args:
            new_trial: Number of the next new trial; None if none is left to draw.
        """
        steps = sorted({step for rungs in self._rungs for step in rungs if step < self.top}, reverse=True)
        for step in steps:
            for bracket, rungs in enumerate(self._rungs):
                rung = rungs.get(step)
                if rung is None or not rung.paused:
                    continue
                best = rung.order[: len(rung) // self._ladder.factor]
                yield from (self._next_stretch_of(trial, bracket) for trial in best if trial in rung.paused)
        if new_trial is not None:
            yield dataclasses.replace(self.first_stretch(new_trial), trial=None)

    def _best_paused(self) -> Iterator[Stretch]:
        """Yield the best paused trial of each rung, from the highest rung down."""
        rungs = [(step, bracket) for bracket, rungs_by_step in enumerate(self._rungs) for step in rungs_by_step]
        for step, bracket in sorted(rungs, reverse=True):
            rung = self._rungs[bracket][step]
            best = next((trial for trial in rung.order if trial in rung.paused), None)
            if best is not None:
                yield self._next_stretch_of(best, bracket)

    def _next_stretch_of(self, trial: int, bracket: int) -> Stretch:
        """Return the stretch that continues a paused trial."""
        done = self._done_steps[trial]
        return Stretch(trial, rung=self._ladder.next_rung(done, bracket), done=done)

    def _rung_above(self, step: int) -> int:
        """Return the steps of the rung above the one at `step`; above the highest one, those of a whole trial."""
        return self._ladder.next_rung(step) or self._ladder.top

    def _rung(self, trial: int, step: int) -> Rung:
        """Return the rung at a number of steps in the bracket of a trial."""
        return self._rungs[self._ladder.bracket(trial)][step]

    def _size(self, stretch: Stretch) -> int:
        """Return the number of steps of a stretch."""
        last_step = self._ladder.top if stretch.trains_to_end else stretch.rung
        return max(0, last_step - stretch.done)

    def _steps_left(self) -> float:
        """Return the number of steps in the budget that are neither used nor reserved for running stretches."""
        return self._budget - self.used_steps - sum(self._size(stretch) for stretch in self._running.values())

    def _fits(self, stretch: Stretch) -> bool:
        """Return whether the budget has the steps of a stretch, and those that are reserved for the first complete trial.

        Steps are reserved if no trial is complete, and neither this stretch nor a running one trains its trial to the end.
        They are the steps to the end of the trial that has the most steps when all these stretches have ended.
        """
        reserved = 0
        stretches = [stretch, *self._running.values()]
        if not self._complete_count and not any(other.trains_to_end for other in stretches):
            paused_steps = [self._done_steps[trial] for trial in self._paused_at]
            most_steps = max(*(other.rung for other in stretches), *paused_steps, 0)
            reserved = max(0, self._ladder.top - most_steps)
        return self._size(stretch) + reserved <= self._steps_left()


def _comparable(losses: Losses) -> Losses:
    """Return losses in which NaN, which cannot be ordered, is replaced by the worst loss."""
    return tuple(math.inf if math.isnan(loss) else loss for loss in losses)
