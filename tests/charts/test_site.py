"""The ConfigMap by which the laptop finds the chart: it is read as `plan.site.Site`, and says where things really are.

Not checked here: what `plan` makes of a site (tests/plan).
"""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trialplane
from trialplane.plan.site import Allowed, Site
from trialplane.wire import cluster
from trialplane.wire.costs import Prices

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]


def _sites(objects: list[Thing]) -> dict[str, Site]:
    """By the namespace of their team."""
    found = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", cluster.SITE))
    return {
        one["metadata"]["namespace"]: Site.read(one["data"][cluster.SITE_KEY], one["metadata"]["namespace"]) for one in found
    }


def _site(objects: list[Thing]) -> Site:
    (one,) = _sites(objects).values()
    return one


def test_every_team_has_a_site(objects: list[Thing], values: dict[str, Any]) -> None:
    sites = _sites(objects)
    assert list(sites) == [team["namespace"] for team in values.get("teams", [{"namespace": "studies"}])]
    for namespace, site in sites.items():
        assert (site.version, site.release, site.control) == (trialplane.__version__, "platform", "control")
        there = {one["metadata"]["name"] for one in objects if _at(one) == ("ServiceAccount", namespace)}
        assert {site.controller_account, site.trial_account, cluster.USER} <= there


def test_a_team_has_the_releases_values_under_its_own(render: Render, sets: dict[str, dict[str, Any]]) -> None:
    vision, speech = _sites(render(sets["two"])).values()
    assert (vision.queue, vision.priority_class, vision.node_selector) == ("vision", "control-high", {"pool": "a100"})
    assert (vision.runs.claim, vision.data.claim, vision.checkpoints.claim) == ("", "images", "platform-checkpoints")
    assert vision.controller == speech.controller, "what a team does not name is as it is for all"
    assert (speech.queue, speech.priority_class, speech.node_selector) == ("everybody", "", {})
    assert (speech.runs.claim, speech.data.claim, speech.checkpoints.claim) == ("platform-runs", "", "")
    assert speech.checkpoints.url == "s3://speech/checkpoints"
    opened = [[port["port"] for port in rule["ports"]] for rule in speech.network.trial.egress]
    assert [9000] in opened
    assert [9000] not in [[port["port"] for port in rule["ports"]] for rule in vision.network.trial.egress]


def test_the_chart_has_the_version_of_the_package(chart: Path) -> None:
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert facts["version"] == facts["appVersion"] == trialplane.__version__


def test_services_secrets_and_claims_are_those_of_the_chart(render: Render) -> None:
    objects = render({"data": {"enabled": True}})
    site = _site(objects)
    ports = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in objects if one["kind"] == "Service"}
    assert site.gateway.port == ports[site.gateway.service] == cluster.GATEWAY_PORT
    assert {site.runs.claim, site.data.claim} <= _names(objects, "PersistentVolumeClaim")
    keys = {one["metadata"]["name"]: {*one.get("data", {}), *one.get("stringData", {})} for one in _secrets(objects)}
    assert site.ledger.key in keys[site.ledger.name]
    assert site.database == "platform-postgresql.control.svc:5432"


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
    assert (site.ledger.name, site.ledger.key, site.database) == ("studies-db", "dsn", "")


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
    assert (saved.claim, saved.secret, saved.grace) == ("", "checkpoints-s3", 300)


def test_prices_are_the_releases_or_the_teams(render: Render) -> None:
    teams = [{"namespace": "a"}, {"namespace": "b", "studies": {"prices": {"gpuHour": 4.25}}}]
    a, b = _sites(render({"studies": {"prices": {"gpuHour": 2.5, "cpuHour": 0.05}}, "teams": teams})).values()
    assert a.prices.plain == Prices(2.5, 0.05)
    assert b.prices.plain == Prices(4.25, 0.05)
    assert not _site(render({})).prices.plain.are_known


def test_what_jobs_may_ask_for_is_the_teams(render: Render) -> None:
    """Nothing, by default; a list of a team's replaces the release's."""
    gpus = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    studies = {"allowed": {"tolerations": gpus, "priorityClasses": ["low", "research"], "labels": ["cost"]}}
    teams = [{"namespace": "a"}, {"namespace": "b", "studies": {"allowed": {"tolerations": [], "annotations": ["x.org/"]}}}]
    a, b = _sites(render({"studies": studies, "teams": teams, "priorityClasses": {"enabled": True}})).values()
    assert a.allowed.priority_classes == b.allowed.priority_classes == ("control-low", "research")
    assert (a.allowed.tolerations, a.allowed.annotations) == (tuple(gpus), ())
    assert (b.allowed.tolerations, b.allowed.annotations) == ((), ("x.org/",))
    assert a.allowed.labels == b.allowed.labels == ("cost",)
    assert _site(render({})).allowed == Allowed()


def test_packages_are_installed_in_pods_of_the_teams_that_may(render: Render) -> None:
    egress = [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}]
    install = {"index": "https://packages.example.org/simple", "maxSize": "4Gi", "timeout": "5m", "egress": egress}
    teams = [{"namespace": "a"}, {"namespace": "b", "studies": {"install": {"enabled": True}}}]
    closed, opened = _sites(render({"studies": {"install": install}, "teams": teams})).values()
    assert (closed.install.enabled, opened.install.enabled) == (False, True)
    assert (opened.install.index, opened.install.max_size, opened.install.timeout) == (install["index"], "4Gi", 300)
    assert opened.install.egress == tuple(egress)
    assert egress[0] not in opened.network.trial.egress, "it is for runs that ask"


