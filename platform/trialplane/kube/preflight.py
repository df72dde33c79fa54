"""Checks before a start: whether a run fits the cluster, and whether the chart allows what its job requests. Pure.

A run that can never start has an issue. A run that only has to wait, for example for other runs to end, has a warning.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from trialplane.errors import CheckResult, Issue
from trialplane.job.cluster import Cluster
from trialplane.job.kinds import Job, Role
from trialplane.job.resources import Resources
from trialplane.kube import metadata
from trialplane.kube.metadata import KubeObject
from trialplane.plan import raycluster
from trialplane.plan.gpus import GpuRequest
from trialplane.plan.site import Site
from trialplane.wire import cluster
from trialplane.wire.costs import Demand, Prices

_AMOUNT = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")  # the number and the unit of a quantity
_UNITS: dict[str, str | int] = {
    "": 1, "n": "1e-9", "u": "1e-6", "m": "0.001", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15", "E": "1e18",
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ClusterSnapshot:
    """The resources of a cluster. None stands for those that the user may not read, and so are not checked.

    Attributes:
        nodes: All nodes.
        queues: Names of Kueue's LocalQueues in the namespace. Empty without Kueue.
    """

    nodes: Sequence[KubeObject] | None = None
    queues: frozenset[str] | None = None


def check(job: Job, ray_cluster: KubeObject, snapshot: ClusterSnapshot) -> CheckResult:
    """Return the issues and the warnings of a run with regard to nodes and queue."""
    issues, warnings = _check_nodes(job, ray_cluster, snapshot.nodes)
    queue = metadata.labels_of(ray_cluster).get(raycluster.QUEUE_LABEL)
    if queue and snapshot.queues is not None and queue not in snapshot.queues:
        existing_queues = ", ".join(sorted(snapshot.queues))
        hint = f"there are: {existing_queues}" if existing_queues else "there is none (is Kueue installed?)"
        issues.append(Issue(("cluster", "queue"), f"there is no LocalQueue {queue} in the namespace; {hint}"))
    return CheckResult(issues, warnings)


def chart_issues(job: Job, site: Site) -> list[Issue]:
    """Return the issues of what a job requests and the chart's values do not allow or provide."""
    return [
        *placement_issues(job, site),
        *install_issues(job, is_allowed=site.install.enabled),
        *data_issues(job, claim=site.data.claim),
        *gpu_issues(job, site),
        *cost_issues(job, site.prices.plain),
        *output_issues(job, has_volume=bool(site.checkpoints.claim)),
        *promotion_issues(job, has_storage=bool(site.checkpoints.claim or site.checkpoints.url)),
    ]


def data_issues(job: Job, claim: str) -> list[Issue]:
    """Return an issue for each input file that must be on the data volume, if the chart has none (`claim` is "")."""
    if claim or job.cluster.image is not None:  # the user's own image may contain the files
        return []
    remedy = "helm upgrade --set data.enabled=true creates one, data.existingClaim names yours; see `platform docs storage`"
    issues: list[Issue] = []
    for name in job.inputs:
        value = job.params.get(name)
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and PurePosixPath(path).is_relative_to(cluster.DATA):
                problem = f"{path} is not available to the trials: the chart has no data volume; {remedy}"
                issues.append(Issue(("params", name), problem))
    return issues


def install_issues(job: Job, is_allowed: bool) -> list[Issue]:
    """Return an issue if a job installs packages in its trial pods, but the chart does not allow it."""
    if is_allowed or not job.install:
        return []
    advice = (
        "an administrator allows it with helm upgrade --set studies.install.enabled=true,studies.install.index=URL and with "
        "rules in studies.install.egress by which pods reach the index; without that, `platform image build --job NAME` "
        "builds an image that has the packages; see `platform docs studies`"
    )
    return [Issue(("install",), f"the chart does not let trial pods install packages; {advice}")]


def notify_issues(job: Job) -> list[Issue]:
    """Return an issue for each notification whose URL is in the job, where all readers of the Run would see its password."""
    text = (
        f"must be secret:NAME on a cluster, with the URL as key NAME of the Secret {cluster.NOTIFY_SECRET}: "
        f"kubectl create secret generic {cluster.NOTIFY_SECRET} --from-literal=NAME=URL"
    )
    return [Issue(("notify", number, "url"), text) for number, rule in enumerate(job.notify) if rule.secret is None]


