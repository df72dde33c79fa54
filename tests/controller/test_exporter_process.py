"""The exporter's process as a controller has it: killed, without MLflow for a while, told the end, and closed in a hurry.

Not checked here: what it writes (tests/exporter).
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.controller.conftest import Server, outcome, request, wait_until
from tests.exporter.conftest import DONE, Place, fork_server, forks, place, server

from trialplane.controller import exporter_process
from trialplane.controller.exporter_process import ExporterProcess

__all__ = ["fork_server", "forks", "place", "server"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]


def assert_whole(place: Place, trials: int) -> None:
    """Every trial that `play` played is there, once, with every metric once."""
    runs = place.runs()
    assert sorted(int(run.data.tags["trialplane.number"]) for run in runs) == list(range(trials))
    for run in runs:
        assert place.history(run) == {
            "score": [(0, 0.0), (1, 0.25), (2, 0.5), (2, 0.5)],
            "loss": [(0, 1.0), (1, 1.0), (2, 0.25), (2, 1.0)],
            "trial_seconds": [(2, 3.0)],
        }
        assert (run.info.status, run.info.end_time) == ("FINISHED", 2_003_000)
    (parent,) = place.runs("study")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent.info.run_id}


def is_up_to_date(exporter: ExporterProcess, ends: int) -> bool:
    exporter.wake()
    return exporter.progress.ended == ends and not exporter.progress.files


def test_a_process_of_its_own_exports_a_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_process, "subprocess", subprocess)  # as a controller starts it
    exporter = place.process()
    place.play(0)
    wait_until(lambda: is_up_to_date(exporter, 1), "the trial is in MLflow")
    place.play(1)
    exporter.send_end(DONE, 2)
    assert exporter.close(300)
    assert exporter.close(300), "a second time"
    assert_whole(place, 2)
    assert place.runs("study")[0].info.status == "FINISHED"


def test_a_killed_exporter_loses_and_doubles_nothing(place: Place) -> None:
    rng = random.Random(3)
    exporter = place.process()
    trials, kills = 24, set(rng.sample(range(1, 23), 5))
    for number in range(trials):
        place.play(number)
        exporter.wake()
        if number in kills:
            wait_until(lambda: exporter.wake() or exporter.progress.ended, "the exporter is at work")
            time.sleep(rng.uniform(0, 0.1))  # the random moment itself
            victim = exporter.process
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(lambda victim=victim: exporter.wake() or exporter.process is not victim, "there is a new one")
    exporter.send_end(DONE, trials)
    assert exporter.close(300)
    assert_whole(place, trials)


def test_a_server_that_is_away_for_a_while(place: Place, server: Server) -> None:
    exporter = place.process(server.uri)
    for number in range(4):
        place.play(number)
    wait_until(lambda: is_up_to_date(exporter, 4), "all is there so far")
    server.stop()
    for number in range(4, 12):
        place.play(number)
    wait_until(lambda: exporter.wake() or exporter.trouble, "the controller knows it")
    assert server.uri in exporter.trouble
    server.start()
    place.play(12)
    exporter.send_end(DONE, 13)
    assert exporter.close(300)
    assert exporter.trouble == ""
    assert_whole(place, 13)


def test_a_server_that_stays_away_until_the_next_exporter(place: Place, server: Server) -> None:
    exporter = place.process(server.uri)
    for number in range(2):
        place.play(number)
    wait_until(lambda: is_up_to_date(exporter, 2), "all is written so far")
    server.stop()
    for number in range(2, 4):
        place.play(number)
    exporter.send_end(DONE, 4)
    told: list[str] = []
    assert exporter.close(0.5, show=told.append) is False
    assert told[-1] == "recording in MLflow: 2 of 4 trials"
    server.start()
    exporter = place.process(server.uri)
    exporter.send_end(DONE, 4)
    assert exporter.close(300)
    assert_whole(place, 4)


def test_the_password_of_a_server_is_neither_in_arguments_nor_in_what_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_process, "subprocess", subprocess)
    exporter = place.process("http://ann:s3cret@127.0.0.1:9")
    assert b"s3cret" not in Path(f"/proc/{exporter.process.pid}/cmdline").read_bytes()
    wait_until(lambda: exporter.wake() or exporter.trouble, "the controller knows that nobody answers")
    assert "http://ann:***@127.0.0.1:9" in exporter.trouble
    assert "s3cret" not in exporter.trouble


def test_the_exporter_of_a_former_controller_is_waited_for(place: Place) -> None:
    with place.run.exporter.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        exporter = place.process()
        place.play(0)
        wait_until(lambda: exporter.wake() or exporter.trouble, "the controller knows it")
        assert str(place.run.exporter) in exporter.trouble
    exporter.send_end(DONE, 1)
    assert exporter.close(300)
    assert exporter.trouble == ""
    assert_whole(place, 1)


def test_a_ledger_that_cannot_be_read_now_is_read_later(place: Place) -> None:
    with sqlite3.connect(place.run.ledger) as ledger:
        ledger.execute("ALTER TABLE reports RENAME TO gone")
    ledger.close()
    exporter = place.process()
    wait_until(lambda: exporter.wake() or exporter.trouble, "the controller knows it")
    assert "ledger" in exporter.trouble
    with sqlite3.connect(place.run.ledger) as ledger:
        ledger.execute("ALTER TABLE gone RENAME TO reports")
    ledger.close()
    place.play(0)
    exporter.send_end(DONE, 1)
    assert exporter.close(300)
    assert_whole(place, 1)


def test_what_is_waited_for_is_told_and_closing_in_a_hurry_ends_the_process(place: Place) -> None:
    exporter, told = place.process(), []
    for number in range(3):
        place.play(number)
    wait_until(lambda: is_up_to_date(exporter, 3), "all of them are recorded")
    os.kill(exporter.process.pid, signal.SIGSTOP)
    place.begin(request(3))
    place.end(request(3), outcome(3))
    exporter.send_end(DONE, 4)
    assert exporter.close(60, lambda: len(told) > 2, told.append) is False
    assert told[-1] == "recording in MLflow: 3 of 4 trials"
    assert exporter.process.poll() is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("continues", [True, False])
def test_an_exporter_that_reads_nothing_holds_no_end_up(
    place: Place, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = place.process()
    place.play(0)
    wait_until(lambda: is_up_to_date(exporter, 1), "the trial is in MLflow")
    os.kill(exporter.process.pid, signal.SIGSTOP)
    assert exporter.process.stdin is not None
    room = fcntl.fcntl(exporter.process.stdin, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(2 * room):
        exporter.wake()
    assert select.select([], [exporter.process.stdin], [], 0)[1] == [], "the pipe is full"
    place.play(1)
    exporter.send_end(DONE, 2)
    if continues:
        os.kill(exporter.process.pid, signal.SIGCONT)
        assert exporter.close(300)
        assert_whole(place, 2)
    else:
        monkeypatch.setattr(exporter_process, "END_WAIT", 0.5)
        assert exporter.close(0.5, lambda: False) is False
    assert exporter.process.poll() is not None


@pytest.mark.timeout(900)
def test_an_exporter_that_only_closes_its_output_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_process, "END_WAIT", 0.2)
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        program = ["sleep", "600"] if started else ["sh", "-c", "exec >&-; exec sleep 600"]
        started.append(subprocess.Popen(program, **options))
        return started[-1]

    stand_in = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(exporter_process, "subprocess", stand_in)
    exporter = place.process()
    wait_until(lambda: exporter.tick() or len(started) == 2, "there is a new one")
    assert started[0].wait(timeout=60) == -signal.SIGKILL
    assert exporter.close(0, lambda: True) is False


def test_an_exporter_ends_with_its_controller(place: Place) -> None:
    exporter = place.process()
    place.play(0)
    assert exporter.process.stdin is not None
    exporter.process.stdin.close()
    assert exporter.process.wait(timeout=300) == 0
