"""The ending of a run, and the precedence among several. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from trialplane.controller.counts import Counts
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState

_RANKS = {RunState.PAUSED: 2, RunState.CANCELLED: 3}  # of the user's endings


@dataclasses.dataclass(frozen=True)
class Ending:
    """The ending that a run is to have.

    Attributes:
        state: the run's last state.
        reason: for the user.
        kill: whether running trials are ended at once, or left to finish. Trials that keep checkpoints get time to save one
            when the user ends them.
        hurry: whether they are denied that time.
    """

    state: RunState
    reason: str
    kill: bool
    hurry: bool = False

    @property
    def by_user(self) -> bool:
        """Whether the user paused or cancelled the run."""
        return self.state in _RANKS

    @property
    def of_trials(self) -> str:
        """The reason for which trials that still run are stopped."""
        match self.state:
            case RunState.PAUSED:
                return "the user paused the run"
            case RunState.CANCELLED:
                return "the user cancelled the run"
            case RunState.FAILED:
                return "the run had failed"
            case _:
                return self.reason

    @property
    def rank(self) -> int:
        """The precedence: CANCELLED over PAUSED over a budget's, and among those one that ends running trials."""
        return _RANKS.get(self.state, int(self.kill))


def of(current: Ending | None, candidate: Ending) -> Ending:
    """Which of two endings counts: the first of the highest rank, with its newest reason.

    Trials that are left to finish may still turn a failure into a success.
    """
    if (
        current is None
        or candidate.rank > current.rank
        or (candidate.rank == current.rank and (candidate.state == current.state or not current.kill))
    ):
        return candidate
    return current


def of_budgets(job: Job, counts: Counts, best: TrialRow | None, worked: float) -> Iterator[Ending]:
    """The endings of the budgets that are used up.

    Args:
        job: has the budgets.
        counts: of its trials.
        best: the best trial so far.
        worked: seconds; see `RunStatus`.
    """
    budget = job.budget
    after = f"after {counts.ended} of {job.trials} trials"
    if budget.max_failed is not None and counts.counted_failures > budget.max_failed:
        text = (
            f"{counts.counted_failures} trials failed ({classes(counts)}), more than budget.max_failed = {budget.max_failed}"
        )
        yield Ending(RunState.FAILED, f"{text}, {after}", kill=True)
    if budget.time is not None and worked > budget.time:
        text = f"the time budget of {budget.time:g} s is used, {after}"
        yield Ending(RunState.SUCCEEDED if counts.complete else RunState.FAILED, text, kill=False)
    if budget.target is not None and best is not None:
        value, maximize = best.values[0], job.objectives[0].direction == "maximize"
        if value >= budget.target if maximize else value <= budget.target:
            text = f"trial {best.trial} reached the target {budget.target:g} with {value:g}, {after}"
            yield Ending(RunState.SUCCEEDED, text, kill=True)


def classes(counts: Counts) -> str:
    """The number of failed trials by the class of their failure: `3 error, 1 oom`."""
    return ", ".join(f"{count} {name}" for name, count in counts.failures.most_common())
