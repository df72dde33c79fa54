"""The container of a trial pod that installs, before the first trial, what the pod's image lacks. Pure.

A head pod has none: the requirements are those of trials, as with a layer over their image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialplane.job.kinds import Job
from trialplane.plan import variables
from trialplane.plan.site import Install
from trialplane.wire import cluster, env

_COMMAND = ("python", "-m", "trialplane.worker.setup.install")


def add_to(spec: dict[str, Any], container: dict[str, Any], job: Job, allowed: Install) -> None:
    """Add the container and its volume to a trial pod.

    Args:
        spec: of the pod.
        container: in which trials run, of which the other has image, variables, limits and security context.
        job: that asks for it.
        allowed: what the chart lets pods install.
    """
    volume = {"name": "packages", "mountPath": cluster.PACKAGES}
    limits = ["--index", allowed.index, "--max-size", allowed.max_size, "--timeout", f"{allowed.timeout:g}"]
    spec["volumes"].append({"name": "packages", "emptyDir": {"sizeLimit": allowed.max_size}})
    gpus = job_gpus(container, job)
    bounds = {kind: {key: n for key, n in each.items() if key not in gpus} for kind, each in container["resources"].items()}
    spec["initContainers"] = [
        {
            "name": cluster.INSTALL,
            "image": container["image"],
            "imagePullPolicy": container["imagePullPolicy"],
            "command": [*_COMMAND, *limits, "--", job.requires],
            "env": list(container["env"]),  # the chart's proxy among them; the admission policy wants the rest everywhere
            "resources": bounds,
            "securityContext": container["securityContext"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "tmp", "mountPath": variables.TMP},
                volume,
                {"name": "code", "mountPath": cluster.CODE_MOUNT, "readOnly": True},
            ],
        }
    ]
    container["volumeMounts"].append({**volume, "readOnly": True})
    container["env"].append({"name": env.PACKAGES, "value": cluster.PACKAGES})


def installs(ray_cluster: Mapping[str, Any]) -> bool:
    """Whether trial pods of a RayCluster install packages."""
    specs = [group["template"]["spec"] for group in ray_cluster["spec"].get("workerGroupSpecs") or []]
    return any(one["name"] == cluster.INSTALL for spec in specs for one in spec.get("initContainers") or [])


def job_gpus(container: Mapping[str, Any], job: Job) -> set[str]:
    """Names of the resources of a container that are GPUs of the job."""
    return {role.cluster.gpu_resource for role in job.roles()} & set(container["resources"].get("limits", {}))
