"""One run, read or written through the gateway, because the pod of a controller has no password of the database.

`Reader` reads a run, and `Storage` writes it as its only controller. Each transaction is one request, and all requests use
one connection. The gateway holds the run's lock for `Storage` as long as the connection exists. If it breaks, `Storage`
connects again with the same epoch and sends the request again. Its transaction may have been committed before the answer was
lost, but repeating it changes nothing.
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
from trialplane.ledger.attempts import SOURCE_PAGE, Attempt, Reports
from trialplane.wire import backoff, cluster, env, labels, ledger, records
from trialplane.wire.records import ReportRow, RunStatus

AnswerT = TypeVar("AnswerT", bound=ledger.Answer)
ResultT = TypeVar("ResultT")

SCHEMES = ("http://", "https://")  # of a gateway's URL; any other scheme is that of a database
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # twice `locking.STATEMENT_SECONDS`, so that the gateway can still report a statement that timed out
MAX_ANSWER = 64 << 20  # bytes; a page with one very large attempt stays below it
_LONGEST_PAUSE = 1.0  # seconds between two tries to take the lock


class _ConnectionUnusable(Exception):
    """Error of a connection that broke, or on which the gateway does not hold the run's lock.

    The gateway may or may not have carried out the request. As each request may be repeated, it is sent again.
    """


class Reader:
    """Reader of one run, without its lock: a `storages.Source`, which is read less often than a database.

    Args:
        url: `http://:TOKEN@HOST:PORT/namespaces/NAMESPACE`, or https.
        run: Name of the run.
    """

    pause = 1.0
    idle = 10.0

    def __init__(self, url: str, run: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._headers = {cluster.TOKEN_HEADER: parts.password or ""}  # the token has the place of a password in the URL
        self._path = ledger.path(parts.path, run)
        self._run = run
        self._lock = threading.Lock()  # held during a request, because the connection can carry only one at a time
        self._connection: http.client.HTTPConnection | None = None

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return a page of running attempts with numbers above `after`, in the order of their numbers."""
        return self._attempts(after, "running")

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""
        return self._attempts(number - 1, "number", limit=1)[0]

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""
        return self._attempts(after, "end_number")

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        page = self._request(ledger.ReadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    def _attempts(
        self, after: int, order: Literal["number", "end_number", "running"], limit: int = SOURCE_PAGE
    ) -> list[Attempt]:
        """Return the first attempts after a number, or after the number of an end, without Optuna's view of them.

        Args:
            after: Number of an attempt, or of its end.
            order: "number" for all attempts by number, "end_number" for ended ones in the order of their ends, "running"
                for running ones by number.
            limit: Maximum number of attempts. There are fewer if they do not fit into one answer.
        """
        page = self._request(ledger.ReadAttempts(after, order, limit), ledger.AttemptsLoaded)
        return [Attempt(row.request, row.outcome, end_number=row.end_number) for row in page.attempts]

    def _request(self, request: ledger.Request, answer_type: type[AnswerT]) -> AnswerT:
        """Send a request, and return its answer. Connect first if needed.

        Raises:
            LedgerUnavailable: The gateway is unavailable.
            LedgerError: The gateway refuses the request, or its answer cannot be understood.
        """
        with self._lock:
            return self._call(lambda: self._send_over_any_connection(request, answer_type))

    def _call(self, action: Callable[[], ResultT]) -> ResultT:
        """Call a function that uses the connection, and return its result. `Storage` also waits for the run's lock here.

        Raises:
            LedgerUnavailable: The gateway is unavailable.
        """
        try:
            return action()
        except _ConnectionUnusable as error:
            raise self._unavailable_error(str(error)) from error

    def _send_over_any_connection(self, request: ledger.Request, answer_type: type[AnswerT]) -> AnswerT:
        """Send a request over the open connection, or over a new one if that is unusable. Return the answer."""
        if self._connection is not None:
            # The gateway may have closed the connection since the last request: it was restarted, or closes idle
            # connections. That is not an outage, so the request is sent over a new connection at once.
            with contextlib.suppress(_ConnectionUnusable):
                return self._send(request, answer_type)
        self._connect()
        return self._send(request, answer_type)

    def _connect(self) -> None:
        """Open a connection.

        Raises:
            _ConnectionUnusable: The gateway cannot be reached.
        """
        if self._scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get(env.MLFLOW_CA))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.auto_open = 0  # http.client must not reconnect by itself: `Storage` takes the lock on each new connection
        try:
            connection.connect()
            locking.keep_alive(connection.sock)
            connection.sock.settimeout(ANSWER_SECONDS)
        except OSError as error:
            connection.close()
            raise _ConnectionUnusable(errors.first_line(error)) from error
        self._connection = connection

    def _send(self, request: ledger.Request, answer_type: type[AnswerT]) -> AnswerT:
        """Send a request over the open connection, and return its answer.

        Raises:
            _ConnectionUnusable: The connection broke or was refused, and is closed now.
            LedgerError: The gateway refuses the request, or its answer cannot be understood.
        """
        body = ledger.encode(request)
        if len(body) > ledger.MAX_BYTES:
            size = f"{len(body)} bytes, and the gateway takes {ledger.MAX_BYTES}"
            raise errors.LedgerRefused(f"a record of {self._run} is too large for its ledger: {size}")
        status, data = self._post(body)
        if status != http.HTTPStatus.OK:
            failure = self._response_error(status, data)
            if isinstance(failure, _ConnectionUnusable):
                self._disconnect()
            raise failure
        try:
            answer = ledger.decode(data, ledger.ANSWER)
        except errors.MessageError as error:
            raise errors.LedgerError(f"the gateway {self._address} cannot be understood: {error}") from error
        if not isinstance(answer, answer_type):
            raise errors.LedgerError(f"the gateway {self._address} answers {type(request).__name__} with something else")
        return answer

    def _post(self, body: bytes) -> tuple[int, bytes]:
        """Send bytes over the open connection; return the status and the body of the response.

        Raises:
            _ConnectionUnusable: The connection broke, and is closed now.
            LedgerError: The response is too large.
        """
        connection = self._connection
        assert connection is not None
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            data = response.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            raise _ConnectionUnusable(errors.first_line(error) or type(error).__name__) from error
        if len(data) > MAX_ANSWER:
            self._disconnect()
            raise errors.LedgerError(f"the gateway {self._address} answers with more than {MAX_ANSWER} bytes")
        if response.length:  # bytes of the body that are missing; `read` raises no error if the connection ends early
            self._disconnect()
            raise _ConnectionUnusable("the answer was cut off")
        if response.will_close:
            self._disconnect()
        return response.status, data

    def _response_error(self, status: int, data: bytes) -> Exception:
        """Return the error for a response whose status is not 200.

        The code in the body determines the error. A response without the code that belongs to its status does not come from
        the gateway, but from a proxy in front of it, so the gateway counts as unavailable.
        """
        try:
            body = json.loads(data)
            code, text = str(body["code"]), str(body["error"])
        except (ValueError, KeyError, TypeError):
            code = text = ""
        if ledger.STATUSES.get(code) != status:
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
        # INVALID and TOO_LARGE remain: the fault is in the request, and repeating it cannot help.
        return errors.LedgerRefused(f"the gateway {self._address} takes no such record of {self._run}: {text}")

    def _unavailable_error(self, line: str) -> errors.LedgerUnavailable:
        """Return the error of a gateway that does not answer, which tells the user how to continue the run."""
        return errors.LedgerUnavailable(
            f"the gateway {self._address} does not answer: {line}; all records are safe. "
            f"When it does, type `platform resume {self._run}`"
        )

    @property
    def _address(self) -> str:
        return f"{self._scheme}://{self._host}:{self._port}"

    def _disconnect(self) -> None:
        """Close the connection if it is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Storage(Reader):
    """One run, open for writing by this process alone: a `storages.Store`.

    For the arguments and the errors see `Reader` and `study.Storage`. In addition, LedgerFenced is raised if the token no
    longer opens the run, and LedgerUnavailable if the gateway is unavailable.
    """

    def __init__(
        self,
        url: str,
        run: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        *,
        lock_patience: float,
        should_give_up: Callable[[], bool],
    ) -> None:
        super().__init__(url, run)
        self._directions = directions
        self._patience = lock_patience
        self._should_give_up = should_give_up
        self._epoch: int | None = None
        with self._lock:
            self._call(self._connect)  # now, and not with the first request, because it takes the run's lock

    def close(self) -> None:
        """Release the lock and the connection."""
        with self._lock:
            if self._connection is not None:
                # The answer arrives after the release, so the next controller need not wait. An error does no harm: the
                # gateway releases the lock as well when the connection ends.
                with contextlib.suppress(_ConnectionUnusable, errors.LedgerError):
                    self._send(ledger.CloseLedger(), ledger.Written)
            self._disconnect()

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """Return all attempts in the order of their numbers, and the state of the samplers."""
        attempts: list[Attempt] = []
        # A page holds only as many attempts as fit into an answer, and an empty page ends them.
        page = first_page = self._request(ledger.LoadAttempts(-1), ledger.AttemptsLoaded)
        while page.attempts:
            attempts += [Attempt(row.request, row.outcome, row.end_number, json.loads(row.optuna)) for row in page.attempts]
            page = self._request(ledger.LoadAttempts(attempts[-1].request.number), ledger.AttemptsLoaded)
        return attempts, json.loads(first_page.sampler_state)

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        page = self._request(ledger.LoadReports(after), ledger.ReportsLoaded)
        return Reports(list(page.reports), page.more)

    def write_reports(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks."""
        self._request(ledger.WriteReports(tuple(reports), tuple(deleted)), ledger.Written)

    def write_start(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start. A `sampler_state` of None means that it has not changed."""
        optuna, state = json.dumps(attempt.optuna), _state_text(sampler_state)
        self._request(ledger.BeginAttempt(attempt.request, optuna, state), ledger.Written)

    def write_draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the parameters that a running attempt has drawn so far."""
        optuna, state = json.dumps(attempt.optuna), _state_text(sampler_state)
        self._request(ledger.DrawAttempt(attempt.request, optuna, state), ledger.Written)

    def write_end(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt."""
        assert attempt.outcome is not None
        optuna, state = json.dumps(attempt.optuna), _state_text(sampler_state)
        self._request(ledger.FinishAttempt(attempt.request, attempt.outcome, optuna, state), ledger.Written)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write the run's status, the only fact that a controller may write through the gateway.

        Raises:
            LedgerError: `facts` has other facts, which only the operator may write.
        """
        if facts.keys() != {labels.LEDGER_STATUS}:
            raise errors.LedgerError(f"of the facts of {self._run} its controller may write the status only")
        status = records.from_dict(RunStatus, facts[labels.LEDGER_STATUS])
        self._request(ledger.WriteStatus(status), ledger.Written)

    def read_column(self, name: str) -> Any:
        """Return the value in a column of the run; None if the column is empty."""
        text = self._request(ledger.ReadColumn(name), ledger.ColumnRead).document
        return json.loads(text) if text else None

    def _call(self, action: Callable[[], ResultT]) -> ResultT:
        """Call a function that uses the connection, and return its result.

        Connecting takes the lock. While another controller holds it, wait and call the function again.

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
                if time.monotonic() > deadline or self._should_give_up():
                    raise
            time.sleep(backoff.pause(next(tries), _LONGEST_PAUSE, first=0.02))

    def _connect(self) -> None:
        """Open a connection, and take the run's lock on it.

        The first connection makes this controller the newest one and sets its epoch. A later one has the same epoch.
        """
        super()._connect()
        try:
            opened = self._send(ledger.OpenLedger(self._directions, self._epoch), ledger.LedgerOpened)
        except BaseException:
            self._disconnect()
            raise
        self._epoch = opened.epoch


def _state_text(sampler_state: Mapping[str, Any] | None) -> str | None:
    """Return the state of the samplers as JSON; None if it has not changed."""
    return None if sampler_state is None else json.dumps(sampler_state)
