"""Verdicts of `platform doctor` on a cluster: pure functions that judge responses and objects of the API server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import trialplane
from trialplane import policies
from trialplane.job.kinds import Role
from trialplane.kube import metadata, preflight, refusal
from trialplane.kube.cluster import ApiResponse
from trialplane.kube.metadata import KubeObject
from trialplane.plan import pods
from trialplane.plan.plan import Plan
from trialplane.plan.run import API_VERSION
from trialplane.plan.site import Site
from trialplane.wire import findings
from trialplane.wire.findings import Finding

SERVER, CHART = "API server", "chart"
RUNS = "kind Run"
OPERATOR = "app.kubernetes.io/name=kuberay-operator"
_MIN_KUBERNETES = (1, 30)  # the first version with ValidatingAdmissionPolicy enabled
_MIN_KUBERAY = (1, 6)
_FIELD_OF_KUBERAY_1_6 = "enableK8sTokenAuth"  # of RayCluster
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
    version = (_leading_number(version_info["major"]), _leading_number(version_info["minor"]))
    if version < _MIN_KUBERNETES:
        advice = "use a cluster of Kubernetes 1.30 or newer: older ones have no ValidatingAdmissionPolicy"
        return findings.failed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}", advice)
    return findings.passed(SERVER, f"{context} runs Kubernetes {version_info['gitVersion']}")


def resources(api: ApiResponse, schema: ApiResponse) -> Finding:
    """Check that KubeRay's resources exist, with all fields that the platform uses.

    Args:
        api: Response with the resources of ray.io/v1.
        schema: Response with their fields.
    """
    check = "KubeRay's kinds"
    available = {resource["name"] for resource in api.json().get("resources", [])} if api.ok else set()
    if "rayclusters" not in available:
        return findings.failed(check, "the API server does not know rayclusters", _INSTALL_KUBERAY)
    if schema.ok and _FIELD_OF_KUBERAY_1_6.encode() not in schema.data:
        advice = (
            "Helm never upgrades them: `helm show crds` of KubeRay's chart, 1.6 or newer, into `kubectl apply --server-side`"
        )
        return findings.failed(
            check, f"they are from a KubeRay before 1.6: RayCluster has no {_FIELD_OF_KUBERAY_1_6}", advice
        )
    return findings.passed(check, "rayclusters, of 1.6 or newer")


def runs(api: ApiResponse) -> Finding:
    """Check that the kind Run exists. `api` is the response with the resources of its API group."""
    if api.ok and "runs" in {resource["name"] for resource in api.json().get("resources", [])}:
        return findings.passed(RUNS, "the API server knows it")
    advice = "an administrator of the cluster applies it: `kubectl apply --server-side -f charts/platform/crds/`"
    return findings.failed(RUNS, f"the API server does not know {API_VERSION}", advice)


def operator(deployments: Sequence[KubeObject]) -> Finding:
    """Check that KubeRay's operator runs, in a supported version."""
    check = "KubeRay operator"
    if not deployments:
        return findings.failed(
            check, f"no Deployment has the label {OPERATOR} or the name kuberay-operator", _INSTALL_KUBERAY
        )
    deployment = deployments[0]
    name = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    version = re.search(r":v?(\d+)\.(\d+)", image)  # quay.io/kuberay/operator:v1.6.0 → 1, 6
    if not metadata.status_of(deployment).get("availableReplicas"):
        kubectl = f"kubectl --namespace {deployment['metadata']['namespace']}"
        advice = (
            f"`{kubectl} describe pods -l {OPERATOR}` and `{kubectl} logs deploy/{deployment['metadata']['name']}` show why"
        )
        return findings.failed(check, f"{name} has no ready pod", advice)
    if version is None:
        advice = "make sure that it is KubeRay 1.6 or newer"
        return findings.warned(check, f"{name} runs {image}, whose tag is not a version", advice)
    if (int(version[1]), int(version[2])) < _MIN_KUBERAY:
        return findings.failed(check, f"{name} runs {image}, older than 1.6", _INSTALL_KUBERAY)
    return findings.passed(check, f"{name} runs {image}")


