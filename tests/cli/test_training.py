"""A training on the command line: what is submitted, what is refused, and how every verb shows it.

Not checked here: a real training (tests/study), the fields of the job (tests/job/test_training.py), its pods (tests/plan).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from tests.cli.test_progress import Terminal
from tests.client.conftest import failed

from trialplane.cli import kinds, progress
from trialplane.cli.kinds import training
from trialplane.client import machine
from trialplane.client.run import RunHandle
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import RunStatus, TrialOutcome
from trialplane.wire.states import FailureClass, RunState, TrialState

SHOWN = kinds.PRESENTERS["train"]
SUBMIT = ("submit", "train", "demo", "--local", "--dry-run", "-o", "json")
START = RunStatus(
    "a", "demo", RunState.RUNNING, trials=1, parallel=1, objectives=("loss",), slots_per_trial=2, slots_ready=1,
    progress=TrainingProgress(),
)  # fmt: skip
QUIET = dataclasses.replace(START, running=1, slots_ready=2)
METRICS = {
    "loss": 2.31234, "lr": 0.0001, "seconds_left": 4000.0, "samples_per_second": 8192.0, "tokens_per_second": 1048576.0,
}  # fmt: skip
SAID = TrainingProgress(1200, 10000, METRICS)
GOING = dataclasses.replace(QUIET, progress=SAID, retried=1)


@pytest.fixture(autouse=True)
def job(workplace) -> Path:
    """The job demo is a training."""
    file = workplace / "jobs" / "demo" / "job.yaml"
    file.write_text("kind: train\nparams: {lr: 0.5, batch: 4}\nresources: {memory: 1Mi}\n")
    return file


@pytest.fixture(autouse=True)
def gpus(monkeypatch) -> None:
    """This machine has none."""
    monkeypatch.setattr(machine, "visible_gpus", lambda: 0)


def trained(request) -> TrialOutcome:
    log = f"trials/{request.trial:04d}/attempt-{request.attempt}.log"
    metrics = {"loss": 0.25, "perplexity": 1.28, "samples_per_second": 8192.0}
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics=metrics, started=10.0, ended=130.0, log=log)


def lost_once(request) -> TrialOutcome:
    return trained(request) if request.attempt > 1 else failed(request, FailureClass.CRASHED, "rank 3 was killed")


def write_logs(run, count: int) -> None:
    for attempt in range(1, count + 1):
        file = run.trial_log(0, attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"attempt {attempt}\n[rank 1] hello\n")


# Submitting


def test_flags_are_fields(platform, home):
    result = platform(*SUBMIT, "--gpus", "0", "--ranks", "2", "--nodes", "3", "--seed", "7", "--timeout", "1h")
    made = json.loads(result.stdout)["job"]
    assert (made["resources"]["gpus"], made["ranks"], made["nodes"], made["seed"]) == (0, 2, 3, 7)
    assert made["budget"]["timeout"] == 3600
    assert "trials" not in made
    assert "sampler" not in made
    assert "2 ranks share 1 core (resources.cpus)" not in result.stderr  # left out, each rank has one
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("submit", "hpo", "demo", "--local", "--trials", "3"),
            ["job.yaml:1: kind: is train, and not hpo", "submit train demo"],
        ),
        ((*SUBMIT, "--trials", "3"), ["No such option", "--trials"]),
        ((*SUBMIT, "--parallel", "3"), ["No such option", "--parallel"]),
        ((*SUBMIT, "--sampler", "tpe"), ["No such option", "--sampler"]),
        ((*SUBMIT, "--set", "trials=3"), ["--set trials=3: trials: is for a search"]),
        ((*SUBMIT, "--gpus", "8"), ["resources.gpus: the training requests 8", "this machine has none; --gpus 0 --ranks 8"]),
        ((*SUBMIT, "--nodes", "0"), ["--nodes: nodes: 0 must be over 0"]),
        ((*SUBMIT, "--resume", "nothing"), ["--resume: resume: there is no run 'nothing'"]),
        ((*SUBMIT, "--resume", "x", "--name", "x"), ["is this run itself; `platform resume x`"]),
        ((*SUBMIT, "--resume", "../x"), ["must be the name of a run"]),
        (("submit", "hpo", "demo", "--local", "--resume", "x"), ["No such option", "--resume"]),
    ],
)
def test_what_cannot_be_is_refused_and_starts_nothing(platform, home, words, said):
    result = platform(*words)
    assert result.exit_code == 2, result.output
    for text in said:
        assert text in result.stderr
    assert not home.exists()


def save(run, name: str = "step-0000000005") -> None:
    (run.checkpoints / run.root.name / "trial-0" / name).mkdir(parents=True)


def test_a_training_goes_on_from_a_run_that_there_is(platform, runs):
    save(runs.make("a", tell=trained))
    made = json.loads(platform(*SUBMIT, "--resume", "a").stdout)["job"]
    assert made["resume"] == "a"


def test_a_training_needs_a_checkpoint_to_start_from(platform, runs):
    """Else it would end in its pod, after a wait for one."""
    run = runs.make("a", tell=trained)
    for begin in (lambda: None, lambda: save(run, ".step-0000000005.saving")):
        begin()
        result = platform(*SUBMIT, "--resume", "a", "--name", "Upper")
        assert result.exit_code == 2
        assert "--resume: resume: a has saved no checkpoint to start from; see `platform logs a`" in result.stderr
        assert str(run.checkpoints) in result.stderr
        assert "--name: name: 'Upper' must be lower-case" in result.stderr
    save(run)
    elsewhere = ("--resume", "a", "--set", "checkpoints.url=memory://b/c")
    result = platform(*SUBMIT, *elsewhere)
    assert result.exit_code == 2
    assert "but this run would look in memory://b/c. Add --set checkpoints.url=null" in result.stderr
    runs.make("b", **{"checkpoints.url": "memory://b/c"})
    assert platform(*SUBMIT, *elsewhere, "--resume", "b").exit_code == 0  # nobody here can look into it
    assert "Add --set checkpoints.url=memory://b/c" in platform(*SUBMIT, "--resume", "b").stderr


def test_a_training_starts_from_another_of_its_job_only(platform, job, runs):
    runs.make("a", tell=trained)
    other = job.parent.parent / "other"
    shutil.copytree(job.parent, other)
    result = platform("submit", "train", "other", *SUBMIT[3:], "--resume", "a")
    assert result.exit_code == 2
    assert "resume: a is a training of the job demo, whose checkpoints other cannot read" in result.stderr
    job.write_text(
        "kind: hpo\nspace: {lr: {type: float, low: 0, high: 1}}\nobjective: {metric: loss, direction: minimize}\n"
    )
    runs.make("search")
    job.write_text("kind: train\n")
    result = platform(*SUBMIT, "--resume", "search")
    assert result.exit_code == 2
    assert "resume: search is a study, and a training starts from another training" in result.stderr


def test_text_that_no_batch_fits_costs_nothing(platform, job, home):
    job.write_text("kind: train\nparams: {data: text.txt, batch: 4}\ninputs: {data: {format: lines, at_least: batch}}\n")
    (job.parent / "text.txt").write_text("a\nb\nc\nd\ne\n")
    assert platform(*SUBMIT).exit_code == 0
    result = platform(*SUBMIT, "--param", "batch=8")
    assert result.exit_code == 2
    assert "has 5 lines of text, and it needs batch 8" in result.stderr
    assert not home.exists()


def test_validate_says_what_it_is(platform):
    said = [platform("validate", "demo", *words).stdout for words in ((), ("--set", "resources.gpus=8", "--set", "nodes=2"))]
    assert said == [
        "demo is valid: 1 rank on 1 node without GPUs, minimize loss\n",
        "demo is valid: 16 ranks on 2 nodes with 8 GPUs each, minimize loss\n",
    ]


def test_a_cluster_is_sent_all_nodes_and_the_user_is_told_of_checkpoints(platform, namespace, target):
    result = platform("submit", "train", "demo", "--dry-run", "--ranks", "2", "--nodes", "2")
    assert result.exit_code == 0, result.stderr
    assert "nodes: 2" in result.stdout
    assert "the chart has no volume for checkpoints" in result.stderr
    assert "checkpoints" not in platform("submit", "train", "demo", "--dry-run", "--set", "checkpoints.url=s3://b/c").stderr


def test_data_that_only_pods_have_is_not_looked_for_here(platform, job, namespace, target):
    job.write_text("kind: train\nparams: {data: /data/no/such.txt}\ninputs: {data: {format: lines}}\n")
    assert "the chart has no data volume" in platform("submit", "train", "demo", "--dry-run").stderr
    namespace.install(data={"claim": "datasets"})
    assert platform("submit", "train", "demo", "--dry-run").exit_code == 0
    assert platform(*SUBMIT).exit_code == 2


# Looking


def test_a_line_says_where_it_is_and_how_fast():
    assert progress.line(START) == "RUNNING: the slots are warming up (1/2 slots ready)"
    assert progress.line(QUIET) == "the training has started; it has not reported a step yet"
    assert progress.line(GOING) == (
        "step 1,200/10,000 (12%); loss 2.312; 1,048,576 tokens/s; 8,192 samples/s; restarted once"
    )
    waits = dataclasses.replace(GOING, running=0, state=RunState.PAUSED)  # stopped, and not started again
    assert training.restarts_text(waits) == ""
    assert training.restarts_text(dataclasses.replace(waits, retried=3)) == "restarted twice"
    assert SHOWN.seconds_left(GOING) == 4000
    assert SHOWN.seconds_left(dataclasses.replace(GOING, eta=30.0)) == 30
    slow = dataclasses.replace(QUIET, progress=TrainingProgress(3, metrics={"slowest_rank": 5.0}), mlflow="MLflow is away")
    assert progress.line(slow) == "step 3; rank 5 delays the others; MLflow is away"
    timed = dataclasses.replace(QUIET, progress=TrainingProgress(3, metrics={"lr": 0.5, "rank_seconds/0": 0.1}))
    assert SHOWN.fields(timed)["also"] == "lr 0.5"


def test_plain_lines_of_a_training_are_not_one_for_each_step():
    """Its first step is told at once, as what came before it was."""
    view = progress.PlainView(stream := io.StringIO(), itertools.count(0.0, 1.01).__next__)
    view.update(QUIET)
    for step in range(1200, 1300):
        view.update(dataclasses.replace(GOING, progress=dataclasses.replace(SAID, step=step)))
    lines = stream.getvalue().splitlines()
    assert 5 < len(lines) < 15
    assert lines[0].startswith("the training has started")
    assert lines[1].startswith("step 1,200/10,000")
    assert lines[-1].endswith("1 h 6 m left")


def test_the_live_display(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress.view(stream := Terminal()) as shown:
        shown.update(
            dataclasses.replace(GOING, progress=dataclasses.replace(SAID, metrics={**METRICS, "slowest_rank": 5.0}))
        )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for words in ("a  RUNNING", "step 1,200/10,000", "12%", "loss 2.312", "1 h 6 m left", "lr 0.0001", "2/2 slots ready"):
        assert words in text
    assert "rank 5 delays the others  restarted once" in text
    assert "trials" not in text


def test_attempts_that_failed_are_told_as_such(runs):
    row = runs.make("a", tell=lost_once) and RunHandle("a", runs.target).attempts()[0]
    assert SHOWN.failure("a", row) == ("attempt 1: crashed: rank 3 was killed; it restarts from its last checkpoint")


@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        (RunState.SUCCEEDED, {"complete": 1}, ["step 1,200/10,000; loss 2.312", "in 1 m 30 s", "`platform results a`"]),
        (RunState.PAUSED, {}, ["continue it: `platform resume a`"]),
        (RunState.FAILED, {"failed": 1}, ["`platform resume a`", "`platform submit train demo --resume a --local`"]),
    ],
)
def test_the_summary_says_what_to_type_next(runs, state, fields, said):
    run = runs.make("a", tell=trained)
    status = runs.say(run, state, progress=SAID, started=10.0, ended=100.0, **fields)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    for text in (*said, "`platform logs a`"):
        assert text in stream.getvalue()
    assert "best.yaml" not in stream.getvalue()


def test_the_summary_tells_the_result_and_not_the_last_batches(runs):
    """The loss of what it returned is of held-out data; the last report's is of the batches just seen."""
    run = runs.make("a", tell=trained)
    (best,) = RunHandle("a", runs.target).rows()
    status = runs.say(run, RunState.SUCCEEDED, progress=SAID, complete=1, best=best)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    assert "result: loss 0.25; 1,048,576 tokens/s" in stream.getvalue()
    assert "2.312" not in stream.getvalue()


