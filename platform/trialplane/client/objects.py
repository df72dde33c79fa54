"""The Kubernetes objects of runs in one namespace: creates, reads, scales and removes them.

A run is one RayJob of its name, which owns all other objects, so that removing it removes them too.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane.client import kinds, phases, refusal, waiting
from trialplane.client.cluster import Applied, Cluster
from trialplane.errors import RunExists, TargetError
from trialplane.plan import pack as packing
from trialplane.plan import rayjob, render
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import cluster as names
from trialplane.wire.paths import RunPaths

PATIENCE = 120.0  # seconds for a RayJob to be removed; its finalizer first has Ray stop the job
_PAUSE = 0.5
_EVENTS = 500  # the newest that the API server returns; enough for the pods of a wide run
_FILES = RunPaths(Path())  # for the names of files only
_OURS = f"{names.MANAGED_BY}={names.MANAGER}"


@dataclasses.dataclass(frozen=True)
class Submission:
    """The content of a run's ConfigMaps: the job, the facts of its submission, and its packed code."""

    job: Job
    facts: Mapping[str, Any]
    code: bytes


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
        """What the chart installed.

        Raises:
            TargetError: it is not installed, or of another version.
        """
        found = self.cluster.read(kinds.CONFIG_MAP, names.SITE)
        text = ((found or {}).get("data") or {}).get(names.SITE_KEY)
        if not text:
            raise TargetError(refusal.no_site(self.cluster.namespace, self.cluster.context, self._sites()))
        return Site.read(text, self.cluster.namespace)

    def ray_jobs(self) -> list[dict[str, Any]]:
        """All runs' RayJobs, the newest first."""
        found = self.cluster.list(kinds.RAY_JOB, selector=_OURS)
        return sorted(found, key=lambda one: (phases.created(one), one["metadata"]["name"]), reverse=True)

    def ray_job(self, run: str) -> dict[str, Any] | None:
        """The RayJob of a run, or None; a RayJob of that name without our labels is not a run."""
        return self._ours(kinds.RAY_JOB, run, run)

    def manifests(self, plan: Plan, submitted: float) -> list[dict[str, Any]]:
        """The objects that `apply` sends, the RayJob first."""
        return render.manifests(plan, self.site, submitted)

    def apply(self, plan: Plan, submitted: float) -> None:
        """Creates all objects of a run or none; completes those that the same submission has created before.

        Raises:
            RunExists: the names are taken, by a concurrent submission or by objects of no run.
        """
        things = self.manifests(plan, submitted)
        self._check_names(plan.run, things)
        (ray_job,) = (thing for thing in things if thing["kind"] == "RayJob")
        manager = _manager(ray_job)
        made = self.cluster.apply(ray_job, manager, force=False) or self._same(ray_job)
        try:
            # Its pods wait for the ConfigMaps, which need the RayJob's uid as their owner.
            for thing in render.owned(things, made.thing["metadata"]["uid"]):
                if thing["kind"] != "RayJob":
                    self.cluster.apply(thing, manager, force=True)
        except BaseException:
            if made.is_new:
                self.cluster.delete(kinds.RAY_JOB, plan.run)
            raise

    def remove(self, run: str) -> bool:
        """Removes a run's RayJob and all that belongs to it, and waits until it is gone; False when there was none.

        Raises:
            TargetError: it is not removed in time.
        """
        there = self.cluster.delete(kinds.RAY_JOB, run)
        # They are removed with it, but later, and not at all if the output of `--dry-run` was applied by hand.
        for name in self._config_maps(run):
            self.cluster.delete(kinds.CONFIG_MAP, name)
        deadline = time.monotonic() + PATIENCE
        while there and self.cluster.read(kinds.RAY_JOB, run) is not None:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"the RayJob {run} in {self.cluster.place} was not removed within {PATIENCE:.0f} s: is the KubeRay "
                    f"operator running? `kubectl -n {self.cluster.namespace} describe rayjob {run}`"
                )
            self._pause(_PAUSE)
        return there

    def submission(self, run: str) -> Submission | None:
        """What a run was submitted with, from its ConfigMaps; None if one of them is missing."""
        found = self._config_maps(run)
        spec, first = found.get(run), found.get(names.code_map(run))
        if spec is None or first is None:
            return None
        count = int((first["metadata"].get("annotations") or {}).get(names.CODE_PARTS, 1))
        parts = [found.get(names.code_map(run, number)) for number in range(count)]
        code = [
            base64.b64decode(one["binaryData"][packing.part_name(names.CODE_KEY, number)])
            for number, one in enumerate(parts)
            if one is not None
        ]
        if len(code) < count:
            return None
        data = spec["data"]
        return Submission(jobs.read(data[_FILES.job.name]), json.loads(data[_FILES.submission.name]), b"".join(code))

    def pods(self, run: str, role: str = "") -> list[dict[str, Any]]:
        """The pods of a run, or those of one role, the newest first."""
        selector = f"{names.RUN}={run}" + (f",{names.ROLE}={role}" if role else "")
        return sorted(self.cluster.list(kinds.POD, selector=selector), key=phases.created, reverse=True)

    def trial_pods(self, run: str, role: str) -> list[str]:
        """Names of the pods of one of a run's roles that are not being removed, the newest first."""
        found = self.pods(run, names.TRIAL)
        return [
            pod["metadata"]["name"]
            for pod in found
            if not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"]["labels"].get(names.GROUP_LABEL) == names.group(role)
        ]

    def why(self, ray_job: Mapping[str, Any]) -> str:
        """Why a run has not started, or not all of its trial pods have; "" when nothing is missing."""
        run = ray_job["metadata"]["name"]
        suspended = (ray_job.get("spec") or {}).get("suspend")
        events = self.cluster.list(kinds.EVENT, limit=_EVENTS)
        return waiting.reason(ray_job, self.pods(run), events, self._workload(ray_job) if suspended else None)

    def scale(self, ray_job: Mapping[str, Any], job: Job, parallel: int, keep: frozenset[str] | None) -> bool:
        """Changes the number of trial pods; returns whether it is then the requested one.

        Args:
            ray_job: the run's.
            job: the run's.
            parallel: replicas of the first role: trials at a time, or workers of a collection.
            keep: pods with a slot, which may run a trial; None allows removing any.
        """
        run = ray_job["metadata"]["name"]
        name = (ray_job.get("status") or {}).get("rayClusterName")
        if not name:
            raise TargetError(f"{run} has no pods yet; `platform status {run}` shows why")
        autoscale = bool(ray_job["spec"]["rayClusterSpec"].get("enableInTreeAutoscaling"))
        role = job.widened(parallel).roles()[0]
        target, pods = role.pods, self.trial_pods(run, role.name)
        spare = [pod for pod in pods if keep is None or pod not in keep]
        surplus = spare[: max(0, len(pods) - target)]
        # Ray's autoscaler too would remove a pod with a trial for a lower bound, when all have one.
        count = target if keep is None else max(target, len(pods) - len(surplus))
        self.cluster.patch(kinds.RAY_CLUSTER, name, _resized(role.name, count, surplus, autoscale))
        return count == target

    def _sites(self) -> list[str]:
        """Namespaces with the chart that this user may list; few users may list all."""
        try:
            found = self.cluster.list(kinds.CONFIG_MAP, fields=f"metadata.name={names.SITE}", everywhere=True)
        except TargetError:
            return []
        return sorted(one["metadata"]["namespace"] for one in found if names.SITE_KEY in (one.get("data") or {}))

    def _ours(self, kind: kinds.Kind, name: str, run: str) -> dict[str, Any] | None:
        """An object of a run, or None if there is none or it belongs to something else."""
        found = self.cluster.read(kind, name)
        return found if found is not None and _is_of(found, run) else None

    def _same(self, ray_job: Mapping[str, Any]) -> Applied:
        """The existing RayJob if it is of the same submission, in which KubeRay has filled in defaults.

        Raises:
            RunExists: it is of another submission.
        """
        run = ray_job["metadata"]["name"]
        found = self.ray_job(run)
        if found is None or _hashes(found) != _hashes(ray_job):
            raise RunExists(
                f"another {run} was submitted a moment ago; `platform status {run}` shows it, or give this one another name "
                "with --name"
            )
        return Applied(found, False)

    def _config_maps(self, run: str) -> dict[str, dict[str, Any]]:
        """The ConfigMaps of a run by their names."""
        found = self.cluster.list(kinds.CONFIG_MAP, selector=f"{_OURS},{names.RUN}={run}")
        return {one["metadata"]["name"]: one for one in found}

    def _check_names(self, run: str, things: Sequence[Mapping[str, Any]]) -> None:
        """Raises RunExists if an object of the run would take the name of an unrelated one."""
        for thing in things:
            kind = kinds.RAY_JOB if thing["kind"] == "RayJob" else kinds.CONFIG_MAP
            name = thing["metadata"]["name"]
            found = self.cluster.read(kind, name)
            if found is not None and not _is_of(found, run):
                raise RunExists(
                    f"the name is taken: {kind.plural.rstrip('s')} {name} in {self.cluster.place} belongs to no run; "
                    "choose another with --name"
                )

    def _workload(self, ray_job: Mapping[str, Any]) -> dict[str, Any] | None:
        """Kueue's workload for a RayJob."""
        try:
            found = self.cluster.list(kinds.WORKLOAD)
        except TargetError:  # there is no Kueue, or we may not list its objects
            return None
        uid = ray_job["metadata"].get("uid")
        return next(
            (one for one in found if uid in [o.get("uid") for o in one["metadata"].get("ownerReferences") or []]), None
        )


