"""Tables of a ledger, their creation, connections to a database, and the mapping of its errors.

    runs            one row per run: its facts, and its epoch, which only the newest controller knows
    attempts        one row per attempt: request, outcome, and Optuna's view, which samplers need when the run resumes
    reports         one row per report of an attempt, in the order of their arrival
    changes         one row per change of the desired state of a run on a cluster, in order
    codes           code of the runs, one row per SHA-256
    sizes           bytes of a run's attempts and reports that the gateway has written
    usage           bytes of the namespace's records and artifacts in MLflow
    schema_version  one row

Documents are JSON as text. `wire.records` and `controller.history` define them.
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

DATABASE_ERRORS = sa.exc.SQLAlchemyError  # any statement may raise them
DEFAULT_SCHEMA = "public"  # PostgreSQL's
NO_SCHEMA = "pg_catalog"  # has no ledger, so a connection of the pool sees no tables until `Share` sets its schema
POOL = 8  # connections of a process to PostgreSQL for all namespaces; controllers' own connections come in addition
CHECKS = 2  # connections of the pool that are reserved for checks of tokens, because others may be busy with long ledgers
SHARE = 4  # connections of the others that one of several namespaces may use at a time
TURN_SECONDS = 10.0  # maximum wait for a connection

_all = sa.MetaData()
runs = sa.Table(
    "runs",
    _all,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("directions", sa.Text, nullable=False),  # "minimize" or "maximize" per objective
    sa.Column("epoch", sa.Integer, nullable=False),  # the newest controller's
    sa.Column(labels.LEDGER_JOB, sa.Text),
    sa.Column(labels.LEDGER_SUBMISSION, sa.Text),
    sa.Column(labels.LEDGER_CODE, sa.Text),
    sa.Column(labels.LEDGER_STATUS, sa.Text),
    sa.Column(labels.LEDGER_DESIRED, sa.Text),
    sa.Column("optuna", sa.Text, nullable=False),  # state of the samplers
    sa.Column(labels.LEDGER_IMAGES, sa.Text),
    # Mark of a deleted run, until its files and then its row are removed.
    sa.Column("forgotten", sa.Text, key="removal_mark"),
    sa.Column("token", sa.Text),  # SHA-256 of the token that opens the run at the gateway; NULL while the run is stopped
    sa.Column("mlflow_token", sa.Text),  # SHA-256 of the derived token, which opens MLflow for the run
)
attempts = sa.Table(
    "attempts",
    _all,
    sa.Column("run_id", sa.ForeignKey(runs.c.id), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trial", sa.Integer, nullable=False),
    sa.Column("end_number", sa.Integer),  # the run's ends are numbered in order, from 1; NULL while the attempt runs
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("optuna", sa.Text, nullable=False),
    sa.UniqueConstraint("run_id", "end_number"),
    sa.Index("attempts_at", "run_id", "trial"),
)
reports = sa.Table(
    "reports",
    _all,
    sa.Column("run_id", sa.ForeignKey(runs.c.id), primary_key=True),
    sa.Column("mark", sa.BigInteger, primary_key=True, autoincrement=False),  # incremented by the controller
    sa.Column("trial", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),  # the attempt's
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

_DAMAGE_CLASSES = ("42", "XX")  # of SQLSTATE: missing tables or columns, corrupted data


def engine(url: str, *, pings: bool = True) -> sa.Engine:
    """Return an engine for one process that uses one ledger: SQLite with a write-ahead log, or one connection to PostgreSQL.

    With PostgreSQL, the engine has a single connection, because the lock on a controller's run belongs to the connection
    that took it: a second one could write although the lock is lost. See `locking`.

    Args:
        url: URL of the database.
        pings: Whether a connection to PostgreSQL is tested before each use, which costs a round trip.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        sqlite_engine = sa.create_engine(parsed, connect_args={"timeout": 30})
        sa.event.listen(sqlite_engine, "connect", _tune_sqlite)
        return sqlite_engine
    return postgresql_engine(parsed, pool_pre_ping=pings, pool_size=1, connect_args=locking.CONNECT)


def in_schema(url: sa.URL | str, schema: str) -> str:
    """Return the URL of one schema of a PostgreSQL database."""
    return sa.make_url(url).update_query_dict({locking.SCHEMA: schema}).render_as_string(hide_password=False)


def postgresql_engine(url: sa.URL | str, **options: Any) -> sa.Engine:
    """Return an engine of PostgreSQL whose connections see only the tables of the URL's schema, or of the default one.

    It never opens more connections than its `pool_size`.
    """
    schema_engine = sa.create_engine(url, max_overflow=0, **options)
    sa.event.listen(schema_engine, "do_connect", _choose_schema)
    return schema_engine


