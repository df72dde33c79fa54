"""All runs in PostgreSQL, as the gateway serves them and the operator records them.

It writes submissions, before there is a controller to do so, and desired states; it deletes only whole runs, under the lock
that a controller would need.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from trialplane import errors
from trialplane.controller.store import former, locking, tables
from trialplane.controller.store.tables import attempts, runs
from trialplane.plan import plan as planning
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import attempts as reading
from trialplane.wire import labels, records
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState

POOL = 4  # connections
STATEMENT_SECONDS = 30
DATABASE_ERRORS = tables.DATABASE_ERRORS  # what any method may raise

_HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high AND objid = :low
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclasses.dataclass(frozen=True)
class Known:
    """One run in the list of all."""

    run: str
    job: str
    submitted: float
    state: str


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What the ledger has of one run at one moment.

    Attributes:
        job: as resolved.
        submission: the facts of it.
        status: the last one that a controller wrote, or that of a run without one.
        desired: the desired state.
        alive: whether a controller works on it.
    """

    job: Job
    submission: Mapping[str, Any]
    status: RunStatus
    desired: Desired
    alive: bool

    def has_ended(self, begun: float) -> bool:
        """Whether a controller has recorded that the run ended, or was paused, since `begun` (seconds since the epoch)."""
        return self.status.state not in (RunState.PENDING, RunState.RUNNING) and self.status.updated >= begun


