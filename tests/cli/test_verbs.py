"""Each verb on runs whose ledgers the controller's code wrote: what goes to stdout, to stderr, and the exit code.

Not checked here: bad input (test_bad_input.py), the progress display (test_progress.py), and what a verb imports
(test_start_up.py).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.client.conftest import complete, failed

from trialplane.client import folder
from trialplane.controller.ledger import Ledger
from trialplane.job import load
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, RunState


def mixed(request):
    return failed(request, message="two\nlines") if request.trial == 1 else complete(request)


@pytest.fixture
def run(runs):
    """A run named a that has succeeded with one failed trial."""
    made = runs.make("a", tell=mixed)
    runs.say(made, RunState.SUCCEEDED, complete=5, failed=1, ended=60.0, started=1.0)
    return made


# Reading


def test_results_are_best_first(platform, run):
    lines = platform("results").stdout.splitlines()
    assert lines[0].split() == ["trial", "state", "loss", "lr", "name", "time", "message"]
    losses = [float(line.split()[2]) for line in lines[1:6]]
    assert losses == sorted(losses)
    assert lines[6].endswith("error: two lines")


def test_results_as_data(platform, run):
    rows = json.loads(platform("results", "a", "--output", "json").stdout)
    assert [row["state"] for row in rows] == ["COMPLETE"] * 5 + ["FAILED"]
    assert yaml.safe_load(platform("results", "-o", "yaml").stdout)[0]["trial"] == rows[0]["trial"]
    table = list(csv.DictReader(io.StringIO(platform("results", "-o", "csv").stdout)))
    assert float(table[0]["metrics.loss"]) == rows[0]["metrics"]["loss"]  # in full, not in four digits
    assert table[5]["message"] == "two\nlines"


def test_what_a_trial_returned_beside_numbers_is_in_its_results(platform, runs):
    runs.make(
        "a",
        tell=lambda request: dataclasses.replace(complete(request), returned={"best": "adamw", "f1": {"yes": [0.5, None]}}),
    )
    rows = json.loads(platform("results", "a", "--output", "json").stdout)
    assert rows[0]["returned"] == {"best": "adamw", "f1": {"yes": [0.5, None]}}
    table = list(csv.DictReader(io.StringIO(platform("results", "-o", "csv").stdout)))
    assert (table[0]["returned.best"], json.loads(table[0]["returned.f1"])) == ("adamw", {"yes": [0.5, None]})


def test_a_parameter_that_is_a_list_is_a_list_in_results(platform, runs):
    text = Path("jobs/demo/job.yaml").read_text()
    assert 'choices: ["1e-5", "on", plain]' in text
    Path("jobs/demo/job.yaml").write_text(text.replace('["1e-5", "on", plain]', "[[a, b], [c]]"))
    runs.make("a", tell=complete)
    rows = json.loads(platform("results", "-o", "json").stdout)
    assert all(row["params"]["name"] in (["a", "b"], ["c"]) for row in rows)
    table = list(csv.DictReader(io.StringIO(platform("results", "-o", "csv").stdout)))
    assert json.loads(table[0]["params.name"]) == rows[0]["params"]["name"]
    Path("best.yaml").write_text(platform("best").stdout)
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", "--params", "best.yaml", "-o", "json")
    assert json.loads(result.stdout)["job"]["params"]["name"] == rows[0]["params"]["name"]


def test_the_step_of_the_best_report_is_in_results(platform, runs):
    file = Path("jobs/demo/job.yaml")
    file.write_text(file.read_text().replace("direction: minimize}", "direction: minimize, of: best}"))
    made = runs.make("a")
    with Ledger(f"sqlite:///{made.ledger}", folder.load_job(made), "a", made.code, made.lock) as ledger:
        request = ledger.ask()
        for step, value in enumerate((3.0, -9.0)):
            ledger.report(TrialReport(request.number, step, {"loss": value}, 1.0))
        ledger.tell(complete(request))
    head, line = platform("results").stdout.splitlines()
    assert head.split()[:6] == ["trial", "state", "loss", "loss", "at", "step"]
    assert line.split()[:4] == ["0", "COMPLETE", "-9", "1"]
    assert json.loads(platform("results", "-o", "json").stdout)[0]["best_steps"] == {"loss": 1}
    assert next(csv.DictReader(io.StringIO(platform("results", "-o", "csv").stdout)))["best_steps.loss"] == "1"
    assert "minimize best loss" in platform("validate", "demo").stdout


def test_results_can_be_cut(platform, run):
    assert len(platform("results", "--limit", "2").stdout.splitlines()) == 3
    assert len(platform("results", "--all-attempts").stdout.splitlines()) == 7


def test_results_of_a_run_without_trials(platform, runs):
    runs.make("a")
    result = platform("results")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no trial yet" in result.stderr
    assert json.loads(platform("results", "-o", "json").stdout) == []


def test_best_is_what_submit_takes(platform, run):
    best = platform("best").stdout
    assert best.startswith("# a, trial ")
    Path("best.yaml").write_text(best)
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", "--params", "best.yaml", "-o", "json")
    job = json.loads(result.stdout)["job"]
    best_row = json.loads(platform("best", "-o", "json").stdout)[0]
    assert job["params"] == best_row["params"]
    assert isinstance(job["params"]["name"], str)  # also where it looks like a number
    assert job["space"] == {}


@pytest.mark.parametrize("trial", ["0", "2", "5"])
def test_the_parameters_of_any_trial(platform, run, trial):
    assert platform("best", "--trial", trial).stdout.startswith(f"# a, trial {trial}: ")


def test_best_of_several_objectives_is_the_front(platform, runs, workplace):
    text = (
        Path("jobs/demo/job.yaml")
        .read_text()
        .replace("direction: minimize}", "direction: minimize}, {metric: lr, direction: maximize}")
    )
    Path("jobs/demo/job.yaml").write_text(text)
    runs.make("a", tell=two_metrics)
    result = platform("best")
    assert len(list(yaml.safe_load_all(result.stdout))) == 6  # loss is lr: none beats another
    assert "--trial" in result.stderr


def test_best_without_a_result(platform, runs):
    runs.make("a", tell=failed, asks=1)
    result = platform("best")
    assert result.exit_code == 2
    assert "no result" in result.stderr


def test_status(platform, run):
    text = platform("status").stdout
    assert "SUCCEEDED" in text
    assert "6/6 ended: 5 complete, 0 pruned, 1 failed" in text
    assert json.loads(platform("status", "a", "-o", "json").stdout)["complete"] == 5


def test_status_of_a_killed_run(platform, runs):
    runs.say(runs.make("a", tell=complete, asks=2), RunState.RUNNING)
    text = platform("status").stdout
    assert "PAUSED" in text
    assert "2/6 ended" in text
    assert "platform resume a" in text


def test_list(platform, runs, run):
    runs.make("b")
    lines = platform("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", "b", "a"]
    assert [entry["run"] for entry in json.loads(platform("list", "-o", "json", "--limit", "1").stdout)] == ["b"]


def test_list_of_nothing(platform):
    assert json.loads(platform("list", "-o", "json").stdout) == []
    assert "no runs yet" in platform("list").stderr


def test_logs(platform, run):
    run.controller_log.write_text("the controller said\n")
    for trial in (0, 3):
        run.trial_log(trial, 1).parent.mkdir(parents=True)
        run.trial_log(trial, 1).write_text(f"trial {trial}\n")
    assert platform("logs").stdout == "the controller said\n"
    assert platform("logs", "a", "3").stdout == "trial 3\n"
    assert platform("logs", "3").stdout == "trial 3\n"
    assert platform("logs", "a", "0", "--attempt", "1", "-f").stdout == "trial 0\n"


def test_the_events_of_a_run_here_are_what_the_ledger_has(platform, run):
    result = platform("logs", "a", "--events")
    assert result.exit_code == 0, result.stderr
    lines = [line[21:] for line in result.stdout.splitlines()]
    assert lines[0] == "submitted"
    assert next(line for line in lines if line.startswith("trial 0 ")) == "trial 0 started"


def test_a_trial_that_was_paused_is_told_once_why(platform, runs):
    stopped = functools.partial(failed, failure=FailureClass.STOPPED, message="the user paused the run")
    runs.say(runs.make("a", tell=stopped, asks=1), RunState.PAUSED)
    lines = [line[21:] for line in platform("logs", "a", "--events").stdout.splitlines()]
    assert "trial 0 paused: the user paused the run" in lines


def test_a_pause_stays_among_the_events_when_the_run_is_resumed(platform, runs, run, double):
    runs.say(run, RunState.PAUSED, ended=60.0)
    run.status.write_text(run.status.read_text().replace('"reason":""', '"reason":"stopped"'))
    assert platform("resume", "a", "--trials", "9", "--detach").exit_code == 0
    double(run)
    result = platform("logs", "a", "--events")
    lines = [line[21:] for line in result.stdout.splitlines()]
    assert lines.count("submitted") == 1
    assert [line for line in lines if line in ("paused: stopped", "resumed")] == ["paused: stopped", "resumed"]


def test_a_corrupt_ledger(platform, run):
    run.ledger.write_bytes(b"not a database, whatever it was before" * 100)
    for verb in ("results", "best", "resume"):
        result = platform(verb, "a")
        assert result.exit_code == 2
        assert "is damaged" in result.stderr
    assert run.ledger.exists()


# Starting


def test_a_dry_run_shows_everything_and_makes_nothing(platform, home):
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", "--trials", "9", "--name", "x")
    shown = yaml.safe_load(result.stdout)
    assert result.exit_code == 0
    assert (shown["run"], shown["job"]["trials"]) == ("x", 9)
    assert shown["code"]["files"] == ["job.yaml", "train.py"]
    assert shown["writes"] == str(home / "runs" / "x")
    assert not home.exists()


def test_flags_reach_the_job(platform):
    words = ["--parallel", "3", "--seed", "5", "--timeout", "90s", "--max-failed", "2"]
    words += ["--sampler", "qmc", "--pruner", "hyperband"]
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", *words, "--set", "retries.lost=9", "-o", "json")
    job = json.loads(result.stdout)["job"]
    assert (job["parallel"], job["seed"], job["sampler"]["name"], job["pruner"]["name"]) == (3, 5, "qmc", "hyperband")
    assert (job["budget"]["timeout"], job["budget"]["max_failed"], job["retries"]["lost"]) == (90.0, 2, 9)


def test_submit_detached_returns_at_once(platform, runs, double, home):
    result = platform("submit", "hpo", "demo", "--local", "--detach", "--name", "x")
    assert result.exit_code == 0
    assert "platform status x --watch" in result.stderr
    double(RunPaths.of(home, "x"))
    again = platform("submit", "hpo", "demo", "--local", "--detach", "--name", "x")
    assert "is running: it continues" in again.stderr
    assert platform("cancel", "x", "--yes").exit_code == 0
    assert json.loads(platform("status", "x", "-o", "json").stdout)["state"] == "CANCELLED"


def test_submitting_a_finished_run_starts_nothing(platform, run):
    before = run.status.read_bytes()
    result = platform("submit", "hpo", "demo", "--local", "--name", "a")
    assert result.exit_code == 0
    assert "nothing was started" in result.stderr
    assert run.status.read_bytes() == before


def test_another_spec_under_the_same_name(platform, run):
    result = platform("submit", "hpo", "demo", "--local", "--name", "a", "--trials", "7")
    assert result.exit_code == 2
    assert "trials: 6 → 7" in result.stderr


def test_resume_with_more_trials(platform, runs, run, double):
    result = platform("resume", "a", "--trials", "8", "--set", "budget.max_failed=20", "--detach", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trials"] == 8
    assert folder.load_job(run).budget.max_failed == 20
    double(run)


def test_warnings_are_notes(platform):
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", "--parallel", "4000")
    assert result.exit_code == 0
    assert "note: 6 trials with 1 core each" in result.stderr


# Around


def test_init_makes_a_job_that_is_valid_and_runs(platform, workplace, capsys):
    assert platform("init", "mine").exit_code == 0
    assert "is valid" in platform("validate", "mine").stdout
    file = workplace / "jobs" / "job.schema.json"
    assert file.read_text() == platform("schema").stdout
    file.write_text("{}")
    assert platform("init", "yours").exit_code == 0
    assert file.read_text() == "{}"  # what is there is the user's
    names: dict = {"__name__": "mine"}
    exec((workplace / "jobs" / "mine" / "train.py").read_text(), names)
    job = load.load_job(workplace / "jobs" / "mine")
    params = {**job.params, "lr": 0.01, "layers": 3, "optimizer": "sgd", "momentum": 0.9}
    context = type("Context", (), {"params": params, "report": lambda *_, **__: None})()
    assert names["run"](context)["loss"] < 0.2
    assert capsys.readouterr().out == "", "what it reports is printed by the report, once"


@pytest.mark.parametrize("words", [("init", "mine"), ("import", "wandb", "sweep.yaml", "--into", "jobs/mine")])
def test_a_new_job_is_made_in_the_working_directory_whatever_folders_above_have_jobs(platform, workplace, words) -> None:
    inner = workplace / "inner"
    inner.mkdir()
    (inner / "sweep.yaml").write_text(
        "program: t.py\nmetric: {name: a, goal: maximize}\nparameters: {x: {min: 0.1, max: 1.0}}\n"
    )
    before = sorted((workplace / "jobs").iterdir())
    os.chdir(inner)
    platform(*words)
    assert (inner / "jobs" / "mine" / "job.yaml").is_file()
    assert sorted((workplace / "jobs").iterdir()) == before


@pytest.mark.slow
def test_init_makes_a_training_that_is_valid_and_trains(platform, workplace, tmp_path):
    made = platform("init", "line", "--kind", "train")
    assert "`platform submit train line --local --ranks 2` runs it" in made.stderr
    assert "is valid" in platform("validate", "line").stdout
    folder_ = workplace / "jobs" / "line"
    args = ["--set", "steps=150", "--checkpoints", str(tmp_path / "saved")]
    command = [sys.executable, str(folder_ / "train.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert json.loads(done.stdout[done.stdout.index("{") :])["loss"] < 1e-3
    assert len(list((tmp_path / "saved").iterdir())) >= 2
    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert "step 150" not in again.stdout  # it goes on from its checkpoint, which is the last one


def test_validate_prints_the_resolved_job(platform):
    assert json.loads(platform("validate", "demo", "-o", "json", "--set", "trials=9").stdout)["trials"] == 9


def test_schema_is_json_schema(platform):
    assert "properties" in json.loads(platform("schema").stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(platform, shell):
    assert "_PLATFORM_COMPLETE" in platform("completion", shell).stdout


def two_metrics(request):
    return dataclasses.replace(complete(request), metrics={"loss": request.params["lr"], "lr": request.params["lr"]})
