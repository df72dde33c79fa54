"""What the statuses of a RayJob mean for a run: one table, with a reason per row. Pure.

A RayJob has two statuses: `jobDeploymentStatus` of what KubeRay does, `jobStatus` of the Ray job in it. Both are strings
that a newer KubeRay may add to; what is not in the table is UNKNOWN, never an error.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from trialplane.wire.states import RunState

# jobDeploymentStatus → the run's state; "Complete" and "Running" ask `jobStatus` too.
_DEPLOYMENT = {
    "": RunState.PENDING,  # the operator has not seen it yet, or is not running
    "Initializing": RunState.PENDING,  # the head pod and the worker pods are being made
    "Waiting": RunState.PENDING,  # interactive mode, which we do not use; it has not started either way
    "Retrying": RunState.PENDING,  # a try failed and backoffLimit allows another: a new RayCluster is on its way
    "Suspending": RunState.PENDING,  # Kueue preempts it; it will run again
    "Suspended": RunState.PENDING,  # Kueue has not admitted it (yet, or again)
    "Failed": RunState.FAILED,  # the Ray job failed, a deadline passed, or the submitter gave up: see `reason`
    "ValidationFailed": RunState.FAILED,  # KubeRay refuses the spec and does not retry
}
# jobStatus while the deployment is "Running".
_RUNNING = {
    "": RunState.PENDING,  # the cluster is ready, the submitter has not contacted it yet
    "PENDING": RunState.PENDING,  # Ray has the job and starts its supervisor
    "RUNNING": RunState.RUNNING,  # the controller's process lives
    "SUCCEEDED": RunState.RUNNING,  # ended; KubeRay waits for the submitter before it sets Complete
    "FAILED": RunState.RUNNING,  # the same
    "STOPPED": RunState.RUNNING,  # the same
}
# jobStatus once the deployment is "Complete".
_COMPLETE = {
    "SUCCEEDED": RunState.SUCCEEDED,  # exit code 0 of the controller
    "FAILED": RunState.FAILED,  # any other; the ledger has whether the user requested it
    "STOPPED": RunState.PAUSED,  # the Ray job was stopped in its dashboard; trials are left
}
_OVER = frozenset({"Complete", "Failed", "ValidationFailed"})
# `reason` of a failed RayJob → explanation.
_REASONS = {
    "SubmissionFailed": "the submitter could not hand the controller to Ray",
    "DeadlineExceeded": "it exceeded its time limit (activeDeadlineSeconds)",
    "PreRunningDeadlineExceeded": "its pods did not start in time (preRunningDeadlineSeconds)",
    "AppFailed": "the controller failed",
    "JobDeploymentStatusTransitionGracePeriodExceeded": "the submitter ended, and the Ray job did not report its state",
    "JobStatusCheckTimeoutExceeded": "the head pod's dashboard could not be reached for five minutes; a NetworkPolicy may "
    "keep the KubeRay operator from it",
    "ValidationFailed": "KubeRay refuses what was submitted",
}

_LOG = "last available logs"  # the controller's, which Ray puts into its message
_EXCEPTION = re.compile(r"^[\w.]+: ", re.M)
_LONGEST = 400  # characters of a message


def state(ray_job: Mapping[str, Any]) -> RunState:
    """The run's state according to its RayJob."""
    status = ray_job.get("status") or {}
    deployment = status.get("jobDeploymentStatus") or ""
    job = status.get("jobStatus") or ""
    if deployment == "Running":
        return _RUNNING.get(job, RunState.UNKNOWN)
    if deployment == "Complete":
        return _COMPLETE.get(job, RunState.UNKNOWN)
    return _DEPLOYMENT.get(deployment, RunState.UNKNOWN)


def is_over(ray_job: Mapping[str, Any]) -> bool:
    """Whether KubeRay will do nothing more for it. One that is being deleted is over too."""
    status = ray_job.get("status") or {}
    return status.get("jobDeploymentStatus") in _OVER or is_deleted(ray_job)


def is_deleted(ray_job: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return bool(ray_job["metadata"].get("deletionTimestamp"))


def explanation(ray_job: Mapping[str, Any]) -> str:
    """Why it failed, with KubeRay's own message; "" when it did not."""
    status = ray_job.get("status") or {}
    reason, message = status.get("reason") or "", _message(str(status.get("message") or ""))
    if not reason and status.get("jobDeploymentStatus") not in ("Failed", "ValidationFailed"):
        return ""
    meaning = _REASONS.get(reason, reason)
    return f"{meaning}: {message}" if meaning and message else meaning or message


def _message(text: str) -> str:
    """KubeRay's message in one line; of the log that Ray puts into it only the exception at its end, if there is one."""
    head, _, log = text.partition(_LOG)
    if log:
        log = log[log.find(":\n") + 1 :]
        ends = list(_EXCEPTION.finditer(log))
        text = f"{head.rstrip(', ')}: {log[ends[-1].start() :] if ends else log.rstrip()[-_LONGEST // 2 :]}"
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def phase(ray_job: Mapping[str, Any]) -> str:
    """KubeRay's own status, for those without an explanation."""
    status = ray_job.get("status") or {}
    deployment, job = status.get("jobDeploymentStatus") or "New", status.get("jobStatus") or ""
    return f"{deployment}, {job}" if job else deployment


def created(thing: Mapping[str, Any]) -> float:
    """When an object was made, in seconds since the epoch."""
    return moment(thing["metadata"].get("creationTimestamp")) or 0.0


def ended(ray_job: Mapping[str, Any]) -> float | None:
    """When its Ray job ended."""
    return moment((ray_job.get("status") or {}).get("endTime"))


def moment(text: str | None) -> float | None:
    """A time as Kubernetes writes it, in seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
