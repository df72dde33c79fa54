"""Who may talk to whom, worked out from the rendered network policies as Kubernetes does: a connection needs the leave of
both ends.

Not checked here: that the cluster's network plugin enforces them (tests/e2e/test_isolation.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
OUTSIDE = "outside"  # an address that is no pod's
ROLES = ("trial", "controller", "mlflow", "postgresql", "gateway", "operator", "test")


class Net:
    """The policies of one set of values; ends are roles, `OUTSIDE`, or `ns:<namespace>` for pods of another one."""

    def __init__(self, objects: list[Thing]) -> None:
        self._policies: dict[str, Thing] = {}
        for one in objects:
            if one["kind"] == "NetworkPolicy":
                (role,) = one["spec"]["podSelector"]["matchLabels"].values()
                assert role not in self._policies, "two policies add up; this test expects one"
                self._policies[role] = one["spec"]

    def reaches(self, source: str, target: str, port: int) -> bool:
        return self._leave(source, "egress", "to", target, port) and self._leave(target, "ingress", "from", source, port)

    def _leave(self, end: str, direction: str, key: str, other: str, port: int) -> bool:
        if end not in self._policies:
            return True
        rules = self._policies[end][direction]
        return any(self._matches(rule.get(key), other) and _open(rule.get("ports"), port) for rule in rules)

    def _matches(self, peers: list[Thing] | None, other: str) -> bool:
        return peers is None or any(self._is(peer, other) for peer in peers)

    def _is(self, peer: Thing, other: str) -> bool:
        if "ipBlock" in peer:
            return other == OUTSIDE
        if "namespaceSelector" in peer:
            return other == f"ns:{peer['namespaceSelector']['matchLabels']['kubernetes.io/metadata.name']}"
        return bool(peer["podSelector"]["matchLabels"][cluster.ROLE] == other)


def _open(ports: list[Thing] | None, port: int) -> bool:
    return ports is None or any(int(one["port"]) == port for one in ports)


def test_every_role_has_a_policy_for_both_directions(render: Render) -> None:
    policies = [one["spec"] for one in render({}) if one["kind"] == "NetworkPolicy"]
    assert sorted(one["podSelector"]["matchLabels"][cluster.ROLE] for one in policies) == sorted(ROLES)
    assert all(one["policyTypes"] == ["Ingress", "Egress"] for one in policies)


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        # Ray's own traffic, on any port.
        ("trial", "controller", 6379, True),
        ("controller", "trial", 31234, True),
        ("trial", "trial", 31234, True),
        # A trial is a stranger.
        ("trial", "mlflow", 5000, True),
        ("trial", "postgresql", 5432, False),
        ("trial", "gateway", 8080, False),
        ("trial", OUTSIDE, 443, False),
        ("trial", OUTSIDE, 6443, False),
        ("trial", "ns:kube-system", 53, True),
        ("trial", "ns:kube-system", 443, False),
        ("ns:default", "trial", 8080, False),
        # The controller.
        ("controller", "postgresql", 5432, True),
        ("controller", "mlflow", 5000, True),
        ("controller", OUTSIDE, 6443, True),  # Ray's autoscaler
        ("gateway", "controller", 8090, True),
        ("gateway", "controller", 8265, False),
        ("ns:kuberay-system", "controller", 8265, False),  # which KubeRay needs for RayJobs only
        ("ns:kuberay-system", "controller", 6379, False),
        ("ns:default", "controller", 8265, False),
        # What the chart installs.
        ("mlflow", "postgresql", 5432, True),
        ("mlflow", OUTSIDE, 443, False),
        ("gateway", "postgresql", 5432, True),
        ("postgresql", OUTSIDE, 443, False),
        ("ns:default", "postgresql", 5432, False),
        ("ns:default", "mlflow", 5000, False),
        (OUTSIDE, "gateway", 8080, True),  # the API server's proxy
        (OUTSIDE, "gateway", 22, False),
        # The operator asks the API server and the ledger, and nobody asks it.
        ("operator", OUTSIDE, 6443, True),
        ("operator", OUTSIDE, 80, False),
        ("operator", "postgresql", 5432, True),
        ("operator", "controller", 8265, False),
        ("trial", "operator", 8081, False),
        (OUTSIDE, "operator", 8081, False),
        ("test", "gateway", 8080, True),
        ("test", "mlflow", 5000, True),
        ("test", "postgresql", 5432, True),
    ],
)
def test_by_default(render: Render, source: str, target: str, port: int, may: bool) -> None:
    assert Net(render({})).reaches(source, target, port) is may


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        ("controller", OUTSIDE, 6443, True),  # the autoscaler
        ("ns:monitoring", "controller", 8090, True),
        ("ns:monitoring", "controller", 6379, False),
        (OUTSIDE, "gateway", 8080, True),
        ("ns:default", "gateway", 8080, False),
        ("test", "gateway", 8080, True),
        (OUTSIDE, "mlflow", 5000, True),
        ("mlflow", OUTSIDE, 443, True),  # S3
        ("trial", OUTSIDE, 443, True),  # asked for
        ("trial", "postgresql", 5432, False),
    ],
)
def test_by_values_of_a_cloud(
    render: Render, sets: dict[str, dict[str, Any]], source: str, target: str, port: int, may: bool
) -> None:
    assert Net(render(sets["cloud"])).reaches(source, target, port) is may


@pytest.mark.parametrize(
    ("values", "open_"),
    [({}, []), ({"enabled": True}, []), ({"url": "s3://b"}, [443]), ({"url": "s3://b", "ports": [443, 9000]}, [443, 9000])],
)
def test_trials_reach_the_object_store_of_checkpoints_when_there_is_one(
    render: Render, values: dict[str, Any], open_: list[int]
) -> None:
    net = Net(render({"checkpoints": values}))
    assert [port for port in (443, 5432, 9000) if net.reaches("trial", OUTSIDE, port)] == open_
    assert not net.reaches("controller", OUTSIDE, 9000)
    assert not net.reaches("trial", "postgresql", 5432)


def test_heads_without_an_autoscaler_are_kept_from_the_api_server(render: Render) -> None:
    values = {"networkPolicy": {"apiServer": {"fromHeads": False}}, "studies": {"autoscale": False}}
    assert not Net(render(values)).reaches("controller", OUTSIDE, 6443)


@pytest.mark.parametrize(
    ("source", "port", "may"),
    [
        ("controller", 5432, True),
        ("gateway", 5432, True),
        ("controller", 443, True),
        ("trial", 443, True),
        ("trial", 5432, False),
    ],
)
def test_services_elsewhere_are_reached_at_their_port(
    render: Render, sets: dict[str, dict[str, Any]], source: str, port: int, may: bool
) -> None:
    """A database of somebody else at 5432, and an MLflow at https."""
    assert Net(render(sets["outside"])).reaches(source, OUTSIDE, port) is may


@pytest.mark.parametrize(
    ("url", "port"), [("http://mlflow", 80), ("https://mlflow/x", 443), ("http://mlflow.ml:5000/a/b", 5000)]
)
def test_the_port_of_mlflow_is_in_its_url(render: Render, url: str, port: int) -> None:
    net = Net(render({"mlflow": {"enabled": False, "trackingUri": url}}))
    assert [net.reaches("trial", OUTSIDE, one) for one in (80, 443, 5000)] == [one == port for one in (80, 443, 5000)]


def test_without_network_policies_there_are_none(render: Render) -> None:
    assert not Net(render({"networkPolicy": {"enabled": False}}))._policies
