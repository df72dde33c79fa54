"""What a user of a cluster is told when something cannot run, and what cancelling, pausing and scaling do to a run.

Not checked here: a study that goes well (test_study.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import JOB, SPEC, Cluster

SOON = 60.0  # seconds within which a user must learn why nothing runs


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[int]:
    """GPUs of the largest node; where there are none, a worker says that it has eight."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    largest = max(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in nodes)
    if largest:
        yield largest
        return
    node = nodes[-1]["metadata"]["name"]
    patch = {"status": {kind: {"nvidia.com/gpu": "8"} for kind in ("capacity", "allocatable")}}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    yield 8
    patch = {"status": {kind: {"nvidia.com/gpu": None} for kind in ("capacity", "allocatable")}}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


def test_an_image_that_cannot_be_pulled_is_named(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "jobs" / "toy")
    submit = ("submit", "hpo", job, "--name", "no-image", "--detach", "--set", "cluster.image=trialplane/none:1")
    cluster.platform(*submit)
    began = time.monotonic()
    cluster.until("reason", lambda: "trialplane/none:1" in cluster.status("no-image")["reason"], patience=2 * SOON)
    assert time.monotonic() - began < SOON
    assert "pull" in cluster.status("no-image")["reason"].lower()
    cluster.platform("cancel", "no-image", "--yes")
    _is_gone(cluster, "no-image")


def test_more_gpus_than_any_node_has_are_explained(cluster: Cluster, tmp_path: Path) -> None:
    """Where no node has any, one may still be added: the run waits, and says for what."""
    job = cluster.job(tmp_path / "jobs" / "toy")
    submit = ("submit", "hpo", job, "--name", "greedy", "--detach", "--set", "resources.gpus=99")
    cluster.platform(*submit)
    cluster.until("reason", lambda: "nvidia.com/gpu" in cluster.status("greedy")["reason"], patience=SOON)
    cluster.platform("delete", "greedy", "--yes")
    _is_gone(cluster, "greedy")


def test_more_gpus_than_the_largest_node_has_are_refused(cluster: Cluster, tmp_path: Path, gpus: int) -> None:
    """Where nodes have some, none will have so many."""
    job = cluster.job(tmp_path / "jobs" / "toy")
    said = cluster.platform("submit", "hpo", job, "--name", "greedy", "--set", f"resources.gpus={gpus + 1}", code=2)
    assert f"{gpus + 1}" in said
    assert f"{gpus}" in said
    assert not cluster.objects("runs", run="greedy")


def test_a_changed_line_reaches_the_next_submission(cluster: Cluster, tmp_path: Path) -> None:
    """Without an image build."""
    job = cluster.job(tmp_path / "jobs" / "toy", JOB.replace('"step"', '"pace"'), SPEC.replace("trials: 6", "trials: 2"))
    cluster.platform("submit", "hpo", job, "--name", "changed")
    assert "pace 2" in cluster.platform("logs", "changed", "0")
    cluster.check_exact("changed", 2)


def test_cancel_leaves_nothing_that_runs(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "jobs" / "toy", spec=SPEC.replace("0.3", "5").replace("trials: 6", "trials: 40"))
    cluster.platform("submit", "hpo", job, "--name", "unwanted", "--detach")
    cluster.until("trial", lambda: cluster.status("unwanted")["running"] >= 1)
    cluster.platform("cancel", "unwanted", "--yes")
    _is_gone(cluster, "unwanted")
    assert cluster.status("unwanted")["state"] == "CANCELLED"


@pytest.mark.slow
def test_pause_and_resume_and_scale_lose_no_trial(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "jobs" / "toy", spec=SPEC.replace("0.3", "2").replace("trials: 6", "trials: 16"))
    cluster.platform("submit", "hpo", job, "--name", "bumpy", "--parallel", "1", "--detach")
    cluster.until("trial", lambda: cluster.ended("bumpy") >= 1)
    cluster.platform("scale", "bumpy", "--parallel", "2")
    cluster.until("second slot", lambda: cluster.status("bumpy")["running"] == 2)
    cluster.platform("scale", "bumpy", "--parallel", "1")
    cluster.until("one pod", lambda: len(cluster.running(run="bumpy", role="trial")) == 1)
    cluster.platform("pause", "bumpy")
    _is_gone(cluster, "bumpy")
    assert cluster.status("bumpy")["state"] == "PAUSED"
    cluster.platform("resume", "bumpy")
    rows = cluster.check_exact("bumpy", 16)
    assert all(row["failure"] in (None, "stopped") for row in rows)


def _is_gone(cluster: Cluster, run: str) -> None:
    """All but its Run and its code, of which it is resumed."""
    for kind in ("rayclusters", "pods", "services"):
        cluster.until(f"end of its {kind}", lambda kind=kind: not cluster.objects(kind, run=run), patience=120)
