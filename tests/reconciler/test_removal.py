"""A deleted run: its files go from the claims, then its record; killed anywhere, it is gone in the end, and nothing else is.

Not checked here: what `rm` does on a volume (tests/e2e/test_removal.py), and who may ask for it (tests/gateway).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.kuberay_double import SITE

from trialplane.kube.cluster import Cluster
from trialplane.plan.site import Site
from trialplane.reconciler import removal
from trialplane.reconciler.reconciler import REMOVING, Reconciler
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

from .conftest import Team
from .test_crashes import Killed, _watched

CLAIMS = {"runs": {"claim": "the-runs"}, "checkpoints": {"claim": "the-checkpoints"}}
BOTH = [("the-runs", "/volume/runs/a"), ("the-checkpoints", "/volume/a")]


def claimed(team: Team, **claims: Any) -> Team:
    """A team whose chart has claims, and a run that has ended; its user deleted it."""
    site = Site.model_validate({**SITE, "namespace": "team", **claims})
    team.reconciler = Reconciler(Cluster(), team.archive, site)  # type: ignore[arg-type]
    team.reconciler.clock = lambda: time.time() + team.later
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    return team


def deleted(team: Team) -> None:
    """What `platform delete` does."""
    team.cluster.remove("runs", "a")
    team.namespace.studies["a"].mark = "c0ffee00"


def operate(team: Team, rounds: int = 5) -> None:
    for _ in range(rounds):
        team.namespace.step()
        team.reconciler.reconcile("a")


def pods(team: Team) -> list[str]:
    return sorted(team.cluster.objects["pods"])


def test_its_files_go_and_then_its_record(team: Team) -> None:
    deleted(claimed(team, **CLAIMS))
    assert team.reconciler.runs_to_remove() == ["a"]
    assert team.reconciler.reconcile("a") == REMOVING
    assert pods(team) == ["a-checkpoints-c0ffee00", "a-runs-c0ffee00"]
    assert "a" in team.namespace.studies, "its files are still there"
    operate(team)
    assert sorted(team.namespace.removed) == sorted(BOTH)
    assert ("a" in team.namespace.studies, pods(team), team.reconciler.runs_to_remove()) == (False, [], [])


def test_nothing_is_made_where_there_is_no_claim(team: Team) -> None:
    deleted(claimed(team))
    assert team.reconciler.reconcile("a") is None
    assert ("a" in team.namespace.studies, team.namespace.removed) == (False, [])


def test_a_run_whose_object_alone_is_deleted_keeps_record_and_files(team: Team) -> None:
    """As by `kubectl delete run`: `platform results` still shows it, and `platform resume` makes it again."""
    claimed(team, **CLAIMS)
    team.cluster.remove("runs", "a")
    operate(team)
    assert ("a" in team.namespace.studies, team.namespace.removed, pods(team)) == (True, [], [])


@pytest.mark.parametrize("works", [True, False])
def test_a_run_is_not_removed_while_its_run_object_is_there(team: Team, works: bool) -> None:
    """Whoever may reach the gateway may ask for it; only the owner may delete the Run."""
    claimed(team, **CLAIMS)
    if works:
        team.change(resumes=1, job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 48})
        team.settle()
    team.namespace.studies["a"].mark = "c0ffee00"
    operate(team)
    assert ("a" in team.namespace.studies, team.namespace.removed, pods(team)) == (True, [], pods(team))
    assert team.reconciler.runs_to_remove() == [] and not team.namespace.removed
    assert team.status()["state"] == ("Running" if works else "Succeeded")


def test_a_ray_cluster_that_its_run_left_behind_goes_first(team: Team) -> None:
    """As after `kubectl delete run --cascade=orphan`."""
    claimed(team, **CLAIMS)
    del team.ray_clusters["a"]["metadata"]["ownerReferences"]
    deleted(team)
    assert "a" in team.ray_clusters
    operate(team, rounds=10)
    assert not team.cluster.objects["rayclusters"] and "a" not in team.namespace.studies


def test_files_stay_while_a_pod_of_the_run_may_write_them(team: Team) -> None:
    claimed(team, **CLAIMS)
    team.cluster.put("pods", {"metadata": {"name": "a-left", "labels": {names.RUN: "a"}}})
    deleted(team)
    operate(team)
    assert (pods(team), team.namespace.removed) == (["a-left"], [])
    team.cluster.remove("pods", "a-left")
    operate(team)
    assert sorted(team.namespace.removed) == sorted(BOTH)


def test_a_pod_that_fails_is_followed_by_another_and_the_record_stays(team: Team) -> None:
    deleted(claimed(team, **CLAIMS))
    ended = {"state": {"terminated": {"message": "rm: cannot remove"}}}
    team.namespace.stuck = {"phase": "Failed", "containerStatuses": [ended]}
    operate(team)
    assert len(pods(team)) == 2
    assert "a" in team.namespace.studies
    team.namespace.stuck = None
    operate(team)
    assert team.namespace.removed == [], "not at once: what failed a moment ago fails again"
    team.later = removal.PATIENCE + 1
    operate(team, 8)
    assert sorted(team.namespace.removed) == sorted(BOTH)
    assert "a" not in team.namespace.studies


def test_a_new_run_of_the_name_waits_until_the_old_ones_files_are_gone(team: Team) -> None:
    """Else they would be its own that are removed."""
    deleted(claimed(team, **CLAIMS))
    team.namespace.stuck = {"phase": "Running"}
    team.apply()
    status = team.settle()
    assert (team.ray_clusters, status["state"]) == ({}, "Pending")
    assert "an earlier run of this name was deleted" in status["reason"]
    for pod in team.cluster.objects["pods"].values():
        del pod["status"]
    team.namespace.stuck = None
    team.settle()
    assert sorted(team.namespace.removed) == sorted(BOTH)
    assert team.settle()["state"] == "Running"
    assert team.namespace.studies["a"].mark == ""


def test_a_pod_of_an_earlier_removal_does_not_count(team: Team) -> None:
    claimed(team, **CLAIMS)
    for name in ("a-runs-01d", "a-checkpoints-01d"):
        done = {"metadata": {"name": name, "labels": {names.REMOVES: "a"}}, "status": {"phase": "Succeeded"}}
        team.cluster.put("pods", done)
    deleted(team)
    operate(team)
    assert sorted(team.namespace.removed) == sorted(BOTH)
    assert pods(team) == []


def test_killed_after_each_effect_it_is_gone_in_the_end(make_team: Callable[[], Team]) -> None:
    def begin() -> Team:
        team = claimed(make_team(), **CLAIMS)
        deleted(team)
        return team

    team, effects = begin(), [0]

    def count() -> None:
        effects[0] += 1

    _watched(team, count)
    operate(team)
    assert effects[0] >= 5, "two pods made, a record, two pods deleted"
    for last in range(1, effects[0] + 1):
        team, left = begin(), [last]

        def kill(left: list[int] = left, last: int = last) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed(last)

        _watched(team, kill)
        try:
            operate(team)
        except Killed:
            operate(team)
        assert left[0] <= 0, f"effect {last} did not come"
        assert sorted(set(team.namespace.removed)) == sorted(BOTH), f"killed after effect {last}"
        assert ("a" in team.namespace.studies, pods(team)) == (False, []), f"killed after effect {last}"


def test_its_pod_has_one_claim_and_nothing_else() -> None:
    site = Site.model_validate({**SITE, **CLAIMS, "tolerations": [{"key": "gpu", "operator": "Exists"}]})
    for pod in removal.removal_pods("a", "c0ffee00", site):
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert [list(volume) for volume in spec["volumes"]] == [["name", "persistentVolumeClaim"]]
        assert spec["automountServiceAccountToken"] is False
        assert not {"env", "envFrom"} & set(container)
        assert "serviceAccountName" not in spec, "whose annotations could bring a cloud's token"
        security = container["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (
            True,
            True,
            False,
        )
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert spec["activeDeadlineSeconds"] == removal.SECONDS
        assert container["command"][:2] == ["sh", "-c"] and container["command"][2].endswith('rm -rf -- "$0"')
        assert names.RUN not in pod["metadata"]["labels"], "it is not a pod of a run"
        assert len(pod["metadata"]["name"]) <= 253
