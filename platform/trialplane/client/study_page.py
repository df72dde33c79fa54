"""The page of a run while it goes on: read once, then only what is new, and given to a browser that asks again and again."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from trialplane.client.pages import Source
from trialplane.client.run import RunHandle
from trialplane.ledger import attempts as reading
from trialplane.pages import content, importances, page
from trialplane.pages.content import Recorded, Surroundings
from trialplane.wire import rows
from trialplane.wire.records import ReportRow, TrialRow
from trialplane.wire.states import TrialState

PATH = "/-/report"  # no page of MLflow or optuna-dashboard begins so
DATA = f"{PATH}/data"
SHARE = 0.2  # of a core that may be spent on making content anew
_GROWTH = 1.1  # of complete trials, until importances are computed again
PAUSE = 0.5  # seconds between two reads of the run at least


class StudyPage:
    """The page of one run; its methods may be called by several threads.

    Args:
        handle: of the run.
        surroundings: returns what commands on the page depend on.
    """

    def __init__(self, handle: RunHandle, surroundings: Callable[[], Surroundings]) -> None:
        self._handle = handle
        self._surroundings = surroundings
        self._job = handle.job
        self._attempts: dict[int, TrialRow] = {}
        self._reports: list[ReportRow] = []
        self._end = 0
        self._shares: tuple[int, importances.Shares] = (0, ([], ""))
        self._version, self._next_read = 0, 0.0
        self._status: Any = None
        self._content: content.Content | None = None
        self._lock = threading.Lock()

    def html(self) -> str:
        """Return the page with all that is recorded by now."""
        with self._lock:
            return page.page(self._handle.name, [self._read()], live=True)

    def newer(self, after: int) -> dict[str, Any] | None:
        """Return newer content than that of version `after`, or None."""
        with self._lock:
            newest = self._read()
            if self._version == after:
                return None
            document, block = page.content([newest])
            return {**document, "block": block}

    def beside(self, ask: Source) -> Source:
        """Return a source that answers for this page, and passes on all other requests."""

        @contextlib.contextmanager
        def answer(method: str, target: str, body: bytes) -> Iterator[Any]:
            path, _, query = target.partition("?")
            if method != "GET" or path not in (PATH, DATA):
                with ask(method, target, body) as response:
                    yield response
                return
            if path == PATH:
                yield _response(self.html(), "text/html; charset=utf-8")
                return
            after = urllib.parse.parse_qs(query).get("after", [""])[0]
            content_now = self.newer(int(after) if after.isascii() and after.isdigit() and len(after) < 16 else 0)
            yield _response(json.dumps(content_now, separators=(",", ":")), "application/json")

        return answer

    def _read(self) -> content.Content:
        """Read what is new of the run, make the content anew if there is something, and return it."""
        begun = time.monotonic()
        if self._content is not None and begun < self._next_read:
            return self._content
        target, name = self._handle.target, self._handle.name
        status = self._handle.status()
        ledger_attempts, alive = target.attempts(name, self._end)
        # Reports are read later: an attempt that ended has all of its reports.
        reports = target.curves(name, self._reports[-1].mark if self._reports else 0)
        read = {attempt.request.number: reading.row(self._job, attempt, alive) for attempt in ledger_attempts}
        changed = {number: row for number, row in read.items() if self._attempts.get(number) != row}
        if changed or reports or self._content is None or status != self._status:
            self._job = self._handle.job  # its number of trials may have changed
            self._attempts |= changed
            self._reports += reports
            self._end = reading.newest_place(ledger_attempts, self._end)
            self._status = status
            recorded = Recorded(self._job, status, [self._attempts[n] for n in sorted(self._attempts)], self._reports)
            facts, columns = content.content(recorded, self._surroundings(), self._importances(recorded))
            self._version += 1
            self._content = {**facts, "version": self._version, "mlflow": "/"}, columns
        ended = time.monotonic()
        self._next_read = ended + max(PAUSE, (ended - begun) * (1 / SHARE - 1))
        return self._content

    def _importances(self, recorded: Recorded) -> importances.Shares:
        """Return the importances, computed again when there are a tenth more complete trials."""
        trials = rows.newest_attempts(recorded.attempts)
        complete = sum(row.state is TrialState.COMPLETE for row in trials)
        if complete >= _GROWTH * self._shares[0]:
            self._shares = complete + 1, importances.importances(recorded.job, trials)
        return self._shares[1]


def _response(text: str, kind: str) -> urllib3.HTTPResponse:
    headers = {"Content-Type": kind, "Cache-Control": "no-store"}
    return urllib3.HTTPResponse(io.BytesIO(text.encode()), headers, 200, preload_content=False)
