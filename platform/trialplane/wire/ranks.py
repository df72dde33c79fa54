"""Metrics about the ranks of a trial, which supervisors add to its reports: the own time per step of each, and the slowest.

The own time of a rank is the time in which it reads data and computes, without the time in which it waits for other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SLOWEST_RANK = "slowest_rank"  # reported while one rank delays the others
SLOWEST_RANK_FACTOR = "slowest_rank_factor"  # its own time per step, as a multiple of that of the others
MAX_TIMED = 64  # largest number of ranks of a trial whose reports have the time of each rank
_SECONDS = "rank_seconds/"  # prefix of a metric's name, before the number of the rank
_SECONDS_NAME = re.compile(f"{_SECONDS}[0-9]{{1,6}}")


def as_metrics(seconds: Mapping[int, float]) -> dict[str, float]:
    """Return the own seconds per step of ranks, by rank, as metrics of a report, by name."""
    return {f"{_SECONDS}{rank}": value for rank, value in seconds.items()}


def seconds(metrics: Mapping[str, float]) -> dict[int, float]:
    """Return the own seconds per step in the metrics of a report, by rank. Empty if it has none."""
    return {int(name.removeprefix(_SECONDS)): value for name, value in metrics.items() if is_seconds(name)}


def without_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a report except the times of ranks."""
    return {name: value for name, value in metrics.items() if not is_seconds(name)}


def is_seconds(name: str) -> bool:
    """Whether a metric has the own seconds per step of a rank, by its name: rank_seconds/3."""
    return _SECONDS_NAME.fullmatch(name) is not None
