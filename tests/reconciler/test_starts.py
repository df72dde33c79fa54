"""A start that takes its time: no room, a controller that cannot start, deadlines, pods of a former start, Kueue's queue.

On the doubles of a cluster, as test_reconciler. Not here: what is said of pods that hang (tests/client/test_waiting).
"""

from __future__ import annotations

import dataclasses

import pytest

from trialplane.errors import TargetError
from trialplane.reconciler.observation import Observation
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

from .conftest import Team


def test_a_run_waits_for_room_as_long_as_it_takes(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    team.later = 10 * 86400.0
    assert team.settle()["state"] == "Pending"
    assert team.ray_clusters


def test_a_run_that_asks_for_more_than_its_team_may_is_not_started(team: Team) -> None:
    """Also when somebody applies it by hand, past `platform submit`."""
    asked = {"priority_class": "system-node-critical", "tolerations": [{"operator": "Exists"}]}
    team.apply(team.plan(cluster=asked))
    assert team.settle()["state"] == "Invalid"
    assert not team.made
    held, why, message = team.condition("Accepted")
    assert (held, why) == ("False", "Invalid")
    assert "spec.job.cluster.priority_class: the chart does not allow the PriorityClass system-node-critical" in message
    assert "spec.job.cluster.tolerations.0: the chart does not allow the toleration of the taint of every key" in message


def test_a_controller_that_cannot_start_is_shown_and_is_no_failure(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    (head,) = (pod for name, pod in team.cluster.objects["pods"].items() if "-head" in name)
    last = {"terminated": {"exitCode": 3, "message": "job.json cannot be read by trialplane 2"}}
    (box,) = head["status"]["initContainerStatuses"]
    box.update(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last, restartCount=2)
    status = team.settle()
    assert status["state"] == "Pending"
    held, why, message = team.condition("Ready")
    assert (held, why) == ("False", "PodsWaiting")
    assert "keeps ending, 2 times so far, last with exit code 3: job.json cannot be read" in message
    assert "`platform logs a --controller`" in message
    assert team.made == 1


def test_a_run_that_did_not_start_in_time_fails_with_what_it_waited_for_and_can_be_resumed(team: Team) -> None:
    team.namespace.held = True
    team.apply(team.plan(cluster={"pending_deadline": "10m"}))
    team.settle()
    assert team.status()["state"] == "Pending"
    team.later = 700.0
    status = team.settle()
    assert team.namespace.studies["a"].desired is RunState.FAILED, "which a leader whose clock is behind goes by"
    assert status["state"] == "Failed" and "no trial could start within 600 s (cluster.pending_deadline)" in status["reason"]
    assert "at last: the controller's pod a-head-x7k2p is starting" in status["reason"]
    assert team.condition("Ended")[:2] == ("True", "Failed")
    assert not team.ray_clusters
    team.later = 0.0
    team.change(job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "cluster": {"pending_deadline": "1d"}})
    after = team.settle()
    assert (after["state"], after["reason"]) == ("Failed", status["reason"]) and not team.ray_clusters, "it stays failed"
    team.change(resumes=1)
    assert team.settle()["state"] == "Pending"
    assert team.ray_clusters
    team.namespace.held = False
    assert team.settle()["state"] == "Running"


def test_a_run_that_works_when_its_deadline_is_over_is_ended_by_its_controller(team: Team) -> None:
    team.apply(team.plan(cluster={"deadline": "1h", "pending_deadline": "10m"}))
    team.settle()
    study = team.namespace.studies["a"]
    study.status = dataclasses.replace(study.status, worked=5.0)
    team.later = 700.0
    assert team.settle()["state"] == "Running", "a trial could start"
    team.namespace.deaf = True
    team.later = 3700.0
    assert team.settle()["state"] == "Running"
    assert study.desired is RunState.FAILED and "a" in team.ray_clusters, "its controller is to end cleanly"
    team.namespace.end("a", RunState.FAILED, "its deadline is over")
    study.status = dataclasses.replace(study.status, updated=study.status.updated + 3700)
    assert (team.settle()["state"], team.status()["reason"]) == ("Failed", "its deadline is over")
    team.later = 3800.0
    team.settle()
    assert not team.ray_clusters
    assert team.settle()["state"] == "Failed"
    team.namespace.deaf = False
    team.change(resumes=1)
    assert team.settle()["state"] == "Running"


def test_the_next_start_waits_for_the_pods_of_the_former(team: Team) -> None:
    """They have its token, and KubeRay would take them for the new RayCluster's."""
    team.apply()
    team.settle()
    team.change(state="Paused")
    team.settle()
    assert ("rayclusters", "a", "Foreground") in team.cluster.deleted, "it stays until its pods and its token are gone"
    labels = {names.RUN: "a", names.ROLE: names.TRIAL}
    team.cluster.put("pods", {"metadata": {"name": "a-trials-worker-9", "labels": labels}, "spec": {}, "status": {}})
    team.change(state="Running")
    status = team.settle()
    assert status["state"] == "Pending" and "are being removed: a-trials-worker-9" in status["reason"]
    assert not team.ray_clusters
    team.cluster.remove("pods", "a-trials-worker-9")
    assert team.settle()["state"] == "Running"


def test_a_pod_that_keeps_a_ray_cluster_from_going_is_named(team: Team) -> None:
    """Of a node that was lost, for example: whether its containers still run only a person can tell."""
    team.namespace.held = True
    team.apply()
    team.settle()
    team.ray_clusters["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    reason = team.settle()["reason"]
    assert "former start are being removed: a-" in reason and "`kubectl delete pod NAME --force`" in reason
    team.change(state="Paused")
    assert "its pods are being removed: a-" in team.settle()["reason"]


def test_a_run_that_is_continued_while_its_pods_are_removed_has_not_ended(team: Team) -> None:
    """Whoever has typed `platform retry` right after the end waits for the second end."""
    team.namespace.held = True
    team.apply()
    team.settle()
    team.namespace.end("a", RunState.SUCCEEDED)
    assert team.settle()["state"] == "Succeeded"
    team.ray_clusters["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    team.change(resumes=1)
    status = team.settle()
    assert status["state"] == "Pending" and "former start are being removed" in status["reason"]
    assert status["observedGeneration"] == team.cluster.objects["runs"]["a"]["metadata"]["generation"]
    team.change(state="Paused")
    assert team.settle()["state"] == "Succeeded", "there is nothing to pause"


@pytest.mark.parametrize("state", ["Paused", "Cancelled"])
def test_a_controller_without_the_gateway_is_not_taken_for_a_dead_one(team: Team, state: str) -> None:
    """It holds no lock while the gateway is restarted, and may be in the middle of its work."""
    team.apply()
    team.settle()
    team.namespace.deaf = True
    team.namespace.studies["a"].alive = False
    team.change(state=state)
    team.settle()
    assert "a" in team.ray_clusters
    team.change(now=True)
    team.settle()
    assert "a" not in team.ray_clusters, "that does not ask"


def test_a_controller_that_died_is_not_waited_for(team: Team) -> None:
    team.apply()
    team.settle()
    team.namespace.studies["a"].alive = False
    (head,) = [pod for name, pod in team.cluster.objects["pods"].items() if "head" in name]
    head["status"]["initContainerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    team.change(state="Paused")
    team.settle()
    assert "a" not in team.ray_clusters


def test_a_suspended_run_says_what_kueue_says(team: Team) -> None:
    team.namespace.held = True
    team.apply(team.plan(cluster={"queue": "gpus"}))
    team.settle()
    ray_cluster = team.ray_clusters["a"]
    assert ray_cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    ray_cluster["spec"]["suspend"] = True
    status = team.settle()
    assert status["state"] == "Pending" and "it is suspended" in status["reason"]
    assert team.condition("Ready")[:2] == ("False", "Queued")


def test_a_resume_of_a_run_that_cannot_start_makes_it_anew(team: Team) -> None:
    team.namespace.held = True
    team.apply()
    team.settle()
    team.change(resumes=1, job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "cluster": {"image": "team/trial:2"}})
    team.settle()
    assert team.made == 2
    assert "team/trial:2" in str(team.ray_clusters["a"]["spec"])


def test_what_is_left_of_a_run_goes_though_its_spec_became_invalid(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "seed": 9})
    assert team.settle()["state"] == "Running"
    team.namespace.end("a", RunState.SUCCEEDED)
    assert team.settle()["state"] == "Succeeded"
    team.later = 100.0
    team.settle()
    assert not team.ray_clusters and team.condition("Accepted")[1] == "Invalid"


def test_a_run_whose_job_cannot_be_read_any_more_ends_as_it_ended(team: Team) -> None:
    team.apply()
    team.settle()
    team.change(job={**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 0})
    team.namespace.end("a", RunState.SUCCEEDED)
    assert (team.settle()["state"], team.condition("Ended")[0]) == ("Succeeded", "True")
    team.later = 100.0
    team.settle()
    assert not team.ray_clusters


def test_the_status_of_a_run_is_not_written_into_another_of_its_name(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.apply()
    team.settle()
    observe = team.reconciler.observer.observe

    def replaced(seen: Observation) -> Observation:
        fresh = observe(seen)
        team.cluster.remove("runs", "a")
        team.apply()
        return fresh

    team.namespace.end("a", RunState.SUCCEEDED)
    monkeypatch.setattr(team.reconciler.observer, "observe", replaced)
    with pytest.raises(TargetError):
        team.reconciler.reconcile("a")
    assert "status" not in team.cluster.objects["runs"]["a"]
