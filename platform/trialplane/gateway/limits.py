"""Limits on what one peer, or one run, may have at a time."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable

# Called with the namespace that a connection's request was admitted to; False when that has as many connections as it may.
Admit = Callable[[str], bool]


def crowded(namespace: str) -> str:
    """Say that a namespace has as many connections as it may."""
    return f"the runs and users of {namespace} have all connections to the gateway that they may; try again in a moment"


class Limit:
    """Counts what is under way, by holder. May be used from several threads."""

    def __init__(self) -> None:
        self._counting = threading.Condition()
        self._under_way: collections.Counter[Hashable] = collections.Counter()

    @property
    def total(self) -> int:
        """The count of all holders together."""
        with self._counting:
            return self._under_way.total()

    def enter(self, holder: Hashable, limit: int, total_limit: int | None = None, patience: float = 0.0) -> bool:
        """Count one more, unless there are `limit` of these or `total_limit` of all already; `leave` must follow a True.

        Args:
            holder: it is.
            limit: the most of one.
            total_limit: the most of all together; None for any number.
            patience: seconds to wait for room.
        """

        def has_room() -> bool:
            return self._under_way[holder] < limit and (total_limit is None or self._under_way.total() < total_limit)

        with self._counting:
            if not (has_room() or (patience and self._counting.wait_for(has_room, patience))):
                if not self._under_way[holder]:
                    del self._under_way[holder]
                return False
            self._under_way[holder] += 1
            return True

    def leave(self, holder: Hashable) -> None:
        """Count one as over."""
        with self._counting:
            self._under_way[holder] -= 1
            self._counting.notify_all()
            if not self._under_way[holder]:
                del self._under_way[holder]
