"""The objects of runs in one namespace that a user makes: a Run, and the ConfigMaps with its code.

What a run is made of, its pods among it, is made and removed by the operator, which follows the Run's spec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trialplane import errors
from trialplane.errors import InputError, RunExists, TargetError
from trialplane.job.kinds import Job
from trialplane.kube import kinds, metadata, refusal
from trialplane.kube.cluster import Cluster
from trialplane.plan import pack as packing
from trialplane.plan import run as runs
from trialplane.plan.plan import Plan
from trialplane.plan.run import ParsedRun, Status
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

PATIENCE = 120.0  # seconds for a Run to be removed, with its pods
PAUSE = 0.5


@dataclasses.dataclass(frozen=True)
class Submission:
    """Submission of a run: its job, facts, and packed code."""

    job: Job
    facts: Mapping[str, Any]
    code: bytes


@dataclasses.dataclass(frozen=True)
class Run:
    """A Run as the API server has it.

    Attributes:
        thing: the object.
        read: its spec and its job, or why these cannot be read.
        status: the operator's; of one that this version cannot read the state is Unknown.
    """

    thing: Mapping[str, Any]
    read: ParsedRun
    status: Status

    @classmethod
    def of(cls, thing: Mapping[str, Any]) -> Run:
        """Read a Run from its object."""
        written = thing.get("status") or {}
        try:
            status = Status.model_validate(written)
        except ValidationError:
            status = Status(state="Unknown", reason=f"the operator reports {str(written.get('state'))[:40]}")
        return cls(thing, runs.read(thing), status)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.thing["metadata"]["name"])

    @property
    def created(self) -> float:
        """When it was made, in seconds since the epoch."""
        return metadata.created(self.thing)

    @property
    def submitted(self) -> float:
        """When it was submitted, in seconds since the epoch; one that nobody submitted was made."""
        spec = self.read.spec
        submitted = spec.submission.get("submitted") if spec else None
        return float(submitted) if isinstance(submitted, (int, float)) else self.created

    @property
    def owner(self) -> str:
        """Owner, as a username of the API server; "" if it was created without the admission policy."""
        return self._annotation(names.OWNER)

    @property
    def changer(self) -> str:
        """User who changed its spec last."""
        return self._annotation(names.CHANGED_BY) or self.owner

    def _annotation(self, name: str) -> str:
        return str((self.thing["metadata"].get("annotations") or {}).get(name, ""))

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return metadata.is_deleted(self.thing)

    @property
    def is_seen(self) -> bool:
        """Whether its status is of its newest spec."""
        return self.status.observedGeneration >= int(self.thing["metadata"].get("generation") or 1)

    @property
    def is_started(self) -> bool:
        """Whether it was started as often as its spec asks."""
        return self.read.spec is None or self.status.resumes >= self.read.spec.resumes

    @property
    def state(self) -> RunState:
        """The run's according to the operator; one that cannot be started has failed."""
        return RunState.FAILED if self.status.state == "Invalid" else RunState(self.status.state.upper())

    @property
    def is_settled(self) -> bool:
        """Whether its newest spec was followed to the end: it has ended or is paused, and holds no pods."""
        return self.is_observed and (self.state.is_ended or self.state is RunState.PAUSED)


