"""The RayCluster of a run: a head pod with the controller in it, and a worker group for each role. Pure data.

Written for KubeRay 1.6 and later. Of it KubeRay makes pods, and again when one is lost; when the run is over is what the
controller records in the ledger, and the reconciler then deletes the RayCluster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trialplane.job.kinds import Job, Role
from trialplane.plan import plan as planning
from trialplane.plan import pods, sizes
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster

# Of the images; KubeRay requires it to create a token, and chooses its probes by it.
RAY_VERSION = "2.60.0"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"  # without it Kueue admits no RayCluster that scales
_LARGEST = 2**31 - 1  # of Kubernetes's int32
# Unused: Ray's process for it would collect metrics in every pod, after an import of more than a second. KubeRay drops a
# "false".
_NO_LOG_MONITOR = {"include-log-monitor": "0"}


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The initial, the minimum and the maximum number of trial pods."""

    now: int
    least: int
    most: int

    @classmethod
    def of(cls, pods: int, autoscale: bool) -> Replicas:
        """For a number of pods, which with `autoscale` follows the waiting trials."""
        return cls(0, 0, pods) if autoscale else cls(pods, pods, pods)


def raycluster(plan: Plan, site: Site) -> dict[str, Any]:
    """The object, without a namespace."""
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
            # Contrary to KubeRay's docs, not the default. It would take the Secret that has the RayCluster's name, whosever.
            "authOptions": {"mode": "token", "secretName": cluster.ray_secret(plan.run)},
            **(_autoscaling(job, site) if pods.autoscales(job, site) else {}),
            "headGroupSpec": {
                "rayStartParams": {
                    "num-cpus": "0",  # no trial runs there
                    "include-dashboard": "false",  # nobody looks at it, and its processes delay the head's start
                    **_NO_LOG_MONITOR,
                    "object-store-memory": str(sizes.controller_object_store(job, site)),
                },
                "template": pods.head(plan, site),
            },
            "workerGroupSpecs": [_workers(plan, site, role) for role in job.roles()],
        },
    }


def access(ray_cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The service account of Ray's autoscaler, and what it may; without names of namespace and owner.

    KubeRay binds the two, and would otherwise make a Role for all pods and RayClusters of the namespace.
    """
    if not ray_cluster["spec"].get("enableInTreeAutoscaling"):
        return []
    name = ray_cluster["metadata"]["name"]
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": [name], "verbs": ["get", "patch"]},
        # Its pods have names that nobody knows before, and a right to list goes by no name.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    account = {"name": cluster.autoscaler_account(name)}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account, "automountServiceAccountToken": False},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
    ]


def _workers(plan: Plan, site: Site, role: Role) -> dict[str, Any]:
    replicas = Replicas.of(role.pods, pods.autoscales(plan.job, site))
    need = role.resources
    return {
        "groupName": cluster.group(role.name),
        "replicas": replicas.now,
        "minReplicas": replicas.least,
        "maxReplicas": replicas.most,
        # Ray's, not the pod's. Explicit, as KubeRay knows neither slots nor every name of a GPU.
        "resources": {"CPU": str(need.threads), "GPU": str(need.gpus), cluster.slot(role.name): "1"},
        "rayStartParams": {**_NO_LOG_MONITOR, "object-store-memory": str(sizes.object_store(role))},
        "template": pods.trial(plan, site, role),
    }


def _autoscaling(job: Job, site: Site) -> dict[str, Any]:
    return {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": _seconds(job.cluster.idle),
            "upscalingMode": "Default",
            **pods.autoscaler(site),
        },
    }


def _seconds(duration: float) -> int:
    return min(math.ceil(duration), _LARGEST)
