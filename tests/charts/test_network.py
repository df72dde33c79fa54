"""Who may talk to whom, worked out from the rendered network policies as Kubernetes does: a connection needs the leave of
both ends.

Not checked here: that the cluster's network plugin enforces them (tests/e2e/test_isolation.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.conftest import CONTROL, TEAM

from trialplane.plan import network
from trialplane.plan.site import Site
from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
OUTSIDE = "outside"  # an address that is not a pod's
ROLES = ("mlflow", "postgresql", "gateway", "operator", "test")  # of the platform's own pods
RUN_ROLES = ("trial", "controller")  # of run a; those of run b have a `-b` behind them


class Net:
    """The policies of one set of values, and in each team's namespace those of two runs, the first with an autoscaler.

    Ends are roles, in another namespace than the first team's or the platform's `trial@speech`; `OUTSIDE`, or
    `ns:<namespace>` for pods of none.
    """

    def __init__(self, objects: list[Thing], autoscales: bool = True) -> None:
        self._policies = [(one["metadata"].get("namespace", CONTROL), one["spec"]) for one in objects if _is_policy(one)]
        sites = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", cluster.SITE)]
        for site, run in itertools.product(sites, ("a", "b")):
            namespace = site["metadata"]["namespace"]
            known = Site.read(site["data"][cluster.SITE_KEY], namespace)
            labels = {cluster.RUN: run, cluster.JOB: "demo", cluster.MANAGED_BY: cluster.MANAGER}
            spec = {"enableInTreeAutoscaling": True} if autoscales and run == "a" else {}
            made = network.policies({"metadata": {"name": run, "labels": labels}, "spec": spec}, known)
            self._policies += [(namespace, one["spec"]) for one in made]

    def reaches(self, source: str, target: str, port: int) -> bool:
        return self._leave(source, "egress", "to", target, port) and self._leave(target, "ingress", "from", source, port)

    def _leave(self, end: str, direction: str, key: str, other: str, port: int) -> bool:
        namespace, labels = _end(end)
        mine = [spec for where, spec in self._policies if where == namespace and _chosen(spec["podSelector"], labels)]
        rules = [(namespace, rule) for spec in mine for rule in spec.get(direction, [])]
        return not mine or any(_matches(where, rule.get(key), other) and _open(rule, port) for where, rule in rules)


def _is_policy(thing: Thing) -> bool:
    return bool(thing["kind"] == "NetworkPolicy")


def _end(name: str) -> tuple[str, dict[str, str]]:
    """The namespace and the labels of a pod."""
    end, _, namespace = name.partition("@")
    role, _, other = end.partition("-")
    if name == OUTSIDE:
        return "", {}
    if name.startswith("ns:"):
        return name.removeprefix("ns:"), {}
    labels = {cluster.ROLE: role, **({cluster.RUN: other or "a"} if role in RUN_ROLES else {})}
    return namespace or (CONTROL if role in ROLES else TEAM), labels


def _matches(where: str, peers: list[Thing] | None, other: str) -> bool:
    namespace, labels = _end(other)
    return peers is None or any(
        other == OUTSIDE
        if "ipBlock" in one
        else _chosen(
            one.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": where}}), _named(namespace)
        )
        and _chosen(one.get("podSelector", {}), labels)
        for one in peers
    )


def _named(namespace: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": namespace}


def _chosen(selector: Thing, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] in ("In", "Exists") for one in expressions)
    wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    wanted |= {one["key"]: one["values"] for one in expressions if one["operator"] == "In"}
    there = {one["key"] for one in expressions if one["operator"] == "Exists"}
    return there <= labels.keys() and all(labels.get(key) in values for key, values in wanted.items())


def _open(rule: Thing, port: int) -> bool:
    return "ports" not in rule or any(int(one["port"]) == port for one in rule["ports"])


def test_every_role_has_a_policy_for_both_directions_and_what_has_none_is_denied(render: Render) -> None:
    policies = [one["spec"] for one in render({}) if _is_policy(one)]
    chosen = [one["podSelector"].get("matchLabels", {}).get(cluster.ROLE, "") for one in policies]
    assert sorted(chosen) == sorted(["", *ROLES, "", "volumes"])
    assert all(one["policyTypes"] == ["Ingress", "Egress"] for one in policies)
    for end in ("unknown", "trial-c", "controller-c"):  # of a run without policies of its own
        assert not [1 for port in (53, 443, 5000, 8080) if Net(render({})).reaches(end, OUTSIDE, port)]
        assert not Net(render({})).reaches("trial", end, 6379)


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        # Ray's own traffic, on any port.
        ("trial", "controller", 6379, True),
        ("controller", "trial", 31234, True),
        ("trial", "trial", 31234, True),
        # and never that of another run.
        ("trial", "trial-b", 31234, False),
        ("trial", "controller-b", 6379, False),
        ("controller", "controller-b", 8090, False),
        ("controller-b", "trial", 31234, False),
        # A trial is a stranger.
        ("trial", "mlflow", 5000, False),
        ("trial", "postgresql", 5432, False),
        ("trial", "gateway", 8080, True),  # MLflow's door
        ("trial", "gateway", 22, False),
        ("trial", OUTSIDE, 443, False),
        ("trial", OUTSIDE, 6443, False),
        ("trial", "ns:kube-system", 53, True),
        ("trial", "ns:kube-system", 443, False),
        ("ns:default", "trial", 8080, False),
        # The controller.
        ("controller", "postgresql", 5432, False),
        ("controller", "gateway", 8080, True),
        ("controller", "gateway", 22, False),
        ("controller", "mlflow", 5000, False),
        ("controller", OUTSIDE, 6443, True),  # Ray's autoscaler
        ("controller-b", OUTSIDE, 6443, False),  # which it has not
        ("gateway", "controller", 8090, True),
        ("gateway", "controller", 8265, False),
        ("ns:kuberay-system", "controller", 8265, False),  # which KubeRay needs for RayJobs only
        ("ns:kuberay-system", "controller", 6379, False),
        ("ns:default", "controller", 8265, False),
        # What the chart installs.
        ("mlflow", "postgresql", 5432, True),
        ("mlflow", OUTSIDE, 6443, True),  # the API server, which says what a caller may do
        ("mlflow", OUTSIDE, 80, False),
        ("gateway", "postgresql", 5432, True),
        ("gateway", "mlflow", 5000, True),
        ("postgresql", OUTSIDE, 443, False),
        ("ns:default", "postgresql", 5432, False),
        ("ns:default", "mlflow", 5000, False),
        (OUTSIDE, "gateway", 8080, True),  # the API server's proxy
        (OUTSIDE, "gateway", 22, False),
        ("gateway", OUTSIDE, 6443, True),  # which says who asks
        ("gateway", OUTSIDE, 80, False),
        # The operator asks the API server and the ledger, and nobody asks it.
        ("operator", OUTSIDE, 6443, True),
        ("operator", OUTSIDE, 80, False),
        ("operator", "postgresql", 5432, True),
        ("operator", "controller", 8265, False),
        ("trial", "operator", 8081, False),
        (OUTSIDE, "operator", 8081, False),
        # Who works on volumes talks to nobody.
        ("volumes", OUTSIDE, 443, False),
        ("volumes", "ns:kube-system", 53, False),
        ("trial", "volumes", 8080, False),
        ("gateway", "mlflow", 5000, True),  # logs of ended runs
        ("test", "gateway", 8080, True),
        ("test", "mlflow", 5000, False),
        ("operator", "mlflow", 5000, False),
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
        ("controller", "gateway", 8080, True),
        (OUTSIDE, "mlflow", 5000, False),
        ("trial", "gateway", 8080, True),
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


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        ("trial@vision", "trial@vision", 31234, True),
        ("trial@vision", "trial@speech", 31234, False),  # of a run with the same name
        ("trial@vision", "controller@speech", 6379, False),
        ("controller@speech", "controller@vision", 8090, False),
        ("trial@vision", "gateway", 8080, True),
        ("trial@speech", "gateway", 8080, True),
        ("controller@speech", "gateway", 8080, True),
        ("gateway", "controller@speech", 8090, True),
        ("trial@vision", "mlflow", 5000, False),
        ("controller@vision", "postgresql", 5432, False),
        ("unknown@vision", OUTSIDE, 443, False),
        # Only pods of the teams are let in, whatever they say they are.
        ("trial@default", "gateway", 8080, False),
        ("controller@control", "gateway", 8080, False),
        # What stands in another namespace as if it was the platform's is not.
        ("gateway@vision", "controller@speech", 8090, False),
        ("gateway@vision", "mlflow", 5000, False),
        ("mlflow@vision", "postgresql", 5432, False),
        ("volumes@speech", OUTSIDE, 443, False),
        ("trial@speech", OUTSIDE, 9000, True),  # its object store
        ("trial@vision", OUTSIDE, 9000, False),
    ],
)
def test_two_teams(render: Render, sets: dict[str, dict[str, Any]], source: str, target: str, port: int, may: bool) -> None:
    values = {**sets["two"], "networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1/32"]}}}
    assert Net(render(values)).reaches(source, target, port) is may


def test_heads_without_an_autoscaler_are_kept_from_the_api_server(render: Render) -> None:
    values = {"networkPolicy": {"apiServer": {"fromHeads": False}}, "studies": {"autoscale": False}}
    assert not Net(render(values)).reaches("controller", OUTSIDE, 6443)


@pytest.mark.parametrize(
    ("source", "port", "may"),
    [
        ("controller", 5432, False),
        ("gateway", 5432, True),
        ("controller", 443, True),  # the API server, for the autoscaler
        ("gateway", 443, True),
        ("trial", 443, False),
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
    net, ports = Net(render({"mlflow": {"enabled": False, "trackingUri": url}})), (80, 443, 5000)
    assert [net.reaches("gateway", OUTSIDE, one) for one in ports] == [one in (port, 443) for one in ports], "443: who asks"


def test_without_network_policies_there_are_none(render: Render) -> None:
    assert not Net(render({"networkPolicy": {"enabled": False}}))._policies, "neither of the chart nor of runs"
