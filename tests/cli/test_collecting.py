"""A collection on the command line: what is submitted, what is refused, and how every verb shows it.

Not checked here: a real collection (tests/study), the fields of the job (tests/job), its pods (tests/plan).
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_progress import Terminal
from tests.client.conftest import failed

from trialplane.cli import kinds, output, progress
from trialplane.client import machine
from trialplane.client.run import RunHandle
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus, TrialOutcome
from trialplane.wire.states import FailureClass, RunState, TrialState
from trialplane.wire.units import WorkerStatus

SHOWN = kinds.PRESENTERS["collect"]
SUBMIT = ("submit", "collect", "demo", "--local", "--dry-run", "-o", "json")
START = RunStatus(
    "a", "demo", RunState.RUNNING, trials=10, parallel=2, objectives=("units",), slots_ready=2, progress=CollectionProgress()
)
WORKERS = (
    WorkerStatus(0, "working", node="pod-a", units=30, items=6000, bytes=2 * 2**30, seconds=60.0),
    WorkerStatus(1, "failed", node="pod-b", units=15, items=3000, failed=1, bytes=2**30, seconds=60.0, message="error: bad"),
)
SAID = CollectionProgress(
    iteration=3, units=45, units_total=80, units_failed=1, items=9000, bytes=3 * 2**30, in_flight_bytes=200 * 2**20,
    units_per_second=1.25, items_per_second=250.0, workers=WORKERS,
)  # fmt: skip
GOING = dataclasses.replace(START, running=1, complete=3, retried=1, slots_ready=3, progress=SAID, eta=90.0, rate=0.01)


@pytest.fixture(autouse=True)
def job(workplace) -> Path:
    """The job demo is a collection."""
    file = workplace / "jobs" / "demo" / "job.yaml"
    collect = "{units: 4, iterations: 3, workers: 2, learner: 'train:learn', in_flight: 1Mi}"
    file.write_text(f"kind: collect\ncollect: {collect}\nresources: {{memory: 1Mi}}\n")
    (file.parent / "train.py").write_text("def play(ctx): ...\ndef learn(ctx, results): ...\ndef run(ctx): ...\n")
    return file


@pytest.fixture(autouse=True)
def cores(monkeypatch) -> None:
    """This machine has enough of them."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)))


def collected(request) -> TrialOutcome:
    log = f"trials/{request.trial:04d}/attempt-{request.attempt}.log"
    metrics = {"units": 2.0 + request.trial, "units_failed": 0.0, "gigabytes": 0.5, "loss": 1.0 / (request.trial + 1)}
    metrics["worker_0/items_per_second"] = 7.5
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics=metrics, started=10.0, ended=40.0, log=log)


def second_fails(request) -> TrialOutcome:
    return collected(request) if request.trial != 1 else failed(request, FailureClass.ERROR, "worker 1, unit 5: bad move")


# Submitting


