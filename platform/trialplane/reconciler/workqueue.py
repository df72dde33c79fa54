"""Names of Runs that wait to be reconciled, each at most once, and none of them twice at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trialplane.errors import TrialplaneError

Reconcile = Callable[[str], float | None]

SLOWEST = 60.0  # seconds after which a Run that failed again and again is tried again
_logger = logging.getLogger(__name__)


class WorkQueue:
    """A queue of names for one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._again: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}

    def add(self, name: str) -> None:
        """Has a name taken as soon as possible, and again if somebody works on it."""
        handle = self._later.pop(name, None)
        if handle is not None:
            handle.cancel()
        if name in self._active:
            self._again.add(name)
        elif name not in self._waiting:
            self._waiting.add(name)
            self._ready.put_nowait(name)

    def add_after(self, name: str, seconds: float) -> None:
        """Has a name taken after that time, unless it is to be earlier."""
        loop = asyncio.get_running_loop()
        known = self._later.get(name)
        if name in self._waiting or (known is not None and known.when() <= loop.time() + seconds):
            return
        if known is not None:
            known.cancel()
        self._later[name] = loop.call_later(seconds, self.add, name)

    async def take(self) -> str:
        """The next name; `done` must follow."""
        name = await self._ready.get()
        self._waiting.remove(name)
        self._active.add(name)
        return name

    def done(self, name: str) -> None:
        """Ends the work on a name."""
        self._active.remove(name)
        if name in self._again:
            self._again.remove(name)
            self.add(name)


async def work(queue: WorkQueue, reconcile: Reconcile) -> None:
    """Takes names for ever. One that fails is tried again, later each time, and holds up no other.

    Args:
        queue: of names.
        reconcile: called in a thread; gives the seconds after which the name is to come again, or None.
    """
    failures: dict[str, int] = {}
    while True:
        name = await queue.take()
        try:
            after = await asyncio.to_thread(reconcile, name)
            failures.pop(name, None)
        except Exception as error:
            failures[name] = failures.get(name, 0) + 1
            after = min(2.0 ** failures[name], SLOWEST)
            unexpected = None if isinstance(error, TrialplaneError) else error
            _logger.error("%s: %s; tried again in %.0f s", name, error, after, exc_info=unexpected)
        finally:
            queue.done(name)
        if after is not None:
            queue.add_after(name, after)
