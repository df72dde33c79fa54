"""Reads a run's ledger on a laptop, which is a SQLite file. Reading never changes the file.

A controller that was killed leaves a write-ahead log beside the file, and a reader must read that too. Every function raises
LedgerCorrupt if the file is damaged, is not a ledger or is of another version, and LedgerUnavailable if it cannot be read.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from trialplane import errors
from trialplane.job.kinds import Job
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import Attempt, Select
from trialplane.wire.records import ReportRow, TrialRow


def attempts(ledger: Path, run: str, job: Job, alive: bool) -> list[TrialRow]:
    """Return all attempts in a ledger, in the order of their starts; none if there is no ledger yet.

    Args:
        ledger: The SQLite file.
        run: Name of the run.
        job: Job, which defines the objectives and the constrained metrics.
        alive: Whether a controller works on the run. Without a controller, an attempt that has not ended is LOST.
    """
    with _open(ledger, run, alive) as select:
        return [reading.trial_row(job, attempt, alive) for attempt in reading.all_attempts(select, run)]


def has_ended(ledger: Path, run: str, trial: int, attempt: int) -> bool:
    """Return whether an attempt at a trial has ended.

    Args:
        ledger: The SQLite file.
        run: Name of the run.
        trial: Number of the trial.
        attempt: Number of the attempt among those at the trial.
    """
    with _open(ledger, run, alive=True) as select:
        return any(
            candidate.request.attempt == attempt and candidate.outcome is not None
            for candidate in reading.attempts_of_trial(select, run, trial)
        )


def ended_attempts(ledger: Path, run: str, after: int) -> tuple[int, list[Attempt]]:
    """Return the attempts whose ends have numbers above `after`.

    Args:
        ledger: The SQLite file.
        run: Name of the run.
        after: Number of an end; 0 for the first call.

    Returns:
        The number of the last end, after which the next call continues, and the attempts in the order of their ends.
    """
    with _open(ledger, run, alive=True) as select:
        return reading.ended_after(select, run, after)


def attempts_since(ledger: Path, run: str, alive: bool, after: int) -> list[Attempt]:
    """Return the running attempts and those whose ends have numbers above `after`, by number, with Optuna's view of them."""
    with _open(ledger, run, alive) as select:
        return reading.attempts_since(select, run, after)


def reports(ledger: Path, run: str, alive: bool, after: int, limit: int) -> list[ReportRow]:
    """Return the first `limit` reports with marks above `after`, in the order of their marks."""
    report_rows: list[ReportRow] = []
    with _open(ledger, run, alive) as select:
        more = True
        while more and limit > len(report_rows):
            mark = report_rows[-1].mark if report_rows else after
            page = reading.reports(select, run, mark, limit=limit - len(report_rows))
            report_rows += page.rows
            more = page.more
    return report_rows


@contextlib.contextmanager
def _open(ledger: Path, run: str, alive: bool) -> Iterator[Select]:
    """Open a ledger, and yield the function that runs a SELECT. It returns no rows if the ledger is missing or empty.

    Args:
        ledger: The SQLite file.
        run: Name of the run, for messages.
        alive: Whether a controller works on the run, so that the file may change.
    """
    with _map_errors(ledger, run):
        if not ledger.exists():
            yield lambda query, values: []
            return
        if not ledger.is_file():
            raise ValueError("it is not a regular file")  # opening a pipe would block
        # SQLite creates a write-ahead log even for a reader. `immutable` prevents that, but it also ignores an existing log,
        # so it is allowed only if nobody writes the file and the log is missing or empty.
        log = ledger.with_name(ledger.name + "-wal")
        is_immutable = not alive and not (log.exists() and log.stat().st_size)
        uri = f"{ledger.absolute().as_uri()}?mode=ro{'&immutable=1' if is_immutable else ''}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:  # the controller has just created the file
                yield lambda query, values: []
                return
            if "schema_version" not in tables:
                reading.check_version(0, str(ledger))
            reading.check_version(connection.execute("SELECT version FROM schema_version").fetchone()[0], str(ledger))
            yield lambda query, values: connection.execute(query, values).fetchall()


@contextlib.contextmanager
def _map_errors(ledger: Path, run: str) -> Iterator[None]:
    """Raise errors of SQLite and of the system, and of records that cannot be read, as errors of trialplane."""
    try:
        yield
    except OSError as error:
        raise errors.LedgerUnavailable(f"the ledger of {run} cannot be read ({error.strerror}): {ledger}") from error
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, sqlite3.Error) and not reading.is_damage(error):
            raise errors.LedgerUnavailable(
                f"the ledger of {run} cannot be read now ({error}): {ledger}; try again, or see which process holds it"
            ) from error
        raise errors.LedgerCorrupt(
            f"the ledger of {run} is damaged or not a ledger ({type(error).__name__}: {error}): {ledger}\n"
            f"Nothing was changed. Restore a good copy, save what `sqlite3 {ledger} .recover` finds, or move "
            f"{ledger.parent} away and submit under the same name"
        ) from error
