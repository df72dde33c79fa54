"""The status of a Run, from what there is of it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from trialplane.kube import metadata
from trialplane.plan import run as runs
from trialplane.plan.run import Condition, State, Status
from trialplane.reconciler.view import View
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

LONGEST = 2000  # characters of a reason, which a controller may have chosen; of a condition the API server takes 32,768
Holds = Literal["True", "False"]
_ENDED = ("Succeeded", "Failed", "Cancelled")


def status(view: View, now: float) -> Status:
    """The status that the Run should have.

    Args:
        view: of the Run, when there is nothing left to do.
        now: seconds since the epoch.
    """
    state, reason = _state(view)
    before, known = view.status, view.recorded.status if view.is_recorded and view.recorded is not None else None
    job, current = view.read.job, known if view.is_current else None
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
        started=view.started,
        resumes=view.resumes,
        observedGeneration=view.generation,
        images=view.images,
        conditions=tuple(_conditions(view, state, reason, now)),
    )


def explained(view: View, reason: str, message: str, now: float) -> Status:
    """The status as it was, with what keeps the reconciler from knowing more or doing more.

    Args:
        view: of the Run.
        reason: in one word.
        message: for people.
        now: seconds since the epoch.
    """
    kept = [one for one in view.status.conditions if one.type != runs.READY]
    ready = _condition(view, runs.READY, "False", reason, message, now)
    return view.status.model_copy(
        update={
            "reason": message,
            "since": view.status.since or moment(now),
            "observedGeneration": view.generation,
            "conditions": tuple(sorted([*kept, ready], key=lambda one: one.type)),
        }
    )


def moment(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(view: View) -> tuple[State, str]:
    """The state, and why it is that."""
    problem, known = view.problem, view.recorded.status if view.recorded is not None else None
    if problem is not None and view.mine is None and not view.is_recorded:
        return "Pending" if problem.reason == runs.CODE_MISSING else "Invalid", problem.message
    if view.read.spec is None or view.read.job is None:
        if view.is_current and known is not None:
            return _named(known.state), known.reason
        return (view.status.state if view.status.started else "Invalid"), problem.message if problem else ""
    if view.mine is not None:
        return _of_ray_cluster(view, known)
    if view.alive and known is not None:
        return _named(known.state), known.reason or "its pods are gone, and its controller is ending"
    if known is not None and view.is_current and known.state.is_ended:
        return _named(known.state), known.reason
    wanted = view.asked.state
    if wanted != "Running":
        again = f"`platform resume {view.name}` continues it"
        return wanted, f"paused by the user; {again}" if wanted == "Paused" else "cancelled by the user"
    if view.overdue or view.is_failing:
        return _overdue(view)
    if view.is_settled:
        if known is not None and view.is_current:
            return _named(known.state), known.reason
        return view.status.state, view.status.reason
    if problem is None and view.leftovers:
        return "Pending", _leaving("the pods of its former start are being removed", view.leftovers)
    return "Pending", problem.message if problem else "its pods are about to be made"


def _of_ray_cluster(view: View, known: RunStatus | None) -> tuple[State, str]:
    """The state of a run that has a RayCluster."""
    if view.is_current and known is not None:
        return _named(known.state), _joined(known.reason, view.why if view.alive else "")
    if view.overdue or view.is_failing:
        return _overdue(view)
    if view.mine is not None and metadata.is_deleted(view.mine):
        if view.asked.state == "Running":
            return "Pending", _leaving("the pods of its former start are being removed", view.leftovers)
        return view.asked.state, _leaving("its pods are being removed", view.leftovers)
    return "Pending", view.why or f"the controller is {'restarting' if view.has_begun else 'starting'}"


def _overdue(view: View) -> tuple[State, str]:
    """The state of a run whose deadline is over, with what it waited for."""
    before = view.status
    if before.state == "Failed":
        return "Failed", before.reason
    waited = f"at last: {before.reason}" if before.state == "Pending" and before.reason else ""
    return "Failed", _joined(view.overdue, waited, f"`platform resume {view.name}` starts it again")


def _conditions(view: View, state: State, reason: str, now: float) -> Iterator[Condition]:
    """The conditions in the order of their names."""
    problem = view.problem
    if problem is not None:
        yield _condition(view, runs.ACCEPTED, "False", problem.reason, problem.message, now)
    elif view.read.job is not None and view.is_ignored:
        message = "spec.job was changed while the run works; the change counts when spec.resumes is raised"
        yield _condition(view, runs.ACCEPTED, "False", "NeedsResume", message, now)
    else:
        yield _condition(view, runs.ACCEPTED, "True", "Accepted", "", now)
    ended = state in _ENDED
    yield _condition(view, runs.ENDED, "True" if ended else "False", state, reason if ended else "", now)
    known = view.recorded.status if view.recorded is not None else None
    works = view.alive and view.is_current and known is not None and known.slots_ready >= known.slots and not view.why
    if works:
        yield _condition(view, runs.READY, "True", "Working", "", now)
    else:
        waits = view.mine is not None and not view.is_over and view.why
        suspended = waits and (view.mine or {}).get("spec", {}).get("suspend")
        why = "Queued" if suspended else "PodsWaiting" if waits else state
        yield _condition(view, runs.READY, "False", why, reason, now)


def _condition(view: View, kind: str, holds: Holds, reason: str, message: str, now: float) -> Condition:
    before = next((one for one in view.status.conditions if one.type == kind), None)
    changed = moment(now) if before is None or before.status != holds else before.lastTransitionTime
    fields: dict[str, Any] = {"lastTransitionTime": changed, "observedGeneration": view.generation}
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
