"""Reads all there is of a Run, does what is to be done, and writes its status.

`reconcile` may be called at any time and as often as one likes, and may be killed at any moment: what it does is decided by
what there is, never by what it did before.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.client import kinds, metadata, preflight, waiting
from trialplane.client.cluster import Cluster
from trialplane.controller.store import archive
from trialplane.controller.store.archive import Archive
from trialplane.errors import InputError, LedgerCorrupt, LedgerError, SpecError, TargetError
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan import pods, raycluster
from trialplane.plan import run as runs
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.run import Status
from trialplane.plan.site import Site
from trialplane.reconciler import decisions, standing
from trialplane.reconciler.decisions import Action, Adopt, Describe, Desire, Record, Remove, Resize, Start
from trialplane.reconciler.view import UID, WORKED, Problem, View
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.paths import RunPaths

LIVING = 10.0  # seconds until a run that works, or is to, is looked at again
ARRIVING = 1.0  # seconds until a Run that was made before its code is looked at again
_ARRIVAL = 30.0  # seconds in which the code of a new Run is expected
_LEDGER_AWAY: tuple[type[Exception], ...] = (LedgerError, archive.DATABASE_ERRORS)
_ROUNDS = 4  # of looking and doing in one call; what is left then comes with the next
_EVENTS = 500  # the newest that the API server returns; enough for the pods of a wide run
_FILES = RunPaths(Path())  # for the names of files only
_logger = logging.getLogger(__name__)


class Reconciler:
    """The operator's hands in one namespace.

    Args:
        cluster: the namespace.
        archive: the ledger.
        site: what the chart installed there.
        clock: seconds since the epoch.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._archive = archive
        self._site = site
        self._clock = clock

    def reconcile(self, name: str) -> float | None:
        """Has the Run of that name be what it asks for, as far as that is possible now.

        Returns:
            Seconds after which to call again even if nothing is seen to change; None for never.

        Raises:
            TargetError: the API server could not be reached, or refuses what the Run's status was told.
        """
        run = self._cluster.read(kinds.RUN, name)
        if run is None or metadata.is_deleted(run):
            return None
        view = View(run, runs.read(run), now=self._clock())
        try:
            view = self._look(view)
            for _ in range(_ROUNDS):
                actions = decisions.decide(view)
                if not actions:
                    break
                for action in actions:
                    self._do(view, action)
                view = self._look(view)
        except LedgerCorrupt as error:  # only its record; other Runs go on
            self._write(view, standing.explained(view, "LedgerUnreadable", str(error), self._clock()))
            return LIVING
        except _LEDGER_AWAY as error:
            text = f"the ledger's database does not answer: {errors.first_line(getattr(error, 'orig', None) or error)}"
            self._write(view, standing.explained(view, "LedgerAway", f"{text}; all records are safe", self._clock()))
            return LIVING
        except (TargetError, InputError) as error:  # of the API server: a quota, an admission policy, a conflict
            self._write(view, standing.explained(view, "Refused", str(error), self._clock()))
            raise
        status = standing.status(view, self._clock())
        self._write(view, status)
        return self._next(view, status)

    def _look(self, view: View) -> View:
        """Everything that the next decision needs; the Run itself as it was read."""
        name, site = view.name, self._site
        ray_cluster = self._cluster.read(kinds.RAY_CLUSTER, name)
        seen = dataclasses.replace(
            view, ray_cluster=ray_cluster, recorded=self._archive.recorded(name), blocked=None, why=""
        )
        if ray_cluster is None:
            spec = self._cluster.read(kinds.CONFIG_MAP, name)
            seen = dataclasses.replace(seen, has_spec=_owns(seen, spec), pods=(), leftovers=())
            if spec is not None and not _is_of(spec, name):
                text = f"the ConfigMap {name} belongs to no run, and its pods would read it; give the Run another name"
                return dataclasses.replace(seen, blocked=Problem("NameTaken", text))
            if seen.problem is None and decisions.is_due(seen):
                # KubeRay would take them for pods of the new RayCluster, and they have another token.
                if left := tuple(pod["metadata"]["name"] for pod in self._pods(name)):
                    return dataclasses.replace(seen, leftovers=left)
                code = self._code(seen)
                orphans = any(_is_of(one, name) and not _owns(seen, one) for one in code)
                return dataclasses.replace(seen, blocked=self._blocked(seen, site, code), has_orphans=orphans)
            return dataclasses.replace(seen, has_orphans=False)
        if seen.mine is None or seen.read.job is None or seen.is_over:
            return seen
        found = self._pods(name)
        role = names.group(seen.job.roles()[0].name)
        staying = [pod["metadata"] for pod in found if not metadata.is_deleted(pod)]
        first = tuple(one["name"] for one in staying if one["labels"].get(names.GROUP_LABEL) == role)
        known = seen.recorded.status if seen.recorded is not None else None
        complete = seen.alive and known is not None and known.slots_ready >= known.slots
        return dataclasses.replace(seen, pods=first, why="" if complete else self._why(ray_cluster, found))

    def _code(self, view: View) -> list[dict[str, Any] | None]:
        """The ConfigMaps with its code, as the Run names them."""
        return [self._cluster.read(kinds.CONFIG_MAP, name) for name in view.asked.code.config_maps]

    def _pods(self, run: str) -> list[dict[str, Any]]:
        """The pods of a run, the newest first."""
        found = self._cluster.list(kinds.POD, selector=f"{names.RUN}={run}")
        return sorted(found, key=metadata.created, reverse=True)

    def _why(self, ray_cluster: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
        """Why not all pods run."""
        events = self._cluster.list(kinds.EVENT, limit=_EVENTS)
        workload = self._workload(ray_cluster) if (ray_cluster.get("spec") or {}).get("suspend") else None
        return waiting.reason(ray_cluster, found, events, workload, self._clock())

    def _workload(self, ray_cluster: Mapping[str, Any]) -> dict[str, Any] | None:
        """Kueue's workload for a RayCluster."""
        try:
            found = self._cluster.list(kinds.WORKLOAD)
        except TargetError:  # there is no Kueue
            return None
        uid = ray_cluster["metadata"].get("uid")
        return next((one for one in found if metadata.is_owned(one, uid)), None)

    def _blocked(self, view: View, site: Site, code: Sequence[Mapping[str, Any] | None]) -> Problem | None:
        """What is wrong with a run that is to be started: its code, or that it does not fit the site."""
        asked, job = view.asked, view.job
        issues = [*preflight.data(job, site.data.claim), *preflight.shards(job, bool(site.checkpoints.claim))]
        if issues:
            return Problem("Invalid", str(SpecError([issue.below("spec", "job") for issue in issues])))
        maps, parts = asked.code.config_maps, runs.parts(code)
        lacking = [
            f"{name} with {packing.part_name(names.CODE_KEY, number)}"
            for number, (name, part) in enumerate(zip(maps, parts, strict=True))
            if part is None
        ]
        if lacking:
            what = f"the ConfigMap {lacking[0]} is" if len(lacking) == 1 else f"the ConfigMaps {', '.join(lacking)} are"
            cure = "`kubectl apply` it beside the Run" if len(lacking) == 1 else "`kubectl apply` them beside the Run"
            return Problem(runs.CODE_MISSING, f"{what} not there yet; {cure}")
        packed = b"".join(part for part in parts if part is not None)
        where = f"the ConfigMap {maps[0]}" if len(maps) == 1 else f"the ConfigMaps {', '.join(maps)}"
        try:
            found = packing.digest(packed)
        except InputError as error:
            return Problem("CodeMismatch", f"{names.CODE_KEY} in {where}: {error}; submit the run again")
        if found != asked.code.sha256:
            return Problem(
                "CodeMismatch",
                f"the code in {where} is {found[:12]}…, and spec.code.sha256 says {asked.code.sha256[:12]}…; delete the "
                "Run, with which its code goes, and submit the run again",
            )
        wanted = len(Pack(packed, found, ()).parts)
        if wanted != len(maps):  # the pods mount as many as it takes
            return Problem(
                "CodeMismatch",
                f"spec.code.configMaps names {len(maps)}, and the code takes {wanted} of 1 MiB; submit the run again",
            )
        return None

    def _do(self, view: View, action: Action) -> None:
        """One action."""
        name = view.name
        _logger.info("%s: %s", name, type(action).__name__.lower())
        match action:
            case Record(new=new):
                plan = self._plan(view)
                code = base64.b64encode(plan.pack.data).decode("ascii")
                self._archive.record(name, plan.job, _facts(view), code, new=new)
            case Desire(changed=changed):
                self._archive.desire(name, changed)
            case Adopt():
                owners = {"metadata": {"ownerReferences": [runs.owner(name, view.uid)]}}
                for code_map in self._code(view):
                    if code_map is None or _owns(view, code_map):
                        continue
                    if view.problem is None or _is_of(code_map, name):  # which is what the Run says, or says to be its code
                        self._cluster.patch(kinds.CONFIG_MAP, code_map["metadata"]["name"], owners)
            case Describe():
                spec = {
                    _FILES.job.name: view.job.model_dump_json(),
                    _FILES.submission.name: json.dumps(_facts(view), ensure_ascii=False),
                }
                metadata = self._metadata(view, pods.labels(self._plan(view, packed=False)))
                thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": spec}
                self._cluster.apply(thing, names.MANAGER, force=True)
            case Start():
                self._cluster.create(kinds.RAY_CLUSTER, self._ray_cluster(view))
            case Resize(patch=patch):
                if view.ray_cluster is not None:
                    self._cluster.patch(kinds.RAY_CLUSTER, view.ray_cluster["metadata"]["name"], list(patch))
            case Remove():
                if view.mine is not None:
                    # Until its pods and its token are gone, so that the next one of the name gets none of them.
                    self._cluster.delete(kinds.RAY_CLUSTER, name, foreground=True)
                if _owns(view, self._cluster.read(kinds.CONFIG_MAP, name)):
                    self._cluster.delete(kinds.CONFIG_MAP, name)

    def _ray_cluster(self, view: View) -> dict[str, Any]:
        """The RayCluster for this start: as wide as the Run asks for."""
        plan = self._plan(view)
        wide = dataclasses.replace(plan, job=plan.job.widened(view.asked.parallel or plan.job.width))
        made = raycluster.raycluster(wide, self._site)
        annotations = {
            **made["metadata"]["annotations"],
            names.SPEC_HASH: planning.spec_hash(plan.job),
            runs.RESUMES: str(view.asked.resumes),
        }
        return {**made, "metadata": {**self._metadata(view, made["metadata"]["labels"]), "annotations": annotations}}

    def _plan(self, view: View, *, packed: bool = True) -> Plan:
        """The plan that the Run was made of; without `packed` it has no code, only the digest."""
        data = b"".join(part or b"" for part in runs.parts(self._code(view))) if packed else b""
        return Plan(view.name, view.job, Pack(data, view.asked.code.sha256, ()), Provenance("", "", ""))

    def _metadata(self, view: View, labels: Mapping[str, str]) -> dict[str, Any]:
        where = {"name": view.name, "namespace": self._cluster.namespace}
        return {**where, "labels": dict(labels), "ownerReferences": [runs.owner(view.name, view.uid)]}

    def _write(self, view: View, status: Status) -> None:
        """Writes a status that differs from what the Run has."""
        if status != view.status:
            # Refused when another Run has its name by now.
            body = {"metadata": {"uid": view.uid}, "status": status.model_dump(mode="json")}
            self._cluster.patch(kinds.RUN, view.name, body, status=True)

    def _next(self, view: View, status: Status) -> float | None:
        if view.problem is not None and view.problem.reason == runs.CODE_MISSING:
            return ARRIVING if self._clock() - metadata.created(view.run) < _ARRIVAL else LIVING
        ended = next((one for one in status.conditions if one.type == runs.ENDED and one.status == "True"), None)
        if ended is None or view.ray_cluster is not None:
            resting = status.state == "Paused" or bool(view.read.issues)
            return None if resting and view.ray_cluster is None else LIVING
        if not self._site.run_ttl:
            return None
        left = (metadata.moment(ended.lastTransitionTime) or 0.0) + self._site.run_ttl - self._clock()
        if left > 0:
            return left
        # As it was read: it may have been resumed since, or another Run may have its name.
        self._cluster.delete(kinds.RUN, view.name, only=view.run)
        return None


def _facts(view: View) -> dict[str, Any]:
    """The facts of the submission as the ledger and the pods have them."""
    asked, job = view.asked, view.job
    made = metadata.created(view.run)
    given = {"submitted": made, **asked.submission}
    if not isinstance(given["submitted"], (int, float)) or isinstance(given["submitted"], bool):
        given["submitted"] = made
    # Later than what a former controller wrote, whose clock may be ahead. The new one keeps these facts in the ledger.
    before, worked = (0.0, 0.0) if view.recorded is None else (view.recorded.status.updated, view.recorded.status.worked)
    start = {UID: view.uid, labels.BEGUN: max(view.now, before + 0.001), WORKED: worked}
    return {**given, "code_hash": asked.code.sha256, "spec_hash": planning.spec_hash(job), **start}


def _owns(view: View, thing: Mapping[str, Any] | None) -> bool:
    """Whether an object is there and is this Run's."""
    return thing is not None and metadata.is_owned(thing, view.uid)


def _is_of(thing: Mapping[str, Any] | None, run: str) -> bool:
    """Whether an object is there and its label says that it is of this run."""
    return thing is not None and (thing["metadata"].get("labels") or {}).get(names.RUN) == run
