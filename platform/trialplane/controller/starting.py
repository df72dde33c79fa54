"""How many failed starts are too many, of one slot or of all of them. Pure."""

from __future__ import annotations

_LONGEST_PAUSE = 30.0  # seconds before a slot that failed to start is tried again


class StartFailures:
    """Counts failures in a row: those of one slot while others work, else those of all slots together.

    Args:
        limit: how many are too many.
        seconds: for how long nothing but failures must have come. On one machine a slot that does not start will not; in a
            cluster three drained pods say nothing of the next ones.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self.count = 0
        self._first = 0.0

    def success(self) -> None:
        """A slot has started."""
        self.count = 0

    def failure(self, now: float) -> bool:
        """A slot has failed to start; says whether that is one too many."""
        if not self.count:
            self._first = now
        self.count += 1
        return self.count >= self._limit and now - self._first >= self._seconds

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try."""
        return min(2.0 ** min(self.count - 1, 10), _LONGEST_PAUSE) if self.count and self._seconds else 0.0
