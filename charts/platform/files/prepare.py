"""Before the MLflow server starts: waits for its database, and migrates it.

An init container runs it. One Job as a Helm hook would not do: before the install PostgreSQL of the same release does not
exist yet, and after it `--wait` waits for a server that waits for the Job. Pods that start together take turns by an
advisory lock. Only the standard library, SQLAlchemy and the command line of MLflow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import sqlalchemy

LOCK = 0x6D6C666C6F77  # "mlflow"; any number that no other program uses
PAUSE = 2.0  # seconds between attempts to connect
# `mlflow db upgrade`. It takes the URL, with its password, as an argument only, and arguments can be read by everybody.
UPGRADE = "import os; from mlflow.db import commands; commands(['upgrade', os.environ['MLFLOW_BACKEND_STORE_URI']])"

# Records of a version in which MLflow had no workspaces: they are in the one that MLflow puts them into, which is no team's.
FORMER = "SELECT count(*) FROM runs JOIN experiments USING (experiment_id) WHERE workspace = 'default'"


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
    """Brings the tables to the version of this MLflow; makes them in an empty database.

    Raises:
        SystemExit: it cannot, or they hold records that would be out of reach.
    """
    with connect(url, time.monotonic() + timeout) as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        # The lock ends with the connection, whatever happens here.
        environ = {**os.environ, "MLFLOW_BACKEND_STORE_URI": url}
        try:
            code = subprocess.run([sys.executable, "-c", UPGRADE], env=environ, check=False, timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            code = 124
        former = (
            0 if code or "default" in os.environ["WORKSPACES"].split(",") else connection.scalar(sqlalchemy.text(FORMER))
        )
    if former:
        raise SystemExit(
            f"MLflow's database has {former} records from before teams had workspaces, which nobody could see: copy what is "
            "needed with the former chart, then empty the database (`DROP OWNED BY CURRENT_USER`) and MLflow's volume"
        )
    if code:
        raise SystemExit(
            f"`mlflow db upgrade` ended with {code}{' after its time was up' if code == 124 else ''}; its reason is above. "
            "Nothing serves MLflow until it succeeds: restore a backup, or raise mlflow.migrationTimeout of the chart"
        )


def main() -> None:
    """Reads everything from the environment."""
    url = os.environ["MLFLOW_BACKEND_STORE_URI"]
    migrate(url, float(os.environ["MIGRATION_TIMEOUT"]))


if __name__ == "__main__":
    main()
