"""Waiting for a database that is away, which costs time and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from trialplane import errors

T = TypeVar("T")

_LONGEST_PAUSE = 5.0  # seconds between tries


class Patience:
    """Does things again while the database is away.

    Args:
        seconds: after which it gives up.
        on_wait: called with a message while it waits, and with "" when it ends.
        give_up: asked while it waits; True ends the waiting at once.
    """

    def __init__(self, seconds: float, on_wait: Callable[[str], None], give_up: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._on_wait = on_wait
        self._give_up = give_up
        self.waiting = False

    def __call__(self, do: Callable[[], T]) -> T:
        """What `do` returns; raises LedgerUnavailable when the patience is at its end."""
        deadline = time.monotonic() + self._seconds
        pause = 0.1
        while True:
            try:
                done = do()
                break
            except errors.LedgerUnavailable as error:
                if self._give_up() or time.monotonic() + pause > deadline:
                    raise
                self.waiting = True
                self._on_wait(str(error))
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        if self.waiting:
            self.waiting = False
            self._on_wait("")
        return done
