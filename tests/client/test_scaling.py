"""Scaling a run on a cluster: how many pods there are to be, which of them go, and what else may be changed meanwhile.

On the doubles of an API server, KubeRay and the gateway, with the operator as it is. What of it is decided by the operator
is tests/reconciler.
"""

from __future__ import annotations

import dataclasses

import pytest
from tests.client.conftest import scaled, submitted

from trialplane.client.run import RunHandle
from trialplane.errors import InputError
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState


def test_more_trials_at_a_time(target, namespace, planned):
    handle = submitted(target, planned(parallel=2))
    assert scaled(target, 4)
    (group,) = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (4, 4)
    assert handle.status().parallel == 4


def test_fewer_trials_at_a_time_take_away_pods_without_a_slot_only(target, namespace, planned):
    submitted(target, planned(parallel=3))
    namespace.deaf = True
    assert not scaled(target, 1)  # the controller has yet to say which pods it keeps
    (group,) = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    assert group["replicas"] == 3
    study = namespace.studies["a"]
    keep = ("a-trials-worker-1", "a-trials-worker-2")
    study.status = dataclasses.replace(study.status, nodes=keep)
    namespace.deaf = False  # the controller reads the desired state
    assert not scaled(target, 1)  # one of them has a trial that goes on
    assert group["replicas"] == 2
    assert group["scaleStrategy"] == {"workersToDelete": ["a-trials-worker-0"]}
    namespace.cluster.remove("pods", "a-trials-worker-0")
    study.status = dataclasses.replace(study.status, nodes=keep[:1])
    assert scaled(target, 1)
    assert (group["replicas"], group["scaleStrategy"]) == (1, {"workersToDelete": ["a-trials-worker-2"]})


def test_trials_of_several_nodes_have_several_pods_each(target, namespace, planned):
    submitted(target, planned(parallel=2, nodes=2))
    pods = [f"a-trials-worker-{number}" for number in range(4)]
    assert set(target.objects.trial_pods("a", "trial")) == set(pods)
    assert scaled(target, 3)  # no pod of the four has to go, so nobody is waited for
    (group,) = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (6, 6)
    assert scaled(target, 2)
    namespace.deaf = True
    assert not scaled(target, 1)  # the controller has yet to say which pods it keeps
    assert group["replicas"] == 4
    study = namespace.studies["a"]
    study.status = dataclasses.replace(study.status, nodes=tuple(pods[2:]))
    namespace.deaf = False  # the controller reads the desired state
    assert scaled(target, 1)
    assert (group["replicas"], sorted(group["scaleStrategy"]["workersToDelete"])) == (2, pods[:2])


def test_scaling_down_now_does_not_wait_for_trials(target, namespace, planned):
    busy(target, namespace, planned)
    assert not scaled(target, 1, now=True)
    (group,) = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], len(group["scaleStrategy"]["workersToDelete"])) == (1, 2)
    for pod in group["scaleStrategy"]["workersToDelete"]:
        namespace.cluster.remove("pods", pod)
    assert scaled(target, 1)


def test_with_autoscaling_only_the_bound_changes_and_never_below_pods_with_a_trial(target, namespace, planned):
    submitted(target, planned(parallel=3, **{"cluster.autoscale": True}))
    (group,) = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    owner = {"ownerReferences": [{"uid": namespace.cluster.objects["rayclusters"]["a"]["metadata"]["uid"]}]}
    labels = {names.RUN: "a", names.ROLE: names.TRIAL, names.GROUP_LABEL: "trials"}
    pods = tuple(f"a-trials-worker-{number}" for number in range(3))
    for pod in pods:  # of the autoscaler
        namespace.cluster.put("pods", {"metadata": {"name": pod, "labels": labels, **owner}, "spec": {"containers": []}})
    study = namespace.studies["a"]
    namespace.deaf = True
    assert not scaled(target, 1)
    namespace.deaf = False
    RunHandle("a", target).status()  # the controller reads the desired state
    for keep, bound in ((pods, 3), (pods[:2], 2), (pods[:1], 1)):
        study.status = dataclasses.replace(study.status, nodes=keep)
        assert scaled(target, 1) is (bound == 1)
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 0, bound)
    assert "scaleStrategy" not in group


def busy(target, namespace, planned):
    """A run whose three pods all have a trial that goes on."""
    handle = submitted(target, planned(parallel=3))
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
    handle.wait(300)
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
    handle = submitted(target, planned(parallel=2))
    namespace.deaf = True
    scaled(target, 4)
    handle.pause(now=True)
    namespace.deaf = False
    handle.resume()
    assert handle.job.parallel == 4


def test_a_scaled_run_keeps_its_width_when_it_is_resumed(target, namespace, planned):
    handle = submitted(target, planned(parallel=2))
    assert scaled(target, 4)
    handle.pause()
    handle.resume()
    assert (handle.job.parallel, handle.status().parallel) == (4, 4)
    handle.pause()
    handle.resume(changes={"parallel": 3, "trials": None})
    assert handle.job.parallel == 3