def test_without_a_step_no_checkpoint_is_promised(runs):
    status = runs.say(runs.make("a", tell=failed), RunState.FAILED, failed=1)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    assert "no step was reported" in stream.getvalue()
    assert "checkpoint" not in stream.getvalue()


def test_only_attempts_that_are_followed_by_another_are_told(runs, monkeypatch):
    """How the last one failed is why the run failed, and the summary says that."""
    told, run = [], runs.make("a")

    def watch(_):
        runs.drive(run, failed)
        yield runs.say(run, RunState.FAILED, failed=1)

    monkeypatch.setattr(RunHandle, "watch", watch)
    with progress.view(io.StringIO()) as view:
        monkeypatch.setattr(view, "message", told.append)
        list(progress.follow(RunHandle("a", runs.target), view))
    assert [text for text in told if text.startswith("attempt")] == []


def test_status_and_list(platform, runs, held):
    run = runs.make("a")
    runs.say(run, RunState.RUNNING, running=1, slots_ready=1, progress=SAID)
    held(run)
    text = platform("status").stdout
    assert re.search(r"^training +step 1,200/10,000 \(12%\); loss 2.312", text, re.M)
    assert re.search(r"^time left +1 h 6 m", text, re.M)
    assert "trials" not in text
    assert json.loads(platform("status", "-o", "json").stdout)["progress"] == {
        "kind": "train",
        "step": 1200,
        "total_steps": 10000,
        "metrics": METRICS,
    }
    runs.say(run, RunState.RUNNING)
    assert re.search(r"^reason +the slots are warming up \(0/1 slots ready\)", platform("status").stdout, re.M)
    runs.say(run, RunState.RUNNING, running=1, slots_ready=1, progress=SAID)
    assert " 12% " in platform("list").stdout.splitlines()[1]
    runs.say(run, RunState.SUCCEEDED, complete=1, progress=SAID)
    assert " done " in platform("list").stdout.splitlines()[1]