def output_issues(job: Job, has_volume: bool) -> list[Issue]:
    """Return an issue if a collection writes its output files to a folder that is lost with its pod, or is read-only.

    Folders of the chart's volume for checkpoints, if it has one, are neither.
    """
    folder = job.output_location
    if folder is None or "://" in folder:
        return []
    if PurePosixPath(folder).is_relative_to(cluster.CHECKPOINTS) and has_volume:
        return []
    is_on_data = PurePosixPath(folder).is_relative_to(cluster.DATA)
    reason = "is on the data volume, which is read-only" if is_on_data else "is a folder of the pod, and is lost with it"
    advice = f"write {f'a folder below {cluster.CHECKPOINTS}, ' if has_volume else ''}a URL (s3://bucket/path)"
    return [Issue(("collect", "write", "to"), f"{folder} {reason}; {advice}, or leave it out")]


def promotion_issues(job: Job, has_storage: bool) -> list[Issue]:
    """Return an issue if a study pauses trials, but neither chart nor job has storage for the checkpoints of all pods."""
    if job.search.ladder is None or has_storage or job.checkpoints.url:
        return []
    is_population = job.search.population is not None
    other = "drop population" if is_population else "write pruner: asha"
    advice = f"run helm upgrade --set checkpoints.enabled=true, set checkpoints.url in the job, or {other}"
    field = ("population",) if is_population else ("pruner", "promote")
    return [Issue(field, f"needs checkpoints that all pods reach, and the chart has no place for them; {advice}")]


def cost_issues(job: Job, prices: Prices) -> list[Issue]:
    """Return an issue if a job has a budget of money, but the chart has no price for the job's resources."""
    demand = Demand.of(job)
    if job.budget.cost is None or demand.has_price(prices):
        return []
    name = "gpuHour" if demand.gpus else "cpuHour"
    advice = f"an administrator sets them with helm upgrade --set studies.prices.{name}=2.5"
    return [Issue(("budget", "cost"), f"needs prices, and the chart has none for this job; {advice}")]


def gpu_issues(job: Job, site: Site) -> list[Issue]:
    """Return issues of shares of GPUs: shares that the nodes do not offer, and `shm` with a share under MPS."""
    issues: list[Issue] = []
    for role in job.roles():
        share, request = role.resources.gpu_share, GpuRequest.of(role, site)
        if share < 1 and request is None:
            offered = ", ".join(f"{entry.gpus:g} ({entry.resource})" for entry in site.gpu_shares) or "none"
            advice = f"request a whole GPU ({role.field}.gpus=1), or see `platform docs gpus`"
            text = f"a share of {share:g} of a GPU is not offered here; the chart's studies.gpuShares lists {offered}"
            issues.append(Issue((role.field, "gpus"), f"{text}; {advice}"))
        elif request is not None and request.uses_mps and role.resources.shm is not None:
            text = "cannot be set for a share of a GPU under MPS, whose daemon provides /dev/shm"
            issues.append(Issue((role.field, "shm"), f"{text}; drop it, or use a whole GPU"))
    return issues


def placement_issues(job: Job, site: Site) -> list[Issue]:
    """Return issues of priorities, nodes, tolerations, labels and annotations that the chart's values do not allow."""
    allowed, requested = site.allowed, job.cluster
    issues: list[Issue] = []
    if requested.priority_class not in (None, site.priority_class, *allowed.priority_classes):
        item = f"PriorityClass {requested.priority_class}"
        issues.append(_not_allowed_issue(("cluster", "priority_class"), item, "priorityClasses"))
    roles_by_path = {_placement_path(job, role): role for role in job.roles()}  # several roles may share a section
    for path, role in roles_by_path.items():
        issues += _node_issues(role, path, site)
    for field, values, allowed_keys in (
        ("labels", requested.labels, allowed.labels),
        ("annotations", requested.annotations, allowed.annotations),
    ):
        for key in values:
            # An entry that ends with / allows all keys with this prefix.
            if not any(key == entry or (entry.endswith("/") and key.startswith(entry)) for entry in allowed_keys):
                issues.append(_not_allowed_issue(("cluster", field, key), f"{field.removesuffix('s')} {key}", field))
    return issues


