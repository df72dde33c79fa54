"""`python -m trialplane.exporter FOLDER`: exports the run in a folder to the MLflow of MLFLOW_TRACKING_URI.

A controller or `platform export` starts this program and exchanges messages with it, see `wire.exports`. It ends when the
run has ended and everything is in MLflow. It ends earlier if its stdin is closed, or if its parent process is killed.
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
from typing import BinaryIO, NamedTuple

if __name__ == "__main__":
    from trialplane.training import lean_imports

    lean_imports.install()  # before MLflow is imported

from mlflow.exceptions import MlflowException
from mlflow.utils import credentials, rest_utils

from trialplane import errors
from trialplane.exporter.batch import describe, write_log
from trialplane.exporter.exporter import Exporter
from trialplane.exporter.ledger_copy import LedgerCopy
from trialplane.ledger import storages
from trialplane.training import process
from trialplane.wire import backoff, env, escapes, records
from trialplane.wire.exports import End, Order, Progress
from trialplane.wire.paths import RunPaths

_END_PAUSE = 0.1  # seconds between two rounds after the run has ended, while some files wait for another try
_LONGEST_PAUSE = 10.0  # seconds between two rounds while MLflow does not answer
_PROBE = "/api/2.0/mlflow/experiments/search?max_results=1"
_TRIES = 4  # rounds in a row that may fail during the export of a copy, for which a user waits


class _Input:
    """Messages on stdin, one per line. An empty line is not a message: it only says that the ledger has new records.

    Attributes:
        messages: Messages that have arrived.
        is_closed: Whether stdin is closed.
    """

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.is_closed = False
        self._partial_line = bytearray()

    def wait(self, shortest: float, longest: float) -> None:
        """Wait at most `longest` seconds for a message or the end of stdin. After `shortest`, an empty line ends it, too."""
        start = time.monotonic()
        while (remaining := start + shortest - time.monotonic()) > 0 and not self.messages and not self.is_closed:
            self._read(remaining)
        if not self.messages and not self.is_closed:
            self._read(max(0.0, start + longest - time.monotonic()))

    def read_first(self) -> bytes | None:
        """Wait for the first message, remove and return it; return None if stdin is closed before it arrives."""
        while not self.messages and not self.is_closed:
            self._read(timeout=60.0)  # returns as soon as data arrive
        return self.messages.pop(0) if self.messages else None

    def _read(self, timeout: float) -> None:
        """Read from stdin once, after a wait of at most `timeout` seconds for data."""
        if not select.select([sys.stdin], [], [], timeout)[0]:
            return
        data = os.read(sys.stdin.fileno(), 1 << 20)
        self.is_closed = not data
        self._partial_line += data
        if b"\n" in data:
            *lines, self._partial_line = self._partial_line.split(b"\n")
            self.messages += [bytes(line) for line in lines if line]


def _lock_run(run: RunPaths) -> BinaryIO:
    """Lock the run against other exporters of the same folder; return the open file that holds the lock.

    Raises:
        BlockingIOError: Another exporter holds it.
    """
    lock = run.exporter.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    return lock


class Export:
    """The rounds of one export. Each round writes the new records of the ledger, and uploads files until the next round.

    Args:
        run: Paths of the run.
        order: Order of the parent process.
        uri: Tracking URI of MLflow.
        answers: File descriptor of the pipe to the parent process.

    Attributes:
        source: Ledger of the run.
        end: State of the run after its end; None while it continues.
        failures: Number of consecutive rounds that failed.
    """

    def __init__(self, run: RunPaths, order: Order, uri: str, answers: int) -> None:
        self._run = run
        self._order = order
        self._uri = uri
        self._answers = answers
        self.source = LedgerCopy(order.copy) if order.copy else storages.open_source(order.ledger, run.root.name)
        self.end = order.end
        self.failures = 0
        self._exporter: Exporter | None = None
        self._lock: BinaryIO | None = None

    def advance(self, next_round: float) -> float | None:
        """Run one round, and report the progress to the parent process.

        Args:
            next_round: Earliest time of the next round, by the monotonic clock. Files are uploaded until then.

        Returns:
            Longest pause in seconds before the next round; None if everything is in MLflow.

        Raises:
            Exception: MLflow or the ledger does not answer; the next round continues.
        """
        self._lock = self._lock or _lock_run(self._run)
        if self._exporter is None:
            keeps_folder = self._order.keeps_folder
            self._exporter = Exporter(self._run, self.source, self._uri, keeps_folder=keeps_folder, end=self.end)
        exporter = self._exporter
        if self.end is not None:
            exporter.set_end(self.end)
        has_new_records = exporter.advance()
        has_tried_files = exporter.files.send_until(next_round)
        self._answer(exporter.progress)
        self.failures = 0
        if has_new_records or has_tried_files:
            return 0.0  # more may follow
        is_complete = self.end is not None or self._order.copy is not None  # no further records can follow
        if is_complete and exporter.close():
            return None
        return self.source.idle if self.end is None else _END_PAUSE

    def record_failure(self, error: Exception) -> str:
        """Count a round that failed, and return the reason for the user. An unexpected error is also logged."""
        if not isinstance(error, (MlflowException, OSError, errors.LedgerError)):
            write_log(f"the exporter failed and retries; {describe(error)}")
        self.failures += 1
        return escapes.mask_passwords(_reason(error, self._run, self._uri))

    def report_failure(self, reason: str) -> None:
        """Report to the parent process that nothing can be exported now."""
        progress = Progress() if self._exporter is None else self._exporter.progress
        self._answer(dataclasses.replace(progress, away=reason))

    def _answer(self, progress: Progress) -> None:
        """Send the progress to the parent process."""
        with contextlib.suppress(BrokenPipeError):  # the parent process has ended, and stdin is closed too
            os.write(self._answers, json.dumps(records.to_dict(progress)).encode() + b"\n")


def main() -> int:
    """Export until the end of the run is in MLflow; return an exit code of `errors`."""
    # MLflow may print to stdout. So answers go to a copy of stdout, which itself is redirected to the log.
    answers = os.dup(1)
    os.dup2(2, 1)
    process.end_with_parent()
    stdin = _Input()
    if (first_message := stdin.read_first()) is None:
        return errors.EXIT_OK
    order = records.from_json(Order, first_message)
    is_copy = order.copy is not None
    export = Export(RunPaths(Path(sys.argv[1])), order, os.environ[env.MLFLOW_TRACKING_URI], answers)
    while True:
        pause = _run_round(export, is_copy=is_copy)
        if pause is None:
            return errors.EXIT_PLATFORM if export.failures else errors.EXIT_OK
        if is_copy:  # stdin is closed after the order
            time.sleep(pause.longest)
            continue
        stdin.wait(pause.shortest, pause.longest)
        if stdin.is_closed:  # the controller has ended; the exporter of the next controller continues
            return errors.EXIT_OK
        for message in stdin.messages:
            export.end = records.from_json(End, message)
        stdin.messages.clear()


class _Pause(NamedTuple):
    """A pause between two rounds, in seconds; a message of the parent process may end it after the shortest time."""

    shortest: float
    longest: float


def _run_round(export: Export, *, is_copy: bool) -> _Pause | None:
    """Run one round; return the pause before the next one, None if there is none: all is in MLflow, or it was given up.

    An export of a copy of a ledger, for which a user waits, gives up after `_TRIES`.
    """
    next_round = time.monotonic() + export.source.pause
    try:
        longest = export.advance(next_round)
    except Exception as error:  # noqa: BLE001 - retry here, as a new process would fail in the same way
        reason = export.record_failure(error)
        if is_copy and export.failures == _TRIES:
            write_log(reason)
            return None
        export.report_failure(reason)
        seconds = backoff.pause(export.failures, _LONGEST_PAUSE, first=0.5)
        return _Pause(seconds, seconds)
    if longest is None:
        return None
    shortest = max(0.0, next_round - time.monotonic())
    return _Pause(shortest, max(shortest, longest))


def _reason(error: Exception, run: RunPaths, uri: str) -> str:
    """Return a text for the user about an error that prevents the export now."""
    if isinstance(error, BlockingIOError):  # of `_lock_run`
        return f"the exporter of this run's former controller has not ended and still holds {run.exporter}"
    if isinstance(error, errors.LedgerError):
        return str(error)
    mlflow_reason = _server_reason(uri) or errors.first_line(error)
    return f"MLflow at {uri} cannot be written to: {mlflow_reason[:300]}"


def _server_reason(uri: str) -> str:
    """Return why a server cannot answer requests now, in its own words or the gateway's; "" if it does not say that.

    MLflow's client leaves this out of its errors, and reports only how often it has tried.
    """
    if not uri.startswith("http"):
        return ""
    try:
        response = rest_utils.http_request(
            credentials.get_default_host_creds(uri), _PROBE, "GET", max_retries=0, timeout=10, raise_on_status=False
        )
        document = {} if response.ok else response.json()
    except Exception:  # noqa: BLE001 - not MLflow's protocol, or there is no server; the caller has an error to report
        return ""
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else ""


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # to clean up MLflow's modules would take 0.7 s, for which a user's prompt waits
