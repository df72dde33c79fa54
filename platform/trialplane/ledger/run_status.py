"""Status of a run, from its row in the ledger and, on a cluster, the operator's view. Pure.

This is the only place that decides what a run's status is. The laptop, the gateway, the operator and the SDK show it;
Prometheus shows the status of the controller that holds the run.

Only a controller writes a status into the ledger. So the last one may be of an earlier start, or of a run that was stopped
while it had no controller: before its first, or after its pod was killed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trialplane.job.kinds import Job
from trialplane.ledger import results
from trialplane.wire import rows
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

STARTING = "the controller is starting"


@dataclasses.dataclass(frozen=True)
class LedgerView:
    """Row of a run in the ledger.

    Attributes:
        status: Last status of a controller, or that of a run without one.
        desired: Desired state.
        alive: Whether a controller works on the run.
        begun: Time at which the last start was recorded, in seconds since the epoch. 0 if that does not matter, infinity if
            a later start is about to be recorded.
    """

    status: RunStatus
    desired: RunState = RunState.RUNNING
    alive: bool = False
    begun: float = 0.0

    @property
    def is_killed(self) -> bool:
        """Whether the run's controller was killed, so that the counts of its last status may be outdated."""
        return not self.alive and self.status.started is not None and self.status.ended is None


@dataclasses.dataclass(frozen=True)
class OperatorView:
    """State of a run as the operator sees it, for a run whose newest controller has not reported yet or was lost.

    Attributes:
        state: State of the run.
        reason: Reason for the state.
        ended: Time of the end, in seconds since the epoch; None if the run has not ended.
        waits: Reason why not all pods of a working controller run; "" if they do.
    """

    state: RunState
    reason: str
    ended: float | None = None
    waits: str = ""


def current(ledger: LedgerView, operator: OperatorView | None = None) -> RunStatus:
    """Return the current status of a run.

    Args:
        ledger: Row of the run.
        operator: View of the operator or the laptop. Without one, the last status of a lost controller stays.
    """
    status = reported(ledger, operator.waits if operator else "")
    if status is not None:
        return status
    if operator is not None:
        return _idle(ledger.status, operator.state, operator.reason, operator.ended)
    # A controller takes the run's lock shortly before it writes its first status.
    return _idle(ledger.status, RunState.PENDING, STARTING, ledger.status.ended) if ledger.alive else ledger.status


def reported(ledger: LedgerView, waits: str = "") -> RunStatus | None:
    """Return the status if the ledger alone determines it, otherwise None.

    It does if a controller of the last start works or has ended, or if the run was stopped without a controller.
    """
    status = ledger.status
    if ledger.alive:
        is_newest = status.updated >= ledger.begun
        return dataclasses.replace(status, reason=joined(status.reason, waits)) if is_newest else None
    is_cancelled = ledger.desired is RunState.CANCELLED and not status.state.is_ended
    if is_cancelled or (ledger.desired is RunState.PAUSED and status.state.is_active):
        ended = status.ended or (status.updated if is_cancelled else None)
        return _idle(status, ledger.desired, stopped(status.run, ledger.desired), ended)
    return status if status.has_ended(ledger.begun) else None


def recounted(status: RunStatus, job: Job, attempts: Sequence[TrialRow]) -> RunStatus:
    """Return the status of a run without a controller, with the counts and the best trial of the ledger's attempts."""
    return dataclasses.replace(status, **results.counts(attempts), best=rows.best_trial(job, rows.newest_attempts(attempts)))


def stopped(run: str, state: RunState) -> str:
    """Return the reason for which a run without a controller is paused or cancelled."""
    if state is RunState.PAUSED:
        return f"paused by the user; `platform resume {run}` continues it"
    return "cancelled by the user"


def joined(*reasons: str) -> str:
    """Return reasons as one text, without repetitions."""
    return "; ".join(dict.fromkeys(part for reason in reasons for part in reason.split("; ") if part))


def _idle(status: RunStatus, state: RunState, reason: str, ended: float | None) -> RunStatus:
    """Return the status of a run on which no controller works."""
    return dataclasses.replace(
        status, state=state, reason=reason, running=0, slots_ready=0, nodes=(), eta=None, rate=None, ended=ended
    )
