"""A training in the pods of a cluster: `cnm-bert` with four ranks in one pod, as its user starts it; and a pod that is lost.

Not checked: GPUs and NCCL, for the clusters this runs on have none; several pods, which need a volume that many may write.
"""

from __future__ import annotations

import pytest
from tests.e2e.conftest import Cluster

STEPS = 40
QUICK = (
    *("--set", "params.max_train_samples=1600", "--set", "params.eval_samples=200", "--set", f"params.max_steps={STEPS}"),
    *("--set", "params.report_every=2", "--set", "params.eval_every=20", "--set", "params.save_every=4"),
)


def submit(cluster: Cluster, run: str, *more: str) -> None:
    cluster.platform("submit", "train", "cnm-bert", "--name", run, "--set", "ranks=4", *QUICK, *more, "--detach")


def reached(cluster: Cluster, run: str, step: int) -> bool:
    return (cluster.status(run)["progress"]["step"] or 0) >= step


def test_four_ranks_in_one_pod(cluster: Cluster) -> None:
    cluster.platform("submit", "train", "cnm-bert", "--name", "ranks", "--set", "ranks=4", *QUICK)
    status = cluster.status("ranks")
    assert (status["state"], status["progress"]["step"]) == ("SUCCEEDED", STEPS)
    log = cluster.platform("logs", "ranks")
    assert f"step {STEPS}/{STEPS} (100%)" in log
    (row,) = cluster.said("results", "ranks")
    assert (row["state"], row["attempt"], row["metrics"]["steps"]) == ("COMPLETE", 1, STEPS)


@pytest.mark.timeout(1200)
def test_a_lost_pod_costs_no_more_than_the_steps_since_its_checkpoint(cluster: Cluster) -> None:
    """All its processes are killed, without a chance to save; the training goes on from the volume, to the same end."""
    submit(cluster, "lost", "--set", "params.max_steps=200")
    cluster.until("step 12", lambda: reached(cluster, "lost", 12))
    (pod,) = cluster.running(run="lost", role="trial")
    # A forced deletion runs the pod's preStop hook all the same; this is what a node that vanishes does.
    cluster.kubectl("exec", pod, "-c", "ray-worker", "--", "python", "-c", "import os; os.kill(-1, 9)")
    cluster.until("end", lambda: cluster.status("lost")["state"] == "SUCCEEDED", patience=600)
    (row,) = cluster.said("results", "lost")
    assert (row["state"], row["attempt"], row["metrics"]["steps"]) == ("COMPLETE", 2, 200)
    steps = [
        int(line.split()[1].split("/")[0])
        for line in cluster.platform("logs", "lost").splitlines()
        if "(" in line and line.startswith("step")
    ]
    assert steps[0] > 4, "the second attempt began with a checkpoint"
    assert steps[-1] == 200
    cluster.platform("delete", "lost", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_controller_costs_no_more_than_the_steps_since_a_checkpoint(cluster: Cluster) -> None:
    """The head pod is deleted by force, and the pod of the ranks, which belongs to its Ray, goes with it."""
    submit(cluster, "headless", "--set", "params.max_steps=200")
    cluster.until("step 12", lambda: reached(cluster, "headless", 12))
    (pod,) = cluster.running(run="headless", role="controller")
    cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    cluster.until("end", lambda: cluster.status("headless")["state"] == "SUCCEEDED", patience=600)
    (row,) = cluster.said("results", "headless")
    assert (row["state"], row["attempt"], row["metrics"]["steps"]) == ("COMPLETE", 2, 200)
    assert "continues from" in cluster.platform("logs", "headless")


@pytest.mark.slow
def test_finetuning_in_a_pod_keeps_its_snapshots(cluster: Cluster) -> None:
    cluster.platform("submit", "train", "finetune", "--name", "tuned", "--set", "params.epochs=1")
    (row,) = cluster.said("results", "tuned")
    assert (row["state"], row["attempt"]) == ("COMPLETE", 1)
    assert "snapshot" in cluster.platform("logs", "tuned")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_pod_that_is_told_to_go_saves_itself_first(cluster: Cluster) -> None:
    submit(cluster, "told", "--set", "params.max_steps=300", "--set", "params.save_every=1000")
    cluster.until("step 12", lambda: reached(cluster, "told", 12))
    (pod,) = cluster.running(run="told", role="trial")
    cluster.kubectl("delete", "pod", pod, "--wait=false")
    cluster.until("end", lambda: cluster.status("told")["state"] == "SUCCEEDED", patience=600)
    log = cluster.platform("logs", "told")
    first = next(line for line in log.splitlines() if line.startswith("step"))
    assert int(first.split()[1].split("/")[0]) > 12, "nothing but the end of its pod made it save"
    (row,) = cluster.said("results", "told")
    assert (row["attempt"], row["metrics"]["steps"]) == (2, 300)
