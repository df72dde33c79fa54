"""Status of a Run, from an observation of it. Pure."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from trialplane.kube import metadata
from trialplane.ledger import run_status as ledger_status
from trialplane.ledger.archive import Snapshot
from trialplane.ledger.run_status import LedgerView
from trialplane.plan import run as runs
from trialplane.plan.run import Condition, State, Status
from trialplane.reconciler import problems
from trialplane.reconciler.observation import Observation, Phase
from trialplane.wire.records import RunStatus

LONGEST = 2000  # characters of a reason, which a controller may have chosen; of a condition the API server takes 32,768
Holds = Literal["True", "False"]
_ENDED = ("Succeeded", "Failed", "Cancelled")


def status(observed: Observation, now: float) -> Status:
    """The status that the Run should have.

    Args:
        observed: of the Run, when there is nothing left to do.
        now: seconds since the epoch.
    """
    state, reason = _state(observed)
    before = observed.status
    recorded = observed.recorded.status if observed.is_recorded and observed.recorded is not None else None
    job, current = observed.read.job, recorded if observed.is_current else None
    total = current.trials if current else job.trials if job else before.total
    ended = recorded.ended_trials if recorded else before.ended
    reason = reason[:LONGEST]
    return Status(
        state=state,
        reason=reason,
        ended=ended,
        total=total,
        progress=f"{ended}/{total}" if total else "",
        best=(_best(recorded) if recorded else before.best)[:LONGEST],
        since=before.since if before.since and before.state == state else moment(now),
        started=observed.started,
        resumes=observed.resumes,
        observedGeneration=observed.generation,
        images=observed.images,
        conditions=tuple(_conditions(observed, state, reason, now)),
    )


def explained(observed: Observation, reason: str, message: str, now: float) -> Status:
    """The status as it was, with what keeps the reconciler from knowing more or doing more.

    Args:
        observed: of the Run.
        reason: in one word.
        message: for people.
        now: seconds since the epoch.
    """
    other_conditions = [condition for condition in observed.status.conditions if condition.type != runs.READY]
    ready = _condition(observed, runs.READY, "False", reason, message, now)
    return observed.status.model_copy(
        update={
            "reason": message,
            "since": observed.status.since or moment(now),
            "observedGeneration": observed.generation,
            "conditions": tuple(sorted([*other_conditions, ready], key=lambda condition: condition.type)),
        }
    )


def moment(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(observed: Observation) -> tuple[State, str]:
    """Return the state of the run, and its reason."""
    problem = problems.problem(observed)
    if problem is not None and observed.own_cluster is None and not observed.is_recorded:
        return "Pending" if problem.reason == runs.CODE_MISSING else "Invalid", problem.message
    if observed.recorded is not None:
        waits = observed.waits
        if observed.own_cluster is None:
            waits = "" if observed.recorded.status.reason else "its pods are gone, and its controller is ending"
        status = ledger_status.reported(_ledger(observed, observed.recorded), waits)
        if status is not None:
            return cast(State, status.state.value.title()), status.reason
    if observed.read.spec is None or observed.read.job is None:
        return (observed.status.state if observed.status.started else "Invalid"), problem.message if problem else ""
    if observed.is_failing and (observed.own_cluster is not None or observed.spec.state == "Running"):
        return _overdue(observed)
    if observed.own_cluster is not None:
        return _of_ray_cluster(observed)
    if observed.spec.state != "Running":
        return observed.spec.state, ledger_status.stopped(observed.name, observed.spec.desired)
    if problem is None and observed.leftovers:
        return "Pending", _leaving("the pods of its former start are being removed", observed.leftovers)
    return "Pending", problem.message if problem else "its pods are about to be made"


def _ledger(observed: Observation, recorded: Snapshot) -> LedgerView:
    """Return the ledger's view of the run, with the state that its Run asks for."""
    if observed.own_cluster is not None or observed.read.spec is None:  # it stops when its pods are gone
        return LedgerView(recorded.status, alive=recorded.alive, begun=observed.begun)
    # A paused run is about to start again. Whether it is at all, a new Run of its name decides.
    again = not observed.is_recorded or observed.is_superseded or observed.is_stopping or observed.is_failing
    begun = math.inf if again and not recorded.status.state.is_ended and not recorded.alive else observed.begun
    return LedgerView(recorded.status, observed.spec.desired, recorded.alive, begun)