@pytest.mark.parametrize("games", ["--units", "--games"])
def test_flags_are_fields(platform, home, games):
    words = (
        "--workers",
        "8",
        games,
        "800",
        "--iterations",
        "10",
        "--max-failed",
        "5",
        "--in-flight",
        "2Mi",
        "--timeout",
        "1h",
    )
    result = platform(*SUBMIT, *words)
    made = json.loads(result.stdout)["job"]
    collect = made["collect"]
    assert [collect[name] for name in ("workers", "units", "iterations", "max_failed", "in_flight")] == [
        8,
        800,
        10,
        5,
        "2Mi",
    ]
    assert made["budget"]["timeout"] == 3600
    assert "trials" not in made
    assert result.stderr == ""
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", "hpo", "demo", "--local"), ["job.yaml:1: kind: is collect, and not hpo", "submit collect demo"]),
        (("submit", "train", "demo", "--local"), ["kind: is collect, and not train: `platform submit collect demo`"]),
        ((*SUBMIT, "--trials", "3"), ["No such option", "--trials"]),
        ((*SUBMIT, "--parallel", "3"), ["No such option", "--parallel"]),
        (
            (*SUBMIT, "--set", "trials=4"),
            ["--set trials=4: trials: is for a search (kind: hpo); a collection has collect.iterations"],
        ),
        (
            (*SUBMIT, "--games", "0", "--workers", "0"),
            ["--units: collect.units: 0 must", "--workers: collect.workers: 0 must"],
        ),
        ((*SUBMIT, "--in-flight", "much"), ["--in-flight: collect.in_flight: 'much' is not an amount of memory"]),
        ((*SUBMIT, "--set", "collect.write={}"), ["collect.write: stands beside learner (train:learn)"]),
        ((*SUBMIT, "--resume", "nothing"), ["--resume: resume: there is no run 'nothing'"]),
    ],
)
def test_what_cannot_be_is_refused_and_starts_nothing(platform, home, words, said):
    result = platform(*words)
    assert result.exit_code == 2, result.output
    for text in said:
        assert text in result.stderr
    assert not home.exists()


def test_validate_says_what_it_is(platform):
    assert platform("validate", "demo").stdout == (
        "demo is valid: 3 iterations of 4 units, 2 workers, results to train:learn, at most 1Mi in flight\n"
    )
    assert json.loads(platform("validate", "demo", "-o", "json").stdout)["collect"]["units"] == 4


def test_validate_names_files_and_gpus(platform, job):
    job.write_text("kind: collect\ncollect: {units: 1, write: {format: parquet}}\nresources: {gpus: 1}\n")
    said = platform("validate", "demo").stdout
    assert "1 iteration of 1 unit, 1 worker with 1 GPU each, results to files (parquet), at most 512Mi" in said


def test_init_makes_one_that_is_valid_and_learns(platform, workplace):
    made = platform("init", "games", "--kind", "collect")
    assert "`platform submit collect games --local`" in made.stderr
    assert "is valid: 5 iterations of 20 units, 2 workers" in platform("validate", "games").stdout
    command = [sys.executable, str(workplace / "jobs" / "games" / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    heights = [
        float(height) for height in re.findall(r"^iteration \d: height (\S+)", done.stderr + done.stdout, re.MULTILINE)
    ]
    assert len(heights) == 5
    assert heights[0] > 1
    assert heights[4] < 1e-3  # with weights that went round


def test_a_second_submission_of_one_that_succeeded_says_how_to_ask_for_more(platform, runs):
    run = runs.make("a", tell=collected)
    runs.say(run, RunState.SUCCEEDED, complete=3)
    result = platform("submit", "collect", "demo", "--local", "--name", "a")
    assert (result.exit_code, "platform resume a --iterations N" in result.stderr) == (0, True)


# Showing


def test_a_status_says_how_the_iteration_goes():
    assert SHOWN.line(GOING) == (
        "3/10 iterations complete, 1 attempt retried; iteration 3: 45/80 units, 1 failed; 1.25 units/s, 250 items/s; "
        "3 GiB moved, 200 MiB in flight; worker 1 failed (error: bad)"
    )
    assert progress.line(GOING) == SHOWN.line(GOING)
    spilled = dataclasses.replace(GOING, progress=dataclasses.replace(SAID, spilled_bytes=5_000_000, workers=()))
    assert SHOWN.line(spilled).endswith("200 MiB in flight, 4.77 MiB spilled to disk")
    assert SHOWN.live(GOING).share == pytest.approx((3 + 45 / 80) / 10)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (dataclasses.replace(START, running=1), "0/10 iterations complete"),
        (dataclasses.replace(GOING, running=0, complete=10), "10/10 iterations complete, 1 attempt retried"),
        (dataclasses.replace(GOING, running=0, failed=1), "3/10 iterations complete, 1 failed, 1 attempt retried"),
        (START, "RUNNING: the slots are warming up (2/3 slots ready)"),
    ],
)
def test_between_iterations_nothing_is_said_of_units(status, said):
    assert progress.line(status) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 bytes"), (1023, "1023 bytes"), (2048, "2 KiB"), (5.5 * 2**40, "5.5 TiB")]
)
def test_bytes_are_shown_in_their_unit(count, said):
    assert output.size(count) == said


