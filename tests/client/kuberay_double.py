"""A namespace with the chart, in this process: KubeRay, a controller that works on nothing, the gateway.

A RayCluster gets its pods at once. Its controller is there unless the test holds it back; it reports RUNNING, follows the
desired state at once, and ends as the real one does, once for each RayCluster. The ledger outlives every object. A test ends
trials.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kube.cluster_double import ClusterDouble

from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.ledger import run_status
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.run_status import LedgerView
from trialplane.plan import plan as planning
from trialplane.wire import cluster as names
from trialplane.wire import labels, progress, records
from trialplane.wire.records import Change, ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState

GATEWAY = "http:trialplane-gateway:8080"
PAGE = 3  # attempts in an answer of the gateway
SITE = {
    "version": "1",
    "release": "trialplane",
    "images": {"controller": "trialplane/controller:1", "trial": "trialplane/trial:1"},
    "gateway": {"service": "trialplane-gateway", "port": 8080},
    "ledger": {"name": "trialplane-ledger", "key": "url"},
    "controller_account": "trialplane-controller",
    "trial_account": "trialplane-trial",
    "network": {"enabled": True, "trial": {"egress": [{"ports": [{"port": 5000}]}]}},
}


@dataclasses.dataclass
class Study:
    """A run in the ledger."""

    job: bytes
    submission: dict[str, Any]
    code: bytes
    status: RunStatus
    alive: bool = False
    desired: RunState = RunState.RUNNING
    parallel: int | None = None
    mark: str = ""  # of its removal, once its user has deleted it
    token: str | None = None  # which opens it at the gateway
    rows: list[TrialRow] = dataclasses.field(default_factory=list)
    whole: list[Attempt] | None = None  # what an export reads; None for a gateway of before there was one
    curves: list[ReportRow] = dataclasses.field(default_factory=list)
    changes: list[Change] = dataclasses.field(default_factory=list)
    images: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # the digests that its pods have run
    saved: bool | None = None  # whether there is a checkpoint; None for a gateway without the volume
    logs: dict[tuple[int | None, int | None], bytes] = dataclasses.field(default_factory=dict)
    worker_logs: dict[tuple[int, int], bytes] = dataclasses.field(default_factory=dict)  # by iteration and worker


def _now(submission: dict[str, Any]) -> float:
    """A controller's time, which is never before its start, of which the operator made a note."""
    return max(time.time(), float(submission.get(labels.BEGUN, 0.0)))


