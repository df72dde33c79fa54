"""Status of a run from what the ledger has of it. Pure.

Only a controller writes a status. So the last one may be of an earlier start, or of a run that was stopped while it had no
controller: before its first, or after its pod was killed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trialplane.job.kinds import Job
from trialplane.ledger import results
from trialplane.wire import rows
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

_UNENDED = (RunState.PENDING, RunState.RUNNING)


def current(status: RunStatus, desired: RunState, *, alive: bool, begun: float = 0.0) -> RunStatus:
    """Return the status that holds now.

    Args:
        status: The last one of a controller, or that of a run without one.
        desired: The desired state.
        alive: Whether a controller holds the run.
        begun: Time at which the last start was recorded, in seconds since the epoch.
    """
    if alive:
        # It holds the run a moment before it writes its first status.
        return status if status.updated >= begun else idle(status, RunState.PENDING, "the controller is starting")
    stoppable = (*_UNENDED, RunState.PAUSED) if desired is RunState.CANCELLED else _UNENDED
    if desired in (RunState.PAUSED, RunState.CANCELLED) and status.state in stoppable:
        return idle(status, desired, stopped(status.run, desired))
    return status


def idle(status: RunStatus, state: RunState, reason: str) -> RunStatus:
    """Return the status of a run on which no controller works."""
    return dataclasses.replace(status, state=state, reason=reason, running=0, slots_ready=0, nodes=(), eta=None, rate=None)


def recounted(status: RunStatus, job: Job, attempts: Sequence[TrialRow]) -> RunStatus:
    """Return the status of a controller that was killed, with the counts and the best trial of the ledger's attempts."""
    return dataclasses.replace(status, **results.counts(attempts), best=rows.best(job, rows.newest(attempts)))


def stopped(run: str, state: RunState) -> str:
    """Return the reason for which a run without a controller is paused or cancelled."""
    if state is RunState.PAUSED:
        return f"paused by the user; `platform resume {run}` continues it"
    return "cancelled by the user"
