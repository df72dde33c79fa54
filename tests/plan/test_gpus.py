"""A share of a GPU in the pods of a run: which resource it is, who limits its memory, and /dev/shm under MPS.

Not checked here: that such a GPU is shared; that needs one.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.conftest import a_plan, a_site

from trialplane.kube import preflight
from trialplane.plan import raycluster
from trialplane.plan.gpus import GpuRequest
from trialplane.wire.records import SlotConfig
from trialplane.worker import environment

SHARES = [
    {"gpus": 0.5, "resource": "nvidia.com/gpu.shared", "sharing": "timeSlicing"},
    {"gpus": 0.25, "resource": "example.org/mps", "sharing": "mps"},
    {"gpus": 0.125, "resource": "nvidia.com/mig-1g.10gb", "sharing": "mig"},
]
HALF, QUARTER, EIGHTH = ({"resources": {"gpus": share["gpus"]}} for share in SHARES)


def group(**fields: Any) -> dict[str, Any]:
    """The worker group of a job where the nodes offer shares."""
    (found,) = raycluster.raycluster(a_plan(**fields), a_site(gpu_shares=SHARES))["spec"]["workerGroupSpecs"]
    return found


def container(**fields: Any) -> dict[str, Any]:
    return group(**fields)["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("fields", "resource"),
    [
        (HALF, "nvidia.com/gpu.shared"),
        ({"resources": {"gpus": 0.3}}, "nvidia.com/gpu.shared"),  # the smallest that is large enough
        (QUARTER, "example.org/mps"),
        ({"resources": {"gpus": 0.1}}, "nvidia.com/mig-1g.10gb"),
        ({"resources": {"gpus": 0.1}, "cluster": {"gpu_resource": "example.org/mps"}}, "example.org/mps"),
        ({"resources": {"gpus": 1}}, "nvidia.com/gpu"),
    ],
)
def test_a_pod_requests_one_of_the_resource_of_its_share(fields: dict[str, Any], resource: str) -> None:
    requested = container(**fields)["resources"]
    for kind in ("limits", "requests"):
        assert {name: number for name, number in requested[kind].items() if "/" in name} == {resource: "1"}
    assert group(**fields)["resources"]["GPU"] == "1", "for Ray it is a GPU of its own"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (HALF, "per_process_memory_fraction:0.475"),
        ({"resources": {"gpus": 0.3}}, "per_process_memory_fraction:0.475"),  # of the share that the pod gets
        (QUARTER, None),
        (EIGHTH, None),
        ({"resources": {"gpus": 1}}, None),
        ({}, None),
    ],
)
def test_torch_limits_its_memory_in_a_pod_where_the_device_does_not(
    fields: dict[str, Any], options: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TRIALPLANE_GPU_MEMORY"):
        monkeypatch.delenv(name, raising=False)
    for variable in container(**fields)["env"]:
        if variable["name"].startswith("TRIALPLANE_GPU"):
            monkeypatch.setenv(variable["name"], variable["value"])
    (role,) = a_plan(**fields).job.roles()
    config = SlotConfig("a", "", "", "", "", gpus=role.resources.gpu_count, gpu_share=role.resources.gpu_share)
    assert environment.template_variables(config).get("PYTORCH_ALLOC_CONF") == options


def test_under_mps_no_volume_hides_the_daemons_shared_memory() -> None:
    mps = group(**QUARTER)
    mounts = {mount["mountPath"]: mount["name"] for mount in container(**QUARTER)["volumeMounts"]}
    assert "/dev/shm" not in mounts
    folder = mps["rayStartParams"]["plasma-directory"]
    volumes = {volume["name"]: volume for volume in mps["template"]["spec"]["volumes"]}
    assert volumes[mounts[folder]]["emptyDir"]["medium"] == "Memory"
    other = group(**HALF)
    assert "plasma-directory" not in other["rayStartParams"]
    assert "/dev/shm" in {mount["mountPath"] for mount in container(**HALF)["volumeMounts"]}


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"resources": {"gpus": 0.75}}, "resources.gpus", "a share of 0.75 of a GPU is not offered here"),
        ({**HALF, "cluster": {"gpu_resource": "example.org/other"}}, "resources.gpus", "a share of 0.5 of a GPU is not"),
        ({"resources": {"gpus": 0.25, "shm": "1Gi"}}, "resources.shm", "whose daemon provides /dev/shm"),
    ],
)
def test_what_the_nodes_do_not_offer_is_refused(fields: dict[str, Any], field: str, said: str) -> None:
    (issue,) = preflight.gpu_issues(a_plan(**fields).job, a_site(gpu_shares=SHARES))
    assert (issue.field, said in issue.message) == (field, True)


@pytest.mark.parametrize("fields", [HALF, QUARTER, EIGHTH, {}, {"resources": {"gpus": 2, "shm": "1Gi"}}])
def test_what_the_nodes_offer_is_not_refused(fields: dict[str, Any]) -> None:
    assert preflight.gpu_issues(a_plan(**fields).job, a_site(gpu_shares=SHARES)) == []


def test_without_shares_in_the_chart_none_is_offered() -> None:
    (role,) = a_plan(**HALF).job.roles()
    assert GpuRequest.of(role, a_site()) is None
    assert "studies.gpuShares lists none" in preflight.gpu_issues(a_plan(**HALF).job, a_site())[0].message


def test_the_taint_of_a_share_may_be_tolerated() -> None:
    toleration = {"key": "nvidia.com/gpu.shared", "operator": "Exists", "effect": "NoSchedule"}
    issues = preflight.placement_issues(a_plan(**HALF, cluster={"tolerations": [toleration]}).job, a_site(gpu_shares=SHARES))
    assert [issue.field for issue in issues] == []


def test_a_node_without_a_share_is_found_before_the_run_starts() -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": "8"}}}
    plan, site = a_plan(**HALF), a_site(gpu_shares=SHARES)
    snapshot = preflight.ClusterSnapshot(nodes=[node])
    issues, warnings = preflight.check(plan.job, raycluster.raycluster(plan, site), snapshot)
    assert not issues
    assert any("requests 1 nvidia.com/gpu.shared, and no node has any now" in warning for warning in warnings)
