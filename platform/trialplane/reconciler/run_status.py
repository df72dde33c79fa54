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

LONGEST = 2000  # limit of a reason's characters, which a controller may choose; the API server allows 32,768 in a condition
ConditionValue = Literal["True", "False"]
_ENDED = ("Succeeded", "Failed", "Cancelled")


def status(observed: Observation, now: float) -> Status:
    """Return the status that the Run should have.

    Args:
        observed: Observation of a Run that needs no action of the reconciler.
        now: Current time, in seconds since the epoch.
    """
    state, reason = _state(observed)
    reason = reason[:LONGEST]
    old_status, job = observed.status, observed.parsed.job
    own_record = observed.own_record
    recorded_status = own_record.status if own_record else None
    # The number of ended trials and the best value are those of all starts. The total may differ in the job of the last one.
    ended = recorded_status.ended_trials if recorded_status else old_status.ended
    if recorded_status and observed.is_status_current:
        total = recorded_status.trials
    else:  # the last start has not written a status yet
        total = job.trials if job else old_status.total
    best = _best(recorded_status) if recorded_status else old_status.best
    is_same_state = old_status.state == state
    return Status(
        state=state,
        reason=reason,
        ended=ended,
        total=total,
        progress=f"{ended}/{total}" if total else "",
        best=best[:LONGEST],
        since=old_status.since if is_same_state and old_status.since else moment(now),
        started=observed.started_at,
        resumes=observed.last_resumes,
        observedGeneration=observed.generation,
        images=observed.images,
        conditions=tuple(_conditions(observed, state, reason, now)),
    )


def with_reason(observed: Observation, reason: str, message: str, now: float) -> Status:
    """Return the old status with the reason why the Run cannot be observed or reconciled at the moment.

    Args:
        observed: Observation of the Run, which may be incomplete.
        reason: Reason in one word, for programs.
        message: Message for people.
        now: Current time, in seconds since the epoch.
    """
    other_conditions = [condition for condition in observed.status.conditions if condition.type != runs.READY]
    ready = _condition(observed, kind=runs.READY, value="False", reason=reason, message=message, now=now)
    return observed.status.model_copy(
        update={
            "reason": message,
            "since": observed.status.since or moment(now),
            "observedGeneration": observed.generation,
            "conditions": tuple(sorted([*other_conditions, ready], key=lambda condition: condition.type)),
        }
    )


