"""Schedule the later actions of a slot or a supervisor, which runs those that are due in its own loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """A table of actions by name, each due once at a moment of the monotonic clock. For one thread.

    There are at most ten actions, and they are often moved, so a table is simpler than a heap and as fast.
    """

    def __init__(self) -> None:
        self._timers: dict[str, tuple[float, Callable[[], T]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._timers

    def set(self, name: str, moment: float, action: Callable[[], T]) -> None:
        """Schedule an action, in place of an action with the same name."""
        self._timers[name] = moment, action

    def postpone(self, name: str, seconds: float) -> None:
        """Make an action due later by so many seconds; do nothing if it is not scheduled."""
        if name in self._timers:
            moment, action = self._timers[name]
            self._timers[name] = moment + seconds, action

    def cancel(self, *names: str) -> None:
        """Remove actions, if they are scheduled."""
        for name in names:
            self._timers.pop(name, None)

    def until_next(self) -> float | None:
        """Return the seconds until the next action is due: 0 if an action is due already, None if none is scheduled."""
        if not self._timers:
            return None
        return max(0.0, min(moment for moment, _ in self._timers.values()) - time.monotonic())

    def due(self, without: Collection[str] = ()) -> Iterator[Callable[[], T]]:
        """Remove and yield the actions that are due, the earliest first.

        An action that runs may schedule, move or cancel others. An action that it adds is not yielded before the next call;
        one that it cancels or moves to a later time is not yielded now. Those named in `without` are left for a later call.
        """
        now = time.monotonic()
        moments = {name: moment for name, (moment, _) in self._timers.items() if moment <= now and name not in without}
        for name in sorted(moments, key=lambda name: moments[name]):
            if name in self._timers:
                moment, action = self._timers[name]
                if moment <= now:
                    del self._timers[name]
                    yield action
