"""Checks everything a run relies on, from the laptop to a trial's pod, and reports what is wrong and how to fix it.

`examine` yields findings as they are made. Pure functions judge what was observed: of this machine
those below, of a cluster `doctor_verdicts`, and in a pod of the trial image `worker.probe` (`doctor_pod`). What an ordinary
user may not read becomes a warning.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trialplane
from trialplane.client import doctor_pod, doctor_verdicts
from trialplane.client.machine import Machine
from trialplane.client.target import TargetName
from trialplane.errors import EXIT_OK, EXIT_PLATFORM, TargetError, TrialplaneError
from trialplane.job import kinds as job_kinds
from trialplane.job.kinds import Job
from trialplane.kube import kinds
from trialplane.kube.cluster import ApiResponse, Cluster
from trialplane.kube.objects import Objects
from trialplane.plan.plan import Plan
from trialplane.plan.run import API_VERSION
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import findings, paths
from trialplane.wire.findings import Finding, Verdict

LAPTOP, CLUSTER, POD = "laptop", "cluster", "trial pod"
_MIB = 2**20
_LEAST_SHM = 128 * _MIB  # Ray's object store takes 80 MiB at least, and half of what is free
_RAY_LIMIT = 120.0
# Ray in a process of its own: it leaves threads and settings behind in the process that starts it.
_RAY = """
import sys, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
         object_store_memory=80 << 20, _temp_dir=sys.argv[1] + "/r")
assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
print(ray.__version__)
ray.shutdown()
"""


@dataclasses.dataclass(frozen=True)
class Permission:
    """A permission that the command line needs.

    Attributes:
        verbs: verbs of RBAC.
        group: API group of the resource.
        resource: plural name of the resource.
        subresource: name of the subresource, or "".
        name: name of the only object; "" for all.
        namespace: namespace; "" for the team's.
    """

    verbs: tuple[str, ...]
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        resource = "/".join(part for part in (self.resource, self.subresource) if part)
        where = f"in namespace {self.namespace}" if self.namespace else ""
        return " ".join(part for part in (resource, self.name, where) if part)


_PERMISSIONS = (
    Permission(("get", "list", "create", "patch", "delete"), "trialplane.io", "runs"),
    Permission(("get", "create"), "", "configmaps"),
    Permission(("get", "list"), "", "pods"),
    Permission(("get",), "", "pods", "log"),
    Permission(("list",), "", "events"),
    Permission(("create",), "", "serviceaccounts", "token", names.USER),
)
_PERMISSIONS_OF_DOCTOR = (Permission(("create", "delete"), "", "pods"),)


@dataclasses.dataclass(frozen=True)
class AreaFinding:
    """A finding and its area: the laptop, the cluster, or a trial's pod."""

    area: str
    finding: Finding


def examine(name: TargetName, job: Job, patience: float) -> Iterator[AreaFinding]:
    """Run all checks, in the order in which a run needs them. Stop if nothing more can be checked.

    Args:
        name: name of the target.
        job: job whose trial pods the test pod imitates; `default_job` if the user named none.
        patience: seconds to wait for the start of the pod.
    """
    yield AreaFinding(LAPTOP, python(sys.version_info[:3]))
    if name.local:
        yield from _lines(LAPTOP, _alone(paths.home()))
        return
    for program, purpose in (("docker", "builds images"), ("kind", "makes local test clusters")):
        yield AreaFinding(LAPTOP, optional(program, shutil.which(program), purpose))
    try:
        cluster = Cluster(name.context, name.namespace)
    except TrialplaneError as error:
        advice = "choose a cluster with --context, or check this machine alone: `platform doctor --local`"
        yield AreaFinding(LAPTOP, findings.failed("kubeconfig", str(error), advice))
        return
    yield AreaFinding(LAPTOP, findings.passed("kubeconfig", cluster.place))
    for finding in _reach(cluster):
        yield AreaFinding(CLUSTER, finding)
        if finding.verdict is Verdict.FAIL and finding.check == doctor_verdicts.SERVER:
            return
    try:
        site = Objects(cluster).site
    except TrialplaneError as error:
        yield AreaFinding(CLUSTER, findings.failed(doctor_verdicts.CHART, str(error), "see the message"))
        return
    yield AreaFinding(CLUSTER, doctor_verdicts.chart(site))
    plan = doctor_pod.plan(job)
    yield from _lines(CLUSTER, _look(cluster, site, plan))
    obstacle = _pods_denied(cluster)
    if obstacle is not None:
        yield AreaFinding(POD, obstacle)
        return
    yield from _lines(POD, doctor_pod.look(cluster, site, plan, patience))


