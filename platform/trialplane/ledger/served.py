"""One run in PostgreSQL, written by the gateway for its controller, which has a token and may reopen it with its epoch."""

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


class InvalidToken(Exception):
    """Error of a token that does not open the run."""


class _Sizes:
    """Sizes of the rows of one run that this process has written, so that the database need not count most of them.

    Args:
        number: Number of the next new attempt.
        mark: Mark of the last report.
    """

    def __init__(self, number: int, mark: int) -> None:
        self._number = number
        self._mark = mark
        self._running: dict[int, dict[str, int]] = {}  # number of a running attempt → bytes of its texts, by column

    def is_running(self, growth: AttemptGrowth | ReportGrowth) -> bool:
        """Whether the texts are of a running attempt that this process has begun."""
        return isinstance(growth, AttemptGrowth) and growth.number in self._running

    def growth(self, growth: AttemptGrowth | ReportGrowth) -> tuple[int, bool]:
        """Return the number of bytes that the rows grow by, and whether it is exact. If not, the database must count."""
        if isinstance(growth, ReportGrowth):
            is_new = not growth.deleted and min(growth.sizes, default=0) > self._mark
            return sum(growth.sizes.values()) + budgets.ROW * len(growth.sizes), is_new
        old_sizes = self._running.get(growth.number, {})
        size = sum(len(text) - old_sizes.get(column, 0) for column, text in growth.texts.items())
        return size + (0 if old_sizes else budgets.ROW), bool(old_sizes) or growth.number >= self._number

    def add(self, growth: AttemptGrowth | ReportGrowth) -> None:
        """Add the sizes of rows that were committed."""
        if isinstance(growth, ReportGrowth):
            self._mark = max([self._mark, *growth.sizes])
            return
        old_sizes = self._running.pop(growth.number, None)
        is_new, self._number = growth.number >= self._number, max(self._number, growth.number + 1)
        if "outcome" not in growth.texts and (is_new or old_sizes is not None):
            lengths = {column: len(text) for column, text in growth.texts.items()}
            self._running[growth.number] = {**(old_sizes or {}), **lengths}


class Served(Storage):
    """One run in the database, written by a remote controller, whose token is checked in each transaction.

    Every method raises InvalidToken once the token no longer opens the run.

    Args:
        url: URL of the database.
        run: Name of the run.
        directions: "minimize" or "maximize" per objective.
        digest: Hash of the token.
        budget: Budget of the run's namespace.
        epoch: Epoch of a controller that reopens the run after its connection broke; None if it opens the run first.
    """

    _pings = False  # the controller repeats a failed request, on a new connection

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
        self._room = 0  # bytes that may be written before the namespace's bytes are counted again
        self._sampler_bytes = 0  # size of the samplers' state as last written
        self._former = epoch
        self._sizes = _Sizes(0, 0)
        super().__init__(url, run, directions, Path(os.devnull), lock_patience=locking.LOCK_PATIENCE)

    @property
    def epoch(self) -> int:
        """Epoch of the controller."""
        assert self._epoch is not None
        return self._epoch

    def page(self, after: int, size: int) -> tuple[list[Attempt], str]:
        """Return a page of the attempts with numbers above `after`, and the samplers' state as JSON.

        The state is "{}" unless `after` is negative. For the size see `ledger.attempts.page`.
        """
        with self._reading() as connection:
            sampler_state = "{}"
            if after < 0:
                sampler_state = connection.execute(sa.select(runs.c.optuna).where(runs.c.id == self._id)).scalar_one()
            try:
                return reading.page(tables.select(connection), self._run, after, size, optuna=True).attempts, sampler_state
            except ValueError as error:
                raise errors.LedgerCorrupt(f"the ledger of {self._run} is damaged: {error}") from error

    def _lock(self, file: Path, patience: float, give_up: Callable[[], bool]) -> None:
        """Take the lock. Before the wait, check that the controller is the newest and that its token is valid."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            self._find(connection)
        self._engine.dispose()  # the next connection takes the lock
        super()._lock(file, patience, give_up)

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        self._find(connection)  # checks again: now the row is locked until the run is open
        epoch = super()._open(connection, directions) if self._former is None else self._former

        # Other controllers cannot write from now on, so these values stay correct.
        number = sa.select(sa.func.coalesce(sa.func.max(attempts.c.number) + 1, 0)).where(attempts.c.run_id == self._id)
        mark = sa.select(sa.func.coalesce(sa.func.max(reports.c.mark), 0)).where(reports.c.run_id == self._id)
        self._sizes = _Sizes(connection.execute(number).scalar_one(), connection.execute(mark).scalar_one())
        return epoch

    def _find(self, connection: sa.Connection) -> None:
        """Find the run, lock its row, and check that the controller may open it.

        Raises:
            InvalidToken: The token does not open the run.
            LedgerFenced: Another controller has taken over the run.
        """
        columns = sa.select(runs.c.id, runs.c.epoch, runs.c.token)
        run_row = connection.execute(columns.where(runs.c.name == self._run).with_for_update()).one_or_none()
        self._check(None if run_row is None else run_row.token)
        assert run_row is not None
        if self._former is not None:
            if run_row.epoch != self._former:
                raise self._fenced_error()
            self._id, self._epoch = run_row.id, run_row.epoch

    @contextlib.contextmanager
    def _transaction(
        self, sampler_state: Mapping[str, Any] | None, growth: AttemptGrowth | ReportGrowth | None = None
    ) -> Iterator[sa.Connection]:
        """Begin a transaction, see `study.Storage`, and count its growth.

        Reports may use at most three quarters of a budget. The rest is reserved for attempts, so that a run can end.

        Raises:
            LedgerFull: The growth exceeds the namespace's budget.
        """
        with super()._transaction(sampler_state) as connection:
            if growth is None:
                yield connection
                return
            size, is_known = self._sizes.growth(growth)
            old_size = 0 if is_known else self._size(connection, growth)
            yield connection
            if not is_known:
                size = self._size(connection, growth) - old_size
            sampler_bytes = self._sampler_bytes if sampler_state is None else len(json.dumps(sampler_state))
            more = size + max(0, sampler_bytes - self._sampler_bytes)
            if more > self._room:
                is_attempt = isinstance(growth, AttemptGrowth)
                reserve = 0 if is_attempt else self._budget.database // 4
                may_exceed = is_attempt and (old_size > 0 or self._sizes.is_running(growth))
                remaining = self._budget.check(connection, more + reserve, may_exceed=may_exceed)
                self._room = min(remaining + more, budgets.AT_ONCE)
            budgets.grow(connection, self._id, size)
        self._room, self._sampler_bytes = min(self._room - more, budgets.AT_ONCE), sampler_bytes
        self._sizes.add(growth)

    def _size(self, connection: sa.Connection, growth: AttemptGrowth | ReportGrowth) -> int:
        """Return the number of bytes of the rows in the database."""
        if isinstance(growth, AttemptGrowth):
            return budgets.size_of(connection, self._id, growth.number)
        return budgets.size_of_reports(connection, self._id, [*growth.sizes, *growth.deleted])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with super()._reading() as connection:
            self._check(connection.execute(sa.select(runs.c.token).where(runs.c.id == self._id)).scalar())
            yield connection

    def _check(self, token: str | None) -> None:
        """Check that the token still opens the run.

        Raises:
            InvalidToken: It does not.
        """
        if not archive.is_same_digest(token, self._digest):
            raise InvalidToken