def chart(site: Site) -> Finding:
    """Check that the chart has the same minor version as this package."""
    text = f"release {site.release} in namespace {site.home}, version {site.version}"
    ours = trialplane.__version__
    if site.version.split(".")[:2] != ours.split(".")[:2]:
        advice = (
            f"`helm upgrade {site.release}` with this version's chart and images, or install platform {site.version} here"
        )
        return findings.warned(CHART, f"{text}, and this is platform {ours}", advice)
    return findings.passed(CHART, text)


def claims(site: Site, existing: Sequence[KubeObject], classes: Sequence[KubeObject] | None) -> Finding:
    """Check the volume claims that runs mount, and those of the chart's pods.

    Args:
        site: Site of the chart, with the names of the claims of runs.
        existing: All claims of the namespace.
        classes: Storage classes of the cluster; None if they cannot be read.
    """
    check = "volumes"
    states = {claim["metadata"]["name"]: str(metadata.status_of(claim).get("phase", "Pending")) for claim in existing}
    required = [name for name in (site.runs.claim, site.data.claim) if name]
    missing = [name for name in required if name not in states]
    if missing:
        advice = f"create it, or name another in the chart's values: `helm upgrade {site.release}`"
        return findings.failed(check, f"there is no claim {' or '.join(missing)}", advice)
    unbound = [name for name, state in states.items() if state != "Bound"]
    if unbound:
        return _unbound_finding(check, unbound, classes)
    if not site.runs.claim:
        advice = "set a claim for runs in the chart's values to keep the logs of runs whose pods are gone"
        return findings.warned(check, "no claim for runs: their logs are lost with their pods", advice)
    return findings.passed(check, f"{', '.join(sorted(states))} bound")


def _unbound_finding(check: str, unbound: Sequence[str], classes: Sequence[KubeObject] | None) -> Finding:
    """Return the finding for claims that are not bound. `classes` is None if this user may not read them."""
    text = f"{', '.join(unbound)} not bound"
    defaults = [item for item in classes or () if metadata.annotations_of(item).get(_DEFAULT_CLASS) == "true"]
    if classes is not None and not defaults:
        advice = "name a storage class in the chart's values, or make one the cluster's default (`kubectl get storageclass`)"
        return findings.failed(check, f"{text}; no storage class is the default", advice)
    advice = f"`kubectl describe pvc {unbound[0]}` shows why; some are bound when a pod first mounts them"
    return findings.warned(check, text, advice)


def gateway(answer: ApiResponse, site: Site) -> Finding:
    """Check that the gateway answers through the API server's proxy."""
    service = site.gateway.service
    if answer.status == 403:
        advice = _GRANT
        return findings.failed("gateway", f"you may not reach the service {service} in namespace {site.home}", advice)
    if not answer.ok:
        kubectl = f"kubectl -n {site.home}"
        advice = f"`{kubectl} get pods,endpointslices` shows whether it runs, `{kubectl} logs deploy/{service}` its log"
        return findings.failed(
            "gateway", f"the service {service} answers {answer.status}: {_response_message(answer)}", advice
        )
    return findings.passed("gateway", f"the service {service} in namespace {site.home} answers")


def probed_role(plan: Plan) -> Role:
    """Return the role whose pod the doctor imitates: the one with the most GPUs."""
    return max(plan.job.roles(), key=lambda role: role.resources.gpus)


