"""The ending of a run: at the user's request, because a budget is used up, or after a failure. Pure.

Several reasons may arise while running trials still finish. `select` decides which of them counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from trialplane.controller.counts import Counts
from trialplane.job.kinds import Job
from trialplane.wire import states
from trialplane.wire.costs import Usage
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState

_USER_RANKS = {RunState.PAUSED: 2, RunState.CANCELLED: 3}  # see `Ending.rank`; other endings have 0 or 1


@dataclasses.dataclass(frozen=True)
class Ending:
    """The state in which a run ends, the reason, and the treatment of running trials.

    Attributes:
        state: Last state of the run.
        reason: Reason for the user.
        kill: Whether running trials are ended at once, and not left to finish. If the user ends the run, trials that keep
            checkpoints get time to save one.
        hurry: Whether trials get no time to save a checkpoint.
        saves: Whether trials get time to save a checkpoint although the user does not end the run.
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
                return states.RUN_FAILED
            case _:  # the target was reached, or the hours or the cost are used up
                return self.reason

    @property
    def rank(self) -> int:
        """The precedence over other endings, from 3: CANCELLED, PAUSED, an ending that kills running trials, any other."""
        return _USER_RANKS.get(self.state, int(self.kill))


def select(current: Ending | None, candidate: Ending) -> Ending:
    """Return the ending that counts: the current one, or a candidate that has arisen later.

    The ending of higher rank counts. If both have the same rank, the candidate counts in two cases:

    - Both have the same state, so that only the reason is newer.
    - The current ending lets running trials finish or save a checkpoint. A trial that has finished meanwhile may have turned
      a failure into a success.

    Args:
        current: Ending that has counted so far; None if the run had no reason to end.
        candidate: Ending that has arisen now.
    """
    if current is None or candidate.rank > current.rank:
        return candidate
    if candidate.rank < current.rank:
        return current
    trials_may_finish = not current.kill or current.saves
    return candidate if candidate.state == current.state or trials_may_finish else current


def budget_endings(job: Job, counts: Counts, best: TrialRow | None, worked: float, usage: Usage) -> Iterator[Ending]:
    """Yield an ending for each budget that is used up, and one if a trial has reached the target.

    Args:
        job: Job with the budgets.
        counts: Counts of its trials.
        best: Best trial so far; None before any is complete.
        worked: Seconds that the run has worked, see `RunStatus`.
        usage: Usage of all attempts, including those that run.
    """
    budget = job.budget
    after = f"after {counts.ended} of {job.trials} trials"
    state_by_result = RunState.SUCCEEDED if counts.complete else RunState.FAILED
    if budget.max_failed is not None and counts.counted_failures > budget.max_failed:
        text = f"{counts.counted_failures} trials failed ({failure_classes(counts)}), more than budget.max_failed = "
        yield Ending(RunState.FAILED, f"{text}{budget.max_failed}, {after}", kill=True)
    if budget.time is not None and worked > budget.time:
        yield Ending(state_by_result, f"the time budget of {budget.time:g} s is used, {after}", kill=False)
    for name, used, limit in (("gpu_hours", usage.gpu_hours, budget.gpu_hours), ("cost", usage.cost, budget.cost)):
        if limit is not None and used is not None and used >= limit:  # the cost is None without prices
            text = f"budget.{name} is used up: {used:.4g} of {limit:g}, {after}"
            yield Ending(state_by_result, text, kill=True, saves=True)
    if budget.target is not None and best is not None:
        value = best.values[0]
        is_reached = value >= budget.target if job.objectives[0].direction == "maximize" else value <= budget.target
        if is_reached:
            text = f"trial {best.trial} reached the target {budget.target:g} with {value:g}, {after}"
            yield Ending(RunState.SUCCEEDED, text, kill=True)


def failure_classes(counts: Counts) -> str:
    """Return the number of failed trials by the class of their failure, as in `3 error, 1 oom`."""
    return ", ".join(f"{count} {name}" for name, count in counts.failures.most_common())
