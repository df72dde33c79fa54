"""The life of a Run on the doubles of a cluster: started, resized, stopped, resumed, made again, refused; and its status.

Not here: a ledger in trouble (test_ledger), PostgreSQL (tests/contracts), a real API server (tests/e2e).
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest
from tests.client.kuberay_double import SITE
from tests.kube.cluster_double import Problem

from trialplane.errors import TargetError
from trialplane.kube.cluster import Cluster
from trialplane.plan import run as runs
from trialplane.plan.site import Site
from trialplane.reconciler.reconciler import LIVING, Reconciler
from trialplane.wire import cluster as names
from trialplane.wire import labels
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState, TrialState

from .conftest import Team

CODE = "/api/v1/namespaces/team/configmaps/a-code"


def test_a_run_is_recorded_and_its_objects_are_made(team: Team) -> None:
    team.apply()
    assert team.reconciler.reconcile("a") == LIVING
    study = team.namespace.studies["a"]
    uid = team.cluster.objects["runs"]["a"]["metadata"]["uid"]
    assert (study.submission["uid"], study.submission["user"], study.submission["submitted"]) == (
        uid,
        "ada",
        1_800_000_000.0,
    )
    for plural, name in (("rayclusters", "a"), ("configmaps", "a.spec"), ("secrets", "a.ray"), ("configmaps", "a-code")):
        (owner,) = team.cluster.objects[plural][name]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Run", uid), name
    assert team.ray_clusters["a"]["spec"]["workerGroupSpecs"][0]["replicas"] == 3
    status = team.settle()
    assert (status["state"], status["progress"], status["resumes"]) == ("Running", "0/24", 0)
    assert team.condition("Accepted")[0] == team.condition("Ready")[0] == "True"
    assert team.condition("Ended")[0] == "False"


def test_progress_and_best_are_in_the_status_and_nothing_is_written_that_did_not_change(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.tell("a", [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.93154321,))])
    status = team.settle()
    assert (status["ended"], status["total"], status["progress"], status["best"]) == (1, 24, "1/24", "f1=0.93154")
    before = len(team.cluster.requests)
    team.settle()
    assert {verb for verb, _ in team.cluster.requests[before:]} == {"GET"}


def test_an_ended_run_stays_and_its_objects_go(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    status = team.settle()
    assert status["state"] == "Succeeded"
    assert team.condition("Ended")[:2] == ("True", "Succeeded")
    assert "a" in team.ray_clusters, "its pods are kept for a while"
    team.later = 60.0
    assert team.settle()["state"] == "Succeeded"
    assert "a" not in team.ray_clusters and "a.spec" not in team.cluster.objects["configmaps"]
    assert "a-code" in team.cluster.objects["configmaps"], "a resume needs it"


def test_a_ray_cluster_that_vanished_is_made_again(team: Team) -> None:
    team.apply()
    team.settle()
    team.cluster.remove("rayclusters", "a")
    status = team.settle()
    assert "a" in team.ray_clusters
    assert status["state"] == "Running"


@pytest.mark.parametrize(("state", "shown"), [("Paused", "Paused"), ("Cancelled", "Cancelled")])
def test_a_stop_is_recorded_and_waits_for_the_clean_end(team: Team, state: str, shown: str) -> None:
    team.apply()
    team.settle()
    team.namespace.deaf = True
    team.change(state=state)
    assert team.settle()["state"] == "Running"
    assert team.namespace.studies["a"].desired is RunState(state.upper())
    assert "a" in team.ray_clusters, "its controller is to end cleanly"
    team.namespace.deaf = False
    assert team.settle()["state"] == shown
    assert "a" not in team.ray_clusters and "a.spec" not in team.cluster.objects["configmaps"]


def test_now_does_not_wait(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.deaf = True
    team.change(state="Cancelled", now=True)
    team.reconciler.reconcile("a")
    assert "a" not in team.ray_clusters
    assert team.settle()["state"] == "Cancelled"


def test_a_run_that_never_began_stops_at_once(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    team.change(state="Paused")
    assert team.settle()["state"] == "Paused"
    assert not team.ray_clusters


def test_a_run_applied_as_paused_starts_when_it_is_to_run(team: Team) -> None:
    team.apply()
    team.change(state="Paused")
    assert team.settle()["state"] == "Paused"
    assert not team.ray_clusters and not team.namespace.studies
    team.change(state="Running")
    assert team.settle()["state"] == "Running"


def test_a_paused_run_goes_on_when_its_state_says_so(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(state="Paused")
    team.settle()
    team.change(state="Running")
    assert team.settle()["state"] == "Running"
    assert team.namespace.studies["a"].desired is RunState.RUNNING


def test_a_stop_that_was_begun_is_completed_before_the_run_goes_on(team: Team) -> None:
    team.apply()
    team.settle()
    first = team.ray_clusters["a"]["metadata"]["uid"]
    team.namespace.deaf = True
    team.change(state="Paused")
    team.settle()
    team.change(state="Running")
    team.settle()
    assert team.namespace.studies["a"].desired is RunState.PAUSED
    team.namespace.deaf = False
    assert team.settle()["state"] == "Running"
    assert team.ray_clusters["a"]["metadata"]["uid"] != first


def test_a_resume_starts_an_ended_run_again_with_its_changed_job(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    team.settle()
    job = {**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 48}
    team.change(job=job, resumes=1)
    status = team.settle()
    assert (status["state"], status["resumes"], status["total"]) == ("Running", 1, 48)
    assert team.ray_clusters["a"]["metadata"]["annotations"][runs.RESUMES] == "1"
    team.namespace.end("a", RunState.SUCCEEDED)
    first = team.settle()
    assert first["state"] == "Succeeded"
    assert team.settle() == first, "it is not started a third time"


def test_a_resumed_run_has_not_ended_while_its_controller_has_written_nothing_yet(team: Team) -> None:
    """It holds the study first, and what the ledger has until its first status is the end of the former start."""
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.FAILED)
    assert team.settle()["state"] == "Failed"
    team.namespace.held = True
    team.change(resumes=1)
    team.settle()
    study = team.namespace.studies["a"]
    study.alive = True
    assert study.status.state is RunState.FAILED
    assert team.settle()["state"] == "Pending" and team.condition("Ended")[0] == "False"
    study.status = dataclasses.replace(study.status, state=RunState.RUNNING, updated=study.submission[labels.BEGUN])
    assert team.settle()["state"] == "Running"


def test_a_job_that_changes_while_it_works_waits_for_a_resume(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 48})
    assert team.settle()["total"] == 24
    held, reason, message = team.condition("Accepted")
    assert (held, reason) == ("False", "NeedsResume") and "spec.resumes" in message


def test_a_width_of_a_changed_job_waits_for_a_resume_too(team: Team) -> None:
    team.apply()
    team.settle()
    job = team.cluster.objects["runs"]["a"]["spec"]["job"]
    team.change(job={**job, "parallel": 7, "cluster": {"deadline": 0.001}})
    team.later = 3600.0
    assert team.settle()["state"] == "Running", "nor do its deadlines count"
    (ray_cluster,) = team.cluster.objects["rayclusters"].values()
    assert ray_cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 3
    team.later = 0.0
    team.change(state="Paused", job={**job, "parallel": 7})
    team.settle()
    team.change(state="Running", resumes=1)
    team.settle()
    (ray_cluster,) = team.cluster.objects["rayclusters"].values()
    assert ray_cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 7


def test_the_code_that_was_compared_is_what_is_recorded(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.apply()
    record = team.archive.record_run

    def late(*args: Any, **fields: Any) -> None:
        assert code_reads() == 1
        record(*args, **fields)

    def code_reads() -> int:
        return [path for verb, path in team.cluster.requests if verb == "GET"].count(CODE)

    monkeypatch.setattr(team.archive, "record_run", late)
    team.reconciler.reconcile("a")
    assert team.namespace.studies["a"].code == team.plan().pack.data
    assert code_reads() == 1, "for its owner neither"


def test_more_in_parallel_is_recorded_and_then_the_cluster_grows(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(parallel=5)
    team.settle()
    assert team.namespace.studies["a"].parallel == 5
    (ray_cluster,) = team.cluster.objects["rayclusters"].values()
    assert ray_cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 5
    team.change(parallel=None)
    team.settle()
    assert team.namespace.studies["a"].parallel is None
    assert ray_cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 3


def test_fewer_in_parallel_keeps_the_pods_that_have_a_slot(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.deaf = True
    team.change(parallel=1)
    team.settle()
    (ray_cluster,) = team.cluster.objects["rayclusters"].values()
    group = ray_cluster["spec"]["workerGroupSpecs"][0]
    assert group["replicas"] == 3, "which pods stay is not known before the controller has fewer slots"
    team.namespace.deaf = False
    team.settle()
    (kept,) = team.namespace.studies["a"].status.nodes
    assert group["replicas"] == 1
    assert len(group["scaleStrategy"]["workersToDelete"]) == 2
    assert kept not in group["scaleStrategy"]["workersToDelete"]


_STRANGER = {"metadata": {"name": "a"}, "status": {}}


def _training(team: Team) -> None:
    spec = team.cluster.objects["runs"]["a"]["spec"]
    spec["job"] = {key: spec["job"][key] for key in ("name", "entrypoint", "objectives")} | {"kind": "train"}
    spec["parallel"] = 2


def _installing(team: Team) -> None:
    team.cluster.objects["runs"]["a"]["spec"]["job"] |= {"requirements": "requirements.txt", "install": True}


@pytest.mark.parametrize(
    ("spoil", "reason", "part"),
    [
        (lambda team: team.change(job={"kind": "hpo", "name": "demo"}), "Invalid", "spec.job.objectives: is missing"),
        (lambda team: team.change(state="Sleeping"), "Invalid", "spec.state: "),
        (lambda team: team.change(code={"configMaps": ["b-code"], "sha256": "0" * 64}), "Invalid", "must be a-code"),
        (_training, "Invalid", "spec.parallel: "),
        (_installing, "Invalid", "spec.job.install: the chart does not let trial pods install packages"),
        (lambda team: team.change(code={"configMaps": ["a-code"], "sha256": "0" * 64}), "CodeMismatch", "000000000000…"),
        (lambda team: _code(team, b"nothing packed"), "CodeMismatch", "damaged"),
        (lambda team: team.cluster.remove("configmaps", "a-code"), "CodeMissing", "a-code"),
        (lambda team: team.cluster.put("rayclusters", _STRANGER), "NameTaken", "kubectl delete raycluster a"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_ends_in_a_condition_and_starts_nothing(team: Team, spoil: Any, reason: str, part: str) -> None:
    team.apply()
    spoil(team)
    status = team.settle()
    assert status["state"] == ("Pending" if reason == "CodeMissing" else "Invalid")
    held, why, message = team.condition("Accepted")
    assert (held, why) == ("False", reason)
    assert part in message
    assert not team.namespace.studies
    assert not [one for one in team.ray_clusters.values() if one["metadata"].get("ownerReferences")]


def _code(team: Team, data: bytes) -> None:
    code = team.cluster.objects["configmaps"]["a-code"]
    code["binaryData"] = {names.CODE_KEY: base64.b64encode(data).decode()}


def test_a_run_of_a_name_that_the_ledger_knows_goes_on_with_the_same_and_not_with_another(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(state="Paused")
    team.settle()
    team.cluster.remove("runs", "a")
    assert team.namespace.studies["a"].status.state is RunState.PAUSED, "the record of a deleted Run stays"
    team.apply(team.plan(trials=25))
    assert team.settle()["state"] == "Invalid"
    assert "trials: 24 → 25" in team.condition("Accepted")[2]
    team.cluster.remove("runs", "a")
    team.apply()
    assert team.settle()["state"] == "Running"


def test_a_run_of_a_name_that_has_succeeded_is_not_run_again(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    team.settle()
    team.cluster.remove("runs", "a")
    assert not team.ray_clusters, "they go with the Run that owns them"
    team.apply()
    assert team.settle()["state"] == "Succeeded"
    assert not team.ray_clusters


def test_a_resume_cannot_make_it_another_study(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.FAILED)
    team.settle()
    team.cluster.remove("rayclusters", "a")
    job = {**team.cluster.objects["runs"]["a"]["spec"]["job"], "seed": 99}
    team.change(job=job, resumes=1)
    assert team.settle()["state"] == "Failed"
    held, reason, message = team.condition("Accepted")
    assert (held, reason) == ("False", "Invalid") and "spec.job.seed: cannot change" in message
    assert not team.ray_clusters


def test_what_the_api_server_refuses_is_a_condition_and_is_tried_again(team: Team) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("create", "rayclusters"):
            raise Problem(403, "exceeded quota: team, requested: count/rayclusters.ray.io=1, used: 2, limited: 2")

    team.cluster.refuse = refuse
    team.apply()
    with pytest.raises(Exception, match="exceeded quota"):
        team.reconciler.reconcile("a")
    assert team.condition("Ready")[:2] == ("False", "Refused")
    assert "exceeded quota" in team.status()["reason"]
    team.cluster.refuse = lambda *_: None
    assert team.settle()["state"] == "Running"


def test_ended_runs_go_after_their_time(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    team.settle()
    team.cluster.remove("rayclusters", "a")
    assert team.reconciler.reconcile("a") is None, "0 keeps them for ever"
    site = Site.model_validate({**SITE, "namespace": "team", "run_ttl": 60.0})
    clock = 4_000_000_000.0
    late = Reconciler(Cluster(), team.archive, site, clock=lambda: clock)  # type: ignore[arg-type]
    early = Reconciler(Cluster(), team.archive, site)  # type: ignore[arg-type]
    left = early.reconcile("a")
    assert left is not None and 0 < left <= 60
    late.reconcile("a")
    assert not team.cluster.objects["runs"] and "a" in team.namespace.studies


def test_a_run_that_is_gone_or_going_is_left_alone(team: Team) -> None:
    assert team.reconciler.reconcile("nobody") is None
    team.apply()
    team.cluster.objects["runs"]["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert team.reconciler.reconcile("a") is None
    assert not team.ray_clusters


def test_an_api_server_that_is_away_is_an_error_to_be_tried_again(team: Team) -> None:
    team.apply()
    team.cluster.close()
    with pytest.raises(TargetError):
        team.reconciler.reconcile("a")
