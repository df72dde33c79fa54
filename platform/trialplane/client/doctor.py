"""Checks of everything that a run needs, from the laptop to a trial's pod. A finding says what is wrong and how to fix it.

`examine` observes and yields the findings one by one. Pure functions judge the observations: those below for this machine,
those of `doctor_verdicts` for a cluster, and `worker.probe` in a pod of the trial image (`doctor_pod`). A check for which
the user lacks a permission becomes a warning.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
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
_MIN_SHM = 128 * _MIB  # Ray's object store takes half of the free memory, and at least 80 MiB


@dataclasses.dataclass(frozen=True)
class Permission:
    """A permission that the command line needs.

    Attributes:
        verbs: Verbs of RBAC.
        resource: Plural name of the resource.
        subresource: Name of the subresource; "" for none.
        group: API group of the resource; "" for the core group.
        name: Name of the object; "" for all objects.
        namespace: Namespace; "" for the team's.
    """

    verbs: tuple[str, ...]
    resource: str
    subresource: str = ""
    group: str = ""
    name: str = ""
    namespace: str = ""

    def attributes(self, verb: str, team: str) -> dict[str, str]:
        """Return the attributes of a request with a verb, for a review by the API server; `team` is the team's namespace."""
        attributes = {
            "namespace": self.namespace or team,
            "verb": verb,
            "group": self.group,
            "resource": self.resource,
            "subresource": self.subresource,
            "name": self.name,
        }
        return {name: value for name, value in attributes.items() if value or name == "group"}  # "" is the core group

    def __str__(self) -> str:
        resource = "/".join(part for part in (self.resource, self.subresource) if part)
        location = f"in namespace {self.namespace}" if self.namespace else ""
        return " ".join(part for part in (resource, self.name, location) if part)


_PERMISSIONS = (
    Permission(("get", "list", "create", "patch", "delete"), "runs", group="trialplane.io"),
    Permission(("get", "create"), "configmaps"),
    Permission(("get", "list"), "pods"),
    Permission(("get",), "pods", "log"),
    Permission(("list",), "events"),
    Permission(("create",), "serviceaccounts", "token", name=names.USER),
)
_PERMISSIONS_OF_DOCTOR = (Permission(("create", "delete"), "pods"),)


@dataclasses.dataclass(frozen=True)
class AreaFinding:
    """A finding and its area: the laptop, the cluster, or a trial's pod."""

    area: str
    finding: Finding


def examine(name: TargetName, job: Job, patience: float) -> Iterator[AreaFinding]:
    """Yield the findings of all checks, in the order in which a run needs them. Stop if nothing more can be checked.

    Args:
        name: Name of the target.
        job: Job whose trials the test pod imitates; `default_job` if the user named none.
        patience: Maximum time for the start of the pod, in seconds.
    """
    yield AreaFinding(LAPTOP, check_python(sys.version_info[:3]))
    if name.local:
        yield from _in_area(LAPTOP, _local_checks(paths.home()))
        return
    for program, purpose in (("docker", "builds images"), ("kind", "makes local test clusters")):
        yield AreaFinding(LAPTOP, check_optional_program(program, shutil.which(program), purpose))
    try:
        cluster = Cluster(name.context, name.namespace)
    except TrialplaneError as error:
        advice = "choose a cluster with --context, or check this machine alone: `platform doctor --local`"
        yield AreaFinding(LAPTOP, findings.failed("kubeconfig", str(error), advice))
        return
    yield AreaFinding(LAPTOP, findings.passed("kubeconfig", cluster.location))
    for finding in _server_checks(cluster):
        yield AreaFinding(CLUSTER, finding)
        if finding.verdict is Verdict.FAIL and finding.check == doctor_verdicts.SERVER:
            return
    yield from _run_checks(cluster, job, patience)


