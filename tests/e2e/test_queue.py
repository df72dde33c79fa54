"""Kueue: two teams' queues over one quota. A run in a queue that does not exist, and runs that give their place away.

Skipped where the cluster has no Kueue. Not checked: how Kueue's conditions are shown (tests/kube/test_waiting.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e import steps
from tests.e2e.conftest import CONTROL, OTHER, SPEC, TEAM, Cluster

PODS = 3  # of the quota: a head, and two trials
QUEUE = "e2e"  # of each team
_API = "kueue.x-k8s.io/v1beta1"
_SAVING = 25  # seconds
_SHORT = SPEC.replace("trials: 6", "trials: 2")


def _objects() -> list[dict[str, Any]]:
    amounts = {"pods": str(PODS), "cpu": "64", "memory": "256Gi"}
    flavor = {"name": "e2e", "resources": [{"name": name, "nominalQuota": most} for name, most in amounts.items()]}
    quota = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(amounts), "flavors": [flavor]}],
    }
    queues = [
        {
            "apiVersion": _API,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": team},
            "spec": {"clusterQueue": "e2e"},
        }
        for team in (TEAM, OTHER)
    ]
    return [
        {"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": "e2e"}},
        {"apiVersion": _API, "kind": "ClusterQueue", "metadata": {"name": "e2e"}, "spec": quota},
        *queues,
    ]


@pytest.fixture(scope="module", autouse=True)
def quota(cluster: Cluster) -> Iterator[None]:
    """A queue for each team, and one quota."""
    if "clusterqueues" not in cluster.kubectl("api-resources", "--api-group=kueue.x-k8s.io", "--output=name"):
        pytest.skip("the cluster has no Kueue")
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects()})
    anywhere = cluster.at("")
    anywhere.kubectl("apply", "-f", "-", stdin=made)
    yield
    anywhere.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=made)


def study(cluster: Cluster, run: str, spec: str, priority: str) -> None:
    more = f"budget: {{max_failed: 0}}\ncluster: {_with(priority)}\n"
    job = cluster.job(cluster.home / "jobs" / run / "toy", spec=spec + more)
    cluster.platform("submit", "hpo", job, "--name", run, "--detach")


def _with(priority: str) -> str:
    return f"{{queue: {QUEUE}, priority_class: {CONTROL}-{priority}}}"


def pods(cluster: Cluster, run: str) -> list[str]:
    """Names of all pods of a run, whatever they do."""
    return [pod["metadata"]["name"] for pod in cluster.objects("pods", run=run)]


def ready(cluster: Cluster, run: str) -> dict[str, str]:
    """The condition of a Run that says whether it works."""
    conditions = json.loads(cluster.kubectl("get", "run", run, "-o", "json")).get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), {})


def waits(cluster: Cluster, run: str, why: str, patience: float = 30) -> str:
    """Waits until a Run says that it is in a queue, and why; gives its words."""

    def told() -> str:
        said = ready(cluster, run)
        return said["message"] if said.get("reason") == "Queued" and why in said["message"] else ""

    return str(cluster.until(f"{run} in the queue, {why}", told, patience))


def ended(cluster: Cluster, run: str, patience: float = 600) -> None:
    cluster.until(f"end of {run}", lambda: cluster.status(run)["state"] in ("SUCCEEDED", "FAILED"), patience)
    assert cluster.status(run)["state"] == "SUCCEEDED", cluster.status(run)["reason"]


def test_a_queue_that_does_not_exist_is_said_before_anything_starts(cluster: Cluster) -> None:
    job = cluster.job(cluster.home / "jobs" / "astray" / "toy")
    words = ("submit", "hpo", job, "--name", "astray", "--set", "cluster.queue=nowhere")
    said = cluster.platform(*words, code=2)
    assert f"there is no LocalQueue nowhere in the namespace; there are: {QUEUE}" in said
    assert not json.loads(cluster.kubectl("get", "runs", "-o", "json", "--field-selector", "metadata.name=astray"))["items"]


def test_a_run_applied_into_a_queue_that_does_not_exist_says_so(cluster: Cluster) -> None:
    job = cluster.job(cluster.home / "jobs" / "applied" / "toy")
    words = ("submit", "hpo", job, "--name", "applied", "--set", f"cluster.queue={QUEUE}", "--dry-run")
    cluster.kubectl("apply", "-f", "-", stdin=cluster.platform(*words).replace(f"queue: {QUEUE}", "queue: nowhere"))
    said = waits(cluster, "applied", "LocalQueue nowhere")
    assert "LocalQueue nowhere doesn't exist" in said
    assert cluster.status("applied")["reason"] == said
    assert not pods(cluster, "applied")
    cluster.platform("cancel", "applied", "--yes")


@pytest.mark.slow
def test_a_study_in_a_queue_gets_its_pods_as_trials_wait(cluster: Cluster) -> None:
    """Kueue's elastic jobs: the head is admitted alone, and each further pod as the autoscaler requests it."""
    more = f"cluster: {{queue: {QUEUE}, autoscale: true}}\n"
    job = cluster.job(cluster.home / "jobs" / "elastic" / "toy", spec=SPEC.replace("pause: 0.3", "pause: 3") + more)
    cluster.platform("submit", "hpo", job, "--name", "elastic", "--detach")
    cluster.until("head", lambda: cluster.running(run="elastic", role="controller"))
    cluster.until("two trial pods", lambda: len(cluster.running(run="elastic", role="trial")) == PODS - 1)
    ended(cluster, "elastic")
    cluster.check_exact("elastic", 6)
    cluster.platform("delete", "elastic", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_study_that_gives_way_loses_no_trial(cluster: Cluster, other: Cluster) -> None:
    study(cluster, "meek", SPEC.replace("pause: 0.3", "pause: 4"), "low")
    cluster.until("a trial that has ended", lambda: cluster.ended("meek"))
    study(other, "bold", _SHORT, "high")
    waits(cluster, "meek", "reempted", patience=120)
    cluster.until("no pods", lambda: not pods(cluster, "meek"), patience=120)
    assert cluster.ended("meek") < 6
    ended(other, "bold")
    ended(cluster, "meek")
    cluster.check_exact("meek", 6)
    attempts = cluster.said("results", "meek", "--all-attempts")
    assert {row["failure"] for row in attempts if row["failure"]} == {"lost"}, attempts
    cluster.platform("delete", "meek", "--yes")
    other.platform("delete", "bold", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_training_that_gives_way_goes_on_from_the_very_step(cluster: Cluster, other: Cluster) -> None:
    """It saves itself only when it is told to go, and takes longer for that than Ray waits for a head that only pauses."""
    steps.submit(cluster, "polite", "--set", f"params.saving={_SAVING}", cluster_fields=_with("low"))
    steps.passed(cluster, "polite", 20)
    study(other, "pushy", _SHORT, "high")
    waits(cluster, "polite", "reempted", patience=120)
    ended(other, "pushy")
    row = steps.finished(cluster, "polite")
    assert row["metrics"]["begun"] >= 20
    assert (row["metrics"]["again"], row["metrics"]["done"]) == (0, steps.STEPS)
    cluster.platform("delete", "polite", "--yes")
    other.platform("delete", "pushy", "--yes")
