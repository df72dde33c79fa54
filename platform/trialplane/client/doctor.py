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
from trialplane.client.target import Place
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
    """Something that the command line needs its user to be allowed to do.

    Attributes:
        verbs: of RBAC.
        group: of the resource.
        resource: its plural, `below` its subresource.
        name: of the one object; "" for all.
        namespace: "" for the team's.
    """

    verbs: tuple[str, ...]
    group: str
    resource: str
    below: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = "/".join(part for part in (self.resource, self.below) if part)
        where = f"in namespace {self.namespace}" if self.namespace else ""
        return " ".join(part for part in (what, self.name, where) if part)


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
class Line:
    """A finding and its area: the laptop, the cluster, or a trial's pod."""

    area: str
    finding: Finding


def examine(place: Place, job: Job, patience: float) -> Iterator[Line]:
    """Check everything, in the order in which a run needs it; stop where nothing more can be checked.

    Args:
        place: this machine, or a namespace of a cluster.
        job: the test pod is made as for its trials; `default_job` when the user named none.
        patience: seconds for the pod to start.
    """
    yield Line(LAPTOP, python(sys.version_info[:3]))
    if place.local:
        yield from _lines(LAPTOP, _alone(paths.home()))
        return
    for program, purpose in (("docker", "builds images"), ("kind", "makes local test clusters")):
        yield Line(LAPTOP, optional(program, shutil.which(program), purpose))
    try:
        cluster = Cluster(place.context, place.namespace)
    except TrialplaneError as error:
        cure = "choose a cluster with --context, or check this machine alone: `platform doctor --local`"
        yield Line(LAPTOP, findings.failed("kubeconfig", str(error), cure))
        return
    yield Line(LAPTOP, findings.passed("kubeconfig", cluster.place))
    for finding in _reach(cluster):
        yield Line(CLUSTER, finding)
        if finding.verdict is Verdict.FAIL and finding.check == doctor_verdicts.SERVER:
            return
    try:
        site = Objects(cluster).site
    except TrialplaneError as error:
        yield Line(CLUSTER, findings.failed(doctor_verdicts.CHART, str(error), "see the message"))
        return
    yield Line(CLUSTER, doctor_verdicts.chart(site))
    plan = doctor_pod.plan(job)
    yield from _lines(CLUSTER, _look(cluster, site, plan))
    obstacle = _pods_denied(cluster)
    if obstacle is not None:
        yield Line(POD, obstacle)
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


def exit_code(lines: Iterable[Line]) -> int:
    """The exit code of the command."""
    return EXIT_PLATFORM if any(line.finding.verdict is Verdict.FAIL for line in lines) else EXIT_OK


def _lines(area: str, found: Iterable[Finding]) -> Iterator[Line]:
    for finding in found:
        yield Line(area, finding)


def _alone(home: Path) -> Iterator[Finding]:
    """What a study on this machine needs in addition.

    Args:
        home: TRIALPLANE_HOME.
    """
    machine = Machine.here(home)
    yield libraries(machine)
    yield disk(machine, home)
    yield shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    if not machine.missing:
        yield ray(*_start_ray())


def python(version: tuple[int, ...]) -> Finding:
    """The interpreter, and our own version."""
    text = f"Python {'.'.join(map(str, version))}, platform {trialplane.__version__}"
    if version < (3, 11):
        return findings.failed("versions", text, "make a virtual environment with Python 3.11 or newer")
    return findings.passed("versions", text)


def optional(program: str, where: str | None, purpose: str) -> Finding:
    """An optional program."""
    return findings.passed(program, where or f"not installed, and not needed: it {purpose}")


def libraries(machine: Machine) -> Finding:
    """The libraries of the `local` extra."""
    if machine.missing:
        cure = "pip install 'trialplane[local]'"
        return findings.failed("libraries", f"{', '.join(machine.missing)} cannot be found", cure)
    return findings.passed("libraries", "those of the `local` extra are installed")


def disk(machine: Machine, home: Path) -> Finding:
    """Room for runs."""
    issues, _ = dataclasses.replace(machine, missing=()).check(home, None)
    if issues:
        return findings.failed("disk", f"{home}: {issues[0].message}", "set TRIALPLANE_HOME to another folder")
    return findings.passed("disk", f"{machine.free / 2**30:.1f} GiB free for {home}")


def shared_memory(free: int | None) -> Finding:
    """/dev/shm for Ray's object store.

    Args:
        free: bytes left, or None where there is no such folder.
    """
    if free is None:
        return findings.warned("/dev/shm", "there is none, so Ray uses the disk", "run on Linux for full speed")
    if free < _LEAST_SHM:
        cure = "mount a larger one; in a container: `docker run --shm-size=1g`"
        return findings.failed("/dev/shm", f"{free // _MIB} MiB free, {_LEAST_SHM // _MIB} needed", cure)
    return findings.passed("/dev/shm", f"{free // _MIB} MiB free")


def ray(version: str, problem: str) -> Finding:
    """Whether Ray starts and runs a task."""
    if problem:
        cure = "check the limits of memory and processes (`ulimit -u`)"
        return findings.failed("Ray", f"does not start: {problem}", cure)
    return findings.passed("Ray", f"{version} starts and runs a task")


def _start_ray() -> tuple[str, str]:
    """Ray's version, and why it does not work or ""."""
    # Ray opens the folder below it to every user of the machine; the path of a Unix socket has 107 characters at most.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # A token of its own: nothing is written to the home folder.
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
    """The API server and KubeRay; after a failed first finding nothing else can be checked."""
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
    """What the chart installed, and whether the namespace has room for the plan's trials."""
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
    """Deployments of KubeRay's operator in all namespaces: by the label of its chart, else by its usual name."""
    found: list[dict[str, Any]] = []
    for query in ({"labelSelector": doctor_verdicts.OPERATOR}, {"fieldSelector": "metadata.name=kuberay-operator"}):
        answer = cluster.call("GET", "/apis/apps/v1/deployments", query=query)
        if not answer.ok:
            raise cluster.refused(answer, "list", "deployments.apps")
        found = found or answer.json()["items"]
    return found


def permissions(site: Site) -> list[Permission]:
    """What `platform` needs its user to be allowed to do where the chart has installed that site."""
    gateway = f"http:{site.gateway.service}:{site.gateway.port}"
    return [*_PERMISSIONS, Permission(("get", "create", "delete"), "", "services", "proxy", gateway, site.home)]


def _denied(cluster: Cluster, required: Sequence[Permission]) -> list[str]:
    """The permissions that this user lacks, as text."""
    denied = []
    for one in required:
        for verb in one.verbs:
            asked = {"namespace": one.namespace or cluster.namespace, "verb": verb}
            asked |= {"group": one.group, "resource": one.resource}
            asked |= {key: value for key, value in (("subresource", one.below), ("name", one.name)) if value}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
            if not answer.ok:
                raise cluster.refused(answer, "create", "selfsubjectaccessreviews.authorization.k8s.io")
            if not answer.json()["status"].get("allowed"):
                denied.append(f"{verb} {one}")
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
