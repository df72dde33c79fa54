"""`python -m trialplane.exporter FOLDER`: exports the run in a folder to the MLflow of MLFLOW_TRACKING_URI.

A controller starts it, or `platform export`; `wire.exports` has their messages. It ends by itself once the run has ended and
all is in MLflow, and at once when stdin is closed before that or the controller is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import BinaryIO

from mlflow.exceptions import MlflowException

from trialplane import errors
from trialplane.exporter.batch import describe, write_log
from trialplane.exporter.exporter import Exporter
from trialplane.exporter.source import Copied, Database, Gateway, Source
from trialplane.ledger import remote
from trialplane.training import process
from trialplane.wire import backoff, env, escapes, records
from trialplane.wire.exports import End, Order, Progress
from trialplane.wire.paths import RunPaths

NICENESS = 10  # trials and the controller have priority; the rest is written when they are done
_ENDING = 0.1  # seconds between two looks once the run has ended, while files are retried
_LONGEST_PAUSE = 10.0  # seconds between two tries while MLflow is away
_TRIES = 4  # of the export of a copy, which somebody waits for


class _Input:
    """The other end of the pipe to stdin.

    Attributes:
        lines: messages that have come; empty ones are left out.
        closed: whether the other end is closed.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.closed = False
        self._partial = bytearray()

    def wait(self, least: float, most: float) -> None:
        """Wait for a message, `most` seconds at most, and `least` seconds if it is an empty one."""
        start = time.monotonic()
        while (remaining := start + least - time.monotonic()) > 0 and not self.lines and not self.closed:
            self._read(remaining)
        if not self.lines and not self.closed:
            self._read(max(0.0, start + most - time.monotonic()))

    def first(self) -> bytes | None:
        """Return the first line; None if the other end is closed before."""
        while not self.lines and not self.closed:
            self._read(60.0)
        return self.lines.pop(0) if self.lines else None

    def _read(self, timeout: float) -> None:
        if not select.select([sys.stdin], [], [], timeout)[0]:
            return
        data = os.read(sys.stdin.fileno(), 1 << 20)
        self.closed = not data
        self._partial += data
        if b"\n" in data:
            *lines, self._partial = self._partial.split(b"\n")
            self.lines += [bytes(line) for line in lines if line]


def _source(run: RunPaths, order: Order) -> Source:
    if order.copy is not None:
        return Copied(order.copy)
    name = run.root.name
    return Gateway(order.ledger, name) if order.ledger.startswith(remote.SCHEMES) else Database(order.ledger, name)


def _locked(run: RunPaths) -> BinaryIO:
    """Lock the run against other exporters of the same folder.

    Raises:
        BlockingIOError: there is one.
    """
    lock = run.exporter.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    return lock


def main() -> int:
    """Export until the end of the run is in MLflow; return an exit code of `errors`."""
    # MLflow may print to stdout at any time: answers keep the pipe, and stdout is redirected to the log.
    answers = os.dup(1)
    os.dup2(2, 1)
    process.end_with_parent()
    run, uri = RunPaths(Path(sys.argv[1])), os.environ[env.MLFLOW_TRACKING_URI]
    messages = _Input()
    if (first_line := messages.first()) is None:
        return errors.EXIT_OK
    order = records.from_json(Order, first_line)
    is_copy = order.copy is not None
    if not is_copy:
        os.nice(NICENESS)
    source, end = _source(run, order), order.end
    exporter: Exporter | None = None
    lock: BinaryIO | None = None
    failures = 0

    def answer(progress: Progress) -> None:
        with contextlib.suppress(BrokenPipeError):  # the controller is gone, and stdin with it: the loop ends
            os.write(answers, json.dumps(records.to_dict(progress)).encode() + b"\n")

    while True:
        pause = 0.0
        try:
            lock = lock or _locked(run)
            if exporter is None:
                exporter = Exporter(run, source, uri, keeps_folder=order.keeps_folder, end=end)
            if end is not None:
                exporter.end(end)
            has_moved = exporter.advance()
            has_sent = exporter.files.send()
            answer(exporter.progress)
            failures = 0
            if not (has_moved or has_sent):
                if (end is not None or is_copy) and exporter.close():
                    return errors.EXIT_OK
                pause = source.idle if end is None else _ENDING
        except Exception as error:  # noqa: BLE001 - the border of the process: the next one would do no better
            if not isinstance(error, (MlflowException, OSError, errors.LedgerError)):
                write_log(f"the exporter failed and retries; {describe(error)}")
            failures += 1
            reason = escapes.mask_passwords(_reason(error, run, uri))
            if is_copy and failures == _TRIES:
                write_log(reason)
                return errors.EXIT_PLATFORM
            counts = Progress() if exporter is None else exporter.progress
            answer(dataclasses.replace(counts, away=reason))
        least = backoff.pause(failures, _LONGEST_PAUSE, first=0.5) if failures else source.pause
        if is_copy:
            time.sleep(least)
        else:
            messages.wait(least, max(least, pause))
            if messages.closed:  # the controller is gone; the next one's exporter continues
                return errors.EXIT_OK
        for line in messages.lines:
            end = records.from_json(End, line)
        messages.lines.clear()


def _reason(error: Exception, run: RunPaths, uri: str) -> str:
    """The reason why nothing can be exported now."""
    if isinstance(error, BlockingIOError):
        return f"the exporter of this run's former controller has not ended and still holds {run.exporter}"
    if isinstance(error, errors.LedgerError):
        return str(error)
    return f"MLflow at {uri} cannot be written to: {errors.first_line(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
