"""Limits of the requests and connections that an address, a run or a namespace may have at the same time."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable

# A function that counts a request for the namespace of its token. It returns False if the namespace is at a limit.
CountRequest = Callable[[str], bool]


def limit_message(namespace: str) -> str:
    """Return the message for a namespace that has as many connections as it may."""
    return f"the runs and users of {namespace} have as many connections to the gateway as they may; try again in a moment"


class Limit:
    """Counts of concurrent requests, connections or the like, by holder. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[Hashable] = collections.Counter()

    @property
    def total(self) -> int:
        """The sum of the counts of all holders."""
        with self._lock:
            return self._counts.total()

    def enter(self, holder: Hashable, limit: int, total_limit: int | None = None) -> bool:
        """Add one to the count of a holder, unless a limit is reached.

        Args:
            holder: Holder, such as an address or a namespace.
            limit: Limit for the holder.
            total_limit: Limit for all holders together. None for no limit.

        Returns:
            Whether it was counted. If so, the caller must call `leave` later.
        """
        with self._lock:
            if self._counts.get(holder, 0) >= limit or (total_limit is not None and self._counts.total() >= total_limit):
                return False
            self._counts[holder] += 1
            return True

    def leave(self, holder: Hashable) -> None:
        """Subtract one from the count of a holder."""
        with self._lock:
            self._counts[holder] -= 1
            if not self._counts[holder]:
                del self._counts[holder]  # so that former holders need no memory
