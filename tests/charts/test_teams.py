"""What the chart makes of `teams`: a namespace for each with all that its runs need, and nothing of one in another's.

Not checked here: who may do what there (test_access.py), who reaches whom (test_network.py), what the laptop reads
(test_site.py), and what `lookup` finds in a cluster (tests/e2e/test_upgrade.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.conftest import CONTROL

from trialplane.wire import cluster

Thing = dict[str, Any]
Render = Callable[[dict[str, Any]], list[Thing]]
Named = Callable[..., Thing]


@pytest.fixture(name="two")
def _two(render: Render, sets: dict[str, dict[str, Any]]) -> list[Thing]:
    return render(sets["two"])


def _in(objects: list[Thing], namespace: str) -> set[tuple[str, str]]:
    return {
        (one["kind"], one["metadata"]["name"]) for one in objects if one["metadata"].get("namespace", CONTROL) == namespace
    }


def test_a_namespace_is_restricted_labelled_and_kept(two: list[Thing], named: Named) -> None:
    about = named(two, "Namespace", "vision")["metadata"]
    assert about["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (about["labels"][cluster.CONTROL], about["labels"]["cost"]) == (CONTROL, "1")
    assert about["annotations"] == {"helm.sh/resource-policy": "keep", "who": "ada"}


def test_only_namespaces_that_are_asked_for_are_made(render: Render, sets: dict[str, dict[str, Any]]) -> None:
    """Neither one that is somebody else's, nor the release's own, which is there before the chart."""
    made = {
        which: [one["metadata"]["name"] for one in render(sets[which]) if one["kind"] == "Namespace"]
        for which in ("default", "two", "own")
    }
    assert made == {"default": ["studies"], "two": ["vision"], "own": ["studies"]}


def test_without_keeping_volumes_a_namespace_goes_with_the_release(render: Render, named: Named) -> None:
    about = named(render({"keepVolumes": False}), "Namespace", "studies")["metadata"]
    assert "annotations" not in about


def test_each_team_has_what_its_runs_need(two: list[Thing]) -> None:
    everybody = {
        ("ServiceAccount", "platform-controller"),
        ("ServiceAccount", "platform-trial"),
        ("ServiceAccount", cluster.USER),
        ("ServiceAccount", cluster.VIEWER),
        ("ConfigMap", cluster.SITE),
        ("NetworkPolicy", "platform-default"),
        ("NetworkPolicy", "platform-volumes"),
        ("Role", "trialplane-user"),
        ("RoleBinding", "trialplane-user"),
        ("Role", "trialplane-viewer"),
        ("RoleBinding", "platform-operator-runs"),
        *((kind, f"trialplane-mlflow-{role}") for kind in ("Role", "RoleBinding") for role in ("users", "viewers", "runs")),
        ("ResourceQuota", "platform-counts"),
    }
    vision, speech = _in(two, "vision"), _in(two, "speech")
    limited = {("ResourceQuota", "platform"), ("LimitRange", "platform"), ("LocalQueue", "vision")}
    assert vision - everybody - limited == {("PersistentVolumeClaim", "platform-checkpoints"), *_jobs(vision)}
    assert speech - everybody == {("PersistentVolumeClaim", "platform-runs"), *_jobs(speech)}
    assert everybody <= vision & speech
    assert len(_jobs(vision)) == len(_jobs(speech)) == 1


def _jobs(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {one for one in found if one[0] == "Job"}


def test_pods_of_others_in_a_namespace_that_is_theirs_keep_their_network(two: list[Thing], named: Named) -> None:
    def selected(namespace: str) -> Any:
        return named(two, "NetworkPolicy", "platform-default", namespace)["spec"]["podSelector"]

    assert selected("vision") == selected(CONTROL) == {}
    assert selected("speech") == {"matchExpressions": [{"key": cluster.RUN, "operator": "Exists"}]}


def test_limits_are_as_given(two: list[Thing], named: Named) -> None:
    assert named(two, "ResourceQuota", "platform")["spec"] == {"hard": {"requests.nvidia.com/gpu": 16}}
    limits = [{"type": "Container", "defaultRequest": {"cpu": "100m"}}]
    assert named(two, "LimitRange", "platform")["spec"] == {"limits": limits}
    assert named(two, "LocalQueue", "vision")["spec"] == {"clusterQueue": "gpus"}


def test_the_platforms_own_pods_serve_all_teams(two: list[Thing], named: Named) -> None:
    for name in ("platform-operator", "platform-gateway"):
        deployment = named(two, "Deployment", name)
        assert deployment["metadata"].get("namespace", CONTROL) == CONTROL
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert "--namespaces=vision,speech" in container["args"]


def test_the_operator_starts_anew_when_a_teams_site_changes(render: Render, named: Named) -> None:
    """It reads them when it starts."""

    def mark(team: dict[str, Any]) -> str:
        deployment = named(render({"teams": [{"namespace": "a", **team}]}), "Deployment", "platform-operator")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/teams"])

    assert mark({}) == mark({"users": [{"kind": "User", "name": "ada"}], "quota": {"pods": "9"}})
    assert mark({}) != mark({"studies": {"scratch": "1Gi"}})


def test_no_secret_and_no_service_of_the_platform_is_in_a_teams_namespace(objects: list[Thing]) -> None:
    teams = {one["metadata"]["namespace"] for one in objects if one["metadata"]["name"] == cluster.SITE}
    for namespace in teams - {CONTROL}:
        assert not {kind for kind, _ in _in(objects, namespace)} & {"Secret", "Service", "Deployment", "StatefulSet"}


def test_the_releases_own_namespace_may_be_a_teams(render: Render, sets: dict[str, dict[str, Any]]) -> None:
    found = _in(render(sets["own"]), CONTROL)
    assert {
        ("PersistentVolumeClaim", "platform-runs"),
        ("ServiceAccount", "platform-controller"),
        ("ServiceAccount", "platform-trial"),
        ("ConfigMap", cluster.SITE),
        ("Role", "trialplane-user"),
    } <= found
