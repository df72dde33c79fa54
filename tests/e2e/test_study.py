"""The README's study on a cluster: `criteria` from outside, watched, read and looked up in MLflow; and the same with its
pods killed.

Not checked here: what is refused (test_refusals.py), what a trial may reach (test_isolation.py).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import ROOT, SPEC, Cluster

TRIALS = 24
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
    assert "all 24 trials ended" in followed.stdout
    return "main"


def test_24_trials_ended(cluster: Cluster, study: str) -> None:
    status = cluster.status(study)
    assert status["state"] == "SUCCEEDED"
    assert status["complete"] + status["pruned"] == TRIALS
    cluster.check_exact(study, TRIALS)


def test_a_pod_ran_one_trial_at_a_time(cluster: Cluster, study: str) -> None:
    """By the times of reports in MLflow, which come from the trial's own process, and the pod it is recorded with."""
    spans = defaultdict(list)
    for run in mlflow_runs(cluster, study, metric="macro_f1"):
        spans[run["tags"]["trialplane.node"]].append((min(run["reports"]), max(run["reports"])))
    assert 1 <= len(spans) <= 2
    assert sum(len(found) for found in spans.values()) == TRIALS
    for found in spans.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(found)):
            assert end <= start, "two trials at once in one pod"


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


def test_killed_pods_cost_no_trial_and_double_none(cluster: Cluster) -> None:
    """The head pod once and worker pods twice, by force."""
    cluster.platform("submit", "hpo", "criteria", "--trials", str(TRIALS), "--parallel", "2", "--name", "killed", "--detach")

    def kill(role: str, when: int) -> None:
        cluster.until(f"trial {when}", lambda: cluster.ended("killed") >= when, patience=420)
        victim = cluster.until(role, lambda: cluster.running(run="killed", role=role))[0]
        cluster.kubectl("delete", "pod", victim, "--force", "--grace-period=0")

    kill("trial", 3)
    kill("controller", 7)
    kill("trial", 11)
    cluster.until("end", lambda: cluster.status("killed")["state"] == "SUCCEEDED", patience=600)
    rows = cluster.check_exact("killed", TRIALS)
    assert any(row["attempt"] > 1 for row in rows), "no trial was lost: the kills hit nothing"
    runs = mlflow_runs(cluster, "killed")
    final = [run["tags"]["trialplane.trial"] for run in runs if run["tags"]["trialplane.state"] in ("COMPLETE", "PRUNED")]
    assert sorted(map(int, final)) == list(range(TRIALS))
    assert all(run["status"] != "RUNNING" for run in runs)


@pytest.mark.slow
def test_two_minutes_without_database_and_mlflow_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The chart's PostgreSQL is taken away, and MLflow with it, which is made anew."""
    job = cluster.job(tmp_path / "jobs" / "toy", spec=SPEC.replace("trials: 6", "trials: 30"))
    cluster.platform("submit", "hpo", job, "--name", "alone", "--detach")
    cluster.until("trial", lambda: cluster.ended("alone") >= 3)
    chosen = "app.kubernetes.io/component in (postgresql,mlflow)"
    names = cluster.kubectl("get", "statefulsets,deployments", "-l", chosen, "-o", "name").split()
    assert len(names) == 2
    cluster.kubectl("scale", "--replicas=0", *names)
    try:
        cluster.until("end of both", lambda: not cluster.running(role="postgresql") + cluster.running(role="mlflow"))
        gone = time.monotonic()
        cluster.until("two minutes", lambda: time.monotonic() - gone > OUTAGE)
        assert cluster.running(run="alone", role="controller"), "the controller gave up"
    finally:
        cluster.kubectl("scale", "--replicas=1", *names)
    cluster.until("end", lambda: cluster.status("alone")["state"] == "SUCCEEDED", patience=400)
    cluster.check_exact("alone", 30)
    runs = mlflow_runs(cluster, "alone", "toy")
    assert sorted(int(run["tags"]["trialplane.trial"]) for run in runs) == list(range(30))
    assert {run["status"] for run in runs} == {"FINISHED"}


def mlflow_runs(cluster: Cluster, run: str, job: str = "criteria", metric: str = "") -> list[dict[str, Any]]:
    """The trials' runs in MLflow, through `platform ui`; with the times (ms) at which each reported `metric`."""
    with subprocess.Popen(
        cluster.command("ui", "--port", "5055"), env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as ui:
        try:
            cluster.until("MLflow", lambda: _answers("http://127.0.0.1:5055/health"), patience=300)
            experiment = _ask(f"experiments/get-by-name?experiment_name={job}")["experiment"]["experiment_id"]
            text = f"tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = '{run}'"
            found = _ask("runs/search", {"experiment_ids": [experiment], "filter": text, "max_results": 1000})["runs"]
            reports = {one["info"]["run_id"]: _times(one["info"]["run_id"], metric) for one in found if metric}
        finally:
            ui.terminate()
    return [
        {
            "tags": {tag["key"]: tag["value"] for tag in one["data"]["tags"]},
            "status": one["info"]["status"],
            "reports": reports.get(one["info"]["run_id"], []),
        }
        for one in found
    ]


def _times(run_id: str, metric: str) -> list[int]:
    found = _ask(f"metrics/get-history?run_id={run_id}&metric_key={metric}")["metrics"]
    return [int(one["timestamp"]) for one in found]


def _ask(path: str, body: Any = None) -> Any:
    url = f"http://127.0.0.1:5055/api/2.0/mlflow/{path}"
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.2)
        return False
