"""Waits for a database that is away, and retries."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from trialplane import errors
from trialplane.ledger.locking import LOCK_PATIENCE
from trialplane.wire import backoff

T = TypeVar("T")

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 5.0  # seconds between tries


class Patience:
    """Retries operations while the database is away.

    Attributes:
        lock_seconds: how long to wait for a former controller to release the run, on PostgreSQL.
        give_up: polled while waiting; True ends the wait at once.

    Args:
        seconds: after which it gives up.
        on_wait: called with a message while waiting, and with "" afterwards.
        give_up: see above.
        lock_seconds: see above.
    """

    def __init__(
        self,
        seconds: float = 600.0,
        on_wait: Callable[[str], None] = lambda message: None,
        give_up: Callable[[], bool] = lambda: False,
        lock_seconds: float = LOCK_PATIENCE,
    ) -> None:
        self.lock_seconds = lock_seconds
        self.give_up = give_up
        self._seconds = seconds
        self._on_wait = on_wait
        self.waiting = False

    def __call__(self, do: Callable[[], T]) -> T:
        """Return the result of `do`; raise LedgerUnavailable when the time is over."""
        deadline = time.monotonic() + self._seconds
        for tries in itertools.count(1):
            pause = backoff.pause(tries, _LONGEST_PAUSE, first=0.1)
            try:
                result = do()
                break
            except errors.LedgerUnavailable as error:
                if self.give_up() or time.monotonic() + pause > deadline:
                    raise
                if not self.waiting:
                    log.warning(
                        "waiting for the ledger, %.0f s at most, and starting nothing meanwhile: %s", self._seconds, error
                    )
                self.waiting = True
                self._on_wait(str(error))
                time.sleep(pause)
        if self.waiting:
            self.waiting = False
            log.info("the ledger answers again")
            self._on_wait("")
        return result
