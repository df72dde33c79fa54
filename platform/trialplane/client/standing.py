"""The status of a run on a cluster, from its two sources.

The API server has its RayJob and pods, the gateway has the ledger, which contains a run from its submission on. Either may
lack it: a run that has ended or was cancelled has no RayJob, and one applied by other means is not in the ledger before its
controller starts. If the gateway cannot be reached, the state in Kubernetes alone is shown, with that reason.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from trialplane.client import phases
from trialplane.client.objects import Objects
from trialplane.plan import plan as planning
from trialplane.wire import cluster as names
from trialplane.wire.records import Desired, RunStatus
from trialplane.wire.states import RunState


@dataclasses.dataclass(frozen=True)
class View:
    """What both sources have of one run at one moment; at least one of them has it.

    Attributes:
        ray_job: the object, or None.
        status: of the ledger, or None if the run is not in it.
        alive: whether a controller holds the study.
        away: why the gateway could not be reached, or "".
        desired: the desired state in the ledger.
    """

    ray_job: dict[str, Any] | None
    status: RunStatus | None
    alive: bool
    away: str
    desired: Desired

    @property
    def has_begun(self) -> bool:
        """Whether a controller has ever worked on it, according to the ledger."""
        return self.status is not None and self.status.started is not None

    @property
    def is_current(self) -> bool:
        """Whether the ledger's status is of this RayJob: its controller lives, or ended after the RayJob was created."""
        if self.status is None:
            return False
        if self.alive or self.ray_job is None:
            return True
        return self.status.state not in (RunState.PENDING, RunState.RUNNING) and self.status.updated >= phases.created(
            self.ray_job
        )

    @property
    def is_active(self) -> bool:
        """Whether a controller works on the run or is being started."""
        if self.alive:
            return True
        return self.ray_job is not None and not phases.is_over(self.ray_job) and not self.is_current


def status(objects: Objects, view: View) -> RunStatus:
    """One status from both sources.

    Args:
        objects: to find out why pods are missing.
        view: of the run.
    """
    ray_job, recorded = view.ray_job, view.status
    if ray_job is None:
        if recorded is None:
            raise ValueError("neither the API server nor the gateway knows the run")
        if view.alive or recorded.state not in (RunState.PENDING, RunState.RUNNING):
            return recorded
        reason = f"its pods are gone from the cluster; `platform resume {recorded.run}` continues it"
        return _idle(recorded, RunState.PAUSED, reason)
    if recorded is not None and view.is_current:
        missing = "" if not view.alive or recorded.slots_ready >= recorded.slots else objects.why(ray_job)
        return recorded if not missing else dataclasses.replace(recorded, reason=_joined(recorded.reason, missing))
    state = phases.state(ray_job)
    base = recorded or _bare(objects, ray_job, view.away)
    run = base.run
    if phases.is_deleted(ray_job):
        return _idle(base, RunState.PAUSED, "its pods are being removed")
    if state is RunState.FAILED:
        reason = phases.explanation(ray_job) or objects.why(ray_job)
        return _idle(base, state, f"{reason}; see `platform logs {run}`, also with --submitter", phases.ended(ray_job))
    if state in (RunState.SUCCEEDED, RunState.PAUSED):
        return _idle(base, state, view.away, phases.ended(ray_job))
    if state is RunState.UNKNOWN:
        return _idle(base, state, f"KubeRay reports {phases.phase(ray_job)}, which this version does not know")
    why = objects.why(ray_job)
    if state is RunState.RUNNING and view.away:
        return dataclasses.replace(base, state=state, reason=_joined(view.away, why))
    doing = "the controller is restarting" if state is RunState.RUNNING and view.has_begun else "the controller is starting"
    return _idle(base, RunState.PENDING, _joined(why or doing, view.away))


def _bare(objects: Objects, ray_job: Mapping[str, Any], away: str) -> RunStatus:
    """The status of a run that only Kubernetes has."""
    run, created = ray_job["metadata"]["name"], phases.created(ray_job)
    found = objects.submission(run)
    if found is None:
        label = (ray_job["metadata"].get("labels") or {}).get(names.JOB, "")
        return RunStatus(run=run, job=label, state=RunState.UNKNOWN, trials=0, created=created, updated=time.time())
    return planning.pending(run, found.job, float(found.facts.get("submitted") or created))


def _idle(status: RunStatus, state: RunState, reason: str, ended: float | None = None) -> RunStatus:
    """The status of an inactive run."""
    return dataclasses.replace(
        status, state=state, reason=reason, eta=None, rate=None, running=0, slots_ready=0, nodes=(), ended=ended
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
