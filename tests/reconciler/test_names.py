"""A Run's name takes nothing of others: objects that are called as the Run is, or as what is made for it, stay as they are.

On the doubles of a cluster, as test_reconciler. Not here: what KubeRay does with such objects (tests/e2e/test_overreach).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trialplane.wire import cluster as names

from .conftest import Team

# What others have in the namespace, under the name of a run.
THEIRS: dict[str, dict[str, Any]] = {
    "secrets": {"kind": "Secret", "data": {"auth_token": "c2VjcmV0"}},
    "configmaps": {"kind": "ConfigMap", "data": {"job.json": "{}"}},
    "serviceaccounts": {"kind": "ServiceAccount", "secrets": [{"name": "builder"}]},
    "networkpolicies": {"kind": "NetworkPolicy", "spec": {"podSelector": {}}},
    "services": {"kind": "Service", "spec": {"selector": {"app": "web"}}},
}


def put(team: Team, plural: str, name: str, **metadata: Any) -> dict[str, Any]:
    thing = {**THEIRS.get(plural, {}), "metadata": {"name": name, **metadata}}
    team.cluster.put(plural, copy.deepcopy(thing))
    return copy.deepcopy(team.cluster.objects[plural][name])


def test_a_run_of_the_name_of_other_objects_uses_none_of_them(team: Team) -> None:
    before = {plural: put(team, plural, "a") for plural in THEIRS}
    team.apply(team.plan(cluster={"autoscale": True}))
    assert team.settle()["state"] == "Running"
    assert {plural: team.cluster.objects[plural]["a"] for plural in THEIRS} == before
    spec = team.ray_clusters["a"]["spec"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "a.ray"}
    assert spec["headGroupSpec"]["template"]["spec"]["serviceAccountName"] == "a.autoscaler"


@pytest.mark.parametrize("labels", [{}, {names.RUN: "a", names.MANAGED_BY: names.MANAGER}])
@pytest.mark.parametrize(
    ("plural", "name"),
    [
        ("configmaps", "a.spec"),
        ("secrets", "a.token"),
        ("secrets", "a.ray"),
        ("services", "a-head-svc"),
        ("roles", "a"),
        ("rolebindings", "a"),
        ("serviceaccounts", "a.autoscaler"),
        ("networkpolicies", "a.head"),
        ("networkpolicies", "a.trials"),
    ],
)
def test_an_object_of_somebody_else_keeps_a_run_from_starting(
    team: Team, plural: str, name: str, labels: dict[str, str]
) -> None:
    """Whose it is its owner says, and no label."""
    before = put(team, plural, name, labels=labels)
    team.apply(team.plan(cluster={"autoscale": True}))
    assert team.settle()["state"] == "Invalid"
    assert not team.made
    assert team.condition("Accepted")[1] == "NameTaken"
    assert f" {name} does not belong to this Run; give the Run another name" in team.condition("Accepted")[2]
    assert team.cluster.objects[plural][name] == before
    (owner,) = team.cluster.objects["configmaps"]["a-code"]["metadata"]["ownerReferences"]
    assert owner["kind"] == "Run", "its own code goes with it all the same"
    team.cluster.remove(plural, name)
    assert team.settle()["state"] == "Running"


def test_code_of_another_owner_is_not_taken_over(team: Team) -> None:
    """Though it is the code that the Run names: it would go with the Run."""
    team.apply()
    theirs = {"kind": "Deployment", "name": "web", "uid": "of-the-deployment"}
    team.cluster.objects["configmaps"]["a-code"]["metadata"]["ownerReferences"] = [theirs]
    assert team.settle()["state"] == "Invalid"
    assert team.condition("Accepted")[2] == "the ConfigMap a-code does not belong to this Run; give the Run another name"
    assert team.cluster.objects["configmaps"]["a-code"]["metadata"]["ownerReferences"] == [theirs]


def test_what_an_earlier_run_of_the_name_left_is_the_next_ones(team: Team) -> None:
    team.apply(team.plan(cluster={"autoscale": True}))
    team.settle()
    former = {plural: dict(team.cluster.objects[plural]) for plural in ("secrets", "roles", "serviceaccounts")}
    team.cluster.remove("runs", "a")
    for plural, things in former.items():  # which Kubernetes has not removed yet
        team.cluster.objects[plural].update(things)
    team.apply(team.plan(cluster={"autoscale": True}))
    assert team.settle()["state"] == "Running"
    uid = team.cluster.objects["runs"]["a"]["metadata"]["uid"]
    for plural, things in former.items():
        for name in things:
            assert [one["uid"] for one in team.cluster.objects[plural][name]["metadata"]["ownerReferences"]] == [uid], name


def test_an_autoscaler_may_change_its_own_ray_cluster_and_nothing_else(team: Team) -> None:
    team.apply(team.plan(cluster={"autoscale": True}))
    team.settle()
    (own, listed) = team.cluster.objects["roles"]["a"]["rules"]
    assert own == {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": ["a"], "verbs": ["get", "patch"]}
    assert (listed["resources"], set(listed["verbs"])) == (["pods"], {"get", "list", "watch"})
    assert team.cluster.objects["serviceaccounts"]["a.autoscaler"]["automountServiceAccountToken"] is False


def test_a_pod_that_only_says_it_is_of_the_run_is_not_counted(team: Team) -> None:
    """By the label alone somebody could keep a run from ending, whose controller is gone."""
    team.apply()
    team.settle()
    (head,) = (one for name, one in team.cluster.objects["pods"].items() if "-head" in name)
    forged = copy.deepcopy(head)
    forged["metadata"] |= {"name": "forged", "uid": "forged", "ownerReferences": []}
    team.cluster.objects["pods"]["forged"] = forged
    (box,) = head["status"]["initContainerStatuses"]
    box["state"] = {"terminated": {"exitCode": 1}}
    team.namespace.studies["a"].alive = False
    team.namespace.deaf = True
    team.change(state="Cancelled")
    team.settle()
    assert not team.ray_clusters
