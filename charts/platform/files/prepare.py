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

LOCK = 0x6D6C666C6F77  # "mlflow"; any number that no other program uses
PAUSE = 2.0  # seconds between attempts to connect
# `mlflow db upgrade`. It takes the URL, with its password, as an argument only, and arguments can be read by everybody.
UPGRADE = "import os; from mlflow.db import commands; commands(['upgrade', os.environ['MLFLOW_BACKEND_STORE_URI']])"


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
                raise SystemExit(
                    f"{where} cannot be reached: {reason}; look at the database's pod and the policies"
                ) from error
            sys.stderr.write(f"waiting for {where}: {reason}\n")
            time.sleep(PAUSE)


def migrate(url: str, timeout: float) -> None:
    """Brings the tables to the version of this MLflow; makes them in an empty database."""
    with connect(url, time.monotonic() + timeout) as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        # The lock ends with the connection, whatever happens here.
        environ = {**os.environ, "MLFLOW_BACKEND_STORE_URI": url}
        try:
            code = subprocess.run([sys.executable, "-c", UPGRADE], env=environ, check=False, timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            code = 124
    if code:
        raise SystemExit(
            f"`mlflow db upgrade` ended with {code}{' after its time was up' if code == 124 else ''}; its reason is above. "
            "Nothing serves MLflow until it succeeds: restore a backup, or raise mlflow.migrationTimeout of the chart"
        )


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
