"""Before the MLflow server starts: checks that its plugin knows this MLflow, waits for its database, and migrates it.

An init container runs it. One Job as a Helm hook would not do: before the install PostgreSQL of the same release does not
exist yet, and after it `--wait` waits for a server that waits for the Job. Pods that start together take turns by an
advisory lock. Only the standard library, SQLAlchemy, packaging and MLflow with its plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import metadata

import sqlalchemy
from packaging.requirements import Requirement

LOCK = 0x6D6C666C6F77  # "mlflow"; any number that no other program uses
PLUGIN = "mlflow-kubernetes-plugins"
# Makes the server's application. The plugin raises an error if MLflow has an endpoint for which it has no rule.
START = "from mlflow_kubernetes_plugins.auth.middleware import create_app; create_app()"
START_TIMEOUT = 300.0  # seconds that it may take, imports included
PAUSE = 2.0  # seconds between attempts to connect
# `mlflow db upgrade`. It takes the URL, with its password, as an argument only, and arguments can be read by everybody.
UPGRADE = "import os; from mlflow.db import commands; commands(['upgrade', os.environ['MLFLOW_BACKEND_STORE_URI']])"

# Records of a version in which MLflow had no workspaces. MLflow has put them into a workspace that is not a team's.
FORMER = "SELECT count(*) FROM runs JOIN experiments USING (experiment_id) WHERE workspace = 'default'"


def check() -> None:
    """Checks that the plugin supports this version of MLflow, before its tables are migrated for good.

    Raises:
        SystemExit: it does not, or it is not installed.
    """
    try:
        version = metadata.version("mlflow")
        plugin = f"{PLUGIN} {metadata.version(PLUGIN)}"
        requirements = [Requirement(text) for text in metadata.requires(PLUGIN) or ()]
    except metadata.PackageNotFoundError as error:
        told = f"MLflow cannot be served with {PLUGIN}, which keeps the teams apart: {error.name} is not installed"
        raise SystemExit(f"{told}; {_remedy('')}") from None
    supported = next((needed.specifier for needed in requirements if needed.name == "mlflow"), None)
    reason = ""
    if supported is not None and not supported.contains(version, prereleases=True):
        reason = f"it supports mlflow{supported}"
    else:
        reason = _start_problem()
    if reason:
        told = f"MLflow {version} cannot be served with {plugin}, which keeps the teams apart: {reason}"
        raise SystemExit(f"{told}; {_remedy(str(supported or ''))}")


def _start_problem() -> str:
    """Why the server's application cannot be made; "" if it can."""
    command = [sys.executable, "-c", START]
    try:
        started = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"its application was not made within {START_TIMEOUT:g} s"
    if not started.returncode:
        return ""
    sys.stderr.write(started.stderr)
    return (started.stderr.strip().splitlines() or [f"it ended with {started.returncode}"])[-1]


def _remedy(supported: str) -> str:
    text = "the database has not been changed: set image.controller of the chart to an image of the chart's own version"
    return f"{text}, or build yours with `pip install {PLUGIN} 'mlflow{supported}'`"


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
            f"MLflow's database has records from before teams had workspaces ({former}), which nobody could see: copy what "
            "is needed with the former chart, then empty the database (`DROP OWNED BY CURRENT_USER`) and MLflow's volume"
        )
    if code:
        raise SystemExit(
            f"`mlflow db upgrade` ended with {code}{' after its time was up' if code == 124 else ''}; its reason is above. "
            "Nothing serves MLflow until it succeeds: restore a backup, or raise mlflow.migrationTimeout of the chart"
        )


def main() -> None:
    """Reads everything from the environment."""
    check()
    url = os.environ["MLFLOW_BACKEND_STORE_URI"]
    migrate(url, float(os.environ["MIGRATION_TIMEOUT"]))


if __name__ == "__main__":
    main()
