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
    """Check that the API server answers and is new enough."""
    if not answer.ok:
        advice = f"log in again; `kubectl --context {context} auth whoami` shows who you are"
        return findings.failed(SERVER, f"{context} answers {answer.status}", advice)
    version_info = answer.json()
    version = (_number(version_info["major"]), _number(version_info["minor"]))
    if version < _OLDEST_KUBERNETES:
        advice = "use a cluster of Kubernetes 1.30 or newer: older ones have no ValidatingAdmissionPolicy"
        return findings.failed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}", advice)
    return findings.passed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}")


def resources(api: ApiResponse, schema: ApiResponse) -> Finding:
    """Check that KubeRay's resources exist, with all fields in use.

    Args:
        api: response with the resources of ray.io/v1.
        schema: response with their fields.
    """
    check = "KubeRay's kinds"
    available = {resource["name"] for resource in api.json().get("resources", [])} if api.ok else set()
    if "rayclusters" not in available:
        return findings.failed(check, "the API server does not know rayclusters", _INSTALL_KUBERAY)
    if schema.ok and _NEWER_FIELD.encode() not in schema.data:
        advice = (
            "Helm never upgrades them: `helm show crds` of KubeRay's chart, 1.6 or newer, into `kubectl apply --server-side`"
        )
        return findings.failed(check, f"they are from a KubeRay before 1.6: RayCluster has no {_NEWER_FIELD}", advice)
    return findings.passed(check, "rayclusters, of 1.6 or newer")


def runs(api: ApiResponse) -> Finding:
    """Check that the API server knows the kind Run. `api` is the response with the resources of its group."""
    if api.ok and "runs" in {resource["name"] for resource in api.json().get("resources", [])}:
        return findings.passed(RUNS, "the API server knows it")
    advice = "an administrator of the cluster applies it: `kubectl apply --server-side -f charts/platform/crds/`"
    return findings.failed(RUNS, f"the API server does not know {API_VERSION}", advice)


def operator(deployments: Sequence[Thing]) -> Finding:
    """Check that KubeRay's operator runs, in a supported version."""
    check = "KubeRay operator"
    if not deployments:
        return findings.failed(
            check, f"no Deployment has the label {OPERATOR} or the name kuberay-operator", _INSTALL_KUBERAY
        )
    deployment = deployments[0]
    name = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    version = re.search(r":v?(\d+)\.(\d+)", image)
    if not (deployment.get("status") or {}).get("availableReplicas"):
        where = f"kubectl --namespace {deployment['metadata']['namespace']}"
        advice = f"`{where} describe pods -l {OPERATOR}` and `{where} logs deploy/{deployment['metadata']['name']}` show why"
        return findings.failed(check, f"{name} has no ready pod", advice)
    if version is None:
        advice = "make sure that it is KubeRay 1.6 or newer"
        return findings.warned(check, f"{name} runs {image}, whose tag is not a version", advice)
    if (int(version[1]), int(version[2])) < _OLDEST_KUBERAY:
        return findings.failed(check, f"{name} runs {image}, older than 1.6", _INSTALL_KUBERAY)
    return findings.passed(check, f"{name} runs {image}")


def chart(site: Site) -> Finding:
    """Check that the chart has this version."""
    text = f"release {site.release} in namespace {site.home}, version {site.version}"
    ours = trialplane.__version__
    if site.version.split(".")[:2] != ours.split(".")[:2]:
        advice = (
            f"`helm upgrade {site.release}` with this version's chart and images, or install platform {site.version} here"
        )
        return findings.warned(CHART, f"{text}, and this is platform {ours}", advice)
    return findings.passed(CHART, text)


def claims(site: Site, existing: Sequence[Thing], classes: Sequence[Thing] | None) -> Finding:
    """Check the volume claims that runs mount, and those of the chart's pods.

    Args:
        site: the site, with the claims of runs.
        existing: all claims of the namespace.
        classes: the cluster's storage classes, or None if they cannot be read.
    """
    check = "volumes"
    states = {claim["metadata"]["name"]: str((claim.get("status") or {}).get("phase", "Pending")) for claim in existing}
    needed = [name for name in (site.runs.claim, site.data.claim) if name]
    absent = [name for name in needed if name not in states]
    if absent:
        advice = f"create it, or name another in the chart's values: `helm upgrade {site.release}`"
        return findings.failed(check, f"there is no claim {' or '.join(absent)}", advice)
    waiting = [name for name, state in states.items() if state != "Bound"]
    if waiting:
        if classes is not None and not any(_is_default(claim) for claim in classes):
            advice = (
                "name a storage class in the chart's values, or make one the cluster's default (`kubectl get storageclass`)"
            )
            return findings.failed(check, f"{', '.join(waiting)} not bound; no storage class is the default", advice)
        advice = f"`kubectl describe pvc {waiting[0]}` shows why; some are bound when a pod first mounts them"
        return findings.warned(check, f"{', '.join(waiting)} not bound", advice)
    if not site.runs.claim:
        advice = "set a claim for runs in the chart's values to keep the logs of runs whose pods are gone"
        return findings.warned(check, "no claim for runs: their logs are lost with their pods", advice)
    return findings.passed(check, f"{', '.join(sorted(states))} bound")


