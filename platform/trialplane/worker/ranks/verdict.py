"""What becomes of a trial, given what its ranks say and how they end, in order. Pure: knows no process and no clock."""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Mapping, Sequence

from trialplane.wire import causes
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState


class Next(enum.Enum):
    """What follows for the ranks that still run."""

    GO_ON = "go on"
    RESULT = "result"  # it is there: they have so long to end
    STOP = "stop"  # save a checkpoint and end
    SETTLE = "settle"  # wait a moment: the cause of this failure may be yet to come
    END = "end"  # the outcome is there


class Verdict:
    """The outcome of a trial of several ranks on one node, as it takes shape.

    Args:
        number: the ledger's, of the attempt.
        ranks: numbers of the ranks on this node.
        grace: seconds they have between SIGTERM and SIGKILL.

    Attributes:
        stopping: whether the ranks were asked to stop.
        decided: the outcome, once there is no more to wait for.
    """

    def __init__(self, number: int, ranks: Sequence[int], grace: float) -> None:
        self.stopping = False
        self.decided: TrialOutcome | None = None
        self.remarks: list[str] = []
        self._number = number
        self._ranks = tuple(ranks)
        self._grace = grace
        self._said: dict[int, TrialOutcome] = {}
        self._failures: list[TrialOutcome] = []
        self._killed: tuple[int, ...] = ()
        self._left = ""  # which ranks did not end after the result was there

    def said(self, rank: int, outcome: TrialOutcome) -> Next:
        """A rank says how it ended."""
        self._said[rank] = outcome
        if self.decided is not None:
            return Next.GO_ON
        if outcome.state is TrialState.COMPLETE:
            return Next.GO_ON if rank else Next.RESULT
        if outcome.state is TrialState.PRUNED:
            self.decided = outcome
            return Next.END
        if outcome.failure is FailureClass.LOST:  # it has stopped; the others may still be saving their part
            self.stopping, asked = True, self.stopping
            return Next.GO_ON if asked else Next.STOP
        return self._failed(dataclasses.replace(outcome, message=f"rank {rank}: {outcome.message}"))

    def ended(self, rank: int, code: int) -> Next:
        """A rank's process is gone, with this exit code; a negative one is the signal that ended it."""
        if rank in self._said or self.decided is not None or rank in self._killed:
            return Next.GO_ON
        if self.stopping and code == -signal.SIGTERM:  # the job listens to nobody
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
        """The moment is over: one of the failures is the cause."""
        self.decided = causes.cause(self._failures)

    def overdue(self, ranks: Sequence[int]) -> None:
        """These ranks have not ended in the grace after SIGTERM, and are killed."""
        self._killed = tuple(ranks)

    def left(self, ranks: Sequence[int], seconds: float) -> None:
        """These ranks have not ended so long after rank 0 had returned, and are ended; the result counts."""
        self._killed = tuple(ranks)
        text = f"{_named(ranks)} had not ended {seconds:g} s after rank 0 had returned its result, and had to be ended"
        self._left = f"{text}; the log has their stacks"
        self.remarks.append(text)

    def outcome(self, metrics: Mapping[str, float]) -> TrialOutcome:
        """The outcome, when all ranks have ended; `metrics` are the last reported ones."""
        if self.decided is None and self._failures:
            self.settled()
        if self.decided is not None:
            return dataclasses.replace(self.decided, metrics=metrics)
        if self._is_complete():
            result = self._said[self._ranks[0]]
            return dataclasses.replace(result, message=self._left) if self._left else result
        return TrialOutcome(
            number=self._number,
            state=TrialState.FAILED,
            failure=FailureClass.LOST,
            metrics=metrics,
            message=self._stopped(),
        )

    def _failed(self, outcome: TrialOutcome) -> Next:
        """A rank has failed: the cause, or what followed from another's failure or from the end that all were asked for."""
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
        """Whether the result is there: rank 0's, or on a node without it the word of all ranks that they are done."""
        needed = self._ranks[:1] if self._ranks[0] == 0 else self._ranks
        return all(rank in self._said and self._said[rank].state is TrialState.COMPLETE for rank in needed)

    def _stopped(self) -> str:
        """How they stopped: what the first of them says who did, and who did not."""
        stopped = [self._said[rank] for rank in self._ranks if rank in self._said]
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
    """How a process ended that said nothing."""
    if code >= 0:
        return f"ended with exit code {code} without a result"
    hint = " (by the kernel for want of memory, if nobody else did)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
