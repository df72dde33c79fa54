"""Reads and writes the objects of runs in a namespace: Runs, the ConfigMaps with their code, and their pods.

A user creates and changes only the Run and these ConfigMaps. The operator creates and removes all other objects of the run,
such as its pods, according to the Run's spec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
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

PATIENCE = 120.0  # time limit for the removal of a Run and its pods, in seconds
PAUSE = 0.5  # seconds between checks of the removal


@dataclasses.dataclass(frozen=True)
class Submission:
    """Submission of a run.

    Attributes:
        job: Job of the run.
        facts: Facts about the submission; see `Plan.submission`.
        code: Packed code.
    """

    job: Job
    facts: Mapping[str, Any]
    code: bytes


@dataclasses.dataclass(frozen=True)
class Run:
    """A Run as the API server has it.

    Attributes:
        manifest: The object as plain JSON values.
        parsed: Parsed spec and job of the Run, or the issues of them.
        status: Status of the Run. Its state is Unknown if this version cannot read it.
    """

    manifest: Mapping[str, Any]
    parsed: ParsedRun
    status: Status

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Run:
        """Return the Run for an object of the API server."""
        status_fields = metadata.status_of(manifest)
        try:
            status = Status.model_validate(status_fields)
        except ValidationError:
            status = Status(state="Unknown", reason=f"the operator reports {str(status_fields.get('state'))[:40]}")
        return cls(manifest, runs.read(manifest), status)

    @property
    def name(self) -> str:
        """Name of the Run."""
        return str(self.manifest["metadata"]["name"])

    @property
    def created(self) -> float:
        """Creation time, in seconds since the epoch."""
        return metadata.creation_time(self.manifest)

    @property
    def submitted(self) -> float:
        """Time of the submission, in seconds since the epoch. For a Run created without `platform submit`, its creation."""
        spec = self.parsed.spec
        submitted = spec.submission.get("submitted") if spec else None
        return float(submitted) if isinstance(submitted, (int, float)) else self.created

    @property
    def owner(self) -> str:
        """Username of the owner at the API server. "" if the Run was created without the admission policy."""
        return self._annotation(names.OWNER)

    @property
    def changer(self) -> str:
        """Username of the user who changed the spec last."""
        return self._annotation(names.CHANGED_BY) or self.owner

    def _annotation(self, name: str) -> str:
        """Return the value of an annotation, or ""."""
        return str(metadata.annotations_of(self.manifest).get(name, ""))

    @property
    def is_deleted(self) -> bool:
        """Whether the Run is being deleted."""
        return metadata.is_deleted(self.manifest)

    @property
    def is_observed(self) -> bool:
        """Whether the operator has written the status for the newest spec."""
        return self.status.observedGeneration >= int(self.manifest["metadata"].get("generation") or 1)

    @property
    def is_started(self) -> bool:
        """Whether the operator has started the run since its last resume. True if the spec cannot be read."""
        return self.parsed.spec is None or self.status.resumes >= self.parsed.spec.resumes

    @property
    def state(self) -> RunState:
        """State of the run in the status. A Run that is invalid, and so cannot be started, has failed."""
        return RunState.FAILED if self.status.state == "Invalid" else RunState(self.status.state.upper())

    @property
    def is_settled(self) -> bool:
        """Whether the run has ended or is paused, with its newest spec, so that it has no pods."""
        return self.is_observed and (self.state.is_ended or self.state is RunState.PAUSED)


class Objects:
    """The objects of runs in the namespace of a client of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @functools.cached_property
    def site(self) -> Site:
        """Description of the chart's installation for this namespace.

        Raises:
            TargetError: The namespace is not that of a team, or the chart has another version.
        """
        namespace, context = self.cluster.namespace, self.cluster.context
        try:
            config_map = self.cluster.read(kinds.CONFIG_MAP, names.SITE)
        except TargetError as error:
            teams = self.teams()
            if not teams or namespace in teams:
                raise
            # The user may not read this namespace, but those of other teams. So the namespace is probably the wrong one.
            raise TargetError(refusal.no_team_message(namespace, context, teams, is_installed=True)) from error
        text = ((config_map or {}).get("data") or {}).get(names.SITE_KEY)
        if not text:
            is_installed = self.cluster.call("GET", f"/apis/{runs.API_VERSION}").status != 404
            raise TargetError(refusal.no_team_message(namespace, context, self.teams(), is_installed=is_installed))
        return Site.read(text, namespace)

    def teams(self) -> list[str]:
        """Return the namespaces of teams that this user may see.

        Each has the chart's ConfigMap. If the user may not list ConfigMaps, the namespaces with the chart's label are
        returned, or none if the user may not list namespaces either.
        """
        with contextlib.suppress(TargetError):
            config_maps = self.cluster.list(kinds.CONFIG_MAP, fields=f"metadata.name={names.SITE}", everywhere=True)
            of_teams = [item for item in config_maps if names.SITE_KEY in (item.get("data") or {})]
            return sorted(item["metadata"]["namespace"] for item in of_teams)
        with contextlib.suppress(TargetError):
            namespaces = self.cluster.list(kinds.NAMESPACE, selector=names.CONTROL)
            return sorted(item["metadata"]["name"] for item in namespaces)
        return []

    @functools.cached_property
    def user(self) -> str:
        """Username of this user at the API server.

        Raises:
            TargetError: The API server does not return it.
        """
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = self.cluster.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
        if not answer.ok:
            raise self.cluster.refusal_error(answer, "create", "selfsubjectreviews.authentication.k8s.io")
        return str(answer.json()["status"]["userInfo"]["username"])

    def runs(self) -> list[Run]:
        """Return all Runs in the namespace."""
        return [Run.of(manifest) for manifest in self.cluster.list(kinds.RUN)]

    def run(self, name: str) -> Run | None:
        """Return the Run of this name, or None if there is none."""
        manifest = self.cluster.read(kinds.RUN, name)
        return None if manifest is None else Run.of(manifest)

    def apply(self, plan: Plan, submitted: float, *, state: RunState = RunState.RUNNING, resumes: int = 0) -> None:
        """Create a Run and the ConfigMaps with its code. If the ConfigMaps cannot be created, delete the new Run.

        If the same submission was interrupted before, only the missing objects are created.

        Args:
            plan: Plan of the run.
            submitted: Time of the submission, in seconds since the epoch.
            state: Desired state.
            resumes: Value of the spec's `resumes`.

        Raises:
            RunExists: The name is taken, by another submission or by an object that does not belong to a run.
        """
        manifest, *code_manifests = runs.manifests(plan, self.cluster.namespace, submitted, self.user)
        manifest["spec"]["state"] = runs.state_name(state)
        if resumes:
            manifest["spec"]["resumes"] = resumes
        # None: the Run exists, with other values in fields that an earlier submission has set.
        applied = self.cluster.apply(manifest, _field_manager(manifest), force=False)
        uid = self._existing_uid(plan) if applied is None else str(applied.manifest["metadata"]["uid"])
        try:
            self._apply_code(plan, uid, code_manifests)
        except BaseException:
            if applied is not None and applied.is_new:
                self.cluster.delete(kinds.RUN, plan.run)
            raise

    def change(self, run: Run, **fields: Any) -> None:
        """Change fields of a Run's spec. The Run then names this user as the user who changed it last.

        Args:
            run: Run as it was read.
            fields: New values, by field. None removes a field.

        Raises:
            TargetError: The spec was changed since it was read.
        """
        current_spec = run.manifest["spec"]
        patch: list[dict[str, Any]] = [  # the API server refuses the whole patch if this test fails
            {"op": "test", "path": "/metadata/generation", "value": run.manifest["metadata"].get("generation")}
        ]
        for name, value in fields.items():
            if value is not None:
                patch.append({"op": "add", "path": f"/spec/{name}", "value": value})
            elif name in current_spec:
                patch.append({"op": "remove", "path": f"/spec/{name}"})
        if run.changer != self.user:
            if not run.manifest["metadata"].get("annotations"):  # the next operation needs the mapping
                patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
            escaped_name = names.CHANGED_BY.replace("/", "~1")  # as in a JSON pointer
            patch.append({"op": "add", "path": f"/metadata/annotations/{escaped_name}", "value": self.user})
        self.cluster.patch(kinds.RUN, run.name, patch)

    def remove(self, name: str) -> None:
        """Delete a Run and its objects, and wait until the Run is gone.

        Raises:
            TargetError: It is not gone in time.
        """
        existed = self.cluster.delete(kinds.RUN, name)
        deadline = time.monotonic() + PATIENCE
        while existed and self.cluster.read(kinds.RUN, name) is not None:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"the Run {name} in {self.cluster.location} was not removed within {PATIENCE:.0f} s; "
                    f"`kubectl --context {self.cluster.context} -n {self.cluster.namespace} describe run {name}` shows why"
                )
            time.sleep(PAUSE)

    def wait_until_pods_terminate(self, name: str) -> None:
        """Wait until each pod of a run is deleted or is being deleted (Terminating).

        The end of a pod that is being deleted is certain, but may take as long as the job's grace period. So this method
        does not wait for it.

        Raises:
            TargetError: A pod is not being deleted in time.
        """
        deadline = time.monotonic() + PATIENCE
        while remaining := [pod for pod in self.pods(name) if not metadata.is_deleted(pod)]:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"{errors.counted(len(remaining), 'pod')} of {name} in {self.cluster.location} did not begin to end "
                    f"within {PATIENCE:.0f} s; `kubectl --context {self.cluster.context} -n {self.cluster.namespace} "
                    f"describe run {name}` shows why"
                )
            time.sleep(PAUSE)

    def submission(self, run: Run) -> Submission | None:
        """Return the submission of a run, from its Run and its ConfigMaps. None if a part is missing or unreadable."""
        if run.parsed.job is None or run.parsed.spec is None:
            return None
        code = run.parsed.spec.code
        parts = runs.parts([self.cluster.read(kinds.CONFIG_MAP, name) for name in code.config_maps])
        packed = [part for part in parts if part is not None]
        if len(packed) < len(parts):
            return None
        facts = {**run.parsed.spec.submission, "code_hash": code.sha256}
        return Submission(job=run.parsed.job, facts=facts, code=b"".join(packed))

    def pods(self, run: str, role: str = "") -> list[dict[str, Any]]:
        """Return the pods of a run, the newest first. With a role, such as `names.TRIAL`, only its pods."""
        selector = f"{names.RUN}={run}" + (f",{names.ROLE}={role}" if role else "")
        return sorted(self.cluster.list(kinds.POD, selector=selector), key=metadata.creation_time, reverse=True)

    def trial_pods(self, run: str, role: str) -> list[str]:
        """Return the names of a run's trial pods that are not being deleted, the newest first.

        Args:
            run: Name of the run.
            role: Role of the pods in the job: "trial", "worker" or "learner". Each has its own worker group; the role in
                the label of all of them is `names.TRIAL`.
        """
        return [
            pod["metadata"]["name"]
            for pod in self.pods(run, names.TRIAL)
            if not metadata.is_deleted(pod) and pod["metadata"]["labels"].get(names.GROUP_LABEL) == names.group(role)
        ]

    def _existing_uid(self, plan: Plan) -> str:
        """Return the uid of the existing Run, which must have the same job and code.

        Raises:
            RunExists: It has another job or code, or was deleted.
        """
        existing = self.run(plan.run)
        if existing is not None and existing.parsed.spec is not None:
            has_same_code = existing.parsed.spec.code.sha256 == plan.pack.sha256
            if has_same_code and existing.parsed.job == plan.job:
                return str(existing.manifest["metadata"]["uid"])
        raise RunExists(
            f"another {plan.run} was submitted a moment ago; `platform status {plan.run}` shows it, or give this one "
            "another name with --name"
        )

    def _apply_code(self, plan: Plan, run_uid: str, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Create those ConfigMaps with a run's code that do not exist. The Run owns them, so they are deleted with it.

        Existing ConfigMaps are not changed, because users may not change ConfigMaps.

        Raises:
            RunExists: The existing ConfigMaps have other content.
        """
        # The existing ConfigMap for each manifest, or None.
        existing_maps = [self.cluster.read(kinds.CONFIG_MAP, manifest["metadata"]["name"]) for manifest in manifests]
        existing_names = [existing["metadata"]["name"] for existing in existing_maps if existing is not None]
        # The existing parts, completed by the new ones, must be the code of this run. The digest of the unpacked archive is
        # compared, because builds of zlib compress the same code differently.
        all_maps = [existing or manifest for existing, manifest in zip(existing_maps, manifests, strict=True)]
        packed = b"".join(part or b"" for part in runs.parts(all_maps))
        try:
            is_name_taken = existing_names and packing.digest(packed) != plan.pack.sha256
        except InputError:  # not an archive
            is_name_taken = True
        if is_name_taken:
            kubectl = f"kubectl --context {self.cluster.context} -n {self.cluster.namespace}"
            raise RunExists(
                f"the name is taken: the ConfigMap {existing_names[0]} in {self.cluster.location} holds something else; "
                "choose another with --name, or have it removed if it is not needed: "
                f"`{kubectl} delete configmap {' '.join(existing_names)}`"
            )
        for existing, manifest in zip(existing_maps, manifests, strict=True):
            if existing is None:
                owners = {"ownerReferences": [runs.owner_reference(plan.run, run_uid)]}
                self.cluster.create(kinds.CONFIG_MAP, {**manifest, "metadata": {**manifest["metadata"], **owners}})


def _field_manager(run: Mapping[str, Any]) -> str:
    """Return the name of the field manager with which a Run is submitted.

    Every submission has a different name, so the API server refuses to apply another submission to an existing Run.
    """
    return f"{names.MANAGER}-{hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]}"
