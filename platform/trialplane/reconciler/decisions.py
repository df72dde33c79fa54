"""What is to be done next for a Run. Pure: a view → actions, each of which may be done twice.

Between any two actions the reconciler may be killed; what it then sees makes it go on. So a start is recorded before its
RayCluster is made, the RayCluster is made last, and a stop is in the ledger before anything is removed. A stop that was
begun is completed before the run goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trialplane.kube import metadata
from trialplane.plan import raycluster
from trialplane.plan.run import Image
from trialplane.reconciler.view import View
from trialplane.wire import cluster as names
from trialplane.wire.records import Change
from trialplane.wire.states import RunState


@dataclasses.dataclass(frozen=True)
class Record:
    """Writes the submission into the ledger; with `new` no run may have its name."""

    new: bool


@dataclasses.dataclass(frozen=True)
class Desire:
    """Changes fields of the desired state in the ledger."""

    changed: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Adopt:
    """Makes the Run the owner of the ConfigMaps with its code, which then go with it."""


@dataclasses.dataclass(frozen=True)
class Describe:
    """Makes what the pods read: the ConfigMap with the spec."""


@dataclasses.dataclass(frozen=True)
class Admit:
    """Gives the controller a new token, in a Secret of the run, and has the ledger take that one alone."""


@dataclasses.dataclass(frozen=True)
class Enclose:
    """Makes the network policies of a run's pods anew, as the chart's values are others."""


@dataclasses.dataclass(frozen=True)
class Revoke:
    """Has no token open the run any more."""


@dataclasses.dataclass(frozen=True)
class Start:
    """Makes the network policies, and then the RayCluster whose pods they are for."""


@dataclasses.dataclass(frozen=True)
class Resize:
    """Patches the RayCluster, so that it has another number of pods."""

    patch: tuple[Mapping[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Keep:
    """Writes into the ledger which digests of its images its pods have run, for when its Run is gone."""

    images: tuple[Image, ...]


@dataclasses.dataclass(frozen=True)
class Remove:
    """Removes the RayCluster, with its pods, and the ConfigMap with the spec."""


@dataclasses.dataclass(frozen=True)
class Note:
    """Records who changed what of the Run's spec, and when."""

    change: Change


Action = Record | Desire | Adopt | Describe | Admit | Enclose | Revoke | Start | Resize | Keep | Remove | Note


def is_due(view: View) -> bool:
    """Whether the run is to be started, if nothing is wrong with it."""
    if view.is_deleted or view.read.spec is None or view.read.job is None:
        return False
    if view.ray_cluster is not None or view.leftovers:
        return False
    return view.asked.desired is RunState.RUNNING and not view.alive and not view.is_settled


def decide(view: View) -> tuple[Action, ...]:
    """What is to be done now; nothing when all is as it should be, or when something must happen first."""
    made = _decide(view) if view.is_enclosed else (Enclose(), *_decide(view))
    if not view.is_deleted and view.change is not None:
        made = (Note(view.change), *made)  # first: what follows from the change may be refused
    if view.is_recorded and view.unkept:
        made = (*made, Keep(view.unkept))
    works = view.is_active or any(isinstance(action, Start) for action in made)
    if view.recorded is not None and view.recorded.token is not None and not works:
        return (*made, Revoke())
    return made


def _decide(view: View) -> tuple[Action, ...]:
    if view.is_deleted:
        return ()
    if view.read.spec is None:
        return _clear(view)
    if view.asked.desired is not RunState.RUNNING:
        return _stop(view)
    if view.problem is not None:
        # The code of a Run that never ran goes with it.
        return _clear(view) or ((Adopt(),) if view.has_orphans else ())
    if is_due(view):
        start = {"state": RunState.RUNNING, "parallel": view.asked.parallel}
        return (Record(new=view.recorded is None), Desire(start), Adopt(), Describe(), Admit(), Start())
    if view.mine is None:
        return (Remove(),) if view.has_spec and view.ray_cluster is None and not view.alive else ()
    if metadata.is_deleted(view.mine):
        return ()
    if view.is_stopping or view.start != view.asked.resumes:  # of a start that is over, or is coming to its end
        waits = view.may_return or (view.has_begun and not view.is_over and not view.is_stopping)
        return () if waits else (Remove(),)
    if view.is_over:
        return _clear(view)
    if view.overdue or view.is_failing:
        return _fail(view)
    return _follow(view) if view.alive else _mend(view)


def _stop(view: View) -> tuple[Action, ...]:
    """Has the run end as it is asked to: cleanly, unless there is no controller that could, or `now`."""
    made: list[Action] = []
    wanted = view.asked.desired
    if view.is_recorded and view.recorded is not None:
        ended = view.is_current and view.recorded.status.state.is_ended
        if not ended and view.recorded.desired.state not in (wanted, RunState.CANCELLED):
            made.append(Desire({"state": wanted}))
    if view.mine is None:
        leftover = view.ray_cluster is None and view.has_spec and not view.alive
        return (*made, Remove()) if leftover else tuple(made)
    if not metadata.is_deleted(view.mine) and (view.asked.now or not view.may_return):
        made.append(Remove())
    return tuple(made)


def _clear(view: View) -> tuple[Action, ...]:
    """Removes what is left of a run that is over, whatever its spec says by now."""
    return (Remove(),) if view.is_expired else ()


def _fail(view: View) -> tuple[Action, ...]:
    """Ends a run whose deadline is over: first in the ledger, where its controller reads it; without one its pods go."""
    made: tuple[Action, ...] = () if view.is_failing else (Desire({"state": RunState.FAILED}),)
    return made if view.may_return else (*made, Remove())


def _mend(view: View) -> tuple[Action, ...]:
    """Makes again what the controller needs to begin, and somebody took away."""
    made: list[Action] = [] if view.has_spec else [Describe()]
    if view.is_locked_out:
        made.append(Admit())
    return tuple(made)


def _follow(view: View) -> tuple[Action, ...]:
    """Has a run that works be as wide as asked: first in the ledger, which the controller reads, then in pods."""
    if view.recorded is None:
        return ()
    if view.recorded.desired.parallel != view.asked.parallel:
        return (Desire({"parallel": view.asked.parallel}),)
    patch = _resized(view)
    return (Resize(tuple(patch)),) if patch else ()


def _resized(view: View) -> list[dict[str, Any]]:
    """The JSON patch by which the first role's pods become as many as they should be; nothing if they are, or must wait.

    A pod with a slot may run a trial. So fewer pods wait until the controller reports that many slots, and which pods have
    one.
    """
    if view.ray_cluster is None or view.recorded is None:
        return []
    spec = view.ray_cluster["spec"]
    job = view.started_job
    width = view.asked.parallel or job.width
    role = job.widened(width).roles()[0]
    group = spec["workerGroupSpecs"][0]
    if group["groupName"] != names.group(role.name):
        return []
    status, pods = view.recorded.status, view.pods
    if len(pods) > role.pods and status.parallel != width and not view.asked.now:
        return []
    spare = [pod for pod in pods if view.asked.now or pod not in status.nodes]
    surplus = spare[: max(0, len(pods) - role.pods)]
    # Ray's autoscaler too would remove a pod with a trial for a lower bound, when all have one.
    count = role.pods if view.asked.now else max(role.pods, len(pods) - len(surplus))
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
