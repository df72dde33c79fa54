"""Pauses between tries."""

from __future__ import annotations


def pause(failures: int, longest: float, first: float = 1.0) -> float:
    """Return the seconds to wait after failures in a row: twice as long after each.

    Args:
        failures: number of failures, from 1.
        longest: maximum, in seconds.
        first: pause after the first failure, in seconds.
    """
    return min(first * 2.0 ** min(failures - 1, 30), longest)
