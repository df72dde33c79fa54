"""Pauses between attempts at a request that fails."""

from __future__ import annotations


def pause(failures: int, longest: float, first: float = 1.0) -> float:
    """Return the pause before the next attempt, in seconds. It doubles with each failure.

    Args:
        failures: Number of consecutive failures, from 1.
        longest: Upper limit of the pause, in seconds.
        first: Pause after the first failure, in seconds.
    """
    return min(first * 2.0 ** min(failures - 1, 30), longest)  # the limit of 30 avoids an overflow