def test_results_are_its_numbers(platform, runs):
    runs.make("a", tell=lost_once)
    header, line = (text.split() for text in platform("results").stdout.splitlines())
    assert header == ["attempt", "state", "loss", "perplexity", "time"]
    assert line == ["2", "COMPLETE", "0.25", "1.28", "2", "m", "0", "s"]
    both = platform("results", "--all-attempts").stdout.splitlines()
    assert len(both) == 3
    assert "rank 3 was killed" in both[1]


def test_it_has_no_best_and_no_other_width(platform, runs):
    runs.make("a", tell=trained)
    best = platform("best")
    assert (best.exit_code, best.stdout) == (2, "")
    assert "searches nothing" in best.stderr
    scale = platform("scale", "--parallel", "3")
    assert scale.exit_code == 2
    assert "fixed; `platform submit train demo --resume a --ranks N --local` continues" in scale.stderr  # nothing to cancel


def test_it_is_waited_for_until_it_has_saved_itself(runs):
    """A pause that takes a minute is stuck, unless a trial may have a large checkpoint to write."""
    handle = RunHandle("a", runs.target)
    runs.say(runs.make("a", **{"checkpoints.grace": 400}), RunState.RUNNING)
    assert handle._default_patience() > 400


def test_one_that_has_succeeded_is_not_resumed_but_begun_anew(platform, runs):
    runs.say(runs.make("a", tell=trained), RunState.SUCCEEDED, complete=1)
    result = platform("resume")
    assert result.exit_code == 2
    assert "has succeeded" in result.stderr
    assert "`platform submit train demo --resume a --local`" in result.stderr