def test_each_team_has_its_own_folder_in_the_releases_object_store(render: Render) -> None:
    """As run names are unique within a team only."""
    teams = ["control", "vision", "speech"]
    given: list[dict[str, Any]] = [{"namespace": name} for name in teams]
    given.append({"namespace": "own", "checkpoints": {"url": "s3://own/checkpoints"}})
    sites = _sites(render({"teams": given, "checkpoints": {"url": "s3://bucket/checkpoints/"}}))
    assert {name: site.checkpoints.url for name, site in sites.items()} == {
        "control": "s3://bucket/checkpoints/control",
        "vision": "s3://bucket/checkpoints/vision",
        "speech": "s3://bucket/checkpoints/speech",
        "own": "s3://own/checkpoints",
    }


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
        for host in (
            urllib.parse.urlsplit(site.gateway_url).netloc,
            "r-head-svc.studies.svc.cluster.local:8265",
            "127.0.0.1:1",
        ):
            assert urllib.request.proxy_bypass(host), host
        assert not urllib.request.proxy_bypass("example.org:443")


def test_a_field_that_the_chart_leaves_out_is_noticed(render: Render) -> None:
    (one,) = (one for one in render({}) if one["metadata"]["name"] == cluster.SITE and one["kind"] == "ConfigMap")
    said = yaml.safe_load(one["data"][cluster.SITE_KEY])
    assert set(said) == set(Site.model_fields) - {"namespace"}


@pytest.mark.parametrize(
    ("enabled", "wanted", "got"),
    [(True, "low", "control-low"), (False, "low", ""), (True, "research", "research"), (False, "", "")],
)
def test_a_short_priority_class_is_the_charts_own(render: Render, enabled: bool, wanted: str, got: str) -> None:
    objects = render({"priorityClasses": {"enabled": enabled}, "studies": {"priorityClass": wanted}})
    assert _site(objects).priority_class == got
    assert got in ("", "research") or got in _names(objects, "PriorityClass")


def test_pods_have_the_roles_and_ports_that_the_laptop_knows(
    objects: list[Thing], pods: Callable[[list[Thing]], Iterator[tuple[str, Thing]]]
) -> None:
    for name, pod in pods(objects):
        role = pod["metadata"]["labels"].get(cluster.ROLE)  # the pods that pull images have none
        assert role not in (cluster.CONTROLLER, cluster.TRIAL), name
        assert cluster.RUN not in pod["metadata"]["labels"]


def test_the_monitor_reads_ports_that_head_pods_have(render: Render, named: Callable[..., Thing]) -> None:
    monitor = named(
        render({"metrics": {"enabled": True, "check": False}, "networkPolicy": {"prometheusNamespace": "monitoring"}}),
        "PodMonitor",
        "platform",
    )["spec"]
    golden = Path(__file__).resolve().parents[1] / "plan" / "golden" / "plain.yaml"
    (found,) = (one for one in yaml.load_all(golden.read_text(), yaml.CSafeLoader) if one["kind"] == "RayCluster")
    head = found["spec"]["headGroupSpec"]["template"]
    ports = {port["name"] for container in head["spec"]["containers"] for port in container["ports"]}
    assert {one["port"] for one in monitor["podMetricsEndpoints"]} <= ports
    assert monitor["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()


def _at(thing: Thing) -> tuple[str, str]:
    return thing["kind"], thing["metadata"].get("namespace", "")


def _names(objects: list[Thing], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def _secrets(objects: list[Thing]) -> list[Thing]:
    return [one for one in objects if one["kind"] == "Secret"]


def test_the_gateway_is_found_from_any_namespace(render: Render) -> None:
    assert _site(render({})).gateway_url == "http://platform-gateway.control.svc:8080"


def test_a_gateway_with_a_certificate_is_found_by_https_and_its_authority_is_in_the_teams_namespace(render: Render) -> None:
    authority = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    objects = render({"gateway": {"tls": {"secret": "gateway-tls", "ca": authority}}})
    assert _site(objects).gateway_url == "https://platform-gateway.control.svc:8080"
    (site,) = (thing for thing in objects if thing["metadata"]["name"] == cluster.SITE and thing["kind"] == "ConfigMap")
    assert site["data"][cluster.GATEWAY_CA] == authority
    (role,) = (thing for thing in objects if thing["metadata"]["name"] == "trialplane-gateway" and thing["kind"] == "Role")
    assert all(name.startswith("https:") for name in role["rules"][0]["resourceNames"])
    (pod,) = (
        thing["spec"]["template"]["spec"]
        for thing in objects
        if thing["kind"] == "Deployment" and thing["metadata"]["name"] == "platform-gateway"
    )
    (container,) = pod["containers"]
    assert f"--tls={cluster.TLS_MOUNT}" in container["args"]
    assert {"name": "tls", "mountPath": cluster.TLS_MOUNT, "readOnly": True} in container["volumeMounts"]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "readinessProbe")} == {"HTTPS"}


def test_a_certificate_without_its_authority_is_refused(template: Callable[..., Any]) -> None:
    refused = template({"gateway": {"tls": {"secret": "gateway-tls"}}})
    assert refused.returncode != 0
    assert "gateway.tls.ca" in refused.stderr
