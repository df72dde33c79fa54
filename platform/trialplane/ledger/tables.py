"""The tables of a ledger, their creation, and the mapping of database errors.

    runs            one row per run: its facts, and the epoch, which fences controllers
    attempts        one row per attempt: request and outcome, and what Optuna's samplers need of it when the run resumes
    reports         one row per report of an attempt, in the order they arrived
    changes         one row per change of what a run on a cluster is to be, in their order
    codes           the code of runs, one row per SHA-256 of it
    sizes           bytes of the attempts and reports of a run, as the gateway has written them
    usage           bytes of the namespace's records and artifacts that MLflow has got
    schema_version  one row

Documents are JSON as text, those of `wire.records` and `controller.history`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from trialplane import errors
from trialplane.ledger import attempts as reading
from trialplane.ledger import locking
from trialplane.wire import labels

DATABASE_ERRORS = sa.exc.SQLAlchemyError  # what any statement may raise
DEFAULT_SCHEMA = "public"  # of PostgreSQL
NO_SCHEMA = "pg_catalog"  # has no ledger: without a schema, a connection sees no tables
POOL = 8  # connections of a process to PostgreSQL, for all namespaces together, beside those that hold a run's lock
CHECKS = 2  # of them, for nothing but whether a token opens a run: others may read long ledgers meanwhile
SHARE = 4  # of the others, that one of several namespaces may have at a time
TURN_SECONDS = 10.0  # to wait for one

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
    sa.Column(labels.LEDGER_IMAGES, sa.Text),
    sa.Column("forgotten", sa.Text),  # a mark, once its user has deleted it: its files go, and then its row
    sa.Column("token", sa.Text),  # SHA-256 of the token that opens the run at the gateway; none while it does not run
    sa.Column("mlflow_token", sa.Text),  # SHA-256 of the one that is derived from it, and opens MLflow's door for the run
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
reports = sa.Table(
    "reports",
    _all,
    sa.Column("run_id", sa.ForeignKey(runs.c.id), primary_key=True),
    sa.Column("mark", sa.BigInteger, primary_key=True, autoincrement=False),  # counted up by the controller
    sa.Column("trial", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),  # of the attempt
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("moment", sa.Double, nullable=False),
)
changes = sa.Table(
    "changes",
    _all,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey(runs.c.id), nullable=False),
    sa.Column("uid", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("change", sa.Text, nullable=False),
    sa.UniqueConstraint("run_id", "uid", "generation"),
)
codes = sa.Table(
    "codes", _all, sa.Column("digest", sa.Text, primary_key=True), sa.Column("data", sa.LargeBinary, nullable=False)
)
sizes = sa.Table(
    "sizes",
    _all,
    sa.Column("run_id", sa.ForeignKey(runs.c.id), primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
usage = sa.Table(
    "usage", _all, sa.Column("what", sa.Text, primary_key=True), sa.Column("bytes", sa.BigInteger, nullable=False)
)
_schema_version = sa.Table("schema_version", _all, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))

_DAMAGE = ("42", "XX")  # classes of SQLSTATE: missing tables or columns, corrupted data


def engine(url: str, *, pings: bool = True) -> sa.Engine:
    """A controller's engine: SQLite with a write-ahead log, or one connection to PostgreSQL, which also holds the lock.

    Args:
        url: of the database.
        pings: whether a connection to PostgreSQL is tested before each use, which costs a round trip.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        opened = sa.create_engine(parsed, connect_args={"timeout": 30})
        sa.event.listen(opened, "connect", _tune_sqlite)
        return opened
    return connecting(parsed, pool_pre_ping=pings, pool_size=1, connect_args=locking.CONNECT)


def in_schema(url: str, schema: str) -> str:
    """The URL of one schema of a PostgreSQL database."""
    return sa.make_url(url).update_query_dict({locking.SCHEMA: schema}).render_as_string(hide_password=False)


def connecting(url: sa.URL | str, **options: Any) -> sa.Engine:
    """An engine of PostgreSQL whose connections see the tables of the URL's schema, or of the default one, and no others."""
    created = sa.create_engine(url, max_overflow=0, **options)
    sa.event.listen(created, "do_connect", _choose_schema)
    return created


