"""The durable side of the ledger: Optuna's own tables, written in one transaction per trial start and per trial end.

The schema is Optuna's, made by Optuna, so `optuna-dashboard` and `optuna.load_study` open it. Optuna itself would write
one transaction per parameter and per report (55 ms for a trial of 10 parameters and 3 reports on SQLite with WAL); the
two transactions here take 2 to 3 ms.

One writer at a time: a lock is held while the storage is open (a file lock beside a SQLite file, an advisory lock on
PostgreSQL), and every transaction checks that the study's epoch is still the one this controller set, so that a
controller that lost its lock without noticing cannot write.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy as sa
from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial, TrialState

from trialplane import errors
from trialplane.controller import locking, reading
from trialplane.wire import labels

_TABLES = (
    "studies",
    "study_user_attributes",
    "study_system_attributes",
    "trials",
    "trial_params",
    "trial_user_attributes",
    "trial_system_attributes",
    "trial_values",
    "trial_intermediate_values",
)


class Storage:
    """One study in a database, open for writing by this process alone.

    Args:
        url: `sqlite:////path` or `postgresql+psycopg2://…`.
        study: the study's name; made when it is not there.
        directions: "minimize" or "maximize" per objective.
        lock: file to lock when the database is SQLite.
        lock_patience: seconds to wait for a former controller to let go, on PostgreSQL.
        give_up: asked while it waits; True ends the waiting at once.

    Raises:
        LedgerLocked: another controller has the study.
        LedgerCorrupt: the database is damaged, or the study has other directions.
        LedgerUnavailable: the database is away or the disk is full.
    """

    def __init__(
        self,
        url: str,
        study: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        lock: Path,
        *,
        lock_patience: float = locking.LOCK_PATIENCE,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url = url
        self._name = study
        self._stack = contextlib.ExitStack()
        self._epoch: str | None = None
        self._ids: dict[int, int] = {}  # number of an attempt → its id in the database
        try:
            self._engine = _engine(url)
            self._stack.callback(self._engine.dispose)
            self._lock(lock, lock_patience, give_up)
            with self._mapped():
                self._rdb = _optuna_storage(url)
                self._stack.callback(self._rdb.engine.dispose)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # optuna's word that the study exists already
                    opened = optuna.create_study(
                        storage=self._rdb, study_name=study, directions=list(directions), load_if_exists=True
                    )
                self.study_id = self._rdb.get_study_id_from_name(study)
                found = tuple(direction.name.lower() for direction in opened.directions)
                if found != directions:
                    raise errors.LedgerCorrupt(
                        f"the study {study} in {self._shown} optimizes {found}, but the job wants {directions}; "
                        "give the run another name"
                    )
                metadata = sa.MetaData()
                metadata.reflect(self._engine, only=_TABLES)
                self._tables = metadata.tables
                self._epoch = self._next_epoch()
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Releases the lock and the connections."""
        self._stack.close()

    def load(self) -> tuple[list[FrozenTrial], dict[str, Any]]:
        """All attempts in order of their numbers, and the study's system attributes."""
        with self._mapped():
            attributes = self._rdb.get_study_system_attrs(self.study_id)
            with self._engine.connect() as connection:
                trials = reading.trials(connection, self._tables, self.study_id)
            self._ids = {trial.number: trial._trial_id for trial in trials}
            return trials, attributes

    def begin(self, trial: FrozenTrial, study_attributes: Mapping[str, Any]) -> None:
        """Writes an attempt that is about to start: its parameters and attributes, in one transaction."""
        tables = self._tables
        with self._transaction() as connection:
            if trial.number in self._ids and self._row(connection, trial.number) is not None:
                return  # the commit of a try before succeeded, but its answer was lost
            trial_id = connection.execute(
                sa.insert(tables["trials"])
                .values(
                    number=trial.number,
                    study_id=self.study_id,
                    state=TrialState.RUNNING.name,
                    datetime_start=_utc(trial.datetime_start),
                )
                .returning(tables["trials"].c.trial_id)
            ).scalar_one()
            self._ids[trial.number] = trial_id
            _insert(
                connection,
                tables["trial_params"],
                [
                    {
                        "trial_id": trial_id,
                        "param_name": name,
                        "param_value": trial.distributions[name].to_internal_repr(value),
                        "distribution_json": distribution_to_json(trial.distributions[name]),
                    }
                    for name, value in trial.params.items()
                ],
            )
            self._write_attributes(connection, trial_id, trial)
            self._write_study_attributes(connection, study_attributes)

    def finish(self, trial: FrozenTrial, study_attributes: Mapping[str, Any]) -> None:
        """Writes the end of an attempt: state, values, reports and attributes, in one transaction.

        Writing the same end twice changes nothing.
        """
        tables = self._tables
        with self._transaction() as connection:
            row = self._row(connection, trial.number)
            assert row is not None, f"attempt {trial.number} was never begun"
            if row.state != TrialState.RUNNING.name:
                return
            connection.execute(
                sa.update(tables["trials"])
                .where(tables["trials"].c.trial_id == row.trial_id)
                .values(state=trial.state.name, datetime_complete=_utc(trial.datetime_complete))
            )
            _insert(
                connection,
                tables["trial_values"],
                [
                    {"trial_id": row.trial_id, "objective": index, **_number("value", value)}
                    for index, value in enumerate(trial.values or ())
                ],
            )
            _insert(
                connection,
                tables["trial_intermediate_values"],
                [
                    {"trial_id": row.trial_id, "step": step, **_number("intermediate_value", value)}
                    for step, value in trial.intermediate_values.items()
                ],
            )
            for table in ("trial_user_attributes", "trial_system_attributes"):
                connection.execute(sa.delete(tables[table]).where(tables[table].c.trial_id == row.trial_id))
            self._write_attributes(connection, row.trial_id, trial)
            self._write_study_attributes(connection, study_attributes)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Writes user attributes of the study, in one transaction."""
        table = self._tables["study_user_attributes"]
        with self._transaction() as connection:
            for key, value in attributes.items():
                mine = (table.c.study_id == self.study_id) & (table.c.key == key)
                text = json.dumps(value)
                if not connection.execute(sa.update(table).where(mine).values(value_json=text)).rowcount:
                    connection.execute(sa.insert(table).values(study_id=self.study_id, key=key, value_json=text))

    def described(self, key: str) -> Any:
        """A user attribute of the study, or None."""
        table = self._tables["study_user_attributes"]
        query = sa.select(table.c.value_json).where(table.c.study_id == self.study_id, table.c.key == key)
        with self._mapped(), self._engine.connect() as connection:
            text = connection.execute(query).scalar()
        return None if text is None else json.loads(text)

    def _row(self, connection: sa.Connection, number: int) -> sa.Row[Any, Any] | None:
        """Id and state of an attempt; by its id, as Optuna's schema has no index for its number."""
        table = self._tables["trials"]
        mine = (table.c.trial_id == self._ids[number]) & (table.c.study_id == self.study_id) & (table.c.number == number)
        return connection.execute(sa.select(table.c.trial_id, table.c.state).where(mine)).one_or_none()

    def _write_attributes(self, connection: sa.Connection, trial_id: int, trial: FrozenTrial) -> None:
        for table, attributes in (
            ("trial_user_attributes", trial.user_attrs),
            ("trial_system_attributes", trial.system_attrs),
        ):
            _insert(
                connection,
                self._tables[table],
                [{"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()],
            )

    def _write_study_attributes(self, connection: sa.Connection, attributes: Mapping[str, Any]) -> None:
        table = self._tables["study_system_attributes"]
        for key, value in attributes.items():
            connection.execute(sa.delete(table).where(table.c.study_id == self.study_id, table.c.key == key))
            connection.execute(sa.insert(table).values(study_id=self.study_id, key=key, value_json=json.dumps(value)))

    def _next_epoch(self) -> str:
        """Counts the study's epoch up by one: from now on every older controller is fenced."""
        table = self._tables["study_user_attributes"]
        mine = (table.c.study_id == self.study_id) & (table.c.key == labels.LEDGER_EPOCH)
        with self._engine.begin() as connection:
            before = connection.execute(sa.select(table.c.value_json).where(mine)).scalar()
            epoch = json.dumps(1 + json.loads(before or "0"))
            connection.execute(sa.delete(table).where(mine))
            connection.execute(sa.insert(table).values(study_id=self.study_id, key=labels.LEDGER_EPOCH, value_json=epoch))
        return epoch

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """One transaction that only the controller of the current epoch can commit."""
        table = self._tables["study_user_attributes"]
        with self._mapped(), self._engine.begin() as connection:
            fenced = connection.execute(
                sa.update(table)  # a write, so that it also locks the row until the commit
                .where(
                    table.c.study_id == self.study_id,
                    table.c.key == labels.LEDGER_EPOCH,
                    table.c.value_json == self._epoch,
                )
                .values(value_json=self._epoch)
            )
            if fenced.rowcount != 1:
                raise self._fenced()
            yield connection

    def _lock(self, file: Path, patience: float, give_up: Callable[[], bool]) -> None:
        """Takes the lock on the study, or raises LedgerLocked."""
        if self._engine.dialect.name == "sqlite":
            self._stack.enter_context(locking.lock_file(file, self._name))
            return
        locking.AdvisoryLock(self._engine, self._name, patience=patience, taken=self._taken, give_up=give_up)
        with self._mapped(), self._engine.connect():
            return

    def _taken(self, cursor: Any) -> errors.LedgerFenced | None:
        """What to raise on a new connection, when another controller has counted the epoch up since ours broke."""
        if self._epoch is None:
            return None
        query = "SELECT value_json FROM study_user_attributes WHERE study_id = %s AND key = %s"
        cursor.execute(query, (self.study_id, labels.LEDGER_EPOCH))
        found = cursor.fetchone()
        return None if found is not None and found[0] == self._epoch else self._fenced()

    def _fenced(self) -> errors.LedgerFenced:
        return errors.LedgerFenced(
            f"another controller has taken over the study {self._name} in {self._shown}; this one stops"
        )

    @property
    def _shown(self) -> str:
        return sa.make_url(self._url).render_as_string(hide_password=True)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """Database errors as ours."""
        try:
            yield
        except (sa.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # Optuna wraps what SQLAlchemy has wrapped already.
            cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
            said = getattr(cause, "orig", None) or cause or error
            text, line = str(said), errors.first_line(said)
            if isinstance(cause, sa.exc.DatabaseError) and any(
                sign in text for sign in ("malformed", "not a database", "no such table", "no such column")
            ):
                raise errors.LedgerCorrupt(
                    f"the ledger {self._shown} is damaged or not a study ({line}); nothing was changed. "
                    "Put a good copy in its place, or move the run's folder away and submit under the same name"
                ) from error
            raise errors.LedgerUnavailable(
                f"the ledger {self._shown} cannot be used now: {line}; what was told is safe. "
                f"When the disk has room and the database answers, type `platform resume {self._name}`"
            ) from error
        except (RuntimeError, AssertionError) as error:  # optuna: the tables are of another version
            raise errors.LedgerCorrupt(f"the ledger {self._shown} cannot be opened: {error}") from error


def make_tables(url: str) -> None:
    """Lets Optuna make its tables, where there are none."""
    _optuna_storage(url).engine.dispose()


def _engine(url: str) -> sa.Engine:
    made = sa.make_url(url)
    if made.get_backend_name() == "sqlite":
        engine = sa.create_engine(made, connect_args={"timeout": 30})
        sa.event.listen(engine, "connect", _tune_sqlite)
        return engine
    return sa.create_engine(made, pool_pre_ping=True, pool_size=1, max_overflow=0, connect_args=locking.CONNECT)


def _tune_sqlite(connection: Any, _: Any) -> None:
    # WAL with NORMAL survives kill -9 of the process with every commit, and a power cut without damage.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _optuna_storage(url: str) -> optuna.storages.RDBStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.storages.RDBStorage(url)


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)


def _number(column: str, value: float) -> dict[str, Any]:
    """A float as Optuna stores it: databases do not agree on NaN and infinity."""
    if math.isnan(value):
        return {column: None, f"{column}_type": "NAN"}
    if math.isinf(value):
        return {column: None, f"{column}_type": "INF_POS" if value > 0 else "INF_NEG"}
    return {column: value, f"{column}_type": "FINITE"}


def _utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    """Optuna hands out naive local times and stores naive UTC."""
    return None if moment is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)
