"""One controller at a time: the lock on a study, beside a SQLite file or PostgreSQL's advisory lock.

The lock only keeps others out early; what keeps a controller from writing that has lost it unnoticed is the study's epoch
(see `study`).
"""

from __future__ import annotations

import fcntl
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.wire import labels, records
from trialplane.wire.holder import Holder

LOCK_PATIENCE = 0.5  # seconds; a `platform status` that looks whether the lock is held holds it for a moment itself
# A peer that is gone without a word (a lost node) is noticed within half a minute, by the server too, whose session holds
# the lock for as long as it believes in it.
_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3, "tcp_user_timeout": 20000}
CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20000,
}


class AdvisoryLock:
    """PostgreSQL's lock on a study, held by whatever connection `engine` has.

    Args:
        engine: with one connection, which also writes: where that breaks, the next one locks first.
        study: the run's name.
        patience: seconds to wait for another controller to end.
        taken: told an open cursor, whether another controller has taken the study over; asked while it waits.
        give_up: asked while it waits; True ends the waiting at once.
    """

    def __init__(
        self,
        engine: sa.Engine,
        study: str,
        *,
        patience: float,
        taken: Callable[[Any], errors.LedgerError | None],
        give_up: Callable[[], bool],
    ) -> None:
        self._study = study
        self._patience = patience
        self._taken = taken
        self._give_up = give_up
        sa.event.listen(engine, "connect", lambda connection, _: self._lock(connection))

    def _lock(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            for name, value in _KEEPALIVE.items():
                cursor.execute(f"SET {name} = {value}")
        deadline = time.monotonic() + self._patience
        pause = 0.02
        while True:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", (labels.ledger_lock(self._study),))
                (locked,) = cursor.fetchone()
                taken = None if locked else self._taken(cursor)
            connection.commit()  # the lock stays, it is the session's
            if locked:
                return
            if taken is not None:
                raise taken
            if time.monotonic() > deadline or self._give_up():
                raise locked_error(self._study, "on another connection")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


def lock_file(file: Path, study: str) -> io.TextIOWrapper:
    """Takes the lock of a study in a SQLite file; it is held while the handle is open."""
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
            raise locked_error(study, holder.where)
        time.sleep(0.02)
    handle.seek(0)
    handle.truncate()
    handle.write(f"{records.to_json(Holder.me())}\n")
    handle.flush()
    return handle


def locked_error(study: str, holder: str) -> errors.LedgerLocked:
    """What a second controller hears."""
    return errors.LedgerLocked(
        f"another controller ({holder}) is working on the run {study}; "
        f"see it with `platform status {study}`, end it with `platform cancel {study}`"
    )


def _try_lock(handle: io.TextIOWrapper) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        handle.close()
        raise errors.LedgerUnavailable(
            f"{handle.name} cannot be locked: {error.strerror}; set TRIALPLANE_HOME to a file system that has locks "
            "(a mount of NFS has them unless it says nolock)"
        ) from error
    return True
