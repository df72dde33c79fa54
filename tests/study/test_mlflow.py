"""MLflow goes away in the middle of a study: the study does not stop, and in the end MLflow holds all of it, once.

A trial asks MLflow to record the use of the machine, as the guide on libraries says.

Not checked here: the exporter by itself (tests/exporter).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.study.conftest import Study, wait_until

from trialplane.wire import env, paths
from trialplane.wire.states import RunState

# Logs to MLflow only while it answers at the trial's start: a job that must log would wait for MLflow by itself.
JOB = """
import time
from pathlib import Path

def run(ctx):
    while ctx.trial >= 10 and not Path(ctx.params["away"]).exists():
        time.sleep(0.01)
    for step in range(3):
        time.sleep(0.03)
        ctx.report(step, score=ctx.params["x"] * (step + 1))
    if ctx.trial == 13:
        import mlflow  # this one starts while MLflow is away, and logs all the same
        mlflow.log_metric("from_the_job", ctx.params["x"])
        mlflow.log_text("kept", "note.txt")
    return {"score": ctx.params["x"]}
"""

SPEC = """
kind: hpo
params: {away: AWAY}
space: {x: {type: float, low: 0.0, high: 1.0}}
objectives: [{metric: score, direction: maximize}]
trials: 40
parallel: 2
"""


class Server:
    """An MLflow server on loopback that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--workers",
            "1",
        ]
        command += [
            "--backend-store-uri",
            f"sqlite:///{self._folder}/server.db",
            "--artifacts-destination",
            str(self._folder / "a"),
        ]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment.pop(env.MLFLOW_TRACKING_URI, None)
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self.answers, "MLflow answers")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=20) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_study_outlives_an_outage_of_mlflow(
    study: Study, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.start()
    monkeypatch.setenv(env.MLFLOW_TRACKING_URI, server.uri)
    away = tmp_path / "away"
    study.write(JOB, SPEC.replace("AWAY", str(away)))
    run = study.submit()
    wait_until(lambda: study.ended() >= 3, "three trials have ended")
    server.stop()
    away.touch()
    wait_until(lambda: study.ended() >= 20, "the study goes on without MLflow")
    server.start()
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.complete == 40
    assert "MLflow" not in status.reason, "everything was written in the end"
    recorded = study.mlflow_runs()
    assert sorted(int(r["tags"]["trialplane.trial"]) for r in recorded) == list(range(40))
    for one in recorded:
        assert [step for step, _ in one["history"]["score"]] == [0, 1, 2, 2], "three reports and the result, each once"
        assert one["status"] == "FINISHED"
    (logged,) = [one for one in recorded if "from_the_job" in one["metrics"]]
    assert logged["tags"]["trialplane.trial"] == "13"


MEASURED = """
import time
import mlflow

def run(ctx):
    mlflow.set_system_metrics_sampling_interval(0.1)
    with mlflow.start_run(log_system_metrics=True) as run:
        client, deadline = mlflow.MlflowClient(), time.monotonic() + 120
        while not any(name.startswith("system/") for name in client.get_run(run.info.run_id).data.metrics):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return {"score": ctx.params["x"]}
"""


@pytest.mark.slow
@pytest.mark.services
def test_the_use_of_the_machine_is_recorded_with_the_trial(study: Study) -> None:
    pytest.importorskip("psutil")
    study.write(MEASURED, SPEC.replace("AWAY", "none").replace("trials: 40", "trials: 1"))
    status = study.submit().wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    (recorded,) = study.mlflow_runs()
    assert recorded["metrics"]["score"] >= 0
    assert recorded["metrics"]["system/system_memory_usage_megabytes"] > 0
    assert "system/cpu_utilization_percentage" in recorded["metrics"]


SAMPLED = """
import time
from pathlib import Path

def run(ctx):
    ctx.report(3, score=0.25)
    while not Path("FILE").exists():
        time.sleep(0.01)
    return {"score": 0.5}
"""


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("kind", ["hpo", "train"])
def test_the_slot_samples_the_use_of_the_machine_on_request(study: Study, kind: str) -> None:
    spec = SPEC.replace("AWAY", "none").replace("trials: 40", "trials: 1") + "system_metrics: 0.1\n"
    if kind == "train":
        spec = "kind: train\nobjectives: [{metric: score, direction: maximize}]\nsystem_metrics: 0.1\n"
    file = study.home.parent / "has-samples"
    study.write(SAMPLED.replace("FILE", str(file)), spec)
    run = study.submit()

    def has_samples() -> bool:
        return sum("system/system_memory_usage_megabytes" in report.metrics for report in run.reports()) > 2

    wait_until(has_samples, "the ledger has several samples")
    file.touch()
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    (recorded,) = study.mlflow_runs()
    samples = recorded["history"]["system/system_memory_usage_megabytes"]
    assert len(samples) > 2
    assert [step for step, _ in samples] == list(range(len(samples)))
    assert "system/cpu_utilization_percentage" in recorded["metrics"]
    assert recorded["history"]["score"][0] == (3, 0.25)
    (row,) = run.rows()
    assert row.metrics == {"score": 0.5}
    assert row.step == 3
    assert "system/cpu_utilization_percentage" in {name for report in run.reports() for name in report.metrics}


PROGRAM = """
import contextlib, os, sqlite3  # a program with mlflow would create the tables that it does not find

file = os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")
rows = []
with contextlib.suppress(sqlite3.Error), sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
    rows = database.execute("SELECT artifact_location FROM experiments").fetchall()
print(f"score={len(rows)}")
"""

PROGRAM_SPEC = """
kind: hpo
command: [python, train.py, "{x}"]
space: {x: {type: float, low: 0.0, high: 1.0}}
objectives: [{metric: score, direction: maximize}]
trials: 2
parallel: 2
"""


@pytest.mark.slow
@pytest.mark.services
def test_programs_find_mlflows_tables_in_a_new_home(study: Study) -> None:
    """Two that created them at once would fail; and the folder of one would get the artifacts of all runs."""
    study.write(PROGRAM, PROGRAM_SPEC)
    paths.mlflow_db(study.home).unlink()
    run = study.submit()
    assert run.wait().state is RunState.SUCCEEDED
    assert all(row.metrics["score"] >= 1 for row in run.rows())
