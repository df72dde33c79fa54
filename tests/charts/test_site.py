"""The ConfigMap by which the laptop finds the chart: it is read as `plan.site.Site`, and says where things really are.

Not checked here: what `plan` makes of a site (tests/plan).
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trialplane
from trialplane.plan.site import Site
from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]


def _site(objects: list[Thing]) -> Site:
    (one,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", cluster.SITE))
    return Site.read(one["data"][cluster.SITE_KEY], "studies")


def test_every_set_of_values_is_a_site(objects: list[Thing]) -> None:
    site = _site(objects)
    assert (site.version, site.release, site.namespace) == (trialplane.__version__, "platform", "studies")
    assert {site.controller_account, site.trial_account} <= _names(objects, "ServiceAccount")


def test_the_chart_has_the_version_of_the_package(chart: Path) -> None:
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert facts["version"] == facts["appVersion"] == trialplane.__version__


def test_services_secrets_and_claims_are_those_of_the_chart(render: Render) -> None:
    objects = render({"data": {"enabled": True}, "mlflow": {"auth": {"enabled": True}}})
    site = _site(objects)
    ports = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in objects if one["kind"] == "Service"}
    assert site.gateway.port == ports[site.gateway.service] == cluster.GATEWAY_PORT
    assert site.mlflow.port == ports[site.mlflow.service]
    assert site.mlflow.url == f"http://{site.mlflow.service}.studies.svc:{site.mlflow.port}"
    assert {site.runs.claim, site.data.claim} <= _names(objects, "PersistentVolumeClaim")
    keys = {one["metadata"]["name"]: {*one.get("data", {}), *one.get("stringData", {})} for one in _secrets(objects)}
    assert site.ledger.key in keys[site.ledger.name]
    assert "token" in keys[site.gateway.secret]
    assert {"username", "password"} <= keys[site.mlflow.secret]


@pytest.mark.parametrize(
    ("values", "claim", "made"),
    [
        ({}, "", False),
        ({"enabled": True}, "platform-checkpoints", True),
        ({"enabled": True, "existingClaim": "mine"}, "mine", False),
    ],
)
def test_the_claim_of_checkpoints(render: Render, values: dict[str, Any], claim: str, made: bool) -> None:
    objects = render({"checkpoints": values})
    site = _site(objects)
    assert (site.checkpoints.claim, site.checkpoints.url, site.checkpoints.grace) == (claim, "", 120)
    assert (claim in _names(objects, "PersistentVolumeClaim")) is made


def test_what_is_not_the_charts_is_taken_from_the_values(render: Render, sets: dict[str, dict[str, Any]]) -> None:
    site = _site(render(sets["outside"]))
    assert (site.ledger.name, site.ledger.key) == ("studies-db", "dsn")
    assert (site.mlflow.url, site.mlflow.service, site.mlflow.secret) == ("https://mlflow.example.org", "", "mlflow-login")
    assert site.gateway.secret == "gateway-token"


def test_defaults_of_runs_are_the_values(render: Render, sets: dict[str, dict[str, Any]]) -> None:
    site = _site(render(sets["cloud"]))
    assert (site.controller.cpus, site.controller.memory) == (2, "4Gi")
    assert site.images.controller == "team/controller:1"
    assert site.images.trial == "team/trial@sha256:" + "0" * 64
    assert site.images.pull_secrets == ("registry",)
    assert (site.queue, site.priority_class) == ("team-a", "research")
    assert site.node_selector == {"pool": "gpu"}
    assert site.tolerations[0]["key"] == "nvidia.com/gpu"
    assert site.env["HTTPS_PROXY"] == "http://proxy:3128"
    assert (site.data.claim, site.runs.claim) == ("datasets", "platform-runs")
    saved = site.checkpoints
    assert (saved.claim, saved.url, saved.secret, saved.grace) == ("", "s3://bucket/checkpoints", "checkpoints-s3", 300)


@pytest.mark.parametrize(
    ("env", "added"),
    [
        ({"HTTPS_PROXY": "http://p"}, True),
        ({"https_proxy": "http://p"}, True),
        ({"HTTP_PROXY": "http://p", "no_proxy": "mine"}, False),
        ({"PIP_INDEX": "x"}, False),
    ],
)
def test_a_proxy_does_not_get_what_stays_in_the_cluster(
    render: Render, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], added: bool
) -> None:
    site = _site(render({"studies": {"env": env}}))
    assert site.env.items() >= env.items()
    assert ("NO_PROXY" in site.env) is added
    if added:
        monkeypatch.setenv("no_proxy", site.env["NO_PROXY"])
        for host in (site.mlflow.url.removeprefix("http://"), "r-head-svc.studies.svc.cluster.local:8265", "127.0.0.1:1"):
            assert urllib.request.proxy_bypass(host), host
        assert not urllib.request.proxy_bypass("example.org:443")


def test_a_field_that_the_chart_leaves_out_is_noticed(render: Render) -> None:
    (one,) = (one for one in render({}) if one["metadata"]["name"] == cluster.SITE and one["kind"] == "ConfigMap")
    said = yaml.safe_load(one["data"][cluster.SITE_KEY])
    assert set(said) == set(Site.model_fields) - {"namespace"}


@pytest.mark.parametrize(
    ("enabled", "wanted", "got"),
    [(True, "low", "studies-low"), (False, "low", ""), (True, "research", "research"), (False, "", "")],
)
def test_a_short_priority_class_is_the_charts_own(render: Render, enabled: bool, wanted: str, got: str) -> None:
    objects = render({"priorityClasses": {"enabled": enabled}, "studies": {"priorityClass": wanted}})
    assert _site(objects).priority_class == got
    assert got in ("", "research") or got in _names(objects, "PriorityClass")


def test_pods_have_the_roles_and_ports_that_the_laptop_knows(
    objects: list[Thing], pods: Callable[[list[Thing]], Iterator[tuple[str, Thing]]]
) -> None:
    for name, pod in pods(objects):
        role = pod["metadata"]["labels"][cluster.ROLE]
        assert role not in (cluster.CONTROLLER, cluster.TRIAL), name
        assert cluster.RUN not in pod["metadata"]["labels"]


def test_the_monitor_reads_ports_that_head_pods_have(render: Render, named: Callable[..., Thing]) -> None:
    monitor = named(
        render({"metrics": {"enabled": True, "check": False}, "networkPolicy": {"prometheusNamespace": "monitoring"}}),
        "PodMonitor",
        "platform",
    )["spec"]
    golden = Path(__file__).resolve().parents[1] / "plan" / "golden" / "plain.yaml"
    (found,) = (one for one in yaml.safe_load_all(golden.read_text()) if one["kind"] == "RayCluster")
    head = found["spec"]["headGroupSpec"]["template"]
    ports = {port["name"] for container in head["spec"]["containers"] for port in container["ports"]}
    assert {one["port"] for one in monitor["podMetricsEndpoints"]} <= ports
    assert monitor["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()


def _names(objects: list[Thing], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def _secrets(objects: list[Thing]) -> list[Thing]:
    return [one for one in objects if one["kind"] == "Secret"]
