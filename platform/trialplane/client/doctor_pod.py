"""A pod of the trial image, created like a trial's pod, in which `trialplane.worker.probe` runs the doctor's checks.

It is always deleted afterwards, and ends by itself if this process dies first.
"""

from __future__ import annotations

import base64
import secrets
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from trialplane.client import doctor_verdicts
from trialplane.errors import TrialplaneError
from trialplane.job.kinds import Job
from trialplane.kube import kinds, preflight, waiting
from trialplane.kube.cluster import Cluster
from trialplane.kube.kinds import ObjectKind
from trialplane.plan import network, pods, raycluster
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import findings, ledger, mlflow, records
from trialplane.wire.findings import Finding

CONTAINER = "probe"
_LIFE = 900  # seconds after which Kubernetes ends the pod
_STUCK = 30.0  # seconds for which a permanent reason must last
_POLL = 1.0
_POSTGRESQL = 5432
_SERVER = "kubernetes.default.svc:443"


def plan(job: Job) -> Plan:
    """Return the plan of a run that is never submitted, for a pod like those of its trials."""
    return Plan(f"doctor-{secrets.token_hex(3)}", job, Pack(b"", "", ()), Provenance("", "", ""))


def manifest(plan: Plan, site: Site, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the pod: a trial's pod without the run's code, and with the probe as its command."""
    template = pods.trial(plan, site, doctor_verdicts.probed(plan))
    spec = template["spec"]
    code_volumes = {item["name"] for item in spec["volumes"] if "configMap" in item}
    spec["volumes"] = [item for item in spec["volumes"] if item["name"] not in code_volumes]
    container = spec["containers"][0]
    container["name"] = CONTAINER
    container["command"] = ["python", "-m", "trialplane.worker.probe", *arguments]
    container["volumeMounts"] = [item for item in container["volumeMounts"] if item["name"] not in code_volumes]
    spec["restartPolicy"] = "Never"
    spec["activeDeadlineSeconds"] = _LIFE
    metadata = {**template["metadata"], "name": f"platform-{plan.run}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def arguments(plan: Plan, site: Site, database: str) -> list[str]:
    """Return the probe's command line.

    Args:
        plan: plan of the pod.
        site: the chart's site.
        database: host:port of PostgreSQL; "" if unknown.
    """
    volumes = {volume["name"]: volume for volume in pods.trial(plan, site, doctor_verdicts.probed(plan))["spec"]["volumes"]}
    shm = int(preflight.amount(volumes["shm"]["emptyDir"]["sizeLimit"]))
    mlflow_url = f"http://{site.gateway_host}:{site.gateway.port}{ledger.namespace_path(site.namespace)}{mlflow.UI}"
    options = [f"--gpus={doctor_verdicts.probed(plan).resources.gpus}", f"--shm={shm}", f"--mlflow={mlflow_url}"]
    if site.data.claim:
        options.append(f"--data={names.DATA}")
    if database:
        options.append(f"--closed=PostgreSQL={database}")
    return [*options, f"--closed=the API server={_SERVER}"]


def look(cluster: Cluster, site: Site, plan: Plan, patience: float) -> Iterator[Finding]:
    """Create the pod, yield its findings, and delete it.

    Args:
        cluster: the cluster.
        site: the chart's site.
        plan: plan of the pod.
        patience: seconds to wait for its start.
    """
    database = site.database or address(_ledger(cluster, site))
    if not database:
        advice = "have this run by a user who may read the Secret of the ledger's database"
        yield findings.warned("no way to PostgreSQL", "its address cannot be found, so it was not tried", advice)
    pod = manifest(plan, site, arguments(plan, site, database))
    name = pod["metadata"]["name"]
    # The namespace denies all traffic that the network policies of a run do not allow.
    policies = network.policies(raycluster.raycluster(plan, site), site)
    created: list[tuple[ObjectKind, str]] = []
    try:
        try:
            for kind, thing in [*((kinds.NETWORK_POLICY, policy) for policy in policies), (kinds.POD, pod)]:
                cluster.create(kind, thing)
                created.append((kind, thing["metadata"]["name"]))
        except TrialplaneError as error:
            advice = "a run's trials would be refused in the same way; see the message"
            yield findings.failed("trial pod", f"it cannot be made: {error}", advice)
            return
        try:
            yield from _watch(cluster, name, patience)
        except TrialplaneError as error:
            yield findings.failed("trial pod", f"{name}: {error}", "see the message")
    finally:
        for kind, created_name in reversed(created):
            cluster.delete(kind, created_name, now=True)


def read(line: str) -> Finding | None:
    """Return a line of the pod's log as a finding, or None."""
    if not line.startswith('{"check"'):
        return None
    try:
        return records.from_json(Finding, line)
    except (ValueError, TypeError):
        return None


def ending(pod: dict[str, Any], count: int, noise: Sequence[str]) -> Finding | None:
    """Return the finding for a pod that ended early, or None if it completed its checks.

    Args:
        pod: the pod.
        count: number of findings in its log.
        noise: other lines of its log.
    """
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded" and count:
        return None
    wait = waiting.pod_wait(pod)
    state = wait.text if wait else f"is {phase}"
    output = f"; its output: {noise[-1].strip()}" if noise else ""
    advice = "the trial image must hold this version of the platform: build it from jobs/Dockerfile, or upgrade the chart"
    return findings.failed("trial pod", f"it {state} before its checks were done{output}", advice)


def address(url: str) -> str:
    """Return host:port of a database URL. "" for ""."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.hostname}:{parts.port or _POSTGRESQL}" if url else ""


def _watch(cluster: Cluster, name: str, patience: float) -> Iterator[Finding]:
    begin = time.monotonic()
    stuck_since: float | None = None
    while True:
        pod = cluster.read(kinds.POD, name)
        if pod is None:
            yield findings.failed("trial pod", f"{name} was deleted by another user", "try again")
            return
        if (pod.get("status") or {}).get("phase") not in (None, "Pending"):
            break
        moment = time.monotonic()
        wait = waiting.pod_wait(pod, cluster.list(kinds.EVENT, fields=f"involvedObject.name={name}"))
        stuck_since = (stuck_since or moment) if wait is not None and wait.stuck else None
        if moment - begin > patience or (stuck_since is not None and moment - stuck_since > min(_STUCK, patience)):
            text = wait.text if wait is not None else "does not start"
            advice = "a run's trials would wait for the same; if nodes or images only take long: --wait 600"
            yield findings.failed("trial pod", f"it {text}", advice)
            return
        time.sleep(_POLL)
    node = pod["spec"].get("nodeName", "")
    yield findings.passed("trial pod", f"started on {node} after {time.monotonic() - begin:.0f} s")
    count, noise = 0, []
    for line in cluster.pod_log(name, container=CONTAINER, follow=True):
        finding = read(line)
        if finding is None:
            noise.append(line)
        else:
            count += 1
            yield finding
    yield from _end(cluster, name, count, noise)


def _end(cluster: Cluster, name: str, count: int, noise: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if the pod ended early. Its phase changes shortly after its log ends."""
    end = time.monotonic() + _STUCK
    pod = cluster.read(kinds.POD, name)
    while pod is not None and pod["status"].get("phase") == "Running" and time.monotonic() < end:
        time.sleep(_POLL)
        pod = cluster.read(kinds.POD, name)
    finding = ending(pod or {"metadata": {"name": name}, "status": {"phase": "gone"}}, count, noise)
    if finding is not None:
        yield finding


def _ledger(cluster: Cluster, site: Site) -> str:
    """Return the ledger's URL, or "" if this user may not read it."""
    try:
        secret = Cluster(cluster.context, site.home).read(kinds.SECRET, site.ledger.name)
        return base64.b64decode((secret or {})["data"][site.ledger.key]).decode()
    except (TrialplaneError, KeyError, ValueError):
        return ""
