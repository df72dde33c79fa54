"""Reads all there is of a Run, does what is to be done, and writes its status.

`reconcile` may be called at any time and as often as one likes, and may be killed at any moment: what it does is decided by
what there is, never by what it did before.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.errors import InputError, LedgerCorrupt, LedgerError, LedgerFull, TargetError
from trialplane.kube import kinds, metadata
from trialplane.kube.cluster import Cluster
from trialplane.ledger import archive
from trialplane.ledger.archive import Archive
from trialplane.plan import network, pods, raycluster
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.run import Status
from trialplane.plan.site import Site
from trialplane.reconciler import decisions, standing
from trialplane.reconciler.decisions import (
    Action,
    Admit,
    Adopt,
    Describe,
    Desire,
    Enclose,
    Keep,
    Note,
    Record,
    Remove,
    Resize,
    Revoke,
    Start,
)
from trialplane.reconciler.observing import Observer, is_free, is_new, owns
from trialplane.reconciler.removal import Removal
from trialplane.reconciler.view import WORKED, Problem, View
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Change

REMOVING = 2.0  # seconds until a run whose files are being removed is looked at again
LIVING = 10.0  # seconds until a run that works, or is to, is looked at again
WAITING = 20.0  # seconds until one is looked at again whose pods have waited for some time
PATIENT = (
    300.0  # seconds until one is looked at again whose problem has stayed the same for long; its changes are seen at once
)
ARRIVING = 1.0  # seconds until a Run that was made before its code is looked at again
_DELETED = "Deleted"  # what a Run that is gone asks for, in the record of its changes
_ARRIVAL = 30.0  # seconds in which the code of a new Run is expected
_LEDGER_AWAY: tuple[type[Exception], ...] = (LedgerError, archive.DATABASE_ERRORS)
_ROUNDS = 4  # of looking and doing in one call; what is left then comes with the next
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
        self._observer = Observer(cluster, archive, site, lambda: self._clock())
        self._removal = Removal(cluster, archive, site, lambda: self._clock())
        self._problems: dict[str, tuple[Problem, int]] = {}  # by run, and how often it was found in turn

    def forgotten(self) -> list[str]:
        """Names of the runs that their users have deleted, and that are not gone yet."""
        return sorted(self._archive.forgotten())

    def admitted(self) -> list[str]:
        """Names of runs that a token opens; their Runs may have been deleted while no operator worked."""
        return self._archive.admitted()

    def reconcile(self, name: str) -> float | None:
        """Has the Run of that name be what it asks for, as far as that is possible now.

        Returns:
            Seconds after which to call again even if nothing is seen to change; None for never.

        Raises:
            TargetError: the API server could not be reached, or refuses what the Run's status was told.
            SQLAlchemyError: the Run is gone, and the database is away.
        """
        run = self._cluster.read(kinds.RUN, name)
        if run is None:
            self._problems.pop(name, None)
            if self._removal.step(name):
                return REMOVING
            self._archive.revoke(name)  # the Run's Secret is gone with it
            self._note_deletion(name, "its Run was deleted")  # by whom, the API server does not keep
            self._removal.sweep(name)
            return None
        if metadata.is_deleted(run):
            return None
        view = View(run, runs.read(run), now=self._clock())
        try:
            if left := self._removal.step(name, view.uid):  # of an earlier Run of its name
                text = f"an earlier run of this name was deleted, and its files are being removed: {left}"
                self._write(view, standing.explained(view, "FormerRun", text, self._clock()))
                return REMOVING
            view = self._observer.look(view)
            for _ in range(_ROUNDS):
                actions = decisions.decide(view)
                if not actions:
                    break
                for action in actions:
                    self._do(view, action)
                view = self._observer.look(view)
        except LedgerCorrupt as error:  # only its record; other Runs go on
            self._write(view, standing.explained(view, "LedgerUnreadable", str(error), self._clock()))
            return self._patience(view, Problem("LedgerUnreadable", str(error)))
        except errors.LedgerLocked as error:  # by a controller that is about to end
            self._write(view, standing.explained(view, "LedgerLocked", str(error), self._clock()))
            return LIVING
        except LedgerFull as error:
            self._write(view, standing.explained(view, "BudgetSpent", str(error), self._clock()))
            return self._patience(view, Problem("BudgetSpent", ""))  # the amounts in the text may change
        except _LEDGER_AWAY as error:
            text = f"the ledger's database does not answer: {archive.reason(error)}"
            self._write(view, standing.explained(view, "LedgerAway", f"{text}; all records are safe", self._clock()))
            return LIVING
        except (TargetError, InputError) as error:  # of the API server: a quota, an admission policy, a conflict
            self._write(view, standing.explained(view, "Refused", str(error), self._clock()))
            raise
        status = standing.status(view, self._clock())
        self._write(view, status)
        return self._next(view, status)

    def _do(self, view: View, action: Action) -> None:
        """One action."""
        name = view.name
        _logger.info("%s: %s", name, type(action).__name__.lower())
        match action:
            case Record(new=new):
                plan = _plan(view)
                self._archive.record(name, plan.job, _facts(view), plan.pack.data, new=new)
            case Desire(changed=changed):
                self._archive.desire(name, changed)
            case Adopt():
                owners = {"metadata": {"ownerReferences": [runs.owner(name, view.uid)]}}
                for code_map in view.code:
                    if code_map is not None and not owns(view, code_map) and is_free(code_map, name):
                        self._cluster.patch(kinds.CONFIG_MAP, code_map["metadata"]["name"], owners)
            case Describe():
                spec = {
                    _FILES.job.name: view.job.model_dump_json(),
                    _FILES.submission.name: json.dumps(_facts(view), ensure_ascii=False),
                }
                thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.spec_map(name)}, "data": spec}
                self._apply(view, thing)
            case Admit():
                self._admit(view)
            case Note(change=change):
                self._post(view, change)
                self._archive.note(name, change)
            case Enclose():
                if view.mine is not None:
                    patch = {"metadata": {"annotations": {names.NETWORK_HASH: self._enclose(view, view.mine)}}}
                    self._cluster.patch(kinds.RAY_CLUSTER, name, patch)
            case Revoke():
                self._archive.revoke(name)
            case Start():
                made = self._ray_cluster(view)
                made["metadata"]["annotations"][names.NETWORK_HASH] = self._enclose(view, made)
                self._apply(view, _secret(names.ray_secret(name), names.RAY_TOKEN_KEY, secrets.token_urlsafe(32)))
                for thing in raycluster.access(made):
                    self._apply(view, thing)
                self._cluster.create(kinds.RAY_CLUSTER, made)
            case Resize(patch=patch):
                if view.ray_cluster is not None:
                    self._cluster.patch(kinds.RAY_CLUSTER, view.ray_cluster["metadata"]["name"], list(patch))
            case Keep(images=images):
                self._archive.keep_images(name, [(one.image, one.digest) for one in images])
            case Remove():
                if view.mine is not None:
                    # Until its pods and its token are gone, so that the next one of the name gets none of them.
                    self._cluster.delete(kinds.RAY_CLUSTER, name, foreground=True)
                if owns(view, self._cluster.read(kinds.CONFIG_MAP, names.spec_map(name))):
                    self._cluster.delete(kinds.CONFIG_MAP, names.spec_map(name))

    def _note_deletion(self, name: str, what: str) -> None:
        """Records once that a Run is gone, if its record stays; the record of a run that never started has nothing of it."""
        with contextlib.suppress(LedgerCorrupt):
            found = self._archive.recorded(name)
            last = None if found is None else found.change
            if last is not None and last.asked.get("state") != _DELETED:
                asked = {**last.asked, "state": _DELETED}
                self._archive.note(name, Change(self._clock(), "", what, last.uid, last.generation + 1, asked))

    def _post(self, view: View, change: Change) -> None:
        """Says a change as an Event of the Run, which has one name however often it is made."""
        when, who = standing.moment(change.at), f" by {change.by}" if change.by else ""
        about = {"apiVersion": runs.API_VERSION, "kind": runs.KIND, "name": view.name, "uid": view.uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{view.name}.{view.uid[:13]}.{change.generation}", "namespace": self._cluster.namespace},
            "involvedObject": {**about, "namespace": self._cluster.namespace},
            "reason": "Changed",
            "message": f"{change.what}{who}",
            "type": "Normal",
            "source": {"component": "trialplane-operator"},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        try:
            self._cluster.apply(event, names.MANAGER, force=True)
        except (TargetError, InputError) as error:  # a quota; the ledger has it all the same, and the run goes on
            _logger.warning("%s: the Event of a change could not be made: %s", view.name, error)

    def _admit(self, view: View) -> None:
        """Gives the controller a token of its own, with which it opens the run at the gateway."""
        token = secrets.token_urlsafe(32)
        self._apply(view, _secret(names.token_secret(view.name), names.TOKEN_KEY, token))
        self._archive.admit(view.name, token)

    def _enclose(self, view: View, ray_cluster: Mapping[str, Any]) -> str:
        """Has the pods of a RayCluster reach what the site allows, and nothing else; gives the policies' digest."""
        policies = network.policies(ray_cluster, self._site)
        for one in policies:
            self._apply(view, one)
        if not policies:  # those of a run that was started while the chart had some would still hold
            for left in network.names(view.name):
                if owns(view, self._cluster.read(kinds.NETWORK_POLICY, left)):
                    self._cluster.delete(kinds.NETWORK_POLICY, left)
        return network.digest(policies)

    def _ray_cluster(self, view: View) -> dict[str, Any]:
        """The RayCluster for this start: as wide as the Run asks for."""
        plan = _plan(view)
        wide = dataclasses.replace(plan, job=plan.job.widened(view.asked.parallel or plan.job.width))
        made = raycluster.raycluster(wide, self._site)
        annotations = {
            **made["metadata"]["annotations"],
            names.SPEC_HASH: planning.spec_hash(plan.job),
            runs.RESUMES: str(view.asked.resumes),
        }
        return {**made, "metadata": {**self._metadata(view, made["metadata"]["labels"]), "annotations": annotations}}

    def _apply(self, view: View, thing: Mapping[str, Any]) -> None:
        """Makes an object of the Run, or makes it what it should be."""
        made = {**thing, "metadata": {**self._metadata(view, pods.labels(_plan(view))), **thing["metadata"]}}
        self._cluster.apply(made, names.MANAGER, force=True)

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
        is_missing = view.problem is not None and view.problem.reason == runs.CODE_MISSING
        if is_missing and self._clock() - metadata.created(view.run) < _ARRIVAL:
            return ARRIVING
        ended = next((one for one in status.conditions if one.type == runs.ENDED and one.status == "True"), None)
        if ended is None or view.ray_cluster is not None:
            resting = status.state == "Paused" or bool(view.read.issues)
            if resting and view.ray_cluster is None:
                return None
            if view.ray_cluster is None and view.problem is not None:
                return self._patience(view, view.problem)
            self._problems.pop(view.name, None)
            return WAITING if self._has_waited(view) else LIVING
        if not self._site.run_ttl:
            return None
        left = (metadata.moment(ended.lastTransitionTime) or 0.0) + self._site.run_ttl - self._clock()
        if left > 0:
            return left
        # As it was read: it may have been resumed since, or another Run may have its name.
        if self._cluster.delete(kinds.RUN, view.name, only=view.run):
            self._note_deletion(view.name, "its Run was removed by the operator, long after the end (operator.runTtl)")
        return None

    def _patience(self, view: View, problem: Problem) -> float:
        """Seconds until a Run with a problem is looked at again: twice as long each time that it has stayed the same."""
        before, times = self._problems.get(view.name, (None, 0))
        times = times + 1 if problem == before else 0
        self._problems[view.name] = problem, times
        return min(LIVING * 2.0 ** min(times, 10), PATIENT)

    def _has_waited(self, view: View) -> bool:
        """Whether its pods have waited for some time.

        A pod that changes is seen at once, but a refusal only in events, and that a controller works only in the ledger.
        """
        if view.mine is None or view.alive or view.controller_runs or not view.why:
            return False
        return not is_new(view.mine, self._clock())