def gateway(answer: ApiResponse, site: Site) -> Finding:
    """Check that the gateway answers through the API server's proxy."""
    service = site.gateway.service
    if answer.status == 403:
        advice = _GRANT
        return findings.failed("gateway", f"you may not reach the service {service} in namespace {site.home}", advice)
    if not answer.ok:
        kubectl = f"kubectl -n {site.home}"
        advice = f"`{kubectl} get pods,endpointslices` shows whether it runs, `{kubectl} logs deploy/{service}` its log"
        return findings.failed("gateway", f"the service {service} answers {answer.status}: {_text(answer)}", advice)
    return findings.passed("gateway", f"the service {service} in namespace {site.home} answers")


def probed(plan: Plan) -> Role:
    """Return the role whose pod is checked: the one with the most GPUs."""
    return max(plan.job.roles(), key=lambda role: role.resources.gpus)


def room(site: Site, plan: Plan, nodes: Sequence[Thing] | None, quotas: Sequence[Thing] | None) -> Iterator[Finding]:
    """Check that nodes and quotas have room for one trial of the plan."""
    job, required = plan.job, probed(plan).resources
    request = f"a trial with {required.cpus:g} CPU, {required.memory} and {required.gpus} GPU"
    groups = [{"template": pods.trial(plan, site, role)} for role in job.roles()]
    head = {"template": pods.head(plan, site)}
    ray_cluster = {"metadata": {}, "spec": {"headGroupSpec": head, "workerGroupSpecs": groups}}
    for check, snapshot, is_forbidden in (
        ("nodes", preflight.ClusterSnapshot(nodes=nodes), nodes is None),
        ("quota", preflight.ClusterSnapshot(nodes=(), quotas=quotas), quotas is None),
    ):
        if is_forbidden:
            advice = "ask an administrator of the cluster; `platform status` of a run shows when it finds no room"
            yield findings.warned(check, "you may not list them", advice)
            continue
        issues, warnings = preflight.check(job, ray_cluster, snapshot)
        if issues or (warnings and required.gpus and check == "nodes"):
            advice = (
                "add or enlarge nodes (GPUs: install their device plugin), or raise the quota; "
                "`platform doctor --gpus 0` requests none"
            )
            yield findings.failed(check, "; ".join([issue.message for issue in issues] or warnings), advice)
        elif warnings:
            yield findings.warned(check, "; ".join(warnings), "wait for room, or request less")
        else:
            yield findings.passed(
                check, _capacity(job.cluster.gpu_resource, nodes) if check == "nodes" else f"room for {request}"
            )


def permissions(denied: Sequence[str]) -> Finding:
    """Check the permissions for the command line."""
    if denied:
        return findings.failed("permissions", f"you may not {', '.join(denied)}", _GRANT)
    return findings.passed("permissions", "all that submit, status, logs, scale, pause and cancel need")


def permission_to_make_pods(denied: Sequence[str], context: str, namespace: str) -> Finding | None:
    """Return None if this user may create a test pod. Runs do not need this: KubeRay creates their pods."""
    if not denied:
        return None
    advice = f"have a user who may create pods run `platform doctor --context {context} --namespace {namespace}`"
    return findings.warned("trial pod", f"you may not {' and '.join(denied)}, so nothing is checked in one", advice)


def admission(answer: ApiResponse) -> Finding:
    """Check the API server's answer to a dry run of a trial's pod without the policies' variables."""
    check = "admission policy"
    if answer.ok:
        advice = (
            "see that `admission.enabled` is true and `admission.actions` has Deny in the chart's values, and that "
            "`kubectl get validatingadmissionpolicybindings` shows the chart's; a new one takes some seconds"
        )
        return findings.failed(check, "a trial's pod without the policies' variables would be admitted", advice)
    message = _text(answer)
    if "ValidatingAdmissionPolicy" not in message:
        advice = "something else refused the pod before the policy was evaluated: fix that and check again"
        return findings.warned(check, f"a trial's pod was refused, but not by it: {refusal.denial(message)}", advice)
    return findings.passed(check, f"refuses a pod without the variables: {refusal.denial(message)}")


def unruly(pod: Thing) -> dict[str, Any]:
    """Return a trial's pod without the policies' variables."""
    bad_pod: dict[str, Any] = json.loads(json.dumps(pod))
    for container in bad_pod["spec"]["containers"]:
        container["env"] = [
            variable for variable in container.get("env", []) if variable["name"] not in policies.trial_env()
        ]
    return bad_pod


def _text(answer: ApiResponse) -> str:
    """Return the message of an unsuccessful response, or the beginning of its text."""
    try:
        data = answer.json()
    except ValueError:
        data = None
    message = data.get("message") if isinstance(data, dict) else None
    return " ".join(str(message or answer.data[:200].decode(errors="replace")).split())


def _capacity(resource: str, nodes: Sequence[Thing] | None) -> str:
    """Return the number of nodes and GPUs in words."""
    amounts = [preflight.amount((node["status"].get("allocatable") or {}).get(resource, 0)) for node in nodes or []]
    with_gpus = [int(amount) for amount in amounts if amount]
    gpus = f"{sum(with_gpus)} {resource} on {len(with_gpus)} of them" if with_gpus else f"none with {resource}"
    return f"{len(amounts)} node(s), {gpus}"


def _is_default(storage_class: Thing) -> bool:
    return (storage_class["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _number(text: str) -> int:
    """Return the number in a version such as 34+."""
    return int(re.sub(r"\D.*", "", text) or 0)
