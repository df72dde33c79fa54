"""The protocol by which a controller uses its ledger through the gateway: requests, answers, and codes of failures.

A request is one POST to `path(namespace_path, run)` with the run's token in the header `cluster.TOKEN_HEADER`, and one
transaction. Its body is a message of `messages.encode`, and so is the body of its answer, with status 200. The first request
of a connection is `OpenLedger`. It locks the run, as a controller's own connection to the database would, until the
connection ends. Only the requests in `Read` need no lock. Each request may be repeated. A failure is
`{"error": text, "code": code}` with the status in `STATUSES`; programs read the code, and people read the text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re

from trialplane.wire import messages
from trialplane.wire.messages import Direction
from trialplane.wire.records import ReportRow, RunStatus, TrialOutcome, TrialRequest

MAX_BYTES = 16 << 20  # limit of a request's body
MAX_BATCH = 1000  # limit of the reports, and of the marks of deleted reports, in a request
PAGE_BYTES = 4 << 20  # limit of the attempts in an answer; an answer has at least one attempt even if it is larger

_ADDRESS = re.compile(r"/namespaces/([^/]+)/runs/([^/]+)/ledger")
_NAME = re.compile("[a-z0-9-]{1,63}")  # every name of a run matches

# Codes of failures.
REFUSED = "refused"  # the token does not open this run, or not any more
LOCKED = "locked"  # another connection holds the run's lock
FENCED = "fenced"  # a newer controller has opened the run
UNOPENED = "unopened"  # the connection did not begin with OpenLedger
CORRUPT = "corrupt"  # the database or its record of the run is unusable
INVALID = "invalid"  # the request is not a valid message
TOO_LARGE = "too_large"  # the request's body is over the limit
FULL = "full"  # the budget of the namespace is used up
SLOW = "slow"  # the request did not arrive in time
BUSY = "busy"  # the run has too many connections
UNAVAILABLE = "unavailable"  # the database does not answer
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


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal digits. The ledger stores the digest instead of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclasses.dataclass(frozen=True)
class Address:
    """Address of a run: its namespace and its name."""

    namespace: str
    run: str


def namespace_path(namespace: str) -> str:
    """Return the gateway's path for a namespace. The environment of a controller has the path of its namespace."""
    return f"/namespaces/{namespace}"


def path(namespace_path: str, run: str) -> str:
    """Return the gateway's path for the ledger of a run."""
    return f"{namespace_path}/runs/{run}/ledger"


def address(path: str) -> Address | None:
    """Return the address of the run whose ledger has this path. None if no ledger can have it."""
    match = _ADDRESS.fullmatch(path)
    return None if match is None or not is_run_name(match[2]) else Address(match[1], match[2])


def is_run_name(run: str) -> bool:
    """Whether a text may be the name of a run in a path. The check is coarse: the ledger refuses unknown runs."""
    return _NAME.fullmatch(run) is not None


@dataclasses.dataclass(frozen=True)
class OpenLedger:
    """Lock the run, and fence its former controllers.

    Attributes:
        directions: Direction of each objective: "minimize" or "maximize".
        epoch: Epoch of a controller that reconnects. None for a new controller, which fences all others.
    """

    directions: tuple[str, ...]
    epoch: int | None = None


@dataclasses.dataclass(frozen=True)
class CloseLedger:
    """Release the lock. The answer follows the release."""


@dataclasses.dataclass(frozen=True)
class LoadAttempts:
    """Read the attempts with numbers above `after`, as many as fit into an answer. -1 reads from the first one."""

    after: int


@dataclasses.dataclass(frozen=True)
class LoadReports:
    """Read the reports with marks above `after`, as many as fit into an answer."""

    after: int


@dataclasses.dataclass(frozen=True)
class ReadAttempts:
    """Read attempts without the run's lock, which another connection may hold.

    Attributes:
        after: Number or, for order "end_number", number of an end. The answer starts with the attempt after it.
        order: "number" for all attempts by number, "end_number" for ended ones in the order of their ends, "running" for
            running ones by number.
        most: Maximum number of attempts in the answer.
    """

    after: int
    order: str
    most: int


@dataclasses.dataclass(frozen=True)
class ReadReports:
    """Read the reports with marks above `after` without the run's lock."""

    after: int


@dataclasses.dataclass(frozen=True)
class BeginAttempt:
    """Write an attempt before its start.

    Attributes:
        request: Request for the attempt.
        optuna: Optuna's view of the attempt, as JSON.
        sampler_state: State of the samplers, as JSON; None if it has not changed.
    """

    request: TrialRequest
    optuna: str
    sampler_state: str | None


@dataclasses.dataclass(frozen=True)
class DrawAttempt:
    """Write the parameters that a running attempt has drawn so far. For the fields, see `BeginAttempt`."""

    request: TrialRequest
    optuna: str
    sampler_state: str | None


@dataclasses.dataclass(frozen=True)
class FinishAttempt:
    """Write the end of an attempt. For the fields, see `BeginAttempt`."""

    request: TrialRequest
    outcome: TrialOutcome
    optuna: str
    sampler_state: str | None


@dataclasses.dataclass(frozen=True)
class WriteReports:
    """Write reports, and delete earlier ones that have these marks."""

    reports: tuple[ReportRow, ...]
    deleted: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class WriteStatus:
    """Write the run's status. A controller may write no other column of the run."""

    status: RunStatus


@dataclasses.dataclass(frozen=True)
class ReadColumn:
    """Read a column of the run, by its name in `labels`."""

    name: str


@dataclasses.dataclass(frozen=True)
class LedgerOpened:
    """The answer to `OpenLedger`: the connection holds the run's lock. `epoch` is the epoch of its controller."""

    epoch: int


@dataclasses.dataclass(frozen=True)
class StoredAttempt:
    """An attempt in the ledger; see `attempts.Attempt`. `optuna` is JSON."""

    request: TrialRequest
    outcome: TrialOutcome | None
    end_number: int | None
    optuna: str


@dataclasses.dataclass(frozen=True)
class AttemptsLoaded:
    """A page of attempts; empty after the last one. The first page of `LoadAttempts` has the samplers' state, as JSON."""

    attempts: tuple[StoredAttempt, ...]
    sampler_state: str


@dataclasses.dataclass(frozen=True)
class ReportsLoaded:
    """A page of reports in the order of their marks. `more` is whether others may follow."""

    reports: tuple[ReportRow, ...]
    more: bool


@dataclasses.dataclass(frozen=True)
class Written:
    """The answer to a write, which is committed, or to `CloseLedger`."""


@dataclasses.dataclass(frozen=True)
class ColumnRead:
    """The answer to `ReadColumn`: the column's value as JSON, or "" if it is empty."""

    document: str


Write = BeginAttempt | DrawAttempt | FinishAttempt | WriteReports | WriteStatus
Read = ReadAttempts | ReadReports
Request = OpenLedger | CloseLedger | LoadAttempts | LoadReports | Read | Write | ReadColumn
Answer = LedgerOpened | AttemptsLoaded | ReportsLoaded | Written | ColumnRead
REQUEST = Direction[Request]("a controller", Request)
ANSWER = Direction[Answer]("the gateway", Answer)
encode, decode = messages.encode, messages.decode
