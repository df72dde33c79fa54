"""Reads a run's ledger on the laptop: the attempts as rows, without Optuna and without ever writing.

The ledger is a SQLite file in Optuna's schema; the controller writes each attempt's request and outcome as attributes.
A controller that was killed leaves a write-ahead log behind, which a reader must take into account.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.spec.jobs import Job
from trialplane.wire import labels, records, rows
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import TrialState

INTERRUPTED = "interrupted: the controller ended while this attempt ran"

_ATTEMPTS = """
SELECT request.value_json, outcome.value_json
FROM trial_user_attributes AS request
LEFT JOIN trial_user_attributes AS outcome ON outcome.trial_id = request.trial_id AND outcome.key = ?
WHERE request.key = ?
ORDER BY request.trial_id
"""
_ANY = "SELECT 1 FROM trial_user_attributes WHERE key = ? LIMIT 1"
_ENDED = """
SELECT 1 FROM trial_user_attributes AS request
JOIN trial_user_attributes AS outcome ON outcome.trial_id = request.trial_id AND outcome.key = ?
WHERE request.key = ?
AND json_extract(request.value_json, '$.trial') = ? AND json_extract(request.value_json, '$.attempt') = ?
"""
_ENDS = """
SELECT outcome.trial_user_attribute_id, outcome.value_json, request.value_json
FROM trial_user_attributes AS outcome
JOIN trial_user_attributes AS request ON request.trial_id = outcome.trial_id AND request.key = ?
WHERE outcome.key = ? AND outcome.trial_user_attribute_id > ?
ORDER BY outcome.trial_user_attribute_id
"""


@dataclasses.dataclass(frozen=True)
class End:
    """How an attempt ended, for those who watch a run; `place` orders the ends as they were written."""

    place: int
    request: TrialRequest
    outcome: TrialOutcome


def attempts(ledger: Path, run: str, job: Job, alive: bool) -> list[TrialRow]:
    """Every attempt in a ledger, in the order they started; none when there is no ledger yet.

    Args:
        ledger: the SQLite file.
        run: name of the run, for messages.
        job: says which metrics are objectives and which are constrained.
        alive: whether a controller works on it. Without one an attempt that has not ended never will: it is LOST.

    Raises:
        LedgerCorrupt: the file is no ledger or is damaged.
        LedgerUnavailable: it cannot be read.
    """
    texts = _query(ledger, run, alive, _ATTEMPTS, labels.LEDGER_OUTCOME, labels.LEDGER_REQUEST)
    with _intact(ledger, run):
        return [_row(job, request, outcome, alive) for request, outcome in texts]


def _row(job: Job, request_json: str, outcome_json: str | None, alive: bool) -> TrialRow:
    request = records.from_dict(TrialRequest, json.loads(request_json))
    outcome = None if outcome_json is None else records.from_dict(TrialOutcome, json.loads(outcome_json))
    row = rows.row(job, request, request.params, outcome)
    if outcome is None and not alive:
        return dataclasses.replace(row, state=TrialState.LOST, message=INTERRUPTED)
    return row


def has_attempts(ledger: Path, run: str) -> bool:
    """Whether any attempt was started; errors as of `attempts`."""
    return bool(_query(ledger, run, True, _ANY, labels.LEDGER_REQUEST))


def has_ended(ledger: Path, run: str, trial: int, attempt: int) -> bool:
    """Whether one attempt has ended; errors as of `attempts`."""
    return bool(_query(ledger, run, True, _ENDED, labels.LEDGER_OUTCOME, labels.LEDGER_REQUEST, trial, attempt))


def ends(ledger: Path, run: str, after: int) -> list[End]:
    """The attempts that ended since the one at `after`, in order; errors as of `attempts`."""
    found = []
    for place, outcome, request in _query(ledger, run, True, _ENDS, labels.LEDGER_REQUEST, labels.LEDGER_OUTCOME, after):
        with _intact(ledger, run):
            found.append(
                End(
                    place,
                    records.from_dict(TrialRequest, json.loads(request)),
                    records.from_dict(TrialOutcome, json.loads(outcome)),
                )
            )
    return found


def counts(found: Iterable[TrialRow]) -> dict[str, Any]:
    """What `RunStatus` counts, from all attempts of a run without a controller."""
    all_rows = list(found)
    newest = rows.newest(all_rows)
    states = [row.state for row in newest]
    failed = [row for row in newest if row.state is TrialState.FAILED]
    failures: dict[str, int] = {}
    for row in failed:
        if row.failure is not None:
            failures[row.failure.value] = failures.get(row.failure.value, 0) + 1
    return {
        "complete": states.count(TrialState.COMPLETE),
        "pruned": states.count(TrialState.PRUNED),
        "failed": len(failed),
        "failures": failures,
        # Also one that failed for good, once a resumed training tries it again.
        "retried": sum(row.failure is not None for row in all_rows) - len(failed),
        "running": 0,
    }


def _query(ledger: Path, run: str, alive: bool, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with _intact(ledger, run):
        if not ledger.exists():
            return []
        if not ledger.is_file():
            raise ValueError("it is no regular file")  # opening a pipe would wait for its writer
        # Without a write-ahead log nobody writes, and `immutable` keeps SQLite from making one.
        log = ledger.with_name(ledger.name + "-wal")
        quiet = not alive and not (log.exists() and log.stat().st_size)
        uri = f"{ledger.absolute().as_uri()}?mode=ro{'&immutable=1' if quiet else ''}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return []  # the controller has just made the file
            if alive and not _has_table(connection):
                return []
            return connection.execute(query, values).fetchall()


def _has_table(connection: sqlite3.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE name = 'trial_user_attributes'"
    return bool(connection.execute(query).fetchone()[0])


@contextlib.contextmanager
def _intact(ledger: Path, run: str) -> Iterator[None]:
    """SQLite's errors, the system's, and records that do not read, as ours."""
    try:
        yield
    except OSError as error:
        raise errors.LedgerUnavailable(f"the ledger of {run} cannot be read ({error.strerror}): {ledger}") from error
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) and ("locked" in text or "unable to open" in text):
            raise errors.LedgerUnavailable(
                f"the ledger of {run} cannot be read now ({text}): {ledger}; try again, or look who holds the file"
            ) from error
        raise errors.LedgerCorrupt(
            f"the ledger of {run} is damaged or not a study ({type(error).__name__}: {text}): {ledger}\n"
            f"Nothing was changed. Put a good copy in its place, save what `sqlite3 {ledger} .recover` finds, or move "
            f"{ledger.parent} away and submit under the same name"
        ) from error
