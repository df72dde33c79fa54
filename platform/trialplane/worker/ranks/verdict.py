"""Decide the outcome of a trial of several ranks, and after each event what happens to the ranks that still run.

The supervisor passes the ranks' outcomes and exits on in their order, and carries out each `NextStep`. Pure: no processes,
no clock.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Mapping, Sequence

from trialplane.wire import causes
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import outcomes


class NextStep(enum.Enum):
    """The next step for the ranks that still run."""

    GO_ON = "go on"
    RESULT = "result"  # the result is complete: the other ranks have `linger` to end
    STOP = "stop"  # all ranks must save a checkpoint and end
    SETTLE = "settle"  # this failure may be the consequence of another one, so wait a moment for its cause
    END = "end"  # the outcome is decided: end the ranks


class Verdict:
    """The developing outcome of a trial of several ranks on one node.

    Args:
        number: Number of the attempt in the ledger.
        ranks: Numbers of the ranks on this node.
        grace: Seconds between SIGTERM and SIGKILL.

    Attributes:
        is_stopping: Whether the ranks were requested to stop.
        decision: Outcome that no later event changes; None before.
        remarks: Lines for the log.
    """

    def __init__(self, number: int, ranks: Sequence[int], grace: float) -> None:
        self.is_stopping = False
        self.decision: TrialOutcome | None = None
        self.remarks: list[str] = []
        self._number = number
        self._ranks = tuple(ranks)
        self._grace = grace
        self._reported: dict[int, TrialOutcome] = {}  # outcomes that ranks have sent
        self._failures: list[TrialOutcome] = []  # failures that may be the cause of the trial's end, in order
        self._killed: tuple[int, ...] = ()  # ranks that the supervisor has killed
        self._late_message = ""  # names the ranks that did not end after the result was complete

    @property
    def is_ended_early(self) -> bool:
        """Whether the decision is an end without a failure: the trial was pruned or paused, or met a stop rule."""
        decision = self.decision
        return decision is not None and (decision.early or decision.state in (TrialState.PRUNED, TrialState.PAUSED))

    def handle_outcome(self, rank: int, outcome: TrialOutcome) -> NextStep:
        """Handle the outcome that a rank has sent; return the next step for the other ranks."""
        self._reported[rank] = outcome
        if self.decision is not None:
            return NextStep.GO_ON
        if outcome.state is TrialState.COMPLETE and not outcome.early:
            return NextStep.RESULT if rank == 0 else NextStep.GO_ON
        if outcome.state is TrialState.PAUSED and rank > 0:
            return NextStep.GO_ON  # rank 0 is paused at the same step
        if outcome.state in (TrialState.PRUNED, TrialState.PAUSED) or outcome.early:  # early: ended by a stop rule
            self.decision = outcome
            return NextStep.END
        if outcome.failure is FailureClass.LOST:  # this rank has stopped at a request, so the others must stop too
            was_stopping, self.is_stopping = self.is_stopping, True
            return NextStep.GO_ON if was_stopping else NextStep.STOP
        return self._handle_failure(dataclasses.replace(outcome, message=f"rank {rank}: {outcome.message}"))

    def handle_exit(self, rank: int, code: int) -> NextStep:
        """Handle the exit of a rank's process, whose code is negative after a signal; return the others' next step."""
        if rank in self._reported or self.decision is not None or rank in self._killed:
            return NextStep.GO_ON
        if self.is_stopping and code == -signal.SIGTERM:  # the job has no handler of SIGTERM
            return NextStep.GO_ON
        return self._handle_failure(
            TrialOutcome(
                number=self._number,
                state=TrialState.FAILED,
                failure=FailureClass.CRASHED,
                message=f"rank {rank} {_exit_text(code)}",
                exit_code=code,
            )
        )

    def decide_cause(self) -> None:
        """Decide which of the failures is the cause, once the wait is over."""
        self.decision = causes.cause(self._failures)

    def record_overdue(self, ranks: Sequence[int]) -> None:
        """Record ranks that are killed because they have not ended within the grace period after SIGTERM."""
        self._killed = tuple(ranks)

    def record_late(self, ranks: Sequence[int], seconds: float) -> None:
        """Record ranks that are ended because they still ran `seconds` after rank 0 had returned; the result counts."""
        self._killed = tuple(ranks)
        text = f"{_rank_names(ranks)} had not ended {seconds:g} s after rank 0 had returned its result, and had to be ended"
        self._late_message = f"{text}; the log has their stacks"
        self.remarks.append(text)

    def outcome(self, metrics: Mapping[str, float]) -> TrialOutcome:
        """Return the outcome of the trial, after all ranks have ended.

        It is the one that was decided, or the cause of the failures; PAUSED if all ranks are paused; otherwise the result if
        it is complete. If nothing of this holds, the ranks were stopped, and the outcome is LOST.

        Args:
            metrics: Metrics of the last report, which an outcome without a result gets.
        """
        if self.decision is None and self._failures:
            self.decide_cause()
        if self.decision is not None:  # if it is early, it is complete with metrics of its own
            return self.decision if self.decision.early else dataclasses.replace(self.decision, metrics=metrics)
        first_rank = self._ranks[0]
        if self._have_all_sent(TrialState.PAUSED, self._ranks):
            return dataclasses.replace(self._reported[first_rank], metrics=metrics)
        if self._is_complete():
            result = self._reported[first_rank]
            return dataclasses.replace(result, message=self._late_message) if self._late_message else result
        return TrialOutcome(
            number=self._number,
            state=TrialState.FAILED,
            failure=FailureClass.LOST,
            metrics=metrics,
            message=self._stop_message(),
        )

    def _handle_failure(self, outcome: TrialOutcome) -> NextStep:
        """Record a rank's failure; return the next step for the other ranks.

        A failure that can only be a cause decides the outcome. One that may be the consequence of another failure waits for
        the cause. But it does not count if the ranks end anyway, because they were requested to stop or have the result.
        """
        may_be_consequence = causes.may_be_consequence(outcome)
        if may_be_consequence and (self.is_stopping or self._is_complete()):
            reason = "the ranks were already requested to stop" if self.is_stopping else "the result was already complete"
            self.remarks.append(f"{outcome.message}; not counted, since {reason}")
            return NextStep.GO_ON
        self._failures.append(outcome)
        if may_be_consequence:
            return NextStep.SETTLE
        self.decision = outcome
        return NextStep.END

    def _is_complete(self) -> bool:
        """Return whether the result of this node is complete: rank 0's, or on a node without rank 0 those of all ranks."""
        return self._have_all_sent(TrialState.COMPLETE, [0] if self._ranks[0] == 0 else self._ranks)

    def _have_all_sent(self, state: TrialState, ranks: Sequence[int]) -> bool:
        """Return whether all of these ranks have sent an outcome of a state."""
        return all(rank in self._reported and self._reported[rank].state is state for rank in ranks)

    def _stop_message(self) -> str:
        """Describe how the trial was stopped: by the message of the first rank that has stopped, and the killed ranks."""
        in_order = [self._reported[rank] for rank in self._ranks if rank in self._reported]
        first_message = next((outcome.message for outcome in in_order if outcome.failure is FailureClass.LOST), "")
        if not self._killed:
            return first_message or "stopped by SIGTERM at once, without a checkpoint"
        return (
            f"{first_message or 'stopped by SIGTERM'}; {_rank_names(self._killed)} had not ended after "
            f"{self._grace:g} s and had to be killed: see ctx.stopping"
        )


def _rank_names(ranks: Sequence[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}"


def _exit_text(code: int) -> str:
    """Describe the end of a process that reported nothing."""
    if code >= 0:
        return outcomes.missing_result_text(code)
    hint = " (probably by the kernel, out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
