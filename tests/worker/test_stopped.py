"""A template or a trial that is stopped (SIGSTOP, a debugger, a disk that hangs) holds no slot: every wait has a limit.

Each process here is stopped for real. The limits are shortened, which is safe as nothing that is stopped can meet them.
"""

from __future__ import annotations

import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, alive, wait_until

from trialplane import errors
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import slot

CODE = """
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

def run(ctx):
    what = ctx.params.get("what", "")
    gate = ctx.params.get("gate")
    while gate and not os.path.exists(gate):
        time.sleep(0.005)
    if what == "stops its template and ends":
        os.kill(os.getppid(), signal.SIGSTOP)
    elif what == "stops its template and hangs":
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1000)
    elif what == "stops both":
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "starts another, stops its template and ends":
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(ctx.params["file"]).write_text(str(other.pid))
        os.kill(os.getppid(), signal.SIGSTOP)
    elif what == "stops":
        ctx.report(0, score=0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
    return 1.0
"""


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, {"train": CODE}) as bench:
        yield bench


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("running.TEMPLATE_PATIENCE", "running.KILLED_PATIENCE", "slot.CLOSE_PATIENCE"):
        monkeypatch.setattr(f"trialplane.worker.{name}", 0.5)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Limits of a moment; undone before a trial that is to end well."""
    shorten(monkeypatch)
    return monkeypatch


def outcome_of_started(bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str, **options: Any) -> TrialOutcome:
    """The outcome of a trial that does `what` only when its slot knows of its start, which shortens the limits.

    Shortened before, they could end a template that is still starting the trial.
    """
    gate = bench.root / "gate"
    has_ended = threading.Event()  # before the start, if the machine is too busy to start a process in time

    def is_started() -> bool:
        return has_ended.is_set() or (bench.slot.running is not None and bench.slot.running.pid != 0)

    def open_gate() -> None:
        wait_until(is_started, "the slot knows of the start")
        shorten(monkeypatch)
        gate.touch()

    opener = threading.Thread(target=open_gate)
    opener.start()
    outcome = bench.outcome(what, gate=str(gate), **options)
    has_ended.set()
    opener.join()
    return outcome


def test_a_template_stopped_between_trials_is_replaced(bench: Bench, short: pytest.MonkeyPatch) -> None:
    (template,) = bench.templates()
    os.kill(template, signal.SIGSTOP)
    outcome = bench.outcome("", timeout=None)
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.LOST), "it is tried again"
    assert outcome.message == (
        f"the template of slot 0-1 on {os.uname().nodename} did not answer for 0.5 s and was killed, and the trial with it"
    )
    assert not alive(template)
    short.undo()
    assert bench.outcome("").state is TrialState.COMPLETE
    assert bench.templates() != [template]


def test_the_result_of_a_trial_whose_template_is_stopped_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of_started(bench, monkeypatch, "stops its template and ends", timeout=None)
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 1.0})
    monkeypatch.undo()
    assert bench.outcome("").state is TrialState.COMPLETE


def test_what_a_trial_has_started_ends_with_its_stopped_template(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    outcome_of_started(bench, monkeypatch, "starts another, stops its template and ends", timeout=None, file=str(file))
    wait_until(lambda: not alive(int(file.read_text())), "the other process is gone")


@pytest.mark.parametrize("what", ["stops its template and hangs", "stops both", "stops"])
def test_a_limit_of_time_ends_what_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    outcome = outcome_of_started(bench, monkeypatch, what, timeout=1.0)
    assert outcome.failure is FailureClass.TIMEOUT
    assert not alive(outcome.pid)
    monkeypatch.undo()
    assert bench.outcome("").state is TrialState.COMPLETE


@pytest.mark.parametrize("what", ["", "stops its template and hangs", "stops both", "stops"])
def test_a_kill_ends_what_is_stopped(bench: Bench, short: pytest.MonkeyPatch, what: str) -> None:
    """As `cancel` does it. With a template stopped before the trial there is no process to kill yet."""
    short.setattr("trialplane.worker.running.TEMPLATE_PATIENCE", 1000.0)
    (template,) = bench.templates()
    if not what:
        os.kill(template, signal.SIGSTOP)

    def kill() -> None:
        wait_until(lambda: bench.slot.running is not None, "the trial is requested")
        if what != "stops":
            wait_until(lambda: is_stopped(template), "the template is stopped")
        else:
            wait_until(lambda: any(map(is_stopped, bench.children(template))), "the trial is stopped")
        bench.slot.kill(FailureClass.STOPPED, "stopped: cancelled by the user")

    other = threading.Thread(target=kill)
    request = bench.request(what, timeout=None)
    other.start()
    outcome = bench.attempt(request)[-1].outcome
    other.join()
    assert outcome is not None
    assert (outcome.failure, outcome.message) == (FailureClass.STOPPED, "stopped: cancelled by the user")
    assert not outcome.pid or not alive(outcome.pid)


def test_a_slot_with_a_stopped_template_closes(bench: Bench, short: pytest.MonkeyPatch) -> None:
    (template,) = bench.templates()
    os.kill(template, signal.SIGSTOP)
    bench.slot.close()
    assert not alive(template)


def let_time_be_over(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """Let a slot have waited for its template as long as it may as soon as `when` is true."""

    def select_(*arguments: Any) -> tuple[list[Any], ...]:
        assert arguments[1:] == ([], [], slot.IMPORT_PATIENCE)
        wait_until(when, "the template is where it is to be")
        return [], [], []

    monkeypatch.setattr(slot, "select", types.SimpleNamespace(select=select_))


def test_a_template_that_is_stopped_while_it_imports_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pid"
    let_time_be_over(monkeypatch, lambda: file.exists() and file.read_text() and is_stopped(int(file.read_text())))
    monkeypatch.setattr(slot, "CLOSE_PATIENCE", 0.5)
    code = f"import os, pathlib\npathlib.Path({str(file)!r}).write_text(str(os.getpid()))\nos.kill(os.getpid(), 19)\n"
    with pytest.raises(errors.SlotError, match="had not imported the job's code after 1800 s and was killed"):
        Bench(tmp_path, {"train": code})
    assert not alive(int(file.read_text()))


def test_imports_that_hang_leave_their_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "imports"
    let_time_be_over(monkeypatch, file.exists)
    monkeypatch.setattr(slot, "CLOSE_PATIENCE", 60.0)
    with pytest.raises(errors.SlotError) as caught:
        Bench(
            tmp_path,
            {"train": f"import pathlib, threading\npathlib.Path({str(file)!r}).touch()\nthreading.Event().wait()\n"},
        )
    log = Path(str(caught.value).rpartition(": ")[2]).read_text()
    assert "most recent call first" in log
    assert "train.py" in log