def room(site: Site, plan: Plan, nodes: Sequence[KubeObject] | None) -> Finding:
    """Check that nodes have room for one trial of the plan. `nodes` is None if this user may not read them."""
    if nodes is None:
        advice = "ask an administrator of the cluster; `platform status` of a run shows when it finds no room"
        return findings.warned("nodes", "you may not list them", advice)
    job, required = plan.job, probed_role(plan).resources
    groups = [{"template": pods.trial(plan, site, role)} for role in job.roles()]
    head = {"template": pods.head(plan, site)}
    ray_cluster = {"metadata": {}, "spec": {"headGroupSpec": head, "workerGroupSpecs": groups}}
    issues, warnings = preflight.check(job, ray_cluster, preflight.ClusterSnapshot(nodes=nodes))
    # A run may wait for a node with GPUs that an autoscaler creates. Without a run, the user should know that none has.
    if issues or (warnings and required.gpus):
        advice = "add or enlarge nodes (GPUs: install their device plugin); `platform doctor --gpus 0` requests none"
        return findings.failed("nodes", "; ".join([issue.message for issue in issues] or warnings), advice)
    if warnings:
        return findings.warned("nodes", "; ".join(warnings), "wait for room, or request less")
    return findings.passed("nodes", _capacity_text(job.cluster.gpu_resource, nodes))


def permissions(denied: Sequence[str]) -> Finding:
    """Return the finding for the permissions of the command line. Those in `denied` are missing."""
    if denied:
        return findings.failed("permissions", f"you may not {', '.join(denied)}", _GRANT)
    return findings.passed("permissions", "all that submit, status, logs, scale, pause and cancel need")


def permission_to_make_pods(denied: Sequence[str], context: str, namespace: str) -> Finding | None:
    """Return a warning if permissions to create a test pod are denied. Runs need none: KubeRay creates their pods."""
    if not denied:
        return None
    advice = f"have a user who may create pods run `platform doctor --context {context} --namespace {namespace}`"
    return findings.warned("trial pod", f"you may not {' and '.join(denied)}, so nothing is checked in one", advice)


def admission(answer: ApiResponse) -> Finding:
    """Check that the admission policy refused the dry run of `forbidden_pod`, whose response is `answer`."""
    check = "admission policy"
    if answer.ok:
        advice = (
            "see that `admission.enabled` is true and `admission.actions` has Deny in the chart's values, and that "
            "`kubectl get validatingadmissionpolicybindings` shows the chart's; a new one takes some seconds"
        )
        return findings.failed(check, "a trial's pod without the policies' variables would be admitted", advice)
    message = _response_message(answer)
    if "ValidatingAdmissionPolicy" not in message:
        advice = "something else refused the pod before the policy was evaluated: fix that and check again"
        return findings.warned(check, f"a trial's pod was refused, but not by it: {refusal.denial_reason(message)}", advice)
    return findings.passed(check, f"refuses a pod without the variables: {refusal.denial_reason(message)}")


def forbidden_pod(pod: KubeObject) -> dict[str, Any]:
    """Return a copy of a trial's pod that the admission policy must refuse: without the variables of `trial_env`."""
    copied_pod: dict[str, Any] = json.loads(json.dumps(pod))
    for container in copied_pod["spec"]["containers"]:
        container["env"] = [
            variable for variable in container.get("env", []) if variable["name"] not in policies.trial_env()
        ]
    return copied_pod


def _response_message(answer: ApiResponse) -> str:
    """Return the message of an unsuccessful response, or the beginning of its text, in one line."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    message = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(message or answer.data[:200].decode(errors="replace")).split())


def _capacity_text(gpu_resource: str, nodes: Sequence[KubeObject]) -> str:
    """Return the number of nodes and GPUs in words: "5 node(s), 8 nvidia.com/gpu on 2 of them"."""
    gpu_counts = [int(preflight.quantity((node["status"].get("allocatable") or {}).get(gpu_resource, 0))) for node in nodes]
    gpu_node_count = sum(count > 0 for count in gpu_counts)
    gpus = f"{sum(gpu_counts)} {gpu_resource} on {gpu_node_count} of them" if gpu_node_count else f"none with {gpu_resource}"
    return f"{len(nodes)} node(s), {gpus}"


def _leading_number(text: str) -> int:
    """Return the number with which a part of a version begins, such as 34 for "34+"; 0 without one."""
    return int(re.sub(r"\D.*", "", text) or 0)