def _run_checks(cluster: Cluster, job: Job, patience: float) -> Iterator[AreaFinding]:
    """Yield the findings about the chart and a trial's pod. Stop at an obstacle. The arguments are those of `examine`."""
    try:
        site = Objects(cluster).site
    except TrialplaneError as error:
        yield AreaFinding(CLUSTER, findings.failed(doctor_verdicts.CHART, str(error), "see the message"))
        return
    yield AreaFinding(CLUSTER, doctor_verdicts.chart(site))
    plan = doctor_pod.plan(job)
    yield from _in_area(CLUSTER, _chart_checks(cluster, site, plan))
    denied = _denied_permissions(cluster, _PERMISSIONS_OF_DOCTOR)
    obstacle = doctor_verdicts.permission_to_make_pods(denied, cluster.context, cluster.namespace)
    if obstacle is not None:
        yield AreaFinding(POD, obstacle)
        return
    yield from _in_area(POD, doctor_pod.probe(cluster, site, plan, patience))


def default_job(gpus: int) -> Job:
    """Return a minimal job whose trials have this number of GPUs."""
    return job_kinds.read(
        {
            "name": "doctor",
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "resources": {"gpus": gpus},
        }
    )


def exit_code(area_findings: Iterable[AreaFinding]) -> int:
    """Return the exit code of the command: EXIT_PLATFORM if a check failed."""
    return EXIT_PLATFORM if any(item.finding.verdict is Verdict.FAIL for item in area_findings) else EXIT_OK


def _in_area(area: str, findings_of_area: Iterable[Finding]) -> Iterator[AreaFinding]:
    """Yield findings with their area."""
    for finding in findings_of_area:
        yield AreaFinding(area, finding)


