"""What PostgreSQL holds of all runs, read without Optuna: for the gateway, which must stay small.

A run is a study with the attribute `trialplane:job`. The only thing written here is a wish; the only thing deleted is a
whole run, under the lock that a controller would need.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.controller import locking
from trialplane.spec.job import Job
from trialplane.wire import labels, records, rows
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow, Wish
from trialplane.wire.states import RunState, TrialState

POOL = 4  # connections
STATEMENT_SECONDS = 30
INTERRUPTED = "the controller ended while this attempt ran"

_RUNS = """
SELECT s.study_name AS run, j.value_json AS job, b.value_json AS submission, t.value_json AS status
FROM studies s
JOIN study_user_attributes j ON j.study_id = s.study_id AND j.key = :job
LEFT JOIN study_user_attributes b ON b.study_id = s.study_id AND b.key = :submission
LEFT JOIN study_user_attributes t ON t.study_id = s.study_id AND t.key = :status
"""
_STUDY = (
    "SELECT s.study_id FROM studies s JOIN study_user_attributes j USING (study_id) WHERE study_name = :run AND key = :job"
)
_ATTRIBUTE = "SELECT value_json FROM study_user_attributes WHERE study_id = :study AND key = :key"
_ATTEMPTS = """
SELECT r.value_json, o.value_json
FROM trials t
JOIN trial_user_attributes r ON r.trial_id = t.trial_id AND r.key = :request
LEFT JOIN trial_user_attributes o ON o.trial_id = t.trial_id AND o.key = :outcome
WHERE t.study_id = :study
ORDER BY t.number
"""
_ENDS = """
SELECT o.trial_user_attribute_id, r.value_json, o.value_json
FROM trials t
JOIN trial_user_attributes o ON o.trial_id = t.trial_id AND o.key = :outcome
JOIN trial_user_attributes r ON r.trial_id = t.trial_id AND r.key = :request
WHERE t.study_id = :study AND o.trial_user_attribute_id > :after
ORDER BY o.trial_user_attribute_id
"""
_NEWEST = "SELECT max(number) FROM trials WHERE study_id = :study"
_HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high AND objid = :low
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_SET = """
INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (:study, :key, :value)
ON CONFLICT (study_id, key) DO UPDATE SET value_json = excluded.value_json
"""
_OF_TRIALS = (
    "trial_values",
    "trial_intermediate_values",
    "trial_params",
    "trial_user_attributes",
    "trial_system_attributes",
    "trial_heartbeats",
)
_OF_STUDY = ("trials", "study_user_attributes", "study_system_attributes", "study_directions", "studies")


DATABASE_ERRORS = sa.exc.SQLAlchemyError  # what any method may raise


@dataclasses.dataclass(frozen=True)
class Known:
    """One run in the list of all."""

    run: str
    job: str
    submitted: float
    state: str


class Archive:
    """All runs in one database.

    Args:
        url: `postgresql+psycopg2://…`.
    """

    def __init__(self, url: str) -> None:
        # Connections are looked at before they are used, so a restart of PostgreSQL costs nothing but its own time.
        options = {**locking.CONNECT, "options": f"-c statement_timeout={STATEMENT_SECONDS * 1000}"}
        self._engine = sa.create_engine(
            url, pool_pre_ping=True, pool_size=POOL, max_overflow=0, pool_timeout=10, connect_args=options
        )

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def runs(self) -> list[Known]:
        """All runs, the newest first."""
        keys = {"job": labels.LEDGER_JOB, "submission": labels.LEDGER_SUBMISSION, "status": labels.LEDGER_STATUS}
        found = []
        with self._engine.connect() as connection:
            if not sa.inspect(connection).has_table("study_user_attributes"):
                return []  # no controller has ever been here
            for run, job, submission, status in connection.execute(sa.text(_RUNS), keys):
                submitted = float(json.loads(submission or "{}").get("submitted", 0.0))
                state = json.loads(status or "{}").get("state", "UNKNOWN")
                found.append(Known(run, json.loads(job)["name"], submitted, state))
        return sorted(found, key=lambda known: (-known.submitted, known.run))

    def attribute(self, run: str, key: str) -> Any:
        """An attribute of a run, or None when it has not got it.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._engine.connect() as connection:
            return _attribute(connection, _study(connection, run), key)

    def code(self, run: str) -> bytes | None:
        """The packed code of a run."""
        text = self.attribute(run, labels.LEDGER_CODE)
        return None if text is None else base64.b64decode(text)

    def is_alive(self, run: str) -> bool:
        """Whether a controller works on the run: it holds the study's lock."""
        key = labels.ledger_lock(run) % 2**64
        with self._engine.connect() as connection:
            return bool(connection.execute(sa.text(_HELD), {"high": key >> 32, "low": key % 2**32}).scalar())

    def attempts(self, run: str) -> list[TrialRow]:
        """Every attempt, in the order they started; without a controller none of them runs."""
        alive = self.is_alive(run)
        with self._engine.connect() as connection:
            study = _study(connection, run)
            job = Job.model_validate(_attribute(connection, study, labels.LEDGER_JOB))
            found = connection.execute(sa.text(_ATTEMPTS), {"study": study, **_KEYS}).all()
        return [_row(job, request, outcome, alive) for request, outcome in found]

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since a place in the order of ends, and the place to ask from next."""
        with self._engine.connect() as connection:
            study = _study(connection, run)
            job = Job.model_validate(_attribute(connection, study, labels.LEDGER_JOB))
            found = connection.execute(sa.text(_ENDS), {"study": study, "after": after, **_KEYS}).all()
        return (found[-1][0] if found else after), [_row(job, request, outcome, True) for _, request, outcome in found]

    def wish(self, run: str, wish: Wish) -> None:
        """Says what the user wants of a run; with the attempt that was the newest then, when it is to go on."""
        with self._engine.begin() as connection:
            study = _study(connection, run)
            if wish.state is RunState.RUNNING:
                wish = dataclasses.replace(wish, again=connection.execute(sa.text(_NEWEST), {"study": study}).scalar())
            value = records.to_json(wish)
            connection.execute(sa.text(_SET), {"study": study, "key": labels.LEDGER_WISH, "value": value})

    def delete(self, run: str) -> None:
        """Deletes a run.

        Raises:
            LedgerLocked: a controller works on it.
        """
        with self._engine.begin() as connection:
            study = _study(connection, run)
            lock = {"key": labels.ledger_lock(run)}
            if not connection.execute(sa.text("SELECT pg_try_advisory_xact_lock(:key)"), lock).scalar():
                raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")
            inspector = sa.inspect(connection)
            for table in _OF_TRIALS:
                if inspector.has_table(table):
                    of = "trial_id IN (SELECT trial_id FROM trials WHERE study_id = :study)"
                    connection.execute(sa.text(f"DELETE FROM {table} WHERE {of}"), {"study": study})
            for table in _OF_STUDY:
                connection.execute(sa.text(f"DELETE FROM {table} WHERE study_id = :study"), {"study": study})


_KEYS: Mapping[str, str] = {"request": labels.LEDGER_REQUEST, "outcome": labels.LEDGER_OUTCOME}


def newest(rows_: Sequence[TrialRow], trial: int) -> TrialRow | None:
    """The newest attempt at a trial."""
    found = [row for row in rows_ if row.trial == trial]
    return max(found, key=lambda row: row.number, default=None)


def _study(connection: sa.Connection, run: str) -> int:
    if not sa.inspect(connection).has_table("study_user_attributes"):
        raise errors.RunNotFound(f"no controller has ever worked on a run here, so not on {run}")
    found = connection.execute(sa.text(_STUDY), {"run": run, "job": labels.LEDGER_JOB}).scalar()
    if found is None:
        raise errors.RunNotFound(f"the ledger knows no run {run}")
    return int(found)


def _attribute(connection: sa.Connection, study: int, key: str) -> Any:
    text = connection.execute(sa.text(_ATTRIBUTE), {"study": study, "key": key}).scalar()
    return None if text is None else json.loads(text)


def _row(job: Job, request_json: str, outcome_json: str | None, alive: bool) -> TrialRow:
    request = records.from_json(TrialRequest, request_json)
    outcome = None if outcome_json is None else records.from_json(TrialOutcome, outcome_json)
    row = rows.row(job, request, request.params, outcome)
    if outcome is None and not alive:
        return dataclasses.replace(row, state=TrialState.LOST, message=INTERRUPTED)
    return row
