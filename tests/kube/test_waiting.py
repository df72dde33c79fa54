"""Why pods do not run, from objects recorded on Kubernetes 1.34 with KubeRay 1.6.2 (recorded/waiting.json).

Those of Kueue, of a crash loop and of an admission policy are written as their documentation shows them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trialplane.kube import metadata, waiting
from trialplane.wire import cluster as names

RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("waiting.json").read_text())
NOW = 1_800_000_000.0


@pytest.fixture
def ray_cluster() -> dict[str, Any]:
    return copy.deepcopy(RECORDED["ray_cluster"])


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
    wait = waiting.pod_wait(pod(name), RECORDED["events"])
    assert wait is not None
    assert said in wait.text
    assert wait.stuck is stuck
    assert "preemption" not in wait.text


def test_a_pod_that_runs_waits_for_nothing():
    assert waiting.pod_wait(head(), RECORDED["events"]) is None


def test_an_image_on_its_way_is_told_apart():
    found = pod("map")
    pulling = waiting.pod_wait(found, [event("Pulling", 'Pulling image "x:1"', "map")])
    assert pulling == waiting.Wait('is pulling image "x:1"', False)
    assert waiting.pod_wait(found, []) == waiting.Wait("is starting", False)


def test_a_crash_loop_says_the_last_exit_code():
    found = pod("image")
    (box,) = found["status"]["containerStatuses"]
    box["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    box["lastState"], box["restartCount"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, 4
    wait = waiting.pod_wait(found)
    assert wait == waiting.Wait("keeps ending, 4 times so far, last with exit code 137 (OOMKilled)", True)


def _crashing(message: str, state: dict[str, Any]) -> dict[str, Any]:
    """A head pod whose controller has ended three times."""
    found = head()
    found["metadata"]["labels"][names.RUN] = "a"
    last = {"terminated": {"exitCode": 2, "reason": "Error", "message": message}}
    box = {"name": names.CONTROLLER, "image": "x:1", "restartCount": 3, "state": state, "lastState": last}
    found["status"]["initContainerStatuses"] = [box]
    return found


def test_a_controller_that_cannot_start_is_shown_with_its_last_message_and_what_to_type(ray_cluster):
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    pods = [_crashing("job.json cannot be read\nby this version\n", back_off)]
    assert waiting.reason(ray_cluster, pods, [], now=NOW) == (
        "the controller's pod a-nbmtb-head-1 has a controller that keeps ending, 3 times so far, last with exit code 2: "
        "job.json cannot be read by this version; `platform logs a --controller` shows its log"
    )
    (long,) = (_crashing("x" * 5000 + " the cause", back_off),)
    said = waiting.reason(ray_cluster, [long], [], now=NOW)
    assert "xx the cause; `platform" in said and len(said) < 600
    restarted = [_crashing("", {"running": {}}), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2")]
    assert waiting.reason(ray_cluster, restarted, [], now=NOW) == "", "it works again"


def test_a_controller_whose_image_is_missing_has_no_log_to_look_at(ray_cluster):
    found = _crashing("", {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
    found["status"]["initContainerStatuses"][0].pop("lastState")
    said = waiting.reason(ray_cluster, [found], [], now=NOW)
    assert "cannot get its image x:1" in said and "platform logs" not in said


def test_an_evicted_pod():
    found = pod("image")
    found["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    assert waiting.pod_wait(found) == waiting.Wait("evicted: The node was low on resource: memory.", True)


def test_a_run_whose_head_waits_names_that_and_what_was_refused(ray_cluster):
    found = waiting.reason(ray_cluster, [pod("image", names.CONTROLLER, "a-nbmtb-head-1")], RECORDED["events"], now=NOW)
    assert found.startswith("the controller's pod a-nbmtb-head-1 cannot get its image nowhere.invalid/trial:1")
    assert 'trial pods: refused: violates PodSecurity "restricted:latest"' in found


def test_a_head_that_was_refused(ray_cluster):
    found = waiting.reason(ray_cluster, [], RECORDED["events"], now=NOW)
    assert found.startswith('refused: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false')


def test_workers_over_the_quota(ray_cluster):
    quota = next(one for one in RECORDED["events"] if "exceeded quota" in one["message"])
    pods = [head(), running(names.TRIAL, "a-nbmtb-trials-worker-1")]
    found = waiting.reason(ray_cluster, pods, [quota], now=NOW)
    assert found == (
        "1 of 2 trial pods: refused: exceeded quota: small, requested: requests.cpu=400m, used: requests.cpu=400m, "
        "limited: requests.cpu=500m"
    )


def test_workers_that_wait_alike_are_counted(ray_cluster):
    pods = [head(), pod("gpu", called="a-w1"), pod("gpu", called="a-w2")]
    found = waiting.reason(ray_cluster, pods, [], now=NOW)
    assert found.startswith("2 of 2 trial pods: each fits no node, for lack of 4 nvidia.com/gpu")


def test_the_words_of_an_admission_policy(ray_cluster):
    message = (
        "Failed to create head Pod team/, pods \"a-head\" is forbidden: ValidatingAdmissionPolicy 'trialplane-pods' with "
        "binding 'trialplane-team' denied request: a trial pod must set RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=0"
    )
    found = waiting.reason(ray_cluster, [], [event("FailedToCreateHeadPod", message)], now=NOW)
    assert found == "refused: a trial pod must set RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=0"


def test_a_refusal_in_a_former_life_of_the_run_is_no_reason(ray_cluster):
    before = event("FailedToCreateHeadPod", "exceeded quota: small, requested: pods=1", when="2026-11-21T09:58:28Z")
    assert waiting.reason(ray_cluster, [], [before], now=NOW) == "KubeRay is creating the controller's pod"


def test_nothing_is_missing(ray_cluster):
    pods = [head(), running(names.TRIAL, "a-w1"), running(names.TRIAL, "a-w2")]
    assert waiting.reason(ray_cluster, pods, RECORDED["events"], now=NOW) == ""


def test_a_pod_whose_node_does_not_answer(ray_cluster):
    """Kubernetes leaves its containers as its node saw them last, and says that the pod is not ready."""
    lost = running(names.CONTROLLER, "a-nbmtb-head-1")
    lost["spec"]["nodeName"] = "b-3"
    lost["status"]["conditions"] = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    found = waiting.reason(ray_cluster, [lost], [], now=NOW)
    assert found.startswith(
        "the controller's pod a-nbmtb-head-1 is on the node b-3, which does not answer; `kubectl describe"
    )
    starts = copy.deepcopy(lost)
    starts["status"]["conditions"][0]["status"] = "False"
    assert waiting.pod_wait(starts) is None, "its probe has not succeeded yet"


def test_an_operator_that_is_not_there(ray_cluster):
    ray_cluster["status"] = {}
    made = metadata.creation_time(ray_cluster)
    assert waiting.reason(ray_cluster, [], [], now=made + 5) == "KubeRay is about to create its pods"
    assert "KubeRay has not handled it for 60 s" in waiting.reason(ray_cluster, [], [], now=made + 60)


def test_kueue(ray_cluster):
    ray_cluster["spec"]["suspend"] = True
    message = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    condition = {"type": "QuotaReserved", "status": "False", "message": message}
    workload = {"spec": {"queueName": "gpus"}, "status": {"conditions": [condition]}}
    found = waiting.reason(ray_cluster, [], [], workload, now=NOW)
    assert found.startswith("Kueue has not admitted it to the queue gpus: couldn't assign flavors")
    assert "by whom" in waiting.reason(ray_cluster, [], [], None, now=NOW)


def test_kueue_that_gives_a_place_away(ray_cluster):
    ray_cluster["spec"]["suspend"] = True
    why = "Preempted to accommodate a workload (UID: 4a, JobUID: 7c) due to prioritization in the ClusterQueue"
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": f"{why}; preemptor path: /q; preemptee path: /q",
    }
    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "why it waits"}
    workload = {"spec": {"queueName": "gpus"}, "status": {"conditions": [reserved, evicted]}}
    assert waiting.reason(ray_cluster, [], [], workload, now=NOW) == (
        "Kueue preempted it in the queue gpus, and starts it again when there is room: "
        "Preempted to accommodate a workload due to prioritization in the ClusterQueue"
    )
    evicted.update(reason="ClusterQueueStopped", message="The ClusterQueue is stopped")
    found = waiting.reason(ray_cluster, [], [], workload, now=NOW)
    assert found.startswith("Kueue took it out of the queue gpus, and starts it again")
    evicted.update(reason="Deactivated", message="The workload is deactivated")
    assert waiting.reason(ray_cluster, [], [], workload, now=NOW) == (
        "Kueue took it out of the queue gpus, and nobody starts it again until an administrator activates its workload "
        "(spec.active: true): The workload is deactivated"
    )
    evicted["status"], reserved["reason"] = "False", "Inadmissible"
    reserved["message"] = "LocalQueue gpus doesn't exist"
    assert waiting.reason(ray_cluster, [], [], workload, now=NOW) == (
        "Kueue has not admitted it to the queue gpus: LocalQueue gpus doesn't exist; "
        "`kubectl get localqueues` shows those there are; see `platform docs queues`"
    )


def test_events_of_others_do_not_count(ray_cluster):
    other = event("FailedToCreateHeadPod", "exceeded quota: theirs", name="ab-head")
    assert waiting.reason(ray_cluster, [], [other], now=NOW) == "KubeRay is creating the controller's pod"


def installing(state: dict[str, Any]) -> dict[str, Any]:
    """A trial pod with the container that installs packages, in a state."""
    found = pod("image", called="a-trials-1")
    found["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    found["status"]["initContainerStatuses"] = [{"name": names.INSTALL, "state": state}]
    found["status"]["phase"] = "Pending" if "running" in state else "Failed"
    return found


def test_a_pod_that_installs_packages_says_so_and_where_the_log_is():
    assert waiting.pod_wait(installing({"running": {}})) == waiting.Wait(
        "installs packages: `kubectl logs a-trials-1 -c install`", False
    )
    said = "the package index https://packages.example.org/simple could not be reached within 600 s"
    wait = waiting.pod_wait(installing({"terminated": {"exitCode": 1, "reason": "Error", "message": said}}))
    assert wait is not None and wait.stuck
    assert wait.text == (
        f"could not install its packages and ended with exit code 1: {said}; `kubectl logs a-trials-1 -c install`"
    )
