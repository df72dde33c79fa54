"""Observation of one Run at one moment: the Run, its RayCluster, its record in the ledger, and the phase that follows. Pure.

A Run is started once for each number of `spec.resumes`. The RayCluster names the one that it was made for, and
`status.resumes` and `status.started` keep it when the RayCluster is gone. The ledger has when a start was begun, so a status
is of this start if it was written after that. Only the ledger says that a run is over.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trialplane.job.kinds import Job
from trialplane.kube import metadata
from trialplane.ledger.archive import Snapshot
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.run import Image, ParsedRun, RunSpec, Status
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.states import RunState

Thing = Mapping[str, Any]

WORKED = "worked"  # seconds for which it had worked when its last start was recorded; see `RunStatus`


class Phase(enum.StrEnum):
    """Phase of a Run, from what exists in the cluster and what the ledger says; its spec has no part in it."""

    ABSENT = "Absent"
    LEAVING = "Leaving"
    STARTING = "Starting"
    OPENING = "Opening"
    RUNNING = "Running"
    LOST = "Lost"
    ENDED = "Ended"
    GONE = "Gone"


PHASES: Mapping[Phase, str] = {
    Phase.ABSENT: "There is no RayCluster, and the ledger does not say that the run has ended.",
    Phase.LEAVING: "Pods of an earlier start, a RayCluster that is being deleted or is not of this Run, or a controller "
    "without a RayCluster is still there.",
    Phase.STARTING: "There is a RayCluster. No controller has worked since this start.",
    Phase.OPENING: "The controller's container runs, and does not hold the ledger yet, or no longer.",
    Phase.RUNNING: "A controller holds the ledger.",
    Phase.LOST: "A controller has worked since this start. None runs now, and the run has not ended.",
    Phase.ENDED: "The ledger says that the run has ended or paused. Its RayCluster is still there.",
    Phase.GONE: "The ledger says that the run has ended or paused. There is no RayCluster.",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Reason why nothing is started: `reason` in one word, `message` for people."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """Snapshot of a Run.

    Attributes:
        run: the object.
        read: its spec and job, or what is wrong with them.
        ray_cluster: of its name, whosever it is.
        recorded: its record in the ledger, or that of an earlier Run of its name.
        pods: names of the pods of its first role that stay, the newest first.
        pulled: the images of its pods' containers, with the digests that their nodes pulled.
        controller_runs: whether the controller's container runs, with or without the ledger.
        is_locked_out: whether the token in the run's Secret is not the one that the ledger takes, or there is none.
        leftovers: names of pods of a former RayCluster of its name, which are still being removed.
        has_spec: whether the ConfigMap with its spec is there.
        waits: why not all of its pods run, or "".
        blocked: what was found wrong when it was to be started.
        code: the ConfigMaps with its code, as the Run names them, when it is to be started; None for one that is not there.
        has_orphans: whether one of them is not this Run's yet.
        network: the digest of the network policies that its pods should have.
        now: seconds since the epoch.
    """

    run: Thing
    read: ParsedRun
    ray_cluster: Thing | None = None
    recorded: Snapshot | None = None
    pods: tuple[str, ...] = ()
    pulled: tuple[Image, ...] = ()
    controller_runs: bool = False
    is_locked_out: bool = False
    leftovers: tuple[str, ...] = ()
    has_spec: bool = False
    waits: str = ""
    blocked: Problem | None = None
    code: tuple[Thing | None, ...] = ()
    has_orphans: bool = False
    network: str = ""
    now: float = 0.0

    @property
    def name(self) -> str:
        """The run's."""
        return str(self.run["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The Run's."""
        return str(self.run["metadata"]["uid"])

    @property
    def owner(self) -> str:
        """The Run's user, as its annotation names them, or ""."""
        return str((self.run["metadata"].get("annotations") or {}).get(names.OWNER, ""))

    @property
    def generation(self) -> int:
        """Generation of its spec."""
        return int(self.run["metadata"].get("generation") or 0)

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return metadata.is_deleted(self.run)

    @property
    def spec(self) -> RunSpec:
        """The spec of a Run without a problem."""
        if self.read.spec is None:
            raise ValueError(f"the spec of {self.name} cannot be read")
        return self.read.spec

    @property
    def job(self) -> Job:
        """The job of a Run without a problem."""
        if self.read.job is None:
            raise ValueError(f"the job of {self.name} cannot be read")
        return self.read.job

    @functools.cached_property
    def status(self) -> Status:
        """The last one that was written; an empty one if it cannot be read."""
        try:
            return Status.model_validate(self.run.get("status") or {})
        except ValidationError:
            return Status()

    @property
    def started_job(self) -> Job:
        """The job that its pods work on: as it was started, whatever its spec says since."""
        return self.recorded.job if self.recorded is not None and self.is_ignored else self.job

    @property
    def own_cluster(self) -> Thing | None:
        """The RayCluster, if it is this Run's."""
        if self.ray_cluster is None:
            return None
        return self.ray_cluster if metadata.is_owned(self.ray_cluster, self.uid) else None

    @property
    def start(self) -> int | None:
        """The `resumes` that its RayCluster was made for; None without one."""
        if self.own_cluster is None:
            return None
        text = (self.own_cluster["metadata"].get("annotations") or {}).get(runs.RESUMES, "0")
        return int(text) if str(text).isdecimal() else 0

    @property
    def started(self) -> str | None:
        """When it was started last."""
        return self.status.started if self.own_cluster is None else self.own_cluster["metadata"].get("creationTimestamp")

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that its pods have run, each once for each digest."""
        return tuple(dict.fromkeys((*self.status.images, *self.pulled)))

    @property
    def resumes(self) -> int:
        """The number that it was started for last."""
        return max(self.status.resumes, self.start or 0)

    @property
    def is_superseded(self) -> bool:
        """Whether its spec asks for a later start than the last one."""
        return self.spec.resumes != self.start if self.own_cluster is not None else self.spec.resumes > self.status.resumes

    @property
    def is_anothers(self) -> bool:
        """Whether the ledger's record is of a Run of its name that another user owned."""
        submission = {} if self.recorded is None else self.recorded.submission
        return submission.get(labels.UID) != self.uid and submission.get(labels.OWNER, "") not in ("", self.owner)

    @property
    def is_recorded(self) -> bool:
        """Whether the ledger's record is of this Run, or of an earlier one of its name that this one resumes."""
        if self.recorded is None or self.is_anothers:
            return False
        resumes = self.read.spec is not None and self.read.spec.resumes > 0
        return resumes or self.recorded.submission.get(labels.UID) == self.uid

    @property
    def begun(self) -> float:
        """When its last start was recorded, in seconds since the epoch; 0 if none was."""
        if not self.is_recorded or self.recorded is None:
            return 0.0
        return float(self.recorded.submission.get(labels.BEGUN, 0.0))

    @property
    def desired(self) -> RunState | None:
        """Its desired state in the ledger; None if it is not recorded."""
        return self.recorded.desired.state if self.recorded is not None and self.is_recorded else None

    @property
    def alive(self) -> bool:
        """Whether a controller works on it."""
        return self.recorded is not None and self.recorded.alive

    @property
    def is_current(self) -> bool:
        """Whether the ledger's status is of the last start: its controller has written one since and lives, or has ended."""
        record, since = self.recorded, self.begun
        return record is not None and record.status.updated >= since and (record.alive or record.status.has_ended(since))

    @property
    def has_begun(self) -> bool:
        """Whether a controller has worked on it since its last start was recorded."""
        started = None if self.recorded is None else self.recorded.status.started
        return started is not None and started >= self.begun

    @functools.cached_property
    def overdue(self) -> str:
        """Which of its deadlines is over, for people; "" if none is, or if the run has ended."""
        if self.read.job is None or not self.begun or self.spec.resumes > self.resumes:
            return ""
        if self.recorded is None or self.recorded.status.has_ended(self.begun):
            return ""
        limits, waited = self.started_job.cluster, self.now - self.begun
        if limits.deadline is not None and waited > limits.deadline:
            return f"it has not ended within {limits.deadline:g} s (cluster.deadline)"
        has_worked = self.recorded.status.worked > float(self.recorded.submission.get(WORKED, 0.0))
        if limits.pending_deadline is not None and waited > limits.pending_deadline and not has_worked:
            return f"no trial could start within {limits.pending_deadline:g} s (cluster.pending_deadline)"
        return ""

    @property
    def is_ignored(self) -> bool:
        """Whether the job was changed since the start, without a resume."""
        if self.own_cluster is None or self.start != self.spec.resumes:
            return False
        annotations = self.own_cluster["metadata"].get("annotations") or {}
        return bool(annotations.get(names.SPEC_HASH) != planning.spec_hash(self.job))

    @property
    def is_failing(self) -> bool:
        """Whether a deadline is over, or the ledger has that it is to fail, which a resume revokes."""
        return bool(self.overdue) or self.desired is RunState.FAILED

    @property
    def is_stopping(self) -> bool:
        """Whether the ledger has that it is to stop, which nothing revokes before it has."""
        return self.desired in (RunState.PAUSED, RunState.CANCELLED)

    @functools.cached_property
    def phase(self) -> Phase:
        """The phase that it is in."""
        if self.own_cluster is None:
            if self.ray_cluster is not None or self.leftovers or self.alive:
                return Phase.LEAVING
            record = self.recorded
            has_ended = record is not None and self.is_current and (self.is_recorded or record.status.state.is_ended)
            return Phase.GONE if has_ended else Phase.ABSENT
        if metadata.is_deleted(self.own_cluster):
            return Phase.LEAVING
        if self.alive:
            return Phase.RUNNING
        if self.is_current:
            return Phase.ENDED
        if self.controller_runs:  # without the lock while the gateway is away
            return Phase.OPENING
        return Phase.LOST if self.has_begun else Phase.STARTING
