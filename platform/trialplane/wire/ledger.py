"""The ledger through the gateway: what a controller requests, what it is answered, and how failures are named.

A request is one POST to `path(place, run)` with the run's token in the header `cluster.TOKEN_HEADER`, and one transaction.
Its body is a message as `messages` writes them, and so is the answer's, with status 200. Every request belongs to the
connection on which `OpenLedger` came first, but for those of `Read`: while that is open it holds the run's lock, as a
controller's own connection to the database would, and a connection that breaks releases it. All requests may come twice. A
failure is `{"error": text, "code": code}` with the status that `STATUSES` gives the code; nobody reads the text but people.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re

from trialplane.wire import messages
from trialplane.wire.messages import Direction
from trialplane.wire.records import ReportRow, RunStatus, TrialOutcome, TrialRequest

MAX_BYTES = 16 << 20  # of a request's body
MAX_BATCH = 1000  # reports, or marks of deleted ones, in a request
PAGE_BYTES = 4 << 20  # of attempts in an answer, but at least one

_ADDRESS = re.compile(r"/namespaces/([^/]+)/runs/([^/]+)/ledger")
_NAME = re.compile("[a-z0-9-]{1,63}")  # at least that: of a run

# Codes of failures.
REFUSED = "refused"  # the token is not this run's, or no longer
LOCKED = "locked"  # another connection holds the run's lock
FENCED = "fenced"  # a later controller has opened the run
UNOPENED = "unopened"  # no OpenLedger came first on this connection
CORRUPT = "corrupt"  # the database, or the run in it, cannot be used
INVALID = "invalid"  # the request cannot be read
TOO_LARGE = "too_large"  # its body
FULL = "full"  # the runs of its namespace keep as much as they may
SLOW = "slow"  # it took too long to arrive
BUSY = "busy"  # the run has too many connections
UNAVAILABLE = "unavailable"  # the database is away
STATUSES = {
    INVALID: 400,
    REFUSED: 403,
    SLOW: 408,
    LOCKED: 409,
    FENCED: 409,
    UNOPENED: 409,
    TOO_LARGE: 413,
    CORRUPT: 422,
    BUSY: 429,
    UNAVAILABLE: 503,
    FULL: 507,
}


def hashed(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal digits: the form in which the ledger keeps it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclasses.dataclass(frozen=True)
class Address:
    """A run among those of all namespaces."""

    namespace: str
    run: str


def namespace_path(namespace: str) -> str:
    """Return the path at the gateway of a namespace; a controller has that of its own in its environment."""
    return f"/namespaces/{namespace}"


def path(namespace_path: str, run: str) -> str:
    """Return the path at the gateway of a run's ledger."""
    return f"{namespace_path}/runs/{run}/ledger"


def address(path: str) -> Address | None:
    """Return the run whose ledger has this path; None for any other path."""
    match = _ADDRESS.fullmatch(path)
    return None if match is None or not is_name(match[2]) else Address(match[1], match[2])


def is_name(run: str) -> bool:
    """Whether a run could have that name, as far as an address needs to know."""
    return _NAME.fullmatch(run) is not None


@dataclasses.dataclass(frozen=True)
class OpenLedger:
    """Lock the run, and fence its former controllers.

    Attributes:
        directions: "minimize" or "maximize" per objective.
        epoch: the controller's, from before its connection broke; None fences every other controller.
    """

    directions: tuple[str, ...]
    epoch: int | None = None


@dataclasses.dataclass(frozen=True)
class CloseLedger:
    """Release the lock, before it is answered."""


@dataclasses.dataclass(frozen=True)
class LoadAttempts:
    """Read attempts with numbers above `after`, as many as fit into an answer; -1 for the first ones."""

    after: int


@dataclasses.dataclass(frozen=True)
class LoadReports:
    """Read reports with marks above `after`, as many as fit into an answer."""

    after: int


@dataclasses.dataclass(frozen=True)
class ReadAttempts:
    """Read attempts without the run's lock, while another connection may hold it.

    Attributes:
        after: number of an attempt, or place of its end; the first ones follow it.
        order: "number", "place" for those that have ended, or "running" for the others, by number.
        most: attempts in the answer, and no more than fit.
    """

    after: int
    order: str
    most: int


@dataclasses.dataclass(frozen=True)
class ReadReports:
    """Read reports with marks above `after` without the run's lock."""

    after: int


@dataclasses.dataclass(frozen=True)
class BeginAttempt:
    """Write an attempt that is about to start; here and in the next two `optuna` and `study_attributes` are JSON.

    Attributes:
        request: the attempt's.
        optuna: Optuna's view of it.
        study_attributes: what samplers store beside the trials; None if unchanged.
    """

    request: TrialRequest
    optuna: str
    study_attributes: str | None


@dataclasses.dataclass(frozen=True)
class DrawAttempt:
    """Write what an attempt that runs has drawn so far."""

    request: TrialRequest
    optuna: str
    study_attributes: str | None


@dataclasses.dataclass(frozen=True)
class FinishAttempt:
    """Write the end of an attempt."""

    request: TrialRequest
    outcome: TrialOutcome
    optuna: str
    study_attributes: str | None


@dataclasses.dataclass(frozen=True)
class WriteReports:
    """Write reports, and delete earlier ones by their marks."""

    reports: tuple[ReportRow, ...]
    deleted: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class WriteStatus:
    """Write the run's status, the one fact about it that a controller may write."""

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class ReadColumn:
    """Read one of the run's facts, by the name of its column in `labels`."""

    name: str


@dataclasses.dataclass(frozen=True)
class LedgerOpened:
    """The connection holds the run's lock; `epoch` is this controller's."""

    epoch: int


@dataclasses.dataclass(frozen=True)
class StoredAttempt:
    """An attempt as the ledger holds it; see `attempts.Attempt`. `optuna` is JSON."""

    request: TrialRequest
    outcome: TrialOutcome | None
    place: int | None
    optuna: str


@dataclasses.dataclass(frozen=True)
class AttemptsLoaded:
    """Attempts in order of their numbers, none when there are no more; in the first page with what samplers store."""

    attempts: tuple[StoredAttempt, ...]
    study_attributes: str


@dataclasses.dataclass(frozen=True)
class ReportsLoaded:
    """Reports in order of their marks; `more` is whether there may be others after them."""

    reports: tuple[ReportRow, ...]
    more: bool


@dataclasses.dataclass(frozen=True)
class Written:
    """It is committed, or released."""


@dataclasses.dataclass(frozen=True)
class ColumnRead:
    """The fact as JSON, or "" if there is none."""

    document: str


Write = BeginAttempt | DrawAttempt | FinishAttempt | WriteReports | WriteStatus
Read = ReadAttempts | ReadReports
Request = OpenLedger | CloseLedger | LoadAttempts | LoadReports | Read | Write | ReadColumn
Answer = LedgerOpened | AttemptsLoaded | ReportsLoaded | Written | ColumnRead
REQUEST = Direction[Request]("a controller", Request)
ANSWER = Direction[Answer]("the gateway", Answer)
encode, decode = messages.encode, messages.decode