def _choose_schema(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    # The parameter is ours, and unknown to the driver. Without one PostgreSQL would look first into a schema that is named
    # as its user, which may be a team's.
    chosen = _quoted(parameters.pop(locking.SCHEMA, "") or DEFAULT_SCHEMA)
    parameters["options"] = f"{parameters.get('options', '')} -c search_path={chosen}".strip()


def _quoted(schema: object) -> str:
    return '"' + str(schema).replace('"', '""') + '"'


class Begins(Protocol):
    """Connections to a database."""

    def begin(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """A transaction, which is committed at the end of the context."""


class Connections:
    """The connections of a process to PostgreSQL, which the ledgers of all namespaces share.

    They are tested before use, so a restart of PostgreSQL causes no errors beyond its downtime.
    """

    def __init__(self, url: str) -> None:
        no_schema_url = sa.make_url(url).update_query_dict({locking.SCHEMA: NO_SCHEMA})
        self._engine = connecting(
            no_schema_url, pool_pre_ping=True, pool_size=POOL, pool_timeout=TURN_SECONDS, connect_args=locking.CONNECT
        )
        self._turns = threading.BoundedSemaphore(POOL - CHECKS)

    def share(self, schema: str = "", most: int = SHARE) -> Share:
        """The share of the ledger in a schema.

        Args:
            schema: "" is the database's default one.
            most: connections that it may have at a time, beside those for checks.
        """
        return Share(self._engine, schema, self._turns, most)

    def close(self) -> None:
        """Close them."""
        self._engine.dispose()


class Share:
    """The share of one ledger in the connections of a process: at most so many at a time, that others have some too.

    The schema is set for a transaction and ends with it, so no connection comes with another ledger's.

    Args:
        engine: of all.
        schema: of the ledger; "" is the database's default one.
        turns: of all.
        most: connections that it may have at a time, beside those for checks.
    """

    def __init__(self, engine: sa.Engine, schema: str, turns: threading.BoundedSemaphore, most: int) -> None:
        self._engine = engine.execution_options(**{locking.SCHEMA: schema})
        self._path = sa.text(f"SET LOCAL search_path = {_quoted(schema or DEFAULT_SCHEMA)}")
        self._most = most
        self._own_turns = threading.BoundedSemaphore(most)
        self._turns = turns

    @contextlib.contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction, which is committed at the end of the context.

        Raises:
            sqlalchemy.exc.TimeoutError: no connection has become free.
        """
        until = time.monotonic() + TURN_SECONDS
        if not self._own_turns.acquire(timeout=TURN_SECONDS):
            raise sa.exc.TimeoutError(f"all of its {self._most} connections have been in use for {TURN_SECONDS:g} s")
        try:
            if not self._turns.acquire(timeout=max(0.0, until - time.monotonic())):
                text = f"all {POOL - CHECKS} connections of the process have been in use for {TURN_SECONDS:g} s"
                raise sa.exc.TimeoutError(text)
            try:
                with self.checking() as connection:
                    yield connection
            finally:
                self._turns.release()
        finally:
            self._own_turns.release()

    @contextlib.contextmanager
    def checking(self) -> Iterator[sa.Connection]:
        """A transaction for no more than a look at whether a token opens a run: there is always a connection for that.

        Raises:
            sqlalchemy.exc.TimeoutError: no connection has become free.
        """
        with self._engine.begin() as connection:
            connection.execute(self._path)
            yield connection


def schema(connection: sa.Connection) -> str:
    """The schema of the ledger that a connection is for; "" for the database's default one."""
    shared = connection.get_execution_options().get(locking.SCHEMA)
    return locking.schema(connection.engine.url) if shared is None else str(shared)


def prepare(engine: Begins) -> None:
    """Create the tables if there are none.

    Raises:
        LedgerCorrupt: there are tables of another version.
    """
    with engine.begin() as connection:
        if is_there(connection):
            return
    with writing(engine) as connection:
        if connection.dialect.name != "sqlite":  # two controllers may be the first at the same time
            chosen = schema(connection)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(locking.key(chosen, "schema_version"))))
            if chosen:
                connection.execute(sa.schema.CreateSchema(chosen, if_not_exists=True))
        if not is_there(connection):
            _all.create_all(connection, checkfirst=False)  # fails on tables of another program with these names
            connection.execute(sa.insert(_schema_version).values(version=reading.VERSION))


