"""Decides which trial of a study with promotion trains next, and up to which rung. Pure: a function of the ledger's rows.

Asynchronous successive halving with promotion (Li et al. 2020). A trial that reaches a rung is paused. A free slot takes the
best paused trial that is among the best 1/factor of a rung, from the highest rung down, and otherwise a new trial. So a
decision depends on how trials have ended, and on nothing else.

A trial that cannot be among the best of its rung any more, whatever the others do, is dropped. When nothing else is left to
do and no trial is complete, the best of the highest rung continues, and a budget keeps the steps for that, so that a study
has a result.

With `max: auto` trials are first promoted from the lowest rung alone. The top rung is raised whenever a trial reaches it and
the ranking at it differs from that at the rung below, see `ranking`.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator

from trialplane.controller import ranking
from trialplane.job.search import Ladder
from trialplane.wire import rows
from trialplane.wire.states import TrialState

Losses = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Stretch:
    """The part of a trial's training that comes next.

    Attributes:
        trial: its number; None for a new one.
        rung: number of steps at which it is paused; 0 if it trains to its end.
        done: number of steps that it has done.
    """

    trial: int | None
    rung: int
    done: int = 0


class Rung:
    """The trials of one bracket that have reached one rung."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()  # those that are paused here
        self._losses: dict[int, Losses] = {}
        self._sorted: list[tuple[Losses, int]] = []  # by losses, then by trial
        self._order: list[int] | None = None

    def __len__(self) -> int:
        return len(self._losses)

    @property
    def first_losses(self) -> dict[int, float]:
        """The first loss of each trial."""
        return {trial: losses[0] for trial, losses in self._losses.items()}

    def enter(self, trial: int, losses: Losses) -> None:
        """Record that a trial has reached the rung."""
        if trial not in self._losses:
            self._losses[trial] = losses
            bisect.insort(self._sorted, (losses, trial))
            self._order = None

    @property
    def order(self) -> list[int]:
        """All trials that have reached it, from the best on: by front, losses and number."""
        if self._order is None:
            ordered = self._sorted
            if ordered and len(ordered[0][0]) > 1:
                fronts = rows.fronts(self._losses)
                ordered = sorted(ordered, key=lambda entry: (fronts[entry[1]], entry))
            self._order = [trial for _, trial in ordered]
        return self._order

    @property
    def has_one_loss(self) -> bool:
        """Whether trials are compared by one value, so that the order of two of them never changes."""
        return all(len(losses) == 1 for losses, _ in self._sorted[:1])


