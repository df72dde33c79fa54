"""That every set of values renders to objects that belong together: names are unique and stay, what is referred to is
there, Helm and kubeconform accept it.

Not checked here: what a cluster makes of it (tests/e2e).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import CONTROL

from trialplane.wire import cluster

Thing = dict[str, Any]
# Theirs alone in the cluster, so the namespace and the release are in their names.
CLUSTERWIDE = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_helm_finds_nothing_to_complain_about(
    helm: Callable[..., subprocess.CompletedProcess[str]], chart: Path, values: dict[str, Any]
) -> None:
    done = helm("lint", "--strict", str(chart), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_unique_and_every_object_says_whose_it_is(objects: list[Thing]) -> None:
    names = [(one["kind"], one["metadata"].get("namespace", CONTROL), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    for one in objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "trialplane", one["metadata"]["name"]
        assert labels["app.kubernetes.io/instance"] == "platform"
        # The laptop takes every object with this value for one of a run.
        assert labels[cluster.MANAGED_BY] != cluster.MANAGER


def test_names_of_the_whole_cluster_carry_namespace_and_release(objects: list[Thing]) -> None:
    found = [one for one in objects if one["kind"] in CLUSTERWIDE]
    assert all(one["metadata"]["name"].startswith("control-platform-") for one in found)
    classes = [one for one in objects if one["kind"] == "PriorityClass"]
    assert all(one["metadata"]["name"].startswith("control-") for one in classes)
    own = [one["value"] for one in classes if one["metadata"]["name"] == "control-platform"]
    # No study takes the place of PostgreSQL, which takes that of any study.
    assert all(one["value"] < 0 for one in classes if one["value"] not in own) and len(own) == 1 and own[0] > 0


def test_services_choose_pods_and_ports_that_are_there(
    objects: list[Thing], pods: Callable[[list[Thing]], Iterator[tuple[str, Thing]]]
) -> None:
    for service in (one for one in objects if one["kind"] == "Service"):
        chosen = [
            pod
            for _, pod in pods(objects)
            if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() and "spec" in pod
        ]
        assert len(chosen) == 1, service["metadata"]["name"]
        ports = {port["name"] for container in chosen[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_what_pods_refer_to_is_in_their_namespace(
    objects: list[Thing], values: dict[str, Any], pods: Callable[[list[Thing]], Iterator[tuple[str, Thing]]]
) -> None:
    there = {(one["kind"], one["metadata"].get("namespace", CONTROL), one["metadata"]["name"]) for one in objects}
    given = set(_strings(values))
    for maker in objects:
        for name, pod in pods([maker]):
            spec, namespace = pod["spec"], maker["metadata"].get("namespace", CONTROL)
            if maker["kind"] != "DaemonSet" and "-warm-" not in name:  # these have no account of their own
                assert ("ServiceAccount", namespace, spec["serviceAccountName"]) in there, name
            for volume in spec["volumes"]:
                if "configMap" in volume:
                    assert ("ConfigMap", namespace, volume["configMap"]["name"]) in there, name
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    assert ("PersistentVolumeClaim", namespace, claim) in there or claim in given, name
            for container in spec["containers"] + spec.get("initContainers", []):
                secrets = [one["valueFrom"]["secretKeyRef"] for one in container.get("env", []) if "valueFrom" in one]
                for secret in secrets:
                    assert ("Secret", namespace, secret["name"]) in there or secret["name"] in given, name
                mounts = [mount["name"] for mount in container["volumeMounts"]]
                claimed = {"data"} if name.endswith("-postgresql") else set()  # a StatefulSet's own
                assert set(mounts) <= {volume["name"] for volume in spec["volumes"]} | claimed


def test_objects_keep_their_names_whatever_the_values_are(
    render: Callable[..., list[Thing]], sets: dict[str, dict[str, Any]]
) -> None:
    """So that an upgrade changes objects, and does not put others in their place: data hangs on them."""
    lasting = {"StatefulSet", "Deployment", "Service", "PersistentVolumeClaim", "ConfigMap", "Role"}

    def names(values: dict[str, Any]) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in render(values) if one["kind"] in lasting}

    assert {("StatefulSet", "platform-postgresql"), ("PersistentVolumeClaim", "platform-runs")} <= names({})
    for which in ("kind", "cloud", "bare"):
        values = {"checkpoints": {"enabled": True}, "metrics": {"dashboard": True}, "warm": {"pods": 1}}
        extra = names(sets[which]) - names({**values, "priorityClasses": {"warm": -2000}})
        assert not extra, which


def test_what_never_may_change_does_not_depend_on_values(
    render: Callable[..., list[Thing]], sets: dict[str, dict[str, Any]], named: Callable[..., Thing]
) -> None:
    """Selectors, and a StatefulSet's claims but for their size: Kubernetes refuses such an upgrade."""
    for kind, name in (("StatefulSet", "platform-postgresql"), ("Deployment", "platform-mlflow")):
        one, other = (named(render(sets[which]), kind, name)["spec"] for which in ("default", "cloud"))
        assert one["selector"] == other["selector"]
        assert not any("version" in key or "chart" in key for key in one["selector"]["matchLabels"])
    claim = named(render({}), "StatefulSet", "platform-postgresql")["spec"]["volumeClaimTemplates"][0]
    assert not any("version" in key or "chart" in key for key in claim["metadata"]["labels"])


