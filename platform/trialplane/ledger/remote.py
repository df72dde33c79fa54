"""One run through the gateway, written by its controller in the run's own pod, which has no password of the database.

The third `Storage`, beside SQLite's and PostgreSQL's: one request per transaction on one connection that stays open, and for
whose lifetime the gateway holds the run's lock. When it breaks, the next request opens another one with the same epoch and
is sent again: whatever was committed without an answer reaching us, committing it once more changes nothing (`store.study`).
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from trialplane import errors
from trialplane.ledger import locking
from trialplane.ledger.attempts import Attempt, Reports
from trialplane.wire import backoff, cluster, labels, ledger, records
from trialplane.wire.records import ReportRow, RunStatus

A = TypeVar("A", bound=ledger.Answer)
T = TypeVar("T")

SCHEME = "http://"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # the database ends a statement after half of that
MAX_ANSWER = 64 << 20  # bytes; an attempt of the largest size is below that, and no page of several comes near it
_LONGEST_PAUSE = 1.0  # seconds between tries to get the lock


class _Broken(Exception):
    """The connection broke, with or without the request done."""


class _Unopened(Exception):
    """The gateway does not know this connection as one with the run's lock."""


class Reader:
    """Reads one run, without its lock.

    Args:
        url: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`.
        run: its name.
    """

    def __init__(self, url: str, run: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._headers = {cluster.TOKEN_HEADER: parts.password or ""}
        self._path = ledger.path(parts.path, run)
        self._run = run
        self._patience = 0.0
        self._give_up: Callable[[], bool] = lambda: True
        self._one_at_a_time = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def attempts(self, after: int, order: Literal["number", "place"], most: int) -> list[Attempt]:
        """The first attempts after one, by number or by the place of their ends; without Optuna's view of them."""
        page = self._request(ledger.ReadAttempts(after, order, most), ledger.AttemptsLoaded)
        return [Attempt(row.request, row.outcome, row.place) for row in page.attempts]

    def reports(self, after: int) -> Reports:
        """A page of the reports with marks above `after`, 0 at first."""
        page = self._request(ledger.ReadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def close(self) -> None:
        """Close the connection."""
        with self._one_at_a_time:
            self._drop()

    def _request(self, request: ledger.Request, answer: type[A]) -> A:
        """Return the answer to a request. Send it again while another controller holds the lock."""

        def send() -> A:
            if self._connection is None:
                self._open()
            return self._exchange(request, answer)

        def retry() -> A:
            reused = self._connection is not None
            try:
                return send()
            except _Unopened:
                self._drop()
            except _Broken:
                if not reused:
                    raise
            return send()  # at once: a gateway that was replaced, or closes what was quiet, is no outage

        with self._one_at_a_time:
            return self._patiently(retry)

    def _patiently(self, do: Callable[[], T]) -> T:
        """Wait for the lock."""
        deadline = time.monotonic() + self._patience
        tries = itertools.count(1)
        while True:
            try:
                return do()
            except errors.LedgerLocked:
                if time.monotonic() > deadline or self._give_up():
                    raise
            except (_Broken, _Unopened) as error:
                raise self._away(str(error)) from error
            time.sleep(backoff.pause(next(tries), _LONGEST_PAUSE, first=0.02))

    def _open(self) -> None:
        """Connect."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.auto_open = 0  # a new connection must take the lock first
        try:
            connection.connect()
            locking.keep_alive(connection.sock)
            connection.sock.settimeout(ANSWER_SECONDS)
        except OSError as error:
            connection.close()
            raise _Broken(errors.first_line(error)) from error
        self._connection = connection

    def _exchange(self, request: ledger.Request, answer: type[A]) -> A:
        """Send one request on the open connection."""
        connection = self._connection
        assert connection is not None
        body = ledger.encode(request)
        if len(body) > ledger.MAX_BYTES:
            size = f"{len(body)} bytes, and the gateway takes {ledger.MAX_BYTES}"
            raise errors.LedgerRefused(f"a record of {self._run} is too large for its ledger: {size}")
        try:
            connection.request("POST", self._path, body, self._headers)
            reply = connection.getresponse()
            data = reply.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise _Broken(errors.first_line(error) or type(error).__name__) from error
        if len(data) > MAX_ANSWER:
            self._drop()
            raise errors.LedgerError(f"the gateway {self._place} answers with more than {MAX_ANSWER} bytes")
        if reply.length:  # of a body that ended early, which `read` does not say
            self._drop()
            raise _Broken("the answer was cut off")
        if reply.will_close:
            self._drop()
        if reply.status != http.HTTPStatus.OK:
            raise self._failure(reply.status, data)
        try:
            decoded = ledger.decode(data, ledger.ANSWER)
        except errors.MessageError as error:
            raise errors.LedgerError(f"the gateway {self._place} cannot be understood: {error}") from error
        if not isinstance(decoded, answer):
            raise errors.LedgerError(f"the gateway {self._place} answers {type(request).__name__} with something else")
        return decoded

    def _failure(self, status: int, data: bytes) -> Exception:
        """The error for an answer that is none, by its code and its status."""
        try:
            body = json.loads(data)
            code, text = str(body["code"]), str(body["error"])
        except (ValueError, KeyError, TypeError):
            code = text = ""
        if ledger.STATUSES.get(code) != status:  # of something between us and the gateway
            return _Broken(f"HTTP status {status}")
        match code:
            case ledger.LOCKED:
                return errors.LedgerLocked(text)
            case ledger.FENCED:
                return errors.LedgerFenced(text)
            case ledger.REFUSED:
                return errors.LedgerFenced(
                    f"the gateway refuses this controller's token: {self._run} was started again, or has ended; it stops"
                )
            case ledger.CORRUPT:
                return errors.LedgerCorrupt(text)
            case ledger.FULL:
                return errors.LedgerFull(text)
            case ledger.UNOPENED:
                return _Unopened(text)
            case ledger.UNAVAILABLE:
                return errors.LedgerUnavailable(text)
            case ledger.SLOW | ledger.BUSY:
                return _Broken(text)
        return errors.LedgerRefused(f"the gateway {self._place} takes no such record of {self._run}: {text}")

    def _away(self, line: str) -> errors.LedgerUnavailable:
        return errors.LedgerUnavailable(
            f"the gateway {self._place} does not answer: {line}; all records are safe. "
            f"When it does, type `platform resume {self._run}`"
        )

    @property
    def _place(self) -> str:
        return f"http://{self._host}:{self._port}"

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Storage(Reader):
    """One run, open for writing by this process alone; the methods are those of `store.study.Storage`.

    Args:
        url: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`.
        run: its name.
        directions: "minimize" or "maximize" per objective.
        lock_patience: seconds to wait for a former controller to release the lock.
        give_up: polled while waiting; True ends the wait at once.

    Raises:
        LedgerLocked: another controller has the run.
        LedgerFenced: the token opens it no longer.
        LedgerCorrupt: the database is damaged or of another version, or the run has other directions.
        LedgerUnavailable: the gateway or the database is away.
    """

    def __init__(
        self,
        url: str,
        run: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        *,
        lock_patience: float,
        give_up: Callable[[], bool],
    ) -> None:
        super().__init__(url, run)  # its connection will have the run's lock
        self._directions = directions
        self._patience = lock_patience
        self._give_up = give_up
        self._epoch: int | None = None
        with self._one_at_a_time:
            self._patiently(self._open)

    def close(self) -> None:
        """Release the lock and the connection."""
        with self._one_at_a_time:
            if self._connection is not None:
                with contextlib.suppress(_Broken, _Unopened, errors.LedgerError):  # the end of the connection does it, too
                    self._exchange(ledger.CloseLedger(), ledger.Written)
            self._drop()

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """All attempts in order of their numbers, and what samplers store beside them."""
        attempts: list[Attempt] = []
        page = first = self._request(ledger.LoadAttempts(-1), ledger.AttemptsLoaded)
        while page.attempts:
            attempts += [Attempt(row.request, row.outcome, row.place, json.loads(row.optuna)) for row in page.attempts]
            page = self._request(ledger.LoadAttempts(attempts[-1].request.number), ledger.AttemptsLoaded)
        return attempts, json.loads(first.study_attributes)

    def reports(self, after: int) -> Reports:
        """A page of the reports with marks above `after`, 0 at first."""
        page = self._request(ledger.LoadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def report(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks."""
        self._request(ledger.WriteReports(tuple(reports), tuple(deleted)), ledger.Written)

    def begin(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start."""
        self._request(ledger.BeginAttempt(attempt.request, json.dumps(attempt.optuna), _text(sampler_state)), ledger.Written)

    def draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write what an attempt that runs has drawn so far."""
        self._request(ledger.DrawAttempt(attempt.request, json.dumps(attempt.optuna), _text(sampler_state)), ledger.Written)

    def finish(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt."""
        assert attempt.outcome is not None
        written = json.dumps(attempt.optuna), _text(sampler_state)
        self._request(ledger.FinishAttempt(attempt.request, attempt.outcome, *written), ledger.Written)

    def describe(self, described: Mapping[str, Any]) -> None:
        """Write the run's status; the other facts are the operator's."""
        if described.keys() != {labels.LEDGER_STATUS}:
            raise errors.LedgerError(f"of the facts of {self._run} its controller may write the status only")
        status = records.from_dict(RunStatus, described[labels.LEDGER_STATUS])
        self._request(ledger.WriteStatus(status), ledger.Written)

    def described(self, name: str) -> Any:
        """The value in a column of the run, or None."""
        text = self._request(ledger.ReadColumn(name), ledger.ColumnRead).document
        return json.loads(text) if text else None

    def _open(self) -> None:
        """Connect, and take the lock."""
        super()._open()
        try:
            opened = self._exchange(ledger.OpenLedger(self._directions, self._epoch), ledger.LedgerOpened)
        except BaseException:
            self._drop()
            raise
        self._epoch = opened.epoch


def _text(sampler_state: Mapping[str, Any] | None) -> str | None:
    return None if sampler_state is None else json.dumps(sampler_state)
