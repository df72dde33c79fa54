"""Reasons why a run's pods do not run, from the objects of the API server. Pure.

`reason` explains a whole run, and `pod_wait` one pod. A reason names the pod, its problem, and what to do. A state that
passes by itself, such as the pull of an image, is distinguished from one that does not, such as a missing image.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from trialplane import errors
from trialplane.kube import metadata, preflight, refusal
from trialplane.kube.metadata import KubeObject
from trialplane.wire import cluster as names

PATIENCE = 20.0  # seconds after which a RayCluster without a status means that KubeRay's operator does not run
# Reasons of a container's waiting state: its image cannot be pulled, or the container cannot be created.
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
_NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_REFUSED = frozenset(  # reasons of KubeRay's events about objects that it could not create
    {
        "FailedToCreateHeadPod",
        "FailedToCreateWorkerPod",
        "FailedToCreateService",
        "FailedToCreateServiceAccount",  # this and the next two are for the autoscaler
        "FailedToCreateRole",
        "FailedToCreateRoleBinding",
        "InvalidRayClusterMetadata",
        "InvalidRayClusterSpec",
        "InvalidRayClusterStatus",
        "AutoscalerServiceAccountNotFound",
    }
)
_NO_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})  # reasons of the kubelet's events
# The end of the scheduler's messages, about resource claims and preemption, which does not help the user.
_SCHEDULER_SUFFIX = re.compile(r"\.? *(?:not found|no new claims to deallocate)?[ ,.]*(?:preemption:.*)?$", re.DOTALL)
_LACKING_RESOURCE = re.compile(r"Insufficient ([\w./-]+)")
# Identifiers of the preempting workload in Kueue's messages. They are left out, because users cannot use them in a command.
_KUEUE_IDS = re.compile(r" \(UID: [^)]*\)|; preempt\w+ path: [^;]*")
_MAX_MESSAGE = 400  # limit of the characters of a container's last message, which may be the end of its log


@dataclasses.dataclass(frozen=True)
class Wait:
    """Reason why a pod does not run.

    Attributes:
        text: Text for the user, whose subject is the pod.
        stuck: Whether the state will not change by itself.
    """

    text: str
    stuck: bool


def reason(
    ray_cluster: KubeObject,
    pods: Sequence[KubeObject],
    events: Iterable[KubeObject],
    workload: KubeObject | None = None,
    now: float | None = None,
) -> str:
    """Return the reason why a run, or some of its trial pods, have not started. "" if all pods run.

    Args:
        ray_cluster: RayCluster of the run.
        pods: Pods of the run, of all roles.
        events: Events of the namespace, in any order.
        workload: Kueue's Workload for the RayCluster. None without one.
        now: Current time, in seconds since the epoch. None for the clock's time.
    """
    run = str(ray_cluster["metadata"]["name"])
    live_pods = [pod for pod in pods if not metadata.is_deleted(pod)]
    created = metadata.creation_time(ray_cluster)
    # Older events are about an earlier run of the same name.
    run_events = [event for event in events if _is_about(event, run) and _event_seconds(event) >= created]
    run_events.sort(key=_event_time)
    if metadata.spec_of(ray_cluster).get("suspend"):
        return _queue_reason(run, workload)
    age = (time.time() if now is None else now) - created
    if not ray_cluster.get("status") and not live_pods:
        creation_refusal = _creation_refusal(run_events)
        if creation_refusal:
            return creation_refusal
        if age > PATIENCE:
            return (
                f"KubeRay has not handled it for {age:.0f} s: is its operator running? "
                "`kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator`"
            )
        return "KubeRay is about to create its pods"
    return _pods_reason(ray_cluster, live_pods, run_events)


def pod_wait(pod: KubeObject, events: Iterable[KubeObject] = ()) -> Wait | None:
    """Return the reason why a pod does not run. None if it runs or has succeeded.

    The checks follow the life of a pod: it gets a node, its images are pulled, its containers start. But first it is checked
    whether Kubernetes has ended the pod, because nothing else matters then.

    Args:
        pod: Pod.
        events: Events of the namespace. Those of other objects are ignored.
    """
    status = metadata.status_of(pod)
    name = pod["metadata"]["name"]
    if status.get("phase") == "Failed" and status.get("reason"):  # Kubernetes has ended it: evicted, preempted, …
        return Wait(_with_message(str(status["reason"]).lower(), status.get("message")), stuck=True)
    scheduling_wait = _scheduling_wait(pod)
    if scheduling_wait is not None:
        return scheduling_wait
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        wait = _image_wait(container) or _container_wait(container)
        if wait is not None:
            return _with_log_command(pod, container, wait) if _has_log(container) else wait
    running_names = [container.get("name") for container in containers if "running" in (container.get("state") or {})]
    if names.INSTALL in running_names:
        return Wait(f"installs packages: `kubectl logs {name} -c {names.INSTALL}`", stuck=False)
    if status.get("phase") == "Pending":
        return _start_wait([event for event in events if (event.get("involvedObject") or {}).get("name") == name])
    return _lost_node_wait(pod)


def _with_log_command(pod: KubeObject, container: KubeObject, wait: Wait) -> Wait:
    """Return the wait of a container with its role in the text, and with the command that shows its log.

    Only the logs of an installation and of a controller explain more. A failed installation does not end by waiting.
    """
    if container.get("name") == names.INSTALL:
        command = f"kubectl logs {pod['metadata']['name']} -c {names.INSTALL}"
        return Wait(f"could not install its packages and {wait.text}; `{command}`", stuck=True)
    if container.get("name") == names.CONTROLLER:
        run = metadata.labels_of(pod).get(names.RUN, "RUN")
        text = f"has a controller that {wait.text}; `platform logs {run} --controller` shows its log"
        return Wait(text, wait.stuck)
    return wait


def _pods_reason(ray_cluster: KubeObject, pods: Sequence[KubeObject], events: Sequence[KubeObject]) -> str:
    """Return the reason why a run's pods do not run. "" if all run.

    The reason is about the controller's pod, or about the trial pods if the controller's pod runs.

    Args:
        ray_cluster: RayCluster of the run.
        pods: Pods of the run that are not being deleted.
        events: Events of the run, the oldest first.
    """
    heads = [pod for pod in pods if _role(pod) == names.CONTROLLER]
    trials = [pod for pod in pods if _role(pod) == names.TRIAL]
    if not heads:
        return (
            _creation_refusal(events, "HeadPod") or _creation_refusal(events) or "KubeRay is creating the controller's pod"
        )
    for head in heads:
        wait = pod_wait(head, events)
        if wait is None:
            continue
        text = f"the controller's pod {head['metadata']['name']} {wait.text}"
        # Before the head runs, trial pods that are starting are not reported. A refusal is, because it does not pass.
        trials_refusal = _creation_refusal(events, "WorkerPod") if len(trials) < _desired_workers(ray_cluster) else ""
        return f"{text}; trial pods: {trials_refusal}" if trials_refusal else text
    return _trial_pods_reason(ray_cluster, trials, events)


def _trial_pods_reason(ray_cluster: KubeObject, pods: Sequence[KubeObject], events: Sequence[KubeObject]) -> str:
    """Return the two most important reasons why trial pods do not run, each with the number of pods. "" if all run.

    Pods that could not be created come first, then reasons that do not pass by themselves. For the arguments, see
    `_pods_reason`.
    """
    desired = _desired_workers(ray_cluster)
    waits = [wait for pod in pods if (wait := pod_wait(pod, events))]
    stuck_first = sorted(waits, key=lambda wait: not wait.stuck)
    counts = collections.Counter(wait.text for wait in stuck_first)  # keeps this order
    total = max(desired, len(pods))
    parts = [f"{count} of {total} trial pods: {'it' if count == 1 else 'each'} {text}" for text, count in counts.items()]
    missing = desired - len(pods)
    if missing > 0:
        creation_refusal = _creation_refusal(events, "WorkerPod") or _replica_failure(ray_cluster)
        if creation_refusal:
            parts.insert(0, f"{missing} of {total} trial pods: {creation_refusal}")
    return "; ".join(parts[:2])


def _desired_workers(ray_cluster: KubeObject) -> int:
    """Return the number of worker pods that a RayCluster should have."""
    status = metadata.status_of(ray_cluster)
    if status.get("desiredWorkerReplicas") is not None:  # set by KubeRay when it has handled the RayCluster
        return int(status["desiredWorkerReplicas"])
    groups = metadata.spec_of(ray_cluster).get("workerGroupSpecs") or []
    return sum(int(group.get("replicas") or 0) for group in groups)


def _replica_failure(ray_cluster: KubeObject) -> str:
    """Return KubeRay's message about pods that it could not create, from the RayCluster's conditions. "" without one."""
    for condition in metadata.conditions_of(ray_cluster):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"refused: {refusal.denial_reason(str(condition.get('message', '')))}"
    return ""


def _creation_refusal(events: Sequence[KubeObject], kind: str = "") -> str:
    """Return the message of the newest event about an object that KubeRay could not create. "" if there is none.

    Args:
        events: Events of the run, the oldest first.
        kind: Kind of object in the event's reason, such as "HeadPod". "" for any.
    """
    for event in reversed(events):
        if event.get("reason") in _REFUSED and kind in str(event["reason"]):
            return f"refused: {refusal.denial_reason(' '.join(str(event.get('message', '')).split()))}"
    return ""


def _queue_reason(run: str, workload: KubeObject | None) -> str:
    """Return the reason why a RayCluster is suspended, so that it has no pods.

    Args:
        run: Name of the run.
        workload: Kueue's Workload for the RayCluster. None without one.
    """
    if workload is None:
        return f"it is suspended: `kubectl get raycluster {run} -o yaml` shows by whom; Kueue has no workload for it"
    conditions = {condition["type"]: condition for condition in metadata.conditions_of(workload)}
    queue = metadata.spec_of(workload).get("queueName", "")
    evicted = conditions.get("Evicted") or {}
    reserved = conditions.get("QuotaReserved") or conditions.get("Admitted") or {}
    is_evicted = evicted.get("status") == "True" and reserved.get("status") != "True"  # and not admitted again since
    if is_evicted:
        eviction, restart = f"took it out of the queue {queue}", "starts it again when there is room"
        if evicted.get("reason") == "Preempted":
            eviction = f"preempted it in the queue {queue}"
        elif evicted.get("reason") == "Deactivated":
            restart = "nobody starts it again until an administrator activates its workload (spec.active: true)"
        message = _KUEUE_IDS.sub("", str(evicted.get("message", "")))
        return _with_message(f"Kueue {eviction}, and {restart}", message)
    text = _with_message(f"Kueue has not admitted it to the queue {queue}", reserved.get("message"))
    remedy = "; `kubectl get localqueues` shows those there are" if reserved.get("reason") == "Inadmissible" else ""
    return f"{text}{remedy}; see `platform docs queues`"


def _scheduling_wait(pod: KubeObject) -> Wait | None:
    """Return the reason why a pod has no node. None if it has one."""
    for condition in metadata.conditions_of(pod):
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        message = _SCHEDULER_SUFFIX.sub("", str(condition.get("message", "")))
        if condition.get("reason") == "SchedulingGated":
            return Wait("waits for its scheduling gate to be lifted, by Kueue for example", stuck=False)
        if "persistentvolumeclaim" in message.lower():
            return Wait(f"waits for its volume: {message}; `kubectl get pvc` shows {_claim_names(pod)}", stuck=True)
        resources = list(dict.fromkeys(_LACKING_RESOURCE.findall(message)))
        if resources:
            amounts = ", ".join(f"{_requested_amount(pod, resource)} {resource}".strip() for resource in resources)
            return Wait(f"fits no node, for lack of {amounts} ({message})", stuck=True)
        return Wait(f"fits no node ({message})" if message else "fits no node", stuck=True)
    return None


def _lost_node_wait(pod: KubeObject) -> Wait | None:
    """Return the reason that a pod's node does not answer. None if the node answers.

    If it does not, Kubernetes sets the pod's condition Ready to False, and ContainersReady keeps its last value, True.
    """
    conditions = {condition["type"]: condition.get("status") for condition in metadata.conditions_of(pod)}
    is_lost = conditions.get("ContainersReady") == "True" and conditions.get("Ready") == "False"
    if not is_lost:
        return None
    node = metadata.spec_of(pod).get("nodeName", "")
    text = f"is on the node {node}, which does not answer; `kubectl describe node {node}` says since when"
    return Wait(text, stuck=True)


def _image_wait(container: KubeObject) -> Wait | None:
    """Return the reason why the image of a container cannot be pulled. None if there is no such problem."""
    reason, message = _waiting_state(container)
    if reason not in _NO_IMAGE:
        return None
    image = str(container.get("image", ""))
    text = _with_message(f"cannot get its image {image} ({reason})", _pull_error(message, image))
    return Wait(f"{text}; push it where the nodes pull from, or load it into them: `platform docs gpus`", stuck=True)


def _waiting_state(container: KubeObject) -> tuple[str, str]:
    """Return the reason in one word and the message in one line of a container's waiting state. "" and "" without one."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason", "")), " ".join(str(waiting.get("message", "")).split())


