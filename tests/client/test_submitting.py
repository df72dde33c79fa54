"""Submitting to a cluster: what is sent, half a submission, two at the same moment, and names that are taken.

On the doubles of an API server, KubeRay and the gateway. What becomes of a run afterwards is test_kubernetes.py.
"""

from __future__ import annotations

import json
import random

import pytest
from tests.client.cluster_double import Problem

from trialplane.client.run import RunHandle, Submitted, submit
from trialplane.errors import InputError, RunExists, RunNotFound, TargetError
from trialplane.plan import render
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState


def _refuse_maps(verb: str, plural: str) -> None:
    if (verb, plural) == ("patch", "configmaps"):
        raise Problem(403, 'configmaps "a" is forbidden: exceeded quota: maps, requested: count/configmaps=1')


def test_what_is_applied_is_what_a_dry_run_shows(target, namespace, planned):
    plan = planned()
    shown = target.describe(plan)["items"]
    submit(target, plan)
    (ray_job,) = namespace.cluster.objects["rayjobs"].values()
    assert ray_job["spec"] == shown[0]["spec"]
    assert ray_job["metadata"]["labels"] == shown[0]["metadata"]["labels"]
    made = {name: one for name, one in namespace.cluster.objects["configmaps"].items() if name != names.SITE}
    assert set(made) == {"a", names.code_map("a")} == {one["metadata"]["name"] for one in shown[1:]}
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == ray_job["metadata"]["uid"] for one in made.values())
    sent = [path for verb, path in namespace.cluster.requests if verb == "PATCH"]
    assert len(sent) == 3
    assert [one["kind"] for one in render.manifests(plan, target.objects.site, 0.0)] == [one["kind"] for one in shown]


def test_code_above_one_mib_travels_whole(target, namespace, planned, workplace):
    (workplace / "jobs" / "demo" / "table.bin").write_bytes(random.Random(0).randbytes(2 * 2**20))
    plan = planned()
    submit(target, plan)
    maps = namespace.cluster.objects["configmaps"]
    code = [names.code_map("a", part) for part in range(3)]
    assert set(code) <= set(maps) and names.code_map("a", 3) not in maps
    assert target.objects.submission("a").code == plan.pack.data
    assert namespace.studies["a"].code == plan.pack.data
    kept = maps.pop(code[1])
    assert target.objects.submission("a") is None, "a part is missing"
    maps[code[1]] = kept
    target.objects.remove("a")
    assert set(maps) == {names.SITE}


def test_a_dry_run_sends_nothing(target, namespace, planned):
    target.check(planned().job)
    target.describe(planned())
    assert {verb for verb, _ in namespace.cluster.requests} == {"GET"}


def test_half_a_submission_is_taken_back(target, namespace, planned):
    namespace.cluster.refuse = lambda verb, plural, name: _refuse_maps(verb, plural)
    with pytest.raises(InputError, match="refuses the request: exceeded quota: maps"):
        submit(target, planned())
    assert namespace.cluster.objects["rayjobs"] == {}
    assert target.runs() == []


def test_a_run_is_written_down_before_its_objects_are_made(target, namespace, planned):
    known = []
    made = namespace.cluster.made
    namespace.cluster.made = lambda thing: (known.extend(namespace.studies), made(thing))
    submit(target, planned())
    assert known == ["a"]


def test_a_submission_that_was_interrupted_before_its_objects_were_made_is_known(target, namespace, planned):
    assert target.gateway.record(planned(), 1.0, new=True)
    handle = RunHandle("a", target)
    assert (handle.status().state, target.runs()) == (RunState.PAUSED, ["a"])
    handle.resume()
    assert handle.status().state is RunState.RUNNING


def test_of_two_submissions_that_saw_no_run_of_the_name_the_first_is_written_down(target, namespace, planned, monkeypatch):
    monkeypatch.setattr(target, "observe", lambda run: None)  # as both have seen it
    assert target.gateway.record(planned(), 1.0, new=True)
    with pytest.raises(RunExists, match=r"trials: 6 → 7"):
        submit(target, planned(trials=7))
    assert namespace.cluster.objects["rayjobs"] == {}
    assert submit(target, planned()) is Submitted.NEW
    assert len(namespace.studies) == len(namespace.cluster.objects["rayjobs"]) == 1


