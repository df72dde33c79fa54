"""Whether a run fits a cluster, checked before anything starts: nodes, quota, priority class, queue. Pure.

What can never fit is an issue; what only has to wait is a warning. None stands for what we may not read.
"""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job.cluster import Cluster
from trialplane.job.kinds import Job, Role
from trialplane.job.resources import Resources
from trialplane.plan.site import Site
from trialplane.wire import cluster

Thing = Mapping[str, Any]

_AMOUNT = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
_UNITS: dict[str, str | int] = {
    "": 1, "n": "1e-9", "u": "1e-6", "m": "0.001", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15", "E": "1e18",
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ClusterSnapshot:
    """The resources of a cluster that this user may read.

    Attributes:
        nodes: all of them, or None.
        quotas: of the namespace, or None.
        priority_classes: names, or None.
        queues: names of Kueue's LocalQueues, or None; empty without Kueue.
    """

    nodes: Sequence[Thing] | None = None
    quotas: Sequence[Thing] | None = None
    priority_classes: frozenset[str] | None = None
    queues: frozenset[str] | None = None


def check(job: Job, ray_cluster: Thing, snapshot: ClusterSnapshot) -> tuple[list[Issue], list[str]]:
    """Issues that prevent a run, and warnings."""
    issues, warnings = _nodes(job, ray_cluster, snapshot.nodes)
    more, notes = _quota(job, ray_cluster, snapshot.quotas)
    issues += more
    named = _priority_class(ray_cluster)
    if named and snapshot.priority_classes is not None and named not in snapshot.priority_classes:
        have = ", ".join(sorted(snapshot.priority_classes))
        issues.append(Issue(("cluster", "priority_class"), f"there is no PriorityClass {named}; there are: {have}"))
    queue = ((ray_cluster["metadata"].get("labels")) or {}).get("kueue.x-k8s.io/queue-name")
    if queue and snapshot.queues is not None and queue not in snapshot.queues:
        have = (
            f"there are: {', '.join(sorted(snapshot.queues))}" if snapshot.queues else "there is none (is Kueue installed?)"
        )
        issues.append(Issue(("cluster", "queue"), f"there is no LocalQueue {queue} in the namespace; {have}"))
    return issues, [*warnings, *notes]


def data(job: Job, claim: str) -> list[Issue]:
    """Issues of input files on the data volume when the chart has none.

    Args:
        job: the resolved job.
        claim: of the volume, or "".
    """
    if claim or job.cluster.image is not None:  # an image of the user's own may have files there
        return []
    named_inputs = [(name, path) for name in job.inputs for path in _listed(job.params.get(name))]
    remedy = "helm upgrade --set data.enabled=true creates one, data.existingClaim names yours; see `platform docs storage`"
    return [
        Issue(("params", name), f"{path} is not available to the trials: the chart has no data volume; {remedy}")
        for name, path in named_inputs
        if isinstance(path, str) and PurePosixPath(path).is_relative_to(cluster.DATA)
    ]


def install(job: Job, is_allowed: bool) -> list[Issue]:
    """Issues of a job that wants packages installed in its trial pods.

    Args:
        job: the resolved job.
        is_allowed: whether the chart lets pods do so.
    """
    if is_allowed or not job.install:
        return []
    advice = (
        "an administrator allows it with helm upgrade --set studies.install.enabled=true,studies.install.index=URL and with "
        "rules in studies.install.egress by which pods reach the index; without that, `platform image build --job NAME` "
        "builds an image that has the packages; see `platform docs studies`"
    )
    return [Issue(("install",), f"the chart does not let trial pods install packages; {advice}")]


def notify(job: Job) -> list[Issue]:
    """Issues of notifications: whoever may read the team's Runs would read a URL with a password in it."""
    text = (
        f"must be secret:NAME on a cluster, with the URL as key NAME of the Secret {cluster.NOTIFY_SECRET}: "
        f"kubectl create secret generic {cluster.NOTIFY_SECRET} --from-literal=NAME=URL"
    )
    return [Issue(("notify", number, "url"), text) for number, rule in enumerate(job.notify) if rule.secret is None]


def shards(job: Job, has_volume: bool) -> list[Issue]:
    """Issues of the output folder of a collection, as few folders outlive their pod.

    Args:
        job: the resolved job.
        has_volume: whether the chart has a volume for checkpoints.
    """
    to = job.output_location
    if to is None or "://" in to:
        return []
    if PurePosixPath(to).is_relative_to(cluster.CHECKPOINTS) and has_volume:
        return []
    below_data = PurePosixPath(to).is_relative_to(cluster.DATA)
    reason = "is on the data volume, which is read-only" if below_data else "is a folder of the pod, and is lost with it"
    below = f"a folder below {cluster.CHECKPOINTS}, " if has_volume else ""
    return [Issue(("collect", "write", "to"), f"{to} {reason}; write {below}a URL (s3://bucket/path), or leave it out")]


def promotion(job: Job, has_place: bool) -> list[Issue]:
    """Issues of a study whose paused trials continue in other pods.

    Args:
        job: the resolved job.
        has_place: whether the chart has a volume or a URL for checkpoints.
    """
    if job.search.ladder is None or has_place or job.checkpoints.url:
        return []
    advice = "run helm upgrade --set checkpoints.enabled=true, set checkpoints.url in the job, or write pruner: asha"
    return [
        Issue(("pruner", "promote"), f"needs checkpoints that all pods reach, and the chart has no place for them; {advice}")
    ]


def placement(job: Job, site: Site) -> list[Issue]:
    """Issues of priorities, nodes, labels and annotations that the chart's values do not allow."""
    allowed, requested = site.allowed, job.cluster
    issues: list[Issue] = []
    if (named := requested.priority_class) not in (None, site.priority_class, *allowed.priority_classes):
        issues.append(_refused(("cluster", "priority_class"), f"PriorityClass {named}", "priorityClasses"))
    for place, role in {_place(job, role): role for role in job.roles()}.items():
        for key, value in role.cluster.node_selector.items():
            if site.node_selector.get(key, value) != value:
                text = f"trial pods of this namespace run on nodes with {key}={site.node_selector[key]}; leave it out"
                issues.append(Issue((*place, "node_selector", key), text))
        # Nodes are tainted by the name of the resource.
        of_gpus = {"key": role.cluster.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
        enough = [*([of_gpus] if role.resources.gpus else []), *site.tolerations, *allowed.tolerations]
        for number, toleration in enumerate(role.cluster.tolerations):
            wanted = toleration.model_dump(exclude_none=True)
            if not any(_covers(entry, wanted) for entry in enough):
                taint = toleration.key or "of every key"
                issues.append(_refused((*place, "tolerations", number), f"toleration of the taint {taint}", "tolerations"))
    for field, values, keys in (
        ("labels", requested.labels, allowed.labels),
        ("annotations", requested.annotations, allowed.annotations),
    ):
        for key in values:
            if not any(key == entry or (entry.endswith("/") and key.startswith(entry)) for entry in keys):
                issues.append(_refused(("cluster", field, key), f"{field.removesuffix('s')} {key}", field))
    return issues


def _place(job: Job, role: Role) -> tuple[str, ...]:
    """Path of the section with a role's node selector and tolerations."""
    return ("cluster",) if role.cluster == job.cluster else tuple(role.field.split(".")[:-1])


def _refused(place: tuple[str | int, ...], item: str, key: str) -> Issue:
    remedy = f"an administrator adds it to studies.allowed.{key}; see `platform docs teams`"
    return Issue(place, f"the chart does not allow the {item} here; {remedy}")


def _covers(allowed: Thing, wanted: Thing) -> bool:
    """Whether a toleration tolerates every taint that another one does. The chart's policy for pods decides alike."""
    if allowed.get("key") and allowed["key"] != wanted.get("key"):
        return False
    if allowed.get("effect") and allowed["effect"] != wanted.get("effect"):
        return False
    if allowed.get("operator") == "Exists":
        return True
    return wanted.get("operator") != "Exists" and (allowed.get("value") or "") == (wanted.get("value") or "")


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def amount(text: Any) -> decimal.Decimal:
    """A quantity as Kubernetes writes it (500m, 2Gi, 3) as a number; 0 if it is not one."""
    match = _AMOUNT.fullmatch(str(text).strip())
    if match is None or match.group(2) not in _UNITS:
        return decimal.Decimal(0)
    return decimal.Decimal(match.group(1)) * decimal.Decimal(_UNITS[match.group(2)])


def lasting(pod: Thing) -> list[Thing]:
    """The containers that a pod (template) has for as long as it lives: its own and sidecars."""
    spec = pod.get("spec") or {}
    sidecars = [container for container in spec.get("initContainers") or [] if container.get("restartPolicy") == "Always"]
    return [*(spec.get("containers") or []), *sidecars]


def requests(pod: Thing) -> dict[str, decimal.Decimal]:
    """The requests of a pod (template): the sum of its containers and sidecars; a limit alone counts as a request."""
    total: dict[str, decimal.Decimal] = {}
    for container in lasting(pod):
        resources = container.get("resources") or {}
        requested = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, value in requested.items():
            total[name] = total.get(name, decimal.Decimal(0)) + amount(value)
    return total


def _nodes(job: Job, ray_cluster: Thing, nodes: Sequence[Thing] | None) -> tuple[list[Issue], list[str]]:
    if nodes is None:
        if any(role.resources.gpus for role in job.roles()):
            return [], ["nodes may not be listed, so it was not checked whether one has the GPUs of a trial"]
        return [], []
    issues: list[Issue] = []
    warnings: list[str] = []
    looked: list[tuple[Resources, Cluster]] = []  # identical roles have one issue
    for role, group in _groups(job, ray_cluster):
        if (role.resources, role.cluster) in looked:
            continue
        looked.append((role.resources, role.cluster))
        node_issues, notes = _nodes_of(job, role, group["template"], nodes)
        issues += node_issues
        warnings += notes
    return issues, warnings


def _nodes_of(job: Job, role: Role, pod: Thing, nodes: Sequence[Thing]) -> tuple[list[Issue], list[str]]:
    """Issues that prevent the pods of one role, and warnings."""
    fitting = [node for node in nodes if _selects(pod["spec"].get("nodeSelector") or {}, node)]
    if not fitting and nodes:
        labels = ", ".join(f"{key}={value}" for key, value in (pod["spec"].get("nodeSelector") or {}).items())
        return [], [f"no node has the labels {labels} now; {role.title} waits until one appears"]
    requested, gpu = requests(pod), role.cluster.gpu_resource
    who = f"each pod of {role.title}" if role.gang else role.title
    issues: list[Issue] = []
    warnings: list[str] = []
    for name, field in {"cpu": "cpus", "memory": "memory", gpu: "gpus"}.items():
        needed = requested.get(name, decimal.Decimal(0))
        most = max((amount((node["status"].get("allocatable") or {}).get(name, 0)) for node in fitting), default=needed)
        if needed <= most:
            continue
        if not most:  # a node autoscaler may make one
            warnings.append(f"{who} requests {_show(name, needed)}, and no node has any now; it waits until one appears")
            continue
        message = f"{who} requests {_show(name, needed)}, and the largest node that it may run on has {_show(name, most)}"
        if name == gpu:
            remedy = job.gpu_advice(role.field, int(most), -(-int(needed) * role.nodes // int(most)))
            issues.append(Issue((role.field, field), f"{message}; {remedy}"))
        else:  # a node autoscaler may make a larger one
            warnings.append(f"{message}; it waits until a larger one appears")
    if role.nodes > 1 and fitting and not issues and not warnings:
        room = sum(_room(node, requested) for node in fitting)
        if room < role.nodes:
            warnings.append(
                f"{who} starts when all {role.nodes} are ready, and the nodes have room for {room}; it waits for more"
            )
    return issues, warnings


def _room(node: Thing, requested: Mapping[str, decimal.Decimal]) -> int:
    """Return the number of these pods that fit an empty node."""
    has = node["status"].get("allocatable") or {}
    return min((int(amount(has.get(name, 0)) / needed) for name, needed in requested.items() if needed), default=0)


def _quota(job: Job, ray_cluster: Thing, quotas: Sequence[Thing] | None) -> tuple[list[Issue], list[str]]:
    """One replica of each role must fit the whole quota; all of them should fit the rest of it."""
    issues: list[Issue] = []
    warnings: list[str] = []
    head = requests(ray_cluster["spec"]["headGroupSpec"]["template"])
    roles = [(role, requests(group["template"])) for role, group in _groups(job, ray_cluster)]
    who = ", ".join(role.title if role.replicas == 1 else f"one {role.name}" for role, _ in roles)
    for quota in quotas or []:
        name = quota["metadata"]["name"]
        hard = (quota.get("status") or {}).get("hard") or (quota.get("spec") or {}).get("hard") or {}
        used = (quota.get("status") or {}).get("used") or {}
        for key, limit in hard.items():
            resource = key.removeprefix("requests.")
            of_head = head.get(resource, decimal.Decimal(0))
            needs = [(role, pod.get(resource, decimal.Decimal(0))) for role, pod in roles]
            if key == "pods":  # the head's, and one for each node
                of_head, needs = decimal.Decimal(1), [(role, decimal.Decimal(1)) for role, _ in roles]
            elif key.startswith("limits.") or not any(each for _, each in needs):
                continue
            whole, remaining = amount(limit), amount(limit) - amount(used.get(key, 0))
            least = of_head + sum(each * role.nodes for role, each in needs)
            if least > whole:
                message = (
                    f"{who} and the controller request {_show(resource, least)}, and {name} allows {_show(resource, whole)}"
                )
                issues.append(Issue(("resources",), f"{message} in the namespace; request less, or have the quota raised"))
            elif of_head + sum(each * role.pods for role, each in needs) > remaining:
                begun = f"the quota {name} has {_show(resource, remaining)} left"
                if job.width_option:
                    warnings.append(f"{begun}, {_fewer(job, needs, remaining - of_head)}")
                else:
                    ask = f"{who} and its controller request {_show(resource, least)}"
                    warnings.append(f"{begun}, and {ask}: it waits until others have ended")
    return issues, warnings


def _fewer(job: Job, needs: Sequence[tuple[Role, decimal.Decimal]], remaining: decimal.Decimal) -> str:
    """The part of a run that there is room for, and what to type to request no more."""
    (role, each), *others = needs
    room = remaining - sum(amount * other.pods for other, amount in others)
    if room < 0:  # not even for the other roles; always so if these request nothing
        return f"too little for {' and '.join(other.title for other, _ in others)}: the run waits until others have ended"
    fit = max(0, int(room / (each * role.nodes)))
    beside = f" beside {' and '.join(other.title for other, _ in others)}" if others else " at a time"
    some = f"enough for {fit} of {errors.counted(role.replicas, role.name)}{beside}"
    return f"{some}; the others wait ({job.width_option} {max(fit, 1)})"


def _groups(job: Job, ray_cluster: Thing) -> Iterator[tuple[Role, Thing]]:
    """The roles of a job, each with its worker group."""
    yield from zip(job.roles(), ray_cluster["spec"]["workerGroupSpecs"], strict=True)


def _priority_class(ray_cluster: Thing) -> str:
    head = ray_cluster["spec"]["headGroupSpec"]
    return str(head["template"]["spec"].get("priorityClassName") or "")


def _selects(selector: Mapping[str, str], node: Thing) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _show(name: str, value: decimal.Decimal) -> str:
    if name == "memory":
        return f"{value / 2**30:.3g} GiB"
    noun = {"cpu": "core", "pods": "pod"}.get(name, name)
    return f"{value.normalize():f} {noun}{'s' if noun != name and value != 1 else ''}"


def names(things: Iterable[Thing]) -> frozenset[str]:
    """The names of objects."""
    return frozenset(thing["metadata"]["name"] for thing in things)
