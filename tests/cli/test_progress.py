"""What is shown of a run that goes on, from recorded statuses, and what Ctrl-C does, with a double of the controller.

Not checked here: a real study (tests/study).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import typing

import pytest
from tests.client import controller_double
from tests.client.conftest import complete, failed

from trialplane.cli import foreground, kinds, progress
from trialplane.cli.kinds import study
from trialplane.client import process
from trialplane.client.run import RunHandle
from trialplane.client.target import Observation
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import RungProgress, RunProgress, StudyProgress
from trialplane.wire.records import Desired, RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

BEST = TrialRow(7, TrialState.COMPLETE, 1, 9, values=(0.81234,), params={"lr": 0.001, "model": "bert"})
START = RunStatus("a", "demo", RunState.PENDING, trials=24, parallel=2, objectives=("f1",), reason="is starting")
WARMING = dataclasses.replace(START, state=RunState.RUNNING, reason="", slots_ready=1)
HALF = dataclasses.replace(WARMING, complete=9, pruned=2, failed=1, running=2, best=BEST, eta=75.0, rate=0.2, slots_ready=2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_every_kind_of_run_has_a_presenter():
    assert set(kinds.PRESENTERS) == {one.kind for one in typing.get_args(RunProgress)}


def test_a_line_says_what_matters():
    assert progress.line(START) == "PENDING: is starting"
    assert progress.line(WARMING) == "RUNNING: the slots are warming up (1/2 slots ready)"
    assert progress.line(HALF) == "12/24 ended: 9 complete, 2 pruned, 1 failed; 2 running; best f1 0.8123 (trial 7)"
    again = [study.counts_text(dataclasses.replace(HALF, running=0, retried=count)) for count in (1, 2)]
    assert progress.line(dataclasses.replace(START, state=RunState.FAILED, reason="a")) == "FAILED", "the summary says why"
    assert progress.line(dataclasses.replace(HALF, state=RunState.PAUSED, reason="a")) == "PAUSED"
    assert [text.rpartition("; ")[2] for text in again] == ["1 attempt retried", "2 attempts retried"]


def test_status_says_how_many_trials_earlier_ones_have_spared():
    texts = []
    for counts in ({}, {"answered": 1}, {"begun": 2, "spared_steps": 8}, {"answered": 3, "begun": 1, "spared_steps": 1}):
        reused = dataclasses.replace(HALF, progress=StudyProgress(**counts))
        texts.append(kinds.PRESENTERS["hpo"].fields(reused)["reuse"])
    assert texts == [
        "",
        "1 trial answered by earlier ones",
        "2 trials begun from earlier checkpoints, 8 steps spared",
        "3 trials answered by earlier ones; 1 trial begun from earlier checkpoints, 1 step spared",
    ]


def test_status_says_how_many_checkpoints_there_are_and_their_size():
    for counts, text in (({}, ""), ({"checkpoints": 3, "checkpoint_bytes": 5 << 20}, "3, 5 MiB")):
        saved = dataclasses.replace(HALF, progress=StudyProgress(**counts))
        assert kinds.PRESENTERS["hpo"].fields(saved)["checkpoints"] == text


@pytest.mark.parametrize(
    ("answered", "steps"), [(0, "26 steps trained"), (2, "26 steps counted, with those of the earlier trials")]
)
def test_status_does_not_say_that_steps_of_earlier_trials_are_trained(answered, steps):
    counts = StudyProgress(steps=26, rungs=(RungProgress(1, 8, 6), RungProgress(4, 2, 1)), answered=answered)
    fields = kinds.PRESENTERS["hpo"].fields(dataclasses.replace(HALF, progress=counts))
    assert fields["rungs"] == f"8 at step 1, 2 at step 4; {steps}"


def test_plain_lines_appear_when_something_changed():
    stream = io.StringIO()
    view = progress.PlainView(stream, itertools.count(0.0, 10.0).__next__)
    for status in (HALF, HALF, dataclasses.replace(HALF, eta=70.0)):
        view.update(status)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("1 m 15 s left\n")


def test_plain_lines_are_not_more_than_one_a_second():
    stream = io.StringIO()
    view = progress.PlainView(stream)
    for done in range(100):
        view.update(dataclasses.replace(HALF, complete=done))
    assert stream.getvalue().count("\n") < 20


def test_a_terminal_gets_the_live_display_and_others_lines():
    assert type(progress.view(Terminal())).__name__ == "Display"
    assert isinstance(progress.view(io.StringIO()), progress.PlainView)


@pytest.mark.parametrize("status", [START, WARMING, HALF, dataclasses.replace(HALF, state=RunState.SUCCEEDED)])
def test_the_live_display_holds_the_same_facts(status, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with progress.view(stream) as shown:
        shown.message("trial 3: error: [brackets] are not markup")
        shown.update(status)
    raw = stream.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
    assert "[brackets] are not markup" in text
    assert f"{status.ended_trials}/24" in text
    assert status.state.value in text
    assert "\x1b[3" not in raw  # no colours
    if status.best:
        assert "best f1 0.8123 (trial 7)  lr=0.001, model=bert" in text


def test_failures_are_told_once_as_they_happen(runs, held):
    """Ends of before are not told again, a stopped attempt is not a failure, and only so many are told one by one."""
    run = runs.make("a", tell=failed, asks=1, trials=40, **{"budget.max_failed": 50})
    runs.say(run, RunState.RUNNING, failed=1)
    shown = progress.PlainView(stream := io.StringIO())
    statuses = progress.follow(RunHandle("a", runs.target), shown)
    next(statuses)
    assert "trial 0" not in stream.getvalue()
    with pytest.raises(StopIteration):
        next(statuses)  # nobody works on it

    def tell(request):
        stopped = (request.trial, request.attempt) == (1, 1)
        return failed(request, FailureClass.STOPPED if stopped else FailureClass.ERROR, "bad <news>")

    statuses = progress.follow(RunHandle("a", Alive(runs.target)), shown)
    next(statuses)
    runs.drive(run, tell, 30)
    runs.say(run, RunState.RUNNING, failed=30)
    next(statuses)
    text = stream.getvalue()
    assert text.count("error: bad <news>; `platform logs a ") == progress.MAX_FAILURES
    assert "more trials fail" in text
    assert "stopped" not in text


def test_a_warning_is_told_once(runs):
    run = runs.make("a", tell=complete, asks=1)
    statuses = progress.follow(RunHandle("a", Alive(runs.target)), progress.PlainView(stream := io.StringIO()))
    for done in (1, 2):
        runs.say(run, RunState.RUNNING, complete=done, warnings=("nothing is pruned",))
        next(statuses)
    assert stream.getvalue().count("warning: nothing is pruned") == 1


def test_the_summary_says_what_to_type_next(runs):
    run = runs.make("a", tell=complete)
    status = runs.say(run, RunState.PAUSED, complete=6, best=BEST, started=10.0, ended=100.0)
    stream = io.StringIO()
    progress.summary(RunHandle("a", runs.target), status, stream)
    text = stream.getvalue()
    for words in ("in 1 m 30 s", "lr = 0.001", "platform results a", "platform best a", "platform resume a", str(run.root)):
        assert words in text


@pytest.mark.parametrize(
    ("fields", "loss", "is_told"),
    [
        ({"script": "train.py"}, 0.5, True),
        ({"command": ["python", "train.py", "{lr}", "{name}"]}, 0.5, True),
        ({"script": "train.py"}, None, False),
        ({}, 0.5, False),
    ],
)
def test_equal_results_of_a_program_with_other_parameters_are_told(runs, fields, loss, is_told):
    (runs.jobs / "demo" / "train.py").write_text("import argparse\ndef run(ctx): ...\n")

    def tell(request):
        metrics = {"loss": request.params["lr"] if loss is None else loss}
        return dataclasses.replace(complete(request), metrics=metrics)

    run = runs.make("a", tell=tell, **fields)
    status = runs.say(run, RunState.SUCCEEDED, complete=6)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    text = stream.getvalue()
    assert ("complete trials have loss 0.5: lr, name may not reach " in text) is is_told, text
    assert ("compare `platform logs a 0`" in text) is is_told


@pytest.mark.parametrize(
    ("reason", "said"), [("stopped; `platform resume a` continues it", 1), ("the machine was shut down", 1)]
)
def test_a_pause_says_once_how_the_run_is_continued(runs, reason, said):
    status = runs.say(runs.make("a", tell=complete), RunState.PAUSED, complete=6)
    status = dataclasses.replace(status, reason=reason)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    assert stream.getvalue().count("platform resume a") == said


def test_the_best_of_a_population_is_a_schedule(runs):
    (runs.jobs / "demo" / "train.py").write_text("def run(ctx):\n    state = ctx.restored\n")
    run = runs.make("a", population={"interval": 2, "steps": 8})
    status = runs.say(run, RunState.SUCCEEDED, complete=6, best=BEST)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    assert "`platform best a --schedule`" in stream.getvalue()
    assert "--params best.yaml" not in stream.getvalue()
    job = RunHandle("a", runs.target).job
    for hint in (kinds.of(job).finished_hint(job), job.continuation_advice("a", "")):
        assert ("--schedule" in hint, "resume" in hint) == (True, False)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_job_is_named_for_the_best_only_where_it_is_found(runs, tmp_path, monkeypatch, is_there):
    """A script that was submitted by its path, or a function, has no name that a submission knows."""
    status = runs.say(runs.make("a", tell=complete), RunState.SUCCEEDED, complete=24, best=BEST)
    folder = tmp_path / "jobs" / status.job
    folder.mkdir(parents=True)
    if is_there:
        (folder / "job.yaml").touch()
    monkeypatch.chdir(tmp_path)
    progress.summary(RunHandle("a", runs.target), status, stream := io.StringIO())
    assert (f"submit hpo {status.job} --params best.yaml" in stream.getvalue()) is is_there
    assert "platform best a" in stream.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_says_how_to_resume(workplace, home, double, number):
    child = submitted()
    double(RunPaths.of(home, "x"))
    child.send_signal(number)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130, err
    assert "stopping x; `platform resume x`" in out
    assert "x PAUSED: stopped" in out


def test_a_signal_while_the_run_is_started_is_not_lost(platform, double, monkeypatch, home):
    start = process.start

    def interrupted(run):
        child = start(run)
        double(run)
        os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr(process, "start", interrupted)
    result = platform("submit", "hpo", "demo", "--local", "--name", "x")
    assert result.exit_code == 130
    assert "stopping x" in result.stdout
    assert "x PAUSED" in result.stdout
    (RunPaths.of(home, "x").root / "ready").unlink()
    result = platform("resume", "x")
    assert (result.exit_code, "stopping x" in result.stdout) == (130, True)


def test_the_second_signal_kills(workplace, home, double):
    child = submitted()
    run = RunPaths.of(home, "x")
    double(run)
    pid = Holder.read(run.lock.read_text()).pid
    os.kill(pid, signal.SIGSTOP)  # a controller that does not answer
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None
    while "stopping" not in child.stdout.readline():
        pass
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130, err
    assert "killed" in out
    assert "is not running (killed?)" in out


def test_the_run_goes_on_without_its_terminal(workplace, home, double, runs):
    ours, theirs = pty.openpty()
    child = submitted(theirs)
    os.close(theirs)
    run = RunPaths.of(home, "x")
    double(run)
    while not select.select([ours], [], [], 0.1)[0]:
        pass
    os.close(ours)
    child.kill()
    child.communicate(timeout=300)
    assert runs.target.is_active("x")
    RunHandle("x", runs.target).stop()
    RunHandle("x", runs.target).wait(300)


def submitted(terminal: int | None = None) -> subprocess.Popen[str]:
    """`platform submit hpo demo --local --name x` with the double as controller, in a process of its own."""
    script = (
        "import sys\n"
        "from trialplane.client import process\n"
        f"process.PROGRAM = ({str(controller_double.__file__)!r},)\n"
        "from trialplane.cli import main\n"
        "main.main(['submit', 'hpo', 'demo', '--local', '--name', 'x'])\n"
    )
    out = subprocess.PIPE if terminal is None else terminal
    return subprocess.Popen([sys.executable, "-c", script], stdout=out, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_prompt_of_a_terminal_does_not_wait_for_mlflow(runs, monkeypatch, is_terminal):
    made = runs.make("a", tell=complete)
    runs.say(made, RunState.SUCCEEDED, complete=24, best=BEST, unrecorded=True, mlflow="recording in MLflow")
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    target = Alive(runs.target, looks=100)
    assert foreground.attend(RunHandle("a", target), "table", ()) == 0
    assert "a SUCCEEDED" in stream.getvalue()
    assert (target.looks > 0) is is_terminal  # else until its controller has ended
    assert ("warning: MLflow lacks some results" in stream.getvalue()) is not is_terminal


def test_a_run_that_has_succeeded_with_results_that_mlflow_lacks_ends_with_a_warning(runs, monkeypatch, capsys):
    text = "MLflow lacks some results (it is slow); `platform resume a` writes the rest"
    runs.say(
        runs.make("a", tell=complete), RunState.SUCCEEDED, reason="all ended", complete=24, unrecorded=True, mlflow=text
    )
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    assert foreground.attend(RunHandle("a", runs.target), "table", ()) == 0
    assert "a SUCCEEDED: all ended\n" in stream.getvalue()
    assert f"\nwarning: {text}\n" in stream.getvalue()
    assert "in the background" not in capsys.readouterr().err


@pytest.mark.parametrize(("final_state", "code"), [(RunState.SUCCEEDED, 0), (RunState.FAILED, 1)])
def test_the_prompt_does_not_wait_for_the_mlflow_of_a_cluster(runs, monkeypatch, final_state, code):
    """There the run stays RUNNING until MLflow has everything."""
    runs.make("a", tell=complete)
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    status = dataclasses.replace(HALF, reason="all is over", final_state=final_state)
    target = Alive(runs.target, 100, [status])
    target.remote = True
    assert foreground.attend(RunHandle("a", target), "table", ()) == code
    assert f"a {final_state}: all is over" in stream.getvalue()
    assert target.looks > 90


def test_a_run_is_read_more_often_when_it_is_about_to_end(runs, monkeypatch):
    pauses = []
    monkeypatch.setattr("trialplane.client.run.time.sleep", pauses.append)
    target = Alive(runs.target, 5, [dataclasses.replace(HALF, eta=eta) for eta in (1.5, 60.0, None)])
    target.poll = 1.0
    watched = RunHandle("a", target).watch()
    for _ in range(4):
        next(watched)
    assert pauses == [1.0, 1.0, 0.25]


def test_an_end_that_is_overdue_is_read_as_often_as_before(runs, monkeypatch):
    pauses = []
    monkeypatch.setattr("trialplane.client.run.time.sleep", pauses.append)
    target = Alive(runs.target, 100, [dataclasses.replace(HALF, eta=0.0)])
    target.poll = 1.0
    watched = RunHandle("a", target).watch()
    for _ in range(60):
        next(watched)
    assert sum(pauses[:40]) == 10.0
    assert set(pauses[40:]) == {1.0}


class Alive:
    """A target on which somebody works for ever, or for a number of looks at a run."""

    poll = 0.01

    def __init__(self, target, looks=sys.maxsize, statuses=()):
        self._target = target
        self.looks = looks
        self._statuses = list(statuses)  # of the looks in reverse; the first one is that of all further looks

    def observe(self, run):
        self.looks -= 1
        if self._statuses:
            status = self._statuses.pop() if len(self._statuses) > 1 else self._statuses[0]
            return Observation(status, self.looks > 0, Desired())
        return dataclasses.replace(self._target.observe(run), is_active=self.looks > 0)

    def is_active(self, _):
        return self.looks > 0

    def __getattr__(self, name):
        return getattr(self._target, name)
