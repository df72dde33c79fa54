"""The checks of `helm test`: queries the studies' database, the gateway, and MLflow through that, and prints each result.

Each line is `pass` or `fail` with what to look at; ends with 1 when one failed.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Callable

import sqlalchemy

TIMEOUT = 15.0  # seconds for each answer


def fetch(url: str) -> str:
    """The body at an address."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return str(answer.read().decode(errors="replace"))


def database() -> str:
    """The version of the studies' database."""
    engine = sqlalchemy.create_engine(os.environ["TRIALPLANE_LEDGER"], connect_args={"connect_timeout": int(TIMEOUT)})
    with engine.connect() as connection:
        return str(connection.execute(sqlalchemy.text("SHOW server_version")).scalar())


def main() -> int:
    """Runs all checks; gives the exit status."""
    gateway, mlflow = os.environ["GATEWAY"], f"/namespaces/{os.environ['NAMESPACE']}/mlflow/health"
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("studies' database", database, "the Secret with its URL, the database's pod"),
        ("gateway", lambda: fetch(f"{gateway}/health"), "the log of the gateway's pod"),
        # Nobody else reaches it. The gateway has it read its database, and ask the API server.
        ("MLflow", lambda: fetch(f"{gateway}{mlflow}"), "the logs of the gateway's pod and of MLflow's"),
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