def _container_wait(container: KubeObject) -> Wait | None:
    """Return the reason why a container cannot be started or has failed. None if there is no such problem."""
    reason, message = _waiting_state(container)
    if reason in _NO_CONTAINER:
        return Wait(_with_message(f"cannot be started ({reason})", message), stuck=True)
    if reason == "CrashLoopBackOff":
        last_end = _end_of(container, "lastState")
        restarts = errors.counted(container.get("restartCount", 0), "time")
        text = f"keeps ending, {restarts} so far, last {_exit_text(last_end)}"
        return Wait(_with_message(text, _limit_message(str(last_end.get("message") or ""))), stuck=True)
    end = _end_of(container, "state")
    if end.get("exitCode"):
        message = _limit_message(str(end.get("message") or ""))
        return Wait(_with_message(f"ended {_exit_text(end)}", message), stuck=True)
    return None


def _end_of(container: KubeObject, field: str) -> KubeObject:
    """Return the end of a container, or with the field "lastState" that of its instance before; empty without one."""
    return (container.get(field) or {}).get("terminated") or {}


def _has_log(container: KubeObject) -> bool:
    """Whether a container has a log, because it has ended at least once."""
    return bool(_end_of(container, "state") or _end_of(container, "lastState"))


def last_message(pod: KubeObject) -> str:
    """Return the message with which a failed pod ended, in one line.

    It is the last message of a container, or else the message or the reason with which Kubernetes ended the pod.
    """
    status = metadata.status_of(pod)
    ends = [_end_of(container, "state") for container in status.get("containerStatuses") or []]
    texts = [*(end.get("message") for end in ends), status.get("message"), status.get("reason")]
    return _limit_message(next((str(text) for text in texts if text), "without a reason"))


