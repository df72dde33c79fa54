"""Decisions on a Run: a table has the steps for its phase and its goal, and a step is a function that returns actions. Pure.

Some upkeep is done in any phase and for any goal. `OUTSIDE` lists what the operator does without a decision of this module.

Each action may be repeated, and the operator may be killed between any two actions: after a new observation, the remaining
actions follow. So a start is recorded before its RayCluster is created, the RayCluster is created last, and a stop is
recorded in the ledger before anything is removed. A stop is completed before the run continues.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from trialplane.kube import metadata
from trialplane.plan import raycluster
from trialplane.plan.run import Image
from trialplane.reconciler import problems, spec_changes
from trialplane.reconciler.observation import Observation, Phase
from trialplane.wire import cluster as names
from trialplane.wire.records import Change
from trialplane.wire.states import RunState


@dataclasses.dataclass(frozen=True)
class Record:
    """Write the submission to the ledger. With `new`, no run may have its name."""

    new: bool


@dataclasses.dataclass(frozen=True)
class Desire:
    """Change fields of the desired state in the ledger."""

    changed: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Adopt:
    """Make the Run the owner of the ConfigMaps with its code, which are then deleted with it."""


@dataclasses.dataclass(frozen=True)
class CreateSpec:
    """Create the ConfigMap with the spec, which the pods read."""


@dataclasses.dataclass(frozen=True)
class Admit:
    """Create a new token for the controller, in a Secret of the run. The ledger then accepts no other."""


@dataclasses.dataclass(frozen=True)
class Enclose:
    """Renew the network policies of a run's pods after a change of the chart's values."""


@dataclasses.dataclass(frozen=True)
class Revoke:
    """Revoke the run's token."""


@dataclasses.dataclass(frozen=True)
class Start:
    """Create the network policies, and then the RayCluster for whose pods they are."""


