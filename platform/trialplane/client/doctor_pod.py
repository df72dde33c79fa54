"""The test pod of the doctor: created like a trial's pod, it runs the checks of `trialplane.worker.probe`.

It is always deleted afterwards. If this process is killed before that, the pod ends by itself after a while.
"""

from __future__ import annotations

import base64
import contextlib
import math
import secrets
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from trialplane.client import doctor_verdicts
from trialplane.errors import TrialplaneError
from trialplane.job.kinds import Job
from trialplane.kube import kinds, metadata, preflight, waiting
from trialplane.kube.cluster import Cluster
from trialplane.plan import network, pods, raycluster
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import findings, ledger, mlflow, records
from trialplane.wire.findings import Finding, Verdict

CONTAINER = "probe"
_LIFETIME = 900  # seconds after which Kubernetes ends the pod
_STUCK = 30.0  # seconds after which a pod that waits for a permanent reason counts as stuck
_POLL = 1.0  # seconds
_POSTGRESQL = 5432
_API_SERVER = "kubernetes.default.svc:443"


def plan(job: Job) -> Plan:
    """Return the plan of a run that is never submitted. The pod is like those of its trials."""
    return Plan.without_code(f"doctor-{secrets.token_hex(3)}", job)


def manifest(plan: Plan, site: Site, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the manifest of the pod: a trial's pod without the run's code, and with the probe as its command."""
    template = pods.trial(plan, site, doctor_verdicts.probed_role(plan))
    spec = template["spec"]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != pods.CODE]
    container = spec["containers"][0]
    container["name"] = CONTAINER
    container["command"] = ["python", "-m", "trialplane.worker.probe", *arguments]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != pods.CODE]
    spec["restartPolicy"] = "Never"
    spec["activeDeadlineSeconds"] = _LIFETIME
    pod_metadata = {**template["metadata"], "name": f"platform-{plan.run}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec}


def arguments(plan: Plan, site: Site, database: str) -> list[str]:
    """Return the arguments of the probe, which checks that it cannot reach the addresses of `--closed`.

    `database` is the address host:port of PostgreSQL, or "" if it is unknown.
    """
    role = doctor_verdicts.probed_role(plan)
    volumes = {volume["name"]: volume for volume in pods.trial(plan, site, role)["spec"]["volumes"]}
    shm = int(preflight.quantity(volumes["shm"]["emptyDir"]["sizeLimit"]))
    mlflow_url = f"{site.gateway_url}{ledger.namespace_path(site.namespace)}{mlflow.UI}"
    options = [f"--gpus={role.resources.gpu_count}", f"--shm={shm}", f"--mlflow={mlflow_url}"]
    if site.data.claim:
        options.append(f"--data={names.DATA}")
    if database:
        options.append(f"--closed=PostgreSQL={database}")
    return [*options, f"--closed=the API server={_API_SERVER}"]


def probe(cluster: Cluster, site: Site, plan: Plan, patience: float) -> Iterator[Finding]:
    """Create the pod, yield its findings, and delete it. It must start within `patience` seconds."""
    database = site.database or database_address(_ledger_url(cluster, site))
    if not database:
        advice = "ask a user who may read the Secret of the ledger's database to run this"
        yield findings.warned("no way to PostgreSQL", "its address cannot be found, so it was not tried", advice)
    pod = manifest(plan, site, arguments(plan, site, database))
    # Like a run, the pod needs network policies, because the namespace denies all traffic that no policy allows.
    policies = network.policies(raycluster.raycluster(plan, site), site)
    with contextlib.ExitStack() as created:  # deletes the objects, the newest first
        try:
            for kind, object_manifest in [*((kinds.NETWORK_POLICY, policy) for policy in policies), (kinds.POD, pod)]:
                cluster.create(kind, object_manifest)
                created.callback(cluster.delete, kind, object_manifest["metadata"]["name"], now=True)
        except TrialplaneError as error:
            advice = "a run's trials would be refused in the same way; see the message"
            yield findings.failed("trial pod", f"it cannot be created: {error}", advice)
            return
        name = pod["metadata"]["name"]
        try:
            yield from _pod_findings(cluster, name, patience)
        except TrialplaneError as error:
            yield findings.failed("trial pod", f"{name}: {error}", "see the message")


def parse_finding(line: str) -> Finding | None:
    """Return the finding in a line of the pod's log, `{"check":"GPU",…}`; None if the line is not a finding."""
    try:
        return records.from_json(Finding, line)
    except ValueError:
        return None


def early_end_finding(pod: dict[str, Any], finding_count: int, other_lines: Sequence[str]) -> Finding | None:
    """Return the finding for a pod that ended before its checks were complete; None if they are complete.

    Args:
        pod: Pod after its end.
        finding_count: Number of findings in its log.
        other_lines: Other lines of its log.
    """
    phase = metadata.status_of(pod).get("phase")
    if phase == "Succeeded" and finding_count:
        return None
    wait = waiting.pod_wait(pod)  # for a pod that has failed, this describes its end
    state = wait.text if wait else f"is {phase}"
    output = f"; its output: {other_lines[-1].strip()}" if other_lines else ""
    advice = "the trial image must hold this version of the platform: build it from jobs/Dockerfile, or upgrade the chart"
    return findings.failed("trial pod", f"it {state} before its checks were done{output}", advice)


def database_address(url: str) -> str:
    """Return the address host:port of a database by its URL. "" for ""."""
    parts = urllib.parse.urlsplit(url)  # postgresql+psycopg2://user:password@host:port/database
    return f"{parts.hostname}:{parts.port or _POSTGRESQL}" if url else ""


def _pod_findings(cluster: Cluster, name: str, patience: float) -> Iterator[Finding]:
    """Wait for the start of the pod, and yield a finding about it and the findings in the pod's log."""
    start_finding = _wait_for_start(cluster, name, patience)
    yield start_finding
    if start_finding.verdict is Verdict.FAIL:
        return
    finding_count, other_lines = 0, []
    for line in cluster.pod_log(name, CONTAINER, follow=True):
        finding = parse_finding(line)
        if finding is None:
            other_lines.append(line)
        else:
            finding_count += 1
            yield finding
    last_finding = early_end_finding(_ended_pod(cluster, name), finding_count, other_lines)
    if last_finding is not None:
        yield last_finding


def _wait_for_start(cluster: Cluster, name: str, patience: float) -> Finding:
    """Wait until the pod starts, and return the finding that it has started, or why it has not.

    A pod that does not start within `patience` seconds is a failure, and also one that waits for a permanent reason for
    `_STUCK` seconds: such a reason may disappear in a moment.
    """
    begin = time.monotonic()
    stuck_since = math.inf
    while True:
        pod = cluster.read(kinds.POD, name)
        if pod is None:
            return findings.failed("trial pod", f"{name} was deleted by another user", "try again")
        if metadata.status_of(pod).get("phase") not in (None, "Pending"):
            node = pod["spec"].get("nodeName", "")
            return findings.passed("trial pod", f"started on {node} after {time.monotonic() - begin:.0f} s")
        now = time.monotonic()
        wait = waiting.pod_wait(pod, cluster.list(kinds.EVENT, fields=f"involvedObject.name={name}"))
        is_stuck = wait is not None and wait.stuck
        stuck_since = min(stuck_since, now) if is_stuck else math.inf  # infinite while it is not stuck
        if now - stuck_since > _STUCK or now - begin > patience:
            text = wait.text if wait is not None else "does not start"
            advice = "a run's trials would wait for the same; if nodes or images only take long: --wait 600"
            return findings.failed("trial pod", f"it {text}", advice)
        time.sleep(_POLL)


def _ended_pod(cluster: Cluster, name: str) -> dict[str, Any]:
    """Wait until the phase of the pod shows its end, shortly after its log ends, and return the pod.

    For a pod that was deleted, this is an object with the phase "gone".
    """
    deadline = time.monotonic() + _STUCK
    pod = cluster.read(kinds.POD, name)
    while pod is not None and pod["status"].get("phase") == "Running" and time.monotonic() < deadline:
        time.sleep(_POLL)
        pod = cluster.read(kinds.POD, name)
    return pod or {"metadata": {"name": name}, "status": {"phase": "gone"}}


def _ledger_url(cluster: Cluster, site: Site) -> str:
    """Return the URL of the ledger's database; "" if this user may not read it."""
    try:
        secret = Cluster(cluster.context, site.home).read(kinds.SECRET, site.ledger.name)
        return base64.b64decode((secret or {})["data"][site.ledger.key]).decode()
    except (TrialplaneError, KeyError, ValueError):
        return ""
