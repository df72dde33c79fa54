"""States of trials and runs, and the classes of failures with their rules for retries."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from trialplane import errors

if TYPE_CHECKING:
    from trialplane.job.resources import Retries


class TrialState(enum.StrEnum):
    """State of one attempt of a trial."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAILED = "FAILED"
    LOST = "LOST"  # failed, and retried with the same trial number
    PAUSED = "PAUSED"  # at a rung, or because its run was stopped; it continues from its checkpoint if it has one

    @property
    def is_ended(self) -> bool:
        """Whether the trial will never run again."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)


class RunState(enum.StrEnum):
    """State of a run."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"  # stopped before its last trial; `platform resume` continues it
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def _missing_(cls, value: object) -> RunState:
        """Return UNKNOWN for a state of another version of trialplane."""
        return cls.UNKNOWN

    @property
    def is_active(self) -> bool:
        """Whether the run is running or about to start."""
        return self in (RunState.PENDING, RunState.RUNNING)

    @property
    def is_ended(self) -> bool:
        """Whether the run has ended and will not continue by itself. `platform resume` may continue it."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)

    @property
    def exit_code(self) -> int:
        """Exit code of the controller, and of a command that waited for the run."""
        return _EXIT_CODES.get(self, errors.EXIT_PLATFORM)


NO_TRIAL = "no trial was started"  # start of the reason if a run fails before its first trial
_EXIT_CODES = {
    RunState.SUCCEEDED: errors.EXIT_OK,
    RunState.FAILED: errors.EXIT_RUN_FAILED,
    RunState.CANCELLED: errors.EXIT_CANCELLED,
    RunState.PAUSED: errors.EXIT_INTERRUPTED,
}


class FailureClass(enum.StrEnum):
    """Reason why an attempt ended without a result."""

    ERROR = "error"  # exception in the job
    OOM = "oom"  # CUDA out of memory
    INVALID = "invalid"  # metric missing, NaN or infinite at the end; an invalid message
    CRASHED = "crashed"  # killed by a signal, host out of memory
    LOST = "lost"  # pod, node, slot or controller lost, or preempted
    TIMEOUT = "timeout"  # over its time limit
    STOPPED = "stopped"  # the run was stopped, or had failed, while it ran


RUN_FAILED = "the run had failed"  # message of an attempt that was STOPPED because its run had failed


@dataclasses.dataclass(frozen=True)
class FailureRule:
    """Consequences of a failure.

    Attributes:
        retry: Key in the job's `retries` that has the number of retries; "always"; or None for no retry.
        counts: Whether a trial that finally fails with this class counts toward `budget.max_failed`.
    """

    retry: str | None
    counts: bool

    def allows_retry(self, limits: Retries, used: int) -> bool:
        """Return whether another retry is allowed.

        Args:
            limits: The job's numbers of retries.
            used: Number of retries after failures of this class so far.
        """
        if self.retry is None:
            return False
        return self.retry == "always" or used < getattr(limits, self.retry)


FAILURE_RULES: dict[FailureClass, FailureRule] = {
    FailureClass.ERROR: FailureRule(retry=None, counts=True),  # the same code fails the same way
    FailureClass.OOM: FailureRule(retry=None, counts=True),  # these parameters do not fit the device
    FailureClass.INVALID: FailureRule(retry=None, counts=True),
    FailureClass.CRASHED: FailureRule(retry="crashed", counts=True),
    FailureClass.LOST: FailureRule(retry="lost", counts=False),  # not the trial's fault
    FailureClass.TIMEOUT: FailureRule(retry=None, counts=True),
    FailureClass.STOPPED: FailureRule(retry="always", counts=False),  # runs again when the run is resumed
}
