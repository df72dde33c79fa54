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
from trialplane.reconciler import decisions, problems, run_status
from trialplane.reconciler.decisions import (
    Action,
    Admit,
    Adopt,
    Describe,
    Desire,
    Enclose,
    KeepImages,
    NoteChange,
    Record,
    Remove,
    Resize,
    Revoke,
    Start,
)
from trialplane.reconciler.observation import WORKED, Observation, Phase, Problem
from trialplane.reconciler.observing import Observer, is_free, is_new, owns
from trialplane.reconciler.removal import Removal
from trialplane.wire import backoff, labels
from trialplane.wire import cluster as names
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
        self.cluster = cluster
        self._archive = archive
        self._site = site
        self.clock = clock
        self.observer = Observer(cluster, archive, site, lambda: self.clock())
        self._removal = Removal(cluster, archive, site, lambda: self.clock())
        self._problems: dict[str, tuple[Problem, int]] = {}  # by run, and how often it was found in turn

    def forgotten(self) -> list[str]:
        """Names of the runs that their users have deleted, and that are not gone yet."""
        return sorted(self._archive.forgotten())

    def admitted(self) -> list[str]:
        """Names of runs that a token opens; their Runs may have been deleted while no operator worked."""
        return self._archive.admitted()

    def reconcile(self, name: str) -> float | None:
        """Reconcile the Run of that name with its spec, as far as that is possible now.

        Returns:
            Seconds after which to call again even if nothing is seen to change; None for never.

        Raises:
            TargetError: the API server could not be reached, or refuses what the Run's status was told.
            SQLAlchemyError: the Run is gone, and the database is away.
        """
        run = self.cluster.read(kinds.RUN, name)
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
        observed = Observation(run, runs.read(run), now=self.clock())
        try:
            if leftover := self._removal.step(name, observed.uid):  # of an earlier Run of its name
                text = f"an earlier run of this name was deleted, and its files are being removed: {leftover}"
                self._write(observed, run_status.explained(observed, "FormerRun", text, self.clock()))
                return REMOVING
            observed = self.observer.look(observed)
            for _ in range(_ROUNDS):
                actions = decisions.decide(observed)
                if not actions:
                    break
                for action in actions:
                    self._do(observed, action)
                observed = self.observer.look(observed)
        except LedgerCorrupt as error:  # only its record; other Runs go on
            self._write(observed, run_status.explained(observed, "LedgerUnreadable", str(error), self.clock()))
            return self._patience(observed, Problem("LedgerUnreadable", str(error)))
        except errors.LedgerLocked as error:  # by a controller that is about to end
            self._write(observed, run_status.explained(observed, "LedgerLocked", str(error), self.clock()))
            return LIVING
        except LedgerFull as error:
            self._write(observed, run_status.explained(observed, "BudgetSpent", str(error), self.clock()))
            return self._patience(observed, Problem("BudgetSpent", ""))  # the amounts in the text may change
        except _LEDGER_AWAY as error:
            text = f"the ledger's database does not answer: {archive.reason(error)}"
            self._write(
                observed, run_status.explained(observed, "LedgerAway", f"{text}; all records are safe", self.clock())
            )
            return LIVING
        except (TargetError, InputError) as error:  # of the API server: a quota, an admission policy, a conflict
            self._write(observed, run_status.explained(observed, "Refused", str(error), self.clock()))
            raise
        status = run_status.status(observed, self.clock())
        self._write(observed, status)
        return self._next(observed, status)

    def _do(self, observed: Observation, action: Action) -> None:
        """One action."""
        name = observed.name
        _logger.info("%s: %s", name, type(action).__name__.lower())
        match action:
            case Record(new=new):
                plan = _plan(observed)
                self._archive.record(name, plan.job, _facts(observed), plan.pack.data, new=new)
            case Desire(changed=changed):
                self._archive.desire(name, changed)
            case Adopt():
                owners = {"metadata": {"ownerReferences": [runs.owner_reference(name, observed.uid)]}}
                for code_map in observed.code:
                    if code_map is not None and not owns(observed, code_map) and is_free(code_map, name):
                        self.cluster.patch(kinds.CONFIG_MAP, code_map["metadata"]["name"], owners)
            case Describe():
                spec = {
                    _FILES.job.name: observed.job.model_dump_json(),
                    _FILES.submission.name: json.dumps(_facts(observed), ensure_ascii=False),
                }
                thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.spec_map(name)}, "data": spec}
                self._apply(observed, thing)
            case Admit():
                self._admit(observed)
            case NoteChange(change=change):
                self._post(observed, change)
                self._archive.note(name, change)
            case Enclose():
                if observed.own_cluster is not None:
                    patch = {
                        "metadata": {"annotations": {names.NETWORK_HASH: self._enclose(observed, observed.own_cluster)}}
                    }
                    self.cluster.patch(kinds.RAY_CLUSTER, name, patch)
            case Revoke():
                self._archive.revoke(name)
            case Start():
                ray_cluster = self._ray_cluster(observed)
                ray_cluster["metadata"]["annotations"][names.NETWORK_HASH] = self._enclose(observed, ray_cluster)
                self._apply(observed, _secret(names.ray_secret(name), names.RAY_TOKEN_KEY, secrets.token_urlsafe(32)))
                for thing in raycluster.autoscaler_access(ray_cluster):
                    self._apply(observed, thing)
                self.cluster.create(kinds.RAY_CLUSTER, ray_cluster)
            case Resize(patch=patch):
                if observed.ray_cluster is not None:
                    self.cluster.patch(kinds.RAY_CLUSTER, observed.ray_cluster["metadata"]["name"], list(patch))
            case KeepImages(images=images):
                self._archive.keep_images(name, [(image.image, image.digest) for image in images])
            case Remove():
                if observed.own_cluster is not None:
                    # Until its pods and its token are gone, so that the next one of the name gets none of them.
                    self.cluster.delete(kinds.RAY_CLUSTER, name, foreground=True)
                if owns(observed, self.cluster.read(kinds.CONFIG_MAP, names.spec_map(name))):
                    self.cluster.delete(kinds.CONFIG_MAP, names.spec_map(name))

    def _note_deletion(self, name: str, text: str) -> None:
        """Record once that a Run is gone, if its record stays; the record of a run that never started has nothing of it."""
        with contextlib.suppress(LedgerCorrupt):
            recorded = self._archive.snapshot(name)
            last = None if recorded is None else recorded.change
            if last is not None and last.requested.get("state") != _DELETED:
                desired = {**last.requested, "state": _DELETED}
                self._archive.note(name, Change(self.clock(), "", text, last.uid, last.generation + 1, desired))

    def _post(self, observed: Observation, change: Change) -> None:
        """Say a change as an Event of the Run, which has one name however often it is made."""
        when, who = run_status.moment(change.at), f" by {change.by}" if change.by else ""
        about = {"apiVersion": runs.API_VERSION, "kind": runs.KIND, "name": observed.name, "uid": observed.uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{observed.name}.{observed.uid[:13]}.{change.generation}",
                "namespace": self.cluster.namespace,
            },
            "involvedObject": {**about, "namespace": self.cluster.namespace},
            "reason": "Changed",
            "message": f"{change.description}{who}",
            "type": "Normal",
            "source": {"component": "trialplane-operator"},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        try:
            self.cluster.apply(event, names.MANAGER, force=True)
        except (TargetError, InputError) as error:  # a quota; the ledger has it all the same, and the run goes on
            _logger.warning("%s: the Event of a change could not be made: %s", observed.name, error)

    def _admit(self, observed: Observation) -> None:
        """Give the controller a token of its own, with which it opens the run at the gateway."""
        token = secrets.token_urlsafe(32)
        self._apply(observed, _secret(names.token_secret(observed.name), names.TOKEN_KEY, token))
        self._archive.admit(observed.name, token)

    def _enclose(self, observed: Observation, ray_cluster: Mapping[str, Any]) -> str:
        """Apply the network policies of a RayCluster's pods, as the site allows. Return their digest."""
        policies = network.policies(ray_cluster, self._site)
        for policy in policies:
            self._apply(observed, policy)
        if not policies:  # those of a run that was started while the chart had some would still hold
            for policy_name in network.names(observed.name):
                if owns(observed, self.cluster.read(kinds.NETWORK_POLICY, policy_name)):
                    self.cluster.delete(kinds.NETWORK_POLICY, policy_name)
        return network.digest(policies)

    def _ray_cluster(self, observed: Observation) -> dict[str, Any]:
        """The RayCluster for this start: as wide as the Run asks for."""
        plan = _plan(observed)
        wide = dataclasses.replace(plan, job=plan.job.widened(observed.spec.parallel or plan.job.width))
        ray_cluster = raycluster.raycluster(wide, self._site)
        annotations = {
            **ray_cluster["metadata"]["annotations"],
            names.SPEC_HASH: planning.spec_hash(plan.job),
            runs.RESUMES: str(observed.spec.resumes),
        }
        return {
            **ray_cluster,
            "metadata": {**self._metadata(observed, ray_cluster["metadata"]["labels"]), "annotations": annotations},
        }

    def _apply(self, observed: Observation, thing: Mapping[str, Any]) -> None:
        """Make an object of the Run, or make it what it should be."""
        owned = {**thing, "metadata": {**self._metadata(observed, pods.labels(_plan(observed))), **thing["metadata"]}}
        self.cluster.apply(owned, names.MANAGER, force=True)

    def _metadata(self, observed: Observation, labels: Mapping[str, str]) -> dict[str, Any]:
        where = {"name": observed.name, "namespace": self.cluster.namespace}
        return {**where, "labels": dict(labels), "ownerReferences": [runs.owner_reference(observed.name, observed.uid)]}

    def _write(self, observed: Observation, status: Status) -> None:
        """Write a status that differs from what the Run has."""
        if status != observed.status:
            # Refused when another Run has its name by now.
            body = {"metadata": {"uid": observed.uid}, "status": status.model_dump(mode="json")}
            self.cluster.patch(kinds.RUN, observed.name, body, status=True)

    def _next(self, observed: Observation, status: Status) -> float | None:
        problem = problems.problem(observed)
        is_missing = problem is not None and problem.reason == runs.CODE_MISSING
        if is_missing and self.clock() - metadata.created(observed.run) < _ARRIVAL:
            return ARRIVING
        ended = next(
            (condition for condition in status.conditions if condition.type == runs.ENDED and condition.status == "True"),
            None,
        )
        if ended is None or observed.ray_cluster is not None:
            resting = status.state == "Paused" or bool(observed.read.issues)
            if resting and observed.ray_cluster is None:
                return None
            if observed.ray_cluster is None and problem is not None:
                return self._patience(observed, problem)
            self._problems.pop(observed.name, None)
            return WAITING if self._has_waited(observed) else LIVING
        if not self._site.run_ttl:
            return None
        seconds_left = (metadata.moment(ended.lastTransitionTime) or 0.0) + self._site.run_ttl - self.clock()
        if seconds_left > 0:
            return seconds_left
        # As it was read: it may have been resumed since, or another Run may have its name.
        if self.cluster.delete(kinds.RUN, observed.name, only=observed.run):
            self._note_deletion(observed.name, "its Run was removed by the operator, long after the end (operator.runTtl)")
        return None

    def _patience(self, observed: Observation, problem: Problem) -> float:
        """Seconds until a Run with a problem is looked at again: twice as long each time that it has stayed the same."""
        before, times = self._problems.get(observed.name, (None, 0))
        times = times + 1 if problem == before else 0
        self._problems[observed.name] = problem, times
        return backoff.pause(times + 1, PATIENT, first=LIVING)

    def _has_waited(self, observed: Observation) -> bool:
        """Whether its pods have waited for some time.

        A pod that changes is seen at once, but a refusal only in events, and that a controller works only in the ledger.
        """
        if observed.own_cluster is None or observed.phase not in (Phase.STARTING, Phase.LOST) or not observed.waits:
            return False
        return not is_new(observed.own_cluster, self.clock())