def test_status_shows_its_workers(platform, runs, held):
    run = runs.make("a", tell=None, asks=1)
    held(run)
    runs.say(run, RunState.RUNNING, progress=SAID, running=1, complete=1)
    text = platform("status", "a").stdout
    assert "trial" not in text
    assert re.search(r"^iterations +1/3 iterations complete$", text, re.MULTILINE)
    assert re.search(r"^now +iteration 3: 45/80 units, 1 failed$", text, re.MULTILINE)
    lines, end = text.splitlines(), ["failed", "moved", "node", "message"]
    assert lines[-3].split() == ["worker", "state", "units", "units/s", "items", "items/s", *end]
    assert lines[-2].split() == ["0", "working", "30", "0.5", "6000", "100", "0", "2", "GiB", "pod-a"]
    assert lines[-1].split() == ["1", "failed", "15", "0.25", "3000", "50", "1", "1", "GiB", "pod-b", "error:", "bad"]
    data = json.loads(platform("status", "a", "-o", "json").stdout)
    shown = data["progress"]
    assert (shown["kind"], shown["units"], shown["workers"][1]["message"]) == ("collect", 45, "error: bad")


def test_a_run_on_which_nobody_works_has_no_workers(platform, runs):
    runs.say(runs.make("a", tell=collected), RunState.SUCCEEDED, complete=3, progress=SAID)
    text = platform("status", "a").stdout
    assert "3/3 iterations complete" in text
    assert "worker" not in text


