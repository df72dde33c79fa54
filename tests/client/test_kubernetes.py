"""What the target of a cluster does beyond the contract: its two witnesses, what is left where, scaling, and refusals.

On the doubles of an API server, KubeRay and the gateway. The contract itself is tests/contracts/test_target.py; what a
cluster refuses is test_cluster.py; submitting is test_submitting.py.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.client.cluster_double import Problem
from tests.client.conftest import scaled

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle, submit
from trialplane.client.target import Observed
from trialplane.errors import InputError, RunDamaged, SpecError, TargetError
from trialplane.wire import cluster as names
from trialplane.wire.records import Desired, TrialRow
from trialplane.wire.states import RunState, TrialState


def started(target: KubernetesTarget, plan) -> RunHandle:
    submit(target, plan)
    handle = RunHandle(plan.run, target)
    assert handle.status().state is RunState.RUNNING
    return handle


# How it stands


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        ({"kind": "population"}, "'population', and this version knows hpo, train, collect: another version wrote it"),
        ({"kind": "train", "step": "many"}, "an invalid value for `progress`"),
        ({}, "no RunStatus: 'kind'"),
    ],
)
def test_a_status_that_cannot_be_read_is_that_of_one_damaged_run(target, namespace, planned, progress, why):
    handle = started(target, planned())
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, progress=progress)
    assert why in handle.status().reason, "what Kubernetes knows is shown all the same"
    namespace.cluster.objects["rayjobs"].clear()
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
    assert "the controller's pod a-x7k2p-head fits no node, for lack of 1 cpu" in status.reason
    assert target.is_active("a")


def test_a_running_run_says_which_trial_pods_wait(target, namespace, planned):
    handle = started(target, planned(parallel=3))
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, slots_ready=1)
    pod = namespace.cluster.objects["pods"]["a-x7k2p-trials-worker-2"]
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    status = handle.status()
    assert status.state is RunState.RUNNING
    assert status.reason.startswith("1 of 3 trial pods: it cannot get its image")


def test_a_head_pod_that_is_made_anew_keeps_the_counts(target, namespace, planned):
    handle = started(target, planned())
    study = namespace.studies["a"]
    study.rows = [TrialRow(trial, TrialState.COMPLETE, 1, trial, values=(0.5,)) for trial in range(4)]
    study.alive = False
    status = handle.status()
    assert (status.state, status.complete) == (RunState.PENDING, 4)  # counted anew: its last word was older
    assert status.best is not None
    assert handle.is_active()


def test_what_kubernetes_alone_knows_is_shown_while_the_gateway_is_away(target, namespace, planned):
    handle = started(target, planned())
    namespace.down = True
    status = handle.status()
    assert (status.state, status.trials) == (RunState.RUNNING, 6)
    assert "the gateway trialplane-gateway in namespace team of lab does not answer" in status.reason
    assert target.runs() == ["a"]
    with pytest.raises(TargetError, match="does not answer"):
        handle.attempts()
    with pytest.raises(TargetError, match="only active runs are known"):
        RunHandle("b", target).status()


def test_a_failed_run_says_why(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    namespace.cluster.objects["rayjobs"]["a"]["status"].update(
        jobDeploymentStatus="Failed", reason="PreRunningDeadlineExceeded", message="after 1h"
    )
    status = RunHandle("a", target).status()
    assert status.state is RunState.FAILED
    assert "its pods did not start in time (preRunningDeadlineSeconds): after 1h" in status.reason
    assert RunHandle("a", target).exit_code == 1


def test_a_run_whose_ray_job_was_deleted_can_be_resumed(target, namespace, planned):
    handle = started(target, planned())
    namespace.cluster.remove("rayjobs", "a")
    assert handle.status().state is RunState.PAUSED
    assert "platform resume a" in handle.status().reason
    handle.resume()
    assert handle.status().state is RunState.RUNNING


def test_an_unknown_phase_is_no_error(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    namespace.cluster.objects["rayjobs"]["a"]["status"].update(jobDeploymentStatus="Dreaming")
    status = RunHandle("a", target).status()
    assert (status.state, "Dreaming" in status.reason) == (RunState.UNKNOWN, True)


# Ending


def test_cancel_leaves_nothing(target, namespace, planned):
    handle = started(target, planned())
    assert handle.cancel().state is RunState.CANCELLED
    kept = {plural: set(things) for plural, things in namespace.cluster.objects.items() if things}
    assert kept == {"configmaps": {names.SITE}, "secrets": {"trialplane-gateway"}}
    assert handle.status().state is RunState.CANCELLED
    assert handle.job == planned().job


def test_a_controller_that_does_not_answer_is_killed_by_now(target, namespace, planned):
    handle = started(target, planned())
    namespace.deaf = True
    with pytest.raises(TargetError, match="platform cancel a --now"):
        handle.cancel(patience=0.1)
    namespace.tell("a", [TrialRow(trial, TrialState.COMPLETE, 1, trial, values=(0.5,)) for trial in (0, 1)])
    namespace.studies["a"].status = dataclasses.replace(namespace.studies["a"].status, complete=1)  # its last word
    assert handle.cancel(now=True, patience=60).state is RunState.CANCELLED
    assert namespace.cluster.objects["rayjobs"] == {}
    status = handle.status()
    assert (status.state, status.complete, status.slots_ready) == (RunState.CANCELLED, 2, 0)
    with pytest.raises(InputError, match=r"ended already \(CANCELLED\)"):
        handle.cancel()


def test_pausing_gives_the_pods_back_and_resuming_brings_the_same_code(target, namespace, planned, workplace):
    handle = started(target, planned())
    code = namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"]
    submitted = namespace.studies["a"].submission["submitted"]
    handle.pause()
    assert namespace.cluster.objects["pods"] == {}
    (workplace / "jobs" / "demo" / "train.py").write_text("def run(ctx):\n    return 1.0\n")
    handle.resume()
    assert namespace.cluster.objects["configmaps"][names.code_map("a")]["binaryData"] == code
    facts = json.loads(namespace.cluster.objects["configmaps"]["a"]["data"]["submission.json"])
    assert (facts["submitted"], facts["user"]) == (submitted, "ann")
    assert handle.status().state is RunState.RUNNING


def test_a_run_of_a_chart_of_the_former_version_is_paused_too(target, namespace, planned):
    namespace.route = "wish"
    handle = started(target, planned())
    handle.pause()
    assert namespace.studies["a"].desired is RunState.PAUSED
    assert namespace.cluster.objects["pods"] == {}


def test_how_its_pods_are_made_may_change_at_resume(target, namespace, planned):
    handle = started(target, planned())
    handle.pause()
    handle.resume(sets=["cluster.image=trialplane/trial:2"])
    pod = namespace.cluster.objects["pods"]["a-x7k2p-trials-worker-0"]
    assert pod["spec"]["containers"][0]["image"] == "trialplane/trial:2"


def test_a_look_at_a_run_that_goes_on_asks_each_witness_once(target, namespace, planned):
    handle = started(target, planned())
    looks = handle.watch()
    next(looks)
    namespace.cluster.requests.clear()
    next(looks)
    asked = [path.rpartition("/")[2] for _, path in namespace.cluster.requests]
    assert [what for what in asked if what in ("a", "status")] == ["a", "status"]
    assert target.observe("a") == Observed(RunHandle("a", target).status(), True, Desired())
    namespace.end("a", RunState.SUCCEEDED)
    assert (handle.observe().status.state, handle.observe().is_active) == (RunState.SUCCEEDED, False)


# Scaling


def test_more_trials_at_a_time(target, namespace, planned):
    handle = started(target, planned(parallel=2))
    assert scaled(target, 4)
    (group,) = namespace.cluster.objects["rayclusters"]["a-x7k2p"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (4, 4)
    assert handle.status().parallel == 4


def test_fewer_trials_at_a_time_take_away_pods_without_a_slot_only(target, namespace, planned):
    started(target, planned(parallel=3))
    namespace.deaf = True
    assert not scaled(target, 1)  # the controller has yet to say which pods it keeps
    (group,) = namespace.cluster.objects["rayclusters"]["a-x7k2p"]["spec"]["workerGroupSpecs"]
    assert group["replicas"] == 3
    study = namespace.studies["a"]
    keep = ("a-x7k2p-trials-worker-1", "a-x7k2p-trials-worker-2")
    namespace.deaf = False
    RunHandle("a", target).status()  # the controller reads the desired state
    study.status = dataclasses.replace(study.status, nodes=keep)
    assert not scaled(target, 1)  # one of them has a trial that goes on
    assert group["replicas"] == 2
    assert group["scaleStrategy"] == {"workersToDelete": ["a-x7k2p-trials-worker-0"]}
    namespace.cluster.remove("pods", "a-x7k2p-trials-worker-0")
    study.status = dataclasses.replace(study.status, nodes=keep[:1])
    assert scaled(target, 1)
    assert (group["replicas"], group["scaleStrategy"]) == (1, {"workersToDelete": ["a-x7k2p-trials-worker-2"]})


def test_trials_of_several_nodes_have_several_pods_each(target, namespace, planned):
    started(target, planned(parallel=2, nodes=2))
    pods = [f"a-x7k2p-trials-worker-{number}" for number in range(4)]
    assert set(target.objects.trial_pods("a", "trial")) == set(pods)
    assert scaled(target, 3)  # no pod of the four has to go, so nobody is waited for
    (group,) = namespace.cluster.objects["rayclusters"]["a-x7k2p"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (6, 6)
    assert scaled(target, 2)
    namespace.deaf = True
    assert not scaled(target, 1)  # the controller has yet to say which pods it keeps
    assert group["replicas"] == 4
    study = namespace.studies["a"]
    namespace.deaf = False
    RunHandle("a", target).status()  # the controller reads the desired state
    study.status = dataclasses.replace(study.status, nodes=tuple(pods[2:]))
    assert scaled(target, 1)
    assert (group["replicas"], sorted(group["scaleStrategy"]["workersToDelete"])) == (2, pods[:2])


def test_scaling_down_now_does_not_wait(target, namespace, planned):
    started(target, planned(parallel=3))
    assert scaled(target, 1, now=True)
    (group,) = namespace.cluster.objects["rayclusters"]["a-x7k2p"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], len(group["scaleStrategy"]["workersToDelete"])) == (1, 2)


def test_with_autoscaling_only_the_bound_changes_and_never_below_pods_with_a_trial(target, namespace, planned):
    started(target, planned(parallel=3, **{"cluster.autoscale": True}))
    (group,) = namespace.cluster.objects["rayclusters"]["a-x7k2p"]["spec"]["workerGroupSpecs"]
    labels = {names.RUN: "a", names.ROLE: names.TRIAL, names.GROUP_LABEL: "trials"}
    pods = tuple(f"a-x7k2p-trials-worker-{number}" for number in range(3))
    for pod in pods:  # of the autoscaler
        namespace.cluster.put("pods", {"metadata": {"name": pod, "labels": labels}, "spec": {"containers": []}})
    study = namespace.studies["a"]
    namespace.deaf = True
    assert not scaled(target, 1)
    namespace.deaf = False
    RunHandle("a", target).status()  # the controller reads the desired state
    for keep, bound in ((pods, 3), (pods[:2], 2), (pods[:1], 1)):
        study.status = dataclasses.replace(study.status, nodes=keep)
        assert scaled(target, 1) is (bound == 1)
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (0, 0, bound)
    assert "scaleStrategy" not in group


def busy(target, namespace, planned):
    """A run whose three pods all have a trial that goes on."""
    handle = started(target, planned(parallel=3))
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, nodes=tuple(target.objects.trial_pods("a", "trial")))
    return handle


def test_a_scale_that_waits_leaves_a_pause_as_it_is(target, namespace, planned):
    handle = busy(target, namespace, planned)
    waits = handle.scale(1)
    next(waits)
    namespace.deaf = True  # the controller takes its time to end
    RunHandle("a", target).stop()
    next(waits)
    assert namespace.studies["a"].desired is RunState.PAUSED
    namespace.deaf = False
    with pytest.raises(InputError, match="`platform resume a --parallel 1`"):
        list(waits)
    handle.wait(60)
    target.remove("a", forget=False)
    handle.resume()
    assert (handle.job.parallel, handle.status().parallel) == (1, 1), "as it was scaled"


def test_of_two_scales_the_newer_one_counts_and_the_other_ends(target, namespace, planned):
    handle = busy(target, namespace, planned)
    waits = handle.scale(1)
    next(waits)
    assert scaled(target, 4)
    with pytest.raises(InputError, match="a was scaled to 4 in the meantime"):
        list(waits)
    assert namespace.studies["a"].parallel == 4


def test_a_width_that_no_controller_has_heard_of_is_kept(target, namespace, planned):
    handle = started(target, planned(parallel=2))
    namespace.deaf = True
    scaled(target, 4)
    handle.pause(now=True)
    namespace.deaf = False
    handle.resume()
    assert handle.job.parallel == 4


def test_a_scaled_run_keeps_its_width_when_it_is_resumed(target, namespace, planned):
    handle = started(target, planned(parallel=2))
    assert scaled(target, 4)
    handle.pause()
    handle.resume()
    assert (handle.job.parallel, handle.status().parallel) == (4, 4)
    handle.pause()
    handle.resume(changes={"parallel": 3, "trials": None})
    assert handle.job.parallel == 3


# Logs


def test_the_log_of_a_controller_that_never_spoke_is_its_pods(target, namespace, planned):
    namespace.held = True
    submit(target, planned())
    with pytest.raises(InputError, match="has no log yet: the controller's pod"):
        RunHandle("a", target).logs()
    pod = namespace.cluster.objects["pods"]["a-x7k2p-head"]
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
    namespace.cluster.logs["a-x7k2p-head"] = "ray cannot start\nhalf a line"
    assert list(RunHandle("a", target).logs()) == ["ray cannot start\n", "half a line"]


def test_the_submitters_log(target, namespace, planned):
    started(target, planned())
    with pytest.raises(InputError, match="there is no submitter's pod of a"):
        RunHandle("a", target).submitter_log()
    labels = {names.RUN: "a", names.ROLE: names.SUBMITTER}
    box = {"name": "submitter", "state": {"running": {}}}
    spec = {"containers": [{"name": "submitter"}]}
    namespace.cluster.put(
        "pods", {"metadata": {"name": "a-1", "labels": labels}, "spec": spec, "status": {"containerStatuses": [box]}}
    )
    namespace.cluster.logs["a-1"] = "waiting for the head\n"
    assert list(RunHandle("a", target).submitter_log()) == ["waiting for the head\n"]


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
    handle = started(target, planned())
    handle.pause()
    namespace.cluster.put("priorityclasses", {"metadata": {"name": "low"}})
    with pytest.raises(SpecError, match="there is no PriorityClass high; there are: low"):
        handle.resume(sets=["cluster.priority_class=high"])