def _plan(view: View) -> Plan:
    """The plan that the Run was made of; its code, which was compared with the Run, only when that is to be started."""
    packed = b"".join(part or b"" for part in runs.parts(view.code))
    return Plan(view.name, view.job, Pack(packed, view.asked.code.sha256, ()), Provenance("", "", ""))


def _secret(name: str, key: str, value: str) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}


def _facts(view: View) -> dict[str, Any]:
    """The facts of the submission as the ledger and the pods have them."""
    asked, job = view.asked, view.job
    made = metadata.created(view.run)
    given = {"submitted": made, **asked.submission}
    if not isinstance(given["submitted"], (int, float)) or isinstance(given["submitted"], bool):
        given["submitted"] = made
    # Later than what a former controller wrote, whose clock may be ahead. The new one keeps these facts in the ledger.
    before, worked = (0.0, 0.0) if view.recorded is None else (view.recorded.status.updated, view.recorded.status.worked)
    start = {labels.UID: view.uid, labels.BEGUN: max(view.now, before + 0.001), WORKED: worked}
    # Of these the Run's spec says nothing: what is in MLflow is whose record this is.
    record = "" if view.recorded is None else str(view.recorded.submission.get(labels.RECORD_UID, ""))
    whose = {labels.RECORD_UID: record or view.uid, labels.OWNER: view.owner}
    return {**given, "code_hash": asked.code.sha256, "spec_hash": planning.spec_hash(job), **start, **whose}