def _of_ray_cluster(observed: Observation) -> tuple[State, str]:
    """Return the state of a run that has a RayCluster and whose controller has reported nothing yet."""
    if observed.own_cluster is not None and metadata.is_deleted(observed.own_cluster):
        if observed.spec.state == "Running":
            return "Pending", _leaving("the pods of its former start are being removed", observed.leftovers)
        return observed.spec.state, _leaving("its pods are being removed", observed.leftovers)
    return "Pending", observed.waits or ("the controller is restarting" if observed.has_begun else ledger_status.STARTING)


def _overdue(observed: Observation) -> tuple[State, str]:
    """The state of a run whose deadline is over, with what it waited for."""
    before = observed.status
    if before.state == "Failed":
        return "Failed", before.reason
    waited = f"at last: {before.reason}" if before.state == "Pending" and before.reason else ""
    return "Failed", ledger_status.joined(observed.overdue, waited, f"`platform resume {observed.name}` starts it again")


def _conditions(observed: Observation, state: State, reason: str, now: float) -> Iterator[Condition]:
    """The conditions in the order of their names."""
    problem = problems.problem(observed)
    if problem is not None:
        yield _condition(observed, runs.ACCEPTED, "False", problem.reason, problem.message, now)
    elif observed.read.job is not None and observed.is_ignored:
        message = "spec.job was changed while the run works; the change counts when spec.resumes is raised"
        yield _condition(observed, runs.ACCEPTED, "False", "NeedsResume", message, now)
    else:
        yield _condition(observed, runs.ACCEPTED, "True", "Accepted", "", now)
    ended = state in _ENDED
    yield _condition(observed, runs.ENDED, "True" if ended else "False", state, reason if ended else "", now)
    recorded = observed.recorded.status if observed.recorded is not None else None
    is_working = observed.alive and observed.is_current and not observed.waits
    if is_working and recorded is not None and recorded.slots_ready >= recorded.slots:
        yield _condition(observed, runs.READY, "True", "Working", "", now)
    else:
        waits = observed.waits and observed.phase in (Phase.STARTING, Phase.OPENING, Phase.RUNNING, Phase.LOST)
        suspended = waits and (observed.own_cluster or {}).get("spec", {}).get("suspend")
        word = "Queued" if suspended else "PodsWaiting" if waits else state
        yield _condition(observed, runs.READY, "False", word, reason, now)


def _condition(observed: Observation, kind: str, holds: Holds, reason: str, message: str, now: float) -> Condition:
    before = next((condition for condition in observed.status.conditions if condition.type == kind), None)
    changed = moment(now) if before is None or before.status != holds else before.lastTransitionTime
    fields: dict[str, Any] = {"lastTransitionTime": changed, "observedGeneration": observed.generation}
    return Condition(type=kind, status=holds, reason=reason, message=message, **fields)


def _best(recorded: RunStatus) -> str:
    if recorded.best is None:
        return ""
    pairs = zip(recorded.objectives, recorded.best.values, strict=False)
    return ", ".join(f"{name}={value:.5g}" for name, value in pairs)


def _leaving(text: str, pods: Sequence[str]) -> str:
    """Return a text about pods that are being removed."""
    if not pods:
        return text
    return f"{text}: {_some(pods)}; `kubectl delete pod NAME --force` removes one whose node is lost"


def _some(pods: Sequence[str]) -> str:
    return ", ".join(pods[:3]) + (", …" if len(pods) > 3 else "")
