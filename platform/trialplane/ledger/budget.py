"""The budget of a namespace: how many bytes its runs may keep in PostgreSQL, MLflow's part included, and of artifacts.

Whoever writes asks: the operator before it records a run (`archive`), the gateway for each attempt (`served`), and for what
it passes on to MLflow (`archive`, `spend`). Bytes of attempts are counted by run, in the transaction that writes them, so a
run that is deleted frees them. What MLflow has got is counted by namespace, as MLflow keeps it beyond the run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from trialplane.errors import InputError, LedgerFull
from trialplane.ledger.tables import attempts, codes, runs, sizes, usage

MLFLOW: Final = "mlflow"
ARTIFACTS: Final = "artifacts"
Kept = Literal["mlflow", "artifacts"]
ROW = 200  # bytes that a row takes beside its texts, with its place in the indexes
AT_ONCE = 64 << 10  # bytes that a process may take before it counts what others have written
_LARGEST = 3  # runs that a message names
_UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the runs of one namespace may keep.

    Attributes:
        namespace: its name, for messages.
        database: bytes.
        artifacts: bytes that MLflow has got of them; None for any number.
    """

    namespace: str
    database: int = 1 << 30
    artifacts: int | None = None

    def check(self, connection: sa.Connection, more: int, *, spare: bool = False) -> int:
        """How many bytes of the database are left, once there are some more.

        Args:
            connection: of the namespace's ledger.
            more: bytes that are about to be written.
            spare: whether they may go a tenth beyond the budget: what a trial that runs has cost may be days of GPUs.

        Raises:
            LedgerFull: there is no room for them.
        """
        kept = used(connection)
        if kept + more > self.database + (self.database // 10 if spare else 0):
            raise LedgerFull(
                f"the runs in {self.namespace} keep {shown(kept)} in the platform's database, and "
                f"{shown(self.database)} is the most that they may ({_parts(connection)}); what is recorded is safe. "
                "`platform delete RUN` frees what a run keeps outside of MLflow; an administrator raises budget.database of "
                "the team in the chart's values, or clears MLflow: see `platform docs teams`"
            )
        return self.database - kept - more

    def check_artifacts(self, connection: sa.Connection, more: int) -> None:
        """Checks that artifacts may be logged, as `check`; all of them belong to trials that run.

        Raises:
            LedgerFull: there is no room for them.
        """
        kept = _kept(connection, ARTIFACTS)
        if self.artifacts is not None and kept + more > self.artifacts:
            raise LedgerFull(
                f"the runs in {self.namespace} have logged artifacts of {shown(kept)} to MLflow, and "
                f"{shown(self.artifacts)} is the most that they may: there is no room for {shown(more)} more. An "
                "administrator raises budget.artifacts of the team in the chart's values, or clears MLflow: see "
                "`platform docs teams`"
            )


def read(text: str, namespaces: Sequence[str]) -> dict[str, Budget]:
    """The budgets of namespaces, from JSON: `{"vision": {"database": 1073741824, "artifacts": null}}`; "" for the defaults.

    Raises:
        InputError: it is something else.
    """
    try:
        given: Mapping[str, Mapping[str, Any]] = json.loads(text or "{}")
        return {name: Budget(name, **given.get(name, {})) for name in namespaces}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"the budgets of namespaces cannot be read: {error}") from error


def grow(connection: sa.Connection, run_id: int, size: int) -> None:
    """Counts bytes of attempts of a run."""
    new = postgresql.insert(sizes).values(run_id=run_id, bytes=size)
    connection.execute(new.on_conflict_do_update(index_elements=[sizes.c.run_id], set_={"bytes": sizes.c.bytes + size}))


def keep(connection: sa.Connection, what: Kept, size: int) -> None:
    """Counts bytes that MLflow gets."""
    new = postgresql.insert(usage).values(what=what, bytes=size)
    connection.execute(new.on_conflict_do_update(index_elements=[usage.c.what], set_={"bytes": usage.c.bytes + size}))


def size_of(connection: sa.Connection, run_id: int, number: int) -> int:
    """Bytes of one attempt; 0 if there is none."""
    texts = sum((sa.func.coalesce(sa.func.octet_length(c), 0) for c in _texts(attempts)), sa.literal(ROW))
    mine = (attempts.c.run_id == run_id) & (attempts.c.number == number)
    return int(connection.execute(sa.select(texts).where(mine)).scalar() or 0)


def shown(size: int) -> str:
    """A number of bytes, for people."""
    unit, bits = next(((unit, bits) for unit, bits in _UNITS if size >= 1 << bits), ("bytes", 0))
    return f"{round(size / (1 << bits), 1):,g} {unit}"


def used(connection: sa.Connection) -> int:
    """Bytes of a namespace in the database: they are counted as they are stored, or where that is compressed by rows."""
    facts = sum((sa.func.coalesce(sa.func.pg_column_size(c), 0) for c in _texts(runs)), sa.literal(ROW))
    parts = (
        sa.select(sa.func.coalesce(sa.func.sum(facts), 0)).scalar_subquery(),
        sa.select(sa.func.coalesce(sa.func.sum(sizes.c.bytes), 0)).scalar_subquery(),
        _code().scalar_subquery(),
    )
    return int(connection.execute(sa.select(sum(parts, sa.literal(0)))).scalar_one()) + _kept(connection, MLFLOW)


def _parts(connection: sa.Connection) -> str:
    """What takes the room."""
    query = sa.select(runs.c.name, sizes.c.bytes).join(runs).order_by(sizes.c.bytes.desc()).limit(_LARGEST)
    largest = ", ".join(f"{name} {shown(size)}" for name, size in connection.execute(query))
    code = int(connection.execute(_code()).scalar_one())
    return f"code {shown(code)}, MLflow {shown(_kept(connection, MLFLOW))}" + (
        f", the largest runs: {largest}" if largest else ""
    )


def _kept(connection: sa.Connection, what: Kept) -> int:
    return int(connection.execute(sa.select(usage.c.bytes).where(usage.c.what == what)).scalar() or 0)


def _code() -> sa.Select[Any]:
    return sa.select(sa.func.coalesce(sa.func.sum(sa.func.octet_length(codes.c.data)), 0))


def _texts(table: sa.Table) -> list[sa.Column[str]]:
    return [column for column in table.columns if isinstance(column.type, sa.Text)]