class Archive:
    """All runs in one database; those of an earlier version are converted on first access.

    Args:
        url: `postgresql+psycopg2://…`.
    """

    def __init__(self, url: str) -> None:
        # Connections are tested before use, so a restart of PostgreSQL causes no errors beyond its downtime.
        options = {**locking.CONNECT, "options": f"-c statement_timeout={STATEMENT_SECONDS * 1000}"}
        self._engine = sa.create_engine(
            url, pool_pre_ping=True, pool_size=POOL, max_overflow=0, pool_timeout=10, connect_args=options
        )
        self._converting = threading.Lock()
        self._may_be_former = True

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def runs(self) -> list[Known]:
        """All runs, the newest first."""
        self._convert()
        query = sa.select(runs.c.name, runs.c.job, runs.c.submission, runs.c.status).where(runs.c.job.is_not(None))
        found = []
        with self._engine.connect() as connection:
            if not tables.is_there(connection):
                return []  # nothing has ever been submitted here
            for run, job, submission, status in connection.execute(query):
                submitted = float(json.loads(submission or "{}").get("submitted", 0.0))
                state = json.loads(status or "{}").get("state", "UNKNOWN")
                found.append(Known(run, json.loads(job)["name"], submitted, state))
        return sorted(found, key=lambda known: (-known.submitted, known.run))

    def attribute(self, run: str, name: str) -> Any:
        """The value in a column of a run, or None.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, mine):
            return tables.document(connection, mine, name)

    def recorded(self, run: str) -> Recorded | None:
        """What the ledger has of a run, or None.

        Raises:
            LedgerCorrupt: it cannot be read.
        """
        # First: a controller that ends after this has its last status read, so that no run looks killed that was not.
        alive = self.is_alive(run)
        try:
            with self._connected(run) as (connection, mine):
                described, submission, status, desired = (
                    tables.document(connection, mine, name) or {}
                    for name in (labels.LEDGER_JOB, labels.LEDGER_SUBMISSION, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)
                )
            job = jobs.read(described)
            last = records.from_dict(RunStatus, status) if status else planning.pending(run, job, 0.0)
            found = Recorded(job, submission, last, records.from_dict(Desired, desired), alive)
            for record in (found.status, found.desired):
                if wrong := records.misfit(record):
                    raise ValueError(f"{type(record).__name__}.{wrong} is {getattr(record, wrong)!r:.60}")
            return found
        except errors.RunNotFound:
            return None
        except ValueError as error:
            raise errors.LedgerCorrupt(f"what the ledger has of {run} cannot be read: {error}") from error

    def code(self, run: str) -> bytes | None:
        """The packed code of a run."""
        text = self.attribute(run, labels.LEDGER_CODE)
        return None if text is None else base64.b64decode(text)

    def is_alive(self, run: str) -> bool:
        """Whether a controller works on the run, which means that it holds the run's lock."""
        key = labels.ledger_lock(run) % 2**64
        with self._engine.connect() as connection:
            return bool(connection.execute(sa.text(_HELD), {"high": key >> 32, "low": key % 2**32}).scalar())

    def attempts(self, run: str) -> list[TrialRow]:
        """Every attempt, in the order they started; without a controller none of them runs."""
        alive = self.is_alive(run)
        with self._connected(run) as (connection, mine):
            job = _job(connection, mine)
            return [reading.row(job, attempt, alive) for attempt in reading.every(tables.select(connection), run)]

    def attempts_at(self, run: str, trial: int) -> list[TrialRow]:
        """Every attempt at one trial, as `attempts` gives them."""
        alive = self.is_alive(run)
        with self._connected(run) as (connection, mine):
            job = _job(connection, mine)
            return [reading.row(job, attempt, alive) for attempt in reading.at(tables.select(connection), run, trial)]

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since a place in the order of ends, and the place for the next call."""
        with self._connected(run) as (connection, mine):
            job = _job(connection, mine)
            place, found = reading.ended(tables.select(connection), run, after)
        return place, [reading.row(job, attempt, True) for attempt in found]

    def whole(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """See `wire.attempts.whole`; the second is whether a controller works on the run."""
        alive = self.is_alive(run)
        with self._connected(run) as (connection, _):
            found = reading.whole(tables.select(connection), run, after)
        return found, alive or self.is_alive(
            run
        )  # a controller that started or ended in between counts: attempts may still run

    def record(self, run: str, job: Job, submission: Mapping[str, Any], code: str, *, new: bool) -> None:
        """Records what a run is submitted or resumed with, so that it is listed even if its pods never start.

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
        tables.prepare(self._engine)
        self._convert()
        described: dict[str, Any] = {
            labels.LEDGER_JOB: job.model_dump(mode="json"),
            labels.LEDGER_SUBMISSION: submission,
            labels.LEDGER_CODE: code,
        }
        with self._engine.begin() as connection:
            self._convert_one(connection, run)
            mine = runs.c.name == run
            directions = json.dumps([objective.direction for objective in job.objectives])
            insert = postgresql.insert(runs).values(name=run, directions=directions, epoch=0, optuna="{}")
            if connection.execute(insert.on_conflict_do_nothing().returning(runs.c.id)).scalar() is None:
                if new:
                    raise errors.RunExists(f"the ledger has a study {run} already")
                _claim(connection, run)
            status = tables.document(connection, mine, labels.LEDGER_STATUS) or {}
            if status.get("started") is None:  # no controller has written one
                pending = planning.pending(run, job, float(submission.get("submitted", 0.0)))
                described[labels.LEDGER_STATUS] = records.to_dict(pending)
            tables.describe(connection, mine, described)

    def desire(self, run: str, changed: Mapping[str, Any]) -> None:
        """Changes the desired state of a run: only the given fields of `Desired`.

        RUNNING also records the run's newest attempt. A pause does not revoke a cancel.
        """
        with self._connected(run) as (connection, mine):
            # Serializes concurrent changes, so that none is lost.
            connection.execute(sa.select(runs.c.id).where(mine).with_for_update(key_share=True))
            desired = records.from_dict(Desired, tables.document(connection, mine, labels.LEDGER_DESIRED) or {})
            before, desired = desired.state, dataclasses.replace(desired, **changed)
            if before is RunState.CANCELLED and desired.state is RunState.PAUSED:
                desired = dataclasses.replace(desired, state=before)
            if changed.get("state") is RunState.RUNNING:
                newest = sa.select(sa.func.max(attempts.c.number)).join(runs).where(mine)
                desired = dataclasses.replace(desired, again=connection.execute(newest).scalar())
            connection.execute(sa.update(runs).where(mine).values({labels.LEDGER_DESIRED: records.to_json(desired)}))

    def delete(self, run: str) -> None:
        """Deletes a run.

        Raises:
            LedgerLocked: a controller works on it.
        """
        with self._connected(run) as (connection, mine):
            _claim(connection, run)
            connection.execute(sa.delete(attempts).where(attempts.c.run_id.in_(sa.select(runs.c.id).where(mine))))
            connection.execute(sa.delete(runs).where(mine))

    @contextmanager
    def _connected(self, run: str) -> Iterator[tuple[sa.Connection, sa.ColumnElement[bool]]]:
        """A transaction, and which row of `runs` is the run's.

        Raises:
            RunNotFound: there is no such run.
            LedgerLocked: a controller of an earlier version works on it, in tables of that version.
            LedgerCorrupt: the tables are of a later version, or what an earlier one wrote cannot be converted.
        """
        self._convert()
        mine = (runs.c.name == run) & runs.c.job.is_not(None)
        with self._engine.begin() as connection:
            if not tables.is_there(connection):
                raise errors.RunNotFound(f"nothing has been submitted here yet, so there is no run {run}")
            self._convert_one(connection, run)
            if connection.execute(sa.select(runs.c.id).where(mine)).scalar() is None:
                raise errors.RunNotFound(f"the ledger has no run {run}")
            yield connection, mine

    def _convert_one(self, connection: sa.Connection, run: str) -> None:
        """Converts a run that `_convert` could not, or raises the reason why not."""
        if not self._may_be_former or run not in former.runs(connection):
            return
        if not _is_free(connection, run):
            raise errors.LedgerLocked(
                f"a controller of an earlier trialplane works on {run}, which can be read once that has ended; "
                f"`kubectl delete rayjob {run}` ends it now, and `platform resume {run}` continues the run"
            )
        former.convert(connection, run)

    def _convert(self) -> None:
        """Converts the runs of an earlier version without a controller, each in its own transaction."""
        with self._converting:
            if not self._may_be_former:
                return
            with self._engine.connect() as connection:
                left = former.runs(connection)
            if left:
                tables.prepare(self._engine)
            for run in left:
                with suppress(errors.LedgerCorrupt), self._engine.begin() as connection:
                    if _is_free(connection, run):
                        former.convert(connection, run)
            with self._engine.connect() as connection:
                self._may_be_former = bool(former.runs(connection)) if left else False


def _is_free(connection: sa.Connection, run: str) -> bool:
    """Locks controllers out of a run until the end of the transaction, unless one works on it."""
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(labels.ledger_lock(run)))).scalar())


def _claim(connection: sa.Connection, run: str) -> None:
    """Locks controllers out of a run until the end of the transaction.

    Raises:
        LedgerLocked: one works on it.
    """
    if not _is_free(connection, run):
        raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")


def _job(connection: sa.Connection, mine: sa.ColumnElement[bool]) -> Job:
    return jobs.read(tables.document(connection, mine, labels.LEDGER_JOB))