def _is_of(thing: Mapping[str, Any], run: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return labels.get(names.MANAGED_BY) == names.MANAGER and labels.get(names.RUN) == run


def _hashes(ray_job: Mapping[str, Any]) -> list[str]:
    """The hashes that identify its job and its code."""
    annotations = ray_job["metadata"].get("annotations") or {}
    return [str(annotations.get(name)) for name in (names.SPEC_HASH, names.CODE_HASH)]


def _manager(ray_job: Mapping[str, Any]) -> str:
    """The field manager of one submission, distinct so that a concurrent one of the same name is refused."""
    text = json.dumps(ray_job, sort_keys=True)
    return f"{names.MANAGER}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _resized(role: str, count: int, surplus: list[str], autoscale: bool) -> list[dict[str, Any]]:
    """The JSON patch that sets the pods of a RayCluster's first role to `count`, removing those in `surplus`."""
    group = "/spec/workerGroupSpecs/0"
    replicas = rayjob.Replicas.of(count, autoscale)
    # The test fails if another group has taken its place.
    patch: list[dict[str, Any]] = [{"op": "test", "path": f"{group}/groupName", "value": names.group(role)}]
    patch.append({"op": "add", "path": f"{group}/maxReplicas", "value": replicas.most})
    if not autoscale:  # else Ray chooses: a pod that has not started, then the one that is idle the longest
        patch.append({"op": "add", "path": f"{group}/minReplicas", "value": replicas.least})
        patch.append({"op": "add", "path": f"{group}/replicas", "value": replicas.now})
        # Otherwise KubeRay would choose without knowing which pods have a trial; it also keeps the previous list.
        patch.append({"op": "add", "path": f"{group}/scaleStrategy", "value": {"workersToDelete": surplus}})
    return patch
