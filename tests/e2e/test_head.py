"""The head pod: a controller that is killed goes on in place, one that ended rests, and Ray's container holds no secret.

Not checked here: whole pods that are killed (test_chaos.py), what a trial's pod may reach (test_isolation.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.conftest import SPEC, Cluster

from trialplane.wire import cluster as names

# Of the head pod's containers: the process of the controller, found as Ray finds its raylet.
FIND = """
import os
def controller():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
        except OSError:
            continue
        if "trialplane.controller" in words:
            return int(pid)
"""
KILL = FIND + "os.kill(controller(), 9)"
SPY = (
    FIND
    + """
import json
def reads(path):
    try:
        return bool(open(path, "rb").read(1))
    except OSError as error:
        return type(error).__name__
def signals(pid):
    try:
        os.kill(pid, 0)
        return True
    except OSError as error:
        return type(error).__name__
pid = controller()
print(json.dumps({
    "names": sorted(os.environ),
    "environment": reads(f"/proc/{pid}/environ"),
    "memory": reads(f"/proc/{pid}/maps"),
    "files": reads(f"/proc/{pid}/root/etc/trialplane/run/job.json"),
    "notify": reads(f"/proc/{pid}/root/etc/trialplane/notify/HOOK"),
    "signal": signals(pid),
}))
"""
)


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run whose trials take their time."""
    hook = "HOOK=json://user:hidden@127.0.0.1:8090/"  # the controller's own server, which takes no messages
    cluster.kubectl("create", "secret", "generic", names.NOTIFY_SECRET, f"--from-literal={hook}")
    spec = SPEC.replace("pause: 0.3", "pause: 4") + "notify: [{url: secret:HOOK, on: [best]}]\n"
    folder = cluster.job(tmp_path_factory.mktemp("head") / "slow", spec=spec)
    cluster.platform("submit", "hpo", folder, "--name", "head", "--detach")
    cluster.until("first trial", lambda: cluster.status("head")["running"])
    yield "head"
    cluster.platform("delete", "head", "--yes")
    cluster.kubectl("delete", "secret", names.NOTIFY_SECRET)


def head(cluster: Cluster) -> dict[str, Any]:
    (pod,) = cluster.objects("pods", run="head", role=names.CONTROLLER)
    return pod


def inside(cluster: Cluster, container: str, code: str) -> str:
    pod = head(cluster)["metadata"]["name"]
    return cluster.kubectl("exec", pod, "-c", container, "--", "python", "-c", code)


def test_rays_container_holds_no_secret_and_cannot_look_at_the_controller(cluster: Cluster, run: str) -> None:
    found = json.loads(inside(cluster, "ray-head", SPY).splitlines()[-1])
    assert not {"TRIALPLANE_LEDGER", "MLFLOW_TRACKING_PASSWORD"} & set(found.pop("names"))
    assert set(found.values()) == {"PermissionError"}, found


def test_a_killed_controller_goes_on_in_its_pod_and_costs_no_trial(cluster: Cluster, run: str) -> None:
    before = head(cluster)["metadata"]["uid"]
    inside(cluster, names.CONTROLLER, KILL)

    def restarts() -> int:
        return sum(one["restartCount"] for one in head(cluster)["status"]["initContainerStatuses"])

    cluster.until("restart", lambda: restarts() == 1, patience=60)
    cluster.until("trial again", lambda: cluster.status(run)["running"], patience=120)
    assert head(cluster)["metadata"]["uid"] == before, "it is the same pod"
    cluster.until("end", lambda: cluster.status(run)["state"] == "SUCCEEDED", patience=400)
    cluster.check_exact(run, 6)
    log = cluster.platform("logs", run)
    assert "the notification 'head: new best trial' was not sent to secret:HOOK: the service refused it" in log
    assert "hidden" not in log
    cluster.until("end of its pods", lambda: not cluster.objects("pods", run=run), patience=120)
