"""A script that knows nothing of the platform, on a cluster: its metrics come out of the pod, a bad trial is pruned, and
a sampler that computes with torch draws the last one.

Not checked here: everything else about scripts (tests/worker/test_programs.py, tests/study/test_scripts.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Cluster

SPEC = """
kind: hpo
script: train.py
space:
  lr: {type: float, low: 0.0, high: 1.0}
enqueue: [{lr: 0.1}, {lr: 0.2}, {lr: 0.9}]
objective: {metric: accuracy, direction: maximize}
pruner: {name: median, n_startup_trials: 2, n_warmup_steps: 3}
sampler: {name: gp, n_startup_trials: 1}
trials: 4
"""
SCRIPT = """
import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
lr = parser.parse_args().lr
print(open("greeting.txt").read())
for epoch in range(1, 60):
    print(f"epoch {epoch}: accuracy={1 - lr}")
    time.sleep(0.5 if lr > 0.5 else 0)
"""


def test_a_script_is_a_study_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "jobs" / "toy", SCRIPT, SPEC)
    (Path(job) / "greeting.txt").write_text("beside the script")
    cluster.platform("submit", "hpo", job, "--name", "script")
    found = {row["trial"]: row for row in json.loads(cluster.platform("results", "script", "--output", "json"))}
    assert sorted(found) == list(range(4))
    assert [found[trial]["state"] for trial in range(3)] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert found[0]["metrics"]["accuracy"] == 0.9
    log = cluster.platform("logs", "script", "1")
    assert "beside the script" in log and "epoch 59: accuracy=0.8" in log
