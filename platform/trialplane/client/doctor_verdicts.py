"""Verdicts of `platform doctor` on a cluster: KubeRay, the chart, room, permissions, admission. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trialplane
from trialplane import policies
from trialplane.job.kinds import Role
from trialplane.kube import preflight, refusal
from trialplane.kube.cluster import ApiResponse
from trialplane.plan import pods
from trialplane.plan.plan import Plan
from trialplane.plan.run import API_VERSION
from trialplane.plan.site import Site
from trialplane.wire import findings
from trialplane.wire.findings import Finding

Thing = Mapping[str, Any]

SERVER, CHART = "API server", "chart"
RUNS = "kind Run"
OPERATOR = "app.kubernetes.io/name=kuberay-operator"
_OLDEST_KUBERNETES = (1, 30)  # ValidatingAdmissionPolicy is generally available since
_OLDEST_KUBERAY = (1, 6)
_NEWER_FIELD = "enableK8sTokenAuth"  # of RayCluster, since KubeRay 1.6
_INSTALL_KUBERAY = "an administrator of the cluster installs KubeRay 1.6 or newer once, see `platform docs cluster`"
_GRANT = (
    "whoever installed the platform adds you to `users` of your team in the chart's values and runs `helm upgrade`; "
    "`kubectl auth whoami` shows who you are"
)
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def server(answer: ApiResponse, context: str) -> Finding:
    """The API server answers, and is new enough."""
    if not answer.ok:
        cure = f"log in again; `kubectl --context {context} auth whoami` shows who you are"
        return findings.failed(SERVER, f"{context} answers {answer.status}", cure)
    version_info = answer.json()
    version = (_number(version_info["major"]), _number(version_info["minor"]))
    if version < _OLDEST_KUBERNETES:
        cure = "use a cluster of Kubernetes 1.30 or newer: older ones have no ValidatingAdmissionPolicy"
        return findings.failed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}", cure)
    return findings.passed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}")


def resources(api: ApiResponse, schema: ApiResponse) -> Finding:
    """KubeRay's kinds, in a version with the fields that we use.

    Args:
        api: the response with the kinds of ray.io/v1.
        schema: the response with their fields.
    """
    check = "KubeRay's kinds"
    have = {one["name"] for one in api.json().get("resources", [])} if api.ok else set()
    if "rayclusters" not in have:
        return findings.failed(check, "the API server does not know rayclusters", _INSTALL_KUBERAY)
    if schema.ok and _NEWER_FIELD.encode() not in schema.data:
        cure = (
            "Helm never upgrades them: `helm show crds` of KubeRay's chart, 1.6 or newer, into `kubectl apply --server-side`"
        )
        return findings.failed(check, f"they are from a KubeRay before 1.6: RayCluster has no {_NEWER_FIELD}", cure)
    return findings.passed(check, "rayclusters, of 1.6 or newer")


def runs(api: ApiResponse) -> Finding:
    """The API server knows the kind Run; `api` is the response with the kinds of its group."""
    if api.ok and "runs" in {one["name"] for one in api.json().get("resources", [])}:
        return findings.passed(RUNS, "the API server knows it")
    cure = "an administrator of the cluster applies it: `kubectl apply --server-side -f charts/platform/crds/`"
    return findings.failed(RUNS, f"the API server does not know {API_VERSION}", cure)


def operator(deployments: Sequence[Thing]) -> Finding:
    """The operator runs, in a supported version."""
    check = "KubeRay operator"
    if not deployments:
        return findings.failed(
            check, f"no Deployment has the label {OPERATOR} or the name kuberay-operator", _INSTALL_KUBERAY
        )
    one = deployments[0]
    name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
    image = one["spec"]["template"]["spec"]["containers"][0]["image"]
    found = re.search(r":v?(\d+)\.(\d+)", image)
    if not (one.get("status") or {}).get("availableReplicas"):
        where = f"kubectl --namespace {one['metadata']['namespace']}"
        cure = f"`{where} describe pods -l {OPERATOR}` and `{where} logs deploy/{one['metadata']['name']}` show why"
        return findings.failed(check, f"{name} has no ready pod", cure)
    if found is None:
        cure = "make sure that it is KubeRay 1.6 or newer"
        return findings.warned(check, f"{name} runs {image}, whose tag is not a version", cure)
    if (int(found[1]), int(found[2])) < _OLDEST_KUBERAY:
        return findings.failed(check, f"{name} runs {image}, older than 1.6", _INSTALL_KUBERAY)
    return findings.passed(check, f"{name} runs {image}")


def chart(site: Site) -> Finding:
    """The chart is of our version."""
    text = f"release {site.release} in namespace {site.home}, version {site.version}"
    ours = trialplane.__version__
    if site.version.split(".")[:2] != ours.split(".")[:2]:
        cure = f"`helm upgrade {site.release}` with this version's chart and images, or install platform {site.version} here"
        return findings.warned(CHART, f"{text}, and this is platform {ours}", cure)
    return findings.passed(CHART, text)


def claims(site: Site, found: Sequence[Thing], classes: Sequence[Thing] | None) -> Finding:
    """The volume claims that runs mount, and those of the chart's own pods.

    Args:
        site: names the claims of runs.
        found: every claim of the namespace.
        classes: the cluster's storage classes, or None when they may not be read.
    """
    check = "volumes"
    states = {one["metadata"]["name"]: str((one.get("status") or {}).get("phase", "Pending")) for one in found}
    needed = [name for name in (site.runs.claim, site.data.claim) if name]
    absent = [name for name in needed if name not in states]
    if absent:
        cure = f"create it, or name another in the chart's values: `helm upgrade {site.release}`"
        return findings.failed(check, f"there is no claim {' or '.join(absent)}", cure)
    waiting = [name for name, state in states.items() if state != "Bound"]
    if waiting:
        if classes is not None and not any(_is_default(one) for one in classes):
            cure = (
                "name a storage class in the chart's values, or make one the cluster's default (`kubectl get storageclass`)"
            )
            return findings.failed(check, f"{', '.join(waiting)} not bound; no storage class is the default", cure)
        cure = f"`kubectl describe pvc {waiting[0]}` shows why; some are bound when a pod first mounts them"
        return findings.warned(check, f"{', '.join(waiting)} not bound", cure)
    if not site.runs.claim:
        cure = "set a claim for runs in the chart's values to keep the logs of runs whose pods are gone"
        return findings.warned(check, "no claim for runs: their logs are lost with their pods", cure)
    return findings.passed(check, f"{', '.join(sorted(states))} bound")


def gateway(answer: ApiResponse, site: Site) -> Finding:
    """The gateway answers through the API server's proxy."""
    service = site.gateway.service
    if answer.status == 403:
        cure = _GRANT
        return findings.failed("gateway", f"you may not reach the service {service} in namespace {site.home}", cure)
    if not answer.ok:
        kubectl = f"kubectl -n {site.home}"
        cure = f"`{kubectl} get pods,endpointslices` shows whether it runs, `{kubectl} logs deploy/{service}` its log"
        return findings.failed("gateway", f"the service {service} answers {answer.status}: {_text(answer)}", cure)
    return findings.passed("gateway", f"the service {service} in namespace {site.home} answers")


