"""Retries operations on a database that does not answer."""

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

_LONGEST_PAUSE = 5.0  # seconds between two attempts


class Patience:
    """Repeats an operation while the database does not answer. It is called with the operation, like a function.

    Args:
        seconds: Time after which an operation is given up.
        on_wait: Called with a message after each attempt that failed, and with "" after the wait.
        should_give_up: Returns whether to end a wait at once; called while waiting.
        lock_seconds: Time to wait, on PostgreSQL, for an earlier controller to release the run.

    Attributes:
        lock_seconds: The same, for the code that opens the ledger.
        should_give_up: The same, for the code that opens the ledger.
        is_waiting: Whether an operation waits now.
    """

    def __init__(
        self,
        seconds: float = 600.0,
        on_wait: Callable[[str], None] = lambda message: None,
        should_give_up: Callable[[], bool] = lambda: False,
        lock_seconds: float = LOCK_PATIENCE,
    ) -> None:
        self.lock_seconds = lock_seconds
        self.should_give_up = should_give_up
        self._seconds = seconds
        self._on_wait = on_wait
        self.is_waiting = False

    def __call__(self, operation: Callable[[], T]) -> T:
        """Call an operation until it succeeds; return its result.

        Raises:
            LedgerUnavailable: The database did not answer in time.
        """
        deadline = time.monotonic() + self._seconds
        for failure_count in itertools.count(1):
            try:
                result = operation()
                break
            except errors.LedgerUnavailable as error:
                pause = backoff.pause(failure_count, _LONGEST_PAUSE, first=0.1)
                ends_after_deadline = time.monotonic() + pause > deadline
                if ends_after_deadline or self.should_give_up():
                    raise
                if not self.is_waiting:
                    log.warning(
                        "waiting for the ledger, %.0f s at most, and starting nothing meanwhile: %s", self._seconds, error
                    )
                self.is_waiting = True
                self._on_wait(str(error))
                time.sleep(pause)
        if self.is_waiting:
            self.is_waiting = False
            log.info("the ledger answers again")
            self._on_wait("")
        return result
