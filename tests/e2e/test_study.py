"""The README's study on a cluster: `criteria` from outside, watched, read and looked up in MLflow; and a study without
database and MLflow for a time.

Not checked here: killed pods (test_chaos.py), what is refused (test_refusals.py), what a trial may reach
(test_isolation.py).
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import ROOT, SPEC, Cluster
from tests.e2e.recorded import mlflow_runs

TRIALS = 12
OUTAGE = 120.0  # seconds


@pytest.fixture(scope="module")
def study(cluster: Cluster) -> str:
    """The study, run once to its end in the foreground."""
    words = ("submit", "hpo", "criteria", "--trials", str(TRIALS), "--parallel", "2", "--name", "main")
    watched = subprocess.Popen(
        cluster.command(*words), cwd=ROOT, env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        cluster.until("first pod", lambda: cluster.objects("pods", run="main"))
        followed = subprocess.run(
            cluster.command("logs", "main", "-f"),
            env=cluster.environ,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        out, _ = watched.communicate(timeout=120)
    finally:
        watched.kill()
    assert watched.returncode == 0, out
    assert f"all {TRIALS} trials ended" in followed.stdout
    return "main"


def test_all_trials_ended(cluster: Cluster, study: str) -> None:
    status = cluster.status(study)
    assert status["state"] == "SUCCEEDED"
    assert status["complete"] + status["pruned"] == TRIALS
    cluster.check_exact(study, TRIALS)


def test_a_pod_ran_one_trial_at_a_time(cluster: Cluster, study: str) -> None:
    """By the times of the attempts, which come from the trial's own process; a promoted trial has several."""
    attempts = cluster.said("results", study, "--all-attempts")
    spans_by_pod = defaultdict(list)
    for attempt in attempts:
        spans_by_pod[attempt["node"]].append((attempt["started"], attempt["ended"]))
    assert 1 <= len(spans_by_pod) <= 2
    for spans in spans_by_pod.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert end <= start, "two trials at once in one pod"


def test_each_trial_is_one_run_in_mlflow(cluster: Cluster, study: str) -> None:
    trials = [int(run["tags"]["trialplane.trial"]) for run in mlflow_runs(cluster, study)]
    assert sorted(trials) == list(range(TRIALS))


def test_the_verbs_read_an_ended_run(cluster: Cluster, study: str) -> None:
    best = yaml.safe_load(cluster.platform("best", study))
    assert best
    rows = cluster.said("results", study)
    assert rows[0]["state"] == "COMPLETE"
    assert "macro_f1" in cluster.platform("logs", study, str(rows[0]["trial"]))
    assert cluster.platform("status", study, "--watch")
    assert study in cluster.platform("list")


def test_nothing_is_left_of_its_pods(cluster: Cluster, study: str) -> None:
    cluster.until("end of the pods", lambda: not cluster.running(run=study, role="trial"))


@pytest.mark.slow
def test_two_minutes_without_database_and_mlflow_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The chart's PostgreSQL is taken away, and MLflow with it, which is made anew."""
    job = cluster.job(tmp_path / "jobs" / "toy", spec=SPEC.replace("trials: 6", "trials: 30"))
    cluster.platform("submit", "hpo", job, "--name", "alone", "--detach")
    cluster.until("trial", lambda: cluster.ended("alone") >= 3)
    chosen = "app.kubernetes.io/component in (postgresql,mlflow)"
    own = cluster.control
    names = own.kubectl("get", "statefulsets,deployments", "-l", chosen, "-o", "name").split()
    assert len(names) == 2
    own.kubectl("scale", "--replicas=0", *names)
    try:
        cluster.until("end of both", lambda: not own.running(role="postgresql") + own.running(role="mlflow"))
        gone = time.monotonic()
        cluster.until("two minutes", lambda: time.monotonic() - gone > OUTAGE)
        assert cluster.running(run="alone", role="controller"), "the controller gave up"
    finally:
        own.kubectl("scale", "--replicas=1", *names)
    cluster.until("end", lambda: cluster.status("alone")["state"] == "SUCCEEDED", patience=400)
    cluster.check_exact("alone", 30)
    runs = mlflow_runs(cluster, "alone", "toy")
    assert sorted(int(run["tags"]["trialplane.trial"]) for run in runs) == list(range(30))
    assert {run["status"] for run in runs} == {"FINISHED"}
