"""What there is of one Run at one moment: the Run, its RayCluster, its record in the ledger. Pure.

A Run is started once for each number of `spec.resumes`. The RayCluster names the one that it was made for, and
`status.resumes` and `status.started` keep it when the RayCluster is gone. The ledger has when a start was begun, so a status
is of this start if it was written after that; and that a run is over is what the ledger says, and nobody else.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from trialplane.errors import SpecError
from trialplane.job.kinds import Job
from trialplane.kube import metadata
from trialplane.ledger.archive import Recorded
from trialplane.plan import changes as changing
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.run import Image, ParsedRun, RunSpec, Status
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.records import Change
from trialplane.wire.states import RunState

Thing = Mapping[str, Any]

WORKED = "worked"  # seconds for which it had worked when its last start was recorded; see `RunStatus`
_STOPS = (RunState.PAUSED, RunState.CANCELLED)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why nothing is started: `reason` in one word, `message` for people."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class View:
    """What was read of a Run.

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
        why: why not all of its pods run, or "".
        blocked: what was found wrong when it was to be started.
        code: the ConfigMaps with its code, as the Run names them, when it is to be started; None for one that is not there.
        has_orphans: whether one of them is not this Run's yet.
        network: the digest of the network policies that its pods should have.
        now: seconds since the epoch.
    """

    run: Thing
    read: ParsedRun
    ray_cluster: Thing | None = None
    recorded: Recorded | None = None
    pods: tuple[str, ...] = ()
    pulled: tuple[Image, ...] = ()
    controller_runs: bool = False
    is_locked_out: bool = False
    leftovers: tuple[str, ...] = ()
    has_spec: bool = False
    why: str = ""
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
    def is_anothers(self) -> bool:
        """Whether the ledger's record is of a Run of its name that another user owned."""
        known = {} if self.recorded is None else self.recorded.submission
        return known.get(labels.UID) != self.uid and known.get(labels.OWNER, "") not in ("", self.owner)

    @property
    def generation(self) -> int:
        """Of its spec."""
        return int(self.run["metadata"].get("generation") or 0)

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return metadata.is_deleted(self.run)

    @property
    def asked(self) -> RunSpec:
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
    def mine(self) -> Thing | None:
        """The RayCluster, if it is this Run's."""
        if self.ray_cluster is None:
            return None
        return self.ray_cluster if metadata.is_owned(self.ray_cluster, self.uid) else None

    @property
    def start(self) -> int | None:
        """The `resumes` that its RayCluster was made for; None without one."""
        if self.mine is None:
            return None
        text = (self.mine["metadata"].get("annotations") or {}).get(runs.RESUMES, "0")
        return int(text) if str(text).isdecimal() else 0

    @property
    def started(self) -> str | None:
        """When it was started last."""
        return self.status.started if self.mine is None else self.mine["metadata"].get("creationTimestamp")

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that its pods have run, each once for each digest."""
        return tuple(dict.fromkeys((*self.status.images, *self.pulled)))

    @property
    def unkept(self) -> tuple[Image, ...]:
        """Those of its images that the ledger does not have."""
        kept = {} if self.recorded is None else self.recorded.images
        return tuple(one for one in self.images if one.digest not in kept.get(one.image, ()))

    @property
    def resumes(self) -> int:
        """The number that it was started for last."""
        return max(self.status.resumes, self.start or 0)

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

    @functools.cached_property
    def change(self) -> Change | None:
        """The change of its spec that the ledger has not; None if it has the newest.

        Changes that follow each other before they are seen are one, by who made the last, and it says how many they were.
        """
        if self.recorded is None or not self.is_recorded or self.read.spec is None:
            return None
        last = self.recorded.change
        before = last if last is not None and last.uid == self.uid else None
        seen = 0 if before is None else before.generation
        if self.generation <= seen:
            return None
        asked = _asked(self.asked, self.read.job)
        if before is not None:
            what = ", ".join(_differences(before.asked, asked)) or "fields without effect"
        else:
            what = "submitted" if not self.asked.resumes else "resumed, as a new Run"
        if self.generation - seen > 1:
            what += f" (the last of {self.generation - seen} changes since {'it was made' if before is None else 'then'})"
        annotations = self.run["metadata"].get("annotations") or {}
        who = str(annotations.get(names.CHANGED_BY) or self.owner)
        return Change(_changed(self.run), who, what, self.uid, self.generation, asked)

    @property
    def alive(self) -> bool:
        """Whether a controller works on it."""
        return self.recorded is not None and self.recorded.alive

    @property
    def may_return(self) -> bool:
        """Whether a controller works on it, or runs and has not ended it: while the gateway is away it holds no lock."""
        return self.alive or (self.controller_runs and not self.is_current)

    @property
    def is_current(self) -> bool:
        """Whether the ledger's status is of the last start: its controller has written one since and lives, or has ended."""
        known, since = self.recorded, self.begun
        return known is not None and known.status.updated >= since and (known.alive or known.status.has_ended(since))

    @property
    def is_over(self) -> bool:
        """Whether its RayCluster has nothing left to do: it is being deleted, or the ledger has that its run is over."""
        return self.mine is not None and not self.alive and (metadata.is_deleted(self.mine) or self.is_current)

    @property
    def is_enclosed(self) -> bool:
        """Whether its pods, if it has any, have the network policies that they should have."""
        if self.mine is None or metadata.is_deleted(self.mine):
            return True
        return (self.mine["metadata"].get("annotations") or {}).get(names.NETWORK_HASH) == self.network

    @property
    def is_expired(self) -> bool:
        """Whether its end is in its status, and what is left of its pods was kept for as long as the job says."""
        if not self.is_over or not self.status.since or self.status.resumes != self.start:
            return False
        ended = self.status.state in ("Succeeded", "Failed", "Cancelled") or (
            self.status.state == "Paused" and self.is_current
        )
        job = self.started_job if self.read.job is not None else self.recorded.job if self.recorded is not None else None
        kept = 0.0 if job is None else job.cluster.ttl
        return ended and self.now >= (metadata.moment(self.status.since) or 0.0) + kept

    @property
    def has_begun(self) -> bool:
        """Whether a controller has worked on it since its last start was recorded."""
        started = None if self.recorded is None else self.recorded.status.started
        return started is not None and started >= self.begun

    @property
    def is_failing(self) -> bool:
        """Whether the ledger has that it is to fail, as one of its deadlines was over; a resume revokes it."""
        return self.is_recorded and self.recorded is not None and self.recorded.desired.state is RunState.FAILED

    @property
    def is_active(self) -> bool:
        """Whether a controller works on it or is being started."""
        return self.alive or (self.mine is not None and not self.is_over)

    @property
    def is_stopping(self) -> bool:
        """Whether the ledger has that it is to stop, which nothing revokes before it has."""
        return self.is_recorded and self.recorded is not None and self.recorded.desired.state in _STOPS

    @functools.cached_property
    def overdue(self) -> str:
        """Which of its deadlines is over, for people; "" if none is, or if the run has ended."""
        if self.read.job is None or not self.begun or self.asked.resumes > self.resumes:
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
    def is_settled(self) -> bool:
        """Whether a run without a RayCluster has ended, or paused by itself, and was not resumed since."""
        if self.asked.resumes > self.status.resumes or self.is_stopping:
            return False
        if self.overdue or self.is_failing:
            return True
        if self.recorded is None:
            return False
        return self.is_current and (self.is_recorded or self.recorded.status.state.is_ended)

    @functools.cached_property
    def problem(self) -> Problem | None:
        """Why nothing is started or changed; None when all is well."""
        if self.read.issues:
            return Problem("Invalid", str(SpecError(self.read.issues)))
        if self.ray_cluster is not None and self.mine is None and not self._is_leaving:
            return Problem(
                "NameTaken",
                f"the RayCluster {self.name} is not of this Run; give the Run another name, or, if nobody needs the other, "
                f"`kubectl delete raycluster {self.name}`",
            )
        return self._unlike() or self.blocked

    @property
    def _is_leaving(self) -> bool:
        """Whether the RayCluster is of an earlier Run of its name, with which it is being removed."""
        owners = [] if self.ray_cluster is None else self.ray_cluster["metadata"].get("ownerReferences") or []
        return (runs.KIND, self.name) in [(owner.get("kind"), owner.get("name")) for owner in owners]

    @property
    def is_ignored(self) -> bool:
        """Whether the job was changed since the start, without a resume."""
        if self.mine is None or self.start != self.asked.resumes:
            return False
        annotations = self.mine["metadata"].get("annotations") or {}
        return bool(annotations.get(names.SPEC_HASH) != planning.spec_hash(self.job))

    def _unlike(self) -> Problem | None:
        """Whether the ledger's record is of another job or other code."""
        if self.recorded is None:
            return None
        if self.is_anothers:
            whose = self.recorded.submission[labels.OWNER]
            text = (
                f"there was a run {self.name} of {whose}, whose record only its owner goes on with; give the Run another "
                f"name, or `platform delete {self.name}` the record first"
            )
            return Problem("NameTaken", text)
        old = self.recorded.job
        same_code = str(self.recorded.submission.get("code_hash", "")) == self.asked.code.sha256
        if not self.is_recorded:
            lines = changing.changed_fields(old, self.job) + ([] if same_code else ["code: changed"])
            return Problem("NameTaken", changing.refusal(self.name, lines)) if lines else None
        issues = [issue.below("spec", "job") for issue in changing.unchangeable(old, self.job)]
        if not same_code:
            return Problem("Invalid", f"the code of {self.name} has changed; submit it under another name")
        return Problem("Invalid", str(SpecError(issues))) if issues else None


def _asked(asked: RunSpec, job: Job | None) -> dict[str, Any]:
    """What changes of a Run are about; the job by its digest."""
    return {
        "state": asked.state,
        "parallel": asked.parallel,
        "resumes": asked.resumes,
        "now": asked.now,
        "job": "" if job is None else planning.spec_hash(job),
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What changed, in words."""
    if after["resumes"] != before.get("resumes"):
        yield "resumed"
    if after["state"] != before.get("state"):
        yield f"state: {before.get('state')} → {after['state']}"
    if after["parallel"] != before.get("parallel"):
        yield f"parallel: {before.get('parallel') or 'as the job says'} → {after['parallel'] or 'as the job says'}"
    if after["now"] and not before.get("now"):
        yield "at once"
    if after["job"] != before.get("job"):
        yield "job changed"


def _changed(run: Thing) -> float:
    """When the spec of a Run was written last, in seconds since the epoch, as the API server noted it."""
    found = [
        one.get("time")
        for one in run["metadata"].get("managedFields") or []
        if not one.get("subresource") and "f:spec" in (one.get("fieldsV1") or {})
    ]
    return max((metadata.moment(time) or 0.0 for time in found), default=0.0) or metadata.created(run)
