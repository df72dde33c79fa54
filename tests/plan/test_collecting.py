"""The pods of a collection: one for each worker and one for the learner, with resources and nodes of their own.

Not checked here: the whole manifests (test_manifests.py), and what runs in the pods (tests/study).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialplane.plan import pods, raycluster, saving, sizes
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster, env

Make = tuple[Callable[..., Plan], Callable[..., Site]]
MIB = 2**20


def fields(**collect: Any) -> dict[str, Any]:
    return {
        "kind": "collect",
        "collect": {"units": 80, "iterations": 10, "workers": 8, "learner": "train:learn", **collect},
    }


def groups(plan: Plan, site: Site) -> list[dict[str, Any]]:
    """The groups of worker pods: the workers' and the learner's."""
    found: list[dict[str, Any]] = raycluster.raycluster(plan, site)["spec"]["workerGroupSpecs"]
    return found


@pytest.mark.parametrize(("autoscale", "workers", "learners"), [(True, (1, 0, 8), (1, 0, 1)), (False, (8, 8, 8), (1, 1, 1))])
def test_workers_and_the_learner_have_a_pod_each(
    make: Make, autoscale: bool, workers: tuple[int, ...], learners: tuple[int, ...]
) -> None:
    """It works with the pods that it has, so all but the first of each may come one by one."""
    a_plan, a_site = make
    found = groups(a_plan(**fields()), a_site(autoscale=autoscale))
    assert [group["groupName"] for group in found] == ["workers", "learners"]
    for group, numbers in zip(found, (workers, learners), strict=True):
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == numbers
    assert [group["resources"] for group in found] == [
        {"CPU": "1", "GPU": "0", "worker_slot": "1"},
        {"CPU": "1", "GPU": "0", "learner_slot": "1"},
    ]


def test_workers_play_on_cores_while_the_learner_has_a_gpu_and_nodes_of_its_own(make: Make) -> None:
    a_plan, a_site = make
    own = {"resources": {"gpus": 1, "cpus": 8, "memory": "64Gi"}, "image": "own:1", "node_selector": {"pool": "gpu"}}
    learner = {"entrypoint": "train:learn", **own, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    plan = a_plan(**fields(learner=learner), resources={"cpus": "500m"}, cluster={"node_selector": {"pool": "cpu"}})
    of_workers, of_learner = (group["template"]["spec"] for group in groups(plan, a_site()))
    limits = [spec["containers"][0]["resources"]["limits"] for spec in (of_workers, of_learner)]
    assert [limit["cpu"] for limit in limits] == ["500m", "8"]
    assert [limit.get("nvidia.com/gpu") for limit in limits] == [None, "1"]
    assert [spec["nodeSelector"] for spec in (of_workers, of_learner)] == [{"pool": "cpu"}, {"pool": "gpu"}]
    assert [spec.get("tolerations") for spec in (of_workers, of_learner)] == [None, [{"key": "gpu", "operator": "Exists"}]]
    assert [spec["containers"][0]["image"] for spec in (of_workers, of_learner)] == ["trialplane-trial:1", "own:1"]
    assert [group["resources"]["CPU"] for group in groups(plan, a_site())] == ["1", "8"], "Ray takes whole ones"


@pytest.mark.parametrize("in_flight", [64, 4096])
def test_each_pod_holds_what_is_in_flight_in_rays_store_and_beside_it(make: Make, in_flight: int) -> None:
    a_plan, a_site = make
    plan = a_plan(**fields(in_flight=f"{in_flight}Mi"))
    for role, group in zip(plan.job.roles(), groups(plan, a_site()), strict=True):
        store = int(group["rayStartParams"]["object-store-memory"])
        assert 0.7 * store >= in_flight * MIB + 64 * MIB  # of which results may fill, and weights
        spec = group["template"]["spec"]
        (shm,) = (one["emptyDir"] for one in spec["volumes"] if one["name"] == "shm")
        assert shm == {"medium": "Memory", "sizeLimit": sizes.mib(sizes.trial_shm(role))}
        assert sizes.trial_shm(role) >= store + in_flight * MIB + sizes.SHM_MARGIN
        whole = role.resources.memory_bytes + sizes.trial_shm(role) + sizes.RAY_MEMORY
        assert spec["containers"][0]["resources"]["limits"]["memory"] == sizes.mib(whole)


def test_resources_shm_makes_both_larger(make: Make) -> None:
    a_plan, a_site = make
    plan = a_plan(**fields(learner={"entrypoint": "train:learn", "resources": {"shm": "4Gi"}}), resources={"shm": "8Gi"})
    stores = [group["rayStartParams"]["object-store-memory"] for group in groups(plan, a_site())]
    assert stores == [str(8 * 2**30), str(4 * 2**30)]
    assert [sizes.trial_shm(role) for role in plan.job.roles()] == [
        16 * 2**30 + sizes.SHM_MARGIN,
        8 * 2**30 + sizes.SHM_MARGIN,
    ]


@pytest.mark.parametrize(
    ("in_flight", "free", "store"), [(64, 24576, 1024), (4096, 24576, 6144 + 128), (4096, 4096, 2048), (64, 100, 80)]
)
def test_a_laptops_store_is_half_of_what_is_left_at_most(make: Make, in_flight: int, free: int, store: int) -> None:
    plan = make[0](**fields(in_flight=f"{in_flight}Mi"))
    assert sizes.local_object_store(plan.job, free * MIB) == store * MIB


def test_a_search_has_the_store_that_it_had(make: Make) -> None:
    a_plan, a_site = make
    (group,) = groups(a_plan(), a_site())
    assert group["rayStartParams"]["object-store-memory"] == str(sizes.OBJECT_STORE)


def test_its_weights_lie_on_the_volume_of_the_chart(make: Make) -> None:
    """Of the workers' pods, too: the job's code may read them anywhere."""
    a_plan, a_site = make
    site = a_site(checkpoints={"claim": "c", "grace": 300})
    for group in groups(a_plan(**fields()), site):
        spec = group["template"]["spec"]
        (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "checkpoints")
        assert (mount["mountPath"], mount["subPath"]) == (f"{cluster.CHECKPOINTS}/criteria-1", "criteria-1")
        assert spec["terminationGracePeriodSeconds"] == 30 + saving.MARGIN  # saved between iterations, not at its end
    variables = {
        one["name"]: one.get("value") for one in pods.head(a_plan(**fields()), site)["spec"]["initContainers"][0]["env"]
    }
    assert variables[env.CHECKPOINTS] == cluster.CHECKPOINTS
    assert list(saving.warnings(a_plan(**fields()).job, site.checkpoints)) == []


def test_without_a_place_for_weights_the_user_is_told(make: Make) -> None:
    a_plan, a_site = make
    (warning,) = saving.warnings(a_plan(**fields()).job, a_site().checkpoints)
    assert "a collection whose pods were lost has no weights to continue with" in warning
    assert "checkpoints.enabled=true" in warning
