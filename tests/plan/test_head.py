"""The head pod: Ray's head and, beside it, the controller, which alone holds what is private.

Not checked here: that Ray's driver works across the two containers, and what the kubelet makes of them (tests/e2e).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from trialplane.job.notify import Notify
from trialplane.plan import raycluster
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site

Thing = dict[str, Any]


@pytest.fixture
def spec(plan: Plan, site: Site) -> Thing:
    """The RayCluster's."""
    found: Thing = raycluster.raycluster(plan, site)["spec"]
    return found


def head(spec: Thing) -> Thing:
    found: Thing = spec["headGroupSpec"]["template"]["spec"]
    return found


def containers(spec: Thing) -> tuple[Thing, Thing, list[Thing]]:
    """Ray's, the controller's, and the autoscaler's where there is one."""
    (ray,), (controller,) = head(spec)["containers"], head(spec)["initContainers"]
    return ray, controller, [spec["autoscalerOptions"]] if "autoscalerOptions" in spec else []


def variables(container: Thing) -> Thing:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_the_controller_is_a_sidecar_that_joins_the_ray_beside_it(spec: Thing, plan: Plan) -> None:
    """What Ray's driver needs to find its raylet, to use its sockets and to write its log; else it does not start."""
    ray, controller, others = containers(spec)
    assert (head(spec)["shareProcessNamespace"], head(spec)["restartPolicy"]) == (True, "Never")
    assert controller["restartPolicy"] == "Always"
    found = variables(controller)
    assert (found["RAY_ADDRESS"], found["RAY_AUTH_MODE"]) == ("127.0.0.1:6379", "token")
    assert found["RAY_AUTH_TOKEN"] == {"secretKeyRef": {"name": f"{plan.run}.ray", "key": "auth_token"}}
    assert found["RAY_event_log_reporter_enabled"] == "0"
    for one in (ray, controller, *others):
        assert {"name": "ray-logs", "mountPath": "/tmp/ray"} in one["volumeMounts"]
    for one in (ray, controller):
        assert {"name": "shm", "mountPath": "/dev/shm"} in one["volumeMounts"]
    assert ray["command"] == ["umask", "0002"]
    assert not {"readinessProbe", "livenessProbe", "startupProbe"} & set(controller)


def test_every_folder_on_the_nodes_disk_is_bounded(spec: Thing) -> None:
    limits = {one["name"]: one["emptyDir"].get("sizeLimit") for one in head(spec)["volumes"] if "emptyDir" in one}
    assert {"tmp", "ray-logs", "shm"} <= limits.keys() and None not in limits.values()


def test_rays_head_shares_no_user_with_those_who_hold_a_secret(spec: Thing) -> None:
    """Processes are visible to each other there; what they hold is visible only to those of the same user."""
    ray, controller, others = containers(spec)
    users = [one["securityContext"]["runAsUser"] for one in (ray, controller, *others)]
    assert len(set(users)) == len(users)
    assert controller["securityContext"]["runAsUser"] == 1000, "that of the pod which removes its files"
    assert {"runAsUser", "runAsGroup"} & set(ray["securityContext"]) == {"runAsUser"}, "and they share the group of the pod"


def test_rays_head_has_nothing_private(spec: Thing) -> None:
    ray, _, _ = containers(spec)
    assert all(isinstance(value, str) for value in variables(ray).values()), "nothing of a secret"
    assert "envFrom" not in ray
    private = {"home", "runs", "controller-tmp", "autoscaler-tmp", "token", "spec", "code"}
    assert not private & {mount["name"] for mount in ray["volumeMounts"]}


def test_the_containers_share_the_pods_memory_and_may_each_use_its_cores(
    make: tuple[Callable[..., Plan], Callable[..., Site]],
) -> None:
    a_plan, a_site = make
    plan = a_plan(cluster={"controller": {"cpus": 3, "memory": "4Gi"}})
    ray, controller, _ = containers(raycluster.raycluster(plan, a_site(overcommit=3))["spec"])
    assert ray["resources"] == {
        "requests": {"cpu": "500m", "memory": "2304Mi"},
        "limits": {"cpu": "3", "memory": "2304Mi"},
    }
    assert controller["resources"]["requests"]["memory"] == controller["resources"]["limits"]["memory"] == "1792Mi"


def test_a_head_on_a_lost_node_is_soon_made_elsewhere(spec: Thing) -> None:
    """KubeRay makes none while the former one is still ending."""
    trials = spec["workerGroupSpecs"][0]["template"]["spec"]
    patience = {one["key"]: one["tolerationSeconds"] for one in head(spec)["tolerations"]}
    assert patience == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}
    assert head(spec)["terminationGracePeriodSeconds"] == 0
    assert trials.get("terminationGracePeriodSeconds") != 0, "it may save itself"
    assert not any(one["key"].startswith("node.kubernetes.io/") for one in trials.get("tolerations", []))


def test_urls_of_notifications_are_mounted_in_the_controllers_container_alone(plan: Plan, site: Site) -> None:
    job = plan.job.model_copy(update={"notify": (Notify(url="secret:SLACK", on=("failed",)), Notify(url="secret:SLACK"))})
    spec = raycluster.raycluster(dataclasses.replace(plan, job=job), site)["spec"]
    (volume,) = [volume for volume in head(spec)["volumes"] if volume["name"] == "notify"]
    assert volume["secret"] == {
        "secretName": "trialplane-notify",
        "items": [{"key": "SLACK", "path": "SLACK"}],
        "optional": True,
        "defaultMode": 0o440,
    }
    ray, controller, others = containers(spec)
    assert {"name": "notify", "mountPath": "/etc/trialplane/notify", "readOnly": True} in controller["volumeMounts"]
    workers = [group["template"]["spec"] for group in spec["workerGroupSpecs"]]
    assert "notify" not in str([ray, others, workers])


def test_a_job_without_secrets_mounts_none(spec: Thing) -> None:
    assert "notify" not in str(spec)