def probed(plan: Plan) -> Role:
    """The role whose pod is checked: the one with the most GPUs."""
    return max(plan.job.roles(), key=lambda one: one.resources.gpus)


def room(site: Site, plan: Plan, nodes: Sequence[Thing] | None, quotas: Sequence[Thing] | None) -> Iterator[Finding]:
    """Nodes and quotas for one trial of the plan."""
    job, need = plan.job, probed(plan).resources
    wanted = f"a trial with {need.cpus:g} CPU, {need.memory} and {need.gpus} GPU"
    groups = [{"template": pods.trial(plan, site, role)} for role in job.roles()]
    head = {"template": pods.head(plan, site)}
    ray_cluster = {"metadata": {}, "spec": {"headGroupSpec": head, "workerGroupSpecs": groups}}
    for check, seen, unread in (
        ("nodes", preflight.Seen(nodes=nodes), nodes is None),
        ("quota", preflight.Seen(nodes=(), quotas=quotas), quotas is None),
    ):
        if unread:
            cure = "ask an administrator of the cluster; `platform status` of a run shows when it finds no room"
            yield findings.warned(check, "you may not list them", cure)
            continue
        issues, warnings = preflight.check(job, ray_cluster, seen)
        if issues or (warnings and need.gpus and check == "nodes"):
            cure = (
                "add or enlarge nodes (GPUs: install their device plugin), or raise the quota; "
                "`platform doctor --gpus 0` requests none"
            )
            yield findings.failed(check, "; ".join([one.message for one in issues] or warnings), cure)
        elif warnings:
            yield findings.warned(check, "; ".join(warnings), "wait for room, or request less")
        else:
            yield findings.passed(
                check, _capacity(job.cluster.gpu_resource, nodes) if check == "nodes" else f"room for {wanted}"
            )