class NamespaceDouble:
    """A namespace of a `ClusterDouble` in which the chart is installed.

    Attributes:
        held: while True, controllers do not start: their pods are pending.
        deaf: while True, controllers ignore the desired state.
        down: while True, the gateway does not answer.
        expired: tokens of users that the gateway does not take any more.
        unchecked: how often the gateway cannot find out who asks.
        unattended: while True, the operator is not running.
        ending: how many requests to forget a run find its controller, which is coming to its end.
        stuck: how pods that remove files end; None for well.
        removed: the claims and folders that such pods have removed.
    """

    def __init__(self, cluster: ClusterDouble) -> None:
        self.cluster = cluster
        self.studies: dict[str, Study] = {}
        self.held = False
        self.deaf = False
        self.down = False
        self.expired: set[str] = set()
        self.unchecked = 0
        self.unattended = False
        self.ending = 0
        self.stuck: dict[str, Any] | None = None
        self.removed: list[tuple[str, str]] = []
        self._begun: set[str] = set()  # uids of RayClusters whose controller has begun
        cluster.made = self._made
        cluster.gone = self._gone
        cluster.proxy = self._proxy
        cluster.put("configmaps", {"metadata": {"name": names.SITE}, "data": {names.SITE_KEY: json.dumps(SITE)}})

    def install(self, **fields: Any) -> None:
        """Changes what the chart says of itself."""
        self.cluster.objects["configmaps"][names.SITE]["data"][names.SITE_KEY] = json.dumps({**SITE, **fields})

    # KubeRay

    def _made(self, ray_cluster: dict[str, Any]) -> None:
        run = ray_cluster["metadata"]["name"]
        owner = [{"uid": ray_cluster["metadata"]["uid"]}]
        ray_cluster["status"] = {"observedGeneration": 1}
        self._pod(f"{run}-head-x7k2p", ray_cluster["spec"]["headGroupSpec"]["template"], owner)
        for group in ray_cluster["spec"]["workerGroupSpecs"]:
            for number in range(group["replicas"]):
                pod = f"{run}-{group['groupName']}-worker-{number}"
                self._pod(pod, group["template"], owner, group["groupName"])

    def _pod(
        self,
        name: str,
        template: Mapping[str, Any],
        owner: Sequence[Mapping[str, str]],
        group: str = "",
    ) -> None:
        phase = "Pending" if self.held else "Running"
        state = {"waiting": {"reason": "ContainerCreating"}} if self.held else {"running": {}}
        boxes, sidecars = (
            [{"name": box["name"], "image": box["image"], "state": state} for box in template["spec"].get(kind) or []]
            for kind in ("containers", "initContainers")
        )
        labels = {**template["metadata"]["labels"], names.GROUP_LABEL: group}
        metadata = {"name": name, "labels": labels, "ownerReferences": list(owner)}
        status = {"phase": phase, "containerStatuses": boxes, "initContainerStatuses": sidecars}
        self.cluster.put("pods", {"metadata": metadata, "spec": template["spec"], "status": status})

    def _gone(self, ray_cluster: Mapping[str, Any]) -> None:
        study = self.studies.get(ray_cluster["metadata"]["name"])
        if study is not None:
            study.alive = False

    def _remove_files(self) -> None:
        """Do the work of the pods that the operator creates to remove files."""
        for pod in list(self.cluster.objects["pods"].values()):
            if names.REMOVES not in (pod["metadata"].get("labels") or {}) or "status" in pod:
                continue
            pod["status"] = self.stuck or {"phase": "Succeeded"}
            if self.stuck is None:
                (volume,), (container,) = pod["spec"]["volumes"], pod["spec"]["containers"]
                self.removed.append((volume["persistentVolumeClaim"]["claimName"], container["command"][-1]))

    # The controller

    def step(self) -> None:
        """Lets controllers whose pods are there begin, and take the desired state; and pods that remove files do that."""
        self._remove_files()
        for run, ray_cluster in list(self.cluster.objects.get("rayclusters", {}).items()):
            if ray_cluster["metadata"]["uid"] not in self._begun and not self.held:
                self._begin(run, ray_cluster)
        for run, study in self.studies.items():
            if study.alive and not self.deaf:
                width = study.parallel or kinds.read(study.job).width
                study.status = dataclasses.replace(study.status, parallel=width)
                if study.desired is not RunState.RUNNING:
                    self.end(run, study.desired, "stopped" if study.desired is RunState.PAUSED else "cancelled by the user")

    def _begin(self, run: str, ray_cluster: dict[str, Any]) -> None:
        spec = self.cluster.objects["configmaps"].get(names.spec_map(run))
        code = self.cluster.objects["configmaps"].get(names.code_map(run))
        if spec is None or code is None:  # its pods wait for them
            return
        job = kinds.read(spec["data"]["job.json"])
        maps = self.cluster.objects["configmaps"]
        parts = [code, *(maps[name] for name in sorted(maps) if name.startswith(f"{names.code_map(run)}-"))]
        packed = b"".join(base64.b64decode(text) for part in parts for text in part["binaryData"].values())
        facts = json.loads(spec["data"]["submission.json"])
        study = self.studies.get(run)
        if study is None:  # made by other means than `submit`
            study = self.recorded(run, job, facts, packed)
        study.job, study.submission = spec["data"]["job.json"].encode(), facts
        study.alive = True
        pods = [name for name in self.cluster.objects["pods"] if name.startswith(f"{run}-") and "worker" in name]
        study.status = dataclasses.replace(
            study.status,
            state=RunState.RUNNING,
            reason="",
            trials=job.trials,
            parallel=study.parallel or job.width,
            progress=progress.initial_progress(job.kind),
            slots_ready=job.slots,
            nodes=tuple(pods[:1]),
            objectives=tuple(objective.metric for objective in job.objectives),
            started=time.time(),
            ended=None,
            updated=_now(facts),
        )
        study.logs[None, None] = b"the controller is here\n"
        self._begun.add(ray_cluster["metadata"]["uid"])

    def tell(self, run: str, rows: Sequence[TrialRow]) -> None:
        """Trials that ended, with their logs."""
        study = self.studies[run]
        study.rows += rows
        for row in rows:
            study.logs[row.trial, row.attempt] = f"trial {row.trial}\n".encode()
        study.status = dataclasses.replace(study.status, complete=len(study.rows), best=rows[0])

    def end(self, run: str, state: RunState, reason: str = "") -> None:
        """The end of a controller, whose pod stays."""
        study = self.studies[run]
        study.alive = False
        study.status = dataclasses.replace(
            study.status, state=state, reason=reason, slots_ready=0, ended=time.time(), updated=_now(study.submission)
        )

    # The gateway

    def _proxy(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        service, _, rest = path.partition("/")
        rest = rest.removeprefix("namespaces/team/")
        if self.down or service != GATEWAY:
            return 503, {}, b'{"kind":"Status","status":"Failure","message":"no endpoints available for service"}'
        token = headers.get(names.TOKEN_HEADER.lower())
        if self.unchecked:
            self.unchecked -= 1
            return _json({"error": "the API server could not be asked who you are", "code": names.UNCHECKED}, 503)
        if token not in self.cluster.tokens or token in self.expired:
            return _json({"error": "the token is not valid (any more): it has expired"}, 401)
        self.step()
        parts = rest.split("/")
        if parts == ["runs"]:
            newest = sorted(self.studies, key=lambda run: self.studies[run].submission["submitted"], reverse=True)
            return _json([self._entry(run) for run in newest])
        study = self.studies.get(parts[1])
        if study is None:
            return _json({"error": f"there is no run {parts[1]}"}, 404)
        if method == "DELETE":
            self.ending -= self.ending > 0
            if study.alive or self.ending:
                return _json({"error": f"a controller works on {parts[1]}; `platform cancel {parts[1]}` ends it"}, 409)
            study.mark = study.mark or secrets.token_hex(4)
            study.token = None
            return _json({"deleting": parts[1]})
        return self._read(study, parts[2], query)

    def recorded(self, run: str, job: Job, facts: dict[str, Any], code: bytes) -> Study:
        status = planning.pending_status(run, job, facts["submitted"])
        self.studies[run] = Study(job.model_dump_json().encode(), facts, code, status)
        return self.studies[run]

    def _entry(self, run: str) -> dict[str, Any]:
        study = self.studies[run]
        return {"run": run, "job": study.status.job, "submitted": study.submission["submitted"]}

    def _read(self, study: Study, resource: str, query: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        if resource == "status":
            status = run_status.current(view := LedgerView(study.status, study.desired, study.alive))
            if view.is_killed:
                status = run_status.recounted(status, run_status.recount(kinds.read(study.job), study.rows))
            status = dataclasses.replace(status, images=study.images)
            recorded = {"state": study.desired, "parallel": study.parallel}
            return _json({"status": records.to_dict(status), "alive": study.alive, "desired": recorded})
        if resource == "job":
            return 200, {}, study.job
        if resource == "submission":
            return _json(study.submission)
        if resource == "code":
            return 200, {}, study.code
        if resource == "checkpoints":
            return _json({"error": "no volume"}, 404) if study.saved is None else _json({"saved": study.saved})
        if resource == "attempts":
            return _page("rows", study.rows, int(query.get("after", -1)) + 1, "after")
        if resource == "changes":
            return _json(records.to_dict(study.changes))
        if resource == "whole":
            if study.whole is None:
                return _json({"error": "a run has no whole"}, 404)
            return _page("attempts", study.whole, int(query.get("number", -1)) + 1, "number", alive=study.alive)
        if resource == "curves":
            reports = [report for report in study.curves if report.mark > int(query["after"])]
            size = min(PAGE, limit := int(query["limit"]))
            following = {"after": reports[size - 1].mark, "limit": limit - size} if len(reports) > size < limit else None
            return _json({"reports": [records.to_dict(report) for report in reports[:size]], "next": following})
        if resource == "ends":
            after = int(query["after"])
            return _page("rows", study.rows, after, "after", 0, end_number=min(after + PAGE, len(study.rows)))
        trial = int(query["trial"]) if "trial" in query else None
        trial_logs = [key for key in study.logs if key[0] == trial]
        attempt = (
            int(query["attempt"]) if "attempt" in query else max((key[1] or 0 for key in trial_logs), default=0) or None
        )
        if "worker" in query:
            assert trial is not None
            data = study.worker_logs.get((trial, int(query["worker"])))
        else:
            data = study.logs.get((trial, attempt))
        if data is None:
            return _json({"error": "there is no such log"}, 404)
        offset = int(query["from"])
        growing = study.alive and trial is None
        return 200, {"X-Trialplane-Next": str(len(data)), "X-Trialplane-Growing": str(int(growing))}, data[offset:]


def _page(
    name: str, entries: Sequence[Any], begin: int, cursor: str, last: int = 1, **more: Any
) -> tuple[int, dict[str, str], bytes]:
    """A page of an answer, and where the next one begins: after the entry with the number `cursor`, or after so many."""
    end = begin + PAGE
    following = {cursor: end - last} if end < len(entries) else None
    return _json({name: [records.to_dict(entry) for entry in entries[begin:end]], "next": following, **more})


def _json(value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()