def default_job(gpus: int) -> Job:
    """A minimal job whose trials have this number of GPUs."""
    return job_kinds.read(
        {
            "name": "doctor",
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "resources": {"gpus": gpus},
        }
    )


def exit_code(lines: Iterable[AreaFinding]) -> int:
    """The exit code of the command."""
    return EXIT_PLATFORM if any(line.finding.verdict is Verdict.FAIL for line in lines) else EXIT_OK


def _lines(area: str, checks: Iterable[Finding]) -> Iterator[AreaFinding]:
    for finding in checks:
        yield AreaFinding(area, finding)


def _alone(home: Path) -> Iterator[Finding]:
    """Yield the checks that only a study on this machine needs."""
    machine = Machine.here(home)
    yield libraries(machine)
    yield disk(machine, home)
    yield shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    if not machine.missing:
        yield ray(*_start_ray())


def python(version: tuple[int, ...]) -> Finding:
    """Check the versions of Python and trialplane."""
    text = f"Python {'.'.join(map(str, version))}, platform {trialplane.__version__}"
    if version < (3, 11):
        return findings.failed("versions", text, "make a virtual environment with Python 3.11 or newer")
    return findings.passed("versions", text)


def optional(program: str, where: str | None, purpose: str) -> Finding:
    """Check an optional program."""
    return findings.passed(program, where or f"not installed, and not needed: it {purpose}")


def libraries(machine: Machine) -> Finding:
    """Check the libraries of the `local` extra."""
    if machine.missing:
        advice = "pip install 'trialplane[local]'"
        return findings.failed("libraries", f"{', '.join(machine.missing)} cannot be found", advice)
    return findings.passed("libraries", "those of the `local` extra are installed")


def disk(machine: Machine, home: Path) -> Finding:
    """Check the free disk space for runs."""
    issues, _ = dataclasses.replace(machine, missing=()).check(home, None)
    if issues:
        return findings.failed("disk", f"{home}: {issues[0].message}", "set TRIALPLANE_HOME to another folder")
    return findings.passed("disk", f"{machine.free / 2**30:.1f} GiB free for {home}")


def shared_memory(free: int | None) -> Finding:
    """Check /dev/shm for Ray's object store.

    Args:
        free: bytes left, or None where there is no such folder.
    """
    if free is None:
        return findings.warned("/dev/shm", "there is none, so Ray uses the disk", "run on Linux for full speed")
    if free < _LEAST_SHM:
        advice = "mount a larger one; in a container: `docker run --shm-size=1g`"
        return findings.failed("/dev/shm", f"{free // _MIB} MiB free, {_LEAST_SHM // _MIB} needed", advice)
    return findings.passed("/dev/shm", f"{free // _MIB} MiB free")


def ray(version: str, problem: str) -> Finding:
    """Check that Ray starts and runs a task."""
    if problem:
        advice = "check the limits of memory and processes (`ulimit -u`)"
        return findings.failed("Ray", f"does not start: {problem}", advice)
    return findings.passed("Ray", f"{version} starts and runs a task")


def _start_ray() -> tuple[str, str]:
    """Return Ray's version, and why it does not work, or ""."""
    # Ray opens the folder below it to every user of the machine; the path of a Unix socket has 107 characters at most.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # With its own token, Ray writes nothing to the home folder.
    environ = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONSAFEPATH": "1",  # for Ray's processes too: none may import from the folder that this one is in
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _RAY, folder],
            env=environ,
            capture_output=True,
            text=True,
            timeout=_RAY_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {_RAY_LIMIT:.0f} s; its logs are in {folder}"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return "", f"{lines[-1].strip() if lines else f'exit code {done.returncode}'}; its logs are in {folder}"
    shutil.rmtree(folder, ignore_errors=True)
    return done.stdout.split()[-1], ""


