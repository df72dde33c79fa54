"""The checks of `helm test`: queries the gateway, MLflow and the studies' database, and prints the result of each.

Each line is `pass` or `fail` with what to look at; ends with 1 when one failed.
"""

from __future__ import annotations

import base64
import os
import sys
import urllib.request
from collections.abc import Callable

import sqlalchemy

TIMEOUT = 15.0  # seconds for each answer


def fetch(url: str) -> str:
    """The body at an address; with MLflow's credentials when there are any."""
    request = urllib.request.Request(url)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if user and url.startswith(os.environ["MLFLOW_TRACKING_URI"]):
        pair = f"{user}:{os.environ['MLFLOW_TRACKING_PASSWORD']}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return str(answer.read().decode(errors="replace"))


def database() -> str:
    """The version of the studies' database."""
    engine = sqlalchemy.create_engine(os.environ["TRIALPLANE_LEDGER"], connect_args={"connect_timeout": int(TIMEOUT)})
    with engine.connect() as connection:
        return str(connection.execute(sqlalchemy.text("SHOW server_version")).scalar())


def main() -> int:
    """Runs all checks; gives the exit status."""
    gateway, mlflow = os.environ["GATEWAY"], os.environ["MLFLOW_TRACKING_URI"]
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("studies' database", database, "the Secret with its URL, the database's pod"),
        ("gateway", lambda: fetch(f"{gateway}/health"), "the log of the gateway's pod"),
        ("MLflow", lambda: fetch(f"{mlflow}/health"), "the log of MLflow's pod"),
        # Not exempt from the check of the Host header, and read from MLflow's database.
        (
            "MLflow's database",
            lambda: fetch(f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=1"),
            "mlflow.allowedHosts, the log of MLflow's pod",
        ),
    ]
    failed = 0
    for name, check, cure in checks:
        try:
            sys.stdout.write(f"pass  {name}: {_line(check())}\n")
        except (OSError, sqlalchemy.exc.SQLAlchemyError) as error:  # urllib's are OSErrors
            failed = 1
            sys.stdout.write(f"fail  {name}: {_line(str(error))}; look at {cure}\n")
    return failed


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


if __name__ == "__main__":
    sys.exit(main())