def test_volumes_and_their_passwords_outlive_the_release_unless_told_otherwise(
    render: Callable[..., list[Thing]], sets: dict[str, dict[str, Any]], named: Callable[..., Thing]
) -> None:
    for values, kept in ((sets["default"], True), (sets["bare"], False)):
        made = render({**values, "data": {"enabled": True}})
        lasting = [one for one in made if one["kind"] == "PersistentVolumeClaim"]
        lasting.append(named(made, "Secret", "platform-postgresql"))
        assert len(lasting) >= 3
        for one in lasting:
            policy = one["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
            assert policy == ("keep" if kept else None), one["metadata"]["name"]
        rule = named(made, "StatefulSet", "platform-postgresql")["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert rule["whenDeleted"] == ("Retain" if kept else "Delete")


@pytest.mark.parametrize(
    ("release", "values", "service"),
    [
        ("platform", {}, "platform-gateway"),
        ("team", {}, "team-platform-gateway"),
        ("team", {"nameOverride": "ml"}, "team-ml-gateway"),
        ("team", {"fullnameOverride": "x" * 60}, "x" * 40 + "-gateway"),
    ],
)
def test_the_release_names_the_objects(
    template: Callable[..., subprocess.CompletedProcess[str]], release: str, values: dict[str, Any], service: str
) -> None:
    done = template(values, release=release)
    names = [
        one["metadata"]["name"] for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one and one["kind"] == "Service"
    ]
    assert service in names
    assert all(len(name) <= 63 for name in names)


@pytest.fixture(scope="module", name="conform")
def _conform() -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs kubeconform on manifests; skips where it, or the schemas that it fetches, are not to be had."""
    if shutil.which("kubeconform") is None:
        pytest.skip("kubeconform is not on PATH")

    def run(manifests: str) -> subprocess.CompletedProcess[str]:
        words = ["kubeconform", "-strict", "-skip", "PodMonitor,PrometheusRule,LocalQueue", "-kubernetes-version", "1.34.0"]
        return subprocess.run(words, input=manifests, capture_output=True, text=True, timeout=300, check=False)

    if "failed downloading schema" in run("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}").stdout:
        pytest.skip("the schemas of Kubernetes cannot be reached from here")
    return run


def test_the_schemas_of_kubernetes_are_kept(
    template: Callable[..., subprocess.CompletedProcess[str]],
    values: dict[str, Any],
    conform: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = conform(template(values).stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value)
