"""The service that gives each controller access to its run's ledger. `wire.ledger` is the protocol.

Each connection of a controller has its own connection to the database. `OpenLedger` opens a `Served` storage, just as a
controller with the database's password would: it holds the run's lock, fences former controllers, and is closed when the
controller's connection ends. So locks, epochs and repeated requests behave as in `ledger.study`, and the gateway has no
state of its own. Each transaction checks the epoch, and also the token, which may have been replaced or revoked since.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar, cast

from trialplane import errors
from trialplane.gateway.limits import Limit
from trialplane.ledger import archive
from trialplane.ledger.archive import InvalidToken
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.namespaces import Ledgers
from trialplane.ledger.served import Served
from trialplane.wire import labels, ledger, records
from trialplane.wire.ledger import Address
from trialplane.wire.records import ReportRow, RunStatus, TrialOutcome, TrialRequest

R = TypeVar("R", TrialRequest, RunStatus)

CONNECTIONS = 4  # limit for one run: its controller's, its exporter's, and broken ones that are not yet detected
MAX_RUNS = 100  # default limit of open ledgers: each needs a connection to PostgreSQL
_RESERVED_SHARE = 10  # one in ten connections is reserved for reconnecting controllers, which give up after ten minutes
_LARGE = 1 << 18  # larger bodies, in bytes, are decoded one at a time: a hostile one takes thirty times its size in memory
_MAX_STATUS = 1 << 20  # limit of a status in bytes: the operator and every list of runs read it
_MAX_RECORD = 1 << 20  # limit of a request or an outcome in bytes: every read of the run parses it
_MAX_CLOCK_LEAD = 3600.0  # seconds by which a controller's clock may be ahead
_COLUMNS = (labels.LEDGER_JOB, labels.LEDGER_SUBMISSION, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)  # for ReadColumn
_RECORD_REQUESTS = (ledger.BeginAttempt, ledger.DrawAttempt, ledger.FinishAttempt, ledger.WriteReports)
_REFUSAL = "the token does not open this run: each start of a run has its own, which is gone when the run has ended"
# The first class that matches counts, so a subclass comes before its base.
_CODES: tuple[tuple[type[errors.LedgerError], str], ...] = (
    (errors.LedgerLocked, ledger.LOCKED),
    (errors.LedgerFenced, ledger.FENCED),
    (errors.LedgerCorrupt, ledger.CORRUPT),
    (errors.LedgerFull, ledger.FULL),
    (errors.LedgerUnavailable, ledger.UNAVAILABLE),
)


class Failure(Exception):
    """Error for a request that failed, with its code in `wire.ledger`."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


