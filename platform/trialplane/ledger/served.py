"""One run in PostgreSQL, as the gateway writes it for its controller: with a token, and opened again by the same epoch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from trialplane import errors
from trialplane.ledger import archive, locking, tables
from trialplane.ledger import attempts as reading
from trialplane.ledger import budget as budgets
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.budget import Budget
from trialplane.ledger.study import AttemptGrowth, ReportGrowth, Storage
from trialplane.ledger.tables import attempts, reports, runs


class Refused(Exception):
    """The token does not open the run."""


class _Sizes:
    """Sizes of the rows of one run as this process has written them, so that the database need not count most of them.

    Args:
        number: of the first attempt that is not there yet.
        mark: of the last report.
    """

    def __init__(self, number: int, mark: int) -> None:
        self._number = number
        self._mark = mark
        self._running: dict[int, dict[str, int]] = {}  # number of a running attempt → bytes of its texts, by column

    def has(self, growth: AttemptGrowth | ReportGrowth) -> bool:
        """Whether it is of a running attempt that this process has begun."""
        return isinstance(growth, AttemptGrowth) and growth.number in self._running

    def growth(self, growth: AttemptGrowth | ReportGrowth) -> tuple[int, bool]:
        """Return the bytes that the rows grow by, and whether that is known."""
        if isinstance(growth, ReportGrowth):
            is_new = not growth.deleted and min(growth.sizes, default=0) > self._mark
            return sum(growth.sizes.values()) + budgets.ROW * len(growth.sizes), is_new
        before = self._running.get(growth.number, {})
        size = sum(len(text) - before.get(column, 0) for column, text in growth.texts.items())
        return size + (0 if before else budgets.ROW), bool(before) or growth.number >= self._number

    def written(self, growth: AttemptGrowth | ReportGrowth) -> None:
        """Record what was committed."""
        if isinstance(growth, ReportGrowth):
            self._mark = max([self._mark, *growth.sizes])
            return
        before = self._running.pop(growth.number, None)
        is_new, self._number = growth.number >= self._number, max(self._number, growth.number + 1)
        if "outcome" not in growth.texts and (is_new or before is not None):
            lengths = {column: len(text) for column, text in growth.texts.items()}
            self._running[growth.number] = {**(before or {}), **lengths}


class Served(Storage):
    """One run in the database, written by a controller elsewhere, whose token is checked in each transaction.

    Any method raises Refused once the token opens the run no longer.

    Args:
        url: of the database.
        run: its name.
        directions: "minimize" or "maximize" per objective.
        digest: of the token.
        budget: of the run's namespace.
        epoch: of a controller that had the run open, whose connection broke; None for one that opens it.
    """

    _pings = False  # its controller sends again what failed, and then there is a new connection

    def __init__(
        self,
        url: str,
        run: str,
        directions: tuple[Literal["minimize", "maximize"], ...],
        digest: str,
        budget: Budget,
        epoch: int | None,
    ) -> None:
        self._digest = digest
        self._budget = budget
        self._room = 0  # bytes that may be written before the namespace's are counted again
        self._sampler_bytes = 0  # bytes of what samplers store, as last written
        self._former = epoch
        self._sizes = _Sizes(0, 0)
        super().__init__(url, run, directions, Path(os.devnull), lock_patience=locking.LOCK_PATIENCE)

    @property
    def epoch(self) -> int:
        """The controller's."""
        assert self._epoch is not None
        return self._epoch

    def page(self, after: int, size: int) -> tuple[list[Attempt], str]:
        """Attempts with numbers above `after`, see `ledger.attempts.page`; at first also what samplers store, as JSON."""
        with self._reading() as connection:
            sampler_state = "{}"
            if after < 0:
                sampler_state = connection.execute(sa.select(runs.c.optuna).where(runs.c.id == self._id)).scalar_one()
            try:
                return reading.page(tables.select(connection), self._run, after, size, optuna=True).attempts, sampler_state
            except ValueError as error:
                raise errors.LedgerCorrupt(f"the ledger of {self._run} is damaged: {error}") from error

    def _lock(self, file: Path, patience: float, give_up: Callable[[], bool]) -> None:
        """Take the lock; a controller that is no longer the newest, or has no token, is not kept waiting for it."""
        with tables.mapped(self._url, self._run), self._engine.connect() as connection:
            self._find(connection)
        self._engine.dispose()  # the next connection takes the lock
        super()._lock(file, patience, give_up)

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        self._find(connection)  # again, and now the row stays as it is until the run is open
        epoch = super()._open(connection, directions) if self._former is None else self._former

        # As of now: what others write later is fenced.
        number = sa.select(sa.func.coalesce(sa.func.max(attempts.c.number) + 1, 0)).where(attempts.c.run_id == self._id)
        mark = sa.select(sa.func.coalesce(sa.func.max(reports.c.mark), 0)).where(reports.c.run_id == self._id)
        self._sizes = _Sizes(connection.execute(number).scalar_one(), connection.execute(mark).scalar_one())
        return epoch

    def _find(self, connection: sa.Connection) -> None:
        """Find the run, and check that its controller may open it."""
        columns = sa.select(runs.c.id, runs.c.epoch, runs.c.token)
        run_row = connection.execute(columns.where(runs.c.name == self._run).with_for_update()).one_or_none()
        self._check(None if run_row is None else run_row.token)
        assert run_row is not None
        if self._former is not None:
            if run_row.epoch != self._former:
                raise self._fenced()
            self._id, self._epoch = run_row.id, run_row.epoch

    @contextlib.contextmanager
    def _transaction(
        self, sampler_state: Mapping[str, Any] | None, growth: AttemptGrowth | ReportGrowth | None = None
    ) -> Iterator[sa.Connection]:
        """See `study.Storage`; growth is counted, and refused beyond the namespace's budget.

        Reports get three quarters of a budget at most, and what it has to spare is for attempts: a run must be able to end.

        Raises:
            LedgerFull: it is.
        """
        with super()._transaction(sampler_state) as connection:
            if growth is None:
                yield connection
                return
            size, is_known = self._sizes.growth(growth)
            before = 0 if is_known else self._size(connection, growth)
            yield connection
            if not is_known:
                size = self._size(connection, growth) - before
            sampler_bytes = self._sampler_bytes if sampler_state is None else len(json.dumps(sampler_state))
            more = size + max(0, sampler_bytes - self._sampler_bytes)
            if more > self._room:
                is_attempt = isinstance(growth, AttemptGrowth)
                reserve = 0 if is_attempt else self._budget.database // 4
                may_exceed = is_attempt and (before > 0 or self._sizes.has(growth))
                remaining = self._budget.check(connection, more + reserve, may_exceed=may_exceed)
                self._room = min(remaining + more, budgets.AT_ONCE)
            budgets.grow(connection, self._id, size)
        self._room, self._sampler_bytes = min(self._room - more, budgets.AT_ONCE), sampler_bytes
        self._sizes.written(growth)

    def _size(self, connection: sa.Connection, growth: AttemptGrowth | ReportGrowth) -> int:
        if isinstance(growth, AttemptGrowth):
            return budgets.size_of(connection, self._id, growth.number)
        return budgets.size_of_reports(connection, self._id, [*growth.sizes, *growth.deleted])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with super()._reading() as connection:
            self._check(connection.execute(sa.select(runs.c.token).where(runs.c.id == self._id)).scalar())
            yield connection

    def _check(self, token: str | None) -> None:
        """Whether the token still opens the run."""
        if not archive.same(token, self._digest):
            raise Refused
