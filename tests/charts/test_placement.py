"""What the admission policy lets pods of runs have of priorities, taints and nodes: what their team's values allow.

Not checked here: that the operator decides alike (tests/kube/test_preflight.py), and an API server
(tests/e2e/test_isolation.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.judge import Judge
from tests.charts.test_admission import pod

from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]

# As the site of the golden file `gpus`, and what its job may ask for.
PLACED = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    "priorityClass": "standard",
    "allowed": {"priorityClasses": ["research"]},
}


@pytest.fixture(scope="module", name="placed_judge")
def _placed_judge(render: Render, named: Callable[..., Thing]) -> Judge:
    """Where `studies` has values for one team, `closed` has none, and `open` allows all tolerations."""
    everything = {"allowed": {"tolerations": [{"operator": "Exists"}]}}
    teams = [
        {"namespace": "studies", "studies": PLACED},
        {"namespace": "closed"},
        {"namespace": "open", "studies": everything},
    ]
    return Judge(named(render({"teams": teams}), "ValidatingAdmissionPolicy", "control-platform-pods"))


def placed(namespace: str, role: str = cluster.TRIAL, **spec: Any) -> Thing:
    made = pod("gpus", role)
    made["metadata"]["namespace"] = namespace
    made["spec"].update(copy.deepcopy(spec))
    return made


@pytest.mark.parametrize("role", [cluster.CONTROLLER, cluster.TRIAL])
def test_pods_are_placed_as_their_teams_values_allow(placed_judge: Judge, role: str) -> None:
    """The toleration of the GPUs that it has is any trial's. Others' values count for nobody."""
    made = placed("studies", role)
    kubernetes = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "memory-pressure")]
    made["spec"].setdefault("tolerations", []).extend(kubernetes)  # which the API server adds
    assert placed_judge.complaints(made) == []
    refused = placed_judge.complaints(placed("closed", role)) or []
    assert any("PriorityClasses" in one for one in refused)
    assert any("taints" in one for one in refused) is (role == cluster.TRIAL)


@pytest.mark.parametrize(
    ("namespace", "spec", "told"),
    [
        ("studies", {"priorityClassName": "system-node-critical"}, "PriorityClasses"),
        ("studies", {"nodeSelector": {"pool": "others"}}, "nodeSelector"),
        ("studies", {"nodeSelector": {}}, "nodeSelector"),
        ("studies", {"tolerations": [{"operator": "Exists"}]}, "taints"),
        ("studies", {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}, "taints"),
        ("studies", {"tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]}, "taints"),
        ("studies", {"tolerations": [{"key": "dedicated", "value": "web", "effect": "NoSchedule"}]}, "taints"),
        ("studies", {"tolerations": [{"key": "dedicated", "value": "ml"}]}, "taints"),
        ("studies", {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, "taints"),
        ("open", {"tolerations": [{"operator": "Exists"}], "priorityClassName": ""}, ""),
        ("control", {"tolerations": [], "priorityClassName": "research"}, "PriorityClasses"),
    ],
)
def test_a_pod_that_takes_what_its_team_may_not_is_refused(
    placed_judge: Judge, namespace: str, spec: Thing, told: str
) -> None:
    found = placed_judge.complaints(placed(namespace, **spec)) or []
    assert len(found) == bool(told)
    assert all(told in one for one in found)


def test_a_resource_that_a_pod_has_none_of_opens_no_node(placed_judge: Judge) -> None:
    made = placed("studies", tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}])
    assert placed_judge.complaints(made) == []
    for container in [*made["spec"]["containers"], *made["spec"].get("initContainers", [])]:
        container.get("resources", {}).get("limits", {})["nvidia.com/gpu"] = "0"
    assert len(placed_judge.complaints(made) or []) == 1
