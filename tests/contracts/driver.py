"""A process that opens ledgers and works on them, writes reports, or only holds them, in children that a test kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trialplane.job.kinds import Job

if TYPE_CHECKING:  # which has a fixture of what is here
    from tests.contracts.conftest import Backend

DRIVER = '''
"""Opens a ledger and does one kind of work on it, in children that a test kills. One order a line on stdin."""

import json, os, sys
from pathlib import Path

from trialplane.controller.ledger import Ledger
from trialplane.controller.patience import Patience
from trialplane.job import kinds
from trialplane.wire.records import ReportRow, TrialOutcome
from trialplane.wire.states import TrialState

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def report(ledger, batch):
    """Writes batches of reports; each deletes the even marks of the one before, in the same transaction."""
    while True:
        marks = range(50 * batch + 1, 50 * batch + 51)
        deleted = [mark - 50 for mark in marks if mark > 50 and mark % 2 == 0]
        ledger.storage.write_reports([ReportRow(mark, 0, 1, 0, mark, {"score": 0.5}, 1.0) for mark in marks], deleted)
        say("written", batch)
        batch += 1

def work(order):
    with Ledger(order["url"], kinds.read(order["job"]), "toy", Path(order["code"]), Path(order["lock"])) as ledger:
        say("open")
        if order["work"] == "hold":
            sys.stdin.readline()
        if order["work"] == "report":
            report(ledger, order["batch"])
        while (request := ledger.ask()) is not None:
            say("asked", request.number)
            ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics={"score": request.params["x"]}))
            say("told", request.number)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        work(json.loads(line))
        os._exit(0)
    say("child", child)
    os.waitpid(child, 0)
    say("gone")
'''


class Driver:
    """A process that drives ledgers in children of its own; each is killed and the next one started without a new import."""

    def __init__(self, folder: Path) -> None:
        script = folder / "driver.py"
        script.write_text(DRIVER)
        self._process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.child = 0

    def go(self, backend: Backend, job: Job, work: Literal["trials", "hold", "report"], batch: int = 0) -> None:
        """Opens the ledger in a new child.

        Args:
            backend: of the ledger.
            job: of the run.
            work: runs trials, holds the ledger, or writes batches of reports.
            batch: number of the first batch.
        """
        order = {
            "url": backend.ledger("toy", job),
            "job": job.model_dump(mode="json"),
            "code": str(backend.code),
            "lock": str(backend.lock),
            "work": work,
            "batch": batch,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        word, pid = self.hear()
        assert word == "child"
        self.child = int(pid)

    def hear(self) -> list[str]:
        """The next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended; its traceback is above"
        return line.decode().split()

    def kill(self) -> list[list[str]]:
        """Kills the child with SIGKILL; gives what it had still said."""
        os.kill(self.child, signal.SIGKILL)
        said = []
        while (line := self.hear()) != ["gone"]:
            said.append(line)
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