class Promotion:
    """The rungs of one study.

    Args:
        ladder: steps of the rungs.
        trials: how many trials the study has.
        budget: number of steps that all trials may train; None for any.

    Attributes:
        used: number of steps trained in segments that have ended.
        is_spent: whether the budget allows no further segment.
        top: steps of the rung from which no trial is promoted; those of a whole trial if all rungs promote.
    """

    def __init__(self, ladder: Ladder, trials: int, budget: int | None = None) -> None:
        self.used = 0
        self.is_spent = False
        self._ladder = ladder
        self._trials = trials
        self.top = self._raised(min(ladder.rungs(), default=ladder.top)) if ladder.is_auto else ladder.top
        self._budget = math.inf if budget is None else budget
        self._rungs: list[dict[int, Rung]] = [
            {step: Rung() for step in ladder.rungs(bracket)} for bracket in range(ladder.brackets)
        ]
        self._at: dict[int, int] = {}  # paused trial → its rung
        self._done: dict[int, int] = {}  # trial → steps trained in segments that have ended
        self._running: dict[int, Stretch] = {}
        self._begun = 0  # trials
        self._complete = 0

    def new(self, trial: int) -> Stretch:
        """The first stretch of a trial."""
        return Stretch(trial, self._ladder.next_rung(0, self._ladder.bracket(trial)))

    def begun(self, stretch: Stretch) -> None:
        """Record that an attempt at a segment starts."""
        trial = stretch.trial
        assert trial is not None
        self._begun = max(self._begun, trial + 1)
        self._running[trial] = stretch
        if (rung := self._at.pop(trial, None)) is not None:
            self._rung(trial, rung).waiting.discard(trial)

    def ended(self, trial: int, state: TrialState, done: int, losses: Losses) -> None:
        """Record that a segment has ended, and is not retried.

        Args:
            trial: its number.
            state: PAUSED at the rung; PRUNED if it was dropped there.
            done: number of steps that the trial has done in all.
            losses: at the rung; smaller is better.
        """
        stretch = self._running.pop(trial)
        losses = _comparable(losses)
        self.used += max(0, done - self._done.get(trial, 0))
        self._done[trial] = max(done, self._done.get(trial, 0))
        self._complete += state is TrialState.COMPLETE
        if stretch.rung and done >= stretch.rung:
            rung = self._rung(trial, stretch.rung)
            rung.enter(trial, losses)
            if state is TrialState.PAUSED:
                rung.waiting.add(trial)
                self._at[trial] = stretch.rung

    def top_after(self, trial: int, done: int, losses: Losses) -> int:
        """Return the top rung once a segment has ended, as `ended` records it. The order of the ends counts.

        Args:
            trial: its number.
            done: number of steps that the trial has done in all.
            losses: at the rung; smaller is better.
        """
        steps = self._ladder.rungs()
        if not self._ladder.is_auto or done < self.top or self._running[trial].rung != self.top:
            return self.top
        rungs = [self._rungs[0][step].first_losses for step in steps[: steps.index(self.top) + 1]]
        rungs[-1].setdefault(trial, _comparable(losses)[0])
        return self.top if ranking.agree(rungs[-2], rungs[-1], ranking.noise(rungs)) else self._raised(self.top)

    def drop(self, trial: int) -> None:
        """Record that a paused trial will not continue."""
        self._rung(trial, self._at.pop(trial)).waiting.discard(trial)

    def next(self, trial: int | None) -> Stretch | None:
        """The segment that a free slot takes; None if there is none now.

        Args:
            trial: number of the next new trial; None if none is left to draw.
        """
        candidates = list(self._candidates(trial))
        fitting = [stretch for stretch in candidates if self._fits(stretch)]
        if not fitting and not self._running and not self._complete:
            fitting = [stretch for stretch in self._best() if self._fits(stretch)]
        self.is_spent = not fitting and not self._running and (bool(candidates) or self._steps_left() <= 0)
        return fitting[0] if fitting else None

    def hopeless(self) -> list[int]:
        """The paused trials that will not be promoted, whatever the others do, in order of their numbers."""
        hopeless: list[int] = []
        for bracket in range(len(self._rungs)):
            coming = self._trials - self._begun  # trials that may still reach the rung
            for step, rung in self._rungs[bracket].items():
                coming += sum(
                    stretch.rung == step and self._ladder.bracket(trial) == bracket
                    for trial, stretch in self._running.items()
                )
                if rung.has_one_loss and rung.waiting:
                    best = rung.order[: (len(rung) + coming) // self._ladder.factor]
                    behind = rung.waiting.difference(best)
                    if behind == rung.waiting and not self._complete:  # the last hope of the study
                        behind.remove(next(trial for trial in rung.order if trial in behind))
                    hopeless += behind
                    coming -= len(behind)
                coming += len(rung.waiting)
        return sorted(hopeless)

    @property
    def waiting(self) -> list[int]:
        """The paused trials, in order of their numbers."""
        return sorted(self._at)

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Each rung from the lowest: its steps, how many trials have reached it, and how many are paused there."""
        steps = sorted({step for rungs in self._rungs for step in rungs})
        for step in steps:
            at_step = [rungs[step] for rungs in self._rungs if step in rungs]
            yield step, sum(len(rung) for rung in at_step), sum(len(rung.waiting) for rung in at_step)

    def _candidates(self, trial: int | None) -> Iterator[Stretch]:
        """Segments in the order in which they are taken."""
        steps = sorted({step for rungs in self._rungs for step in rungs}, reverse=True)
        for step in steps:
            for bracket, rungs in enumerate(self._rungs):
                if step >= self.top or step not in rungs or not rungs[step].waiting:
                    continue
                rung = rungs[step]
                for candidate in rung.order[: len(rung) // self._ladder.factor]:
                    if candidate in rung.waiting:
                        yield self._continued(candidate, bracket)
        if trial is not None:
            yield dataclasses.replace(self.new(trial), trial=None)

    def _best(self) -> Iterator[Stretch]:
        """The best paused trial of each rung, from the highest rung down."""
        for step, bracket in sorted(((step, bracket) for bracket, rungs in enumerate(self._rungs) for step in rungs))[::-1]:
            rung = self._rungs[bracket][step]
            best = next((candidate for candidate in rung.order if candidate in rung.waiting), None)
            if best is not None:
                yield self._continued(best, bracket)

    def _continued(self, trial: int, bracket: int) -> Stretch:
        done = self._done[trial]
        return Stretch(trial, self._ladder.next_rung(done, bracket), done)

    def _raised(self, top: int) -> int:
        """The rung above another one; steps of a whole trial above the last."""
        return self._ladder.next_rung(top) or self._ladder.top

    def _rung(self, trial: int, step: int) -> Rung:
        return self._rungs[self._ladder.bracket(trial)][step]

    def _size(self, stretch: Stretch) -> int:
        return max(0, (stretch.rung or self._ladder.top) - stretch.done)

    def _steps_left(self) -> float:
        return self._budget - self.used - sum(self._size(stretch) for stretch in self._running.values())

    def _fits(self, stretch: Stretch) -> bool:
        """Whether the budget has the steps of a segment, and those that the first complete trial still needs."""
        needed = 0
        if not self._complete and all(segment.rung for segment in (stretch, *self._running.values())):
            paused = [self._done[trial] for trial in self._at]
            needed = self._ladder.top - max(stretch.rung, *(segment.rung for segment in self._running.values()), *paused, 0)
        return self._size(stretch) + max(0, needed) <= self._steps_left()


def _comparable(losses: Losses) -> Losses:
    """Losses in which one that is no number is the worst."""
    return tuple(loss if loss == loss else math.inf for loss in losses)
