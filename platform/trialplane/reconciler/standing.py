"""Status of a Run, from an observation of it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from trialplane.kube import metadata
from trialplane.ledger import standing as ledger_standing
from trialplane.plan import run as runs
from trialplane.plan.run import Condition, State, Status
from trialplane.reconciler import problems
from trialplane.reconciler.observation import Observation, Phase
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

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
    known = observed.recorded.status if observed.is_recorded and observed.recorded is not None else None
    job, current = observed.read.job, known if observed.is_current else None
    total = current.trials if current else job.trials if job else before.total
    ended = known.ended_trials if known else before.ended
    reason = reason[:LONGEST]
    return Status(
        state=state,
        reason=reason,
        ended=ended,
        total=total,
        progress=f"{ended}/{total}" if total else "",
        best=(_best(known) if known else before.best)[:LONGEST],
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
    kept = [one for one in observed.status.conditions if one.type != runs.READY]
    ready = _condition(observed, runs.READY, "False", reason, message, now)
    return observed.status.model_copy(
        update={
            "reason": message,
            "since": observed.status.since or moment(now),
            "observedGeneration": observed.generation,
            "conditions": tuple(sorted([*kept, ready], key=lambda one: one.type)),
        }
    )


def moment(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(observed: Observation) -> tuple[State, str]:
    """The state, and why it is that."""
    problem, known = problems.problem(observed), observed.recorded.status if observed.recorded is not None else None
    if problem is not None and observed.mine is None and not observed.is_recorded:
        return "Pending" if problem.reason == runs.CODE_MISSING else "Invalid", problem.message
    if observed.read.spec is None or observed.read.job is None:
        if observed.is_current and known is not None:
            return _named(known.state), known.reason
        return (observed.status.state if observed.status.started else "Invalid"), problem.message if problem else ""
    if observed.mine is not None:
        return _of_ray_cluster(observed, known)
    if observed.alive and known is not None:
        return _named(known.state), known.reason or "its pods are gone, and its controller is ending"
    if known is not None and observed.is_current and known.state.is_ended:
        return _named(known.state), known.reason
    if observed.asked.state != "Running":
        return observed.asked.state, ledger_standing.stopped(observed.name, observed.asked.desired)
    if observed.is_failing:
        return _overdue(observed)
    has_paused = observed.is_recorded and observed.is_current  # by itself, unless it is to stop or was resumed since
    if known is not None and has_paused and not observed.is_superseded and not observed.is_stopping:
        return _named(known.state), known.reason
    if problem is None and observed.leftovers:
        return "Pending", _leaving("the pods of its former start are being removed", observed.leftovers)
    return "Pending", problem.message if problem else "its pods are about to be made"


def _of_ray_cluster(observed: Observation, known: RunStatus | None) -> tuple[State, str]:
    """The state of a run that has a RayCluster."""
    if observed.is_current and known is not None:
        return _named(known.state), _joined(known.reason, observed.why if observed.alive else "")
    if observed.is_failing:
        return _overdue(observed)
    if observed.mine is not None and metadata.is_deleted(observed.mine):
        if observed.asked.state == "Running":
            return "Pending", _leaving("the pods of its former start are being removed", observed.leftovers)
        return observed.asked.state, _leaving("its pods are being removed", observed.leftovers)
    return "Pending", observed.why or f"the controller is {'restarting' if observed.has_begun else 'starting'}"


def _overdue(observed: Observation) -> tuple[State, str]:
    """The state of a run whose deadline is over, with what it waited for."""
    before = observed.status
    if before.state == "Failed":
        return "Failed", before.reason
    waited = f"at last: {before.reason}" if before.state == "Pending" and before.reason else ""
    return "Failed", _joined(observed.overdue, waited, f"`platform resume {observed.name}` starts it again")


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
    known = observed.recorded.status if observed.recorded is not None else None
    is_working = observed.alive and observed.is_current and not observed.why
    if is_working and known is not None and known.slots_ready >= known.slots:
        yield _condition(observed, runs.READY, "True", "Working", "", now)
    else:
        waits = observed.why and observed.phase in (Phase.STARTING, Phase.OPENING, Phase.RUNNING, Phase.LOST)
        suspended = waits and (observed.mine or {}).get("spec", {}).get("suspend")
        why = "Queued" if suspended else "PodsWaiting" if waits else state
        yield _condition(observed, runs.READY, "False", why, reason, now)


def _condition(observed: Observation, kind: str, holds: Holds, reason: str, message: str, now: float) -> Condition:
    before = next((one for one in observed.status.conditions if one.type == kind), None)
    changed = moment(now) if before is None or before.status != holds else before.lastTransitionTime
    fields: dict[str, Any] = {"lastTransitionTime": changed, "observedGeneration": observed.generation}
    return Condition(type=kind, status=holds, reason=reason, message=message, **fields)


def _best(known: RunStatus) -> str:
    if known.best is None:
        return ""
    pairs = zip(known.objectives, known.best.values, strict=False)
    return ", ".join(f"{name}={value:.5g}" for name, value in pairs)


def _named(state: RunState) -> State:
    return cast(State, state.value.title())


def _leaving(what: str, pods: Sequence[str]) -> str:
    """What is said of pods that are being removed."""
    if not pods:
        return what
    return f"{what}: {_some(pods)}; `kubectl delete pod NAME --force` removes one whose node is lost"


def _some(pods: Sequence[str]) -> str:
    return ", ".join(pods[:3]) + (", …" if len(pods) > 3 else "")


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