def is_there(connection: sa.Connection) -> bool:
    """Whether the tables exist.

    Raises:
        LedgerCorrupt: they are of another version.
    """
    if not sa.inspect(connection).has_table(_schema_version.name):
        return False
    version = connection.execute(sa.select(_schema_version.c.version)).scalar_one()
    reading.check_version(version, shown(connection.engine.url))
    return True


@contextlib.contextmanager
def writing(engine: Begins) -> Iterator[sa.Connection]:
    """A transaction that reads before it writes, or changes tables: in SQLite it takes the write lock at its start."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def select(connection: sa.Connection) -> reading.Select:
    """The function by which `ledger.attempts` reads through this connection."""
    return lambda query, values: connection.execute(sa.text(query), values).all()


def document(connection: sa.Connection, is_run: sa.ColumnElement[bool], name: str) -> Any:
    """The value in a column of the run that `mine` chooses, or None."""
    text = connection.execute(sa.select(runs.c[name]).where(is_run)).scalar()
    return None if text is None else json.loads(text)


def describe(connection: sa.Connection, is_run: sa.ColumnElement[bool], described: Mapping[str, Any]) -> None:
    """Write facts about that run, by column name."""
    texts = {name: json.dumps(value) for name, value in described.items()}
    connection.execute(sa.update(runs).where(is_run).values(texts))


def keep_code(connection: sa.Connection, data: bytes) -> str:
    """Stores the code of a run, unless another has the same; gives what is in the run's column for it: its SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    _lock_code(connection)
    if not has_code(connection, data):
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        connection.execute(insert(codes).values(digest=digest, data=data).on_conflict_do_nothing())
    return digest


def has_code(connection: sa.Connection, data: bytes) -> bool:
    """Whether some run has the same code."""
    digest = hashlib.sha256(data).hexdigest()
    return connection.execute(sa.select(codes.c.digest).where(codes.c.digest == digest)).scalar() is not None


def drop_code(connection: sa.Connection) -> None:
    """Delete the code that no run has any more."""
    _lock_code(connection)
    connection.execute(sa.delete(codes).where(codes.c.digest.not_in(sa.select(runs.c.code).where(runs.c.code.is_not(None)))))


def _lock_code(connection: sa.Connection) -> None:
    """Lock the code until the end of the transaction, so that no other deletes what this one relies on.

    No run has a name with a slash, so no run's lock has this key.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(locking.key(schema(connection), f"{codes.name}/"))))


def shown(url: sa.URL | str) -> str:
    """A database's URL for messages, without its password."""
    return sa.make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def mapped(url: str, run: str) -> Iterator[None]:
    """Map database errors to errors of trialplane, by their codes.

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
        line = reason(error)
        if _is_damage(_cause(error)):
            raise errors.LedgerCorrupt(
                f"the ledger {shown(url)} is damaged or is not a ledger ({line}); nothing was changed. "
                "Put a good copy in its place, or move the run's folder away and submit under the same name"
            ) from error
        raise errors.LedgerUnavailable(
            f"the ledger {shown(url)} cannot be used now: {line}; all records are safe. "
            f"When the disk has room and the database answers, type `platform resume {run}`"
        ) from error


def reason(error: BaseException) -> str:
    """Return the message of the database, or of its driver, in one line."""
    return errors.first_line(_cause(error))


def _cause(error: BaseException) -> BaseException:
    """The driver's error, where it is one of SQLAlchemy's that has one."""
    return getattr(error, "orig", None) or error


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return reading.is_damage(error)
    return (getattr(error, "pgcode", None) or "").startswith(_DAMAGE)


def _tune_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # WAL with NORMAL keeps every commit when the process is killed, and is not damaged by a power cut.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
