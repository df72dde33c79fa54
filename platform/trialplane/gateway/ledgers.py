"""The ledgers of runs, as the gateway serves each to its controller: a connection to it is one to the database.

`OpenLedger` opens a `Storage` as a controller with the database's password would have it: it holds the run's lock and fences
former controllers, and it is closed when the controller's connection ends. So locks, epochs and repeated requests are those
of `ledger.study`, and the gateway itself keeps nothing. Beside the epoch each transaction checks the token, which may have
been replaced or taken away since the connection was opened. (`wire.ledger` is the protocol.)
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

from trialplane import errors
from trialplane.gateway.limits import Limit
from trialplane.ledger import archive
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.namespaces import Ledgers
from trialplane.ledger.served import InvalidToken, Served
from trialplane.wire import labels, ledger, records
from trialplane.wire.ledger import Address
from trialplane.wire.records import RunStatus, TrialRequest

R = TypeVar("R", TrialRequest, RunStatus)
T = TypeVar("T")

CONNECTIONS = 4  # of one run at a time: its controller's, its exporter's, and those that are gone and not yet noticed to be
MAX_RUNS = 100  # whose ledgers are open at a time, where the chart does not say: each holds a connection to PostgreSQL
_RETURNING = 10  # one connection in so many is for runs that return, whose controllers give up after ten minutes
_LARGE = 1 << 18  # bytes of a body from which on one is decoded at a time: a hostile one takes thirty times its size
_MAX_STATUS = 1 << 20  # bytes of a status, of which the operator and every list read all
_MAX_RECORD = 1 << 20  # bytes of a request or an outcome, which is parsed for every read of the run
_AHEAD = 3600.0  # seconds by which a controller's clock may be ahead
_COLUMNS = (labels.LEDGER_JOB, labels.LEDGER_SUBMISSION, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)
_GROWING = (ledger.BeginAttempt, ledger.DrawAttempt, ledger.FinishAttempt, ledger.WriteReports)
_REFUSAL = "the token does not open this run: each start of a run has its own, which is gone when the run has ended"
# The first that fits, so the more special one comes before its base.
_CODES: tuple[tuple[type[errors.LedgerError], str], ...] = (
    (errors.LedgerLocked, ledger.LOCKED),
    (errors.LedgerFenced, ledger.FENCED),
    (errors.LedgerCorrupt, ledger.CORRUPT),
    (errors.LedgerFull, ledger.FULL),
    (errors.LedgerUnavailable, ledger.UNAVAILABLE),
)


class Failure(Exception):
    """A request that failed, with its code of `wire.ledger`."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


