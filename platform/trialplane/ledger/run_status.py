"""Status of a run, from its row in the ledger and, on a cluster, the operator's view. Pure.

The operator is the service that turns each Run object of Kubernetes into pods, and sees whether they run.

Only this module decides the status that the laptop, the gateway, the operator and the SDK show. Prometheus shows what the
working controller reports itself.

The status in the ledger is not enough, because only a controller writes it. It is outdated if the run was started again and
the new controller has not reported yet, or if the run was paused or cancelled while no controller worked on it. The counts
of a controller that was killed are those of its last status, so all of them count its attempts in the ledger instead.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from trialplane.job.kinds import Job
from trialplane.wire import rows
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

STARTING = "the controller is starting"


@dataclasses.dataclass(frozen=True)
class LedgerView:
    """State of a run as the ledger has it.

    Attributes:
        status: Last status that a controller wrote, or the pending status of a run that never had a controller.
        desired: Desired state.
        alive: Whether a controller works on the run.
        begun: Time at which the last start was recorded, in seconds since the epoch. A status from before this time is of an
            earlier start. 0 accepts each status, and infinity none, because another start is about to be recorded.
    """

    status: RunStatus
    desired: RunState = RunState.RUNNING
    alive: bool = False
    begun: float = 0.0

    @property
    def is_killed(self) -> bool:
        """Whether the last controller was killed, so that the counts of its last status may be outdated."""
        return not self.alive and self.status.started is not None and self.status.ended is None


@dataclasses.dataclass(frozen=True)
class OperatorView:
    """State of a run as the operator sees it, for a run whose newest controller has not reported yet or was lost.

    Attributes:
        state: State of the run.
        reason: Reason for the state.
        ended: Time of the end, in seconds since the epoch; None if the run has not ended.
        waits: Reason why some pods of a run with a working controller do not run; "" if all do.
    """

    state: RunState
    reason: str
    ended: float | None = None
    waits: str = ""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts of the trials of a run, and its best one. For the fields see `RunStatus`."""

    complete: int
    pruned: int
    failed: int
    retried: int
    paused: int
    failures: Mapping[str, int]
    best: TrialRow | None


def current(ledger: LedgerView, operator: OperatorView | None = None) -> RunStatus:
    """Return the current status of a run.

    Args:
        ledger: What the ledger says about the run.
        operator: View of the operator, or of the laptop in its place. Without it, a controller that was lost keeps its last
            status.
    """
    status = reported_status(ledger, operator.waits if operator else "")
    if status is not None:
        return status
    if operator is not None:
        return _idle(ledger.status, operator.state, reason=operator.reason, ended=operator.ended)
    if ledger.alive:  # a controller has the run's lock, but has not written its first status yet
        return _idle(ledger.status, RunState.PENDING, reason=STARTING, ended=ledger.status.ended)
    return ledger.status


def reported_status(ledger: LedgerView, waits: str = "") -> RunStatus | None:
    """Return the status of a run if the ledger alone determines it; None if the operator's view is needed.

    The ledger determines it in these cases:

    - The controller of the last start works, and has written a status.
    - The controller of the last start has ended the run.
    - No controller works, and the user has paused or cancelled the run.

    Args:
        ledger: What the ledger says about the run.
        waits: Reason why some pods of the run do not run, which is added to the status of a working controller; or "".
    """
    status = ledger.status
    if ledger.alive:
        is_of_last_start = status.updated >= ledger.begun
        return dataclasses.replace(status, reason=join_reasons(status.reason, waits)) if is_of_last_start else None
    if ledger.desired is RunState.CANCELLED and not status.state.is_ended:
        # If its controller could not write the end, the time of its last status is the best guess.
        ended = status.ended or status.updated
        return _idle(status, RunState.CANCELLED, reason=stop_reason(status.run, RunState.CANCELLED), ended=ended)
    if ledger.desired is RunState.PAUSED and status.state.is_active:
        return _idle(status, RunState.PAUSED, reason=stop_reason(status.run, RunState.PAUSED), ended=status.ended)
    return status if status.has_ended(ledger.begun) else None


def recount(job: Job, attempts: Iterable[TrialRow]) -> Counts:
    """Return the counts and the best trial of a run without a controller.

    The best trial has its long fields shortened, as in every status.

    Args:
        job: Job with the objectives.
        attempts: All attempts of the run. Each may be discarded once it is read: only what is counted of it is kept.
    """
    small_rows: list[TrialRow] = []  # the attempts without their long fields, to save memory
    best: TrialRow | None = None
    for attempt in attempts:
        if attempt.state is TrialState.COMPLETE and attempt.feasible:
            contenders = [attempt] if best is None else [best, attempt]
            best = rows.best_trial(job, contenders)
        small_rows.append(dataclasses.replace(attempt, params={}, metrics={}, returned={}, message="", best_steps={}))
    newest = {row.trial: row for row in rows.newest_attempts(small_rows)}
    if best is not None:
        # A promoted trial has run in several attempts. `newest_attempts` has added up their times.
        row = newest[best.trial]
        best = rows.shorten(dataclasses.replace(best, started=row.started, seconds=row.seconds))
    states = collections.Counter(row.state for row in newest.values())
    # Attempts that were stopped because the run had failed do not count: `platform resume` tries them again.
    failures = [
        row.failure.value
        for row in newest.values()
        if row.state is TrialState.FAILED and row.failure not in (None, FailureClass.STOPPED)
    ]
    return Counts(
        complete=states[TrialState.COMPLETE],
        pruned=states[TrialState.PRUNED],
        failed=len(failures),
        # All failed attempts but the last ones of failed trials, and so also one that was retried after a resume of the run.
        retried=sum(row.failure is not None for row in small_rows) - len(failures),
        paused=sum(row.state is TrialState.PAUSED and row.failure is None for row in newest.values()),
        failures=dict(collections.Counter(failures)),
        best=best,
    )


def recounted(status: RunStatus, counts: Counts) -> RunStatus:
    """Return the status of a run without a controller, with other counts."""
    fields = {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
    return dataclasses.replace(status, running=0, **fields)


def stop_reason(run: str, state: RunState) -> str:
    """Return the reason in the status of a run that the user has paused or cancelled while it had no controller."""
    if state is RunState.PAUSED:
        return f"paused by the user; `platform resume {run}` continues it"
    return "cancelled by the user"


def join_reasons(*reasons: str) -> str:
    """Return reasons as one text, separated by semicolons, without repetitions."""
    return "; ".join(dict.fromkeys(part for reason in reasons for part in reason.split("; ") if part))


def _idle(status: RunStatus, state: RunState, reason: str, ended: float | None) -> RunStatus:
    """Return a status with another state, reason and end, in which no trial and no slot works."""
    idle = dataclasses.replace(status, running=0, slots_ready=0, nodes=(), eta=None, rate=None, final_state=None)
    return dataclasses.replace(idle, state=state, reason=reason, ended=ended)
