"""The RayCluster of a run: a head pod with the controller, and a worker group for each role.

Written for KubeRay 1.6 and later, which creates the pods and replaces lost ones. When the controller has recorded the end of
the run in the ledger, the reconciler deletes the RayCluster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trialplane.job.kinds import Job, Role
from trialplane.plan import plan as planning
from trialplane.plan import pods, sizes
from trialplane.plan.gpus import GpuRequest
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster

RAY_VERSION = "2.60.0"  # version in the images, which KubeRay needs to create a token and to choose probes
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"  # annotation without which Kueue admits no RayCluster that scales
_LARGEST_INT32 = 2**31 - 1
# Parameter that disables Ray's log monitor, which is unused and takes more than a second to start in every pod. The value is
# not "false", because KubeRay leaves out a parameter with this value.
_NO_LOG_MONITOR = {"include-log-monitor": "0"}


@dataclasses.dataclass(frozen=True)
class Replicas:
    """Numbers of pods of a worker group: initial, minimum and maximum."""

    initial: int
    minimum: int
    maximum: int

    @classmethod
    def of(cls, pods: int, autoscale: bool, initial: int = 0) -> Replicas:
        """Return the numbers for a group of `pods`.

        Args:
            pods: Number of pods.
            autoscale: Whether this number is the maximum, and the minimum is 0. Otherwise the number never changes.
            initial: Number of pods that do not wait for the autoscaler.
        """
        if autoscale:
            return cls(initial=min(initial, pods), minimum=0, maximum=pods)
        return cls(initial=pods, minimum=pods, maximum=pods)


def raycluster(plan: Plan, site: Site) -> dict[str, Any]:
    """Return the RayCluster of a run as a manifest without a namespace."""
    job = plan.job
    queue = job.cluster.queue or site.queue
    annotations = {cluster.CODE_HASH: plan.pack.sha256, cluster.SPEC_HASH: planning.spec_hash(job)}
    if queue and pods.autoscales(job, site):
        annotations[ELASTIC] = "true"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": plan.run,
            "labels": {**pods.labels(plan), **({QUEUE_LABEL: queue} if queue else {})},
            "annotations": annotations,
        },
        "spec": {
            "rayVersion": RAY_VERSION,
            # Without a name here, KubeRay would use any Secret with the name of the RayCluster, whoever created it.
            "authOptions": {"mode": "token", "secretName": cluster.ray_secret(plan.run)},
            **(_autoscaling(job, site) if pods.autoscales(job, site) else {}),
            "headGroupSpec": {
                "rayStartParams": {
                    "num-cpus": "0",  # no trial runs there
                    "include-dashboard": "false",  # unused, and its processes delay the head's start
                    **_NO_LOG_MONITOR,
                    "object-store-memory": str(sizes.controller_object_store(job, site)),
                },
                "template": pods.head(plan, site),
            },
            "workerGroupSpecs": [_workers(plan, site, role) for role in job.roles()],
        },
    }


def autoscaler_access(ray_cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the service account of Ray's autoscaler and its Role, without namespace and owner.

    KubeRay creates a RoleBinding for the two. If they did not exist, it would create a Role with rights for all pods and
    RayClusters of the namespace.

    Args:
        ray_cluster: RayCluster of a run.

    Returns:
        The two objects. Empty if the run is not autoscaled.
    """
    if not ray_cluster["spec"].get("enableInTreeAutoscaling"):
        return []
    name = ray_cluster["metadata"]["name"]
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": [name], "verbs": ["get", "patch"]},
        # Names of pods are generated, and the right to list pods cannot be restricted to names.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    account = {"name": cluster.autoscaler_account(name)}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account, "automountServiceAccountToken": False},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
    ]


def _workers(plan: Plan, site: Site, role: Role) -> dict[str, Any]:
    """Return the worker group of a role: the number and the template of its pods, and their resources as Ray counts them."""
    # The pods of one trial start together with the head. The autoscaler would request them after the head has started, so
    # the first trial would wait for two starts. In a queue they would ask for room before the head has any.
    initial = 0 if plan.job.cluster.queue or site.queue else role.nodes
    replicas = Replicas.of(role.pods, autoscale=pods.autoscales(plan.job, site), initial=initial)
    resources, gpu_request = role.resources, GpuRequest.of(role, site)
    return {
        "groupName": cluster.group(role.name),
        "replicas": replicas.initial,
        "minReplicas": replicas.minimum,
        "maxReplicas": replicas.maximum,
        # The resources as Ray counts them. KubeRay cannot compute them from the pod's, because these have no slots, and GPUs
        # may have any name.
        "resources": {"CPU": str(resources.threads), "GPU": str(resources.gpu_count), cluster.slot(role.name): "1"},
        "rayStartParams": {
            **_NO_LOG_MONITOR,
            "object-store-memory": str(sizes.object_store(role)),
            # With MPS, the device plugin mounts the /dev/shm of the MPS daemon. So Ray's object store is in another folder.
            # With this parameter, KubeRay does not mount a volume at /dev/shm either.
            **({"plasma-directory": pods.OBJECT_STORE} if gpu_request is not None and gpu_request.uses_mps else {}),
        },
        "template": pods.trial(plan, site, role),
    }


def _autoscaling(job: Job, site: Site) -> dict[str, Any]:
    """Return the fields of a RayCluster's spec for its autoscaler."""
    return {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": min(math.ceil(job.cluster.idle), _LARGEST_INT32),
            "upscalingMode": "Default",
            **pods.autoscaler(site),
        },
    }
