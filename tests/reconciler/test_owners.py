"""Whose a run's record is: by the uid of the Run that it began with, and by the owner that admission has compared.

On the doubles of a cluster, as test_reconciler. Not here: MLflow's door, which goes by this uid (tests/gateway/test_mlflow).
"""

from __future__ import annotations

from typing import Any

from trialplane.plan import run as runs
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.states import RunState

from .conftest import SUBMITTED, Team


def apply(team: Team, owner: str, **spec: Any) -> str:
    """Applies the Run `a` of a user, and its code; gives its uid."""
    run, *code = runs.manifests(team.plan(), "team", SUBMITTED, owner)
    run["spec"].update(spec)
    for part in code:
        team.cluster.put("configmaps", part)
    team.cluster.put("runs", run)
    return str(team.cluster.objects["runs"]["a"]["metadata"]["uid"])


def test_a_run_that_is_made_again_by_its_owner_goes_on_with_its_record(team: Team) -> None:
    first = apply(team, "ada")
    team.settle()
    assert team.namespace.studies["a"].submission[labels.RECORD_UID] == first
    team.change(state="Paused")
    team.settle()
    team.cluster.remove("runs", "a")
    again = apply(team, "ada", resumes=1)
    assert team.settle()["state"] == "Running"
    submission = team.namespace.studies["a"].submission
    assert (submission[labels.UID], submission[labels.RECORD_UID], submission[labels.OWNER]) == (again, first, "ada")


def test_another_user_goes_on_with_no_record_of_a_deleted_run(team: Team) -> None:
    """Neither as its resume, nor with the same job, nor by naming the moment of its submission or its uid."""
    apply(team, "ada")
    team.settle()
    team.namespace.end("a", RunState.PAUSED)
    team.settle()
    before = dict(team.namespace.studies["a"].submission)
    forged = {"submitted": SUBMITTED, labels.UID: before[labels.UID], labels.RECORD_UID: before[labels.RECORD_UID]}
    for spec in ({"resumes": 1}, {}, {"resumes": 1, "submission": {**forged, labels.OWNER: "bob"}}):
        team.cluster.remove("runs", "a")
        apply(team, "bob", **spec)
        assert team.settle()["state"] == "Invalid"
        status, reason, message = team.condition("Accepted")
        assert (status, reason) == ("False", "NameTaken")
        assert message.startswith("the ledger has a run a of ada, which only its owner may continue; give the Run another")
        assert team.status()["ended"] == 0 and not team.status()["best"]
        assert team.namespace.studies["a"].submission == before
    assert team.made == 1


def test_a_record_that_was_deleted_is_nobodys(team: Team) -> None:
    """A new run of the name begins a record of its own."""
    first = apply(team, "ada")
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    team.cluster.remove("runs", "a")
    team.reconciler.reconcile("a")
    del team.namespace.studies["a"]
    second = apply(team, "bob", submission={"submitted": SUBMITTED, labels.RECORD_UID: first})
    team.settle()
    assert team.namespace.studies["a"].submission[labels.RECORD_UID] == second != first


def test_an_administrator_goes_on_with_a_run_in_its_owners_name(team: Team) -> None:
    """Admission lets them make Runs that are of others."""
    apply(team, "ada")
    team.settle()
    team.change(state="Paused")
    team.settle()
    team.cluster.remove("runs", "a")
    apply(team, "ada", resumes=1)
    team.cluster.objects["runs"]["a"]["metadata"]["annotations"][names.CHANGED_BY] = "root"
    assert team.settle()["state"] == "Running"
