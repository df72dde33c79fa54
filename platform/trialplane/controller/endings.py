"""The ending of a run, the endings of its budgets, and the precedence among several endings. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from trialplane.controller.counts import Counts
from trialplane.job.kinds import Job
from trialplane.wire.costs import Usage
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState

_USER_RANKS = {RunState.PAUSED: 2, RunState.CANCELLED: 3}


@dataclasses.dataclass(frozen=True)
class Ending:
    """The way in which a run is to end.

    Attributes:
        state: Last state of the run.
        reason: Reason for the user.
        kill: Whether running trials are ended at once, and not left to finish. Trials that keep checkpoints get time to save
            one if the user ends the run.
        hurry: Whether trials do not get this time.
        saves: Whether trials get this time although no user ends the run.
    """

    state: RunState
    reason: str
    kill: bool
    hurry: bool = False
    saves: bool = False

    @property
    def is_by_user(self) -> bool:
        """Whether the user paused or cancelled the run."""
        return self.state in _USER_RANKS

    @property
    def trial_message(self) -> str:
        """The message to trials that are stopped by this ending."""
        match self.state:
            case RunState.PAUSED:
                return "the user paused the run"
            case RunState.CANCELLED:
                return "the user cancelled the run"
            case RunState.FAILED if not self.saves:
                return "the run had failed"
            case _:
                return self.reason

    @property
    def rank(self) -> int:
        """The precedence, highest first: CANCELLED, PAUSED, an ending that kills running trials, any other."""
        return _USER_RANKS.get(self.state, int(self.kill))


def select(current: Ending | None, candidate: Ending) -> Ending:
    """Return the ending that counts after another one was found: the one of higher rank.

    If both have the same rank, the candidate replaces the current ending in two cases: both have the same state, so that
    only the reason is newer; or running trials are left to finish or to save a checkpoint, and so may have turned a
    failure into a success.
    """
    if (
        current is None
        or candidate.rank > current.rank
        or (candidate.rank == current.rank and (candidate.state == current.state or not current.kill or current.saves))
    ):
        return candidate
    return current


def budget_endings(job: Job, counts: Counts, best: TrialRow | None, worked: float, usage: Usage) -> Iterator[Ending]:
    """Yield the endings of the budgets that are used up, and of a target that is reached.

    Args:
        job: Job with the budgets.
        counts: Counts of its trials.
        best: Best trial so far; None before any is complete.
        worked: Seconds that the run has worked, see `RunStatus`.
        usage: Usage of all attempts, including those that run.
    """
    budget = job.budget
    after = f"after {counts.ended} of {job.trials} trials"
    if budget.max_failed is not None and counts.counted_failures > budget.max_failed:
        text = f"{counts.counted_failures} trials failed ({failure_classes(counts)}), more than budget.max_failed = "
        yield Ending(RunState.FAILED, f"{text}{budget.max_failed}, {after}", kill=True)
    if budget.time is not None and worked > budget.time:
        text = f"the time budget of {budget.time:g} s is used, {after}"
        yield Ending(RunState.SUCCEEDED if counts.complete else RunState.FAILED, text, kill=False)
    for name, used, limit in (("gpu_hours", usage.gpu_hours, budget.gpu_hours), ("cost", usage.cost, budget.cost)):
        if limit is not None and used is not None and used >= limit:
            text = f"budget.{name} is used up: {used:.4g} of {limit:g}, {after}"
            yield Ending(RunState.SUCCEEDED if counts.complete else RunState.FAILED, text, kill=True, saves=True)
    if budget.target is not None and best is not None:
        value, maximize = best.values[0], job.objectives[0].direction == "maximize"
        if value >= budget.target if maximize else value <= budget.target:
            text = f"trial {best.trial} reached the target {budget.target:g} with {value:g}, {after}"
            yield Ending(RunState.SUCCEEDED, text, kill=True)


def failure_classes(counts: Counts) -> str:
    """Return the number of failed trials by the class of their failure, as in `3 error, 1 oom`."""
    return ", ".join(f"{count} {name}" for name, count in counts.failures.most_common())
