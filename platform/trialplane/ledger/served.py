"""One run in PostgreSQL, as the gateway writes it for its controller: with a token, and opened again by the same epoch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from trialplane import errors
from trialplane.ledger import archive, locking, tables
from trialplane.ledger import attempts as reading
from trialplane.ledger import budget as budgets
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.budget import Budget
from trialplane.ledger.study import Storage
from trialplane.ledger.tables import runs


class Refused(Exception):
    """The token does not open the run."""


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
        self._kept = 0  # bytes of what samplers store, as last written
        self._former = epoch
        super().__init__(url, run, directions, Path(os.devnull), lock_patience=locking.LOCK_PATIENCE)

    @property
    def epoch(self) -> int:
        """The controller's."""
        assert self._epoch is not None
        return self._epoch

    def page(self, after: int, size: int) -> tuple[list[Attempt], str]:
        """Attempts with numbers above `after`, see `ledger.attempts.page`; at first also what samplers store, as JSON."""
        with self._reading() as connection:
            kept = "{}"
            if after < 0:
                kept = connection.execute(sa.select(runs.c.optuna).where(runs.c.id == self._id)).scalar_one()
            try:
                return reading.page(tables.select(connection), self._run, after, size, optuna=True).attempts, kept
            except ValueError as error:
                raise errors.LedgerCorrupt(f"the ledger of {self._run} is damaged: {error}") from error

    def _lock(self, file: Path, patience: float, give_up: Callable[[], bool]) -> None:
        """Takes the lock; a controller that is no longer the newest, or has no token, is not kept waiting for it."""
        with tables.mapped(self._url, self._run), self._engine.connect() as connection:
            self._find(connection)
        self._engine.dispose()  # the next connection takes the lock
        super()._lock(file, patience, give_up)

    def _open(self, connection: sa.Connection, directions: list[str]) -> int:
        self._find(connection)  # again, and now the row stays as it is until the run is open
        return super()._open(connection, directions) if self._former is None else self._former

    def _find(self, connection: sa.Connection) -> None:
        """Finds the run, and checks that its controller may open it."""
        columns = sa.select(runs.c.id, runs.c.epoch, runs.c.token)
        found = connection.execute(columns.where(runs.c.name == self._run).with_for_update()).one_or_none()
        self._check(None if found is None else found.token)
        assert found is not None
        if self._former is not None:
            if found.epoch != self._former:
                raise self._fenced()
            self._id, self._epoch = found.id, found.epoch

    @contextlib.contextmanager
    def _transaction(self, kept: Mapping[str, Any] | None, written: Attempt | Sequence[int] = ()) -> Iterator[sa.Connection]:
        """See `study.Storage`; what attempts and reports grow by is counted, and refused beyond the namespace's budget.

        Reports get three quarters of a budget at most, and what it has to spare is for attempts: a run must be able to end.

        Raises:
            LedgerFull: it is.
        """
        with super()._transaction(kept) as connection:
            if not written:
                yield connection
                return
            before = self._size(connection, written)
            yield connection
            grown = self._size(connection, written) - before
            kept_size = self._kept if kept is None else len(json.dumps(kept))
            more = grown + max(0, kept_size - self._kept)
            if more > self._room:
                is_attempt = isinstance(written, Attempt)
                reserve = 0 if is_attempt else self._budget.database // 4
                left = self._budget.check(connection, more + reserve, may_exceed=is_attempt and before > 0)
                self._room = min(left + more, budgets.AT_ONCE)
            budgets.grow(connection, self._id, grown)
        self._room, self._kept = min(self._room - more, budgets.AT_ONCE), kept_size

    def _size(self, connection: sa.Connection, written: Attempt | Sequence[int]) -> int:
        if isinstance(written, Attempt):
            return budgets.size_of(connection, self._id, written.request.number)
        return budgets.size_of_reports(connection, self._id, written)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with super()._reading() as connection:
            self._check(connection.execute(sa.select(runs.c.token).where(runs.c.id == self._id)).scalar())
            yield connection

    def _check(self, token: str | None) -> None:
        """Whether the token still opens the run."""
        if not archive.same(token, self._digest):
            raise Refused