def moment(seconds: float) -> str:
    """Return a time in Kubernetes' format, from seconds since the epoch."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(observed: Observation) -> tuple[State, str]:
    """Return the state of the run, and its reason, which may be "".

    The ledger's record has priority. Without a status in it, the state follows from the spec and the RayCluster.
    """
    problem = problems.problem(observed)
    was_started = observed.own_cluster is not None or observed.is_recorded
    if problem is not None and not was_started:
        return "Pending" if problem.reason == runs.CODE_MISSING else "Invalid", problem.message
    if observed.record is not None:
        wait_reason = observed.wait_reason
        if observed.own_cluster is None:  # a controller that still works will end soon
            wait_reason = "" if observed.record.status.reason else "its pods are gone, and its controller is ending"
        status = ledger_status.reported_status(_ledger_view(observed, observed.record), wait_reason)
        if status is not None:
            return cast(State, status.state.value.title()), status.reason
    if observed.parsed.spec is None or observed.parsed.job is None:  # the spec was valid when the run was started
        last_state = observed.status.state if observed.status.started else "Invalid"
        return last_state, problem.message if problem else ""
    is_stopped = observed.own_cluster is None and observed.spec.state != "Running"  # by the user, and its pods are gone
    if is_stopped:
        return observed.spec.state, ledger_status.stop_reason(observed.name, observed.spec.desired)
    if observed.is_failing:
        return _failed_state(observed)
    if observed.own_cluster is not None:
        return _ray_cluster_state(observed)
    if problem is None and observed.leftovers:
        return "Pending", _removal_text("the pods of its former start are being removed", observed.leftovers)
    return "Pending", problem.message if problem else "its pods are about to be created"


def _ledger_view(observed: Observation, record: Snapshot) -> LedgerView:
    """Return the state of the run as the ledger has it, but with the desired state of the spec if there is no RayCluster.

    With a RayCluster, a stop in the spec is left out, because the run counts as stopped only when its pods are gone.
    """
    if observed.own_cluster is not None or observed.parsed.spec is None:
        # A run that is resumed while its former pods are being removed has not ended: its next start is still to come.
        is_resumed = observed.parsed.spec is not None and observed.spec.state == "Running" and observed.is_superseded
        begun = math.inf if is_resumed and not record.alive else observed.last_start_time
        return LedgerView(record.status, alive=record.alive, begun=begun)
    # The operator is about to start the run, or to complete its stop or failure.
    is_change_due = not observed.is_recorded or observed.is_superseded or observed.is_stopping or observed.is_failing
    is_status_outdated = is_change_due and not record.status.state.is_ended and not record.alive
    # Infinity: every status in the ledger is from before this time, and so does not count.
    begun = math.inf if is_status_outdated else observed.last_start_time
    return LedgerView(record.status, desired=observed.spec.desired, alive=record.alive, begun=begun)


def _ray_cluster_state(observed: Observation) -> tuple[State, str]:
    """Return the state, and its reason, of a run with a RayCluster whose controller has not reported a status yet."""
    if observed.own_cluster is not None and metadata.is_deleted(observed.own_cluster):
        if observed.spec.state == "Running":
            return "Pending", _removal_text("the pods of its former start are being removed", observed.leftovers)
        return observed.spec.state, _removal_text("its pods are being removed", observed.leftovers)
    if observed.wait_reason:
        return "Pending", observed.wait_reason
    return "Pending", "the controller is restarting" if observed.has_begun else ledger_status.STARTING


def _failed_state(observed: Observation) -> tuple[State, str]:
    """Return the state of a run that failed because of a deadline, and its reason, with the reason of its last wait."""
    old_status = observed.status
    if old_status.state == "Failed":
        return "Failed", old_status.reason
    waiting_for = f"at last: {old_status.reason}" if old_status.state == "Pending" and old_status.reason else ""
    remedy = f"`platform resume {observed.name}` starts it again"
    return "Failed", ledger_status.join_reasons(observed.passed_deadline, waiting_for, remedy)


def _conditions(observed: Observation, state: State, reason: str, now: float) -> Iterator[Condition]:
    """Yield the conditions of the status, ordered by their types."""
    problem = problems.problem(observed)
    if problem is not None:
        yield _condition(
            observed, kind=runs.ACCEPTED, value="False", reason=problem.reason, message=problem.message, now=now
        )
    elif observed.parsed.job is not None and observed.has_unapplied_job:
        message = "spec.job was changed while the run works; the change applies when spec.resumes is raised"
        yield _condition(observed, kind=runs.ACCEPTED, value="False", reason="NeedsResume", message=message, now=now)
    else:
        yield _condition(observed, runs.ACCEPTED, "True", "Accepted", message="", now=now)
    is_ended = state in _ENDED
    yield _condition(
        observed,
        kind=runs.ENDED,
        value="True" if is_ended else "False",
        reason=state,
        message=reason if is_ended else "",
        now=now,
    )
    recorded_status = observed.record.status if observed.record is not None else None
    is_working = observed.is_alive and observed.is_status_current and not observed.wait_reason
    has_all_slots = recorded_status is not None and recorded_status.slots_ready >= recorded_status.slots
    if is_working and has_all_slots:
        yield _condition(observed, runs.READY, "True", "Working", message="", now=now)
    else:
        needs_pods = observed.phase in (Phase.STARTING, Phase.OPENING, Phase.RUNNING, Phase.LOST)
        reason_word: str = state
        if observed.wait_reason and needs_pods:
            is_suspended = (observed.own_cluster or {}).get("spec", {}).get("suspend")  # by Kueue, until there is room
            reason_word = "Queued" if is_suspended else "PodsWaiting"
        yield _condition(observed, kind=runs.READY, value="False", reason=reason_word, message=reason, now=now)


def _condition(observed: Observation, kind: str, value: ConditionValue, reason: str, message: str, now: float) -> Condition:
    """Return a condition. Its transition time is `now` if the old status has another value or no such condition."""
    old = next((condition for condition in observed.status.conditions if condition.type == kind), None)
    transition_time = moment(now) if old is None or old.status != value else old.lastTransitionTime
    fields: dict[str, Any] = {"lastTransitionTime": transition_time, "observedGeneration": observed.generation}
    return Condition(type=kind, status=value, reason=reason, message=message, **fields)


def _best(status: RunStatus) -> str:
    """Return the objectives of the best trial in words, or ""."""
    if status.best is None:
        return ""
    pairs = zip(status.objectives, status.best.values, strict=False)
    return ", ".join(f"{name}={value:.5g}" for name, value in pairs)


def _removal_text(text: str, pods: Sequence[str]) -> str:
    """Return a text about pods that are being removed, with up to three of their names."""
    if not pods:
        return text
    pod_names = ", ".join(pods[:3]) + (", …" if len(pods) > 3 else "")
    return f"{text}: {pod_names}; `kubectl delete pod NAME --force` removes one whose node is lost"
