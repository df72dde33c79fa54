"""Nodes that are drained and nodes that are lost: what that costs a training, and a study whose head is drained too.

Needs two nodes for the pods of runs, and volumes that pods on both can mount (values-nodes.yaml); and for a lost node a
cluster whose nodes are Docker's containers of the same names, as kind makes them. Not checked: studies whose node is lost
(python -m tests.chaos --nodes), and nodes that a cloud takes away.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e import steps
from tests.e2e.conftest import SPEC, Cluster

SAVE = 20  # steps from checkpoint to checkpoint, where nobody warns
_HOST = "kubernetes.io/hostname"
# KubeRay, and Kueue where it is: without its webhook the API server takes no pod.
_OPERATORS = ("app.kubernetes.io/component=kuberay-operator", "app.kubernetes.io/name=kueue")


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> tuple[str, str]:
    """A node to lose, and another one, on which ledger and operators are: what is lost is to be a part of a run alone."""
    found = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    usable = [node["metadata"]["name"] for node in found if not (node["spec"].get("taints") or [])]
    if len(usable) < 2:
        pytest.skip("the cluster has one node for pods of runs; these tests take one away")
    claims = json.loads(cluster.kubectl("get", "pvc", "-o", "json"))["items"]
    modes = {claim["metadata"]["name"]: claim["status"].get("accessModes") or [] for claim in claims}
    if not all("ReadWriteMany" in modes[f"platform-{name}"] for name in ("runs", "checkpoints")):
        pytest.skip("volumes of runs are bound to one node; TRIALPLANE_E2E_VALUES=tests/e2e/values-nodes.yaml")
    (database,) = cluster.control.objects("pods", role="postgresql")
    kept = database["spec"]["nodeName"]
    lost = next(name for name in usable if name != kept)
    with only(cluster, kept, usable):
        for operator in _OPERATORS:
            for namespace, pod in _pods_on(cluster, lost, operator):
                cluster.kubectl("delete", "pod", pod, "--namespace", namespace)
                ready = ("--for=condition=Ready", "--namespace", namespace, "--timeout=120s")
                cluster.kubectl("wait", "pod", "-l", operator, *ready)
    return lost, kept


@contextlib.contextmanager
def only(cluster: Cluster, node: str, usable: tuple[str, ...] | list[str]) -> Iterator[None]:
    """New pods come to this node alone."""
    others = [name for name in usable if name != node]
    try:
        for name in others:
            cluster.kubectl("cordon", name)
        yield
    finally:
        for name in others:
            cluster.kubectl("uncordon", name)


@contextlib.contextmanager
def stopped(cluster: Cluster, node: str) -> Iterator[None]:
    """Without this node, as after a power cut; it is back at the end."""
    if subprocess.run(["docker", "inspect", node], capture_output=True, check=False).returncode:
        pytest.skip(f"the node {node} is not a container of Docker's here, so it cannot be stopped")
    subprocess.run(["docker", "kill", node], check=True, capture_output=True)
    try:
        cluster.until("news of the lost node", lambda: not _is_ready(cluster, node), patience=180)
        yield
    finally:
        subprocess.run(["docker", "start", node], check=True, capture_output=True)
        cluster.until("node again", lambda: _is_ready(cluster, node), patience=180)


def _is_ready(cluster: Cluster, node: str) -> bool:
    said = json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in said)


def _pods_on(cluster: Cluster, node: str, selector: str) -> list[tuple[str, str]]:
    words = ("--all-namespaces", "-l", selector, "--field-selector", f"spec.nodeName={node}", "-o", "json")
    found = [one["metadata"] for one in json.loads(cluster.kubectl("get", "pods", *words))["items"]]
    return [(one["namespace"], one["name"]) for one in found]


def place(cluster: Cluster, run: str, role: str) -> str:
    """The node of the one pod of a role."""
    (pod,) = [pod for pod in cluster.objects("pods", run=run, role=role) if "deletionTimestamp" not in pod["metadata"]]
    return str(pod["spec"].get("nodeName") or "")


def attempts(cluster: Cluster, run: str) -> list[dict[str, Any]]:
    return list(cluster.said("results", run, "--all-attempts"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_drained_node_costs_a_training_no_step(cluster: Cluster, nodes: tuple[str, str]) -> None:
    """It saves itself only when it is told to go."""
    steps.submit(cluster, "warned")
    steps.passed(cluster, "warned", 10)
    node = place(cluster, "warned", "trial")
    chosen = ("--pod-selector=trialplane.io/run=warned,trialplane.io/role=trial", "--ignore-daemonsets")
    cluster.kubectl("drain", node, *chosen, "--delete-emptydir-data", "--timeout=120s")
    try:
        cluster.until("pod elsewhere", lambda: cluster.running(run="warned", role="trial"))
        assert place(cluster, "warned", "trial") != node
    finally:
        cluster.kubectl("uncordon", node)
    row = steps.finished(cluster, "warned")
    assert (row["metrics"]["again"], row["metrics"]["done"]) == (0, steps.STEPS)
    assert row["metrics"]["begun"] >= 10
    assert row["attempt"] == 2
    cluster.platform("delete", "warned", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_drained_node_costs_a_study_no_trial(cluster: Cluster, nodes: tuple[str, str]) -> None:
    """Its head is on the node, and its trials: all that is left of it meanwhile is in the ledger."""
    node, elsewhere = nodes
    job = cluster.job(cluster.home / "jobs" / "moved" / "toy", spec=SPEC.replace("pause: 0.3", "pause: 4"))
    with only(cluster, node, nodes):
        cluster.platform("submit", "hpo", job, "--name", "moved", "--detach")
        cluster.until("a trial that has ended", lambda: cluster.ended("moved"))
    chosen = ("--pod-selector=trialplane.io/run=moved", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    cluster.kubectl("drain", node, *chosen)
    try:
        cluster.until("head elsewhere", lambda: cluster.running(run="moved", role="controller"))
        assert place(cluster, "moved", "controller") == elsewhere
        cluster.until("end", lambda: cluster.status("moved")["state"] == "SUCCEEDED", patience=600)
    finally:
        cluster.kubectl("uncordon", node)
    cluster.check_exact("moved", 6)
    assert {row["failure"] for row in attempts(cluster, "moved") if row["failure"]} == {"lost"}
    cluster.platform("delete", "moved", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_lost_node_costs_a_training_one_interval_of_checkpoints_at_most(cluster: Cluster, nodes: tuple[str, str]) -> None:
    """The pod with the ranks is on it."""
    lost, kept = nodes
    where = f"{{node_selector: {{{_HOST}: {lost}}}}}"
    with only(cluster, kept, nodes):
        steps.submit(cluster, "dark", "--set", f"params.save_every={SAVE}", cluster_fields=where)
        cluster.until("head", lambda: cluster.running(run="dark", role="controller"))
    steps.passed(cluster, "dark", SAVE + 5)
    assert (place(cluster, "dark", "controller"), place(cluster, "dark", "trial")) == (kept, lost)
    with stopped(cluster, lost):
        cluster.until("reason", lambda: cluster.status("dark")["running"] == 0, patience=180)
    row = steps.finished(cluster, "dark")
    assert row["metrics"]["done"] == steps.STEPS
    assert 0 < row["metrics"]["again"] <= SAVE
    assert [one["failure"] for one in attempts(cluster, "dark")][:-1] == ["lost"] * (row["attempt"] - 1)
    cluster.platform("delete", "dark", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_loss_of_the_heads_node_costs_a_training_one_interval_at_most(cluster: Cluster, nodes: tuple[str, str]) -> None:
    """While the node is away the head is made on another one, and the training goes on to its end."""
    lost, kept = nodes
    where = f"{{node_selector: {{{_HOST}: {kept}}}}}"
    with only(cluster, lost, nodes):
        steps.submit(cluster, "behead", "--set", f"params.save_every={SAVE}", cluster_fields=where)
        cluster.until("head", lambda: cluster.running(run="behead", role="controller"))
    steps.passed(cluster, "behead", SAVE + 5)
    assert place(cluster, "behead", "controller") == lost
    with stopped(cluster, lost):
        # It ends once MLflow has its results, whose volume may be on the lost node.
        cluster.until("end of the training", lambda: cluster.status("behead")["complete"], patience=600)
    row = steps.finished(cluster, "behead")
    assert row["metrics"]["done"] == steps.STEPS
    assert 0 < row["metrics"]["again"] <= SAVE
    cluster.platform("delete", "behead", "--yes")
