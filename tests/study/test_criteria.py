"""The main job from the command line, as the README says: 24 trials of `criteria` on this machine, and what can be read of
them afterwards.

Not checked here: crashes (test_crashes.py), what each verb prints (tests/cli).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.browser import Browser

from trialplane.training import building
from trialplane.wire import env
from trialplane.wire.paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = Path(sysconfig.get_path("scripts")) / "platform"

pytestmark = pytest.mark.slow


class Shell:
    """A terminal in the repository with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        unset = (env.MLFLOW_TRACKING_URI, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "HPO_EPOCHS", "HPO_MODEL_CHOICES")
        self.environ = {name: value for name, value in os.environ.items() if name not in unset}
        self.environ |= {env.HOME: str(home), "RAY_AUTH_MODE": "disabled"}

    def type(self, *words: str) -> str:
        done = subprocess.run(
            [PLATFORM, *words], cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=800, check=False
        )
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shell:
    """A shell in which the study has been run, once for all workers of the tests."""
    base = tmp_path_factory.getbasetemp()
    made = Shell((base if worker_id == "master" else base.parent) / "criteria" / "home")
    with building.lock(made.home):
        ended = made.home.with_name("ended")
        if not ended.exists():
            out = made.type("submit", "hpo", "criteria", "--trials", "24", "--local", "--name", "main")
            assert "24" in out
            ended.touch()
    return made


@pytest.fixture(scope="module")
def rows(shell: Shell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.type("results", "main", "--output", "json"))
    return found


def test_24_trials_ended_without_a_failure(shell: Shell, rows: list[dict[str, Any]]) -> None:
    status = json.loads(shell.type("status", "main", "--output", "json"))
    assert status["state"] == "SUCCEEDED"
    assert status["complete"] + status["pruned"] == 24
    assert {row["trial"] for row in rows} == set(range(24))


def test_the_search_finds_better_than_its_first_trials(rows: list[dict[str, Any]]) -> None:
    score = {row["trial"]: row["values"][0] for row in rows if row["state"] == "COMPLETE"}
    first = [value for trial, value in score.items() if trial < 8]
    assert max(score.values()) >= statistics.median(first) + 0.15
    late = [value for trial, value in score.items() if trial >= 16]
    assert statistics.median(late) > statistics.median(first)


def test_trials_were_forked_from_a_warm_template(shell: Shell) -> None:
    run = RunPaths.of(shell.home, "main")
    said = "".join(log.read_text() for log in (run.root / "slots").glob("*.log"))
    assert "spawned" not in said


def test_each_trial_is_a_run_in_mlflow(shell: Shell) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{shell.home}/mlflow.db")
    experiment = client.get_experiment_by_name("criteria")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    (study,) = [run for run in runs if run.data.tags["trialplane.kind"] == "study"]
    trials = [run for run in runs if run.data.tags["trialplane.kind"] == "trial"]
    assert sorted(int(run.data.tags["trialplane.trial"]) for run in trials) == list(range(24))
    assert all(run.data.tags["mlflow.parentRunId"] == study.info.run_id for run in trials)
    assert study.info.status == "FINISHED"
    for run in trials:
        assert {"macro_f1", "pr_auc"} <= set(run.data.metrics)
        assert {"lr", "model"} <= set(run.data.params)
        tags = {
            "trialplane.attempt",
            "trialplane.node",
            "trialplane.git_revision",
            "trialplane.code_hash",
            "trialplane.seed",
        }
        assert tags <= set(run.data.tags)
        if run.data.tags["trialplane.state"] == "COMPLETE":
            assert client.list_artifacts(run.info.run_id), "what the job logged by plain mlflow.log_*"
            segments = [
                other for other in trials if other.data.tags["trialplane.trial"] == run.data.tags["trialplane.trial"]
            ]
            history = [client.get_metric_history(segment.info.run_id, "macro_f1") for segment in segments]
            assert len({metric.step for metrics in history for metric in metrics}) > 1, "per epoch"


def test_the_best_parameters_are_what_submit_takes(shell: Shell, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(shell.type("best", "main"))
    assert yaml.safe_load(file.read_text())["lr"] == pytest.approx(rows[0]["params"]["lr"])
    plan = shell.type("submit", "hpo", "criteria", "--local", "--params", str(file), "--dry-run")
    assert "macro_f1" in plan


def test_logs_of_the_run_and_of_a_trial(shell: Shell) -> None:
    assert "all 24 trials ended" in shell.type("logs", "main")
    assert "step 0: " in shell.type("logs", "main", "3")


def test_optuna_opens_the_exported_run(shell: Shell, tmp_path: Path) -> None:
    import optuna

    url = f"sqlite:///{tmp_path}/study.db"
    shell.type("export", "main", url)
    study = optuna.load_study(study_name="main", storage=url)
    assert all(trial.state.is_finished() for trial in study.trials)
    assert sorted(trial.user_attrs["trial"] for trial in study.trials) == list(range(24))


def test_the_ui_shows_the_study(shell: Shell) -> None:
    ui = subprocess.Popen(
        [PLATFORM, "ui"], cwd=ROOT, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert ui.stdout is not None
        browser = Browser(ui.stdout.readline().strip())
        _, _, query = browser.page.partition("/#/")[2].partition("?")
        assert dict(urllib.parse.parse_qsl(query))["orderByKey"] == "metrics.`macro_f1`"
        found = browser.get("/api/2.0/mlflow/experiments/search", {"max_results": 10})
        assert "criteria" in {experiment["name"] for experiment in found["experiments"]}
    finally:
        ui.terminate()
        ui.communicate(timeout=300)


def test_python_runs_one_trial_alone(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "jobs/criteria/train.py", "--set", "max_rows=64", "--set", "epochs=1"],
        cwd=ROOT,
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "macro_f1" in done.stdout
