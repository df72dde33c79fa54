"""One run in PostgreSQL, which the gateway writes for the run's controller.

The controller has the run's token instead of the database's password. If its connection to the gateway breaks, it opens the
run again with its epoch, and counts as the same controller. Each transaction checks the token, and counts the bytes that it
writes against the budget of the namespace.
"""

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
from trialplane.ledger.archive import InvalidToken
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.budget import Budget
from trialplane.ledger.study import AttemptGrowth, ReportGrowth, Storage
from trialplane.ledger.tables import attempts, reports, runs


class _Sizes:
    """Sizes of the rows that this process has written for its run's running attempts.

    With them, most writes need no query for the size of the row that they replace.

    Args:
        next_number: Number of the next new attempt.
        last_mark: Mark of the last report.
    """

    def __init__(self, next_number: int, last_mark: int) -> None:
        self._next_number = next_number
        self._last_mark = last_mark
        self._running: dict[int, dict[str, int]] = {}  # number of a running attempt → bytes of its texts, by column

    def is_running(self, growth: AttemptGrowth | ReportGrowth) -> bool:
        """Return whether a transaction writes a running attempt that this process has begun."""
        return isinstance(growth, AttemptGrowth) and growth.number in self._running

    def added_bytes(self, growth: AttemptGrowth | ReportGrowth) -> int | None:
        """Return the number of bytes by which the rows of a transaction grow.

        None if the transaction replaces or deletes rows of unknown size, so that the database must count them.
        """
        if isinstance(growth, ReportGrowth):
            # Marks only increase, so a report with an older mark is a repetition, whose row exists already.
            has_repetitions = any(mark <= self._last_mark for mark in growth.sizes)
            if growth.deleted or has_repetitions:
                return None
            return sum(growth.sizes.values()) + budgets.ROW * len(growth.sizes)
        if growth.number in self._running:
            old_sizes = self._running[growth.number]
            return sum(len(text) - old_sizes.get(column, 0) for column, text in growth.texts.items())
        is_new = growth.number >= self._next_number
        return sum(map(len, growth.texts.values())) + budgets.ROW if is_new else None

    def add(self, growth: AttemptGrowth | ReportGrowth) -> None:
        """Record the sizes of rows that were committed. The sizes of an attempt are kept until it ends."""
        if isinstance(growth, ReportGrowth):
            self._last_mark = max([self._last_mark, *growth.sizes])
            return
        if growth.number >= self._next_number:
            self._next_number = growth.number + 1
            self._running[growth.number] = {}
        if "outcome" in growth.texts:  # it has ended
            self._running.pop(growth.number, None)
        elif growth.number in self._running:
            self._running[growth.number] |= {column: len(text) for column, text in growth.texts.items()}


