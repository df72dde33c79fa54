"""Decisions on a Run: its phase and its goal choose steps from a table, and steps are actions. Pure.

Upkeep comes with any phase and goal. `OUTSIDE` lists what the operator does without a decision of this module.

Each action may be done twice. Between any two actions the reconciler may be killed; what it then observes makes it go on.
So a start is recorded before its RayCluster is made, the RayCluster is made last, and a stop is in the ledger before
anything is removed. A stop that was begun is completed before the run goes on.
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
class Describe:
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
    """Write the digests of the images of its pods to the ledger, where they stay after the Run is deleted."""

    images: tuple[Image, ...]


@dataclasses.dataclass(frozen=True)
class Remove:
    """Delete the RayCluster, with its pods, and the ConfigMap with the spec."""


@dataclasses.dataclass(frozen=True)
class NoteChange:
    """Record who changed what of the Run's spec, and when."""

    change: Change


Action = Record | Desire | Adopt | Describe | Admit | Enclose | Revoke | Start | Resize | KeepImages | Remove | NoteChange


class Goal(enum.StrEnum):
    """Goal for a Run, from its spec, its deadlines and the desired state in the ledger."""

    RUN = "run"
    RESUME = "resume"
    RESTART = "restart"
    FAIL = "fail"
    STOP = "stop"
    STOP_NOW = "stop now"
    REFUSE = "refuse"


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
    """The goal for a Run."""
    if observed.read.spec is None:
        return Goal.REFUSE
    if observed.spec.desired is not RunState.RUNNING:
        return Goal.STOP_NOW if observed.spec.now else Goal.STOP
    if problems.problem(observed) is not None:
        return Goal.REFUSE
    if observed.is_stopping:
        return Goal.RESTART
    if observed.is_superseded:
        return Goal.RESUME
    return Goal.FAIL if observed.is_failing else Goal.RUN


def is_due(observed: Observation) -> bool:
    """Whether the run is to be started now."""
    return not observed.is_deleted and Step.START in TABLE[observed.phase][goal(observed)]


def decide(observed: Observation) -> tuple[Action, ...]:
    """Return the actions that are due now. None if all is as it should be, or if something must happen first."""
    actions: list[Action] = []
    if not observed.is_deleted:
        # A change first, as what follows from it may be refused.
        actions += [*_note_change(observed), *_enclose(observed)]
        for step in TABLE[observed.phase][goal(observed)]:
            actions += _STEPS[step](observed)
    return (*actions, *_keep_images(observed), *(() if Start() in actions else _revoke(observed)))


def _note_change(observed: Observation) -> tuple[Action, ...]:
    change = spec_changes.change(observed)
    return () if change is None else (NoteChange(change),)


def _enclose(observed: Observation) -> tuple[Action, ...]:
    if observed.own_cluster is None or metadata.is_deleted(observed.own_cluster):
        return ()
    annotations = observed.own_cluster["metadata"].get("annotations") or {}
    return () if annotations.get(names.NETWORK_HASH) == observed.network else (Enclose(),)


def _keep_images(observed: Observation) -> tuple[Action, ...]:
    if observed.recorded is None or not observed.is_recorded:
        return ()
    recorded = observed.recorded.images
    images = tuple(image for image in observed.images if image.digest not in recorded.get(image.image, ()))
    return (KeepImages(images),) if images else ()


def _revoke(observed: Observation) -> tuple[Action, ...]:
    works = observed.alive or observed.phase in (Phase.STARTING, Phase.OPENING, Phase.LOST)
    has_token = observed.recorded is not None and observed.recorded.token is not None
    return (Revoke(),) if has_token and not works else ()


def _start(observed: Observation) -> tuple[Action, ...]:
    desire = Desire({"state": RunState.RUNNING, "parallel": observed.spec.parallel})
    return (Record(new=observed.recorded is None), desire, Adopt(), Describe(), Admit(), Start())


def _restore(observed: Observation) -> tuple[Action, ...]:
    return (() if observed.has_spec else (Describe(),)) + ((Admit(),) if observed.is_locked_out else ())


