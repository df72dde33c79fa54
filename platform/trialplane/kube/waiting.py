"""Explains why a run's pods do not run, from the objects of the API server. Pure.

A reason names the pod, what it lacks and what to do. Temporary states (an image is being pulled) are distinguished from
permanent ones (there is no such image).
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialplane import errors
from trialplane.kube import metadata, preflight, refusal
from trialplane.wire import cluster as names

Thing = Mapping[str, Any]

PATIENCE = 20.0  # seconds within which a running operator handles a new RayCluster
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
_NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_REFUSED = frozenset(
    {
        "FailedToCreateHeadPod",
        "FailedToCreateWorkerPod",
        "FailedToCreateService",
        "FailedToCreateServiceAccount",  # of the autoscaler, with a role
        "FailedToCreateRole",
        "FailedToCreateRoleBinding",
        "InvalidRayClusterMetadata",
        "InvalidRayClusterSpec",
        "InvalidRayClusterStatus",
        "AutoscalerServiceAccountNotFound",
    }
)
_NO_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
# The scheduler's remarks about resource claims and preemption, which are of no use here.
_TAIL = re.compile(r"\.? *(?:not found|no new claims to deallocate)?[ ,.]*(?:preemption:.*)?$", re.DOTALL)
_WANT = re.compile(r"Insufficient ([\w./-]+)")
# Of who took a run's place: identifiers that no command takes.
_KUEUE_IDS = re.compile(r" \(UID: [^)]*\)|; preempt\w+ path: [^;]*")
_LONGEST = 400  # characters of a container's last message, which may be the end of its log


@dataclasses.dataclass(frozen=True)
class Wait:
    """Reason why something is not running yet.

    Attributes:
        text: for the user.
        stuck: whether it will not change by itself.
    """

    text: str
    stuck: bool


def reason(
    ray_cluster: Thing,
    pods: Sequence[Thing],
    events: Iterable[Thing],
    workload: Thing | None = None,
    now: float | None = None,
) -> str:
    """The reason why a run has not started, or why some of its trial pods have not; "" when nothing is missing.

    Args:
        ray_cluster: the run's.
        pods: of the run, of every role.
        events: of the namespace, in any order.
        workload: Kueue's object for the RayCluster, if there is one.
        now: seconds since the epoch.
    """
    run = str(ray_cluster["metadata"]["name"])
    living = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    # Events of an earlier run of that name do not count.
    created = metadata.created(ray_cluster)
    run_events = sorted((event for event in events if _is_about(event, run) and _happened(event) >= created), key=_when)
    if (ray_cluster.get("spec") or {}).get("suspend"):
        return _queued(run, workload)
    age = (time.time() if now is None else now) - created
    if not ray_cluster.get("status") and not living:
        refused = _refusal(run_events, "")
        if refused:
            return refused
        if age > PATIENCE:
            return (
                f"KubeRay has not handled it for {age:.0f} s: is its operator running? "
                "`kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator`"
            )
        return "KubeRay is about to create its pods"
    return _pods(run, ray_cluster, living, run_events)


def blocked(pod: Thing, events: Iterable[Thing] = ()) -> Wait | None:
    """Return the reason why a pod does not run. None if it runs or has succeeded.

    Args:
        pod: the object.
        events: of the namespace; those of other pods are ignored.
    """
    status = pod.get("status") or {}
    pod_events = [event for event in events if (event.get("involvedObject") or {}).get("name") == pod["metadata"]["name"]]
    if status.get("phase") == "Failed" and status.get("reason"):  # evicted, preempted, deadline
        return Wait(_joined(str(status["reason"]).lower(), status.get("message")), True)
    unscheduled = _unscheduled(pod)
    if unscheduled is not None:
        return unscheduled
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    run = (pod["metadata"].get("labels") or {}).get(names.RUN, "RUN")
    for container in containers:
        problem = _unpulled(container) or _container(container)
        if problem is None:
            continue
        if container.get("name") == names.INSTALL and _has_run(container):
            name = pod["metadata"]["name"]
            return Wait(f"could not install its packages and {problem.text}; `kubectl logs {name} -c {names.INSTALL}`", True)
        if container.get("name") != names.CONTROLLER or not _has_run(container):
            return problem
        return Wait(f"has a controller that {problem.text}; `platform logs {run} --controller` shows its log", problem.stuck)
    if any(
        container.get("name") == names.INSTALL and "running" in (container.get("state") or {}) for container in containers
    ):
        return Wait(f"installs packages: `kubectl logs {pod['metadata']['name']} -c {names.INSTALL}`", False)
    if status.get("phase") == "Pending":
        return _starting(pod_events)
    return _cut_off(pod)


def _pods(run: str, ray_cluster: Thing, pods: Sequence[Thing], events: Sequence[Thing]) -> str:
    """Reasons in the order in which pods are needed: the head's, then the trials'."""
    heads, trials = ([pod for pod in pods if _role(pod) == role] for role in (names.CONTROLLER, names.TRIAL))
    if not heads:
        return _refusal(events, "HeadPod") or _refusal(events, "") or "KubeRay is creating the controller's pod"
    waits = [(head, wait) for head in heads if (wait := blocked(head, events))]
    if waits:
        head, wait = waits[0]
        text = f"the controller's pod {head['metadata']['name']} {wait.text}"
        # A refusal outlasts the start of the head; pods that are only starting are not reported yet.
        more = _refusal(events, "WorkerPod") if len(trials) < _target(ray_cluster) else ""
        return f"{text}; trial pods: {more}" if more else text
    return _workers(ray_cluster, trials, events)


def _workers(ray_cluster: Thing, pods: Sequence[Thing], events: Sequence[Thing]) -> str:
    target = _target(ray_cluster)
    waits = [wait for pod in pods if (wait := blocked(pod, events))]
    groups: dict[str, int] = {}
    for wait in sorted(waits, key=lambda wait: not wait.stuck):
        groups[wait.text] = groups.get(wait.text, 0) + 1
    total = max(target, len(pods))
    parts = [f"{count} of {total} trial pods: {'it' if count == 1 else 'each'} {text}" for text, count in groups.items()]
    missing = target - len(pods)
    if missing > 0:
        refused = _refusal(events, "WorkerPod") or _condition(ray_cluster)
        if refused:
            parts.insert(0, f"{missing} of {total} trial pods: {refused}")
    return "; ".join(parts[:2])


def _target(ray_cluster: Thing) -> int:
    """The number of worker pods that there should be."""
    status = ray_cluster.get("status") or {}
    if status.get("desiredWorkerReplicas") is not None:
        return int(status["desiredWorkerReplicas"])
    groups = (ray_cluster.get("spec") or {}).get("workerGroupSpecs") or []
    return sum(int(group.get("replicas") or 0) for group in groups)


def _condition(ray_cluster: Thing) -> str:
    """KubeRay's message about pods that it could not create."""
    for condition in (ray_cluster.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"refused: {refusal.denial(str(condition.get('message', '')))}"
    return ""


def _refusal(events: Sequence[Thing], about: str) -> str:
    """The newest event about something that could not be created."""
    for event in reversed(events):
        if event.get("reason") in _REFUSED and about in str(event["reason"]):
            return f"refused: {refusal.denial(' '.join(str(event.get('message', '')).split()))}"
    return ""


def _queued(run: str, workload: Thing | None) -> str:
    if workload is None:
        return f"it is suspended: `kubectl get raycluster {run} -o yaml` shows by whom; Kueue has no workload for it"
    conditions = {condition["type"]: condition for condition in (workload.get("status") or {}).get("conditions") or []}
    queue = (workload.get("spec") or {}).get("queueName", "")
    evicted = conditions.get("Evicted") or {}
    reserved = conditions.get("QuotaReserved") or conditions.get("Admitted") or {}
    if evicted.get("status") == "True" and reserved.get("status") != "True":
        is_preempted = evicted.get("reason") == "Preempted"
        did = f"preempted it in the queue {queue}" if is_preempted else f"took it out of the queue {queue}"
        message = _KUEUE_IDS.sub("", str(evicted.get("message", "")))
        then = "starts it again when there is room"
        if evicted.get("reason") == "Deactivated":
            then = "nobody starts it again until an administrator activates its workload (spec.active: true)"
        return _joined(f"Kueue {did}, and {then}", message)
    said = _joined(f"Kueue has not admitted it to the queue {queue}", reserved.get("message"))
    remedy = "; `kubectl get localqueues` shows those there are" if reserved.get("reason") == "Inadmissible" else ""
    return f"{said}{remedy}; see `platform docs queues`"


def _unscheduled(pod: Thing) -> Wait | None:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        message = _TAIL.sub("", str(condition.get("message", "")))
        if condition.get("reason") == "SchedulingGated":
            return Wait("waits for its scheduling gate to be lifted, by Kueue for example", False)
        if "PersistentVolumeClaim" in message or "persistentvolumeclaim" in message:
            return Wait(f"waits for its volume: {message}; `kubectl get pvc` shows {_claims(pod)}", True)
        lacking = list(dict.fromkeys(_WANT.findall(message)))
        if lacking:
            amounts = ", ".join(f"{_amount(pod, want)} {want}".strip() for want in lacking)
            return Wait(f"fits no node, for lack of {amounts} ({message})", True)
        return Wait(f"fits no node ({message})" if message else "fits no node", True)
    return None


def _cut_off(pod: Thing) -> Wait | None:
    """Whether Kubernetes has lost a pod's node: it then says that the pod is not ready, though its containers last were."""
    conditions = {
        condition["type"]: condition.get("status") for condition in (pod.get("status") or {}).get("conditions") or []
    }
    if (conditions.get("ContainersReady"), conditions.get("Ready")) != ("True", "False"):
        return None
    node = (pod.get("spec") or {}).get("nodeName", "")
    return Wait(f"is on the node {node}, which does not answer; `kubectl describe node {node}` says since when", True)


def _unpulled(container: Thing) -> Wait | None:
    """Return the reason why a container has no image."""
    reason, message = _waiting(container)
    if reason not in _NO_IMAGE:
        return None
    image = str(container.get("image", ""))
    hint = "push it where the nodes pull from, or load it into them: `platform docs gpus`"
    return Wait(f"{_joined(f'cannot get its image {image} ({reason})', _cause(message, image))}; {hint}", True)


def _waiting(container: Thing) -> tuple[str, str]:
    """Return why a container waits, from its node: a word, and a message in one line."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason", "")), " ".join(str(waiting.get("message", "")).split())


def _container(container: Thing) -> Wait | None:
    ended = (container.get("state") or {}).get("terminated") or {}
    reason, message = _waiting(container)
    if reason in _NO_CONTAINER:
        return Wait(_joined(f"cannot be started ({reason})", message), True)
    if reason == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        often = errors.counted(container.get("restartCount", 0), "time")
        text = _joined(f"keeps ending, {often} so far, last {_ending(last)}", _end_of(str(last.get("message") or "")))
        return Wait(text, True)
    if ended and ended.get("exitCode"):
        return Wait(_joined(f"ended {_ending(ended)}", _end_of(str(ended.get("message") or ""))), True)
    return None


def _has_run(container: Thing) -> bool:
    """Whether a container has a log: it has ended at least once."""
    return any((container.get(state) or {}).get("terminated") for state in ("state", "lastState"))


def last_words(pod: Thing) -> str:
    """Return the last message of the containers of a failed pod in one line, or why it was ended."""
    status = pod.get("status") or {}
    ended = [(container.get("state") or {}).get("terminated") or {} for container in status.get("containerStatuses") or []]
    texts = [*(container.get("message") for container in ended), status.get("message"), status.get("reason")]
    return _end_of(next((str(text) for text in texts if text), "without a reason"))


def _end_of(message: str) -> str:
    """A container's last message in one line, of a long one the end."""
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}"