class LedgerService:
    """The state that the connections of all controllers share.

    Args:
        all_runs: by namespace.
        most_runs: whose ledgers are open at a time; where there are several namespaces, three quarters of them in one.
    """

    def __init__(self, all_runs: Ledgers, most_runs: int = MAX_RUNS) -> None:
        self.all_runs = all_runs
        self.most_runs = most_runs
        self.most_of_one = most_runs if len(all_runs.namespaces) == 1 else max(1, most_runs * 3 // 4)
        self.open = Limit()  # by namespace
        self.large = threading.Lock()
        self.connections = Limit()  # by address


class Connection:
    """One connection of a client that claims to be the controller of a run.

    Args:
        service: of the gateway.
    """

    def __init__(self, service: LedgerService) -> None:
        self._service = service
        self._address: Address | None = None
        self._run = ""
        self._digest = ""
        self._storage: Served | None = None

    @property
    def is_open(self) -> bool:
        """Whether it holds the lock of a run."""
        return self._storage is not None

    def is_of(self, address: Address, token: str) -> bool:
        """Whether it was admitted with this address and token, which each transaction checks again."""
        return (address, ledger.token_digest(token)) == (self._address, self._digest)

    def admit(self, address: Address, token: str) -> None:
        """Check a request's run and token, before its body is read.

        Raises:
            Failure: the token does not open this run, whether or not there is one; or the database is away, or the run's
                namespace is none of the gateway's.
        """
        if self.is_of(address, token):
            return
        self.close()
        runs = self._service.all_runs.of(address.namespace)
        if runs is None:  # a team that was taken out of the chart's values: its runs wait until it is there again
            raise Failure(
                ledger.UNAVAILABLE,
                f"{address.namespace:.63} is not among the gateway's namespaces; its runs wait until an administrator adds "
                "it to `teams` in the chart's values again",
            )
        with _failures():
            if not runs.opens(address.run, token):
                raise Failure(ledger.REFUSED, _REFUSAL)
        if not self._service.connections.enter(address, CONNECTIONS):
            raise Failure(ledger.BUSY, f"{address.run} has {CONNECTIONS} connections to its ledger already")
        self._address, self._run, self._digest = address, address.run, ledger.token_digest(token)

    def answer(self, body: bytes) -> bytes:
        """The answer to one request of the admitted run.

        Raises:
            Failure: whatever is wrong.
        """
        with _failures():
            with self._service.large if len(body) > _LARGE else contextlib.nullcontext():
                request = ledger.decode(body, ledger.REQUEST)
            if isinstance(request, ledger.WriteStatus):
                _check_status(request.status, len(body))
            if isinstance(request, _GROWING) and len(body) > _MAX_RECORD:
                _check_records(request)
            with (
                self._service.large
                if isinstance(request, ledger.LoadAttempts | ledger.LoadReports | ledger.Read)
                else contextlib.nullcontext()
            ):
                return ledger.encode(self._answer(request))

    def close(self) -> None:
        """Release the lock, and free one of the run's connections."""
        self._release()
        if self._address is not None:
            self._service.connections.leave(self._address)
        self._address, self._run, self._digest = None, "", ""

    def _release(self) -> None:
        storage, self._storage = self._storage, None
        if storage is not None:
            assert self._address is not None
            storage.close()
            self._service.open.leave(self._address.namespace)

    def _open(self, address: Address, directions: tuple[str, ...], epoch: int | None) -> Served:
        """The ledger, with a connection to the database of its own, which holds the run's lock."""
        service = self._service
        # A run that returns from a lost gateway has running trials: new runs leave some connections to such runs.
        most, most_of_one = service.most_runs, service.most_of_one
        if epoch is None:
            most, most_of_one = most - most // _RETURNING, most_of_one - most_of_one // _RETURNING
        if not service.open.enter(address.namespace, most_of_one, most):
            is_full = service.open.total >= most
            open_runs = f"{most} runs open" if is_full else f"{most_of_one} runs of {address.namespace} open"
            suffix = "" if epoch is not None else ", beside connections for runs that return from another gateway"
            raise Failure(
                ledger.UNAVAILABLE,
                f"the gateway has the ledgers of {open_runs}, which is all that it may{suffix}; {address.run} waits for one "
                "of them to end, or for an administrator to raise gateway.maxRuns in the chart's values, and "
                "postgresql.parameters.max_connections with it",
            )
        try:
            url, budget = service.all_runs.url(address.namespace), service.all_runs.budgets[address.namespace]
            return Served(url, self._run, _directions(directions), self._digest, budget, epoch)
        except BaseException:
            service.open.leave(address.namespace)
            raise

    def _answer(self, request: ledger.Request) -> ledger.Answer:
        match request:
            case ledger.OpenLedger(directions=directions, epoch=epoch):
                self._release()
                assert self._address is not None  # its token was checked
                self._storage = self._open(self._address, directions, epoch)
                return ledger.LedgerOpened(self._storage.epoch)
            case ledger.CloseLedger():
                self._release()
                return ledger.Written()
            case ledger.ReadAttempts(after=after, order=order, most=most):
                attempts = _opened(self._archive().attempts_after(self._run, self._digest, after, order, most))
                return ledger.AttemptsLoaded(
                    tuple(
                        ledger.StoredAttempt(attempt.request, attempt.outcome, attempt.place, "{}") for attempt in attempts
                    ),
                    "{}",
                )
            case ledger.ReadReports(after=after):
                page = _opened(self._archive().reports_after(self._run, self._digest, after))
                return ledger.ReportsLoaded(tuple(page.rows), page.more)
        storage = self._storage
        if storage is None:
            raise Failure(ledger.UNOPENED, f"the ledger of {self._run} was not opened on this connection")
        match request:
            case ledger.LoadAttempts(after=after):
                loaded, study_attributes = storage.page(after, ledger.PAGE_BYTES)
                stored = (
                    ledger.StoredAttempt(attempt.request, attempt.outcome, attempt.place, json.dumps(attempt.optuna))
                    for attempt in loaded
                )
                return ledger.AttemptsLoaded(tuple(stored), study_attributes)
            case ledger.LoadReports(after=after):
                page = storage.reports(after)
                return ledger.ReportsLoaded(tuple(page.rows), page.more)
            case ledger.WriteReports(reports=reports, deleted=deleted):
                storage.report(reports, deleted)
            case ledger.BeginAttempt():
                storage.begin(
                    Attempt(self._checked(request.request), optuna=_object(request.optuna)),
                    _optional_object(request.study_attributes),
                )
            case ledger.DrawAttempt():
                storage.draw(
                    Attempt(self._checked(request.request), optuna=_object(request.optuna)),
                    _optional_object(request.study_attributes),
                )
            case ledger.FinishAttempt():
                attempt = Attempt(self._checked(request.request), request.outcome, optuna=_object(request.optuna))
                storage.finish(attempt, _optional_object(request.study_attributes))
            case ledger.WriteStatus(status=status):
                storage.describe({labels.LEDGER_STATUS: records.to_dict(self._checked(status))})
            case ledger.ReadColumn(name=name):
                if name not in _COLUMNS:
                    raise Failure(ledger.INVALID, f"a run has no {name!r:.40}")
                column = storage.described(name)
                return ledger.ColumnRead("" if column is None else json.dumps(column))
        return ledger.Written()

    def _archive(self) -> archive.Archive:
        """The runs of the namespace, for a read without the lock."""
        assert self._address is not None  # its token was checked
        runs = self._service.all_runs.of(self._address.namespace)
        if runs is None:
            raise InvalidToken
        return runs

    def _checked(self, record: R) -> R:
        """Return a record, checked to be of this run."""
        if record.run != self._run:
            raise Failure(ledger.REFUSED, _REFUSAL)
        return record


def _opened(read: T | None) -> T:
    """Return what was read. Raises InvalidToken if the token no longer opens the run."""
    if read is None:
        raise InvalidToken
    return read


def _check_status(status: RunStatus, size: int) -> None:
    """Refuse a status that is too large for lists of all runs, or whose times would outlast every deadline."""
    if size > _MAX_STATUS:
        raise Failure(ledger.TOO_LARGE, f"a run's status may have {_MAX_STATUS} bytes, not {size}")
    times = (status.created, status.started, status.updated, status.ended, status.worked)
    if any(moment is not None and not 0 <= moment <= time.time() + _AHEAD for moment in times):
        raise Failure(ledger.INVALID, "a run's status has a time that is in the future, or none at all")


def _check_records(
    request: ledger.BeginAttempt | ledger.DrawAttempt | ledger.FinishAttempt | ledger.WriteReports,
) -> None:
    """Refuse records that are larger than any that a slot accepts from a trial."""
    written: Iterable[Any]
    if isinstance(request, ledger.WriteReports):
        written = request.reports
        if max(len(request.reports), len(request.deleted)) > ledger.MAX_BATCH:
            raise Failure(ledger.TOO_LARGE, f"a request may write {ledger.MAX_BATCH:,} reports, and delete as many")
        if not all(0 <= report.time <= time.time() + _AHEAD for report in request.reports):
            raise Failure(ledger.INVALID, "a report has a time that is in the future, or none at all")
    else:
        written = (request.request, request.outcome if isinstance(request, ledger.FinishAttempt) else None)
    for record in written:
        if (size := len(records.to_json(record))) > _MAX_RECORD:
            raise Failure(ledger.TOO_LARGE, f"a {type(record).__name__} may have {_MAX_RECORD:,} bytes, not {size:,}")


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Map errors to failures with codes."""
    try:
        yield
    except InvalidToken as error:
        raise Failure(ledger.REFUSED, _REFUSAL) from error
    except errors.MessageError as error:
        raise Failure(ledger.INVALID, str(error)) from error
    except errors.LedgerError as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        raise Failure(code, str(error)) from error
    except archive.DATABASE_ERRORS as error:
        line = archive.reason(error)
        raise Failure(ledger.UNAVAILABLE, f"the ledger's database does not answer: {line}; all records are safe") from error


def _directions(names: tuple[str, ...]) -> tuple[Literal["minimize", "maximize"], ...]:
    directions: list[Literal["minimize", "maximize"]] = []
    for direction in names:
        if direction == "minimize":
            directions.append("minimize")
        elif direction == "maximize":
            directions.append("maximize")
        else:
            raise Failure(ledger.INVALID, f"an objective is minimized or maximized, not {direction!r:.40}")
    return tuple(directions)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failure(ledger.INVALID, f"a document is no JSON: {errors.first_line(error):.200}") from error
    if not isinstance(value, dict):
        raise Failure(ledger.INVALID, "a document is no JSON object")
    return value


def _optional_object(text: str | None) -> dict[str, Any] | None:
    return None if text is None else _object(text)