@pytest.mark.services
def test_one_that_has_failed_is_resumed(platform, runs):
    runs.say(runs.make("a", tell=failed), RunState.FAILED, failed=1)
    result = platform("resume", "--detach")
    assert "a continues" in result.stderr
    assert result.exit_code == 0


# Its log


def test_its_log_is_what_it_said_and_not_its_controller(platform, runs):
    run = runs.make("a", tell=lost_once)
    write_logs(run, 2)
    run.controller_log.write_text("the slots are warm\n")
    assert platform("logs").stdout == "attempt 2\n[rank 1] hello\n"
    assert platform("logs", "a", "--attempt", "1").stdout.startswith("attempt 1\n")
    assert platform("logs", "a", "0").stdout.startswith("attempt 2\n")
    assert platform("logs", "--controller").stdout == "the slots are warm\n"
    result = platform("logs", "a", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a is a training, and has no trial 1: `platform logs a` shows the output of all its ranks" in result.stderr
    assert "`platform logs a --attempt 1`" in result.stderr


def test_before_it_trains_there_is_its_controllers_log(platform, runs):
    runs.make("a").controller_log.write_text("no slot could be started\n")
    result = platform("logs")
    assert result.stdout == "no slot could be started\n"
    assert "has not started to train" in result.stderr


def test_followed_it_goes_on_with_the_next_attempt(platform, runs, monkeypatch):
    """The first attempt has ended when one looks, the second begins later, and then the run is over."""
    run = runs.make("a", tell=lost_once, asks=1)
    write_logs(run, 2)
    looks = []

    def is_active(handle):
        looks.append(handle)
        if len(looks) == 3:
            runs.drive(run, lost_once)
        return len(looks) < 5

    monkeypatch.setattr(RunHandle, "is_active", is_active)
    assert platform("logs", "-f").stdout == "attempt 1\n[rank 1] hello\nattempt 2\n[rank 1] hello\n"
