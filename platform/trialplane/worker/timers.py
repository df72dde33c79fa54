"""Timers: the scheduled actions of a slot or a supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Actions by name, each due once at a moment of the monotonic clock. For one thread.

    There are never more than ten, and they move often, so this is a table and not a heap.
    """

    def __init__(self) -> None:
        self._timers: dict[str, tuple[float, Callable[[], T]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._timers

    def set(self, name: str, moment: float, action: Callable[[], T]) -> None:
        """Schedule an action, instead of the one that has this name."""
        self._timers[name] = moment, action

    def postpone(self, name: str, seconds: float) -> None:
        """Move an action that is scheduled."""
        if name in self._timers:
            moment, action = self._timers[name]
            self._timers[name] = moment + seconds, action

    def cancel(self, *names: str) -> None:
        """Remove actions, if they are scheduled."""
        for name in names:
            self._timers.pop(name, None)

    def until_next(self) -> float | None:
        """Return the seconds until the next action is due, 0 if one is, and None without any."""
        if not self._timers:
            return None
        return max(0.0, min(moment for moment, _ in self._timers.values()) - time.monotonic())

    def due(self, without: Collection[str] = ()) -> Iterator[Callable[[], T]]:
        """Remove and yield the actions that are due, the earliest first.

        Each may schedule, move and cancel others, also those that are to follow. What it schedules itself waits for the
        next call.
        """
        now = time.monotonic()
        moments = {name: moment for name, (moment, _) in self._timers.items() if moment <= now and name not in without}
        for name in sorted(moments, key=lambda name: moments[name]):
            if self._timers.get(name, (now + 1.0,))[0] <= now:
                yield self._timers.pop(name)[1]
