"""The init container of a trial pod that installs missing packages before the first trial.

Head pods have no such container, because a job's requirements are for its trials.
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
    """Add the init container and its volume to a trial pod.

    Args:
        spec: Spec of the pod, which is changed.
        container: Main container of the pod, which is changed. The init container gets its image, variables, resources
            without GPUs, and security context.
        job: Job with `install: true`.
        allowed: Limits of the chart for installations.
    """
    mount = {"name": "packages", "mountPath": cluster.PACKAGES}
    options = ["--index", allowed.index, "--max-size", allowed.max_size, "--timeout", f"{allowed.timeout:g}"]
    spec["volumes"].append({"name": "packages", "emptyDir": {"sizeLimit": allowed.max_size}})
    gpus = extended_resources(container)
    resources = {
        kind: {name: amount for name, amount in amounts.items() if name not in gpus}
        for kind, amounts in container["resources"].items()  # kinds are requests and limits
    }
    spec["initContainers"] = [
        {
            "name": cluster.INSTALL,
            "image": container["image"],
            "imagePullPolicy": container["imagePullPolicy"],
            "command": [*_COMMAND, *options, "--", job.requires],
            # They include the chart's proxy. The admission policy requires the variables of the platform's policies.
            "env": list(container["env"]),
            "resources": resources,
            "securityContext": container["securityContext"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "tmp", "mountPath": variables.TMP},
                mount,
                {"name": "code", "mountPath": cluster.CODE_MOUNT, "readOnly": True},
            ],
        }
    ]
    container["volumeMounts"].append({**mount, "readOnly": True})
    container["env"].append({"name": env.PACKAGES, "value": cluster.PACKAGES})


def installs(ray_cluster: Mapping[str, Any]) -> bool:
    """Whether trial pods of a RayCluster install packages."""
    specs = [group["template"]["spec"] for group in ray_cluster["spec"].get("workerGroupSpecs") or []]
    return any(container["name"] == cluster.INSTALL for spec in specs for container in spec.get("initContainers") or [])


def extended_resources(container: Mapping[str, Any]) -> set[str]:
    """Return the names of a container's extended resources, which are GPUs. Other resources have no / in their names."""
    return {name for name in container["resources"].get("limits", {}) if "/" in name}
