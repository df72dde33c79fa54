"""A run as an object of the cluster: a plan → a Run, and a Run → what it asks for. Pure data.

A Run holds the resolved job, which code it runs, and the desired state; its code is a ConfigMap of its own. `submit` applies
what `--dry-run` prints. The reconciler makes everything else, and writes the Run's status.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trialplane.errors import Issue
from trialplane.plan import plan as planning
from trialplane.plan import pods
from trialplane.plan.plan import Plan
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import cluster
from trialplane.wire.states import RunState

VERSION = "v1alpha1"
API_VERSION = f"{cluster.GROUP}/{VERSION}"
KIND = "Run"
# `spec.state` ↔ the desired state.
STATES = {"Running": RunState.RUNNING, "Paused": RunState.PAUSED, "Cancelled": RunState.CANCELLED}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Code(_Part):
    """The packed code: a ConfigMap with the key `code.tar.gz`, and the SHA-256 of that in hex."""

    config_map: str = Field(alias="configMap")
    sha256: str


class Asked(_Part):
    """A Run's spec.

    Attributes:
        job: as resolved; checked by `job_of`.
        code: what it runs.
        submission: where it came from: user, revision, folder, command, time; see `Plan.submission`.
        state: what it is to be: `Running`, `Paused` or `Cancelled`.
        parallel: trials at a time, or workers of a collection; None for what the job says.
        resumes: how often an ended or paused run was asked to go on; a higher number than `status.resumes` starts it again.
        now: whether a pause or cancel kills what runs, instead of letting it end cleanly.
    """

    job: dict[str, Any]
    code: Code
    submission: dict[str, Any] = Field(default_factory=dict)
    state: Literal["Running", "Paused", "Cancelled"] = "Running"
    parallel: int | None = Field(default=None, ge=1, le=10_000)
    resumes: int = Field(default=0, ge=0)
    now: bool = False

    @property
    def desired(self) -> RunState:
        """The desired state."""
        return STATES[self.state]


@dataclasses.dataclass(frozen=True)
class Read:
    """What was read of a Run: its spec and its job, or the issues that prevent it."""

    asked: Asked | None = None
    job: Job | None = None
    issues: tuple[Issue, ...] = ()


def manifests(plan: Plan, namespace: str, submitted: float) -> list[dict[str, Any]]:
    """The Run, then the ConfigMap with its code.

    Args:
        plan: of the run.
        namespace: where it is to be; "" leaves it out.
        submitted: seconds since the epoch.
    """
    name = cluster.code_map(plan.run)
    spec = {
        "state": "Running",
        "job": plan.job.model_dump(mode="json"),
        "code": {"configMap": name, "sha256": plan.pack.sha256},
        "submission": plan.submission(submitted),
    }
    code = {cluster.CODE_KEY: base64.b64encode(plan.pack.data).decode("ascii")}
    made: list[dict[str, Any]] = [
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(plan, plan.run), "spec": spec},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, name), "binaryData": code, "immutable": True},
    ]
    if namespace:
        for one in made:
            one["metadata"]["namespace"] = namespace
    return made


def read(run: Mapping[str, Any]) -> Read:
    """The spec and the job of a Run, as the API server has it; it may have been written by hand."""
    name = str(run["metadata"]["name"])
    issues = planning.check_name(name)
    try:
        asked = Asked.model_validate(run.get("spec") or {})
    except ValidationError as error:
        return Read(issues=(*issues, *_issues(error, "spec")))
    try:
        job = jobs.read(asked.job)
    except ValidationError as error:
        return Read(asked, issues=(*issues, *_issues(error, "spec", "job")))
    return Read(asked, job, tuple(issues))


def _metadata(plan: Plan, name: str) -> dict[str, Any]:
    return {"name": name, "labels": pods.labels(plan)}


def _issues(error: ValidationError, *where: str) -> list[Issue]:
    return [Issue((*where, *map(str, each["loc"])), each["msg"], "") for each in error.errors()]
