"""Forks of the tests: a started program runs in the fork of a server, gets its signals, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import start_fork_server, use_forks
from trialplane.client import process
from trialplane.wire.paths import RunPaths

# A program that tells its pid as soon as it can be signaled, and ends by a signal or when its second argument does.
PROGRAM = """
import os, signal, sys, threading, time
codes = []

def main():
    signal.signal(signal.SIGTERM, lambda *_: codes.append(7))
    with open(sys.argv[1], "w") as told:
        told.write(str(os.getpid()))
    threading.Thread(target=lambda: open(sys.argv[2]).read() or codes.append(8), daemon=True).start()
    while not codes:
        time.sleep(0.01)
    return codes[0]
"""


@pytest.fixture(params=["module", "command"])
def program(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a forked program, which was started as a module or by the script of a command."""
    (tmp_path / "waits.py").write_text(PROGRAM)
    script = tmp_path / "bin" / "waits"
    script.parent.mkdir()
    script.write_text("raise SystemExit('this is no fork')")
    words = ["-P", "-m", "waits"] if request.param == "module" else [script]
    for name in ("told", "end"):
        os.mkfifo(tmp_path / name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with start_fork_server(tmp_path / "waits") as server:
        use_forks(monkeypatch, tmp_path / "waits")
        with subprocess.Popen([sys.executable, *words, tmp_path / "told", tmp_path / "end"]) as child:
            yield child
            child.kill()
        server.kill()


def test_it_gets_the_signals_of_the_started_process(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pid = int((tmp_path / "told").read_text())
    assert pid != program.pid
    program.send_signal(signal.SIGTERM)
    assert program.wait(300) == 7


def test_a_signal_that_comes_after_its_end_changes_nothing(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pid = int((tmp_path / "told").read_text())
    program.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    program.send_signal(signal.SIGTERM)
    (tmp_path / "end").write_text("")
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    program.send_signal(signal.SIGCONT)
    assert program.wait(300) == 8


@pytest.mark.services
@pytest.mark.usefixtures("forked_controllers")
def test_a_controller_is_a_fork(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    assert process.start(run).wait() == 1
    log = run.controller_log.read_text()
    assert f"No such file or directory: '{run.job}'" in log
    assert "tests/forked/server.py" in log


@pytest.mark.services
@pytest.mark.usefixtures("forked_controllers")
def test_it_ends_with_the_started_process(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    os.mkfifo(run.job)
    child = process.start(run)
    writer = os.open(run.job, os.O_WRONLY)
    child.kill()
    child.wait()
    with pytest.raises(BrokenPipeError):
        while True:  # until nobody has the other end
            os.write(writer, b" ")
            time.sleep(0.01)
    os.close(writer)
