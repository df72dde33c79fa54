"""The live page of a run: what is new in the run is read on request, and sent to a browser that polls."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from trialplane.client.pages import START, Source
from trialplane.client.run import RunHandle
from trialplane.errors import TrialplaneError
from trialplane.ledger import attempts as reading
from trialplane.pages import content, importances, page
from trialplane.pages.columns import Column
from trialplane.pages.content import PageContext, RunRecord
from trialplane.pages.importances import Importances
from trialplane.wire import escapes, rows, system_metrics
from trialplane.wire.records import ReportRow, RunStatus, TrialRow

PATH = "/-/report"  # no path of MLflow or optuna-dashboard begins with this
DATA = f"{PATH}/data"
LOG = f"{PATH}/log"
_TEXT = "text/plain; charset=utf-8"
MAX_SHARE = 0.2  # of one core, for computing the content
_GROWTH = 1.1  # of the number of ended trials, after which importances are computed again
MIN_PAUSE = 0.5  # seconds between two reads of the run


class StudyPage:
    """The live page of one run. Its methods are thread-safe.

    Args:
        handle: Handle of the run.
        page_context: Function that returns the current context of the page.
        server: Name of the server beside it, which the page links to.
    """

    def __init__(self, handle: RunHandle, page_context: Callable[[], PageContext], server: str = "MLflow") -> None:
        self._handle = handle
        self._page_context = page_context
        self._server = server
        self._job = handle.job
        self._attempts: dict[int, TrialRow] = {}  # by ledger number
        self._reports: list[ReportRow] = []  # without samples of system metrics
        self._mark = 0  # of the last report that was read
        self._end = 0  # number of the last end that was read
        self._last_importances = Importances(shares=[], reason="")
        self._next_importances = 0.0  # number of ended trials from which importances are computed again
        self._version = 0  # of the content
        self._next_read = 0.0  # time from which the run is read again
        self._status: RunStatus | None = None
        self._importances_seconds = 0.0  # processor time for importances during the last read
        self._content: content.Content | None = None
        self._previous_columns: list[Column] = []  # of the version before
        self._lock = threading.Lock()

    def html(self) -> str:
        """Return the page with the current content."""
        with self._lock:
            return page.page(self._handle.name, [self._current_content()], live=True)

    def content_after(self, after: int) -> dict[str, Any] | None:
        """Return the facts, with their version, and the columns of the page, as in `page.data`, with their bytes as "block".

        None if the version is still `after`.
        If `after` is the version before the current one, the columns have only what is new in them; see `columns.pack`.
        """
        with self._lock:
            newest = self._current_content()  # may raise the version
            if self._version == after:
                return None
            old_columns = self._previous_columns if after == self._version - 1 else ()
            document, block = page.data([newest], old_columns=old_columns)
            return {**document, "block": block}

    def log(self, trial: str, attempt: str) -> urllib3.HTTPResponse:
        """Return a response with the log of a trial up to now, as text; 404 with the reason if it cannot be read.

        Args:
            trial: Number of the trial.
            attempt: Number of the attempt; "" or "0" for the newest.
        """
        try:
            lines = self._handle.logs(_number(trial), _number(attempt) or None)
            all_lines = itertools.chain([next(lines, "")], lines)  # reading the first line raises if there is no log
        except TrialplaneError as error:
            return _text_response(str(error), _TEXT, status=404)
        return _stream_response(io.BufferedReader(_LineStream(all_lines)), _TEXT)

    def add_to(self, source: Source) -> Source:
        """Return a source that answers requests for this page, and passes all other requests to `source`."""

        @contextlib.contextmanager
        def answer(method: str, target: str, body: bytes) -> Iterator[Any]:
            """Yield the response to a request to this page, or to anything else; see `Source`."""
            path, _, query = target.partition("?")
            if method != "GET" or path not in (PATH, DATA, LOG):
                with source(method, target, body) as response:
                    yield response
                return
            yield self._response(path, query)

        return answer

    def _response(self, path: str, query: str) -> urllib3.HTTPResponse:
        """Return the response to a request for the page, for a log, or for what is new in the run."""
        if path == PATH:
            return _text_response(self.html(), "text/html; charset=utf-8")
        fields = {name: texts[0] for name, texts in urllib.parse.parse_qs(query).items()}
        if path == LOG:
            return self.log(fields.get("trial", ""), fields.get("attempt", ""))
        new_content = self.content_after(_number(fields.get("after", "")))
        return _text_response(json.dumps(new_content, separators=(",", ":")), "application/json")

    def _current_content(self) -> content.Content:
        """Read what is new in the run, compute the content again if there is anything new, and return it."""
        if self._content is not None and time.monotonic() < self._next_read:
            return self._content
        start = time.thread_time()  # processor time of this thread: waiting for a busy machine or a gateway does not count
        self._importances_seconds = 0.0
        if self._read_changes() or self._content is None:
            self._content = self._new_content()
        # A pause in proportion to the processor time limits this method to MAX_SHARE of a core. Importances do not count:
        # they are rare, and the first ones import Optuna.
        busy_seconds = time.thread_time() - start - self._importances_seconds
        self._next_read = time.monotonic() + max(MIN_PAUSE, busy_seconds * (1 / MAX_SHARE - 1))
        return self._content

    def _read_changes(self) -> bool:
        """Read the status, the attempts and the reports of the run, and return whether any of them has changed."""
        target, name = self._handle.target, self._handle.name
        status = self._handle.status()
        ledger_attempts, alive = target.attempts(name, self._end)
        # Reports are read last, so that an ended attempt has all of its reports.
        reports_read = target.curves(name, self._mark)
        self._mark = reports_read[-1].mark if reports_read else self._mark
        reports = system_metrics.without_samples(reports_read)
        rows_read = {attempt.request.number: reading.trial_row(self._job, attempt, alive) for attempt in ledger_attempts}
        new_rows = {number: row for number, row in rows_read.items() if self._attempts.get(number) != row}
        has_changed = bool(new_rows or reports) or status != self._status
        self._attempts |= new_rows
        self._reports += reports
        self._end = reading.newest_end_number(ledger_attempts, self._end)
        self._status = status
        return has_changed

    def _new_content(self) -> content.Content:
        """Compute the content from everything that was read so far."""
        assert self._status is not None, "the run was read before"
        self._job = self._handle.job  # its number of trials may have changed
        attempts = [row for _, row in sorted(self._attempts.items())]  # in the order of their numbers
        record = RunRecord(self._job, self._status, attempts, self._reports)
        facts, columns = content.content(record, self._page_context(), self._importances(record))
        if self._content is not None:
            _, self._previous_columns = self._content
        self._version += 1
        live_facts = {"version": self._version, "mlflow": START, "server": self._server, "logs": LOG}
        return {**facts, **live_facts}, columns

    def _importances(self, record: RunRecord) -> Importances:
        """Return the importances of the parameters. Compute them again if a tenth more trials have ended than before."""
        trials = rows.newest_attempts(record.attempts)
        ended_count = sum(row.ended is not None for row in trials)
        if ended_count >= self._next_importances:
            self._next_importances = _GROWTH * (ended_count + 1)
            start = time.thread_time()
            self._last_importances = importances.importances(record.job, trials)
            self._importances_seconds = time.thread_time() - start
        return self._last_importances


class _LineStream(io.RawIOBase):
    """Lines of a log as a stream of bytes, without what controls a terminal."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._pending = b""

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; see `io.RawIOBase`.

        Raises:
            OSError: The log cannot be read any further.
        """
        try:
            while not self._pending and (line := next(self._lines, None)) is not None:
                self._pending = escapes.escape_controls(line).encode(errors="replace")
        except TrialplaneError as error:
            raise OSError(str(error)) from error
        count = min(len(buffer), len(self._pending))
        buffer[:count], self._pending = self._pending[:count], self._pending[count:]
        return count


def _number(text: str) -> int:
    """Return a number in a request; 0 for a text that is none, or that is too long."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _text_response(text: str, content_type: str, status: int = 200) -> urllib3.HTTPResponse:
    return _stream_response(io.BytesIO(text.encode()), content_type, status)


def _stream_response(body: io.BufferedIOBase, content_type: str, status: int = 200) -> urllib3.HTTPResponse:
    """Return a response whose body is read from a stream while it is sent."""
    headers = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return urllib3.HTTPResponse(body, headers, status, preload_content=False)
