"""The attempts and reports in a ledger, and how they are read: one SQL for both databases, which laptop and gateway share.

A reader brings its own connection, as a function that runs a SELECT: the laptop has no library for databases but Python's.
Documents are records of the wire as text; PostgreSQL reads no JSON in which a text has a NUL. `ledger` makes the
tables and writes them.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trialplane import errors
from trialplane.wire import records, rows
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import TrialState

if TYPE_CHECKING:  # the value is the caller's: this room itself needs no pydantic
    from trialplane.job.kinds import Job

VERSION = 3  # of the tables; counted up with every change of them
INTERRUPTED = "interrupted: the controller ended while this attempt ran"

# Runs a SELECT with `:name` for each value; the rows in order.
Select = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]

_OF_RUN = "FROM attempts JOIN runs ON runs.id = attempts.run_id WHERE runs.name = :run"
_PLAIN = f"SELECT place, request, outcome, NULL {_OF_RUN}"
_WHOLE = f"SELECT place, request, outcome, attempts.optuna {_OF_RUN}"
NO_LIMIT = 10**12  # reports: more than a run has
_PAGE = 2000  # attempts, or reports, of one page at most
# What a file holds that is damaged, or another program's; SQLite has no code of its own for a missing table.
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One attempt as the ledger holds it.

    Attributes:
        request: the request; of the parameters only those that were drawn.
        outcome: how it ended; None while it has not.
        place: among the ends of the run, in the order they were written, from 1 on; None while it has not ended.
        optuna: Optuna's view of it, as `controller.history` writes it; empty where it was not read.
    """

    request: TrialRequest
    outcome: TrialOutcome | None = None
    place: int | None = None
    optuna: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a parameter, both ends included; `log` for a logarithmic scale."""

    low: float
    high: float
    log: bool


@dataclasses.dataclass(frozen=True)
class Order:
    """An Optuna study that is to be made of a run, for `controller.export`.

    Attributes:
        run: its name, which names the study.
        directions: "minimize" or "maximize" per objective.
        metrics: name of each objective.
        attributes: of the study.
        url: of the database that it is written into; "" for none.
        listener: descriptor of the Unix socket at which optuna-dashboard serves it, when there is no URL.
        ranges: of the parameters, by name, whose values Optuna has drawn in a form of its own: the normal ones.
    """

    run: str
    directions: tuple[str, ...]
    metrics: tuple[str, ...]
    attributes: Mapping[str, Any]
    url: str = ""
    listener: int = -1
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)


def every(select: Select, run: str) -> list[Attempt]:
    """Every attempt, in the order they started."""
    return _read(select, f"{_PLAIN} ORDER BY number", run=run)


def at(select: Select, run: str, trial: int) -> list[Attempt]:
    """Every attempt at one trial; the database chooses them, for a study may have 100,000."""
    return _read(select, f"{_PLAIN} AND trial = :trial ORDER BY number", run=run, trial=trial)


def started(select: Select, run: str, after: int, most: int) -> list[Attempt]:
    """The first attempts with numbers above `after`, `most` of them at most, by number."""
    return _read(select, f"{_PLAIN} AND number > :after ORDER BY number LIMIT :most", run=run, after=after, most=most)


def ended(select: Select, run: str, after: int, most: int = 1 << 60) -> tuple[int, list[Attempt]]:
    """The attempts that ended since the one at the place `after`, in the order of their ends, and the place of the last.

    Args:
        select: reads.
        run: its name.
        after: place; 0 at first.
        most: attempts that are returned.
    """
    ended_attempts = _read(
        select, f"{_PLAIN} AND place > :after ORDER BY place LIMIT :most", run=run, after=after, most=most
    )
    return newest_place(ended_attempts, after), ended_attempts


def newest_place(attempts: Sequence[Attempt], after: int) -> int:
    """The place to continue from, after reading these from `after` on."""
    return max((attempt.place or after for attempt in attempts), default=after)  # those that run have none


def whole(select: Select, run: str, after: int = 0) -> list[Attempt]:
    """The attempts that run and those that ended since the place `after`, by number, with Optuna's view of them."""
    return _read(select, f"{_WHOLE} AND (place IS NULL OR place > :after) ORDER BY number", run=run, after=after)


