"""Submitting to a cluster: what is sent, half a submission, two at the same moment, and names that are taken.

On the doubles of an API server, KubeRay and the gateway, with the operator as it is. What becomes of a run afterwards is
test_kubernetes.py.
"""

from __future__ import annotations

import json
import random

import pytest
from tests.kube.cluster_double import Problem

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle, SubmissionOutcome, submit
from trialplane.errors import InputError, RunExists, TargetError
from trialplane.kube import cluster
from trialplane.plan import run as runs
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState


def _refuse_maps(verb: str, plural: str) -> None:
    if (verb, plural) == ("create", "configmaps"):
        raise Problem(403, 'configmaps "a" is forbidden: exceeded quota: maps, requested: count/configmaps=1')


def test_what_is_applied_is_what_a_dry_run_shows(target, namespace, planned):
    plan = planned()
    shown, code = target.describe(plan)["items"]
    submit(target, plan)
    (run,) = namespace.cluster.objects["runs"].values()
    shown["spec"]["submission"]["submitted"] = run["spec"]["submission"]["submitted"]
    assert run["spec"] == shown["spec"]
    assert run["metadata"]["labels"] == shown["metadata"]["labels"]
    made = namespace.cluster.objects["configmaps"][names.code_map("a")]
    assert (made["binaryData"], made["immutable"]) == (code["binaryData"], True)
    assert made["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    sent = [path.rpartition("/")[2] for verb, path in namespace.cluster.requests if verb != "GET"]
    assert set(sent) - {"selfsubjectreviews", "token"} == {"a", "configmaps"}, (
        "and nothing else: the operator makes the rest"
    )


def test_a_run_is_of_whom_the_api_server_knows(target, namespace, planned):
    shown, _ = target.describe(planned())["items"]
    assert shown["metadata"]["annotations"] == {names.OWNER: "ada"}
    submit(target, planned())
    made = namespace.cluster.objects["runs"]["a"]
    assert made["metadata"]["annotations"] == {names.OWNER: "ada"}
    assert target.observe("a").status.owner == "ada"


def test_who_changes_the_run_of_another_is_named_and_its_owner_after_that(target, double, namespace, planned):
    def annotations():
        return namespace.cluster.objects["runs"]["a"]["metadata"].get("annotations")

    submit(target, planned())
    target.desire("a", parallel=1)
    assert annotations() == {names.OWNER: "ada"}, "the owner's own changes need no other name"
    namespace.cluster.user = "lead"
    KubernetesTarget().desire("a", parallel=2)
    assert annotations() == {names.OWNER: "ada", names.CHANGED_BY: "lead"}
    namespace.cluster.user = "ada"
    target.desire("a", parallel=1)
    assert annotations() == {names.OWNER: "ada", names.CHANGED_BY: "ada"}
    del namespace.cluster.objects["runs"]["a"]["metadata"]["annotations"]  # made where admission is off
    target.desire("a", parallel=2)
    assert annotations() == {names.CHANGED_BY: "ada"}


def test_code_above_one_mib_travels_whole(target, namespace, planned, workplace):
    (workplace / "jobs" / "demo" / "table.bin").write_bytes(random.Random(0).randbytes(2 * 2**20))
    plan = planned()
    submit(target, plan)
    maps = namespace.cluster.objects["configmaps"]
    code = [names.code_map("a", part) for part in range(3)]
    assert set(code) <= set(maps) and names.code_map("a", 3) not in maps
    run = target.objects.run("a")
    assert run.parsed.spec.code.config_maps == tuple(code)
    assert {maps[name]["metadata"]["ownerReferences"][0]["uid"] for name in code} == {run.manifest["metadata"]["uid"]}
    assert target.objects.submission(run).code == plan.pack.data
    assert RunHandle("a", target).status().state is RunState.RUNNING
    assert namespace.studies["a"].code == plan.pack.data
    kept = maps.pop(code[1])
    assert target.objects.submission(run) is None, "a part is missing"
    maps[code[1]] = kept
    target.objects.remove("a")
    assert set(maps) == {names.SITE}


def test_of_several_parts_those_that_are_missing_are_sent(target, namespace, planned, workplace):
    """As after a submission that was interrupted between them."""
    (workplace / "jobs" / "demo" / "table.bin").write_bytes(random.Random(0).randbytes(2 * 2**20))
    run, *code = target.describe(planned())["items"]
    for thing in (run, code[1]):
        target.cluster.apply(thing, "another", force=False)
    reason = RunHandle("a", target).status().reason
    assert "the ConfigMaps a-code with code.tar.gz, a-code-2 with code.tar.gz.2 are not there yet" in reason
    assert submit(target, planned()) is SubmissionOutcome.NEW
    assert RunHandle("a", target).status().state is RunState.RUNNING
    assert namespace.studies["a"].code == planned().pack.data


def test_a_submission_right_after_the_installation_waits_for_the_quota(
    target, namespace, planned, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "QUOTA_PAUSE", 0.0)
    refusals = ["runs is forbidden: status unknown for quota: platform-counts, resources: count/runs.trialplane.io"] * 2

    def refuse(verb: str, plural: str, name: str) -> None:
        if plural == "runs" and verb == "patch" and refusals:
            raise Problem(403, refusals.pop())

    namespace.cluster.refuse = refuse
    assert submit(target, planned()) is SubmissionOutcome.NEW
    assert not refusals
    assert caplog.text.count("has not applied the quota") == 1


def test_of_a_submission_whose_second_part_is_refused_nothing_is_left(target, namespace, planned, workplace):
    """Users may not delete ConfigMaps, so the first part goes with its Run."""
    (workplace / "jobs" / "demo" / "table.bin").write_bytes(random.Random(0).randbytes(2 * 2**20))
    namespace.unattended = True

    def refuse(verb: str, plural: str, name: str) -> None:
        if names.code_map("a") in namespace.cluster.objects["configmaps"]:
            _refuse_maps(verb, plural)

    namespace.cluster.refuse = refuse
    with pytest.raises(InputError, match="exceeded quota"):
        submit(target, planned())
    assert namespace.cluster.objects["runs"] == {}
    assert set(namespace.cluster.objects["configmaps"]) == {names.SITE}


def test_a_dry_run_sends_nothing(target, namespace, planned):
    target.check(planned().job)
    target.describe(planned())
    sent = [path.rpartition("/")[2] for verb, path in namespace.cluster.requests if verb != "GET"]
    assert set(sent) <= {"selfsubjectreviews", "token"}, "which ask who somebody is"


def test_half_a_submission_is_taken_back(target, namespace, planned):
    namespace.cluster.refuse = lambda verb, plural, name: _refuse_maps(verb, plural)
    with pytest.raises(InputError, match=r"refuses the request: exceeded quota: maps.*`platform delete RUN`.*`counts`"):
        submit(target, planned())
    assert namespace.cluster.objects["runs"] == namespace.cluster.objects["rayclusters"] == {}
    assert target.runs() == []


def test_a_submission_that_was_interrupted_before_its_code_was_sent_waits_for_it(target, namespace, planned):
    run, _ = target.describe(planned())["items"]
    target.cluster.apply(run, "another", force=False)
    handle = RunHandle("a", target)
    status = handle.status()
    assert (status.state, handle.is_active(), target.runs()) == (RunState.PENDING, True, ["a"])
    assert f"the ConfigMap {names.code_map('a')} with code.tar.gz is not there yet" in status.reason
    with pytest.raises(RunExists, match="platform status a"):
        submit(target, planned(trials=7))
    assert submit(target, planned()) is SubmissionOutcome.NEW
    assert handle.status().state is RunState.RUNNING


def test_of_two_submissions_that_saw_no_run_of_the_name_the_first_counts(target, namespace, planned, monkeypatch):
    monkeypatch.setattr(target, "observe", lambda run: None)  # as both have seen it
    assert submit(target, planned()) is SubmissionOutcome.NEW
    with pytest.raises(RunExists, match="another a was submitted a moment ago"):
        submit(target, planned(trials=7))
    assert submit(target, planned()) is SubmissionOutcome.NEW
    assert target.job("a") == planned().job
    assert len(namespace.studies) == len(namespace.cluster.objects["rayclusters"]) == 1
    assert namespace.cluster.objects["runs"]["a"]["metadata"]["generation"] == 1, "the second has changed nothing"


def test_a_ray_cluster_of_somebody_else_is_left_alone(target, namespace, planned):
    theirs = {"metadata": {"name": "a"}, "spec": {}, "status": {}}
    namespace.cluster.put("rayclusters", theirs)
    submit(target, planned())
    status = RunHandle("a", target).status()
    assert status.state is RunState.FAILED
    assert "the RayCluster a does not belong to this Run; give the Run another name" in status.reason
    assert namespace.cluster.objects["rayclusters"]["a"]["spec"] == {}


def test_a_ray_cluster_of_an_earlier_run_of_the_name_is_waited_for(target, namespace, planned):
    """It goes with its Run, later."""
    owner = {"kind": runs.KIND, "name": "a", "uid": "of-the-earlier-one"}
    namespace.cluster.put("rayclusters", {"metadata": {"name": "a", "ownerReferences": [owner]}, "spec": {}, "status": {}})
    submit(target, planned())
    assert RunHandle("a", target).status().state is RunState.PENDING
    namespace.cluster.remove("rayclusters", "a")
    assert RunHandle("a", target).status().state is RunState.RUNNING


def test_a_config_map_of_somebody_else_is_left_alone(target, namespace, planned):
    before = json.dumps(namespace.cluster.objects["configmaps"][names.SITE])
    namespace.cluster.put("configmaps", {"metadata": {"name": names.code_map("a")}, "data": {"mine": "1"}})
    with pytest.raises(
        RunExists, match=f"ConfigMap {names.code_map('a')} in .* holds something else; choose another with --name"
    ):
        submit(target, planned())
    assert namespace.cluster.objects["runs"] == {}
    submit(target, planned(names.SITE))
    assert RunHandle(names.SITE, target).status().state is RunState.RUNNING
    assert json.dumps(namespace.cluster.objects["configmaps"][names.SITE]) == before


def test_a_submission_that_fails_half_way_leaves_what_another_made(target, namespace, planned):
    target.cluster.apply(target.describe(planned())["items"][0], "another", force=False)
    namespace.cluster.refuse = lambda verb, plural, name: _refuse_maps(verb, plural)
    with pytest.raises(InputError, match="exceeded quota"):
        target.objects.apply(planned(), 2.0)
    assert set(namespace.cluster.objects["runs"]) == {"a"}


def test_what_a_dry_run_printed_and_kubectl_applied_is_a_run_like_any_other(target, namespace, planned):
    for thing in target.describe(planned())["items"]:
        target.cluster.apply(thing, "kubectl", force=False)
    handle = RunHandle("a", target)
    assert handle.status().state is RunState.RUNNING
    assert submit(target, planned()) is SubmissionOutcome.RUNNING
    handle.delete()
    assert set(namespace.cluster.objects["configmaps"]) == {names.SITE}


def test_a_run_that_never_started_is_replaced(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    namespace.end("a", RunState.FAILED, "its code does not import")
    assert submit(target, planned(trials=7)) is SubmissionOutcome.REPLACED
    assert target.job("a").trials == 7


def test_the_same_submission_of_a_living_run_needs_no_gateway(target, namespace, planned):
    submit(target, planned())
    namespace.down = True
    assert submit(target, planned()) is SubmissionOutcome.RUNNING
    with pytest.raises(RunExists, match=r"trials: 6 → 7"):
        submit(target, planned(trials=7))


def test_nothing_is_submitted_while_the_gateway_is_away(target, namespace, planned):
    """A study of that name may be in the ledger."""
    namespace.down = True
    with pytest.raises(TargetError, match="nothing was started"):
        submit(target, planned())
    assert namespace.cluster.objects["runs"] == {}


def test_a_cluster_without_the_definition_of_runs_says_who_installs_it(target, namespace, planned, monkeypatch):
    monkeypatch.delitem(namespace.cluster.objects, "runs")
    with pytest.raises(
        TargetError, match=r"does not know runs\.trialplane\.io: .*charts/platform/crds/`, then `helm upgrade`"
    ):
        submit(target, planned())


def test_an_operator_that_does_not_answer_is_reported(target, namespace, planned):
    namespace.unattended = True
    submit(target, planned())
    handle = RunHandle("a", target)
    assert handle.status().reason == "the operator is about to start it"
    run = namespace.cluster.objects["runs"]["a"]
    run["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    status = handle.status()
    assert (status.state, handle.is_active()) == (RunState.PENDING, True)
    assert "the operator has not answered for" in status.reason
    assert "`kubectl --context lab -n team get pods -l trialplane.io/role=operator`" in status.reason


def test_a_run_that_the_operator_cannot_read_says_why(target, namespace, planned):
    run, code = target.describe(planned())["items"]
    run["spec"]["job"]["trials"] = 0
    for thing in (run, code):
        target.cluster.apply(thing, "kubectl", force=False)
    status = RunHandle("a", target).status()
    assert (status.state, status.job) == (RunState.FAILED, "demo")
    assert "spec.job.trials: " in status.reason
    assert runs.CODE_MISSING not in status.reason