def _limit_message(message: str) -> str:
    """Return a container's last message in one line. Of a long one, return the end."""
    text = " ".join(message.split())
    return text if len(text) <= _MAX_MESSAGE else f"…{text[-_MAX_MESSAGE:]}"


def _pull_error(message: str, image: str) -> str:
    """Return the cause in the message about an image: the text after the last part that has the name of the image.

    For a:1, the cause in "rpc error: failed to pull a:1: failed to resolve reference a:1: not found" is "not found".
    """
    parts = message.split(": ")
    last = max((number for number, part in enumerate(parts) if image in part), default=-1)
    return ": ".join(parts[last + 1 :]) or message


def _start_wait(events: Sequence[KubeObject]) -> Wait:
    """Return the reason why a pod that has a node has not started, from its newest event that tells a reason."""
    oldest_first = sorted(events, key=_event_time)
    for event in reversed(oldest_first):
        message = " ".join(str(event.get("message", "")).split())
        if event.get("reason") in _NO_VOLUME:
            return Wait(f"waits for its volumes: {message}", stuck=True)
        if event.get("reason") == "FailedCreatePodSandBox":
            return Wait(f"has no network: {message}", stuck=True)
        if event.get("reason") == "Pulling":
            return Wait(f"is {message[:1].lower()}{message[1:]}", stuck=False)
        if event.get("reason") in ("Pulled", "Created", "Started"):
            break  # the problems of older events are solved
    return Wait("is starting", stuck=False)