@dataclasses.dataclass(frozen=True)
class Resize:
    """Patch the RayCluster to another number of pods."""

    patch: tuple[Mapping[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class KeepImages:
    """Write the digests of its pods' images to the ledger, where they stay after the Run is deleted."""

    images: tuple[Image, ...]


@dataclasses.dataclass(frozen=True)
class Remove:
    """Delete the RayCluster, with its pods, and the ConfigMap with the spec."""


@dataclasses.dataclass(frozen=True)
class NoteChange:
    """Record who changed what of the Run's spec, and when."""

    change: Change


Action = Record | Desire | Adopt | CreateSpec | Admit | Enclose | Revoke | Start | Resize | KeepImages | Remove | NoteChange


class Goal(enum.StrEnum):
    """Goal for a Run, from its spec, its deadlines and the desired state in the ledger."""

    RUN = "run"
    RESUME = "resume"
    RESTART = "restart"
    FAIL = "fail"
    STOP = "stop"
    STOP_NOW = "stop now"
    REFUSE = "refuse"


# The texts in GOALS, STEPS, UPKEEP and OUTSIDE are for the documentation.
GOALS: Mapping[Goal, str] = {
    Goal.RUN: "`spec.state` is `Running`.",
    Goal.RESUME: "`spec.resumes` was raised since the last start.",
    Goal.RESTART: "`spec.state` is `Running` again. The ledger still has a stop, which is completed first.",
    Goal.FAIL: "A deadline of the job is over.",
    Goal.STOP: "`spec.state` is `Paused` or `Cancelled`.",
    Goal.STOP_NOW: "The same, with `spec.now`.",
    Goal.REFUSE: "The spec is invalid, its name is taken, or its code is missing or different.",
}


class Step(enum.StrEnum):
    """Step toward the goal: actions, or none if they are done already."""

    START = "start"
    RESTORE = "restore"
    FOLLOW = "follow"
    DESIRE_STOP = "desire stop"
    DESIRE_FAILURE = "desire failure"
    REMOVE = "remove"
    EXPIRE = "expire"
    TIDY = "tidy"
    ADOPT = "adopt"


STEPS: Mapping[Step, str] = {
    Step.START: "Record the submission, desire `RUNNING`, adopt the code, create spec, Secrets and token, then RayCluster.",
    Step.RESTORE: "Create the spec or the token again if somebody removed it.",
    Step.FOLLOW: "Copy `spec.parallel` to the ledger, then scale the RayCluster once the controller has reacted.",
    Step.DESIRE_STOP: "Write the stop to the ledger, where the controller reads it.",
    Step.DESIRE_FAILURE: "Write the failure to the ledger, where the controller reads it.",
    Step.REMOVE: "Delete the RayCluster, with its pods, and the spec's ConfigMap.",
    Step.EXPIRE: "The same, once `cluster.ttl` is over.",
    Step.TIDY: "Delete the spec's ConfigMap if it is left.",
    Step.ADOPT: "Make the Run the owner of its code, which is then removed with it.",
}

# In the order in which `decide` takes them; the first two before the steps.
UPKEEP: Mapping[str, str] = {
    "note change": "Write a change of the spec to the ledger and to an Event, with its user and time.",
    "enclose": "Renew the network policies of the pods after a change of the chart's values.",
    "keep images": "Write new digests of the images of the pods to the ledger.",
    "revoke": "Revoke the run's token when no controller works or is to be started.",
}
OUTSIDE: Mapping[str, str] = {
    "remove files": "`platform delete`: remove the RayCluster if it is left, the run's files in each claim with a pod, and "
    "then its record in the ledger. A Run of the same name waits.",
    "revoke": "A Run was deleted with `kubectl`: revoke the token, note the deletion, and keep the record.",
    "expire Run": "`operator.runTtl` is over since the end: delete the Run. The record stays.",
    "report": "After each look: write `status` if it differs, also while the ledger or the API server refuses something.",
}

_ENDS = ("Succeeded", "Failed", "Cancelled", "Paused")
_WAIT: tuple[Step, ...] = ()
_START = (Step.START,)
_RESTORE = (Step.RESTORE,)
_STOP = (Step.DESIRE_STOP,)
_STOP_TIDY = (Step.DESIRE_STOP, Step.TIDY)
_STOP_REMOVE = (Step.DESIRE_STOP, Step.REMOVE)
_FAIL = (Step.DESIRE_FAILURE,)
_FAIL_REMOVE = (Step.DESIRE_FAILURE, Step.REMOVE)
_REMOVE = (Step.REMOVE,)
_EXPIRE = (Step.EXPIRE,)
_TIDY = (Step.TIDY,)

# fmt: off
_ROWS: Mapping[Phase, tuple[tuple[Step, ...], ...]] = {
    #                run             resume   restart  fail          stop          stop now      refuse
    Phase.ABSENT:   (_START,         _START,  _START,  _TIDY,        _STOP_TIDY,   _STOP_TIDY,   (Step.ADOPT,)),
    Phase.LEAVING:  (_WAIT,          _WAIT,   _WAIT,   _WAIT,        _STOP,        _STOP,        _WAIT),
    Phase.STARTING: (_RESTORE,       _REMOVE, _REMOVE, _FAIL_REMOVE, _STOP_REMOVE, _STOP_REMOVE, _WAIT),
    Phase.OPENING:  (_RESTORE,       _WAIT,   _WAIT,   _FAIL,        _STOP,        _STOP_REMOVE, _WAIT),
    Phase.RUNNING:  ((Step.FOLLOW,), _WAIT,   _WAIT,   _FAIL,        _STOP,        _STOP_REMOVE, _WAIT),
    Phase.LOST:     (_RESTORE,       _WAIT,   _REMOVE, _FAIL_REMOVE, _STOP_REMOVE, _STOP_REMOVE, _WAIT),
    Phase.ENDED:    (_EXPIRE,        _REMOVE, _REMOVE, _EXPIRE,      _STOP_REMOVE, _STOP_REMOVE, _EXPIRE),
    Phase.GONE:     (_TIDY,          _START,  _START,  _TIDY,        _STOP_TIDY,   _STOP_TIDY,   (Step.ADOPT, Step.TIDY)),
}
# fmt: on
TABLE: Mapping[Phase, Mapping[Goal, tuple[Step, ...]]] = {
    phase: dict(zip(Goal, row, strict=True)) for phase, row in _ROWS.items()
}


def goal(observed: Observation) -> Goal:
    """Return the goal for a Run; `GOALS` has the meaning of each. The order of the checks is their priority."""
    if observed.parsed.spec is None:
        return Goal.REFUSE
    if observed.spec.desired is not RunState.RUNNING:  # a run with a problem can be stopped, too
        return Goal.STOP_NOW if observed.spec.now else Goal.STOP
    if problems.problem(observed) is not None:
        return Goal.REFUSE
    if observed.is_stopping:  # even if the run is also resumed, because its controller must end first
        return Goal.RESTART
    if observed.is_superseded:
        return Goal.RESUME
    return Goal.FAIL if observed.is_failing else Goal.RUN


def is_due(observed: Observation) -> bool:
    """Whether the run must be started now."""
    return not observed.is_deleted and Step.START in TABLE[observed.phase][goal(observed)]


def decide(observed: Observation) -> tuple[Action, ...]:
    """Return the actions that are due now. Empty if there is nothing to do, or if something else must happen first."""
    actions: list[Action] = []
    if not observed.is_deleted:
        # A change is noted first, because the API server may refuse the following actions.
        actions += [*_note_change(observed), *_enclose(observed)]
        for step in TABLE[observed.phase][goal(observed)]:
            actions += _ACTIONS[step](observed)
    actions += _keep_images(observed)
    if Start() not in actions:  # a start needs the token that it creates
        actions += _revoke(observed)
    return tuple(actions)


def _note_change(observed: Observation) -> tuple[Action, ...]:
    """Return the action that notes a change of the spec, if the ledger does not have it."""
    change = spec_changes.unrecorded_change(observed)
    return () if change is None else (NoteChange(change),)


def _enclose(observed: Observation) -> tuple[Action, ...]:
    """Return the action that renews a RayCluster's network policies, if they differ from those of the chart's values."""
    if observed.own_cluster is None or metadata.is_deleted(observed.own_cluster):
        return ()
    applied = metadata.annotations_of(observed.own_cluster).get(names.NETWORK_HASH)  # digest of the policies in the cluster
    return () if applied == observed.network else (Enclose(),)


def _keep_images(observed: Observation) -> tuple[Action, ...]:
    """Return the action that writes digests of images to the ledger, if it lacks some."""
    if observed.record is None or not observed.is_recorded:
        return ()
    recorded_images = observed.record.images
    images = tuple(image for image in observed.images if image.digest not in recorded_images.get(image.image, ()))
    return (KeepImages(images),) if images else ()


def _revoke(observed: Observation) -> tuple[Action, ...]:
    """Return the action that revokes the run's token, if no controller works or may still start."""
    # In the phase LOST, KubeRay may start the controller again.
    needs_token = observed.is_alive or observed.phase in (Phase.STARTING, Phase.OPENING, Phase.LOST)
    has_token = observed.record is not None and observed.record.token is not None
    return (Revoke(),) if has_token and not needs_token else ()


def _start(observed: Observation) -> tuple[Action, ...]:
    """Return the actions of a start, in an order that may be interrupted and repeated: the RayCluster comes last."""
    desire = Desire({"state": RunState.RUNNING, "parallel": observed.spec.parallel})
    return (Record(new=observed.record is None), desire, Adopt(), CreateSpec(), Admit(), Start())


def _restore(observed: Observation) -> tuple[Action, ...]:
    """Return the actions that create the spec and the token again if somebody removed them."""
    actions: list[Action] = []
    if not observed.has_spec:
        actions.append(CreateSpec())
    if observed.lacks_token:
        actions.append(Admit())  # creates a token
    return tuple(actions)


def _follow(observed: Observation) -> tuple[Action, ...]:
    """Return the action that changes the number of pods: first in the ledger for the controller, then in the RayCluster."""
    if observed.record is None:
        return ()
    if observed.record.desired.parallel != observed.spec.parallel:  # the pods follow when the controller has reacted
        return (Desire({"parallel": observed.spec.parallel}),)
    patch = _resize_patch(observed)
    return (Resize(tuple(patch)),) if patch else ()


def _desire_stop(observed: Observation) -> tuple[Action, ...]:
    """Return the action that records the stop in the ledger.

    Empty if the Run has no record, if the record has this stop already, or a cancellation, which is final, or if the run has
    ended.
    """
    if observed.record is None or observed.desired_state is None:  # no record, or one of another Run
        return ()
    if observed.desired_state in (observed.spec.desired, RunState.CANCELLED):
        return ()
    has_ended = observed.is_status_current and observed.record.status.state.is_ended
    return () if has_ended else (Desire({"state": observed.spec.desired}),)


def _desire_failure(observed: Observation) -> tuple[Action, ...]:
    """Return the action that records the failure in the ledger, unless the ledger has it."""
    return () if observed.desired_state is RunState.FAILED else (Desire({"state": RunState.FAILED}),)


def _remove(observed: Observation) -> tuple[Action, ...]:
    return (Remove(),)


def _expire(observed: Observation) -> tuple[Action, ...]:
    """Return the action that removes an ended run's objects after its time to live (`cluster.ttl` of the job).

    The time begins when the operator has written the end into the Run's status. The job is that of the last start, even if
    the spec is invalid now.

    Returns:
        The action. Empty if the status does not have the end of the last start yet, or if the time is not over.
    """
    status = observed.status
    is_of_last_start = status.resumes == observed.cluster_resumes
    if not status.since or not is_of_last_start or status.state not in _ENDS:
        return ()
    ttl = 0.0  # of a run whose job is unknown
    if observed.parsed.job is not None:
        ttl = observed.started_job.cluster.ttl
    elif observed.record is not None:
        ttl = observed.record.job.cluster.ttl
    ended_at = metadata.timestamp(status.since) or 0.0
    return (Remove(),) if observed.now >= ended_at + ttl else ()


def _tidy(observed: Observation) -> tuple[Action, ...]:
    """Return the action that removes the spec's ConfigMap if it still exists."""
    return (Remove(),) if observed.has_spec else ()


def _adopt(observed: Observation) -> tuple[Action, ...]:
    """Return the action that makes the Run the owner of all ConfigMaps with its code, unless it is already."""
    return (Adopt(),) if observed.has_orphans else ()


_ACTIONS: Mapping[Step, Callable[[Observation], tuple[Action, ...]]] = {
    Step.START: _start,
    Step.RESTORE: _restore,
    Step.FOLLOW: _follow,
    Step.DESIRE_STOP: _desire_stop,
    Step.DESIRE_FAILURE: _desire_failure,
    Step.REMOVE: _remove,
    Step.EXPIRE: _expire,
    Step.TIDY: _tidy,
    Step.ADOPT: _adopt,
}


def _resize_patch(observed: Observation) -> list[dict[str, Any]]:
    """Return the JSON patch that gives the job's first role the number of pods in the spec.

    A pod with a slot may run a trial. So pods are removed only after the controller has reported the new number of slots,
    and only pods without a slot. With `spec.now`, any pods are removed at once.

    Returns:
        The patch. Empty if the number is right, if the removal of pods must wait for the controller, or if the RayCluster
        has no pods of this role.
    """
    if observed.ray_cluster is None or observed.record is None:
        return []
    cluster_spec = observed.ray_cluster["spec"]
    job, status, is_immediate = observed.started_job, observed.record.status, observed.spec.now
    parallel = observed.spec.parallel or job.width
    role = job.widened(parallel).roles()[0]
    group = cluster_spec["workerGroupSpecs"][0]
    if group["groupName"] != names.group(role.name):  # somebody has changed the RayCluster
        return []
    surplus = max(0, len(observed.pods) - role.pods)
    has_controller_reacted = status.parallel == parallel
    if surplus and not has_controller_reacted and not is_immediate:
        return []
    removable = [pod for pod in observed.pods if is_immediate or pod not in status.nodes]  # `nodes`: pods with a slot
    pods_to_remove = removable[:surplus]
    # Not below the number of remaining pods, because Ray's autoscaler would remove even a pod that runs a trial.
    pod_count = max(role.pods, len(observed.pods) - len(pods_to_remove))
    has_autoscaler = bool(cluster_spec.get("enableInTreeAutoscaling"))
    replicas = raycluster.Replicas.of(pod_count, has_autoscaler)
    new_values: dict[str, Any] = {"maxReplicas": replicas.maximum}
    if not has_autoscaler:  # the autoscaler itself removes pods that have not started, and then idle ones
        new_values |= {"minReplicas": replicas.minimum, "replicas": replicas.initial}
    if all(group.get(name) == value for name, value in new_values.items()):
        return []
    if not has_autoscaler:
        # Without this list, KubeRay would choose pods by itself, even those with a trial. An old list is replaced.
        new_values["scaleStrategy"] = {"workersToDelete": pods_to_remove}
    return _first_group_patch(names.group(role.name), new_values)


def _first_group_patch(group_name: str, new_values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON patch that sets fields of the first worker group of a RayCluster."""
    group_path = "/spec/workerGroupSpecs/0"
    # With this test, the API server refuses the patch if the RayCluster has another group at this position by then.
    test = {"op": "test", "path": f"{group_path}/groupName", "value": group_name}
    return [test, *({"op": "add", "path": f"{group_path}/{name}", "value": value} for name, value in new_values.items())]
