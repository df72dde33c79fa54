"""Attempts and reports in a ledger, and the SELECTs that read them, from SQLite on a laptop and PostgreSQL on a cluster.

Each function gets the function that runs a SELECT from its caller: on a laptop that is Python's own sqlite3, because no
other database library is installed there, and on a cluster it is SQLAlchemy. Requests and outcomes are records of `wire` as
JSON in columns of texts, because PostgreSQL's JSON type rejects texts with a NUL. Other modules of `ledger` create and
write the tables.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trialplane import errors
from trialplane.wire import records, rows
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import TrialState

if TYPE_CHECKING:  # importing it would import pydantic
    from trialplane.job.kinds import Job

VERSION = 4  # of the tables; incremented with every change of them
INTERRUPTED = "interrupted: the controller ended while this attempt ran"

# Runs a SELECT with `:name` for each value, and returns its rows in order.
Select = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]

_OF_RUN = "FROM attempts JOIN runs ON runs.id = attempts.run_id WHERE runs.name = :run"
_SELECT = f"SELECT end_number, request, outcome, NULL {_OF_RUN}"
_SELECT_WITH_OPTUNA = f"SELECT end_number, request, outcome, attempts.optuna {_OF_RUN}"
NO_LIMIT = 10**12  # as a limit of attempts or reports: more than any run has
_PAGE = 2000  # maximum number of attempts or reports of a page
SOURCE_PAGE = 200  # maximum number of attempts on a page of a `storages.Source`
# Codes of errors that mean that a file is damaged or is not a ledger. SQLITE_ERROR is among them, as a missing table has it.
_DAMAGE_CODES = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Attempt in the ledger.

    Attributes:
        request: Request, with only the sampled parameters.
        outcome: Outcome; None while the attempt runs.
        end_number: Number of its end. The ends of a run are numbered in the order in which they were written, from 1. None
            while the attempt runs.
        optuna: Optuna's view of the attempt, as `controller.history` writes it; empty if it was not read.
    """

    request: TrialRequest
    outcome: TrialOutcome | None = None
    end_number: int | None = None
    optuna: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a parameter, including both ends; `log` is set for a logarithmic scale."""

    low: float
    high: float
    log: bool


@dataclasses.dataclass(frozen=True)
class StudyOrder:
    """Order to `controller.export` to make an Optuna study of a run.

    Attributes:
        run: Name of the run and of the study.
        directions: "minimize" or "maximize" per objective.
        metrics: Name of each objective.
        attributes: User attributes of the study.
        url: URL of the database to write the study to; "" for none.
        listener: Without a URL, descriptor of the Unix socket at which optuna-dashboard serves the study.
        ranges: Ranges of the parameters with a normal distribution, by name. Optuna has none, and has drawn a share instead.
    """

    run: str
    directions: tuple[str, ...]
    metrics: tuple[str, ...]
    attributes: Mapping[str, Any]
    url: str = ""
    listener: int = -1
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)


def all_attempts(select: Select, run: str) -> list[Attempt]:
    """Return all attempts, in the order of their starts."""
    return _read(select, f"{_SELECT} ORDER BY number", run=run)


def attempts_of_trial(select: Select, run: str, trial: int) -> list[Attempt]:
    """Return all attempts at one trial, in the order of their starts."""
    return _read(select, f"{_SELECT} AND trial = :trial ORDER BY number", run=run, trial=trial)


def attempt(select: Select, run: str, number: int) -> Attempt:
    """Return the attempt with a number, which must exist."""
    return _read(select, f"{_SELECT} AND number = :number", run=run, number=number)[0]


def running_after(select: Select, run: str, after: int) -> list[Attempt]:
    """Return the running attempts with numbers above `after`, in the order of their numbers."""
    return _read(select, f"{_SELECT} AND end_number IS NULL AND number > :after ORDER BY number", run=run, after=after)


def ended_after(select: Select, run: str, after: int, limit: int = NO_LIMIT) -> tuple[int, list[Attempt]]:
    """Return the attempts whose ends have numbers above `after`.

    Args:
        select: Function that runs a SELECT.
        run: Name of the run.
        after: Number of an end; 0 for the first call.
        limit: Maximum number of attempts.

    Returns:
        The number of the last end, after which the next call continues, and the attempts in the order of their ends.
    """
    ended_attempts = _read(
        select, f"{_SELECT} AND end_number > :after ORDER BY end_number LIMIT :limit", run=run, after=after, limit=limit
    )
    return newest_end_number(ended_attempts, after), ended_attempts


def newest_end_number(attempts: Sequence[Attempt], after: int) -> int:
    """Return the highest number of the ends of attempts, which were read after `after`; `after` if none has ended."""
    return max((attempt.end_number or after for attempt in attempts), default=after)


def attempts_since(select: Select, run: str, after: int = 0) -> list[Attempt]:
    """Return the running attempts and those whose ends have numbers above `after`, by number, with Optuna's view of them."""
    return _read(
        select,
        f"{_SELECT_WITH_OPTUNA} AND (end_number IS NULL OR end_number > :after) ORDER BY number",
        run=run,
        after=after,
    )


