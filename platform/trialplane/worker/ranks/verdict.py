"""Decide the outcome of a trial from its ranks' reports and ends, in order. Pure: no processes, no clock."""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Mapping, Sequence

from trialplane.wire import causes
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import outcomes


class Next(enum.Enum):
    """The next step for the ranks that still run."""

    GO_ON = "go on"
    RESULT = "result"  # the result is complete: they have `linger` to end
    STOP = "stop"  # save a checkpoint and end
    SETTLE = "settle"  # wait a moment: the cause of this failure may follow
    END = "end"  # the outcome is decided


class Verdict:
    """The developing outcome of a trial of several ranks on one node.

    Args:
        number: the ledger's, of the attempt.
        ranks: numbers of the ranks on this node.
        grace: seconds they have between SIGTERM and SIGKILL.

    Attributes:
        stopping: whether the ranks were requested to stop.
        decided: the outcome, once nothing can change it.
    """

    def __init__(self, number: int, ranks: Sequence[int], grace: float) -> None:
        self.stopping = False
        self.decided: TrialOutcome | None = None
        self.remarks: list[str] = []
        self._number = number
        self._ranks = tuple(ranks)
        self._grace = grace
        self._reported: dict[int, TrialOutcome] = {}
        self._failures: list[TrialOutcome] = []
        self._killed: tuple[int, ...] = ()
        self._late = ""  # names the ranks that did not end after the result was complete

    def reported(self, rank: int, outcome: TrialOutcome) -> Next:
        """Handle a rank's report of how it ended."""
        self._reported[rank] = outcome
        if self.decided is not None:
            return Next.GO_ON
        if outcome.state is TrialState.COMPLETE and not outcome.early:
            return Next.GO_ON if rank else Next.RESULT
        if outcome.state in (TrialState.PRUNED, TrialState.PAUSED) or outcome.early:
            if outcome.state is TrialState.PAUSED and rank:
                return Next.GO_ON  # rank 0 is paused at the same step
            self.decided = outcome
            return Next.END
        if outcome.failure is FailureClass.LOST:  # it has stopped; the others may still be saving theirs
            self.stopping, was_stopping = True, self.stopping
            return Next.GO_ON if was_stopping else Next.STOP
        return self._failed(dataclasses.replace(outcome, message=f"rank {rank}: {outcome.message}"))

    def ended(self, rank: int, code: int) -> Next:
        """Handle the end of a rank's process; a negative exit code is the signal that ended it."""
        if rank in self._reported or self.decided is not None or rank in self._killed:
            return Next.GO_ON
        if self.stopping and code == -signal.SIGTERM:  # the job does not handle it
            return Next.GO_ON
        return self._failed(
            TrialOutcome(
                number=self._number,
                state=TrialState.FAILED,
                failure=FailureClass.CRASHED,
                message=f"rank {rank} {_end_of(code)}",
                exit_code=code,
            )
        )

    def settled(self) -> None:
        """Decide which of the failures is the cause, once the wait is over."""
        self.decided = causes.cause(self._failures)

    def overdue(self, ranks: Sequence[int]) -> None:
        """Record ranks that are killed, as they have not ended within the grace period after SIGTERM."""
        self._killed = tuple(ranks)

    def record_late(self, ranks: Sequence[int], seconds: float) -> None:
        """Record ranks that are ended, as they still ran that long after rank 0 had returned; the result counts."""
        self._killed = tuple(ranks)
        text = f"{_named(ranks)} had not ended {seconds:g} s after rank 0 had returned its result, and had to be ended"
        self._late = f"{text}; the log has their stacks"
        self.remarks.append(text)

    def outcome(self, metrics: Mapping[str, float]) -> TrialOutcome:
        """The outcome, once all ranks have ended; `metrics` are the last reported ones."""
        if self.decided is None and self._failures:
            self.settled()
        if self.decided is not None:
            return self.decided if self.decided.early else dataclasses.replace(self.decided, metrics=metrics)
        ends = [self._reported.get(rank) for rank in self._ranks]
        if ends[0] is not None and all(end is not None and end.state is TrialState.PAUSED for end in ends):
            return dataclasses.replace(ends[0], metrics=metrics)
        if self._is_complete():
            result = self._reported[self._ranks[0]]
            return dataclasses.replace(result, message=self._late) if self._late else result
        return TrialOutcome(
            number=self._number,
            state=TrialState.FAILED,
            failure=FailureClass.LOST,
            metrics=metrics,
            message=self._stopped(),
        )

    def _failed(self, outcome: TrialOutcome) -> Next:
        """Handle a failed rank: the cause, or a consequence of another's failure or of a requested stop."""
        if self.decided is not None:
            return Next.GO_ON
        follows = causes.may_follow(outcome)
        if follows and (self.stopping or self._is_complete()):
            self.remarks.append(f"{outcome.message}; not counted, since other ranks had ended before")
            return Next.GO_ON
        self._failures.append(outcome)
        if follows:
            return Next.SETTLE
        self.decided = outcome
        return Next.END

    def _is_complete(self) -> bool:
        """Whether the result is complete: rank 0's, or on a node without rank 0 the success of all ranks."""
        needed = self._ranks[:1] if self._ranks[0] == 0 else self._ranks
        return all(rank in self._reported and self._reported[rank].state is TrialState.COMPLETE for rank in needed)

    def _stopped(self) -> str:
        """Describe the stop: the first message, and the ranks that did not stop."""
        stopped = [self._reported[rank] for rank in self._ranks if rank in self._reported]
        lost = [outcome.message for outcome in stopped if outcome.failure is FailureClass.LOST]
        if not self._killed:
            return lost[0] if lost else "stopped by SIGTERM at once, without a checkpoint"
        return (
            f"{lost[0] if lost else 'stopped by SIGTERM'}; {_named(self._killed)} had not ended after {self._grace:g} s and "
            "had to be killed: see ctx.stopping"
        )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _end_of(code: int) -> str:
    """Describe the end of a process that reported nothing."""
    if code >= 0:
        return outcomes.without_result(code)
    hint = " (probably by the kernel, out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
