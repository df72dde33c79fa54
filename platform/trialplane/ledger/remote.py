"""One run, written through the gateway by its controller, whose pod has no password of the database.

A transaction is one request on a connection that stays open. The gateway holds the run's lock as long as the connection
exists. If it breaks, the next request opens another one with the same epoch, and the lost request is sent again. If its
transaction was committed although the answer was lost, repeating it changes nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from trialplane import errors
from trialplane.ledger import locking
from trialplane.ledger.attempts import Attempt, Reports
from trialplane.wire import backoff, cluster, env, labels, ledger, records
from trialplane.wire.records import ReportRow, RunStatus

A = TypeVar("A", bound=ledger.Answer)
T = TypeVar("T")

SCHEMES = ("http://", "https://")
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # the database ends a statement after half of that
MAX_ANSWER = 64 << 20  # bytes; more than the largest attempt, and far more than a page of several attempts
_LONGEST_PAUSE = 1.0  # seconds between tries to get the lock


class _ConnectionUnusable(Exception):
    """Error of a connection that broke, or for which the gateway does not hold the run's lock.

    The request may have been carried out.
    """


class Reader:
    """Reader of one run, without its lock.

    Args:
        url: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`, or https.
        run: Name of the run.
    """

    def __init__(self, url: str, run: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port or 80
        self._headers = {cluster.TOKEN_HEADER: parts.password or ""}
        self._path = ledger.path(parts.path, run)
        self._run = run
        self._lock = threading.Lock()  # held during a request, as a connection has one at a time
        self._connection: http.client.HTTPConnection | None = None

    def attempts(self, after: int, order: Literal["number", "place", "running"], limit: int) -> list[Attempt]:
        """Return the first attempts after a number, or a place in the order of ends, without Optuna's view of them."""
        page = self._request(ledger.ReadAttempts(after, order, limit), ledger.AttemptsLoaded)
        return [Attempt(row.request, row.outcome, row.place) for row in page.attempts]

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        page = self._request(ledger.ReadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _request(self, request: ledger.Request, answer: type[A]) -> A:
        """Return the answer to a request. Connect first if needed.

        Raises:
            LedgerUnavailable: The gateway is unavailable.
        """
        with self._lock:
            return self._call(lambda: self._send(request, answer))

    def _call(self, action: Callable[[], T]) -> T:
        """Call a function that uses the connection, and return its result.

        Raises:
            LedgerUnavailable: The gateway is unavailable.
        """
        try:
            return action()
        except _ConnectionUnusable as error:
            raise self._unavailable_error(str(error)) from error

    def _send(self, request: ledger.Request, answer: type[A]) -> A:
        """Send a request, and return its answer. Send it once more if a connection that was open before is unusable."""
        if self._connection is not None:
            # No pause follows: a gateway that was replaced, or closes idle connections, is no outage.
            with contextlib.suppress(_ConnectionUnusable):
                return self._exchange(request, answer)
        self._open()
        return self._exchange(request, answer)

    def _open(self) -> None:
        """Connect.

        Raises:
            _ConnectionUnusable: The gateway cannot be reached.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        if self._scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get(env.MLFLOW_CA))
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=context)
        connection.auto_open = 0  # a new connection must take the lock first
        try:
            connection.connect()
            locking.keep_alive(connection.sock)
            connection.sock.settimeout(ANSWER_SECONDS)
        except OSError as error:
            connection.close()
            raise _ConnectionUnusable(errors.first_line(error)) from error
        self._connection = connection

    def _exchange(self, request: ledger.Request, answer: type[A]) -> A:
        """Send one request on the open connection, and return its answer.

        Raises:
            _ConnectionUnusable: The connection broke or was refused, and is closed now.
            LedgerError: The gateway refuses the request, or its answer cannot be understood.
        """
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
            raise _ConnectionUnusable(errors.first_line(error) or type(error).__name__) from error
        if len(data) > MAX_ANSWER:
            self._drop()
            raise errors.LedgerError(f"the gateway {self._address} answers with more than {MAX_ANSWER} bytes")
        if reply.length:  # the body ended early; `read` does not raise an error for that
            self._drop()
            raise _ConnectionUnusable("the answer was cut off")
        if reply.will_close:
            self._drop()
        if reply.status != http.HTTPStatus.OK:
            failure = self._failure(reply.status, data)
            if isinstance(failure, _ConnectionUnusable):
                self._drop()
            raise failure
        try:
            decoded = ledger.decode(data, ledger.ANSWER)
        except errors.MessageError as error:
            raise errors.LedgerError(f"the gateway {self._address} cannot be understood: {error}") from error
        if not isinstance(decoded, answer):
            raise errors.LedgerError(f"the gateway {self._address} answers {type(request).__name__} with something else")
        return decoded

    def _failure(self, status: int, data: bytes) -> Exception:
        """Return the error for a response with another status than 200, by its code and status."""
        try:
            body = json.loads(data)
            code, text = str(body["code"]), str(body["error"])
        except (ValueError, KeyError, TypeError):
            code = text = ""
        if ledger.STATUSES.get(code) != status:  # from a proxy before the gateway
            return _ConnectionUnusable(f"HTTP status {status}")
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
            case ledger.UNAVAILABLE:
                return errors.LedgerUnavailable(text)
            case ledger.UNOPENED | ledger.SLOW | ledger.BUSY:
                return _ConnectionUnusable(text)
        return errors.LedgerRefused(f"the gateway {self._address} takes no such record of {self._run}: {text}")

    def _unavailable_error(self, line: str) -> errors.LedgerUnavailable:
        return errors.LedgerUnavailable(
            f"the gateway {self._address} does not answer: {line}; all records are safe. "
            f"When it does, type `platform resume {self._run}`"
        )

    @property
    def _address(self) -> str:
        return f"{self._scheme}://{self._host}:{self._port}"

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Storage(Reader):
    """One run, open for writing by this process alone: a `ledger.Store`.

    Args:
        url: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`, or https.
        run: Name of the run.
        directions: "minimize" or "maximize" per objective.
        lock_patience: Seconds to wait for a former controller to release the lock.
        give_up: Function that is polled during the wait. True ends the wait at once.

    Raises:
        LedgerLocked: Another controller works on the run.
        LedgerFenced: The token no longer opens the run.
        LedgerCorrupt: The database is damaged or of another version, or the run has other directions.
        LedgerUnavailable: The gateway or the database is unavailable.
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
        super().__init__(url, run)
        self._directions = directions
        self._patience = lock_patience
        self._give_up = give_up
        self._epoch: int | None = None
        with self._lock:
            self._call(self._open)

    def close(self) -> None:
        """Release the lock and the connection."""
        with self._lock:
            if self._connection is not None:
                # After an error, closing the connection releases the lock.
                with contextlib.suppress(_ConnectionUnusable, errors.LedgerError):
                    self._exchange(ledger.CloseLedger(), ledger.Written)
            self._drop()

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """Return all attempts in the order of their numbers, and the state of the samplers."""
        attempts: list[Attempt] = []
        page = first_page = self._request(ledger.LoadAttempts(-1), ledger.AttemptsLoaded)
        while page.attempts:
            attempts += [Attempt(row.request, row.outcome, row.place, json.loads(row.optuna)) for row in page.attempts]
            page = self._request(ledger.LoadAttempts(attempts[-1].request.number), ledger.AttemptsLoaded)
        return attempts, json.loads(first_page.study_attributes)

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        page = self._request(ledger.LoadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def report(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks."""
        self._request(ledger.WriteReports(tuple(reports), tuple(deleted)), ledger.Written)

    def begin(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start."""
        self._request(ledger.BeginAttempt(attempt.request, json.dumps(attempt.optuna), _text(sampler_state)), ledger.Written)

    def draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the parameters that a running attempt has drawn so far."""
        self._request(ledger.DrawAttempt(attempt.request, json.dumps(attempt.optuna), _text(sampler_state)), ledger.Written)

    def finish(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt."""
        assert attempt.outcome is not None
        documents = json.dumps(attempt.optuna), _text(sampler_state)
        self._request(ledger.FinishAttempt(attempt.request, attempt.outcome, *documents), ledger.Written)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write the run's status.

        Raises:
            LedgerError: There are other facts, which only the operator may write.
        """
        if facts.keys() != {labels.LEDGER_STATUS}:
            raise errors.LedgerError(f"of the facts of {self._run} its controller may write the status only")
        status = records.from_dict(RunStatus, facts[labels.LEDGER_STATUS])
        self._request(ledger.WriteStatus(status), ledger.Written)

    def document(self, name: str) -> Any:
        """Return the value in a column of the run; None if the column is empty."""
        text = self._request(ledger.ReadColumn(name), ledger.ColumnRead).document
        return json.loads(text) if text else None

    def _call(self, action: Callable[[], T]) -> T:
        """See `Reader`. While another controller holds the lock, wait and call the function again.

        Raises:
            LedgerLocked: Another controller holds the lock, and the wait has ended.
            LedgerUnavailable: The gateway is unavailable.
        """
        deadline = time.monotonic() + self._patience
        tries = itertools.count(1)
        while True:
            try:
                return super()._call(action)
            except errors.LedgerLocked:
                if time.monotonic() > deadline or self._give_up():
                    raise
            time.sleep(backoff.pause(next(tries), _LONGEST_PAUSE, first=0.02))

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