def permissions(denied: Sequence[str]) -> Finding:
    """The permissions that the command line needs."""
    if denied:
        return findings.failed("permissions", f"you may not {', '.join(denied)}", _GRANT)
    return findings.passed("permissions", "all that submit, status, logs, scale, pause and cancel need")


def permission_to_make_pods(denied: Sequence[str], context: str, namespace: str) -> Finding | None:
    """None when this user may create a test pod; runs do not need this, as KubeRay creates their pods."""
    if not denied:
        return None
    cure = f"have a user who may create pods run `platform doctor --context {context} --namespace {namespace}`"
    return findings.warned("trial pod", f"you may not {' and '.join(denied)}, so nothing is checked in one", cure)


def admission(answer: ApiResponse) -> Finding:
    """The API server's answer to a dry run of a trial's pod without the policies' variables."""
    check = "admission policy"
    if answer.ok:
        cure = (
            "see that `admission.enabled` is true and `admission.actions` has Deny in the chart's values, and that "
            "`kubectl get validatingadmissionpolicybindings` shows the chart's; a new one takes some seconds"
        )
        return findings.failed(check, "a trial's pod without the policies' variables would be admitted", cure)
    message = _text(answer)
    if "ValidatingAdmissionPolicy" not in message:
        cure = "something else refused the pod before the policy was evaluated: fix that and check again"
        return findings.warned(check, f"a trial's pod was refused, but not by it: {refusal.denial(message)}", cure)
    return findings.passed(check, f"refuses a pod without the variables: {refusal.denial(message)}")


def unruly(pod: Thing) -> dict[str, Any]:
    """A trial's pod without the policies' variables."""
    bad: dict[str, Any] = json.loads(json.dumps(pod))
    for container in bad["spec"]["containers"]:
        container["env"] = [one for one in container.get("env", []) if one["name"] not in policies.trial_env()]
    return bad


def _text(answer: ApiResponse) -> str:
    """The message of an unsuccessful response: that of a Status, else the beginning of its text."""
    try:
        data = answer.json()
    except ValueError:
        data = None
    message = data.get("message") if isinstance(data, dict) else None
    return " ".join(str(message or answer.data[:200].decode(errors="replace")).split())


def _capacity(resource: str, nodes: Sequence[Thing] | None) -> str:
    """How many nodes and GPUs there are."""
    amounts = [preflight.amount((node["status"].get("allocatable") or {}).get(resource, 0)) for node in nodes or []]
    with_gpus = [int(one) for one in amounts if one]
    gpus = f"{sum(with_gpus)} {resource} on {len(with_gpus)} of them" if with_gpus else f"none with {resource}"
    return f"{len(amounts)} node(s), {gpus}"


def _is_default(storage_class: Thing) -> bool:
    return (storage_class["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _number(text: str) -> int:
    """Of a version such as 34+."""
    return int(re.sub(r"\D.*", "", text) or 0)
