"""Detect the rank that slows down the others, from each rank's own seconds per step. Standard library only.

In each step all ranks wait for the slowest one, so every rank shows the same time per step. What differs is its own time:
reading data and computing, without the collectives. The supervisor of the ranks reports it here.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Straggler:
    """A rank that is slower than the others, or was.

    Attributes:
        rank: its number.
        step: of its last report.
        seconds: its own seconds per step; the median over the window.
        median: seconds per step of the other ranks, their median.
        slow: False when it has caught up.
    """

    rank: int
    step: int
    seconds: float
    median: float
    slow: bool = True

    @property
    def factor(self) -> float:
        """The ratio of its seconds per step to those of the other ranks."""
        return self.seconds / max(self.median, 1e-6)  # a job may report steps of 0 seconds

    def text(self) -> str:
        """A line for the log."""
        if not self.slow:
            return f"rank {self.rank} has caught up: {_duration(self.seconds)} of its own per step at step {self.step}"
        return (
            f"rank {self.rank} holds the others up: {_duration(self.seconds)} of its own per step, "
            f"{self.factor:.1f} times the {_duration(self.median)} of the others (their median), at step "
            f"{self.step}. Check its data and DataLoader workers, its GPU (nvidia-smi: clocks, processes) and its node"
        )


def slow_ranks(seconds: Mapping[int, float], factor: float, at_least: float) -> dict[int, float]:
    """The ranks whose seconds exceed the others' median by more than `factor` times and more than `at_least`.

    Returns:
        Rank → median of the others.
    """
    slow = {}
    for rank, rank_seconds in seconds.items():
        other_seconds = [value for other, value in seconds.items() if other != rank]
        if other_seconds and rank_seconds > max(factor * (median := statistics.median(other_seconds)), median + at_least):
            slow[rank] = median
    return slow


class Stragglers:
    """Compare the ranks' own seconds per step; report each straggler once, and again when it has caught up.

    Args:
        world_size: number of ranks; none is reported until each has filled its window.
        factor: how many times slower than the others a straggler is.
        window: reports per rank, of which the median counts, so that one slow step is ignored.
        at_least: smallest difference in seconds per step that counts.
    """

    def __init__(self, world_size: int, *, factor: float = 1.5, window: int = 8, at_least: float = 0.01) -> None:
        self._factor = factor
        self._at_least = at_least
        self._world_size = world_size
        self._seconds: dict[int, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=window)
        )
        self._window = window
        self._steps: dict[int, int] = {}
        self._slow: set[int] = set()
        self._slowest: Straggler | None = None

    def pulse(self, rank: int, step: int, seconds: float) -> Straggler | None:
        """Take one report of a rank; return a change of any rank, or None, as a slow rank may have reported before."""
        self._seconds[rank].append(seconds)
        self._steps[rank] = step
        full = [window for window in self._seconds.values() if len(window) == self._window]
        if len(full) < self._world_size or self._world_size < 2:
            return None
        medians = {other: statistics.median(window) for other, window in self._seconds.items()}
        slow = slow_ranks(medians, self._factor, self._at_least)
        worst = max(slow, key=medians.__getitem__, default=None)
        self._slowest = None if worst is None else Straggler(worst, self._steps[worst], medians[worst], slow[worst])
        news = sorted(self._slow ^ slow.keys())
        if not news:
            return None
        which = rank if rank in news else news[0]  # further changes follow with the next reports
        self._slow ^= {which}
        other_median = statistics.median(value for other, value in medians.items() if other != which)
        return Straggler(which, self._steps[which], medians[which], other_median, which in slow)

    @property
    def slow(self) -> frozenset[int]:
        """The ranks that are slow now."""
        return frozenset(self._slow)

    @property
    def slowest(self) -> Straggler | None:
        """The slowest of the ranks that are slow by the newest reports, reported already or not."""
        return self._slowest


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
