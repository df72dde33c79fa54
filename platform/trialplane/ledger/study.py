"""One run in SQLite or PostgreSQL, written by its controller and read by its exporter.

Each start of an attempt is one transaction, and so is each end, each batch of reports, and each parameter that a trial
requests while it runs.

A run has one writer at a time. A lock is held while the storage is open: a file lock beside a SQLite file, an advisory lock
on PostgreSQL. In addition, each controller that opens a run increments the run's epoch, and each transaction checks that the
epoch has not changed since. So a controller that lost its lock without noticing cannot write.
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

# Statements with parameters. They are built once, because SQLAlchemy takes longer to build such a statement than to run it.
_IS_ATTEMPT = (attempts.c.run_id == sa.bindparam("of_run")) & (attempts.c.number == sa.bindparam("of_number"))
_WRITE_DRAW = (
    sa.update(attempts).where(_IS_ATTEMPT).values(request=sa.bindparam("new_request"), optuna=sa.bindparam("new_optuna"))
)
_NEXT_END_NUMBER = sa.select(sa.func.coalesce(sa.func.max(attempts.c.end_number), 0) + 1).where(
    attempts.c.run_id == sa.bindparam("of_run")
)
_WRITE_SECOND_END = (
    sa.update(attempts)
    .where(_IS_ATTEMPT)
    .values(
        end_number=_NEXT_END_NUMBER.correlate(None).scalar_subquery(),
        outcome=sa.bindparam("new_outcome"),
        optuna=sa.bindparam("new_optuna"),
    )
)
_WRITE_END = _WRITE_SECOND_END.where(attempts.c.end_number.is_(None))
_OUTCOME = sa.select(attempts.c.outcome).where(_IS_ATTEMPT)
# Selects the run's row if the run still has the epoch of this controller; otherwise another controller has taken it over. As
# it is an UPDATE, it also locks the row until the commit, so that no other controller can increment the epoch in between.
_FENCE = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("of_run"), runs.c.epoch == sa.bindparam("current_epoch"))
    .values(epoch=sa.bindparam("current_epoch"))
    .returning(runs.c.token)
)
_FENCE_AND_SAMPLER = _FENCE.values(optuna=sa.bindparam("new_optuna"))


@functools.cache
def _insert(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return a statement that inserts rows into a table and skips those that exist already."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing()


@dataclasses.dataclass(frozen=True)
class AttemptGrowth:
    """New texts that a transaction writes for an attempt, so that `served` can count their bytes.

    Attributes:
        number: Number of the attempt.
        texts: New text of each column that is written.
    """

    number: int
    texts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class ReportGrowth:
    """Reports that a transaction writes and deletes, so that `served` can count their bytes.

    Attributes:
        sizes: Bytes of the metrics of each new report, by its mark.
        deleted: Marks of the deleted reports.
    """

    sizes: Mapping[int, int]
    deleted: Sequence[int]


class Reader:
    """Reader of one run in SQLite or PostgreSQL: a `storages.Source`.

    Args:
        url: URL of the database.
        run: Name of the run.
    """

    pause = 0.0
    idle = 1.0

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._engine = tables.engine(url)

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return running attempts with numbers above `after`, in the order of their numbers."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.running_after(tables.select(connection), self._run, after)

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.attempt(tables.select(connection), self._run, number)

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.ended_after(tables.select(connection), self._run, after, reading.SOURCE_PAGE)[1]

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.reports(tables.select(connection), self._run, after)


class Storage:
    """One run in a database, open for writing by this process alone: a `storages.Store`.

    Args:
        url: `sqlite:////path` or `postgresql+psycopg2://…`.
        run: Name of the run, which is created if it is missing.
        directions: "minimize" or "maximize" per objective.
        lock: File to lock if the database is SQLite.
        lock_patience: Seconds to wait for a former controller to release the lock, if the database is PostgreSQL.
        should_give_up: Function that is polled during this wait. True ends it at once.

    Raises:
        LedgerLocked: Another controller works on the run.
        LedgerCorrupt: The database is damaged or of another version, or the run has other directions.
        LedgerUnavailable: The database is unavailable, or the disk is full.
    """

    _pings = True  # whether a connection is tested before each use

    def __init__(
        self,
        url: str,
        run: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        lock: Path,
        *,
        lock_patience: float = locking.LOCK_PATIENCE,
        should_give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url = url
        self._run = run
        self._stack = contextlib.ExitStack()
        self._id = 0
        self._epoch: int | None = None
        try:
            self._engine = tables.engine(url, pings=self._pings)
            self._stack.callback(self._engine.dispose)
            self._lock(lock, lock_patience, should_give_up)  # first, so that a second controller changes nothing
            with tables.map_errors(url, run):
                tables.create_if_missing(self._engine)
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
            with self._map_unreadable_records():
                loaded = reading.attempts_since(tables.select(connection), self._run)
        return loaded, json.loads(sampler_state)

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, which is 0 for the first page."""
        with self._reading() as connection, self._map_unreadable_records():
            return reading.reports(tables.select(connection), self._run, after)

    def write_reports(self, reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
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
        with self._transaction(sampler_state=None, growth=growth) as connection:
            if rows:
                # RETURNING is there for speed: with it, SQLAlchemy sends all rows in one statement.
                insert = _insert(self._engine.dialect.name, tables.reports).returning(tables.reports.c.mark)
                connection.execute(insert, rows)
            if deleted:
                is_deleted = (tables.reports.c.run_id == self._id) & tables.reports.c.mark.in_(deleted)
                connection.execute(sa.delete(tables.reports).where(is_deleted))

    def write_start(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write an attempt that is about to start, and the samplers' state unless it is None. May be repeated."""
        texts = {"request": records.to_json(attempt.request), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            # The row exists already if an earlier try was committed, but its response was lost.
            row = {"run_id": self._id, "number": attempt.request.number, "trial": attempt.request.trial, **texts}
            connection.execute(_insert(self._engine.dialect.name, attempts), row)

    def write_draw(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the parameters that a running attempt has drawn so far, which are in its request, as `write_start`."""
        texts = {"request": records.to_json(attempt.request), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            connection.execute(_WRITE_DRAW, self._parameters(attempt, texts))

    def write_end(self, attempt: Attempt, sampler_state: Mapping[str, Any] | None) -> None:
        """Write the end of an attempt, as `write_start`.

        An attempt ends once. Only one that was paused may end a second time, when its trial is dropped.

        Raises:
            LedgerCorrupt: The attempt was never begun.
        """
        texts = {"outcome": records.to_json(attempt.outcome), "optuna": json.dumps(attempt.optuna)}
        with self._transaction(sampler_state, AttemptGrowth(attempt.request.number, texts)) as connection:
            statement = _WRITE_SECOND_END if self._drops_paused(connection, attempt) else _WRITE_END
            updated = connection.execute(statement, self._parameters(attempt, texts))
            if not updated.rowcount and not self._has_attempt(connection, attempt):  # no row: repeated, or never begun
                raise errors.LedgerCorrupt(f"attempt {attempt.request.number} of {self._run} was never begun")

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write facts about the run, by column name, in one transaction."""
        with self._transaction(sampler_state=None) as connection:
            tables.write_facts(connection, runs.c.id == self._id, facts)

    def read_column(self, name: str) -> Any:
        """Return the value in a column of the run; None if the column is empty."""
        with self._reading() as connection:
            return tables.read_column(connection, runs.c.id == self._id, name)

    def _parameters(self, attempt: Attempt, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of `_WRITE_DRAW` or `_WRITE_END` that write new texts of an attempt."""
        new_texts = {f"new_{column}": text for column, text in texts.items()}
        return {"of_run": self._id, "of_number": attempt.request.number, **new_texts}

    def _drops_paused(self, connection: sa.Connection, attempt: Attempt) -> bool:
        """Return whether a write is the second end of an attempt: it is paused in the ledger, and pruned now.

        Its trial is then dropped: it will not continue.
        """
        if attempt.outcome is None or attempt.outcome.state is not TrialState.PRUNED:
            return False
        text = connection.execute(_OUTCOME, {"of_run": self._id, "of_number": attempt.request.number}).scalar()
        return text is not None and records.from_json(TrialOutcome, text).state is TrialState.PAUSED

    def _has_attempt(self, connection: sa.Connection, attempt: Attempt) -> bool:
        """Return whether the ledger has the attempt."""
        is_attempt = (attempts.c.run_id == self._id) & (attempts.c.number == attempt.request.number)
        return connection.execute(sa.select(attempts.c.number).where(is_attempt)).one_or_none() is not None

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        """Find or create the run, and increment its epoch, which fences every older controller. Return the new epoch.

        Raises:
            LedgerCorrupt: The run has other directions.
        """
        query = sa.select(runs.c.id, runs.c.directions).where(runs.c.name == self._run)
        run_row = connection.execute(query).one_or_none()
        if run_row is None:  # a new run; the state of its samplers is empty
            row = {"name": self._run, "directions": json.dumps(directions), "epoch": 0, "optuna": "{}"}
            connection.execute(sa.insert(runs).values(row))
            run_row = connection.execute(query).one()
        if json.loads(run_row.directions) != directions:
            recorded = " and ".join(json.loads(run_row.directions))
            raise errors.LedgerCorrupt(
                f"the run {self._run} in {tables.redacted_url(self._url)} has the directions {recorded}, but the job has "
                f"{' and '.join(directions)}; give the run another name"
            )
        self._id = run_row.id
        increment = sa.update(runs).where(runs.c.id == self._id).values(epoch=runs.c.epoch + 1).returning(runs.c.epoch)
        return int(connection.execute(increment).scalar_one())

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Yield a connection for reading, and map errors of the database."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _map_unreadable_records(self) -> Iterator[None]:
        """Raise LedgerCorrupt for a record that cannot be read, which is a ValueError."""
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
        """Begin a transaction that only the controller of the current epoch can commit, and write the samplers' state.

        Args:
            sampler_state: State of the samplers; None if unchanged.
            growth: Rows that the transaction writes and deletes; None if it writes neither attempts nor reports. Only
                `served.Served` uses it, to enforce a budget.

        Raises:
            LedgerFenced: Another controller has taken over the run.
        """
        parameters: dict[str, Any] = {"of_run": self._id, "current_epoch": self._epoch}
        if sampler_state is not None:
            parameters["new_optuna"] = json.dumps(sampler_state)
        with tables.map_errors(self._url, self._run), self._engine.begin() as connection:
            row = connection.execute(_FENCE if sampler_state is None else _FENCE_AND_SAMPLER, parameters).one_or_none()
            if row is None:
                raise self._fenced_error()
            self._check_token(row.token)
            yield connection

    def _check_token(self, expected_digest: str | None) -> None:
        """Do nothing: a process with the database's password needs no token. `served.Served` checks one."""

    def _lock(self, file: Path, patience: float, should_give_up: Callable[[], bool]) -> None:
        """Take the lock on the run.

        Args:
            file: File to lock if the database is SQLite.
            patience: Seconds to wait for the lock if the database is PostgreSQL.
            should_give_up: Function that is polled during this wait. True ends it at once.

        Raises:
            LedgerLocked: Another controller works on the run.
            LedgerFenced: Another controller has taken over the run.
        """
        if self._engine.dialect.name == "sqlite":
            self._stack.enter_context(locking.lock_file(file, self._run))
            return
        # It registers itself with the engine, and takes the lock on each new connection.
        locking.AdvisoryLock(
            self._engine,
            self._run,
            patience=patience,
            fencing_error=self._fencing_error,
            should_give_up=should_give_up,
        )
        with tables.map_errors(self._url, self._run), self._engine.connect():
            pass  # the first connection takes the lock, and stays open in the engine's pool

    def _fencing_error(self, cursor: Any) -> errors.LedgerFenced | None:
        """Return an error if another controller has incremented the epoch; None otherwise, and before the run is open.

        `AdvisoryLock` calls this while it waits for the lock on a new connection. After a connection broke, and before the
        next one has the lock, another controller may have opened the run.
        """
        if self._epoch is None:
            return None
        cursor.execute("SELECT epoch FROM runs WHERE id = %s", (self._id,))
        return None if cursor.fetchone() == (self._epoch,) else self._fenced_error()

    def _fenced_error(self) -> errors.LedgerFenced:
        """Return the error for a controller whose run another controller has taken over."""
        return errors.LedgerFenced(
            f"another controller has taken over the study {self._run} in {tables.redacted_url(self._url)}; this one stops"
        )
