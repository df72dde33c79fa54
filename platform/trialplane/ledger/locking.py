"""Lock that allows one controller per run: a file beside SQLite's, or PostgreSQL's advisory lock.

The lock rejects a second controller early. A controller that loses the lock without noticing cannot write either, because
its epoch is outdated (see `study`).
"""

from __future__ import annotations

import fcntl
import io
import itertools
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.wire import backoff, labels, records
from trialplane.wire.holder import Holder

SCHEMA = "schema"  # parameter of a URL: the schema of the tables; without it they are in the default schema
LOCK_PATIENCE = 0.5  # seconds to wait for the lock: `platform status` holds it for a moment to test whether it is free
# Both ends of a connection detect within half a minute that the other end has vanished, as when a node is lost. `CONNECT`
# sets this for the client. `_KEEPALIVE` sets it for the server, whose session holds the lock until it detects the loss.
_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3, "tcp_user_timeout": 20000}
STATEMENT_SECONDS = 30  # time limit of a statement, because a slow one may block others
CONNECT: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20000,
    "options": f"-c statement_timeout={STATEMENT_SECONDS * 1000}",
}


class AdvisoryLock:
    """PostgreSQL's advisory lock on a run, held by the connection of `engine`.

    Args:
        engine: Engine with one connection, which also writes. Each new connection takes the lock before its first use.
        run: Name of the run.
        patience: Seconds to wait for another controller to end.
        fencing_error: Function that is polled during the wait, with an open cursor. It returns an error, which ends the
            wait, if another controller has taken over the run, and None otherwise.
        should_give_up: Function that is polled during the wait. True ends the wait at once.
    """

    def __init__(
        self,
        engine: sa.Engine,
        run: str,
        *,
        patience: float,
        fencing_error: Callable[[Any], errors.LedgerError | None],
        should_give_up: Callable[[], bool],
    ) -> None:
        self._run = run
        self._patience = patience
        self._fencing_error = fencing_error
        self._should_give_up = should_give_up
        self._key = key(schema(engine.url), run)
        sa.event.listen(engine, "connect", lambda connection, _: self._lock(connection))

    def _lock(self, connection: Any) -> None:
        """Take the lock on a new connection.

        Raises:
            LedgerLocked: Another controller works on the run, and the wait has ended.
            LedgerError: The error of `fencing_error`.
        """
        with connection.cursor() as cursor:
            for name, value in _KEEPALIVE.items():  # PostgreSQL then releases the lock of a machine that has vanished
                cursor.execute(f"SET {name} = {value}")
        deadline = time.monotonic() + self._patience
        for tries in itertools.count(1):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))
                (is_locked,) = cursor.fetchone()
                fencing_error = None if is_locked else self._fencing_error(cursor)
            connection.commit()  # ends the transaction; the lock stays, because it belongs to the session
            if is_locked:
                return
            if fencing_error is not None:
                raise fencing_error
            if time.monotonic() > deadline or self._should_give_up():
                raise locked_error(self._run, holder="on another connection")
            time.sleep(backoff.pause(tries, longest=1.0, first=0.02))


def schema(url: sa.URL) -> str:
    """Return the schema that a PostgreSQL URL chooses; "" for the default one."""
    value = url.query.get(SCHEMA, "")
    return value if isinstance(value, str) else value[0]


def key(schema: str, run: str) -> int:
    """Return the key of the advisory lock on a run, a number that is unique in the whole database.

    Args:
        schema: Schema of the run's ledger; "" for the default one.
        run: Name of the run.
    """
    return labels.ledger_lock_key(f"{schema}/{run}" if schema else run)


def keep_alive(connection: socket.socket) -> None:
    """Enable TCP keepalives on a connection between a controller and the gateway.

    Each end then detects within half a minute that the other has vanished, and the gateway releases the run's lock.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, CONNECT["keepalives_idle"])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, CONNECT["keepalives_interval"])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, CONNECT["keepalives_count"])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, CONNECT["tcp_user_timeout"])


def lock_file(file: Path, run: str) -> io.TextIOWrapper:
    """Take the lock of a run in a SQLite file, and describe this process in the lock file.

    Returns:
        Handle of the lock file. Closing it releases the lock.

    Raises:
        LedgerLocked: Another controller works on the run.
        LedgerUnavailable: The lock file cannot be written or locked.
    """
    try:
        handle = file.open("a+")
    except OSError as error:
        raise errors.LedgerUnavailable(f"cannot write {file}: {error.strerror}") from error
    deadline = time.monotonic() + LOCK_PATIENCE
    while not _try_lock(handle):
        if time.monotonic() > deadline:
            handle.seek(0)
            holder = Holder.read(handle.read())
            handle.close()
            raise locked_error(run, holder.description)
        time.sleep(0.02)
    handle.seek(0)
    handle.truncate()
    handle.write(f"{records.to_json(Holder.of_this_process())}\n")
    handle.flush()
    return handle


def locked_error(run: str, holder: str) -> errors.LedgerLocked:
    """Return the error for a second controller of a run. `holder` describes the process that has the lock."""
    return errors.LedgerLocked(
        f"another controller ({holder}) is working on the run {run}. "
        f"Show the run with `platform status {run}`, or end it with `platform cancel {run}`"
    )


def _try_lock(handle: io.TextIOWrapper) -> bool:
    """Take the lock of a file if it is free. Return whether it was.

    Raises:
        LedgerUnavailable: The file system has no locks. The handle is closed then.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        handle.close()
        raise errors.LedgerUnavailable(
            f"{handle.name} cannot be locked: {error.strerror}; set TRIALPLANE_HOME to a file system with locks "
            "(an NFS mount has them unless it is mounted with nolock)"
        ) from error
    return True
