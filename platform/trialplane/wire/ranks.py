"""Metrics about the ranks of a trial, which supervisors add to its reports: the own time per step of each, and the slowest.

The own time of a rank is that of reading data and computing, without waiting for other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

SLOWEST_RANK = "slowest_rank"  # reported while one rank delays the others
SLOWEST_RANK_FACTOR = "slowest_rank_factor"  # its own time per step, as a multiple of that of the others
MAX_TIMED = 64  # ranks of a trial whose reports have the time of each
_SECONDS = "rank_seconds/"


def as_metrics(seconds: Mapping[int, float]) -> dict[str, float]:
    """Return the own seconds per step of ranks as metrics of a report."""
    return {f"{_SECONDS}{rank}": value for rank, value in seconds.items()}


def seconds(metrics: Mapping[str, float]) -> dict[int, float]:
    """Return the own seconds per step of each rank that the metrics of a report have."""
    return {int(name[len(_SECONDS) :]): value for name, value in metrics.items() if is_seconds(name)}


def without_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a report except the times of ranks."""
    return {name: value for name, value in metrics.items() if not is_seconds(name)}


def is_seconds(name: str) -> bool:
    """Return whether a metric is the time of a rank."""
    rank = name[len(_SECONDS) :]
    return name.startswith(_SECONDS) and rank.isascii() and rank.isdecimal() and len(rank) <= 6
