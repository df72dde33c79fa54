"""The SQLite database of MLflow, created whole or not at all.

MLflow needs seconds for its tables. If it is killed meanwhile, it can never continue: it fails at the tables that it has
created. So the tables are created in another folder, and the finished file is moved.

`python -m trialplane.exporter.store FILE COMMAND...` creates FILE if it is missing, and then becomes COMMAND.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, event

from trialplane import errors
from trialplane.training import building
from trialplane.wire import backoff, paths

_SCHEME = "sqlite:///"
_PATIENCE = 60.0  # seconds without a change, after which an incomplete database is one of a killed process


def ensure(uri: str) -> None:
    """Create the database of a tracking URI, if it is a file that is missing; see `create`.

    Raises:
        Exception: The database cannot be created.
    """
    file = uri.removeprefix(_SCHEME)
    if file not in ("", ":memory:", uri) and "?" not in file:
        create(Path(file))


def create(file: Path) -> None:
    """Create a database of MLflow, unless it exists. If another process creates it, wait for that process instead.

    A trial's own MLflow may create it in place. If that is killed, the incomplete database is renamed and replaced.

    Raises:
        Exception: The database cannot be created.
    """
    if file.exists() and not _is_incomplete(file):
        return
    with building.lock(file):
        while not _is_created(file):
            for leftover in file.parent.glob(f"{glob.escape(file.name)}.*{building.PART}"):  # by a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            # A new folder each time, as MLflow keeps connections to a file whose tables it failed to create.
            folder = Path(tempfile.mkdtemp(building.PART, f"{file.name}.", file.parent))
            part = folder / file.name
            _create_tables(part, paths.mlflow_artifacts(file.parent))
            if not file.exists():  # a trial's own MLflow may have begun one meanwhile
                part.replace(file)
            shutil.rmtree(folder)


def _is_created(file: Path) -> bool:
    """Return whether a database exists. Wait while another process creates it; rename it if that process was killed."""
    for tries in itertools.count(1):
        if not file.exists() or not _is_incomplete(file):
            break
        now = time.time()
        # The file has not changed for a while. A time of change far in the future is no sign of work, either.
        if abs(now - file.stat().st_mtime) >= _PATIENCE:
            file.rename(file.with_name(f"{file.name}.{now:.0f}.incomplete"))
        else:  # MLflow takes no lock while it creates tables, and announces no end
            time.sleep(backoff.pause(tries, longest=1.0, first=0.02))
    return file.exists()


def _create_tables(file: Path, artifacts: Path) -> None:
    """Create MLflow's tables in a new file, and write them to the disk. `artifacts` is the folder of MLflow's artifacts."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # takes seconds, and is rarely needed

    with _without_waits():
        store = SqlAlchemyStore(f"{_SCHEME}{file}", str(artifacts))
        store.engine.dispose()
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _without_waits() -> Iterator[None]:
    """Let new connections to SQLite in the context not wait for the disk, which takes most of the time of 70 migrations."""

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", set_up)
    try:
        yield
    finally:
        event.remove(Engine, "connect", set_up)


def _is_incomplete(file: Path) -> bool:
    """Return whether a file is empty, or has tables of MLflow without the experiment that MLflow creates after them."""
    try:
        # It is opened for writing, because SQLite first undoes the unfinished writes of a killed process.
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as database:
            if database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
                return True
            return database.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is None
    except sqlite3.Error:  # no database of MLflow, so not ours to replace; MLflow will say what is wrong
        return False


def main() -> int:
    """Create the database, and then become the command; return an exit code of `errors` if that fails."""
    file, *command = sys.argv[1:]
    try:
        create(Path(file))
    except Exception as error:  # noqa: BLE001 - whatever it is, the user needs one line
        sys.stderr.write(f"MLflow's database {file} cannot be created: {errors.first_line(error)}\n")
        return errors.EXIT_PLATFORM
    return os.execv(command[0], command)  # it does not return


if __name__ == "__main__":
    sys.exit(main())
