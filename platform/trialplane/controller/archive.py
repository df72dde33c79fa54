"""What PostgreSQL holds of all runs, read without Optuna: for the gateway, which must stay small.

A run is a study with the attribute `trialplane:job`. Written here are what a run is submitted with, before there is a
controller that could, and a wish; the only thing deleted is a whole run, under the lock that a controller would need.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.controller import locking
from trialplane.plan import plan as planning
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import env, labels, records, rows
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow, Wish
from trialplane.wire.states import RunState, TrialState

POOL = 4  # connections
STATEMENT_SECONDS = 30
INTERRUPTED = "the controller ended while this attempt ran"
# In a process of its own: Optuna makes its tables, and is too large for this one. The URL is no argument, which others see.
_MAKE_TABLES = f"import os; from trialplane.controller import storage; storage.make_tables(os.environ[{env.LEDGER!r}])"
_TABLES_SECONDS = 120

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
# An attempt at a trial never has a smaller number than the trial itself. PostgreSQL reads no JSON in which a text has a NUL.
_ATTEMPTS_AT = """
SELECT r.value_json, o.value_json
FROM trials t
JOIN trial_user_attributes r ON r.trial_id = t.trial_id AND r.key = :request
LEFT JOIN trial_user_attributes o ON o.trial_id = t.trial_id AND o.key = :outcome
WHERE t.study_id = :study AND t.number >= :trial AND r.value_json LIKE :text
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
_LOCK = "SELECT study_id FROM studies WHERE study_id = :study FOR NO KEY UPDATE"
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
_NEW_STUDY = "INSERT INTO studies (study_name) VALUES (:run) ON CONFLICT (study_name) DO NOTHING RETURNING study_id"
_DIRECTION = "INSERT INTO study_directions (study_id, objective, direction) VALUES (:study, :objective, :direction)"
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
        self._url = url
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
            if not _has_tables(connection):
                return []  # nothing has ever been submitted here
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
        return self._attempts(run, _ATTEMPTS)

    def attempts_at(self, run: str, trial: int) -> list[TrialRow]:
        """Every attempt at one trial, as `attempts` gives them; the database chooses them, for a study may have 100,000."""
        found = self._attempts(run, _ATTEMPTS_AT, trial=trial, text=f'%"trial": {trial},%')
        return [row for row in found if row.trial == trial]  # a parameter may hold the same text

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since a place in the order of ends, and the place to ask from next."""
        with self._engine.connect() as connection:
            study = _study(connection, run)
            job = jobs.read(_attribute(connection, study, labels.LEDGER_JOB))
            found = connection.execute(sa.text(_ENDS), {"study": study, "after": after, **_KEYS}).all()
        return (found[-1][0] if found else after), [_row(job, request, outcome, True) for _, request, outcome in found]

    def record(self, run: str, job: Job, submission: Mapping[str, Any], code: str, *, new: bool) -> None:
        """Writes down what a run is submitted or resumed with: it is known from then on, whatever becomes of its pods.

        Args:
            run: its name.
            job: as resolved.
            submission: the facts of it.
            code: packed, base64.
            new: whether there must be no run of that name.

        Raises:
            RunExists: there is one.
            LedgerLocked: a controller works on it.
        """
        with self._engine.connect() as connection:
            has_tables = _has_tables(connection)
        if not has_tables:
            self._make_tables()
        with self._engine.begin() as connection:
            study = connection.execute(sa.text(_NEW_STUDY), {"run": run}).scalar()
            if study is not None:
                for index, objective in enumerate(job.objectives):
                    values = {"study": study, "objective": index, "direction": objective.direction.upper()}
                    connection.execute(sa.text(_DIRECTION), values)
            elif new:
                raise errors.RunExists(f"the ledger has a study {run} already")
            else:
                study = _study(connection, run)
                _claim(connection, run)
            described: dict[str, Any] = {
                labels.LEDGER_JOB: job.model_dump(mode="json"),
                labels.LEDGER_SUBMISSION: submission,
                labels.LEDGER_CODE: code,
            }
            if (_attribute(connection, study, labels.LEDGER_STATUS) or {}).get("started") is None:  # no controller's word
                pending = planning.pending(run, job, float(submission.get("submitted", 0.0)))
                described[labels.LEDGER_STATUS] = records.to_dict(pending)
            for key, value in described.items():
                connection.execute(sa.text(_SET), {"study": study, "key": key, "value": json.dumps(value)})

    def wish(self, run: str, changed: Mapping[str, Any]) -> None:
        """Changes what the user wants of a run, only the fields of `Wish` that are named.

        One that is to go on gets the attempt that was the newest then as well. A pause leaves a run cancelled that was.
        """
        with self._engine.begin() as connection:
            study = _study(connection, run)
            connection.execute(sa.text(_LOCK), {"study": study})  # two changes at once are two changes
            wish = records.from_dict(Wish, _attribute(connection, study, labels.LEDGER_WISH) or {})
            before, wish = wish.state, dataclasses.replace(wish, **changed)
            if before is RunState.CANCELLED and wish.state is RunState.PAUSED:
                wish = dataclasses.replace(wish, state=before)
            if changed.get("state") is RunState.RUNNING:
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
            _claim(connection, run)
            inspector = sa.inspect(connection)
            for table in _OF_TRIALS:
                if inspector.has_table(table):
                    of = "trial_id IN (SELECT trial_id FROM trials WHERE study_id = :study)"
                    connection.execute(sa.text(f"DELETE FROM {table} WHERE {of}"), {"study": study})
            for table in _OF_STUDY:
                connection.execute(sa.text(f"DELETE FROM {table} WHERE study_id = :study"), {"study": study})

    def _make_tables(self) -> None:
        command, environment = [sys.executable, "-c", _MAKE_TABLES], {**os.environ, env.LEDGER: self._url}
        # Somebody else may have made them at that moment; else the next statement says what is amiss.
        try:
            done = subprocess.run(
                command, env=environment, stderr=subprocess.PIPE, text=True, timeout=_TABLES_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"the ledger's tables were not made: {errors.first_line(error)}\n")
        else:
            if done.returncode:
                sys.stderr.write(done.stderr)

    def _attempts(self, run: str, query: str, **chosen: int | str) -> list[TrialRow]:
        alive = self.is_alive(run)
        with self._engine.connect() as connection:
            study = _study(connection, run)
            job = jobs.read(_attribute(connection, study, labels.LEDGER_JOB))
            found = connection.execute(sa.text(query), {"study": study, **_KEYS, **chosen}).all()
        return [_row(job, request, outcome, alive) for request, outcome in found]


_KEYS: Mapping[str, str] = {"request": labels.LEDGER_REQUEST, "outcome": labels.LEDGER_OUTCOME}


def _has_tables(connection: sa.Connection) -> bool:
    return bool(sa.inspect(connection).has_table("study_user_attributes"))


def _claim(connection: sa.Connection, run: str) -> None:
    """Keeps controllers from a run until the end of the transaction.

    Raises:
        LedgerLocked: one works on it.
    """
    lock = {"key": labels.ledger_lock(run)}
    if not connection.execute(sa.text("SELECT pg_try_advisory_xact_lock(:key)"), lock).scalar():
        raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")


def _study(connection: sa.Connection, run: str) -> int:
    if not _has_tables(connection):
        raise errors.RunNotFound(f"nothing has ever been submitted here, so there is no run {run}")
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