def _cause(message: str, image: str) -> str:
    """The last part of a message that repeats the image at each step."""
    steps = message.split(": ")
    last = max((number for number, step in enumerate(steps) if image in step), default=-1)
    return ": ".join(steps[last + 1 :]) or message


def _starting(events: Sequence[Thing]) -> Wait:
    newest = sorted(events, key=_when)
    for event in reversed(newest):
        message = " ".join(str(event.get("message", "")).split())
        if event.get("reason") in _NO_VOLUME:
            return Wait(f"waits for its volumes: {message}", True)
        if event.get("reason") == "FailedCreatePodSandBox":
            return Wait(f"has no network: {message}", True)
        if event.get("reason") == "Pulling":
            return Wait(f"is {message[:1].lower()}{message[1:]}", False)
        if event.get("reason") in ("Pulled", "Created", "Started"):
            break
    return Wait("is starting", False)


def _ending(terminated: Thing) -> str:
    code = terminated.get("exitCode")
    reason = str(terminated.get("reason") or "")
    return f"with exit code {code}" + (f" ({reason})" if reason not in ("", "Error") else "")


def _amount(pod: Thing, want: str) -> str:
    """Return the amount of a resource that a pod requests, if only one container requests it."""
    amounts = [
        requested
        for container in preflight.permanent_containers(pod)
        if (requested := ((container.get("resources") or {}).get("requests") or {}).get(want))
    ]
    return str(amounts[0]) if len(amounts) == 1 else ""


def _claims(pod: Thing) -> str:
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return ", ".join(
        volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")
    )


def _role(pod: Thing) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.ROLE, ""))


def _is_about(event: Thing, run: str) -> bool:
    """Whether an event is about the run or one of its objects, whose names begin with the run's."""
    name = str((event.get("involvedObject") or {}).get("name", ""))
    return name == run or name.startswith(f"{run}-")


def _when(event: Thing) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(
        series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    )


def _happened(event: Thing) -> float:
    """When an event was last seen, in seconds since the epoch; infinite if it has no time."""
    return metadata.moment(_when(event)) or math.inf


def _joined(text: str, message: Any) -> str:
    return f"{text}: {' '.join(str(message).split())}" if message else text