def _reach(cluster: Cluster) -> Iterator[Finding]:
    """Yield the checks of the API server and KubeRay. After a failed first finding, nothing else can be checked."""
    try:
        yield doctor_verdicts.server(cluster.call("GET", "/version"), cluster.context)
    except TargetError as error:
        yield findings.failed(doctor_verdicts.SERVER, str(error), "check the network, the VPN and the kubeconfig")
        return
    api = cluster.call("GET", "/apis/ray.io/v1")
    schema = cluster.call("GET", "/openapi/v3/apis/ray.io/v1") if api.ok else api
    yield doctor_verdicts.resources(api, schema)
    yield doctor_verdicts.runs(cluster.call("GET", f"/apis/{API_VERSION}"))
    yield _guarded("KubeRay operator", lambda: doctor_verdicts.operator(_operators(cluster)))


def _look(cluster: Cluster, site: Site, plan: Plan) -> Iterator[Finding]:
    """Yield the checks of the chart, and whether the namespace has room for the plan's trials."""
    classes = _try(cluster, kinds.STORAGE_CLASS)
    yield _guarded("volumes", lambda: doctor_verdicts.claims(site, cluster.list(kinds.CLAIM), classes))
    gateway = site.gateway
    health = cluster.service(gateway.service, gateway.port, "GET", "/health", namespace=site.home)
    yield doctor_verdicts.gateway(health, site)
    yield from doctor_verdicts.room(site, plan, _try(cluster, kinds.NODE), _try(cluster, kinds.QUOTA))
    yield _guarded("permissions", lambda: doctor_verdicts.permissions(_denied(cluster, permissions(site))))
    yield doctor_verdicts.admission(_unruly(cluster, site, plan))


def _pods_denied(cluster: Cluster) -> Finding | None:
    """None when this user may create a test pod."""
    denied = _denied(cluster, _PERMISSIONS_OF_DOCTOR)
    return doctor_verdicts.permission_to_make_pods(denied, cluster.context, cluster.namespace)


def _unruly(cluster: Cluster, site: Site, plan: Plan) -> ApiResponse:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    return cluster.call(
        "POST", path, query={"dryRun": "All"}, body=doctor_verdicts.unruly(doctor_pod.manifest(plan, site, []))
    )


def _operators(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the Deployments of KubeRay's operator in all namespaces: by its chart's label, or its usual name."""
    deployments: list[dict[str, Any]] = []
    for query in ({"labelSelector": doctor_verdicts.OPERATOR}, {"fieldSelector": "metadata.name=kuberay-operator"}):
        answer = cluster.call("GET", "/apis/apps/v1/deployments", query=query)
        if not answer.ok:
            raise cluster.refused(answer, "list", "deployments.apps")
        deployments = deployments or answer.json()["items"]
    return deployments


def permissions(site: Site) -> list[Permission]:
    """Return the permissions that `platform` needs with this site."""
    gateway = f"http:{site.gateway.service}:{site.gateway.port}"
    return [*_PERMISSIONS, Permission(("get", "create", "delete"), "", "services", "proxy", gateway, site.home)]


def _denied(cluster: Cluster, required: Sequence[Permission]) -> list[str]:
    """Return the missing permissions of this user, as text."""
    denied = []
    for permission in required:
        for verb in permission.verbs:
            attributes = {"namespace": permission.namespace or cluster.namespace, "verb": verb}
            attributes |= {"group": permission.group, "resource": permission.resource}
            attributes |= {
                key: value for key, value in (("subresource", permission.subresource), ("name", permission.name)) if value
            }
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
            if not answer.ok:
                raise cluster.refused(answer, "create", "selfsubjectaccessreviews.authorization.k8s.io")
            if not answer.json()["status"].get("allowed"):
                denied.append(f"{verb} {permission}")
    return denied


def _try(cluster: Cluster, kind: kinds.ObjectKind) -> list[dict[str, Any]] | None:
    """All objects of a kind, or None when they may not be read."""
    try:
        return cluster.list(kind)
    except TargetError:
        return None


def _guarded(check: str, make: Callable[[], Finding]) -> Finding:
    """A finding, or a warning when this user may not read what it needs."""
    try:
        return make()
    except TargetError as error:
        return findings.warned(check, f"could not be checked: {error}", "ask an administrator of the cluster to run this")
