"""Observation of one Run at one moment: the Run, its RayCluster, its record in the ledger, and the resulting phase. Pure.

A Run is started once for each value of `spec.resumes`. The RayCluster has an annotation with the value for which it was
created; after it is deleted, `status.resumes` and `status.started` still have the last start. The ledger has the time of the
last start, so a status in the ledger belongs to this start if it is newer. Only the ledger tells whether a run has ended.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping

from pydantic import ValidationError

from trialplane.job.kinds import Job
from trialplane.kube import metadata
from trialplane.kube.metadata import KubeObject
from trialplane.ledger.archive import Snapshot
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.run import Image, ParsedRun, RunSpec, Status
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.states import RunState

WORKED = "worked"  # field of a submission: `RunStatus.worked` at the last start, in seconds


class Phase(enum.StrEnum):
    """Phase of a Run, from its objects in the cluster and its record in the ledger. It does not depend on the spec."""

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
    """Reason why a Run is not started: `reason` in one word for programs, and `message` for people."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """Snapshot of a Run.

    Attributes:
        run: Object of the Run.
        parsed: Spec and job of the Run, or the problems with them.
        ray_cluster: RayCluster of the Run's name, even if it belongs to another Run. None without one.
        record: Record of the Run's name in the ledger, even if it belongs to an earlier Run. None without one.
        pods: Names of the pods of the job's first role, the newest first, without pods that are being deleted.
        pulled_images: Images of its pods' containers, with the digests that their nodes have pulled.
        controller_runs: Whether the controller's container runs. It may not have opened the ledger.
        lacks_token: Whether the run's Secret is missing, or the ledger does not accept the token in it.
        leftovers: Names of pods of an earlier RayCluster of its name that are not removed yet.
        has_spec: Whether the ConfigMap with its spec exists.
        wait_reason: Reason why not all of its pods run, or "".
        start_problem: Problem that prevents a start that is due, or None.
        code: ConfigMaps with its code, in the order of the spec, if it must be started. None for a missing one.
        has_orphans: Whether the Run is not yet the owner of one of these ConfigMaps.
        network: Digest of the network policies that its pods should have.
        now: Time of the observation, in seconds since the epoch.
    """

    run: KubeObject
    parsed: ParsedRun
    ray_cluster: KubeObject | None = None
    record: Snapshot | None = None
    pods: tuple[str, ...] = ()
    pulled_images: tuple[Image, ...] = ()
    controller_runs: bool = False
    lacks_token: bool = False
    leftovers: tuple[str, ...] = ()
    has_spec: bool = False
    wait_reason: str = ""
    start_problem: Problem | None = None
    code: tuple[KubeObject | None, ...] = ()
    has_orphans: bool = False
    network: str = ""
    now: float = 0.0

    @property
    def name(self) -> str:
        """Name of the Run."""
        return str(self.run["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Uid of the Run."""
        return str(self.run["metadata"]["uid"])

    @property
    def owner(self) -> str:
        """Username of the Run's owner, from its annotation, or ""."""
        return str(metadata.annotations_of(self.run).get(names.OWNER, ""))

    @property
    def generation(self) -> int:
        """Generation of the Run's spec."""
        return int(self.run["metadata"].get("generation") or 0)

    @property
    def is_deleted(self) -> bool:
        """Whether the Run is being deleted."""
        return metadata.is_deleted(self.run)

    @property
    def spec(self) -> RunSpec:
        """Spec of the Run.

        Raises:
            ValueError: The spec is invalid.
        """
        if self.parsed.spec is None:
            raise ValueError(f"the spec of {self.name} cannot be read")
        return self.parsed.spec

    @property
    def job(self) -> Job:
        """Job of the Run.

        Raises:
            ValueError: The job is invalid.
        """
        if self.parsed.job is None:
            raise ValueError(f"the job of {self.name} cannot be read")
        return self.parsed.job

    @functools.cached_property
    def status(self) -> Status:
        """Last status that the operator has written. An empty one if there is none, or if this version cannot read it."""
        try:
            return Status.model_validate(self.run.get("status") or {})
        except ValidationError:
            return Status()

    @property
    def started_job(self) -> Job:
        """Job of the last start, which its pods work on, even if the spec has another one since."""
        return self.record.job if self.record is not None and self.has_unapplied_job else self.job

    @property
    def own_cluster(self) -> KubeObject | None:
        """RayCluster of the Run. None if there is none, or if it belongs to another Run."""
        if self.ray_cluster is None:
            return None
        return self.ray_cluster if metadata.is_owned(self.ray_cluster, self.uid) else None

    @property
    def cluster_resumes(self) -> int | None:
        """Value of `spec.resumes` for which the Run's RayCluster was created. None without a RayCluster."""
        if self.own_cluster is None:
            return None
        text = metadata.annotations_of(self.own_cluster).get(runs.RESUMES, "0")
        return int(text) if text.isdecimal() else 0  # a user can change annotations

    @property
    def started_at(self) -> str | None:
        """Time of the last start, in Kubernetes' format. None before the first one."""
        return self.status.started if self.own_cluster is None else self.own_cluster["metadata"].get("creationTimestamp")

    @property
    def images(self) -> tuple[Image, ...]:
        """Images that the Run's pods have run, now or before, each with its digest."""
        return tuple(dict.fromkeys((*self.status.images, *self.pulled_images)))

    @property
    def last_resumes(self) -> int:
        """Value of `spec.resumes` for which the Run was started last. The status may lack a start that was just made."""
        return max(self.status.resumes, self.cluster_resumes or 0)

    @property
    def is_superseded(self) -> bool:
        """Whether `spec.resumes` was raised since the last start."""
        if self.own_cluster is None:
            return self.spec.resumes > self.status.resumes
        return self.spec.resumes != self.cluster_resumes

    @property
    def is_record_of_another(self) -> bool:
        """Whether the record belongs to an earlier Run of the same name with another owner."""
        submission = {} if self.record is None else self.record.submission
        owner = submission.get(labels.OWNER, "")  # "" without the admission policy, which sets it
        return submission.get(labels.UID) != self.uid and owner not in ("", self.owner)

    @property
    def is_recorded(self) -> bool:
        """Whether the record belongs to this Run, or to an earlier one of the same name that this one resumes."""
        if self.record is None or self.is_record_of_another:
            return False
        is_resumed = self.parsed.spec is not None and self.parsed.spec.resumes > 0
        return is_resumed or self.record.submission.get(labels.UID) == self.uid

    @property
    def own_record(self) -> Snapshot | None:
        """The record, if the Run is recorded; see `is_recorded`."""
        return self.record if self.is_recorded else None

    @property
    def last_start_time(self) -> float:
        """Time of the Run's last start, from the record, in seconds since the epoch. 0 if it was never started."""
        return float(self.own_record.submission.get(labels.BEGUN, 0.0)) if self.own_record else 0.0

    @property
    def desired_state(self) -> RunState | None:
        """Desired state in the record. None if the Run has no record."""
        return self.own_record.desired.state if self.own_record else None

    @property
    def is_alive(self) -> bool:
        """Whether a controller works on the run."""
        return self.record is not None and self.record.alive

    @property
    def is_status_current(self) -> bool:
        """Whether the status in the record belongs to the last start: it is newer, and its controller works or has ended."""
        if self.record is None or self.record.status.updated < self.last_start_time:
            return False
        return self.record.alive or self.record.status.has_ended(self.last_start_time)

    @property
    def has_begun(self) -> bool:
        """Whether a controller has worked on the run since its last start."""
        controller_start = None if self.record is None else self.record.status.started
        return controller_start is not None and controller_start >= self.last_start_time

    @functools.cached_property
    def passed_deadline(self) -> str:
        """Description of a deadline of the job that has passed. "" if none has, or if the run has ended or is resumed."""
        if self.parsed.job is None or not self.last_start_time or self.spec.resumes > self.last_resumes:
            return ""
        if self.record is None or self.record.status.has_ended(self.last_start_time):
            return ""
        limits = self.started_job.cluster
        seconds_since_start = self.now - self.last_start_time
        if limits.deadline is not None and seconds_since_start > limits.deadline:
            return f"it has not ended within {limits.deadline:g} s (cluster.deadline)"
        worked_before_start = float(self.record.submission.get(WORKED, 0.0))
        has_worked = self.record.status.worked > worked_before_start
        if limits.pending_deadline is not None and seconds_since_start > limits.pending_deadline and not has_worked:
            return f"no trial could start within {limits.pending_deadline:g} s (cluster.pending_deadline)"
        return ""

    @property
    def has_unapplied_job(self) -> bool:
        """Whether the spec's job was changed since the last start. The change applies only when the run is resumed."""
        if self.own_cluster is None or self.cluster_resumes != self.spec.resumes:
            return False
        return bool(metadata.annotations_of(self.own_cluster).get(names.SPEC_HASH) != planning.spec_hash(self.job))

    @property
    def is_failing(self) -> bool:
        """Whether the run must fail, because a deadline has passed or the desired state is FAILED."""
        return bool(self.passed_deadline) or self.desired_state is RunState.FAILED

    @property
    def is_stopping(self) -> bool:
        """Whether the desired state is a stop. A stop is completed before anything else happens to the run."""
        return self.desired_state in (RunState.PAUSED, RunState.CANCELLED)

    @functools.cached_property
    def phase(self) -> Phase:
        """Phase of the Run; `PHASES` has the meaning of each."""
        if self.own_cluster is None:
            if self.ray_cluster is not None or self.leftovers or self.is_alive:  # of another Run, or of an earlier start
                return Phase.LEAVING
            if self.record is None or not self.is_status_current:
                return Phase.ABSENT
            # A pause counts only in this Run's own record. Otherwise a paused earlier Run of the same name would prevent the
            # start of this one.
            return Phase.GONE if self.is_recorded or self.record.status.state.is_ended else Phase.ABSENT
        if metadata.is_deleted(self.own_cluster):
            return Phase.LEAVING
        if self.is_alive:
            return Phase.RUNNING
        if self.is_status_current:
            return Phase.ENDED
        if self.controller_runs:  # it starts, or it has lost the lock because the gateway is unavailable
            return Phase.OPENING
        return Phase.LOST if self.has_begun else Phase.STARTING
