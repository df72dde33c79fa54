"""One run in a database, written by its controller: one transaction per start of an attempt, and one per end.

Each batch of reports takes one more transaction, and so does each parameter that a trial asks for individually.

A run has one writer at a time. A lock is held while the storage is open: a file lock beside a SQLite file, an advisory lock
on PostgreSQL. Every transaction checks that the run's epoch is still the one that this controller set, so a controller that
lost its lock without noticing cannot write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from trialplane import errors
from trialplane.ledger import attempts as reading
from trialplane.ledger import locking, tables
from trialplane.ledger.attempts import Attempt, Reports
from trialplane.ledger.tables import attempts, runs
from trialplane.wire import records
from trialplane.wire.records import ReportRow, TrialOutcome
from trialplane.wire.states import TrialState

# Built once: SQLAlchemy takes longer to build such a statement than to run it.
_MINE = (attempts.c.run_id == sa.bindparam("of_run")) & (attempts.c.number == sa.bindparam("of_number"))
_DRAW = sa.update(attempts).where(_MINE).values(request=sa.bindparam("new_request"), optuna=sa.bindparam("new_optuna"))
_ENDS = sa.select(sa.func.coalesce(sa.func.max(attempts.c.place), 0) + 1).where(attempts.c.run_id == sa.bindparam("of_run"))
_FINISH_PAUSED = (
    sa.update(attempts)
    .where(_MINE)
    .values(
        place=_ENDS.correlate(None).scalar_subquery(), outcome=sa.bindparam("new_outcome"), optuna=sa.bindparam("new_optuna")
    )
)
_FINISH = _FINISH_PAUSED.where(attempts.c.place.is_(None))
_OUTCOME = sa.select(attempts.c.outcome).where(_MINE)
# A write, so that it also locks the row until the commit.
_FENCE = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("of_run"), runs.c.epoch == sa.bindparam("current_epoch"))
    .values(epoch=sa.bindparam("current_epoch"))
    .returning(runs.c.token)
)
_FENCE_AND_SAMPLER = _FENCE.values(optuna=sa.bindparam("new_optuna"))


@functools.cache
def _insert(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return a statement that adds rows, except existing ones."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing()


@dataclasses.dataclass(frozen=True)
class AttemptGrowth:
    """New texts of an attempt, by column."""

    number: int
    texts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class ReportGrowth:
    """New and deleted reports: the bytes of the metrics of new ones, by mark, and the marks of deleted ones."""

    sizes: Mapping[int, int]
    deleted: Sequence[int]


class Storage:
    """One run in a database, open for writing by this process alone.

    Args:
        url: `sqlite:////path` or `postgresql+psycopg2://…`.
        run: Name of the run, which is created if it is missing.
        directions: "minimize" or "maximize" per objective.
        lock: File to lock if the database is SQLite.
        lock_patience: Seconds to wait for a former controller to release the lock, on PostgreSQL.
        give_up: Function that is polled during the wait. True ends the wait at once.

    Raises:
        LedgerLocked: Another controller works on the run.
        LedgerCorrupt: The database is damaged or of another version, or the run has other directions.
        LedgerUnavailable: The database is unavailable, or the disk is full.
    """

    _pings = True  # test a connection before each use

    def __init__(
        self,
        url: str,
        run: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        lock: Path,
        *,
        lock_patience: float = locking.LOCK_PATIENCE,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url = url
        self._run = run
        self._stack = contextlib.ExitStack()
        self._id = 0
        self._epoch: int | None = None
        try:
            self._engine = tables.engine(url, pings=self._pings)
            self._stack.callback(self._engine.dispose)
            self._lock(lock, lock_patience, give_up)
            with tables.map_errors(url, run):
                tables.prepare(self._engine)
                with tables.begin_writing(self._engine) as connection:
                    self._epoch = self._open(connection, list(directions))
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Release the lock and the connections."""
        self._stack.close()

    def load(self) -> tuple[list[Attempt], dict[str, Any]]:
        """Return all attempts in the order of their numbers, and the state of the samplers."""
        with self._reading() as connection:
            sampler_state = connection.execute(sa.select(runs.c.optuna).where(runs.c.id == self._id)).scalar_one()
            with self._intact():
                loaded = reading.attempts_since(tables.select(connection), self._run)
        return loaded, json.loads(sampler_state)

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        with self._reading() as connection, self._intact():
            return reading.reports(tables.select(connection), self._run, after)

    def report(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        """Write reports, and delete earlier ones by their marks, in one transaction. Repeating it changes nothing."""
        rows: list[dict[str, Any]] = [
            {
                "run_id": self._id,
                "mark": report.mark,
                "trial": report.trial,
                "attempt": report.attempt,
                "number": report.number,
                "step": report.step,
                "metrics": json.dumps(records.to_dict(report.metrics)),
                "moment": report.time,
            }
            for report in reports
        ]
        growth = ReportGrowth({row["mark"]: len(row["metrics"]) for row in rows}, deleted)
        with self._transaction(None, growth) as connection:
            if rows:
                # With RETURNING, SQLAlchemy sends all rows in one statement.
                new = _insert(self._engine.dialect.name, tables.reports).returning(tables.reports.c.mark)
                connection.execute(new, rows)
            if deleted:
                is_deleted = (tables.reports.c.run_id == self._id) & tables.reports.c.mark.in_(deleted)
                connection.execute(sa.delete(tables.reports).where(is_deleted))

    def begin(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start, in one transaction.

        Args:
            attempt: Attempt with its request and Optuna's view of it.
            sampler_state: State of the samplers; None if unchanged.
        """
        texts = {"request": records.to_json(attempt.request), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            # The row exists if an earlier try was committed, but its response was lost.
            new = {"run_id": self._id, "number": attempt.request.number, "trial": attempt.request.trial, **texts}
            connection.execute(_insert(self._engine.dialect.name, attempts), new)

    def draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the parameters that a running attempt has drawn so far, in one transaction. Repeating it changes nothing.

        Args:
            attempt: Attempt with its request, which has the parameters drawn so far, and Optuna's view of it.
            sampler_state: State of the samplers; None if unchanged.
        """
        texts = {"request": records.to_json(attempt.request), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            connection.execute(_DRAW, self._texts(attempt, texts))

    def finish(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt, in one transaction. Repeating it changes nothing.

        A paused attempt may end a second time, when its trial is dropped.

        Args:
            attempt: Attempt with its outcome and Optuna's view of it.
            sampler_state: State of the samplers; None if unchanged.

        Raises:
            LedgerCorrupt: The attempt was never begun.
        """
        texts = {"outcome": records.to_json(attempt.outcome), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            statement = _FINISH_PAUSED if self._is_paused(connection, attempt) else _FINISH
            updated = connection.execute(statement, self._texts(attempt, texts))
            if not updated.rowcount and not self._has_attempt(connection, attempt):
                raise errors.LedgerCorrupt(f"attempt {attempt.request.number} of {self._run} was never begun")

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write facts about the run, by column name, in one transaction."""
        with self._transaction(None) as connection:
            tables.describe(connection, runs.c.id == self._id, facts)

    def document(self, name: str) -> Any:
        """Return the value in a column of the run; None if the column is empty."""
        with self._reading() as connection:
            return tables.document(connection, runs.c.id == self._id, name)

    def _texts(self, attempt: Attempt, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of `_DRAW` and `_FINISH`."""
        new_texts = {f"new_{column}": text for column, text in texts.items()}
        return {"of_run": self._id, "of_number": attempt.request.number, **new_texts}

    def _is_paused(self, connection: sa.Connection, attempt: Attempt) -> bool:
        """Whether `attempt` drops a trial whose attempt is paused in the ledger."""
        if attempt.outcome is None or attempt.outcome.state is not TrialState.PRUNED:
            return False
        text = connection.execute(_OUTCOME, {"of_run": self._id, "of_number": attempt.request.number}).scalar()
        return text is not None and records.from_json(TrialOutcome, text).state is TrialState.PAUSED

    def _has_attempt(self, connection: sa.Connection, attempt: Attempt) -> bool:
        is_attempt = (attempts.c.run_id == self._id) & (attempts.c.number == attempt.request.number)
        return connection.execute(sa.select(attempts.c.number).where(is_attempt)).one_or_none() is not None

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        """Find or create the run, and increment its epoch, which fences every older controller. Return the new epoch."""
        query = sa.select(runs.c.id, runs.c.directions).where(runs.c.name == self._run)
        run_row = connection.execute(query).one_or_none()
        if run_row is None:
            new = {"name": self._run, "directions": json.dumps(directions), "epoch": 0, "optuna": "{}"}
            connection.execute(sa.insert(runs).values(new))
            run_row = connection.execute(query).one()
        if json.loads(run_row.directions) != directions:
            recorded = " and ".join(json.loads(run_row.directions))
            raise errors.LedgerCorrupt(
                f"the run {self._run} in {tables.redacted_url(self._url)} has the directions {recorded}, but the job has "
                f"{' and '.join(directions)}; give the run another name"
            )
        self._id = run_row.id
        count = sa.update(runs).where(runs.c.id == self._id).values(epoch=runs.c.epoch + 1).returning(runs.c.epoch)
        return int(connection.execute(count).scalar_one())

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _intact(self) -> Iterator[None]:
        """Map errors of unreadable records to LedgerCorrupt."""
        try:
            yield
        except ValueError as error:
            raise errors.LedgerCorrupt(
                f"the ledger {tables.redacted_url(self._url)} is damaged ({error}); put a good copy in its place"
            ) from error

    @contextlib.contextmanager
    def _transaction(
        self, sampler_state: Mapping[str, Any] | None, growth: AttemptGrowth | ReportGrowth | None = None
    ) -> Iterator[sa.Connection]:
        """Begin a transaction that only the controller of the current epoch can commit.

        Args:
            sampler_state: State of the samplers; None if unchanged.
            growth: Rows that the transaction writes and deletes.

        Raises:
            LedgerFenced: Another controller has taken over the run.
        """
        current: dict[str, Any] = {"of_run": self._id, "current_epoch": self._epoch}
        if sampler_state is not None:
            current["new_optuna"] = json.dumps(sampler_state)
        with tables.map_errors(self._url, self._run), self._engine.begin() as connection:
            row = connection.execute(_FENCE if sampler_state is None else _FENCE_AND_SAMPLER, current).one_or_none()
            if row is None:
                raise self._fenced_error()
            self._check(row.token)
            yield connection

    def _check(self, token: str | None) -> None:
        """Check the hash of the run's token in the ledger. A process with the database's password needs no token."""

    def _lock(self, file: Path, patience: float, give_up: Callable[[], bool]) -> None:
        """Take the lock on the run, or raise LedgerLocked."""
        if self._engine.dialect.name == "sqlite":
            self._stack.enter_context(locking.lock_file(file, self._run))
            return
        locking.AdvisoryLock(self._engine, self._run, patience=patience, fencing_error=self._fencing_error, give_up=give_up)
        with tables.map_errors(self._url, self._run), self._engine.connect():
            return

    def _fencing_error(self, cursor: Any) -> errors.LedgerFenced | None:
        """Return an error if another controller has incremented the epoch since the last connection broke."""
        if self._epoch is None:
            return None
        cursor.execute("SELECT epoch FROM runs WHERE id = %s", (self._id,))
        return None if cursor.fetchone() == (self._epoch,) else self._fenced_error()

    def _fenced_error(self) -> errors.LedgerFenced:
        return errors.LedgerFenced(
            f"another controller has taken over the study {self._run} in {tables.redacted_url(self._url)}; this one stops"
        )
