"""Budget of a namespace: limits on the bytes of its runs in PostgreSQL, which include MLflow's records, and of artifacts.

Each writer checks the budget: the operator when it records a run (`Archive.record_run`), the gateway when it writes
attempts and reports (`served`) and when it passes requests on to MLflow (`Archive.spend`). Bytes of attempts and reports
are counted by run, in the transaction that writes them, so deleting a run frees them. Bytes in MLflow are counted by
namespace, because they stay in MLflow after the run is deleted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from trialplane.errors import InputError, LedgerFull
from trialplane.ledger.tables import attempts, codes, reports, runs, sizes, usage

MLFLOW: Final = "mlflow"
ARTIFACTS: Final = "artifacts"
Category = Literal["mlflow", "artifacts"]
ROW = 200  # bytes of a row in addition to its texts, including its index entries; an estimate
AT_ONCE = 64 << 10  # bytes that a process may write before it counts the bytes of all processes again
_LARGEST_RUNS = 3  # number of runs that a message names
_UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))  # each with its power of two

_INSERT_SIZE = postgresql.insert(sizes)
_ADD_SIZE = _INSERT_SIZE.on_conflict_do_update(
    index_elements=[sizes.c.run_id], set_={"bytes": sizes.c.bytes + _INSERT_SIZE.excluded.bytes}
)


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits on the bytes that the runs of one namespace may keep.

    Attributes:
        namespace: Name of the namespace, for messages.
        database: Maximum number of bytes in the database.
        artifacts: Maximum number of bytes of artifacts in MLflow; None for no limit.
    """

    namespace: str
    database: int = 1 << 30
    artifacts: int | None = None

    def check(self, connection: sa.Connection, more: int, *, may_exceed: bool = False) -> int:
        """Check that `more` bytes may be written to the database, and return how many the budget leaves after them.

        The result is negative if `may_exceed` has allowed more than the budget.

        Args:
            connection: Connection to the namespace's ledger.
            more: Number of bytes that are about to be written.
            may_exceed: Whether a tenth more than the budget is allowed, so that the result of a running trial is not lost.

        Raises:
            LedgerFull: The bytes would exceed the budget.
        """
        used_bytes = count_used(connection)
        limit = self.database + (self.database // 10 if may_exceed else 0)
        if used_bytes + more > limit:
            raise LedgerFull(
                f"the runs in {self.namespace} use {size_text(used_bytes)} of the platform's database; the budget is "
                f"{size_text(self.database)} ({_usage_text(connection)}). Existing records are safe. "
                "`platform delete RUN` frees what a run uses outside of MLflow. Or ask an administrator to raise the team's "
                "budget.database in the chart's values, or to clean up MLflow: see `platform docs teams`"
            )
        return self.database - used_bytes - more

    def check_artifacts(self, connection: sa.Connection, more: int) -> None:
        """Check that `more` bytes of artifacts may be logged.

        Raises:
            LedgerFull: The bytes would exceed the budget.
        """
        used_bytes = _bytes_in_mlflow(connection, ARTIFACTS)
        if self.artifacts is not None and used_bytes + more > self.artifacts:
            raise LedgerFull(
                f"the runs in {self.namespace} have logged {size_text(used_bytes)} of artifacts to MLflow, and "
                f"{size_text(more)} more would exceed the budget of {size_text(self.artifacts)}. Ask an administrator to "
                "raise the team's budget.artifacts in the chart's values, or to clean up MLflow: see `platform docs teams`"
            )


def read(text: str, namespaces: Sequence[str]) -> dict[str, Budget]:
    """Return the budget of each namespace, from JSON such as `{"vision": {"database": 1073741824, "artifacts": null}}`.

    A namespace that is missing in the JSON gets the default limits.

    Raises:
        InputError: The JSON has another form.
    """
    try:
        by_namespace: Mapping[str, Mapping[str, Any]] = json.loads(text or "{}")
        return {name: Budget(name, **by_namespace.get(name, {})) for name in namespaces}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"the budgets of namespaces cannot be read: {error}") from error


