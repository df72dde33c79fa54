"""Reconciles a Run: observes it, does the actions that are due, and writes its status.

`Reconciler.reconcile` may be called at any time and any number of times, and may be killed at any moment: its actions depend
only on the observation, and not on earlier calls.
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
    CreateSpec,
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

# Seconds until a Run is reconciled again without an event.
REMOVING = 2.0  # while its files are being removed
LIVING = 10.0  # while it works or starts, and after the first error
WAITING = 20.0  # after its pods have waited for some time
PATIENT = 300.0  # at most, while it has the same problem
ARRIVING = 1.0  # while it is new and its code is missing
_DELETED = "Deleted"  # state of a deleted Run in the record of its changes
_ARRIVAL = 30.0  # seconds after a Run's creation in which its code may be created
_LEDGER_AWAY: tuple[type[Exception], ...] = (LedgerError, archive.DATABASE_ERRORS)
_ROUNDS = 4  # limit of observations and decisions in one call
_FILES = RunPaths(Path())  # only for the names of files
_logger = logging.getLogger(__name__)


class Reconciler:
    """The reconciliation of the Runs in one namespace.

    Args:
        cluster: Client of the cluster for the namespace.
        archive: Ledgers of the namespace.
        site: Description of the chart's installation.
        clock: Clock, in seconds since the epoch.

    Attributes:
        cluster: See above.
        clock: See above.
        observer: Reader of the Runs.
    """

    def __init__(self, cluster: Cluster, archive: Archive, site: Site, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self._archive = archive
        self._site = site
        self.clock = clock
        # Functions that read `self.clock` at each call, because tests replace it.
        self.observer = Observer(cluster=cluster, archive=archive, site=site, clock=lambda: self.clock())
        self._removal = Removal(cluster=cluster, archive=archive, site=site, clock=lambda: self.clock())
        self._problems: dict[str, tuple[Problem, int]] = {}  # by run: its last problem, and how often it had it in a row

    def runs_to_remove(self) -> list[str]:
        """Return the names of the runs that their users have deleted and that are not removed yet."""
        return sorted(self._archive.removal_marks())

    def admitted(self) -> list[str]:
        """Return the names of runs with a valid token. Their Runs may have been deleted while no operator worked."""
        return self._archive.runs_with_token()

    def reconcile(self, name: str) -> float | None:
        """Reconcile the Run of this name with its spec, as far as possible now.

        Returns:
            Seconds until it must be reconciled again even without an event. None for never.

        Raises:
            TargetError: The API server cannot be reached, or refuses an action; the Run's status has the reason.
            InputError: The API server refuses an action; the Run's status has the reason.
            SQLAlchemyError: The Run was deleted, and the database is unavailable.
        """
        run = self.cluster.read(kinds.RUN, name)
        if run is None:
            return self._reconcile_deleted(name)
        if metadata.is_deleted(run):  # its end is an event, after which this is called again
            return None
        observed = Observation(run, runs.read(run), now=self.clock())
        try:
            if reason := self._removal.step(name, observed.uid):
                text = f"an earlier run of this name was deleted, and its files are being removed: {reason}"
                self._write_reason(observed, "FormerRun", text)
                return REMOVING
            observed = self.observer.observe(observed)
            for _ in range(_ROUNDS):  # after some actions, others are due
                actions = decisions.decide(observed)
                if not actions:
                    break
                for action in actions:
                    self._do(observed, action)
                observed = self.observer.observe(observed)
            observed = self.observer.recounted(observed)
        except LedgerCorrupt as error:  # the record of this run is damaged, not those of others
            self._write_reason(observed, "LedgerUnreadable", str(error))
            return self._back_off(observed, Problem("LedgerUnreadable", str(error)))
        except errors.LedgerLocked as error:  # by a controller that is about to end
            self._write_reason(observed, "LedgerLocked", str(error))
            return LIVING
        except LedgerFull as error:
            self._write_reason(observed, "BudgetSpent", str(error))
            # Without the text, whose amounts change: with each change, the pause would begin anew.
            return self._back_off(observed, Problem("BudgetSpent", ""))
        except _LEDGER_AWAY as error:
            self._write_reason(observed, "LedgerAway", archive.unavailable(error))
            return LIVING
        except (TargetError, InputError) as error:  # a quota, an admission policy or a conflict
            self._write_reason(observed, "Refused", str(error))
            raise
        status = run_status.status(observed, self.clock())
        self._write(observed, status)
        return self._expire_or_wait(observed, status)

    def _reconcile_deleted(self, name: str) -> float | None:
        """Revoke the token of a Run that does not exist any more, and remove its files if its user has requested that.

        Returns:
            Seconds until this must be repeated. None if it is complete.
        """
        self._problems.pop(name, None)
        if self._removal.step(name):  # the reason why the files are not removed yet
            return REMOVING
        self._archive.revoke_tokens(name)
        self._note_deletion(name, "its Run was deleted")  # the API server does not record who deleted it
        self._removal.sweep(name)  # deletes the pods that removed the files
        return None

    def _write_reason(self, observed: Observation, reason: str, text: str) -> None:
        """Write into the status why the Run cannot be observed or reconciled now; see `run_status.with_reason`."""
        self._write(observed, run_status.with_reason(observed, reason, message=text, now=self.clock()))

    def _do(self, observed: Observation, action: Action) -> None:
        """Do an action. For each action, see its class in `decisions`."""
        name = observed.name
        _logger.info("%s: %s", name, type(action).__name__.lower())
        match action:
            case Record(new=new):
                plan = _plan(observed)
                self._archive.record_run(name, plan.job, _submission(observed), plan.pack.data, new=new)
            case Desire(changed=changed):
                self._archive.change_desired(name, changed)
            case Adopt():
                self._adopt_code(observed)
            case CreateSpec():
                self._create_spec(observed)
            case Admit():
                self._create_token(observed)
            case NoteChange(change=change):
                self._post_event(observed, change)
                self._archive.record_change(name, change)
            case Enclose():
                if observed.own_cluster is not None:
                    digest = self._apply_network_policies(observed, observed.own_cluster)
                    annotations = {names.NETWORK_HASH: digest}
                    self.cluster.patch(kinds.RAY_CLUSTER, name, {"metadata": {"annotations": annotations}})
            case Revoke():
                self._archive.revoke_tokens(name)
            case Start():
                self._start(observed)
            case Resize(patch=patch):
                if observed.ray_cluster is not None:
                    self.cluster.patch(kinds.RAY_CLUSTER, observed.ray_cluster["metadata"]["name"], list(patch))
            case KeepImages(images=images):
                self._archive.add_images(name, [(image.image, image.digest) for image in images])
            case Remove():
                if observed.own_cluster is not None:
                    # In the foreground: the RayCluster stays until its pods and its token are gone, so that a new RayCluster
                    # of the same name does not get them.
                    self.cluster.delete(kinds.RAY_CLUSTER, name, foreground=True)
                if owns(observed, self.cluster.read(kinds.CONFIG_MAP, names.spec_map(name))):
                    self.cluster.delete(kinds.CONFIG_MAP, names.spec_map(name))

    def _adopt_code(self, observed: Observation) -> None:
        """Make the Run the owner of the ConfigMaps with its code."""
        owners = {"metadata": {"ownerReferences": [runs.owner_reference(observed.name, observed.uid)]}}
        for code_map in observed.code:
            if code_map is not None and not owns(observed, code_map) and is_free(code_map, observed.name):
                self.cluster.patch(kinds.CONFIG_MAP, code_map["metadata"]["name"], owners)

    def _create_spec(self, observed: Observation) -> None:
        """Create the ConfigMap with the job and the submission, which the pods read."""
        files = {
            _FILES.job.name: observed.job.model_dump_json(),
            _FILES.submission.name: json.dumps(_submission(observed), ensure_ascii=False),
        }
        metadata_fields = {"name": names.spec_map(observed.name)}
        self._apply(observed, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata_fields, "data": files})

    def _start(self, observed: Observation) -> None:
        """Create the RayCluster, after the network policies, Ray's token and the service account that its pods need."""
        ray_cluster = self._ray_cluster(observed)
        policies_digest = self._apply_network_policies(observed, ray_cluster)
        ray_cluster["metadata"]["annotations"][names.NETWORK_HASH] = policies_digest
        ray_token = _secret(names.ray_secret(observed.name), names.RAY_TOKEN_KEY, secrets.token_urlsafe(32))
        for manifest in (ray_token, *raycluster.autoscaler_access(ray_cluster)):
            self._apply(observed, manifest)
        self.cluster.create(kinds.RAY_CLUSTER, ray_cluster)

    def _note_deletion(self, name: str, text: str) -> None:
        """Record the deletion of a Run as a change, unless it is recorded already, or the record has no changes."""
        with contextlib.suppress(LedgerCorrupt):  # a damaged record must not prevent the rest of the deletion
            record = self._archive.snapshot(name)
            last = None if record is None else record.change
            if last is not None and last.requested.get("state") != _DELETED:
                requested = {**last.requested, "state": _DELETED}
                self._archive.record_change(
                    name,
                    Change(
                        at=self.clock(),
                        by="",
                        description=text,
                        uid=last.uid,
                        generation=last.generation + 1,
                        requested=requested,
                    ),
                )

    def _post_event(self, observed: Observation, change: Change) -> None:
        """Create the Event of a change. Its name follows from the change, so a repetition does not create a second Event."""
        time_text = run_status.moment(change.at)
        suffix = f" by {change.by}" if change.by else ""
        run_reference = {"apiVersion": runs.API_VERSION, "kind": runs.KIND, "name": observed.name, "uid": observed.uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{observed.name}.{observed.uid[:13]}.{change.generation}",
                "namespace": self.cluster.namespace,
            },
            "involvedObject": {**run_reference, "namespace": self.cluster.namespace},
            "reason": "Changed",
            "message": f"{change.description}{suffix}",
            "type": "Normal",
            "source": {"component": "trialplane-operator"},
            "firstTimestamp": time_text,
            "lastTimestamp": time_text,
            "count": 1,
        }
        try:
            self.cluster.apply(event, names.MANAGER, force=True)
        except (TargetError, InputError) as error:  # for example a quota; the ledger has the change anyway
            _logger.warning("%s: the Event of a change could not be created: %s", observed.name, error)

    def _create_token(self, observed: Observation) -> None:
        """Create a new token, with which the controller opens the run at the gateway, and its Secret."""
        token = secrets.token_urlsafe(32)
        self._apply(observed, _secret(names.token_secret(observed.name), names.TOKEN_KEY, token))
        self._archive.set_token(observed.name, token)

    def _apply_network_policies(self, observed: Observation, ray_cluster: Mapping[str, Any]) -> str:
        """Apply the network policies of a RayCluster's pods, and return their digest."""
        policies = network.policies(ray_cluster, self._site)
        for policy in policies:
            self._apply(observed, policy)
        if not policies:  # the chart's values had policies when the run was started, but have none now
            for policy_name in network.names(observed.name):
                if owns(observed, self.cluster.read(kinds.NETWORK_POLICY, policy_name)):
                    self.cluster.delete(kinds.NETWORK_POLICY, policy_name)
        return network.digest(policies)

    def _ray_cluster(self, observed: Observation) -> dict[str, Any]:
        """Return the manifest of the RayCluster for a start, with the number of pods in the spec."""
        plan = _plan(observed)
        resized_plan = dataclasses.replace(plan, job=plan.job.widened(observed.spec.parallel or plan.job.width))
        ray_cluster = raycluster.raycluster(resized_plan, self._site)
        annotations = {
            **ray_cluster["metadata"]["annotations"],
            names.SPEC_HASH: planning.spec_hash(plan.job),
            runs.RESUMES: str(observed.spec.resumes),
        }
        metadata_fields = self._metadata(observed, ray_cluster["metadata"]["labels"])
        return {**ray_cluster, "metadata": {**metadata_fields, "annotations": annotations}}

    def _apply(self, observed: Observation, manifest: Mapping[str, Any]) -> None:
        """Create an object that the Run owns, or change it if it exists."""
        metadata_fields = {**self._metadata(observed, pods.labels(_plan(observed))), **manifest["metadata"]}
        self.cluster.apply({**manifest, "metadata": metadata_fields}, names.MANAGER, force=True)

    def _metadata(self, observed: Observation, labels: Mapping[str, str]) -> dict[str, Any]:
        """Return the metadata of an object that the Run owns and that has the Run's name."""
        identity = {"name": observed.name, "namespace": self.cluster.namespace}
        return {**identity, "labels": dict(labels), "ownerReferences": [runs.owner_reference(observed.name, observed.uid)]}

    def _write(self, observed: Observation, status: Status) -> None:
        """Write the status of the Run if it has changed."""
        if status != observed.status:
            # With the uid, the API server refuses to write it to a new Run of the same name.
            body = {"metadata": {"uid": observed.uid}, "status": status.model_dump(mode="json")}
            self.cluster.patch(kinds.RUN, observed.name, body, status=True)

    def _expire_or_wait(self, observed: Observation, status: Status) -> float | None:
        """Delete a Run long after its end, or return the seconds until it must be reconciled again.

        Returns:
            Seconds until the next call. None if none is needed: the Run was deleted, or only an event can change its state.
        """
        problem = problems.problem(observed)
        is_code_missing = problem is not None and problem.reason == runs.CODE_MISSING
        is_run_new = self.clock() - metadata.creation_time(observed.run) < _ARRIVAL
        if is_code_missing and is_run_new:
            return ARRIVING
        if observed.ray_cluster is None:
            ended_at = _end_time(status)
            if ended_at is not None:
                return self._expire(observed, ended_at)
            waits_for_spec_change = status.state == "Paused" or observed.parsed.issues
            if waits_for_spec_change:
                return None
            if problem is not None:
                return self._back_off(observed, problem)
        self._problems.pop(observed.name, None)
        return WAITING if self._has_waited(observed) else LIVING

    def _expire(self, observed: Observation, ended_at: float) -> float | None:
        """Delete a Run if the chart's `operator.runTtl` has passed since its end.

        Returns:
            Seconds until it must be deleted. None if it was deleted now, or if the chart keeps ended Runs.
        """
        if not self._site.run_ttl:
            return None
        seconds_left = ended_at + self._site.run_ttl - self.clock()
        if seconds_left > 0:
            return seconds_left
        # `only` deletes just the observed version: not a Run that was resumed since, and not a new Run of the same name.
        if self.cluster.delete(kinds.RUN, observed.name, only=observed.run):
            self._note_deletion(observed.name, "its Run was removed by the operator, long after the end (operator.runTtl)")
        return None

    def _back_off(self, observed: Observation, problem: Problem) -> float:
        """Count how often a Run had the same problem, and return the seconds until it is reconciled again.

        The seconds double with each repetition, up to `PATIENT`.
        """
        last_problem, count = self._problems.get(observed.name, (None, 0))
        count = count + 1 if problem == last_problem else 1
        self._problems[observed.name] = problem, count
        return backoff.pause(count, PATIENT, first=LIVING)

    def _has_waited(self, observed: Observation) -> bool:
        """Whether the Run's pods have waited for some time, so that it may be reconciled less often.

        New pods are checked often, because some of their changes reach no watch: a refusal to create a pod is only in
        Events, and the start of a controller's work only in the ledger.
        """
        if observed.own_cluster is None or observed.phase not in (Phase.STARTING, Phase.LOST) or not observed.wait_reason:
            return False
        return not is_new(observed.own_cluster, self.clock())


