"""The status of a run on a cluster, from its two sources. Pure.

The API server has its Run, whose status the operator writes; the gateway has the ledger, whose status is the controller's
and newer while that works. Either may lack the run: its Run may have been removed since it ended, and the operator records
a new one in the ledger only when it has seen it. If the gateway cannot be reached, the Run's status alone is shown, with
that reason.
"""

from __future__ import annotations

import dataclasses
import time

from trialplane.kube import metadata
from trialplane.kube.objects import Run
from trialplane.ledger import standing as ledger_standing
from trialplane.plan import plan as planning
from trialplane.wire import cluster as names
from trialplane.wire.records import Desired, RunStatus
from trialplane.wire.states import RunState

PATIENCE = 15.0  # seconds within which a running operator reports on a new Run
_UNENDED = (RunState.PENDING, RunState.RUNNING)


@dataclasses.dataclass(frozen=True)
class RunSources:
    """Snapshot of a run, from the API server and the gateway. At least one of them knows it.

    Attributes:
        run: the Run object, or None.
        status: status in the ledger, or None.
        alive: whether a controller holds the lock of the run.
        away: why the gateway could not be reached, or "".
        desired: desired state of the Run object, or else of the ledger.
    """

    run: Run | None
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
        """Whether the ledger's status is newer than the Run's: its controller lives, or has just ended."""
        if self.status is None:
            return False
        if self.alive or self.run is None:
            return True
        return (
            self.run.is_seen
            and self.run.is_started
            and self.run.state in _UNENDED
            and self.status.state not in _UNENDED
            and self.status.updated >= (metadata.moment(self.run.status.started) or self.run.created)
        )

    @property
    def is_active(self) -> bool:
        """Whether a controller works on the run or is being started."""
        return self.alive or not (self.run is None or self.run.is_settled or self.is_current)


def status(view: RunSources, operator: str) -> RunStatus:
    """Return the status of a run from both sources, with its owner and the digests of its images.

    Warn about images with more than one digest.

    Args:
        view: of the run.
        operator: command that shows whether the operator runs.
    """
    merged = _status(view, operator)
    images = dict(merged.images)
    for image in view.run.status.images if view.run else ():
        images[image.image] = tuple(dict.fromkeys((*images.get(image.image, ()), image.digest)))
    moved = [
        f"its pods have run {len(digests)} digests of {image}: the tag was pushed again, or nodes have different "
        "architectures; give each build a tag of its own (`platform docs gpus`)"
        for image, digests in images.items()
        if len(digests) > 1
    ]
    owner = view.run.owner if view.run else merged.owner
    return dataclasses.replace(merged, owner=owner, images=images, warnings=(*merged.warnings, *moved))


def _status(view: RunSources, operator: str) -> RunStatus:
    run, recorded = view.run, view.status
    if run is None:
        if recorded is None:
            raise ValueError("neither the API server nor the gateway knows the run")
        if view.alive or recorded.state not in _UNENDED:
            return recorded
        reason = f"there is no Run of it in the cluster (any more); `platform resume {recorded.run}` makes one and continues"
        return _idle(recorded, RunState.PAUSED, reason)
    reported = run.status
    if recorded is not None and view.is_current:
        missing = "" if not view.alive or recorded.slots_ready >= recorded.slots else reported.reason
        return recorded if not missing else dataclasses.replace(recorded, reason=_joined(recorded.reason, missing))
    base = recorded or _bare(run)
    if run.is_deleted:
        return _idle(base, RunState.PAUSED, "it is being removed")
    if not run.is_seen:
        return _idle(base, RunState.PENDING, _joined(_unseen(run, operator), view.away))
    state = run.state
    if state is RunState.RUNNING and view.away:
        return dataclasses.replace(base, state=state, reason=_joined(view.away, reported.reason))
    if state in _UNENDED:
        doing = "the controller is restarting" if view.has_begun else "the controller is starting"
        return _idle(base, RunState.PENDING, _joined(reported.reason or doing, view.away))
    if recorded is not None and recorded.state is state:
        return recorded
    return _idle(base, state, _joined(reported.reason, view.away), metadata.moment(reported.since))


def _unseen(run: Run, operator: str) -> str:
    """Return what a Run waits for if the operator has not handled its newest spec yet."""
    if run.read.issues:
        return "; ".join(f"{issue.field}: {issue.message}" for issue in run.read.issues[:3])
    if run.status.observedGeneration:
        return f"the operator is about to follow the change; if that lasts, `{operator}` shows whether it runs"
    age = time.time() - run.created
    if age > PATIENCE:
        return f"the operator has not answered for {age:.0f} s: is it running? `{operator}`"
    return "the operator is about to start it"


def _bare(run: Run) -> RunStatus:
    """Return the status of a run that only the API server knows."""
    if run.read.job is None or run.read.spec is None:
        label = (run.thing["metadata"].get("labels") or {}).get(names.JOB, "")
        return RunStatus(run.name, label, RunState.UNKNOWN, trials=0, created=run.created, updated=time.time())
    pending = planning.pending(run.name, run.read.job, run.submitted)
    parallel = run.read.spec.parallel
    return pending if parallel is None else dataclasses.replace(pending, parallel=parallel)


def _idle(status: RunStatus, state: RunState, reason: str, ended: float | None = None) -> RunStatus:
    """Return the status of an inactive run."""
    return dataclasses.replace(ledger_standing.idle(status, state, reason), ended=ended)


def _joined(*reasons: str) -> str:
    """Return reasons of both sources as one text, without repetitions."""
    return "; ".join(dict.fromkeys(part for reason in reasons for part in reason.split("; ") if part))
