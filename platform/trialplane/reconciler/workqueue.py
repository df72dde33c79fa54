"""Names of Runs that wait to be reconciled, each at most once and none twice at the same time; fair to namespaces."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from trialplane.errors import TrialplaneError
from trialplane.ledger.archive import DATABASE_ERRORS, reason
from trialplane.wire import backoff

K = TypeVar("K", bound=Hashable)

SLOWEST = 60.0  # seconds after which a Run that failed again and again is tried again
_logger = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """A queue of names for one event loop.

    Args:
        group: what shares a part of the work: of those that wait, the one is next on whose names the least work is done.
    """

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        self._ready: dict[Hashable, collections.deque[K]] = {}  # by group, in turn
        self._added = asyncio.Semaphore(0)  # as many as are ready
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}

    def add(self, name: K) -> None:
        """Queue a name, to be taken as soon as possible, and again after the work on it that is under way."""
        handle = self._later.pop(name, None)
        if handle is not None:
            handle.cancel()
        if name in self._active:
            self._again.add(name)
        elif name not in self._waiting:
            self._waiting.add(name)
            self._ready.setdefault(self._group(name), collections.deque()).append(name)
            self._added.release()

    def add_after(self, name: K, seconds: float) -> None:
        """Queue a name, to be taken after that time, unless it is queued for an earlier one."""
        loop = asyncio.get_running_loop()
        planned = self._later.get(name)
        if name in self._waiting or (planned is not None and planned.when() <= loop.time() + seconds):
            return
        if planned is not None:
            planned.cancel()
        self._later[name] = loop.call_later(seconds, self.add, name)

    async def take(self) -> K:
        """The next name; `done` must follow."""
        await self._added.acquire()
        at_work = collections.Counter(map(self._group, self._active))
        group = min(self._ready, key=lambda waiting_group: at_work[waiting_group])  # the first of those with the least
        names = self._ready.pop(group)
        name = names.popleft()
        if names:
            self._ready[group] = names  # behind the others
        self._waiting.remove(name)
        self._active.add(name)
        return name

    def done(self, name: K) -> None:
        """End the work on a name."""
        self._active.remove(name)
        if name in self._again:
            self._again.remove(name)
            self.add(name)


async def sweep(queue: WorkQueue[K], names: Callable[[], Iterable[K]], threads: Executor, pause: float = SLOWEST) -> None:
    """Add names once, as soon as they can be had.

    Args:
        queue: of names.
        names: called in a thread.
        threads: where it is called.
        pause: seconds between tries.
    """
    while True:
        try:
            all_names = await asyncio.get_running_loop().run_in_executor(threads, names)
            break
        except Exception as error:  # noqa: BLE001  it is logged, and tried again
            _complain("the names of Runs that may have ended cannot be read", error, pause)
            await asyncio.sleep(pause)
    for name in all_names:
        queue.add(name)


async def work(queue: WorkQueue[K], reconcile: Callable[[K], float | None], threads: Executor) -> None:
    """Take names for ever. One that fails is tried again, later each time, and holds up no other.

    Args:
        queue: of names.
        reconcile: called in a thread; gives the seconds after which the name is to come again, or None.
        threads: where it is called; what runs there goes on when this is cancelled.
    """
    loop = asyncio.get_running_loop()
    failures: dict[K, int] = {}
    while True:
        name = await queue.take()
        try:
            after = await loop.run_in_executor(threads, reconcile, name)
            failures.pop(name, None)
        except Exception as error:  # noqa: BLE001  it is logged, and tried again
            failures[name] = failures.get(name, 0) + 1
            after = backoff.pause(failures[name], SLOWEST, first=2.0)
            _complain(name, error, after)
        finally:
            queue.done(name)
        if after is not None:
            queue.add_after(name, after)


def _complain(subject: object, error: Exception, seconds: float) -> None:
    """Log an error, with its traceback if nobody expected it."""
    unexpected = None if isinstance(error, (TrialplaneError, DATABASE_ERRORS)) else error
    said = error if isinstance(error, TrialplaneError) else reason(error)
    _logger.error("%s: %s; tried again in %.0f s", subject, said, seconds, exc_info=unexpected)
