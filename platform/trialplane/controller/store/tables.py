"""The tables of a ledger, their creation, and the mapping of database errors.

    runs            one row per run: its facts, and the epoch, which fences controllers
    attempts        one row per attempt: request and outcome, and what Optuna's samplers need of it when the run resumes
    schema_version  one row

Documents are JSON as text, those of `wire.records` and `controller.history`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.controller.store import locking
from trialplane.wire import attempts as reading
from trialplane.wire import labels

DATABASE_ERRORS = sa.exc.SQLAlchemyError  # what any statement may raise

_all = sa.MetaData()
runs = sa.Table(
    "runs",
    _all,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("directions", sa.Text, nullable=False),  # "minimize" or "maximize" per objective
    sa.Column("epoch", sa.Integer, nullable=False),  # of the newest controller
    sa.Column(labels.LEDGER_JOB, sa.Text),
    sa.Column(labels.LEDGER_SUBMISSION, sa.Text),
    sa.Column(labels.LEDGER_CODE, sa.Text),
    sa.Column(labels.LEDGER_STATUS, sa.Text),
    sa.Column(labels.LEDGER_DESIRED, sa.Text),
    sa.Column("optuna", sa.Text, nullable=False),  # what samplers store beside the trials
)
attempts = sa.Table(
    "attempts",
    _all,
    sa.Column("run_id", sa.ForeignKey(runs.c.id), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trial", sa.Integer, nullable=False),
    sa.Column("place", sa.Integer),  # among the ends of the run; none while it runs
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("optuna", sa.Text, nullable=False),
    sa.UniqueConstraint("run_id", "place"),
    sa.Index("attempts_at", "run_id", "trial"),
)
_schema_version = sa.Table("schema_version", _all, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))

_DAMAGE = ("42", "XX")  # classes of SQLSTATE: missing tables or columns, corrupted data


def engine(url: str) -> sa.Engine:
    """A controller's engine: SQLite with a write-ahead log, or one connection to PostgreSQL, which also holds the lock."""
    made = sa.make_url(url)
    if made.get_backend_name() == "sqlite":
        opened = sa.create_engine(made, connect_args={"timeout": 30})
        sa.event.listen(opened, "connect", _tune_sqlite)
        return opened
    return sa.create_engine(made, pool_pre_ping=True, pool_size=1, max_overflow=0, connect_args=locking.CONNECT)


def prepare(engine: sa.Engine) -> None:
    """Creates the tables if there are none.

    Raises:
        LedgerCorrupt: there are tables of a later version.
    """
    with engine.connect() as connection:
        if is_there(connection):
            return
    with writing(engine) as connection:
        if connection.dialect.name != "sqlite":  # two controllers may be the first at the same time
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(labels.ledger_lock("schema_version"))))
        if not is_there(connection):
            _all.create_all(connection, checkfirst=False)  # fails on tables of another program with these names
            connection.execute(sa.insert(_schema_version).values(version=reading.VERSION))


def is_there(connection: sa.Connection) -> bool:
    """Whether the tables exist.

    Raises:
        LedgerCorrupt: they are of a later version.
    """
    if not sa.inspect(connection).has_table(_schema_version.name):
        return False
    found = connection.execute(sa.select(_schema_version.c.version)).scalar_one()
    reading.check_version(found, shown(connection.engine.url))
    return True


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that reads before it writes, or changes tables: in SQLite it takes the write lock at its start."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def select(connection: sa.Connection) -> reading.Select:
    """The function by which `wire.attempts` reads through this connection."""
    return lambda query, values: connection.execute(sa.text(query), values).all()


def document(connection: sa.Connection, mine: sa.ColumnElement[bool], name: str) -> Any:
    """The value in a column of the run that `mine` chooses, or None."""
    text = connection.execute(sa.select(runs.c[name]).where(mine)).scalar()
    return None if text is None else json.loads(text)


def describe(connection: sa.Connection, mine: sa.ColumnElement[bool], described: Mapping[str, Any]) -> None:
    """Writes facts about that run, by column name."""
    texts = {name: json.dumps(value) for name, value in described.items()}
    connection.execute(sa.update(runs).where(mine).values(texts))


def shown(url: sa.URL | str) -> str:
    """A database's URL for messages, without its password."""
    return sa.make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def mapped(url: str, run: str) -> Iterator[None]:
    """Maps database errors to errors of trialplane, by their codes.

    Args:
        url: of the database.
        run: the one that is worked on.

    Raises:
        LedgerCorrupt: the database is damaged or is not a ledger.
        LedgerUnavailable: it is away, or the disk is full.
    """
    try:
        yield
    except DATABASE_ERRORS as error:
        foreign = getattr(error, "orig", None) or error
        line = errors.first_line(foreign)
        if _is_damage(foreign):
            raise errors.LedgerCorrupt(
                f"the ledger {shown(url)} is damaged or is not a ledger ({line}); nothing was changed. "
                "Put a good copy in its place, or move the run's folder away and submit under the same name"
            ) from error
        raise errors.LedgerUnavailable(
            f"the ledger {shown(url)} cannot be used now: {line}; all records are safe. "
            f"When the disk has room and the database answers, type `platform resume {run}`"
        ) from error


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return reading.is_damage(error)
    return (getattr(error, "pgcode", None) or "").startswith(_DAMAGE)


def _tune_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # WAL with NORMAL keeps every commit when the process is killed, and is not damaged by a power cut.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
