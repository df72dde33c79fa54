"""Runs that wait for room: why is told, and looking costs little."""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.kube import kinds
from trialplane.reconciler.reconciler import LIVING, WAITING

from .conftest import Team


def test_why_pods_wait_is_a_condition_and_the_reason(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    for pod in team.cluster.objects["pods"].values():
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: Insufficient cpu"}
        ]
    assert team.reconciler.reconcile("a") == LIVING
    status = team.settle()
    assert status["state"] == "Pending" and "Insufficient cpu" in status["reason"]
    assert team.condition("Ready")[:2] == ("False", "PodsWaiting")
    team.later = 60
    assert team.reconciler.reconcile("a") == WAITING


def test_a_refusal_is_told_at_once_while_a_ray_cluster_is_new(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    team.cluster.objects["pods"].clear()
    assert "KubeRay is creating" in team.settle()["reason"]
    made = team.cluster.objects["rayclusters"]["a"]["metadata"]
    team.cluster.objects.setdefault("events", {})["a.1"] = {
        "metadata": {"name": "a.1", "namespace": made["namespace"], "creationTimestamp": made["creationTimestamp"]},
        "involvedObject": {"kind": "RayCluster", "name": "a"},
        "reason": "FailedToCreateHeadPod",
        "message": "pods are forbidden: exceeded quota",
        "lastTimestamp": made["creationTimestamp"],
    }
    assert team.reconciler.reconcile("a") == LIVING
    assert "exceeded quota" in team.settle()["reason"]


def test_one_list_of_events_serves_all_runs_for_some_seconds(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.namespace.held = True
    for name in ("a", "b"):
        team.apply(team.plan(name))
        team.settle(name)
    lists: list[Any] = []
    before = team.reconciler.cluster.list

    def counted(kind: Any, **given: Any) -> list[dict[str, Any]]:
        lists.append(kind)
        return before(kind, **given)

    monkeypatch.setattr(team.reconciler.cluster, "list", counted)
    for later, wanted in ((60, 1), (60, 1), (120, 2)):
        team.later = later
        for name in ("a", "b"):
            team.reconciler.reconcile(name)
        assert lists.count(kinds.EVENT) == wanted