def test_the_live_display_holds_the_same_facts(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress.view(stream := Terminal()) as shown:
        shown.update(GOING)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for words in ("3/10 iterations complete", "iteration 3: 45/80 units, 1 failed", "250 items/s", "200 MiB in flight"):
        assert words in text
    for words in ("1 m 30 s left", "3/3 slots ready", "pod-b", "error: bad"):
        assert words in text
    assert "trial" not in text


def test_lines_come_once_in_a_while():
    view = progress.PlainView(stream := io.StringIO())
    for units in range(50):
        view.update(dataclasses.replace(GOING, progress=dataclasses.replace(SAID, units=units)))
    assert stream.getvalue().count("\n") == 1
    assert "; 1 m 30 s left" in stream.getvalue()


def test_list_shows_iterations_and_no_best(platform, runs):
    run = runs.make("a", tell=collected)
    best = RunHandle("a", runs.target).best
    runs.say(run, RunState.SUCCEEDED, complete=3, best=best)
    line = platform("list").stdout.splitlines()[1]
    assert line.split()[:5] == ["a", "demo", "SUCCEEDED", "3/3", "0"]
    assert "4" not in line.split()[5:6]


def test_results_are_iterations_in_their_order(platform, runs):
    runs.make("a", tell=collected)
    header, *lines = platform("results", "a").stdout.splitlines()
    assert header.split() == ["iteration", "state", "units", "units_failed", "gigabytes", "loss", "time"]
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert lines[2].split()[1:6] == ["COMPLETE", "4", "0", "0.5", "0.3333"]  # the best, were they trials
    assert {"metrics.gigabytes", "metrics.worker_0/items_per_second"} <= set(
        platform("results", "a", "-o", "csv").stdout.splitlines()[0].split(",")
    )
    assert [row["trial"] for row in json.loads(platform("results", "a", "-o", "json").stdout)] == [0, 1, 2]


def test_results_begin_with_the_objective(platform, runs, job):
    job.write_text(job.read_text() + "objective: {metric: loss, direction: minimize}\n")
    runs.make("a", tell=collected)
    header = platform("results", "a").stdout.splitlines()[0]
    assert header.split() == ["iteration", "state", "loss", "units", "units_failed", "gigabytes", "time"]


def test_results_say_why_an_iteration_failed(platform, runs):
    runs.make("a", tell=second_fails)
    assert "error: worker 1, unit 5: bad move" in platform("results", "a").stdout


def test_results_before_the_first(platform, runs):
    runs.make("a", tell=None, asks=0)
    assert "a has started no iteration yet" in platform("results", "a").stderr


def test_failures_are_told_as_iterations(runs):
    row = (runs.make("a", tell=second_fails) and RunHandle("a", runs.target).attempts())[1]
    assert SHOWN.failure("a", row) == "iteration 1: error: worker 1, unit 5: bad move; `platform logs a 1`"


def test_best_is_of_searches(platform, runs):
    runs.make("a", tell=collected)
    result = platform("best", "a")
    assert (result.exit_code, "is a collection, which searches nothing; `platform results a`" in result.stderr) == (2, True)


def test_logs_of_the_consumer_and_of_a_worker(platform, runs):
    run = runs.make("a", tell=collected)
    for worker, text in ((None, "learning\n"), (2, "playing\n")):
        file = run.trial_log(1, 1, worker)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert platform("logs", "a", "1").stdout == platform("logs", "a:1").stdout == "learning\n"
    assert platform("logs", "a", "1", "--worker", "2").stdout == "playing\n"
    assert platform("logs", "1", "--worker", "2").stdout == "playing\n"
    missing = platform("logs", "a", "1", "--worker", "0")
    assert (missing.exit_code, "worker-0.log" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("logs", "a", "--worker", "2"), "--worker needs a TRIAL, which is the iteration"),
        (("logs", "a", "1", "--worker", "2", "--attempt", "1"), "--worker takes no --attempt"),
        (("resume", "a", "--trials", "9"), "--trials: trials: cannot change"),
        (("resume", "a", "--workers", "0"), "--workers: collect.workers: 0 must be over 0"),
        (("resume", "a", "--max-failed", "-1"), "--max-failed: collect.max_failed: -1 must be at least 0"),
        (("logs", "a", "9"), "has started no iteration 9; `platform results a` shows the iterations"),
        (("logs", "a", "1"), "attempt-1.log; `platform results a` shows the iterations"),
        (("scale", "a", "--workers", "3"), "a is not active; `platform resume a --workers 3`"),
    ],
)
def test_what_is_asked_of_the_wrong_thing_is_refused(platform, runs, words, said):
    runs.say(runs.make("a", tell=second_fails), RunState.PAUSED)
    result = platform(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_study_has_no_workers(platform, runs, job):
    job.write_text("kind: hpo\nobjective: {metric: units, direction: maximize}\ntrials: 1\nresources: {memory: 1Mi}\n")
    runs.make("b", tell=collected)
    assert "--worker is for collections, and b is not one" in platform("logs", "b", "0", "--worker", "1").stderr


@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        (
            RunState.SUCCEEDED,
            {"complete": 3},
            ["3/3 iterations complete in 1 m 30 s", "platform logs a ITERATION --worker N"],
        ),
        (RunState.PAUSED, {"complete": 1}, ["1/3 iterations complete", "continue it: `platform resume a`"]),
        (
            RunState.FAILED,
            {"complete": 1, "failed": 1},
            ["1 failed", "after its last complete iteration: `platform resume a`"],
        ),
    ],
)
def test_the_summary_says_what_to_type_next(runs, state, fields, said):
    run = runs.make("a", tell=None, asks=0)
    status = runs.say(run, state, started=10.0, ended=100.0, **fields)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    text = stream.getvalue()
    for words in (*said, "platform results a", str(run.root)):
        assert words in text
    assert "best" not in text
    assert "trial" not in text.replace(str(run.root), "")