class Objects:
    """The objects of runs in a cluster's namespace.

    Args:
        cluster: where they are.
        pause: waits for a number of seconds.
    """

    def __init__(self, cluster: Cluster, pause: Callable[[float], None] = time.sleep) -> None:
        self.cluster = cluster
        self._pause = pause

    @functools.cached_property
    def site(self) -> Site:
        """Installation of the chart.

        Raises:
            TargetError: the namespace is no team's, or the chart of another version.
        """
        namespace, context = self.cluster.namespace, self.cluster.context
        try:
            config_map = self.cluster.read(kinds.CONFIG_MAP, names.SITE)
        except TargetError as error:  # who may read nothing here may be in the wrong place
            teams = self.teams()
            if not teams or namespace in teams:
                raise
            raise TargetError(refusal.no_team(namespace, context, teams)) from error
        text = ((config_map or {}).get("data") or {}).get(names.SITE_KEY)
        if not text:
            installed = self.cluster.call("GET", f"/apis/{runs.API_VERSION}").status != 404
            raise TargetError(refusal.no_team(namespace, context, self.teams(), installed=installed))
        return Site.read(text, namespace)

    def teams(self) -> list[str]:
        """Namespaces of teams, as far as this user may see them: by what the chart made in each, or by their own label."""
        try:
            config_maps = self.cluster.list(kinds.CONFIG_MAP, fields=f"metadata.name={names.SITE}", everywhere=True)
            return sorted(
                item["metadata"]["namespace"] for item in config_maps if names.SITE_KEY in (item.get("data") or {})
            )
        except TargetError:
            with contextlib.suppress(TargetError):
                return sorted(
                    item["metadata"]["name"] for item in self.cluster.list(kinds.NAMESPACE, selector=names.CONTROL)
                )
        return []

    @functools.cached_property
    def user(self) -> str:
        """Username at the API server.

        Raises:
            TargetError: it does not say.
        """
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = self.cluster.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=kind)
        if not answer.ok:
            raise self.cluster.refused(answer, "create", "selfsubjectreviews.authentication.k8s.io")
        return str(answer.json()["status"]["userInfo"]["username"])

    def runs(self) -> list[Run]:
        """All Runs."""
        return [Run.of(thing) for thing in self.cluster.list(kinds.RUN)]

    def run(self, name: str) -> Run | None:
        """The Run of that name, or None."""
        thing = self.cluster.read(kinds.RUN, name)
        return None if thing is None else Run.of(thing)

    def apply(self, plan: Plan, submitted: float, *, state: RunState = RunState.RUNNING, resumes: int = 0) -> None:
        """Create a Run with its code or neither; complete what the same submission has created before.

        Args:
            plan: of the run.
            submitted: seconds since the epoch.
            state: the desired one.
            resumes: of its spec.

        Raises:
            RunExists: the name is taken, by a concurrent submission or by an object of no run.
        """
        thing, *code = runs.manifests(plan, self.cluster.namespace, submitted, self.user)
        thing["spec"] |= {"state": runs.state_name(state), **({"resumes": resumes} if resumes else {})}
        applied = self.cluster.apply(thing, _manager(thing), force=False)
        uid = self._same(plan) if applied is None else str(applied.thing["metadata"]["uid"])
        try:
            self._apply_code(plan, uid, code)
        except BaseException:
            if applied is not None and applied.is_new:
                self.cluster.delete(kinds.RUN, plan.run)
            raise

    def change(self, run: Run, **fields: Any) -> None:
        """Set these fields of a Run's spec; None removes one. The Run then names this user as who changed it.

        Raises:
            TargetError: the spec was changed since it was read.
        """
        current_spec = run.thing["spec"]
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/generation", "value": run.thing["metadata"].get("generation")}
        ]
        for name, value in fields.items():
            if value is not None:
                patch.append({"op": "add", "path": f"/spec/{name}", "value": value})
            elif name in current_spec:
                patch.append({"op": "remove", "path": f"/spec/{name}"})
        if run.changer != self.user:
            if not run.thing["metadata"].get("annotations"):
                patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
            place = names.CHANGED_BY.replace("/", "~1")
            patch.append({"op": "add", "path": f"/metadata/annotations/{place}", "value": self.user})
        self.cluster.patch(kinds.RUN, run.name, patch)

    def remove(self, name: str) -> None:
        """Remove a Run with all that belongs to it, and wait until it is gone.

        Raises:
            TargetError: it is not removed in time.
        """
        existed = self.cluster.delete(kinds.RUN, name)
        deadline = time.monotonic() + PATIENCE
        while existed and self.cluster.read(kinds.RUN, name) is not None:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"the Run {name} in {self.cluster.place} was not removed within {PATIENCE:.0f} s; "
                    f"`kubectl --context {self.cluster.context} -n {self.cluster.namespace} describe run {name}` shows why"
                )
            self._pause(PAUSE)

    def wait_for_pods(self, name: str) -> None:
        """Wait until each pod of a run is gone, or ends.

        Raises:
            TargetError: that takes too long.
        """
        deadline = time.monotonic() + PATIENCE
        while remaining := [pod for pod in self.pods(name) if not metadata.is_deleted(pod)]:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"{errors.counted(len(remaining), 'pod')} of {name} in {self.cluster.place} did not begin to end within "
                    f"{PATIENCE:.0f} s; `kubectl --context {self.cluster.context} -n {self.cluster.namespace} describe run "
                    f"{name}` shows why"
                )
            self._pause(PAUSE)

    def submission(self, run: Run) -> Submission | None:
        """Return the submission of a run, from its Run and its code. None if a part is missing or unreadable."""
        if run.read.job is None or run.read.spec is None:
            return None
        code = run.read.spec.code
        parts = runs.parts([self.cluster.read(kinds.CONFIG_MAP, name) for name in code.config_maps])
        packed = [part for part in parts if part is not None]
        if len(packed) < len(parts):
            return None
        return Submission(run.read.job, {**run.read.spec.submission, "code_hash": code.sha256}, b"".join(packed))

    def pods(self, run: str, role: str = "") -> list[dict[str, Any]]:
        """The pods of a run, or those of one role, the newest first."""
        selector = f"{names.RUN}={run}" + (f",{names.ROLE}={role}" if role else "")
        return sorted(self.cluster.list(kinds.POD, selector=selector), key=metadata.created, reverse=True)

    def trial_pods(self, run: str, role: str) -> list[str]:
        """Names of the pods of one of a run's roles that are not being removed, the newest first."""
        run_pods = self.pods(run, names.TRIAL)
        return [
            pod["metadata"]["name"]
            for pod in run_pods
            if not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"]["labels"].get(names.GROUP_LABEL) == names.group(role)
        ]

    def _same(self, plan: Plan) -> str:
        """The uid of the existing Run, if that is of the same job and code.

        Raises:
            RunExists: it is of another submission.
        """
        existing = self.run(plan.run)
        existing_spec = None if existing is None else existing.read.spec
        if (
            existing is None
            or existing_spec is None
            or (existing.read.job, existing_spec.code.sha256) != (plan.job, plan.pack.sha256)
        ):
            raise RunExists(
                f"another {plan.run} was submitted a moment ago; `platform status {plan.run}` shows it, or give this one "
                "another name with --name"
            )
        return str(existing.thing["metadata"]["uid"])

    def _apply_code(self, plan: Plan, uid: str, code: Sequence[Mapping[str, Any]]) -> None:
        """Create those of the ConfigMaps with a run's code that are not there; users may not change any.

        Each says that it goes with its Run, as the operator also has it for those that were made otherwise.

        Raises:
            RunExists: there are some with something else in them.
        """
        existing_parts = [self.cluster.read(kinds.CONFIG_MAP, part["metadata"]["name"]) for part in code]
        present = [part["metadata"]["name"] for part in existing_parts if part is not None]
        # Compared as one archive, and not part by part: builds of zlib differ.
        parts = runs.parts([ours if part is None else part for part, ours in zip(existing_parts, code, strict=True)])
        try:
            same = not present or packing.digest(b"".join(part or b"" for part in parts)) == plan.pack.sha256
        except InputError:
            same = False
        if not same:
            name, where = present[0], f"kubectl --context {self.cluster.context} -n {self.cluster.namespace}"
            raise RunExists(
                f"the name is taken: the ConfigMap {name} in {self.cluster.place} holds something else; choose another with "
                f"--name, or have it removed if it is not needed: `{where} delete configmap {' '.join(present)}`"
            )
        for part, ours in zip(existing_parts, code, strict=True):
            if part is None:
                owners = {"ownerReferences": [runs.owner_reference(plan.run, uid)]}
                self.cluster.create(kinds.CONFIG_MAP, {**ours, "metadata": {**ours["metadata"], **owners}})


def _manager(run: Mapping[str, Any]) -> str:
    """The field manager of one submission, distinct so that a concurrent one of the same name is refused."""
    return f"{names.MANAGER}-{hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]}"
