"""What the target of a cluster does beyond the contract: its two witnesses, what is left where, and refusals.

On the doubles of an API server, KubeRay and the gateway, with the operator as it is. The contract itself is
tests/contracts/test_target.py; scaling is test_scaling.py; what a cluster refuses is test_cluster.py; submitting is
test_submitting.py.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.client.conftest import scaled, submitted
from tests.client.kuberay_double import PAGE
from tests.kube.cluster_double import Problem

from trialplane.client import sources
from trialplane.client.gateway import Gateway
from trialplane.client.run import RunHandle, submit
from trialplane.client.target import Observation
from trialplane.errors import InputError, RunDamaged, SpecError, TargetError
from trialplane.kube import objects
from trialplane.ledger.attempts import Attempt
from trialplane.wire import cluster as names
from trialplane.wire.records import Desired, ReportRow, TrialRequest, TrialRow
from trialplane.wire.states import RunState, TrialState

# How it stands


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        ({"kind": "population"}, "'population', and this version supports hpo, train, collect: another version wrote it"),
        ({"kind": "train", "step": "many"}, "an invalid value for `progress`"),
        ({}, "no RunStatus: 'kind'"),
    ],
)
def test_a_status_that_cannot_be_read_is_that_of_one_damaged_run(target, namespace, planned, progress, why):
    handle = submitted(target, planned())
    namespace.unattended = True
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, progress=progress)
    assert why in handle.status().reason, "what Kubernetes knows is shown all the same"
    namespace.cluster.remove("runs", "a")
    with pytest.raises(RunDamaged) as caught:
        handle.status()
    assert why in str(caught.value)


def test_a_run_whose_pods_wait_is_pending_with_the_reason(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    for pod in namespace.cluster.objects["pods"].values():
        message = "0/1 nodes are available: 1 Insufficient cpu."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
    status = RunHandle("a", target).status()
    assert (status.state, status.trials, status.job) == (RunState.PENDING, 6, "demo")
    assert "the controller's pod a-head-x7k2p fits no node, for lack of cpu (0/1" in status.reason
    assert target.is_active("a")


def test_a_running_run_says_which_trial_pods_wait(target, namespace, planned):
    handle = submitted(target, planned(parallel=3))
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, slots_ready=1)
    pod = namespace.cluster.objects["pods"]["a-trials-worker-2"]
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    status = handle.status()
    assert status.state is RunState.RUNNING
    assert status.reason.startswith("1 of 3 trial pods: it cannot get its image")


def test_a_head_pod_that_is_made_anew_keeps_the_counts(target, namespace, planned):
    handle = submitted(target, planned())
    study = namespace.studies["a"]
    study.rows = [TrialRow(trial, TrialState.COMPLETE, 1, trial, values=(0.5,)) for trial in range(4)]
    study.alive = False
    status = handle.status()
    assert (status.state, status.complete) == (RunState.PENDING, 4)  # counted anew: its last word was older
    assert status.best is not None
    assert handle.is_active()


def test_pages_of_a_long_run_are_followed(target, namespace, planned):
    handle = submitted(target, planned())
    study = namespace.studies["a"]
    study.rows = [TrialRow(trial, TrialState.COMPLETE, 1, trial, values=(0.5,)) for trial in range(2 * PAGE + 1)]
    study.whole = [Attempt(TrialRequest("a", trial, 1, trial, {}, 0, ("score",))) for trial in range(2 * PAGE)]
    assert handle.attempts() == study.rows
    assert target.ended_rows("a", 1) == (2 * PAGE + 1, study.rows[1:])
    assert target.attempts("a", 0) == (study.whole, study.alive)


def test_what_kubernetes_alone_knows_is_shown_while_the_gateway_is_away(target, namespace, planned):
    handle = submitted(target, planned())
    namespace.down = True
    status = handle.status()
    assert (status.state, status.trials) == (RunState.RUNNING, 6)
    assert "the gateway trialplane-gateway in namespace team of lab does not answer" in status.reason
    assert target.runs() == ["a"]
    with pytest.raises(TargetError, match="does not answer"):
        handle.attempts()
    with pytest.raises(TargetError, match="only runs with a Run object can be read"):
        RunHandle("b", target).status()


def test_a_failed_run_says_why(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    namespace.end("a", RunState.FAILED, "no trial was started: there is no module numpyy")
    status = RunHandle("a", target).status()
    assert (status.state, status.reason) == (RunState.FAILED, "no trial was started: there is no module numpyy")
    assert RunHandle("a", target).exit_code == 2, "as where the controller is a process of this machine"


def test_a_ray_cluster_that_was_deleted_is_made_again(target, namespace, planned):
    handle = submitted(target, planned())
    before = namespace.cluster.objects["rayclusters"]["a"]["metadata"]["uid"]
    namespace.cluster.remove("rayclusters", "a")
    assert handle.status().state is RunState.RUNNING
    assert namespace.cluster.objects["rayclusters"]["a"]["metadata"]["uid"] != before


@pytest.mark.parametrize("changes", [{}, {"trials": 9}])
def test_a_run_whose_run_was_deleted_can_be_resumed(target, namespace, planned, changes):
    handle = submitted(target, planned())
    namespace.tell("a", [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,))])
    code = namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"]
    namespace.cluster.remove("runs", "a")
    status = handle.status()
    assert (status.state, status.complete, handle.is_active()) == (RunState.PAUSED, 1, False)
    assert "`platform resume a` creates one and continues" in status.reason
    assert len(handle.attempts()) == 1
    handle.resume(changes=changes)
    assert (handle.status().state, handle.status().complete) == (RunState.RUNNING, 1)
    assert handle.job.trials == changes.get("trials", 6)
    assert namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"] == code
    assert namespace.studies["a"].submission["user"] == "ann"


def test_a_paused_run_whose_run_was_deleted_can_be_cancelled(target, namespace, planned):
    handle = submitted(target, planned())
    handle.pause()
    namespace.cluster.remove("runs", "a")
    assert handle.cancel().state is RunState.CANCELLED
    assert namespace.studies["a"].desired is RunState.CANCELLED
    handle.resume()
    assert handle.status().state is RunState.RUNNING


def test_a_run_whose_run_was_just_removed_goes_on_until_its_controller_ends(target, namespace, planned):
    handle = submitted(target, planned())
    for thing in namespace.cluster.objects["rayclusters"].values():
        thing["metadata"]["ownerReferences"] = []
    namespace.cluster.remove("runs", "a")
    assert (handle.status().state, handle.is_active(), target.runs()) == (RunState.RUNNING, True, ["a"])
    for call in (handle.pause, handle.cancel, lambda: scaled(target, 2)):
        with pytest.raises(InputError, match="was removed, and its pods are ending; try again in a moment"):
            call()
    namespace.cluster.remove("rayclusters", "a")
    assert handle.status().state is RunState.PAUSED
    handle.resume()
    assert handle.status().state is RunState.RUNNING


# Ending


def test_cancel_leaves_the_run_alone(target, namespace, planned):
    handle = submitted(target, planned())
    assert handle.cancel().state is RunState.CANCELLED
    kept = {plural: set(things) for plural, things in namespace.cluster.objects.items() if things}
    maps = {names.SITE, names.code_map("a")}
    assert len(kept.pop("events")) == 2, "its submission, and the cancel"
    # The Secret goes with the Run, and so do the network policies; the token in it opens nothing any more.
    kept_with_it = {"secrets": {"a.ray", "a.token"}, "networkpolicies": {"a.head", "a.trials"}}
    assert kept == {"runs": {"a"}, "configmaps": maps, **kept_with_it}, "and no pod"
    assert namespace.studies["a"].token is None
    assert handle.status().state is RunState.CANCELLED
    assert handle.job == planned().job


def test_a_controller_that_does_not_answer_is_killed_by_now(target, namespace, planned):
    handle = submitted(target, planned())
    namespace.deaf = True
    with pytest.raises(TargetError, match="platform cancel a --now"):
        handle.cancel(patience=0.1)
    namespace.tell("a", [TrialRow(trial, TrialState.COMPLETE, 1, trial, values=(0.5,)) for trial in (0, 1)])
    namespace.studies["a"].status = dataclasses.replace(namespace.studies["a"].status, complete=1)  # its last word
    assert handle.cancel(now=True, patience=60).state is RunState.CANCELLED
    assert namespace.cluster.objects["rayclusters"] == {}
    status = handle.status()
    assert (status.state, status.complete, status.slots_ready) == (RunState.CANCELLED, 2, 0)
    with pytest.raises(InputError, match=r"ended already \(CANCELLED\)"):
        handle.cancel()


def test_pausing_gives_the_pods_back_and_resuming_brings_the_same_code(target, namespace, planned, workplace):
    handle = submitted(target, planned())
    code = namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"]
    first = namespace.studies["a"].submission["submitted"]
    handle.pause()
    assert namespace.cluster.objects["pods"] == {}
    (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx):\n    return 1.0\n")
    handle.resume()
    assert namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"] == code
    facts = json.loads(namespace.cluster.objects["configmaps"]["a.spec"]["data"]["submission.json"])
    assert (facts["submitted"], facts["user"]) == (first, "ann")
    assert handle.status().state is RunState.RUNNING


def test_a_change_that_the_operator_does_not_follow_is_kept_and_reported(target, namespace, planned, monkeypatch):
    handle = submitted(target, planned())
    namespace.unattended = True
    monkeypatch.setattr(sources, "PATIENCE", 0.1)
    with pytest.raises(TargetError, match=r"written into the Run a in .*, but the operator has not followed it for 0 s"):
        handle.pause()
    namespace.unattended = False
    assert handle.wait(60).state is RunState.PAUSED


def test_a_run_is_not_over_before_the_operator_has_followed_a_change(target, namespace, planned):
    """As of `kubectl patch`, after which nobody waits."""
    handle = submitted(target, planned())
    handle.pause()
    namespace.unattended = True
    target.objects.change(target.objects.run("a"), state="Running", resumes=1)
    status = handle.status()
    assert (status.state, handle.is_active()) == (RunState.PENDING, True)
    assert "the operator is about to follow the change; if that lasts, `kubectl" in status.reason
    namespace.unattended = False
    assert handle.status().state is RunState.RUNNING


def test_a_reason_that_both_sources_have_is_shown_once(target, namespace, planned):
    handle = submitted(target, planned())
    namespace.unattended = True
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, slots_ready=0, reason="the head is starting")
    run = namespace.cluster.objects["runs"]["a"]
    run["status"]["reason"] = "the head is starting; 1 of 2 trial pods: it fits no node"
    assert handle.status().reason == "the head is starting; 1 of 2 trial pods: it fits no node"


def test_of_two_changes_from_one_state_the_second_is_refused(target, namespace, planned):
    submitted(target, planned())
    before = target.objects.run("a")
    target.objects.change(before, parallel=3)
    with pytest.raises(TargetError, match="changed concurrently: try again"):
        target.objects.change(before, parallel=4)


def test_what_the_api_server_refuses_is_said_without_its_wrapping(target, namespace, planned):
    handle = submitted(target, planned())
    handle.pause()

    def refuse(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("patch", "runs"):
            raise Problem(422, 'Run.trialplane.io "a" is invalid: spec.code: the code of a run never changes', name="a")

    namespace.cluster.refuse = refuse
    with pytest.raises(InputError, match=r"rejects the request: spec\.code: the code of a run never changes$"):
        handle.resume()


def test_a_pause_waits_until_its_pods_go(target, namespace, planned, monkeypatch):
    handle = submitted(target, planned())
    monkeypatch.setattr(objects, "PATIENCE", 0.1)
    namespace.cluster.put("pods", {"metadata": {"name": "late", "labels": {names.RUN: "a"}}, "spec": {"containers": []}})
    with pytest.raises(TargetError, match=r"1 pod of a in .* did not begin to end within 0 s"):
        handle.pause()
    namespace.cluster.objects["pods"]["late"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    target.remove("a", forget=False)


def test_how_its_pods_are_made_may_change_at_resume(target, namespace, planned):
    handle = submitted(target, planned())
    handle.pause()
    handle.resume(sets=["cluster.image=trialplane/trial:2"])
    pod = namespace.cluster.objects["pods"]["a-trials-worker-0"]
    assert pod["spec"]["containers"][0]["image"] == "trialplane/trial:2"


def test_a_look_at_a_run_that_goes_on_asks_each_witness_once(target, namespace, planned):
    handle = submitted(target, planned())
    looks = handle.watch()
    next(looks)
    namespace.cluster.requests.clear()
    next(looks)
    asked = [path.rpartition("/")[2] for _, path in namespace.cluster.requests]
    assert [what for what in asked if what in ("a", "status")] == ["a", "status"]
    assert target.observe("a") == Observation(RunHandle("a", target).status(), True, Desired())
    namespace.end("a", RunState.SUCCEEDED)
    assert (handle.observe().status.state, handle.observe().is_active) == (RunState.SUCCEEDED, False)


# Logs


def test_the_log_of_a_controller_that_never_spoke_is_its_pods(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    with pytest.raises(InputError, match="has no log yet: the controller's pod"):
        RunHandle("a", target).logs()
    pod = namespace.cluster.objects["pods"]["a-head-x7k2p"]
    (box,) = pod["status"]["initContainerStatuses"]
    box["lastState"] = {"terminated": {"exitCode": 2}}
    namespace.cluster.logs["a-head-x7k2p"] = "job.json cannot be read\nhalf a line"
    assert list(RunHandle("a", target).logs()) == ["job.json cannot be read\n", "half a line"]


# Before anything starts


def node(**allocatable: str) -> dict:
    return {
        "metadata": {"name": "n", "labels": {}},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", **allocatable}},
    }


def test_more_gpus_than_any_node_has(target, namespace, planned):
    namespace.cluster.put("nodes", node(**{"nvidia.com/gpu": "2"}))
    found, _ = target.check(planned(**{"resources.gpus": 4}).job)
    assert [(one.field, one.message) for one in found] == [
        (
            "resources.gpus",
            "a trial requests 4 nvidia.com/gpu, and the largest node that it may run on has 2 nvidia.com/gpu; "
            "--set resources.gpus=2",
        )
    ]
    assert target.check(planned(**{"resources.gpus": 2}).job) == ([], [])


def test_nodes_that_may_not_be_listed_are_a_warning(target, namespace, planned):
    def refuse(verb: str, plural: str, name: str) -> None:
        if plural == "nodes":
            raise Problem(403, 'nodes is forbidden: User "ann" cannot list resource "nodes" at the cluster scope')

    namespace.cluster.refuse = refuse
    assert target.check(planned(**{"resources.gpus": 4}).job)[1][0].startswith("nodes may not be listed")
    assert target.check(planned().job) == ([], [])


def test_a_resumed_run_must_fit(target, namespace, planned):
    handle = submitted(target, planned())
    handle.pause()
    with pytest.raises(SpecError, match=r"does not allow .* high here"):
        handle.resume(sets=["cluster.priority_class=high"])


def test_a_gateway_in_another_namespace_is_asked_about_the_runs_of_this_one(target, namespace, planned):
    handle = submitted(target, planned())
    site = target.objects.site.model_copy(update={"control": "platform"})
    assert Gateway(target.cluster, site).job(handle.name) is not None
    service = "/api/v1/namespaces/platform/services/http:trialplane-gateway:8080/proxy"
    assert namespace.cluster.requests[-1] == ("GET", f"{service}/namespaces/team/runs/a/job")


def test_a_limit_of_reports_spares_the_pages_behind_it(target, namespace, planned):
    handle = submitted(target, planned())
    namespace.studies["a"].curves = [ReportRow(mark, 0, 1, 0, mark, {"loss": 1.0}, 1.0) for mark in range(1, 5 * PAGE)]
    before = len(namespace.cluster.requests)
    assert [report.mark for report in handle.reports(limit=PAGE + 1)] == list(range(1, PAGE + 2))
    assert sum("/curves" in path for _, path in namespace.cluster.requests[before:]) == 2