def _plan(observed: Observation) -> Plan:
    """The plan that the Run was made of; its code, which was compared with the Run, only when that is to be started."""
    packed = b"".join(part or b"" for part in runs.parts(observed.code))
    return Plan(observed.name, observed.job, Pack(packed, observed.spec.code.sha256, ()), Provenance("", "", ""))


def _secret(name: str, key: str, value: str) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}


def _facts(observed: Observation) -> dict[str, Any]:
    """The facts of the submission as the ledger and the pods have them."""
    spec, job = observed.spec, observed.job
    created = metadata.created(observed.run)
    submission = {"submitted": created, **spec.submission}
    if not isinstance(submission["submitted"], (int, float)) or isinstance(submission["submitted"], bool):
        submission["submitted"] = created
    # Later than what a former controller wrote, whose clock may be ahead. The new one keeps these facts in the ledger.
    last = None if observed.recorded is None else observed.recorded.status
    before, worked = (0.0, 0.0) if last is None else (last.updated, last.worked)
    start = {labels.UID: observed.uid, labels.BEGUN: max(observed.now, before + 0.001), WORKED: worked}
    # Of these the Run's spec says nothing: what is in MLflow is whose record this is.
    record = "" if observed.recorded is None else str(observed.recorded.submission.get(labels.RECORD_UID, ""))
    whose = {labels.RECORD_UID: record or observed.uid, labels.OWNER: observed.owner}
    return {**submission, "code_hash": spec.code.sha256, "spec_hash": planning.spec_hash(job), **start, **whose}