class Served(Storage):
    """One run in the database, written by a remote controller, whose token is checked in each transaction.

    Every method raises InvalidToken once the token no longer opens the run.

    Args:
        url: URL of the database.
        run: Name of the run.
        directions: "minimize" or "maximize" per objective.
        digest: Hash of the token.
        budget: Budget of the run's namespace.
        epoch: Epoch of a controller that reopens the run after its connection broke; None for a new controller.
    """

    _pings = False  # no test before each use: the controller repeats a failed request, on a new connection

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
        self._reserve = 0  # bytes that may be written before the namespace's bytes are counted again
        self._sampler_bytes = 0  # size of the samplers' state as last written
        self._requested_epoch = epoch
        self._sizes = _Sizes(next_number=0, last_mark=0)  # replaced when the run is open
        super().__init__(url, run, directions, Path(os.devnull), lock_patience=locking.LOCK_PATIENCE)

    @property
    def epoch(self) -> int:
        """The epoch of the controller."""
        assert self._epoch is not None
        return self._epoch

    def page(self, after: int, size: int) -> tuple[list[Attempt], str]:
        """Return a page of the attempts with numbers above `after`, and the samplers' state as JSON.

        Only the first page has the state, and the others have "{}".

        Args:
            after: Number of the last attempt of the page before; -1 for the first page.
            size: Number of bytes after which the page ends, see `ledger.attempts.page`.

        Raises:
            LedgerCorrupt: An attempt cannot be read.
        """
        with self._reading() as connection:
            sampler_state = "{}"
            if after < 0:
                sampler_state = connection.execute(sa.select(runs.c.optuna).where(runs.c.id == self._id)).scalar_one()
            try:
                return reading.page(tables.select(connection), self._run, after, size, optuna=True).attempts, sampler_state
            except ValueError as error:
                raise errors.LedgerCorrupt(f"the ledger of {self._run} is damaged: {error}") from error

    def _lock(self, file: Path, patience: float, should_give_up: Callable[[], bool]) -> None:
        """Take the run's lock; wait for it up to `patience` seconds.

        A controller whose token is invalid, or that is not the newest one, must not wait. So both are checked first.
        """
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            self._check_and_lock_row(connection)
        self._engine.dispose()  # the lock is taken by each new connection, so this one must not be used again
        super()._lock(file, patience, should_give_up)

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        """Open the run and return the controller's epoch: the requested one, or else a new one that fences all others."""
        # Checked again, because another controller may have opened the run during the wait for the lock. From here on its
        # row is locked until the transaction ends.
        self._check_and_lock_row(connection)
        epoch = super()._open(connection, directions) if self._requested_epoch is None else self._requested_epoch

        # No other controller can write from now on, so these two values stay correct.
        next_number = sa.select(sa.func.coalesce(sa.func.max(attempts.c.number) + 1, 0)).where(attempts.c.run_id == self._id)
        last_mark = sa.select(sa.func.coalesce(sa.func.max(reports.c.mark), 0)).where(reports.c.run_id == self._id)
        self._sizes = _Sizes(
            next_number=connection.execute(next_number).scalar_one(), last_mark=connection.execute(last_mark).scalar_one()
        )
        return epoch

    def _check_and_lock_row(self, connection: sa.Connection) -> None:
        """Check that the controller may open the run, and lock the run's row until the transaction ends.

        For a controller that reopens the run, also set `_id` and `_epoch`.

        Raises:
            InvalidToken: The token does not open the run.
            LedgerFenced: Another controller has taken over the run.
        """
        columns = sa.select(runs.c.id, runs.c.epoch, runs.c.token)
        run_row = connection.execute(columns.where(runs.c.name == self._run).with_for_update()).one_or_none()
        self._check_token(None if run_row is None else run_row.token)
        assert run_row is not None  # without a row there is no token, which the check refuses
        if self._requested_epoch is not None:
            if run_row.epoch != self._requested_epoch:
                raise self._fenced_error()
            self._id, self._epoch = run_row.id, run_row.epoch

    @contextlib.contextmanager
    def _transaction(
        self, sampler_state: Mapping[str, Any] | None, growth: AttemptGrowth | ReportGrowth | None = None
    ) -> Iterator[sa.Connection]:
        """Begin a transaction as `study.Storage` does, and count the bytes that it adds against the namespace's budget.

        Counting the bytes of the whole namespace is slow. So each count reserves up to `budgets.AT_ONCE` bytes, and the next
        transactions use up this reserve before the bytes are counted again.

        Raises:
            LedgerFull: The added bytes exceed the namespace's budget.
        """
        with super()._transaction(sampler_state) as connection:
            if growth is None:
                yield connection
                return
            row_bytes = self._sizes.added_bytes(growth)
            old_size = self._size(connection, growth) if row_bytes is None else 0
            yield connection  # the caller writes the rows
            if row_bytes is None:
                row_bytes = self._size(connection, growth) - old_size
            sampler_bytes = self._sampler_bytes if sampler_state is None else len(json.dumps(sampler_state))
            added_bytes = row_bytes + max(0, sampler_bytes - self._sampler_bytes)
            if added_bytes > self._reserve:
                has_begun = old_size > 0 or self._sizes.is_running(growth)
                self._reserve = self._check_budget(connection, growth, added_bytes=added_bytes, has_begun=has_begun)
            budgets.grow(connection, self._id, row_bytes)
        # Only now is the transaction committed. `min` is for rows that were deleted, whose `added_bytes` are negative.
        self._reserve = min(self._reserve - added_bytes, budgets.AT_ONCE)
        self._sampler_bytes = sampler_bytes
        self._sizes.add(growth)

    def _check_budget(
        self, connection: sa.Connection, growth: AttemptGrowth | ReportGrowth, *, added_bytes: int, has_begun: bool
    ) -> int:
        """Check the bytes of a transaction against the budget; return how many bytes may be written before the next check.

        Reports may use at most three quarters of the budget. The rest is reserved for attempts, so that a run can end.

        Args:
            connection: Connection of the transaction.
            growth: Rows that the transaction has written.
            added_bytes: Number of bytes that it adds, which are part of the result.
            has_begun: Whether the rows existed before. An attempt that has begun may exceed the budget, so that its result
                is not lost.

        Raises:
            LedgerFull: The bytes exceed the budget.
        """
        is_attempt = isinstance(growth, AttemptGrowth)
        reserved_for_attempts = 0 if is_attempt else self._budget.database // 4
        needed = added_bytes + reserved_for_attempts
        remaining = self._budget.check(connection, needed, may_exceed=is_attempt and has_begun)
        return min(remaining + added_bytes, budgets.AT_ONCE)

    def _size(self, connection: sa.Connection, growth: AttemptGrowth | ReportGrowth) -> int:
        """Return the number of bytes that the rows of a transaction have in the database now."""
        if isinstance(growth, AttemptGrowth):
            return budgets.size_of(connection, self._id, growth.number)
        return budgets.size_of_reports(connection, self._id, [*growth.sizes, *growth.deleted])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Yield a connection for reading, after the token was checked.

        Raises:
            InvalidToken: The token does not open the run.
        """
        with super()._reading() as connection:
            self._check_token(connection.execute(sa.select(runs.c.token).where(runs.c.id == self._id)).scalar())
            yield connection

    def _check_token(self, expected_digest: str | None) -> None:
        """Check the controller's token against the hash in the run's row, which is None after the token was revoked.

        Raises:
            InvalidToken: The token does not open the run.
        """
        if not archive.is_same_digest(expected_digest, self._digest):
            raise InvalidToken