def _local_checks(home: Path) -> Iterator[Finding]:
    """Yield the findings that only matter for runs on this machine."""
    machine = Machine.inspect(home)
    yield check_libraries(machine)
    yield check_disk(machine, home)
    yield check_shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the versions of Python and trialplane."""
    text = f"Python {'.'.join(map(str, version))}, platform {trialplane.__version__}"
    if version < (3, 11):
        return findings.failed("versions", text, "make a virtual environment with Python 3.11 or newer")
    return findings.passed("versions", text)


def check_optional_program(program: str, path: str | None, purpose: str) -> Finding:
    """Return the finding for an optional program, which always passes. `path` is None if it is not installed."""
    return findings.passed(program, path or f"not installed, and not needed: it {purpose}")


def check_libraries(machine: Machine) -> Finding:
    """Check the libraries of the `local` extra."""
    if machine.missing:
        advice = "pip install 'trialplane[local]'"
        return findings.failed("libraries", f"{', '.join(machine.missing)} cannot be found", advice)
    return findings.passed("libraries", "those of the `local` extra are installed")


def check_disk(machine: Machine, home: Path) -> Finding:
    """Check the free disk space for runs."""
    # `check_libraries` reports missing ones. A system other than Linux is a problem, too.
    issues, _ = dataclasses.replace(machine, missing=()).check(home, job=None)
    if issues:
        return findings.failed("disk", f"{home}: {issues[0].message}", "set TRIALPLANE_HOME to another folder")
    return findings.passed("disk", f"{machine.free / 2**30:.1f} GiB free for {home}")


def check_shared_memory(free: int | None) -> Finding:
    """Check that /dev/shm has room for Ray's object store.

    Args:
        free: Number of free bytes; None if there is no such folder.
    """
    if free is None:
        return findings.warned("/dev/shm", "there is none, so Ray uses the disk", "run on Linux for full speed")
    if free < _MIN_SHM:
        advice = "mount a larger one; in a container: `docker run --shm-size=1g`"
        return findings.failed("/dev/shm", f"{free // _MIB} MiB free, {_MIN_SHM // _MIB} needed", advice)
    return findings.passed("/dev/shm", f"{free // _MIB} MiB free")


def _server_checks(cluster: Cluster) -> Iterator[Finding]:
    """Yield the findings for the API server and KubeRay: only the first one if the API server does not answer."""
    try:
        yield doctor_verdicts.server(cluster.call("GET", "/version"), cluster.context)
    except TargetError as error:
        yield findings.failed(doctor_verdicts.SERVER, str(error), "check the network, the VPN and the kubeconfig")
        return
    api = cluster.call("GET", "/apis/ray.io/v1")
    schema = cluster.call("GET", "/openapi/v3/apis/ray.io/v1") if api.ok else api  # without KubeRay there is none
    yield doctor_verdicts.resources(api, schema)
    yield doctor_verdicts.runs(cluster.call("GET", f"/apis/{API_VERSION}"))
    yield _finding_or_warning("KubeRay operator", lambda: doctor_verdicts.operator(_operators(cluster)))


def _chart_checks(cluster: Cluster, site: Site, plan: Plan) -> Iterator[Finding]:
    """Yield the findings for the chart, the room for the plan's trials, the user's permissions and the admission policy."""
    classes = cluster.list_if_allowed(kinds.STORAGE_CLASS)
    yield _finding_or_warning("volumes", lambda: doctor_verdicts.claims(site, cluster.list(kinds.CLAIM), classes))
    gateway = site.gateway
    health = cluster.service(gateway.service, gateway.port, "GET", "/health", namespace=site.home, scheme=gateway.scheme)
    yield doctor_verdicts.gateway(health, site)
    yield doctor_verdicts.room(site, plan, cluster.list_if_allowed(kinds.NODE))
    required = permissions(site)
    yield _finding_or_warning("permissions", lambda: doctor_verdicts.permissions(_denied_permissions(cluster, required)))
    yield doctor_verdicts.admission(_create_forbidden_pod(cluster, site, plan))


def _create_forbidden_pod(cluster: Cluster, site: Site, plan: Plan) -> ApiResponse:
    """Return the response to a dry run of creating a pod that the admission policy must refuse."""
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    pod = doctor_verdicts.forbidden_pod(doctor_pod.manifest(plan, site, arguments=[]))
    return cluster.call("POST", path, query={"dryRun": "All"}, body=pod)


def _operators(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the Deployments with the label of KubeRay's chart in all namespaces, or else those with the usual name.

    Raises:
        TargetError: This user may not list Deployments.
    """
    by_label, by_name = {"labelSelector": doctor_verdicts.OPERATOR}, {"fieldSelector": "metadata.name=kuberay-operator"}
    for query in (by_label, by_name):
        answer = cluster.call("GET", "/apis/apps/v1/deployments", query=query)
        if not answer.ok:
            raise cluster.refusal_error(answer, "list", "deployments.apps")
        deployments: list[dict[str, Any]] = answer.json()["items"]
        if deployments:
            return deployments
    return []


def permissions(site: Site) -> list[Permission]:
    """Return the permissions that `platform` needs with this site."""
    gateway = f"{site.gateway.scheme}:{site.gateway.service}:{site.gateway.port}"
    return [*_PERMISSIONS, Permission(("get", "create", "delete"), "services", "proxy", name=gateway, namespace=site.home)]


def _denied_permissions(cluster: Cluster, required: Sequence[Permission]) -> list[str]:
    """Return the required permissions that this user lacks, as texts such as "create pods".

    Raises:
        TargetError: The API server does not review permissions for this user.
    """
    denied = []
    for permission in required:
        for verb in permission.verbs:
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": permission.attributes(verb, cluster.namespace)},
            }
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
            if not answer.ok:
                raise cluster.refusal_error(answer, "create", "selfsubjectaccessreviews.authorization.k8s.io")
            if not answer.json()["status"].get("allowed"):
                denied.append(f"{verb} {permission}")
    return denied


def _finding_or_warning(check: str, read_and_judge: Callable[[], Finding]) -> Finding:
    """Return the finding of a function that reads objects, or a warning if the cluster does not let this user read them."""
    try:
        return read_and_judge()
    except TargetError as error:
        return findings.warned(check, f"could not be checked: {error}", "ask an administrator of the cluster to run this")