class LedgerService:
    """State that the connections of all controllers share.

    Args:
        ledgers: Ledgers of all namespaces.
        max_runs: Limit of open ledgers. With several namespaces, one namespace may use three quarters of it.

    Attributes:
        ledgers: See above.
        max_runs: See above.
        max_runs_per_namespace: Limit of open ledgers in one namespace.
        open_ledgers: Counts of open ledgers, by namespace.
        connections: Counts of connections, by address of the run.
        large_request_lock: Lock that is held while a large request or answer is in memory, so that there is one at a time.
    """

    def __init__(self, ledgers: Ledgers, max_runs: int = MAX_RUNS) -> None:
        self.ledgers = ledgers
        self.max_runs = max_runs
        self.max_runs_per_namespace = max_runs if len(ledgers.namespaces) == 1 else max(1, max_runs * 3 // 4)
        self.open_ledgers = Limit()
        self.connections = Limit()
        self.large_request_lock = threading.Lock()


class Connection:
    """A connection of a client that claims to be the controller of a run.

    Args:
        service: Shared state.
    """

    def __init__(self, service: LedgerService) -> None:
        self._service = service
        # The admitted run: its address, its name, and the digest of its token; None and "" before a request is admitted.
        self._address: Address | None = None
        self._run = ""
        self._digest = ""
        self._storage: Served | None = None  # None until the ledger is opened

    @property
    def is_open(self) -> bool:
        """Whether it has a ledger open and thus holds the lock of a run."""
        return self._storage is not None

    def is_admitted(self, address: Address, token: str) -> bool:
        """Whether this address and token were admitted before. Each transaction checks the token again."""
        return (address, ledger.token_digest(token)) == (self._address, self._digest)

    def admit(self, address: Address, token: str) -> None:
        """Check the token of a request for this run, before its body is read, and count the connection for the run.

        Raises:
            Failure: The token does not open the run, or there is no such run. Or the database is unavailable, the gateway
                does not serve the namespace, or the run has too many connections.
        """
        if self.is_admitted(address, token):
            return
        self.close()
        runs = self._service.ledgers.of(address.namespace)
        if runs is None:  # an administrator has removed the team from the chart's values, and may add it again
            raise Failure(
                ledger.UNAVAILABLE,
                f"{address.namespace:.63} is not among the gateway's namespaces; its runs wait until an administrator adds "
                "it to `teams` in the chart's values again",
            )
        with _map_errors():
            if not runs.is_token_valid(address.run, token):
                raise Failure(ledger.REFUSED, _REFUSAL)
        if not self._service.connections.enter(address, CONNECTIONS):
            raise Failure(ledger.BUSY, f"{address.run} has {CONNECTIONS} connections to its ledger already")
        self._address, self._run, self._digest = address, address.run, ledger.token_digest(token)

    def answer(self, body: bytes) -> bytes:
        """Return the answer to a request of the admitted run.

        Raises:
            Failure: The request is invalid or too large, or cannot be served now.
        """
        lock, no_lock = self._service.large_request_lock, contextlib.nullcontext()
        is_large_request = len(body) > _LARGE
        with _map_errors():
            with lock if is_large_request else no_lock:
                request = ledger.decode(body, ledger.REQUEST)
            if isinstance(request, ledger.WriteStatus):
                _check_status(request.status, len(body))
            if isinstance(request, ledger.WriteReports):
                _check_reports(request)
            if isinstance(request, _RECORD_REQUESTS) and len(body) > _MAX_RECORD:
                _check_sizes(request)
            may_have_large_answer = isinstance(request, ledger.LoadAttempts | ledger.LoadReports | ledger.Read)
            with lock if may_have_large_answer else no_lock:
                return ledger.encode(self._answer(request))

    def close(self) -> None:
        """Close the ledger, and stop counting the connection for the run."""
        self._close_ledger()
        if self._address is not None:
            self._service.connections.leave(self._address)
        self._address, self._run, self._digest = None, "", ""

    def _close_ledger(self) -> None:
        """Close the ledger if it is open, which releases the run's lock."""
        storage, self._storage = self._storage, None
        if storage is not None:
            assert self._address is not None
            storage.close()
            self._service.open_ledgers.leave(self._address.namespace)

    def _open(self, address: Address, directions: tuple[str, ...], epoch: int | None) -> Served:
        """Open the ledger with its own connection to the database, which holds the run's lock.

        `epoch` is that of a controller that reconnects, and None for a new controller.

        Raises:
            Failure: The limit of open ledgers is reached, or a direction is invalid.
            LedgerError: The database refuses to open the ledger, for example because another connection has the lock.
        """
        service = self._service
        total_limit, namespace_limit = service.max_runs, service.max_runs_per_namespace
        is_new = epoch is None
        if is_new:  # some connections are reserved for controllers that reconnect, because they have running trials
            total_limit -= total_limit // _RESERVED_SHARE
            namespace_limit -= namespace_limit // _RESERVED_SHARE
        if not service.open_ledgers.enter(address.namespace, namespace_limit, total_limit):
            open_runs = f"{namespace_limit} runs of {address.namespace} open"
            if service.open_ledgers.total >= total_limit:
                open_runs = f"{total_limit} runs open"
            raise _limit_failure(address.run, open_runs, has_reserve=is_new)
        try:
            url, budget = service.ledgers.url(address.namespace), service.ledgers.budgets[address.namespace]
            return Served(url, self._run, _directions(directions), self._digest, budget, epoch)
        except BaseException:
            service.open_ledgers.leave(address.namespace)
            raise

    def _answer(self, request: ledger.Request) -> ledger.Answer:
        """Return the answer to a request.

        All requests but `OpenLedger`, `CloseLedger`, `ReadAttempts` and `ReadReports` need an open ledger.

        Raises:
            Failure: The request needs an open ledger, and none is open; or as `_open` and `_answer_open`.
            InvalidToken: The token no longer opens the run.
            LedgerError: As `_open`.
        """
        match request:
            case ledger.OpenLedger(directions=directions, epoch=epoch):
                self._close_ledger()
                assert self._address is not None  # its token was checked
                self._storage = self._open(self._address, directions, epoch)
                return ledger.LedgerOpened(self._storage.epoch)
            case ledger.CloseLedger():
                self._close_ledger()
                return ledger.Written()
            case ledger.ReadAttempts(after=after, order=order, most=limit):
                attempts = self._archive().attempts_after(self._run, self._digest, after, order, limit)
                # "{}": these reads leave out Optuna's view of an attempt and the state of the samplers.
                stored = [
                    ledger.StoredAttempt(attempt.request, attempt.outcome, attempt.end_number, optuna="{}")
                    for attempt in attempts
                ]
                return ledger.AttemptsLoaded(tuple(stored), "{}")
            case ledger.ReadReports(after=after):
                page = self._archive().reports_after(self._run, self._digest, after)
                return ledger.ReportsLoaded(tuple(page.rows), page.more)
        if self._storage is None:
            raise Failure(ledger.UNOPENED, f"the ledger of {self._run} was not opened on this connection")
        return self._answer_open(self._storage, request)

    def _answer_open(self, storage: Served, request: ledger.Request) -> ledger.Answer:
        """Return the answer to a request that needs the open ledger.

        Raises:
            Failure: The request is invalid, or a record in it is of another run.
        """
        match request:
            case ledger.LoadAttempts(after=after):
                loaded, sampler_state = storage.page(after, ledger.PAGE_BYTES)
                stored = (
                    ledger.StoredAttempt(attempt.request, attempt.outcome, attempt.end_number, json.dumps(attempt.optuna))
                    for attempt in loaded
                )
                return ledger.AttemptsLoaded(tuple(stored), sampler_state)
            case ledger.LoadReports(after=after):
                page = storage.reports(after)
                return ledger.ReportsLoaded(tuple(page.rows), page.more)
            case ledger.WriteReports(reports=reports, deleted=deleted):
                storage.write_reports(reports, deleted)
            case ledger.BeginAttempt():
                attempt = Attempt(self._check_run(request.request), optuna=_parse_object(request.optuna))
                storage.write_start(attempt, _parse_optional_object(request.sampler_state))
            case ledger.DrawAttempt():
                attempt = Attempt(self._check_run(request.request), optuna=_parse_object(request.optuna))
                storage.write_draw(attempt, _parse_optional_object(request.sampler_state))
            case ledger.FinishAttempt():
                attempt = Attempt(self._check_run(request.request), request.outcome, optuna=_parse_object(request.optuna))
                storage.write_end(attempt, _parse_optional_object(request.sampler_state))
            case ledger.WriteStatus(status=status):
                storage.write_facts({labels.LEDGER_STATUS: records.to_dict(self._check_run(status))})
            case ledger.ReadColumn(name=name):
                if name not in _COLUMNS:
                    raise Failure(ledger.INVALID, f"a run has no {name!r:.40}")
                column = storage.read_column(name)
                return ledger.ColumnRead("" if column is None else json.dumps(column))
        return ledger.Written()

    def _archive(self) -> archive.Archive:
        """Return the ledgers of the run's namespace, for a read without the lock.

        Raises:
            InvalidToken: The gateway does not serve the namespace.
        """
        assert self._address is not None  # its token was checked
        runs = self._service.ledgers.of(self._address.namespace)
        if runs is None:
            raise InvalidToken
        return runs

    def _check_run(self, record: R) -> R:
        """Check that a record belongs to this run, and return it. Raise Failure if it belongs to another run."""
        if record.run != self._run:
            raise Failure(ledger.REFUSED, _REFUSAL)
        return record


def _limit_failure(run: str, open_runs: str, *, has_reserve: bool) -> Failure:
    """Return the failure for a run that must wait, because the gateway has as many ledgers open as it may.

    Args:
        run: Name of the run.
        open_runs: Number of open runs in words.
        has_reserve: Whether more may be opened by controllers that reconnect.
    """
    reserve = ", apart from connections for runs that return from another gateway" if has_reserve else ""
    return Failure(
        ledger.UNAVAILABLE,
        f"the gateway has the ledgers of {open_runs}, which is its limit{reserve}; {run} waits until one of them ends, or "
        "until an administrator raises gateway.maxRuns in the chart's values, together with "
        "postgresql.parameters.max_connections",
    )


def _check_status(status: RunStatus, size: int) -> None:
    """Check the size and the times of a status.

    The operator counts its deadlines from these times, so a time in the future would postpone them.

    Raises:
        Failure: The status is too large, or a time is impossible: negative, or more than `_MAX_CLOCK_LEAD` in the future.
    """
    if size > _MAX_STATUS:
        raise Failure(ledger.TOO_LARGE, f"a run's status may have {_MAX_STATUS} bytes, not {size}")
    latest = time.time() + _MAX_CLOCK_LEAD
    moments = (status.created, status.started, status.updated, status.ended, status.alive)
    if any(moment is not None and not 0 <= moment <= latest for moment in moments):
        raise Failure(ledger.INVALID, "a run's status has a time that is negative or more than an hour in the future")
    if not 0 <= status.worked <= latest:  # a duration, and no run has worked since before the epoch
        raise Failure(
            ledger.INVALID, "a run's status says that it has worked for less than 0 s, or for longer than possible"
        )


def _check_reports(request: ledger.WriteReports) -> None:
    """Check the number and the times of reports.

    Raises:
        Failure: There are too many, or a time is negative or more than `_MAX_CLOCK_LEAD` in the future.
    """
    if max(len(request.reports), len(request.deleted)) > ledger.MAX_BATCH:
        raise Failure(ledger.TOO_LARGE, f"a request may write {ledger.MAX_BATCH:,} reports, and delete as many")
    if not all(0 <= report.time <= time.time() + _MAX_CLOCK_LEAD for report in request.reports):
        raise Failure(ledger.INVALID, "a report has a time that is negative or more than an hour in the future")


def _check_sizes(request: ledger.BeginAttempt | ledger.DrawAttempt | ledger.FinishAttempt | ledger.WriteReports) -> None:
    """Check the size of each record in a large request. A slot accepts no larger records from its trial either.

    Raises:
        Failure: A record is too large.
    """
    if isinstance(request, ledger.WriteReports):
        request_records: Iterable[ReportRow | TrialRequest | TrialOutcome] = request.reports
    elif isinstance(request, ledger.FinishAttempt):
        request_records = (request.request, request.outcome)
    else:
        request_records = (request.request,)
    for record in request_records:
        if (size := len(records.to_json(record))) > _MAX_RECORD:
            raise Failure(ledger.TOO_LARGE, f"a {type(record).__name__} may have {_MAX_RECORD:,} bytes, not {size:,}")


@contextlib.contextmanager
def _map_errors() -> Iterator[None]:
    """Turn the errors of the block into `Failure`s with codes."""
    try:
        yield
    except InvalidToken as error:
        raise Failure(ledger.REFUSED, _REFUSAL) from error
    except errors.MessageError as error:
        raise Failure(ledger.INVALID, str(error)) from error
    except errors.LedgerError as error:
        code = next(code for error_class, code in _CODES if isinstance(error, error_class))
        raise Failure(code, str(error)) from error
    except archive.DATABASE_ERRORS as error:
        raise Failure(ledger.UNAVAILABLE, archive.unavailable(error)) from error


def _directions(names: tuple[str, ...]) -> tuple[Literal["minimize", "maximize"], ...]:
    """Return the directions with their type. Raise Failure for any other text."""
    for name in names:
        if name not in ("minimize", "maximize"):
            raise Failure(ledger.INVALID, f"an objective is minimized or maximized, not {name!r:.40}")
    return cast('tuple[Literal["minimize", "maximize"], ...]', names)


def _parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raise Failure if the text does not contain one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failure(ledger.INVALID, f"a document is not JSON: {errors.first_line(error):.200}") from error
    if not isinstance(value, dict):
        raise Failure(ledger.INVALID, "a document is not a JSON object")
    return value


def _parse_optional_object(text: str | None) -> dict[str, Any] | None:
    """Return a JSON object, or None for None."""
    return None if text is None else _parse_object(text)