@dataclasses.dataclass(frozen=True)
class Page:
    """Attempts as the ledger stores them, in texts, and whether more follow.

    Attributes:
        stored: `place`, `request`, `outcome`, `optuna` and `number` of each; `optuna` is None where it was not asked for.
        more: whether there may be another page.
    """

    stored: Sequence[Sequence[Any]]
    more: bool

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts, parsed."""
        return [_attempt(*stored[:4]) for stored in self.stored]


def page(
    select: Select,
    run: str,
    after: int,
    size: int,
    *,
    order: Literal["number", "place"] = "number",
    where: str = "",
    optuna: bool = False,
    **values: Any,
) -> Page:
    """The attempts after one, as many as it takes for their texts to reach `size` bytes, in PostgreSQL.

    The database counts, so no more than that and one attempt are ever in memory.

    Args:
        select: reads.
        run: its name.
        after: number, or place, of the last attempt of the page before; -1 at first.
        size: bytes.
        order: what the attempts are ordered by, and `after` is one of.
        where: condition in SQL that they must meet.
        optuna: whether to read Optuna's view of them.
        **values: of the condition.
    """
    view = "attempts.optuna" if optuna else "CAST(NULL AS TEXT)"
    query = f"""
        SELECT place, request, outcome, {view} AS optuna, number {_OF_RUN} AND {order} > :after {where}
        ORDER BY {order} LIMIT :limit
    """
    # Of a text that is stored compressed this takes no decompression, as `length` does.
    bytes_of = "octet_length(request) + coalesce(octet_length(outcome), 0) + coalesce(octet_length(optuna), 0)"
    columns = "place, request, outcome, optuna, number"
    values = {"run": run, "after": after, "limit": _PAGE, **values}
    return Page(*_filled(select, query, columns, order, bytes_of, size, values))


def pages(select: Select, run: str, size: int, where: str = "", **values: Any) -> Iterator[Attempt]:
    """All attempts that meet a condition, by number; see `page`, of which one is in memory at a time."""
    after, more = -1, True
    while more:
        one_page = page(select, run, after, size, where=where, **values)
        yield from one_page.attempts
        after, more = one_page.stored[-1][-1] if one_page.stored else after, one_page.more


@dataclasses.dataclass(frozen=True)
class Reports:
    """Reports in order of their marks, and whether more may follow."""

    rows: list[ReportRow]
    more: bool


def reports(select: Select, run: str, after: int, size: int = 1 << 20, limit: int = _PAGE) -> Reports:
    """The reports with marks above one, as many as it takes for their metrics to reach `size` bytes.

    Marks grow in the order in which reports are committed. So a reader that continues after its last mark misses none,
    except those that were thinned out meanwhile.

    Args:
        select: reads.
        run: its name.
        after: mark of the last report of the page before; 0 at first.
        size: bytes.
        limit: number of reports.
    """
    query = """
        SELECT mark, trial, attempt, number, step, metrics, moment FROM reports
        WHERE run_id = (SELECT id FROM runs WHERE name = :run) AND mark > :after ORDER BY mark LIMIT :limit
    """
    columns = "mark, trial, attempt, number, step, metrics, moment"
    bytes_of = "length(metrics)"  # which are stored in ASCII
    values = {"run": run, "after": after, "limit": min(limit, _PAGE)}
    stored, more = _filled(select, query, columns, "mark", bytes_of, size, values)
    report_rows = [
        ReportRow(mark, trial, attempt, number, step, _metrics(metrics), moment)
        for mark, trial, attempt, number, step, metrics, moment in stored
    ]
    return Reports(report_rows, more)


def _filled(
    select: Select, query: str, columns: str, order: str, bytes_of: str, size: int, values: Mapping[str, Any]
) -> tuple[list[Sequence[Any]], bool]:
    """Return the first rows of a query that reach `size` bytes together, and whether more may follow.

    Args:
        select: reads.
        query: SQL of at most `limit` rows, in order.
        columns: those that are returned.
        order: column that the rows are ordered by.
        bytes_of: SQL of the bytes of a row.
        size: bytes.
        values: of the query, among them `limit`.
    """
    counted = f"SELECT *, {bytes_of} AS own, sum({bytes_of}) OVER (ORDER BY {order}) AS upto FROM ({query}) AS found"
    chosen = f"SELECT {columns}, upto FROM ({counted}) AS counted WHERE upto - own < :size ORDER BY {order}"
    stored = select(chosen, {**values, "size": size})
    return [row[:-1] for row in stored], len(stored) == values["limit"] or (bool(stored) and stored[-1][-1] >= size)


def row(job: Job, attempt: Attempt, alive: bool) -> TrialRow:
    """An attempt as a row.

    Args:
        job: defines which metrics are objectives and which are constrained.
        attempt: that started.
        alive: whether a controller works on the run. Without one an attempt that has not ended never will: it is LOST.
    """
    trial_row = rows.row(job, attempt.request, attempt.request.params, attempt.outcome)
    if attempt.outcome is None and not alive:
        return dataclasses.replace(trial_row, state=TrialState.LOST, message=INTERRUPTED)
    return trial_row


def check_version(version: int, ledger: str) -> None:
    """Refuse tables of another version.

    Raises:
        LedgerCorrupt: they are.
    """
    if version != VERSION:
        raise errors.LedgerCorrupt(
            f"the ledger {ledger} has tables of version {version}, and this trialplane reads version {VERSION}; nothing was "
            "changed. Use the trialplane that wrote it, or delete it and submit again"
        )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite found that a file is damaged, or no ledger; else it cannot be used at the moment."""
    code = getattr(error, "sqlite_errorcode", None)  # missing where Python itself could not decode SQLite's data
    return code is None or code & 0xFF in _DAMAGE


def _metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in json.loads(text).items()}


def _read(select: Select, query: str, **values: Any) -> list[Attempt]:
    return [_attempt(*stored) for stored in select(query, values)]


def _attempt(place: int | None, request: str, outcome: str | None, optuna: str | None) -> Attempt:
    return Attempt(
        records.from_json(TrialRequest, request),
        None if outcome is None else records.from_json(TrialOutcome, outcome),
        place,
        {} if optuna is None else json.loads(optuna),
    )