def test_a_ray_job_of_somebody_else_is_left_alone(target, namespace, planned):
    theirs = {"metadata": {"name": "a"}, "spec": {}, "status": {"jobDeploymentStatus": "Running"}}
    namespace.cluster.put("rayjobs", theirs)
    with pytest.raises(RunExists, match=r"rayjob a in .* belongs to no run; choose another with --name"):
        submit(target, planned())
    with pytest.raises(RunNotFound):
        RunHandle("a", target).status()


def test_a_config_map_of_the_chart_is_left_alone(target, namespace, planned):
    before = json.dumps(namespace.cluster.objects["configmaps"][names.SITE])
    with pytest.raises(RunExists, match=r"configmap trialplane in .* belongs to no run"):
        submit(target, planned(names.SITE))
    assert json.dumps(namespace.cluster.objects["configmaps"][names.SITE]) == before
    assert namespace.cluster.objects["rayjobs"] == {}


def test_another_submission_of_the_name_at_the_same_moment_is_refused(target, namespace, planned):
    """Both have seen that there is no such run."""
    plan, other = planned(), planned(trials=7)
    target.objects.apply(plan, 1.0)
    target.objects.apply(plan, 2.0)
    with pytest.raises(RunExists, match="a moment ago"):
        target.objects.apply(other, 3.0)
    assert target.job("a") == plan.job
    assert len(namespace.cluster.objects["rayjobs"]) == 1


def test_a_run_that_is_just_being_submitted_is_not_replaced(target, namespace, planned, monkeypatch):
    """It is in the ledger, and its RayJob is yet to be made."""
    meanwhile = []

    def applied(plan, submitted):
        monkeypatch.undo()
        with pytest.raises(RunExists):
            submit(target, planned(trials=7))
        meanwhile.append(submit(target, planned()))
        target.objects.apply(plan, submitted)

    monkeypatch.setattr(target.objects, "apply", applied)
    assert submit(target, planned()) is Submitted.NEW
    assert meanwhile == [Submitted.NEW], "the same submission completes it"
    assert target.job("a") == planned().job
    assert (target.runs(), len(namespace.cluster.objects["rayjobs"])) == (["a"], 1)
    assert RunHandle("a", target).status().state is RunState.RUNNING


def test_a_submission_that_was_interrupted_is_completed_by_the_same_again(target, namespace, planned):
    target.objects.apply(planned(), 1.0)
    namespace.cluster.remove("configmaps", names.code_map("a"))
    with pytest.raises(RunExists, match="platform status a"):
        submit(target, planned(trials=7))
    assert submit(target, planned()) is Submitted.NEW
    assert RunHandle("a", target).status().state is RunState.RUNNING


def test_a_submission_that_fails_half_way_leaves_what_another_made(target, namespace, planned):
    target.objects.apply(planned(), 1.0)
    namespace.cluster.refuse = lambda verb, plural, name: _refuse_maps(verb, plural)
    with pytest.raises(InputError, match="exceeded quota"):
        target.objects.apply(planned(), 2.0)
    assert set(namespace.cluster.objects["rayjobs"]) == {"a"}


def test_what_a_dry_run_printed_and_kubectl_applied_is_a_run_like_any_other(target, namespace, planned):
    for thing in target.describe(planned())["items"]:
        target.cluster.apply(thing, "kubectl", force=False)
    handle = RunHandle("a", target)
    assert handle.status().state is RunState.RUNNING
    handle.delete()
    assert set(namespace.cluster.objects["configmaps"]) == {names.SITE}


def test_a_run_that_never_started_is_replaced(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    namespace.cluster.objects["rayjobs"]["a"]["status"].update(
        jobDeploymentStatus="Failed", reason="PreRunningDeadlineExceeded"
    )
    assert submit(target, planned(trials=7)) is Submitted.REPLACED
    assert target.job("a").trials == 7


def test_the_same_submission_of_a_living_run_needs_no_gateway(target, namespace, planned):
    submit(target, planned())
    namespace.down = True
    assert submit(target, planned()) is Submitted.RUNNING
    with pytest.raises(RunExists, match=r"trials: 6 → 7"):
        submit(target, planned(trials=7))


def test_nothing_is_submitted_while_the_gateway_is_away(target, namespace, planned):
    """A study of that name may be in the ledger."""
    namespace.down = True
    with pytest.raises(TargetError, match="nothing was started"):
        submit(target, planned())
    assert namespace.cluster.objects["rayjobs"] == {}
