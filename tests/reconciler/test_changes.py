"""Who changed what of a Run: each change is in the ledger once, with the name and the time that the API server vouches for,
and an Event of the Run.

Killed at any moment: test_crashes.py. That nobody names another: tests/charts/test_owners.py. What a user sees: tests/cli.
"""

from __future__ import annotations

import calendar
from typing import Any

import pytest
from tests.client.kuberay_double import SITE
from tests.kube.cluster_double import Problem

from trialplane.kube.cluster import Cluster
from trialplane.plan.site import Site
from trialplane.reconciler.reconciler import Reconciler
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

from .conftest import Team


@pytest.fixture
def owned(team: Team) -> Team:
    """A Run of ada's, that works."""
    team.apply()
    annotate(team, **{names.OWNER: "ada"})
    team.settle()
    return team


def annotate(team: Team, **annotations: str) -> None:
    metadata = team.cluster.objects["runs"]["a"]["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}


def noted(team: Team) -> list[tuple[str, str, int]]:
    return [(one.by, one.description, one.generation) for one in team.namespace.studies["a"].changes]


def said(team: Team) -> list[str]:
    return [one["message"] for one in team.cluster.objects["events"].values()]


def test_each_change_is_noted_once_with_who_made_it(owned: Team) -> None:
    owned.change(parallel=5)
    owned.settle()
    owned.change(state="Paused")
    annotate(owned, **{names.CHANGED_BY: "lead"})
    owned.settle()
    owned.settle()
    expected = [
        ("ada", "submitted", 1),
        ("ada", "parallel: as the job says → 5", 2),
        ("lead", "state: Running → Paused", 3),
    ]
    assert noted(owned) == expected
    assert said(owned) == ["submitted by ada", "parallel: as the job says → 5 by ada", "state: Running → Paused by lead"]
    # Another operator takes over, with nothing in memory.
    site = Site.model_validate({**SITE, "namespace": "team"})
    owned.reconciler = Reconciler(Cluster(), owned.archive, site)  # type: ignore[arg-type]
    owned.settle()
    assert noted(owned) == expected
    assert len(said(owned)) == 3


def test_an_event_is_of_its_run(owned: Team) -> None:
    (event,) = owned.cluster.objects["events"].values()
    run = owned.cluster.objects["runs"]["a"]["metadata"]
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Run", "a", run["uid"])
    assert about["apiVersion"] == "trialplane.io/v1alpha1"
    assert (event["type"], event["count"], event["firstTimestamp"]) == ("Normal", 1, run["creationTimestamp"])


def test_when_is_what_the_api_server_says(owned: Team) -> None:
    fields = [
        {"manager": "kubectl", "time": "2026-11-01T10:00:00Z", "fieldsV1": {"f:spec": {"f:job": {}}}},
        {"manager": "trialplane", "time": "2026-11-01T12:00:00Z", "fieldsV1": {"f:spec": {"f:state": {}}}},
        {"manager": "other", "time": "2026-11-01T13:00:00Z", "fieldsV1": {"f:metadata": {}}},
        {"manager": "op", "time": "2026-11-01T14:00:00Z", "subresource": "status", "fieldsV1": {"f:spec": {}}},
    ]
    owned.cluster.objects["runs"]["a"]["metadata"]["managedFields"] = fields
    owned.change(state="Paused")
    owned.settle()
    assert owned.namespace.studies["a"].changes[-1].at == calendar.timegm((2026, 11, 1, 12, 0, 0))


def test_changes_before_anybody_looked_are_one_that_says_so(owned: Team) -> None:
    owned.change(parallel=5)
    owned.change(state="Paused")
    owned.change(parallel=4)
    annotate(owned, **{names.CHANGED_BY: "lead"})
    owned.settle()
    what = (
        "state: Running → Paused, parallel: as the job says → 4 (the last of 3 changes since the last change in the ledger)"
    )
    assert noted(owned)[1:] == [("lead", what, 4)]


def test_a_change_is_noted_though_what_follows_is_refused(owned: Team) -> None:
    def refuse(*_: Any) -> None:
        raise Problem(403, "no", reason="Forbidden")

    owned.archive.change_desired = refuse  # type: ignore[method-assign]
    owned.change(state="Paused")
    with pytest.raises(Problem):
        owned.reconciler.reconcile("a")
    assert noted(owned)[-1] == ("ada", "state: Running → Paused", 2)


def test_an_event_that_cannot_be_made_holds_up_nothing(owned: Team) -> None:
    answer = owned.cluster.answer

    def without_events(method: str, target: str, *rest: Any) -> Any:
        if "/events/" in target and method == "PATCH":
            return 403, {}, b'{"kind": "Status", "message": "exceeded quota: events", "code": 403}'
        return answer(method, target, *rest)

    owned.cluster.answer = without_events  # type: ignore[method-assign]
    owned.change(state="Paused")
    owned.settle()
    assert noted(owned)[-1] == ("ada", "state: Running → Paused", 2)
    assert owned.status()["state"] == "Paused"
    assert len(said(owned)) == 1


def test_a_run_that_is_made_again_goes_on_with_its_record(owned: Team) -> None:
    owned.namespace.end("a", RunState.SUCCEEDED)
    owned.settle()
    before = owned.cluster.objects["runs"]["a"]["spec"]
    owned.cluster.remove("runs", "a")
    owned.reconciler.reconcile("a")
    owned.apply()
    annotate(owned, **{names.OWNER: "ada", names.CHANGED_BY: "bob"})  # an administrator
    owned.cluster.objects["runs"]["a"]["spec"] = {**before, "resumes": 1}
    owned.settle()
    deleted = ("", "its Run was deleted", 2)
    assert noted(owned) == [("ada", "submitted", 1), deleted, ("bob", "resumed, as a new Run", 1)]


def test_a_deleted_run_is_noted_once_where_its_record_stays(owned: Team) -> None:
    """As by `kubectl delete run`; whoever did it is in the API server's audit log alone."""
    owned.change(state="Paused")
    owned.settle()
    owned.later = 100.0
    before = owned.reconciler.clock()
    owned.cluster.remove("runs", "a")
    for _ in range(3):
        owned.reconciler.reconcile("a")
    assert noted(owned)[2:] == [("", "its Run was deleted", 3)]
    assert before <= owned.namespace.studies["a"].changes[-1].at <= owned.reconciler.clock()


def test_a_run_that_the_operator_removes_says_so(owned: Team) -> None:
    site = Site.model_validate({**SITE, "namespace": "team", "run_ttl": 10.0})
    owned.reconciler = Reconciler(Cluster(), owned.archive, site)  # type: ignore[arg-type]
    owned.namespace.end("a", RunState.SUCCEEDED)
    owned.settle()
    owned.cluster.remove("rayclusters", "a")
    later = owned.reconciler.clock() + 100.0
    owned.reconciler.clock = lambda: later
    owned.reconciler.reconcile("a")
    assert "a" not in owned.cluster.objects["runs"]
    owned.reconciler.reconcile("a")
    assert noted(owned)[1:] == [("", "its Run was removed by the operator, long after the end (operator.runTtl)", 2)]


def test_a_run_without_an_owner_is_noted_without_a_name(team: Team) -> None:
    team.apply()
    team.settle()
    assert noted(team) == [("", "submitted", 1)]
    assert said(team) == ["submitted"]
