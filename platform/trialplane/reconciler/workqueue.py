"""Queue of the Runs that wait to be reconciled. A Run is in it at most once, and namespaces have equal shares of work."""

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

SLOWEST = 60.0  # maximum pause before a failed Run is reconciled again, in seconds
_logger = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """A queue of names, for use in one event loop. Each name is active in at most one worker at a time.

    Args:
        group: Function that returns the group of a name, such as its namespace. The next name comes from the group with the
            fewest active names.
    """

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        self._queued_by_group: dict[Hashable, collections.deque[K]] = {}  # groups in the order of their turns
        self._queued_count = asyncio.Semaphore(0)
        self._queued: set[K] = set()
        self._active: set[K] = set()  # names that workers have taken and not finished
        self._changed_while_active: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}  # timers that will add names

    def add(self, name: K) -> None:
        """Queue a name, unless it is queued already. If it is active, it is queued when its work ends."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if name in self._active:
            self._changed_while_active.add(name)
        elif name not in self._queued:
            self._queued.add(name)
            self._queued_by_group.setdefault(self._group(name), collections.deque()).append(name)
            self._queued_count.release()

    def add_after(self, name: K, seconds: float) -> None:
        """Queue a name after some seconds, unless it is queued or will be queued earlier."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(name)
        if name in self._queued or (timer is not None and timer.when() <= loop.time() + seconds):
            return
        if timer is not None:
            timer.cancel()
        self._timers[name] = loop.call_later(seconds, self.add, name)

    async def take(self) -> K:
        """Wait for a queued name, and return it. It is active until the caller calls `done`."""
        await self._queued_count.acquire()
        active_counts = collections.Counter(map(self._group, self._active))
        # Of several groups with the fewest active names, min returns the first, whose turn it is.
        group = min(self._queued_by_group, key=lambda queued_group: active_counts[queued_group])
        names = self._queued_by_group.pop(group)
        name = names.popleft()
        if names:
            self._queued_by_group[group] = names  # inserted again, so that the other groups are first
        self._queued.remove(name)
        self._active.add(name)
        return name

    def done(self, name: K) -> None:
        """End the work on a name. Queue it if it was added in the meantime."""
        self._active.remove(name)
        if name in self._changed_while_active:
            self._changed_while_active.remove(name)
            self.add(name)


async def sweep(queue: WorkQueue[K], names: Callable[[], Iterable[K]], threads: Executor, pause: float = SLOWEST) -> None:
    """Queue all names that a function returns. If the function fails, log the error and repeat it after a pause.

    Args:
        queue: Queue.
        names: Function that returns the names.
        threads: Executor in which the function is called.
        pause: Pause before the function is repeated, in seconds.
    """
    while True:
        try:
            all_names = await asyncio.get_running_loop().run_in_executor(threads, names)
            break
        except Exception as error:  # noqa: BLE001  logged, and repeated
            _log_failure("the names of Runs that may have ended cannot be read", error, pause)
            await asyncio.sleep(pause)
    for name in all_names:
        queue.add(name)


async def work(queue: WorkQueue[K], reconcile: Callable[[K], float | None], threads: Executor) -> None:
    """Take names from a queue and reconcile them, forever. After a failure, repeat the name later, with growing pauses.

    Args:
        queue: Queue.
        reconcile: Function that returns the seconds after which the name must be reconciled again, or None.
        threads: Executor in which the function is called. If this coroutine is cancelled, a running call continues.
    """
    loop = asyncio.get_running_loop()
    failures: dict[K, int] = {}  # consecutive failures, by name
    while True:
        name = await queue.take()
        try:
            pause = await loop.run_in_executor(threads, reconcile, name)
            failures.pop(name, None)
        except Exception as error:  # noqa: BLE001  logged, and repeated
            failures[name] = failures.get(name, 0) + 1
            pause = backoff.pause(failures[name], SLOWEST, first=2.0)
            _log_failure(name, error, pause)
        finally:
            queue.done(name)
        if pause is not None:
            queue.add_after(name, pause)


def _log_failure(subject: object, error: Exception, seconds: float) -> None:
    """Log an error and the seconds until the next attempt. An unexpected error is logged with its traceback."""
    unexpected = None if isinstance(error, (TrialplaneError, DATABASE_ERRORS)) else error
    text = error if isinstance(error, TrialplaneError) else reason(error)
    _logger.error("%s: %s; tried again in %.0f s", subject, text, seconds, exc_info=unexpected)