def _exit_text(end: KubeObject) -> str:
    """Return a container's exit code and its reason, if Kubernetes knows one: "with exit code 137 (OOMKilled)"."""
    reason = str(end.get("reason") or "")
    return f"with exit code {end.get('exitCode')}" + (f" ({reason})" if reason not in ("", "Error") else "")


def _requested_amount(pod: KubeObject, resource: str) -> str:
    """Return the amount of a resource that a pod requests. "" if several of its containers or none request it."""
    containers = preflight.permanent_containers(pod)
    requests_by_container = [(container.get("resources") or {}).get("requests") or {} for container in containers]
    amounts = [str(requests[resource]) for requests in requests_by_container if resource in requests]
    return amounts[0] if len(amounts) == 1 else ""


def _claim_names(pod: KubeObject) -> str:
    """Return the names of a pod's PersistentVolumeClaims, separated by commas."""
    volumes = metadata.spec_of(pod).get("volumes") or []
    return ", ".join(
        volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")
    )


def _role(pod: KubeObject) -> str:
    """Return the role of a pod of a run, from its labels: `names.CONTROLLER` or `names.TRIAL`. "" without one."""
    return metadata.labels_of(pod).get(names.ROLE, "")


def _is_about(event: KubeObject, run: str) -> bool:
    """Whether an event is about the RayCluster of a run or one of its objects, whose names begin with the run's."""
    name = str((event.get("involvedObject") or {}).get("name", ""))
    return name == run or name.startswith(f"{run}-")


def _event_time(event: KubeObject) -> str:
    """Return the time when an event was last seen, in Kubernetes' format, which sorts by time. "" if it is unknown."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(
        series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    )


def _event_seconds(event: KubeObject) -> float:
    """Return the time when an event was last seen, in seconds since the epoch. Infinite if it is unknown."""
    return metadata.timestamp(_event_time(event)) or math.inf


def _with_message(text: str, message: Any) -> str:
    """Return a text, followed by a message in one line unless the message is empty."""
    return f"{text}: {' '.join(str(message).split())}" if message else text