def _node_issues(role: Role, path: tuple[str, ...], site: Site) -> list[Issue]:
    """Return issues of a role's node selector and tolerations, which are in the job's section `path`."""
    issues: list[Issue] = []
    for key, value in role.cluster.node_selector.items():
        if site.node_selector.get(key, value) != value:
            text = f"trial pods of this namespace run on nodes with {key}={site.node_selector[key]}; leave it out"
            issues.append(Issue((*path, "node_selector", key), text))
    allowed_tolerations = [*site.tolerations, *site.allowed.tolerations]
    gpu_request = GpuRequest.of(role, site)
    if gpu_request is not None:  # by convention, nodes with GPUs have a taint with the name of the resource
        allowed_tolerations.append({"key": gpu_request.resource, "operator": "Exists", "effect": "NoSchedule"})
    for number, toleration in enumerate(role.cluster.tolerations):
        fields = toleration.model_dump(exclude_none=True)
        if not any(_covers(entry, fields) for entry in allowed_tolerations):
            item = f"toleration of the taint {toleration.key or 'of every key'}"
            issues.append(_not_allowed_issue((*path, "tolerations", number), item, "tolerations"))
    return issues


def _placement_path(job: Job, role: Role) -> tuple[str, ...]:
    """Return the path of the job's section with a role's node selector and tolerations: `cluster` or `collect.learner`."""
    return ("cluster",) if role.cluster == job.cluster else tuple(role.field.split(".")[:-1])


def _not_allowed_issue(path: tuple[str | int, ...], item: str, chart_value: str) -> Issue:
    """Return the issue of an item that the chart does not allow.

    Args:
        path: Path of the item in the job.
        item: The item in words.
        chart_value: Name of the chart's value that would allow it.
    """
    remedy = f"an administrator adds it to studies.allowed.{chart_value}; see `platform docs teams`"
    return Issue(path, f"the chart does not allow the {item} here; {remedy}")


def _covers(allowed: KubeObject, requested: KubeObject) -> bool:
    """Whether an allowed toleration tolerates every taint that a requested toleration does.

    The chart's admission policy for pods has the same rule.
    """
    if allowed.get("key") and allowed["key"] != requested.get("key"):
        return False
    if allowed.get("effect") and allowed["effect"] != requested.get("effect"):
        return False
    if allowed.get("operator") == "Exists":
        return True
    return requested.get("operator") != "Exists" and (allowed.get("value") or "") == (requested.get("value") or "")


def quantity(text: Any) -> decimal.Decimal:
    """Return a Kubernetes quantity (500m, 2Gi, 3) as a number. 0 if it is not a quantity."""
    match = _AMOUNT.fullmatch(str(text).strip())
    if match is None:
        return decimal.Decimal(0)
    number, unit = match.groups()
    return decimal.Decimal(number) * decimal.Decimal(_UNITS[unit]) if unit in _UNITS else decimal.Decimal(0)


def permanent_containers(pod: KubeObject) -> list[KubeObject]:
    """Return the containers that run for the whole life of a pod (or pod template): its containers and its sidecars."""
    spec = metadata.spec_of(pod)
    sidecars = [container for container in spec.get("initContainers") or [] if container.get("restartPolicy") == "Always"]
    return [*(spec.get("containers") or []), *sidecars]


def requested_resources(pod: KubeObject) -> dict[str, decimal.Decimal]:
    """Return the requests of a pod (or pod template), by resource: the sum over its containers and sidecars.

    As in Kubernetes, a limit without a request counts as a request.
    """
    total: dict[str, decimal.Decimal] = {}
    for container in permanent_containers(pod):
        resources = container.get("resources") or {}
        requested = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, value in requested.items():
            total[name] = total.get(name, decimal.Decimal(0)) + quantity(value)
    return total


def _check_nodes(job: Job, ray_cluster: KubeObject, nodes: Sequence[KubeObject] | None) -> CheckResult:
    """Return the issues and warnings of pods that fit no node. None for `nodes` if the user may not list them."""
    if nodes is None:
        uses_gpus = any(role.resources.gpus for role in job.roles())
        warning = "nodes may not be listed, so it was not checked whether one has the GPUs of a trial"
        return CheckResult(issues=[], warnings=[warning] if uses_gpus else [])
    issues: list[Issue] = []
    warnings: list[str] = []
    checked: list[tuple[Resources, Cluster]] = []  # roles with equal pods get an issue only once
    for role, group in zip(job.roles(), ray_cluster["spec"]["workerGroupSpecs"], strict=True):
        if (role.resources, role.cluster) in checked:
            continue
        checked.append((role.resources, role.cluster))
        role_issues, role_warnings = _check_role_nodes(job, role, group["template"], nodes)
        issues += role_issues
        warnings += role_warnings
    return CheckResult(issues, warnings)