class AttemptTexts(NamedTuple):
    """Columns of an attempt in the ledger, see `Attempt`. All but the numbers are JSON.

    Attributes:
        end_number: Number of its end; None while the attempt runs.
        request: Request.
        outcome: Outcome; None while the attempt runs.
        optuna: Optuna's view of the attempt; None if it was not read.
        number: Number of the attempt.
    """

    end_number: int | None
    request: str
    outcome: str | None
    optuna: str | None
    number: int


@dataclasses.dataclass(frozen=True)
class Page:
    """Page of attempts as stored in the ledger.

    Attributes:
        stored: The attempts in their order.
        more: Whether there may be another page.
    """

    stored: Sequence[AttemptTexts]
    more: bool

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts, parsed."""
        return [_attempt(stored.end_number, stored.request, stored.outcome, stored.optuna) for stored in self.stored]


def page(
    select: Select,
    run: str,
    after: int,
    size: int,
    *,
    order: Literal["number", "end_number"] = "number",
    where: str = "",
    optuna: bool = False,
    **values: Any,
) -> Page:
    """Return a page of attempts: the first ones whose texts together reach `size` bytes. For PostgreSQL only.

    The database counts the bytes, so the page takes no more memory than `size` bytes and one attempt.

    Args:
        select: Function that runs a SELECT.
        run: Name of the run.
        after: Value of the column `order` in the last attempt of the page before; -1 for the first page.
        size: Number of bytes.
        order: Column by which the attempts are ordered.
        where: SQL of a further condition, beginning with AND; "" for none.
        optuna: Whether to read Optuna's view of the attempts.
        **values: Values in `where`, by name.
    """
    optuna_column = "attempts.optuna" if optuna else "CAST(NULL AS TEXT)"
    query = f"""
        SELECT end_number, request, outcome, {optuna_column} AS optuna, number {_OF_RUN} AND {order} > :after {where}
        ORDER BY {order} LIMIT :limit
    """
    # Unlike `length`, `octet_length` does not decompress a text that is stored compressed.
    bytes_of = "octet_length(request) + coalesce(octet_length(outcome), 0) + coalesce(octet_length(optuna), 0)"
    columns = "end_number, request, outcome, optuna, number"
    values = {"run": run, "after": after, "limit": _PAGE, **values}
    stored, more = _rows_up_to_size(select, query, columns, order=order, bytes_of=bytes_of, size=size, values=values)
    return Page([AttemptTexts(*row) for row in stored], more)


def pages(select: Select, run: str, size: int, where: str = "", **values: Any) -> Iterator[Attempt]:
    """Yield all attempts that meet a condition, in the order of their numbers. They are read in pages.

    For the arguments see `page`.
    """
    after, more = -1, True
    while more:
        current_page = page(select, run, after=after, size=size, where=where, **values)
        yield from current_page.attempts
        if current_page.stored:
            after = current_page.stored[-1].number
        more = current_page.more


@dataclasses.dataclass(frozen=True)
class Reports:
    """Page of reports, in the order of their marks; `more` is set if there may be another page."""

    rows: list[ReportRow]
    more: bool


def reports(select: Select, run: str, after: int, size: int = 1 << 20, limit: int = _PAGE) -> Reports:
    """Return a page of reports: the first ones whose metrics together reach `size` bytes.

    Reports are committed in the order of their marks. So a reader that continues after the last mark that it has read
    misses no report, except those that were deleted in the meantime.

    Args:
        select: Function that runs a SELECT.
        run: Name of the run.
        after: Mark of the last report of the page before; 0 for the first page.
        size: Number of bytes.
        limit: Maximum number of reports.
    """
    query = """
        SELECT mark, trial, attempt, number, step, metrics, moment FROM reports
        WHERE run_id = (SELECT id FROM runs WHERE name = :run) AND mark > :after ORDER BY mark LIMIT :limit
    """
    columns = "mark, trial, attempt, number, step, metrics, moment"
    bytes_of = "length(metrics)"  # counts characters, but the texts are ASCII
    values = {"run": run, "after": after, "limit": min(limit, _PAGE)}
    stored, more = _rows_up_to_size(select, query, columns, order="mark", bytes_of=bytes_of, size=size, values=values)
    report_rows: list[ReportRow] = []
    for mark, trial, attempt, number, step, metrics, moment in stored:
        values_by_metric = {name: float(value) for name, value in json.loads(metrics).items()}
        report_rows.append(ReportRow(mark, trial, attempt, number, step, values_by_metric, moment))
    return Reports(report_rows, more)


def _rows_up_to_size(
    select: Select, query: str, columns: str, *, order: str, bytes_of: str, size: int, values: Mapping[str, Any]
) -> tuple[list[Sequence[Any]], bool]:
    """Return the first rows of a query that together reach `size` bytes, and whether more rows may follow.

    The last one is the row with which the total reaches or exceeds `size`, so there is at least one row if the query has
    any.

    Args:
        select: Function that runs a SELECT.
        query: SQL of at most `limit` ordered rows.
        columns: Columns to return.
        order: Column that the rows are ordered by.
        bytes_of: SQL expression of the bytes of a row.
        size: Number of bytes.
        values: Values in the query, including `limit`.
    """
    total = f"sum({bytes_of}) OVER (ORDER BY {order})"  # bytes of a row and all rows before it
    measured = f"SELECT *, {bytes_of} AS row_bytes, {total} AS total_bytes FROM ({query}) AS queried"
    page_query = f"SELECT {columns}, total_bytes FROM ({measured}) AS measured WHERE total_bytes - row_bytes < :size"
    rows_with_totals = select(f"{page_query} ORDER BY {order}", {**values, "size": size})
    page_bytes = rows_with_totals[-1][-1] if rows_with_totals else 0
    more = len(rows_with_totals) == values["limit"] or page_bytes >= size
    return [row[:-1] for row in rows_with_totals], more  # without `total_bytes`


def trial_row(job: Job, attempt: Attempt, alive: bool) -> TrialRow:
    """Return an attempt as a row of the run's table.

    Args:
        job: Job, which defines the objectives and the constrained metrics.
        attempt: Attempt to convert.
        alive: Whether a controller works on the run. Without a controller, an attempt that has not ended is LOST.
    """
    row = rows.row(job, attempt.request, attempt.request.params, attempt.outcome)
    if attempt.outcome is None and not alive:
        return dataclasses.replace(row, state=TrialState.LOST, message=INTERRUPTED)
    return row


def check_version(version: int, ledger: str) -> None:
    """Check the version of the tables of a ledger.

    Raises:
        LedgerCorrupt: They are of another version.
    """
    if version != VERSION:
        raise errors.LedgerCorrupt(
            f"the ledger {ledger} has tables of version {version}, and this trialplane reads version {VERSION}; nothing was "
            "changed. Use the trialplane that wrote it, or delete it and submit again"
        )


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error of SQLite means that the file is damaged or is not a ledger. Other errors may be temporary."""
    code = getattr(error, "sqlite_errorcode", None)  # missing if Python could not decode SQLite's data
    return code is None or code & 0xFF in _DAMAGE_CODES  # the low byte is the code, and the others are details


def _read(select: Select, query: str, **values: Any) -> list[Attempt]:
    """Run a SELECT that begins with `_SELECT` or `_SELECT_WITH_OPTUNA`, and return its attempts."""
    return [_attempt(*stored) for stored in select(query, values)]


def _attempt(end_number: int | None, request: str, outcome: str | None, optuna: str | None) -> Attempt:
    """Parse the columns of an attempt."""
    return Attempt(
        request=records.from_json(TrialRequest, request),
        outcome=None if outcome is None else records.from_json(TrialOutcome, outcome),
        end_number=end_number,
        optuna={} if optuna is None else json.loads(optuna),
    )
