"""The RayJob of a run: KubeRay creates a RayCluster from it, and a submitter's pod once that is ready. Pure data.

Written for KubeRay 1.6 and later. A study that failed is a RayJob that failed; a killed head pod is not, for the
submitter hands the controller to the new one, which resumes the study from the database.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trialplane.plan import plan as planning
from trialplane.plan import pods, sizes
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.spec.jobs import Job, Role
from trialplane.wire import cluster

# Of the images; KubeRay requires it to create a token, and chooses its probes by it.
RAY_VERSION = "2.60.0"
# Submitter's pods that may be lost (to drained nodes, say) before KubeRay gives up a run, which is sound without them. Each
# comes a while after the one before it, ten minutes at most; of one that failed `status` says how it ended.
SUBMITTER_RETRIES = 1000
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"  # without it Kueue admits no RayJob that scales
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


def rayjob(plan: Plan, site: Site) -> dict[str, Any]:
    """The object, without a namespace."""
    job = plan.job
    queue = job.cluster.queue or site.queue
    annotations = {cluster.CODE_HASH: plan.pack.sha256, cluster.SPEC_HASH: planning.spec_hash(job)}
    if queue and pods.autoscales(job, site):
        annotations[ELASTIC] = "true"
    deadline = job.cluster.deadline
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": plan.run,
            "labels": {**pods.labels(plan), **({QUEUE_LABEL: queue} if queue else {})},
            "annotations": annotations,
        },
        "spec": {
            "submissionMode": "K8sJobMode",
            "entrypoint": pods.entrypoint(plan),
            "backoffLimit": job.cluster.backoff_limit,
            "preRunningDeadlineSeconds": _seconds(job.cluster.pending_deadline),
            **({"activeDeadlineSeconds": _seconds(deadline)} if deadline is not None else {}),
            "shutdownAfterJobFinishes": True,  # Kueue requires it, and idle GPUs are freed
            "ttlSecondsAfterFinished": _seconds(job.cluster.ttl),
            "submitterConfig": {"backoffLimit": SUBMITTER_RETRIES},
            "submitterPodTemplate": pods.submitter(plan, site),
            "rayClusterSpec": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},  # KubeRay creates the token; contrary to its docs, not the default
                **(_autoscaling(job, site) if pods.autoscales(job, site) else {}),
                "headGroupSpec": {
                    "rayStartParams": {
                        "num-cpus": "0",  # nothing but the controller runs there
                        "dashboard-host": "0.0.0.0",
                        **_NO_LOG_MONITOR,
                        "object-store-memory": str(sizes.controller_object_store(job, site)),
                    },
                    "template": pods.controller(plan, site),
                },
                "workerGroupSpecs": [_workers(plan, site, role) for role in job.roles()],
            },
        },
    }


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