def _check_role_nodes(job: Job, role: Role, pod: KubeObject, nodes: Sequence[KubeObject]) -> CheckResult:
    """Return the issues and warnings of one role with regard to nodes.

    Either no node is large enough for one of its pods, or the nodes have no room for all pods of one trial together. Too few
    GPUs are an issue. Other resources are only a warning, because an autoscaler of nodes may create a suitable node.
    """
    node_selector = pod["spec"].get("nodeSelector") or {}
    selected_nodes = [node for node in nodes if _selects(node_selector, node)]
    if not selected_nodes and nodes:
        labels = ", ".join(f"{key}={value}" for key, value in node_selector.items())
        warning = f"no node has the labels {labels} now; {role.title} waits until one appears"
        return CheckResult(issues=[], warnings=[warning])
    requested = requested_resources(pod)
    subject = f"each pod of {role.title}" if role.gang else role.title
    issues, warnings = _check_largest_nodes(job, role, subject, requested, selected_nodes)
    if role.nodes > 1 and selected_nodes and not issues and not warnings:
        room = sum(_pods_that_fit(node, requested) for node in selected_nodes)
        if room < role.nodes:
            warnings.append(
                f"{subject} starts when all {role.nodes} are ready, and the nodes have room for {room}; it waits for more"
            )
    return CheckResult(issues, warnings)


def _check_largest_nodes(
    job: Job, role: Role, subject: str, requested: Mapping[str, decimal.Decimal], nodes: Sequence[KubeObject]
) -> CheckResult:
    """Return the issues and warnings of resources of which a pod requests more than any node has.

    Args:
        job: Resolved job.
        role: Role of the pod.
        subject: The pod in words.
        requested: Requests of the pod, by resource.
        nodes: Nodes that it may run on.
    """
    # Only GPUs have a resource with a vendor (nvidia.com/gpu). A share of a GPU is another resource than a whole GPU.
    gpu_resource = next((resource for resource in requested if "/" in resource), role.cluster.gpu_resource)
    issues: list[Issue] = []
    warnings: list[str] = []
    for resource, field in {"cpu": "cpus", "memory": "memory", gpu_resource: "gpus"}.items():
        needed = requested.get(resource, decimal.Decimal(0))
        amounts = [quantity((node["status"].get("allocatable") or {}).get(resource, 0)) for node in nodes]
        largest = max(amounts, default=needed)  # without any node, nothing is reported
        if needed <= largest:
            continue
        if not largest:
            text = f"{subject} requests {_format(resource, needed)}, and no node has any now"
            warnings.append(f"{text}; it waits until one appears")
            continue
        largest_text = f"the largest node that it may run on has {_format(resource, largest)}"
        message = f"{subject} requests {_format(resource, needed)}, and {largest_text}"
        if resource == gpu_resource:
            sufficient_nodes = math.ceil(needed * role.nodes / largest)  # that have all GPUs of a trial together
            remedy = job.gpu_advice(role.field, gpus=int(largest), nodes=sufficient_nodes)
            issues.append(Issue((role.field, field), f"{message}; {remedy}"))
        else:
            warnings.append(f"{message}; it waits until a larger one appears")
    return CheckResult(issues, warnings)


def _pods_that_fit(node: KubeObject, requested: Mapping[str, decimal.Decimal]) -> int:
    """Return the number of pods with these requests that fit an empty node."""
    allocatable = node["status"].get("allocatable") or {}
    counts = (int(quantity(allocatable.get(name, 0)) / needed) for name, needed in requested.items() if needed)
    return min(counts, default=0)


def _selects(selector: Mapping[str, str], node: KubeObject) -> bool:
    """Whether a node has the labels of a node selector."""
    labels = metadata.labels_of(node)
    return all(labels.get(key) == value for key, value in selector.items())


def _format(resource: str, value: decimal.Decimal) -> str:
    """Return an amount of a resource with its unit, for messages: "2 cores", "1.5 GiB", "4 nvidia.com/gpu"."""
    if resource == "memory":
        return f"{value / 2**30:.3g} GiB"
    number = f"{value.normalize():f}"
    if resource == "cpu":
        return f"{number} core" if value == 1 else f"{number} cores"
    return f"{number} {resource}"
