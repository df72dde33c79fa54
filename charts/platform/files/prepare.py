"""Before the MLflow server starts: waits for its database, migrates it, and writes the file of basic authentication.

An init container runs it. One Job as a Helm hook would not do: before the install PostgreSQL of the same release does not
exist yet, and after it `--wait` waits for a server that waits for the Job. Pods that start together take turns by an
advisory lock. Only the standard library, SQLAlchemy and the command line of MLflow.
"""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import time
from pathlib import Path

import sqlalchemy

LOCK = 0x6D6C666C6F77  # "mlflow"; any number that nobody else takes
PAUSE = 2.0  # seconds between attempts to connect


def connect(url: str, deadline: float) -> sqlalchemy.Connection:
    """A connection to the database, as soon as there is one.

    Raises:
        SystemExit: there is none at the deadline.
    """
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    while True:
        try:
            return engine.connect()
        except sqlalchemy.exc.OperationalError as error:
            where = engine.url.render_as_string(hide_password=True)
            reason = str(error.orig).strip().splitlines()[0]
            if time.monotonic() > deadline:
                raise SystemExit(f"{where} cannot be reached: {reason}; look at the database's pod and the network policies") from error
            print(f"waiting for {where}: {reason}", file=sys.stderr, flush=True)
            time.sleep(PAUSE)


def migrate(url: str, timeout: float) -> None:
    """Brings the tables to the version of this MLflow; makes them in an empty database."""
    with connect(url, time.monotonic() + timeout) as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        # Ends with the connection, whatever happens here.
        subprocess.run(["mlflow", "db", "upgrade", url], check=True, timeout=timeout)


def write_auth(path: Path, url: str, permission: str) -> None:
    """Writes what `--app-name basic-auth` reads; the administrator comes from the environment."""
    config = configparser.ConfigParser()
    config["mlflow"] = {
        "default_permission": permission,
        "database_uri": url.replace("%", "%%"),  # % begins an interpolation
        "auth_cache_ttl_seconds": "60",  # a password is else hashed anew at each request
    }
    with path.open("w") as file:
        config.write(file)
    path.chmod(0o600)


def main() -> None:
    """Reads everything from the environment."""
    url = os.environ["MLFLOW_BACKEND_STORE_URI"]
    migrate(url, float(os.environ["MIGRATION_TIMEOUT"]))
    target = os.environ.get("MLFLOW_AUTH_CONFIG_PATH")
    if target:
        write_auth(Path(target), url, os.environ["MLFLOW_DEFAULT_PERMISSION"])


if __name__ == "__main__":
    main()