def grow(connection: sa.Connection, run_id: int, size: int) -> None:
    """Add bytes to the count of a run's attempts and reports. The number is negative if a write freed some."""
    connection.execute(_ADD_SIZE, {"run_id": run_id, "bytes": size})


def add_usage(connection: sa.Connection, category: Category, size: int) -> None:
    """Add bytes to the count of MLflow's records or artifacts."""
    insert = postgresql.insert(usage).values(what=category, bytes=size)
    connection.execute(insert.on_conflict_do_update(index_elements=[usage.c.what], set_={"bytes": usage.c.bytes + size}))


def size_of(connection: sa.Connection, run_id: int, number: int) -> int:
    """Return the bytes of one attempt; 0 if there is none."""
    # In SQL: ROW + coalesce(octet_length(request), 0) + coalesce(octet_length(outcome), 0) + …
    row_bytes = sum((sa.func.coalesce(sa.func.octet_length(c), 0) for c in _text_columns(attempts)), sa.literal(ROW))
    is_attempt = (attempts.c.run_id == run_id) & (attempts.c.number == number)
    return int(connection.execute(sa.select(row_bytes).where(is_attempt)).scalar() or 0)


def size_of_reports(connection: sa.Connection, run_id: int, marks: Sequence[int]) -> int:
    """Return the bytes of the reports with these marks. Marks without a report do not count."""
    total = sa.func.coalesce(sa.func.sum(sa.func.octet_length(reports.c.metrics) + ROW), 0)
    query = sa.select(total).where(reports.c.run_id == run_id, reports.c.mark.in_(marks))
    return int(connection.execute(query).scalar_one())


def size_text(size: int) -> str:
    """Return a number of bytes with a unit: `1.5 GiB`."""
    for unit, power in _UNITS:
        if size >= 1 << power:
            return f"{round(size / (1 << power), 1):,g} {unit}"
    return f"{size:,} bytes"


def count_used(connection: sa.Connection) -> int:
    """Return the bytes that a namespace uses in the database: runs, attempts, reports, code, and MLflow's records."""
    # Unlike `octet_length`, `pg_column_size` counts the bytes of a text as stored, which may be compressed.
    run_bytes = sum((sa.func.coalesce(sa.func.pg_column_size(c), 0) for c in _text_columns(runs)), sa.literal(ROW))
    parts = (
        sa.select(sa.func.coalesce(sa.func.sum(run_bytes), 0)).scalar_subquery(),
        sa.select(sa.func.coalesce(sa.func.sum(sizes.c.bytes), 0)).scalar_subquery(),
        _code_bytes().scalar_subquery(),
    )
    ledger_bytes = int(connection.execute(sa.select(sum(parts, sa.literal(0)))).scalar_one())
    return ledger_bytes + _bytes_in_mlflow(connection, MLFLOW)


def _usage_text(connection: sa.Connection) -> str:
    """Return the bytes of code, of MLflow and of the largest runs, for a message."""
    query = sa.select(runs.c.name, sizes.c.bytes).join(runs).order_by(sizes.c.bytes.desc()).limit(_LARGEST_RUNS)
    largest = ", ".join(f"{name} {size_text(size)}" for name, size in connection.execute(query))
    code_bytes = int(connection.execute(_code_bytes()).scalar_one())
    text = f"code {size_text(code_bytes)}, MLflow {size_text(_bytes_in_mlflow(connection, MLFLOW))}"
    return f"{text}, the largest runs: {largest}" if largest else text


def _bytes_in_mlflow(connection: sa.Connection, category: Category) -> int:
    """Return the counted bytes of MLflow's records or artifacts."""
    return int(connection.execute(sa.select(usage.c.bytes).where(usage.c.what == category)).scalar() or 0)


def _code_bytes() -> sa.Select[Any]:
    """Return a query for the bytes of all packed code."""
    return sa.select(sa.func.coalesce(sa.func.sum(sa.func.octet_length(codes.c.data)), 0))


def _text_columns(table: sa.Table) -> list[sa.Column[str]]:
    """Return the columns of a table that hold texts, for a SQL expression that adds up their bytes."""
    return [column for column in table.columns if isinstance(column.type, sa.Text)]