def _follow(observed: Observation) -> tuple[Action, ...]:
    if observed.recorded is None:
        return ()
    if observed.recorded.desired.parallel != observed.spec.parallel:
        return (Desire({"parallel": observed.spec.parallel}),)
    patch = _resized(observed)
    return (Resize(tuple(patch)),) if patch else ()


def _desire_stop(observed: Observation) -> tuple[Action, ...]:
    if observed.recorded is None or observed.desired in (None, observed.spec.desired, RunState.CANCELLED):
        return ()
    has_ended = observed.is_current and observed.recorded.status.state.is_ended
    return () if has_ended else (Desire({"state": observed.spec.desired}),)


def _desire_failure(observed: Observation) -> tuple[Action, ...]:
    return () if observed.desired is RunState.FAILED else (Desire({"state": RunState.FAILED}),)


def _remove(observed: Observation) -> tuple[Action, ...]:
    return (Remove(),)


def _expire(observed: Observation) -> tuple[Action, ...]:
    """Remove what is left of an ended run, whatever its spec says by now, once its end is in its status."""
    status = observed.status
    if not status.since or status.resumes != observed.start or status.state not in _ENDS:
        return ()
    ttl = 0.0
    if observed.read.job is not None:
        ttl = observed.started_job.cluster.ttl
    elif observed.recorded is not None:
        ttl = observed.recorded.job.cluster.ttl
    return (Remove(),) if observed.now >= (metadata.moment(status.since) or 0.0) + ttl else ()


def _tidy(observed: Observation) -> tuple[Action, ...]:
    return (Remove(),) if observed.has_spec else ()


def _adopt(observed: Observation) -> tuple[Action, ...]:
    return (Adopt(),) if observed.has_orphans else ()


_STEPS: Mapping[Step, Callable[[Observation], tuple[Action, ...]]] = {
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


def _resized(observed: Observation) -> list[dict[str, Any]]:
    """The JSON patch by which the first role's pods become as many as they should be; nothing if they are, or must wait.

    A pod with a slot may run a trial. So fewer pods wait until the controller reports that many slots, and which pods have
    one.
    """
    if observed.ray_cluster is None or observed.recorded is None:
        return []
    spec = observed.ray_cluster["spec"]
    job = observed.started_job
    width = observed.spec.parallel or job.width
    role = job.widened(width).roles()[0]
    group = spec["workerGroupSpecs"][0]
    if group["groupName"] != names.group(role.name):
        return []
    status, pods = observed.recorded.status, observed.pods
    if len(pods) > role.pods and status.parallel != width and not observed.spec.now:
        return []
    spare = [pod for pod in pods if observed.spec.now or pod not in status.nodes]
    surplus = spare[: max(0, len(pods) - role.pods)]
    # Ray's autoscaler too would remove a pod with a trial for a lower bound, when all have one.
    count = role.pods if observed.spec.now else max(role.pods, len(pods) - len(surplus))
    autoscale = bool(spec.get("enableInTreeAutoscaling"))
    target = raycluster.Replicas.of(count, autoscale)
    fields = {"maxReplicas": target.maximum}
    if not autoscale:  # else Ray chooses: a pod that has not started, then the one that is idle the longest
        fields |= {"minReplicas": target.minimum, "replicas": target.initial}
    if all(group.get(name) == value for name, value in fields.items()):
        return []
    place = "/spec/workerGroupSpecs/0"
    # The test fails if another group has taken its place.
    patch: list[dict[str, Any]] = [{"op": "test", "path": f"{place}/groupName", "value": names.group(role.name)}]
    patch += [{"op": "add", "path": f"{place}/{name}", "value": value} for name, value in fields.items()]
    if not autoscale:
        # Otherwise KubeRay would choose without knowing which pods have a trial; it also keeps the previous list.
        patch.append({"op": "add", "path": f"{place}/scaleStrategy", "value": {"workersToDelete": surplus}})
    return patch
