"""The pods of a collection: one for each worker and one for the consumer, all alike, with room for what is in flight.

Not checked here: the whole manifests (test_manifests.py), and what runs in the pods (tests/study).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialplane.plan import pods, render, saving, sizes
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster, env

Make = tuple[Callable[..., Plan], Callable[..., Site]]
MIB = 2**20


def fields(**collect: Any) -> dict[str, Any]:
    return {
        "kind": "collect",
        "collect": {"units": 80, "iterations": 10, "workers": 8, "consumer": "train:learn", **collect},
    }


def workers(plan: Plan, site: Site) -> dict[str, Any]:
    """The one group of worker pods."""
    (group,) = render.manifests(plan, site, 0.0)[0]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    found: dict[str, Any] = group
    return found


@pytest.mark.parametrize(("autoscale", "least"), [(True, 0), (False, 9)])
def test_workers_and_the_consumer_have_a_pod_each(make: Make, autoscale: bool, least: int) -> None:
    """It works with the pods that it has, so they may come one by one."""
    a_plan, a_site = make
    group = workers(a_plan(**fields()), a_site(autoscale=autoscale))
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (least, least, 9)
    assert group["resources"]["trial_slot"] == "1"


@pytest.mark.parametrize("in_flight", [64, 4096])
def test_each_pod_holds_what_is_in_flight_in_rays_store_and_beside_it(make: Make, in_flight: int) -> None:
    a_plan, a_site = make
    plan = a_plan(**fields(in_flight=f"{in_flight}Mi"))
    group = workers(plan, a_site())
    store = int(group["rayStartParams"]["object-store-memory"])
    assert 0.7 * store >= in_flight * MIB + 64 * MIB  # of which results may fill, and weights
    spec = group["template"]["spec"]
    (shm,) = (one["emptyDir"] for one in spec["volumes"] if one["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": sizes.mib(sizes.trial_shm(plan.job))}
    assert sizes.trial_shm(plan.job) >= store + in_flight * MIB + sizes.SHM_MARGIN
    whole = plan.job.resources.memory_bytes + sizes.trial_shm(plan.job) + sizes.RAY_MEMORY
    assert spec["containers"][0]["resources"]["limits"]["memory"] == sizes.mib(whole)


def test_resources_shm_makes_both_larger(make: Make) -> None:
    a_plan, a_site = make
    plan = a_plan(**fields(), resources={"shm": "8Gi"})
    assert workers(plan, a_site())["rayStartParams"]["object-store-memory"] == str(8 * 2**30)
    assert sizes.trial_shm(plan.job) == 16 * 2**30 + sizes.SHM_MARGIN


@pytest.mark.parametrize(
    ("in_flight", "free", "store"), [(64, 24576, 1024), (4096, 24576, 6144 + 128), (4096, 4096, 2048), (64, 100, 80)]
)
def test_a_laptops_store_is_half_of_what_is_left_at_most(make: Make, in_flight: int, free: int, store: int) -> None:
    plan = make[0](**fields(in_flight=f"{in_flight}Mi"))
    assert sizes.local_object_store(plan.job, free * MIB) == store * MIB


def test_a_search_has_the_store_that_it_had(make: Make) -> None:
    a_plan, a_site = make
    assert workers(a_plan(), a_site())["rayStartParams"]["object-store-memory"] == str(sizes.OBJECT_STORE)


def test_its_weights_lie_on_the_volume_of_the_chart(make: Make) -> None:
    """Of every pod, for any may become the consumer's."""
    a_plan, a_site = make
    site = a_site(checkpoints={"claim": "c", "grace": 300})
    spec = workers(a_plan(**fields()), site)["template"]["spec"]
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "checkpoints")
    assert mount == {"name": "checkpoints", "mountPath": cluster.CHECKPOINTS}
    assert spec["terminationGracePeriodSeconds"] == 30 + saving.MARGIN  # it is saved between iterations, not at its end
    variables = {
        one["name"]: one.get("value") for one in pods.controller(a_plan(**fields()), site)["spec"]["containers"][0]["env"]
    }
    assert variables[env.CHECKPOINTS] == cluster.CHECKPOINTS
    assert list(saving.warnings(a_plan(**fields()).job, site)) == []


def test_without_a_place_for_weights_the_user_is_told(make: Make) -> None:
    a_plan, a_site = make
    (warning,) = saving.warnings(a_plan(**fields()).job, a_site())
    assert "a collection whose pods were lost has no weights to go on with" in warning
    assert "checkpoints.enabled=true" in warning
