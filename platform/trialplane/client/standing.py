"""How a run on a cluster stands, from what its two witnesses say.

The API server knows its RayJob and pods, the gateway knows the ledger, in which a run is from its submission on. Either may
know nothing of it: one that has ended or was cancelled has no RayJob, and one that was applied by other means is not in the
ledger before its controller is there. The gateway may be away: then what Kubernetes alone knows is shown, with that reason.
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
    """What both witnesses say of one run at one moment; one of them at least knows it.

    Attributes:
        ray_job: the object, or None.
        status: of the ledger, or None when it does not know the run.
        alive: whether a controller holds the study.
        away: why the gateway could not be asked, or "".
        desired: the desired state, as the ledger has it.
    """

    ray_job: dict[str, Any] | None
    status: RunStatus | None
    alive: bool
    away: str
    desired: Desired

    @property
    def has_begun(self) -> bool:
        """Whether a controller has ever worked on it, as far as the ledger knows."""
        return self.status is not None and self.status.started is not None

    @property
    def is_told(self) -> bool:
        """Whether the ledger's status is the word of this life: its controller lives, or ended after the RayJob was made."""
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
        return self.ray_job is not None and not phases.is_over(self.ray_job) and not self.is_told


def status(objects: Objects, view: View) -> RunStatus:
    """One status from what both witnesses say.

    Args:
        objects: asked why pods are missing.
        view: of the run.
    """
    ray_job, told = view.ray_job, view.status
    if ray_job is None:
        if told is None:
            raise ValueError("neither the API server nor the gateway knows the run")
        if view.alive or told.state not in (RunState.PENDING, RunState.RUNNING):
            return told
        reason = f"its pods are gone from the cluster; `platform resume {told.run}` goes on"
        return _idle(told, RunState.PAUSED, reason)
    if told is not None and view.is_told:
        missing = "" if not view.alive or told.slots_ready >= told.slots else objects.why(ray_job)
        return told if not missing else dataclasses.replace(told, reason=_joined(told.reason, missing))
    state = phases.state(ray_job)
    base = told or _bare(objects, ray_job, view.away)
    run = base.run
    if phases.is_going(ray_job):
        return _idle(base, RunState.PAUSED, "its pods are being removed")
    if state is RunState.FAILED:
        reason = phases.words(ray_job) or objects.why(ray_job)
        return _idle(base, state, f"{reason}; `platform logs {run}` says more, with --submitter too", phases.ended(ray_job))
    if state in (RunState.SUCCEEDED, RunState.PAUSED):
        return _idle(base, state, view.away, phases.ended(ray_job))
    if state is RunState.UNKNOWN:
        return _idle(base, state, f"KubeRay says {phases.phase(ray_job)}, which this version does not know")
    why = objects.why(ray_job)
    if state is RunState.RUNNING and view.away:
        return dataclasses.replace(base, state=state, reason=_joined(view.away, why))
    doing = "the controller starts again" if state is RunState.RUNNING and view.has_begun else "the controller is starting"
    return _idle(base, RunState.PENDING, _joined(why or doing, view.away))


def _bare(objects: Objects, ray_job: Mapping[str, Any], away: str) -> RunStatus:
    """The status of a run of which only Kubernetes knows."""
    run, created = ray_job["metadata"]["name"], phases.created(ray_job)
    found = objects.submission(run)
    if found is None:
        label = (ray_job["metadata"].get("labels") or {}).get(names.JOB, "")
        return RunStatus(run=run, job=label, state=RunState.UNKNOWN, trials=0, created=created, updated=time.time())
    return planning.pending(run, found.job, float(found.facts.get("submitted") or created))


def _idle(status: RunStatus, state: RunState, reason: str, ended: float | None = None) -> RunStatus:
    """A status of a run on which nobody works right now."""
    return dataclasses.replace(
        status, state=state, reason=reason, eta=None, rate=None, running=0, slots_ready=0, nodes=(), ended=ended
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
