"""Why pods do not run, from objects recorded on Kubernetes 1.34 with KubeRay 1.6.2 (recorded/waiting.json).

Those of Kueue, of a crash loop and of an admission policy are written as their documentation shows them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trialplane.client import phases, waiting
from trialplane.wire import cluster as names

RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("waiting.json").read_text())
NOW = 1_800_000_000.0


@pytest.fixture
def ray_job() -> dict[str, Any]:
    return copy.deepcopy(RECORDED["ray_job"])


def pod(name: str, role: str = names.TRIAL, called: str = "") -> dict[str, Any]:
    """A recorded pod, in a role of a run."""
    found = copy.deepcopy(RECORDED["pods"][name])
    found["metadata"]["labels"] = {names.ROLE: role}
    found["metadata"]["name"] = called or name
    return found


def running(role: str, called: str) -> dict[str, Any]:
    found = pod("image", role, called)
    (box,) = found["status"]["containerStatuses"]
    box["state"], found["status"]["phase"] = {"running": {}}, "Running"
    return found


def head() -> dict[str, Any]:
    return running(names.CONTROLLER, "a-nbmtb-head-1")


def event(reason: str, message: str, name: str = "a-nbmtb", when: str = "2026-11-21T10:30:00Z") -> dict[str, Any]:
    return {"metadata": {}, "reason": reason, "message": message, "lastTimestamp": when, "involvedObject": {"name": name}}


@pytest.mark.parametrize(
    ("name", "said", "stuck"),
    [
        ("gpu", "fits no node, for lack of 4 nvidia.com/gpu (0/2 nodes are available: 1 Insufficient nvidia.com/gpu, "
         "1 node(s) had untolerated taint(s))", True),
        ("image", "cannot get its image nowhere.invalid/trial:1 (ImagePullBackOff): failed to do request: Head", True),
        ("never", "cannot get its image trialplane/trial:1 (ErrImageNeverPull): Container image", True),
        ("volume", "waits for its volume: 0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims; "
         "`kubectl get pvc` shows data", True),
        ("map", 'waits for its volumes: MountVolume.SetUp failed for volume "d" : configmap "a-code" not found', True),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_run(name, said, stuck):
    wait = waiting.blocked(pod(name), RECORDED["events"])
    assert wait is not None
    assert said in wait.text
    assert wait.stuck is stuck
    assert "preemption" not in wait.text


def test_a_pod_that_runs_waits_for_nothing():
    assert waiting.blocked(head(), RECORDED["events"]) is None


def test_an_image_on_its_way_is_told_apart():
    found = pod("map")
    pulling = waiting.blocked(found, [event("Pulling", 'Pulling image "x:1"', "map")])
    assert pulling == waiting.Wait('is pulling image "x:1"', False)
    assert waiting.blocked(found, []) == waiting.Wait("is starting", False)


def test_a_crash_loop_says_the_last_exit_code():
    found = pod("image")
    (box,) = found["status"]["containerStatuses"]
    box["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    box["lastState"], box["restartCount"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, 4
    wait = waiting.blocked(found)
    assert wait == waiting.Wait("keeps ending, 4 times so far, last with exit code 137 (OOMKilled)", True)


def test_an_evicted_pod():
    found = pod("image")
    found["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    assert waiting.blocked(found) == waiting.Wait("evicted: The node was low on resource: memory.", True)


def test_a_run_whose_head_waits_names_that_and_what_was_refused(ray_job):
    found = waiting.reason(ray_job, [pod("image", names.CONTROLLER, "a-nbmtb-head-1")], RECORDED["events"], now=NOW)
    assert found.startswith("the controller's pod a-nbmtb-head-1 cannot get its image nowhere.invalid/trial:1")
    assert 'trial pods: refused: violates PodSecurity "restricted:latest"' in found


def test_a_head_that_was_refused(ray_job):
    found = waiting.reason(ray_job, [], RECORDED["events"], now=NOW)
    assert found.startswith('refused: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false')


def test_workers_over_the_quota(ray_job):
    quota = next(one for one in RECORDED["events"] if "exceeded quota" in one["message"])
    pods = [head(), running(names.SUBMITTER, "a-1"), running(names.TRIAL, "a-nbmtb-trials-worker-1")]
    found = waiting.reason(ray_job, pods, [quota], now=NOW)
    assert found == (
        "1 of 2 trial pods: refused: exceeded quota: small, requested: requests.cpu=400m, used: requests.cpu=400m, "
        "limited: requests.cpu=500m"
    )


def test_workers_that_wait_alike_are_counted(ray_job):
    pods = [head(), running(names.SUBMITTER, "a-1"), pod("gpu", called="a-w1"), pod("gpu", called="a-w2")]
    found = waiting.reason(ray_job, pods, [], now=NOW)
    assert found.startswith("2 of 2 trial pods: each fits no node, for lack of 4 nvidia.com/gpu")


def test_the_words_of_an_admission_policy(ray_job):
    message = (
        "Failed to create head Pod team/, pods \"a-head\" is forbidden: ValidatingAdmissionPolicy 'trialplane-pods' with "
        "binding 'trialplane-team' denied request: a trial pod must set RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=0"
    )
    found = waiting.reason(ray_job, [], [event("FailedToCreateHeadPod", message)], now=NOW)
    assert found == "refused: a trial pod must set RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=0"


def test_a_submitter_that_was_refused(ray_job):
    pods = [head(), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2")]
    refused = event(
        "FailedCreate", 'Error creating: pods "a-9x" is forbidden: exceeded quota: small, requested: pods=1', "a"
    )
    assert "refused: exceeded quota: small" in waiting.reason(ray_job, pods, [refused], now=NOW)


def test_a_refusal_of_what_has_been_made_since_is_no_reason(ray_job):
    """KubeRay asks twice for a RayCluster that its own view does not show yet, and the second time is refused."""
    late = event("FailedToCreateRayCluster", 'Failed to create RayCluster team/a-nbmtb: "a-nbmtb" already exists', "a")
    assert waiting.reason(ray_job, [], [late], now=NOW) == "KubeRay is creating the controller's pod"
    pods = [head(), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2")]
    assert waiting.reason(ray_job, pods, [late], now=NOW) == ""
    ray_job["status"].pop("rayClusterStatus")  # none is there yet, so it may well be the reason
    assert waiting.reason(ray_job, [], [late], now=NOW).startswith("refused: ")


def test_a_refusal_in_a_former_life_of_the_run_is_no_reason(ray_job):
    before = event("FailedToCreateHeadPod", "exceeded quota: small, requested: pods=1", when="2026-11-21T09:58:28Z")
    assert waiting.reason(ray_job, [], [before], now=NOW) == "KubeRay is creating the controller's pod"


def test_the_newest_submitter_says_how_it_ended(ray_job):
    def submitter(name: str, made: str, **status: Any) -> dict[str, Any]:
        found = running(names.SUBMITTER, name)
        found["metadata"]["creationTimestamp"] = made
        found["status"].update(status)
        return found

    boxes = [{"name": "ray-job-submitter", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]
    failed = submitter("a-1", "2026-11-21T10:00:00Z", phase="Failed", containerStatuses=boxes)
    pods = [head(), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2"), failed]
    said = "the submitter's pod a-1 ended with exit code 1; another follows"
    assert waiting.reason(ray_job, pods, [], now=NOW) == said
    assert waiting.reason(ray_job, [*pods, submitter("a-2", "2026-11-21T10:01:00Z")], [], now=NOW) == ""


def test_nothing_is_missing(ray_job):
    pods = [head(), running(names.SUBMITTER, "a-1"), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2")]
    assert waiting.reason(ray_job, pods, RECORDED["events"], now=NOW) == ""


def test_an_operator_that_is_not_there(ray_job):
    ray_job["status"] = {}
    made = phases.created(ray_job)
    assert waiting.reason(ray_job, [], [], now=made + 5) == "KubeRay is about to create its pods"
    assert "KubeRay has not handled it for 60 s" in waiting.reason(ray_job, [], [], now=made + 60)


def test_kueue(ray_job):
    ray_job["spec"]["suspend"] = True
    message = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    condition = {"type": "QuotaReserved", "status": "False", "message": message}
    workload = {"spec": {"queueName": "gpus"}, "status": {"conditions": [condition]}}
    found = waiting.reason(ray_job, [], [], workload, now=NOW)
    assert found.startswith("Kueue has not admitted it to the queue gpus: couldn't assign flavors")
    assert "by whom" in waiting.reason(ray_job, [], [], None, now=NOW)


def test_events_of_others_do_not_count(ray_job):
    other = event("FailedToCreateHeadPod", "exceeded quota: theirs", name="ab-head")
    assert waiting.reason(ray_job, [], [other], now=NOW) == "KubeRay is creating the controller's pod"