def _end_time(status: Status) -> float | None:
    """Return the time at which a run has ended for good, in seconds since the epoch. None if it has not."""
    for condition in status.conditions:
        if condition.type == runs.ENDED and condition.status == "True":
            return metadata.timestamp(condition.lastTransitionTime) or 0.0
    return None


def _plan(observed: Observation) -> Plan:
    """Return the plan of the Run. It contains the code only if the Run must be started now."""
    packed = b"".join(part or b"" for part in runs.parts(observed.code))
    return Plan(
        run=observed.name,
        job=observed.job,
        pack=Pack(data=packed, sha256=observed.spec.code.sha256, files=()),
        provenance=Provenance(job_folder="", user="", version=""),
    )


def _secret(name: str, key: str, value: str) -> dict[str, Any]:
    """Return the manifest of a Secret with one key."""
    data = {key: base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}


def _submission(observed: Observation) -> dict[str, Any]:
    """Return the fields of the submission for the ledger and the pods: the user's own, then the operator's."""
    submitted = observed.spec.submission.get("submitted")
    is_time = isinstance(submitted, (int, float)) and not isinstance(submitted, bool)  # a user can write anything there
    created = metadata.creation_time(observed.run)
    user_fields = {**observed.spec.submission, "submitted": submitted if is_time else created}
    last_status = None if observed.record is None else observed.record.status
    last_update = 0.0 if last_status is None else last_status.updated
    worked = 0.0 if last_status is None else last_status.worked
    # The start must be later than the last status of an earlier controller, whose clock may be ahead.
    start = {labels.UID: observed.uid, labels.BEGUN: max(observed.now, last_update + 0.001), WORKED: worked}
    # The identity does not come from the spec, which a user can write: it decides which records in MLflow belong to the run.
    record_uid = "" if observed.record is None else str(observed.record.submission.get(labels.RECORD_UID, ""))
    identity = {labels.RECORD_UID: record_uid or observed.uid, labels.OWNER: observed.owner}
    hashes = {"code_hash": observed.spec.code.sha256, "spec_hash": planning.spec_hash(observed.job)}
    return {**user_fields, **hashes, **start, **identity}