def _choose_schema(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    """Replace the parameter `schema` of a new connection, which the driver does not know, by a search path.

    SQLAlchemy calls this before it connects. The default schema gets a search path too: without one, PostgreSQL would look
    into the schema named like its user first, and a team may have this name.

    Args:
        parameters: Parameters of the driver's `connect`, which are changed.
    """
    search_path = _quoted(parameters.pop(locking.SCHEMA, "") or DEFAULT_SCHEMA)
    parameters["options"] = f"{parameters.get('options', '')} -c search_path={search_path}".strip()


def _quoted(schema: object) -> str:
    """Return the name of a schema as SQL."""
    return '"' + str(schema).replace('"', '""') + '"'


class Connector(Protocol):
    """Source of connections to a database: an engine or a `Share`."""

    def begin(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Begin a transaction, which is committed at the end of the context."""


class Connections:
    """Connections of a process to PostgreSQL, which the ledgers of all namespaces share.

    Each is tested before use, so connections that a restart of PostgreSQL broke cause no errors once it is back.

    Args:
        url: URL of the database.
    """

    def __init__(self, url: str) -> None:
        no_schema_url = sa.make_url(url).update_query_dict({locking.SCHEMA: NO_SCHEMA})
        self._engine = postgresql_engine(
            no_schema_url, pool_pre_ping=True, pool_size=POOL, pool_timeout=TURN_SECONDS, connect_args=locking.CONNECT
        )
        self._turns = threading.BoundedSemaphore(POOL - CHECKS)

    def share(self, schema: str = "", limit: int = SHARE) -> Share:
        """Return the share of the ledger in a schema.

        Args:
            schema: Name of the schema; "" for the default one.
            limit: Maximum number of connections in use, not counting those for checks.
        """
        return Share(self._engine, schema, self._turns, limit)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


class Share:
    """Share of one ledger in the connections of a process: a limit that leaves some to the other ledgers.

    The schema is set for one transaction only, so no connection starts with the schema of another ledger.

    Args:
        engine: Engine of all ledgers.
        schema: Schema of the ledger; "" for the default one.
        turns: Semaphore that counts the connections in use by all ledgers.
        limit: Maximum number of connections in use, not counting those for checks.
    """

    def __init__(self, engine: sa.Engine, schema: str, turns: threading.BoundedSemaphore, limit: int) -> None:
        self._engine = engine.execution_options(**{locking.SCHEMA: schema})
        self._set_path = sa.text(f"SET LOCAL search_path = {_quoted(schema or DEFAULT_SCHEMA)}")
        self._limit = limit
        self._own_turns = threading.BoundedSemaphore(limit)
        self._turns = turns

    @contextlib.contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Begin a transaction, which is committed at the end of the context.

        Raises:
            sqlalchemy.exc.TimeoutError: No connection has become free in time.
        """
        deadline = time.monotonic() + TURN_SECONDS
        if not self._own_turns.acquire(timeout=TURN_SECONDS):
            raise sa.exc.TimeoutError(f"all of its {self._limit} connections have been in use for {TURN_SECONDS:g} s")
        try:
            if not self._turns.acquire(timeout=max(0.0, deadline - time.monotonic())):
                text = f"all {POOL - CHECKS} connections of the process have been in use for {TURN_SECONDS:g} s"
                raise sa.exc.TimeoutError(text)
            try:
                with self._transaction() as connection:
                    yield connection
            finally:
                self._turns.release()
        finally:
            self._own_turns.release()

    def checking(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Begin a transaction that only checks a token.

        It does not count against the limit of the share, and `CHECKS` connections of the pool are reserved for it.

        Raises:
            sqlalchemy.exc.TimeoutError: No connection has become free in time.
        """
        return self._transaction()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Begin a transaction in the share's schema, without regard to the limits."""
        with self._engine.begin() as connection:
            connection.execute(self._set_path)
            yield connection


def schema(connection: sa.Connection) -> str:
    """Return the schema of a connection's ledger; "" for the default one."""
    share_schema = connection.get_execution_options().get(locking.SCHEMA)  # None unless the connection is of a `Share`
    return locking.schema(connection.engine.url) if share_schema is None else str(share_schema)


def create_if_missing(engine: Connector) -> None:
    """Create the tables, and on PostgreSQL their schema, if there are none.

    Raises:
        LedgerCorrupt: There are tables of another version.
    """
    with engine.begin() as connection:
        if has_tables(connection):
            return
    with begin_writing(engine) as connection:
        if connection.dialect.name != "sqlite":
            # Two processes may get here at the same time. The lock makes the second one wait, and then find the tables.
            ledger_schema = schema(connection)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(locking.key(ledger_schema, "schema_version"))))
            if ledger_schema:
                connection.execute(sa.schema.CreateSchema(ledger_schema, if_not_exists=True))
        if not has_tables(connection):
            _all.create_all(connection, checkfirst=False)  # fails if another program has tables with these names
            connection.execute(sa.insert(_schema_version).values(version=reading.VERSION))


def has_tables(connection: sa.Connection) -> bool:
    """Return whether the tables exist.

    Raises:
        LedgerCorrupt: They are of another version.
    """
    if not sa.inspect(connection).has_table(_schema_version.name):
        return False
    version = connection.execute(sa.select(_schema_version.c.version)).scalar_one()
    # The message names the schema of this ledger: a connection of the pool has another one than the pool's URL.
    url, ledger_schema = connection.engine.url, schema(connection)
    reading.check_version(version, redacted_url(in_schema(url, ledger_schema) if ledger_schema else url))
    return True


@contextlib.contextmanager
def begin_writing(engine: Connector) -> Iterator[sa.Connection]:
    """Begin a transaction that creates tables or reads before it writes. In SQLite it takes the write lock at once.

    Otherwise SQLite would let two transactions read, and then refuse the write of one of them.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def select(connection: sa.Connection) -> reading.Select:
    """Return the function with which `ledger.attempts` reads through a connection."""
    return lambda query, values: connection.execute(sa.text(query), values).all()


def read_column(connection: sa.Connection, this_run: sa.ColumnElement[bool], name: str) -> Any:
    """Return the value in a column of the run that `this_run` selects; None if the column is empty."""
    text = connection.execute(sa.select(runs.c[name]).where(this_run)).scalar()
    return None if text is None else json.loads(text)


def write_facts(connection: sa.Connection, this_run: sa.ColumnElement[bool], facts: Mapping[str, Any]) -> None:
    """Write facts about the run that `this_run` selects, by column name."""
    texts = {name: json.dumps(value) for name, value in facts.items()}
    connection.execute(sa.update(runs).where(this_run).values(texts))


def store_code(connection: sa.Connection, data: bytes) -> str:
    """Store the packed code of a run unless it is stored already. Return its SHA-256, which the run's row refers to."""
    digest = hashlib.sha256(data).hexdigest()
    _lock_code(connection)
    if not has_code(connection, data):
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        connection.execute(insert(codes).values(digest=digest, data=data).on_conflict_do_nothing())
    return digest


def has_code(connection: sa.Connection, data: bytes) -> bool:
    """Return whether the same packed code is stored already."""
    digest = hashlib.sha256(data).hexdigest()
    return connection.execute(sa.select(codes.c.digest).where(codes.c.digest == digest)).scalar() is not None


def delete_unused_code(connection: sa.Connection) -> None:
    """Delete the packed code to which no run refers any more."""
    _lock_code(connection)
    connection.execute(sa.delete(codes).where(codes.c.digest.not_in(sa.select(runs.c.code).where(runs.c.code.is_not(None)))))


def _lock_code(connection: sa.Connection) -> None:
    """Lock `codes` until the end of the transaction, so that no other transaction deletes code to which this one refers.

    The key of the lock is that of a name with a slash. No run has such a name, so no run's lock has the same key.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(locking.key(schema(connection), f"{codes.name}/"))))


def redacted_url(url: sa.URL | str) -> str:
    """Return a database's URL for messages, without its password."""
    return sa.make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def map_errors(url: str, run: str) -> Iterator[None]:
    """Raise the errors of a database as errors of trialplane.

    Raises:
        LedgerCorrupt: The database is damaged or is not a ledger.
        LedgerUnavailable: The database is unavailable, or the disk is full.
    """
    try:
        yield
    except DATABASE_ERRORS as error:
        line = reason(error)
        if _is_damage(_cause(error)):
            raise errors.LedgerCorrupt(
                f"the ledger {redacted_url(url)} is damaged or is not a ledger ({line}); nothing was changed. "
                "Put a good copy in its place, or move the run's folder away and submit under the same name"
            ) from error
        raise errors.LedgerUnavailable(
            f"the ledger {redacted_url(url)} cannot be used now: {line}; all records are safe. "
            f"When the disk has room and the database answers, type `platform resume {run}`"
        ) from error


def reason(error: BaseException) -> str:
    """Return the message of the database, or of its driver, in one line."""
    return errors.first_line(_cause(error))


def _cause(error: BaseException) -> BaseException:
    """Return the driver's error inside an error of SQLAlchemy, or else the error itself."""
    return getattr(error, "orig", None) or error


def _is_damage(error: BaseException) -> bool:
    """Return whether a driver's error means that the database is damaged or is not a ledger."""
    if isinstance(error, sqlite3.Error):
        return reading.is_damage(error)
    return (getattr(error, "pgcode", None) or "").startswith(_DAMAGE_CLASSES)


def _tune_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """Set a new connection to a write-ahead log, with which reads do not block writes."""
    # With WAL and NORMAL no commit is lost if the process is killed, and a power failure does not damage the file.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
