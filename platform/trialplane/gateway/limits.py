"""How much of something one peer, or one run, may have at a time."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable

# Is told the namespace that a connection's request was admitted to; False when that has as many connections as it may.
Admit = Callable[[str], bool]


def crowded(namespace: str) -> str:
    """Say that a namespace has as many connections as it may."""
    return f"the runs and users of {namespace} have all connections to the gateway that they may; try again in a moment"


class Limit:
    """Counts what is under way by whose it is. May be used from several threads."""

    def __init__(self) -> None:
        self._counting = threading.Condition()
        self._under_way: collections.Counter[Hashable] = collections.Counter()

    @property
    def total(self) -> int:
        """Of all together."""
        with self._counting:
            return self._under_way.total()

    def enter(self, whose: Hashable, each: int, total: int | None = None, patience: float = 0.0) -> bool:
        """Count one more, unless there are `each` of these or `total` of all already; `leave` must follow a True.

        Args:
            whose: it is.
            each: the most of one.
            total: the most of all together; None for any number.
            patience: seconds to wait for room.
        """

        def has_room() -> bool:
            return self._under_way[whose] < each and (total is None or self._under_way.total() < total)

        with self._counting:
            if not (has_room() or (patience and self._counting.wait_for(has_room, patience))):
                if not self._under_way[whose]:
                    del self._under_way[whose]
                return False
            self._under_way[whose] += 1
            return True

    def leave(self, whose: Hashable) -> None:
        """Count one as over."""
        with self._counting:
            self._under_way[whose] -= 1
            self._counting.notify_all()
            if not self._under_way[whose]:
                del self._under_way[whose]
