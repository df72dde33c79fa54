"""Detect the rank that slows down the others, from each rank's own seconds per step. Standard library only.

In each step all ranks wait for the slowest one, so every rank has the same time per step. Only its own time differs: reading
data and computing, without the collectives. The supervisor of the ranks reports these times here.
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
        rank: Number of the rank.
        step: Step of its last report.
        seconds: Its own seconds per step, the median over the window.
        median: Median of the seconds per step of the other ranks.
        is_slow: False if the rank has caught up.
    """

    rank: int
    step: int
    seconds: float
    median: float
    is_slow: bool = True

    @property
    def factor(self) -> float:
        """The ratio of its seconds per step to those of the other ranks."""
        return self.seconds / max(self.median, 1e-6)  # a job may report steps of 0 seconds

    def text(self) -> str:
        """Describe the straggler in a line for the log."""
        if not self.is_slow:
            return f"rank {self.rank} has caught up: {_duration(self.seconds)} of its own per step at step {self.step}"
        return (
            f"rank {self.rank} holds the others up: {_duration(self.seconds)} of its own per step, "
            f"{self.factor:.1f} times the {_duration(self.median)} of the others (their median), at step "
            f"{self.step}. Check its data and DataLoader workers, its GPU (nvidia-smi: clocks, processes) and its node"
        )


def slow_ranks(seconds: Mapping[int, float], factor: float, min_difference: float) -> dict[int, float]:
    """Return the slow ranks, each with the median of the other ranks' seconds.

    A rank is slow if its seconds are more than `factor` times that median, and exceed it by more than `min_difference`.
    """
    slow = {}
    for rank, rank_seconds in seconds.items():
        other_seconds = [value for other, value in seconds.items() if other != rank]
        if not other_seconds:
            continue
        median = statistics.median(other_seconds)
        if rank_seconds > max(factor * median, median + min_difference):
            slow[rank] = median
    return slow


class Stragglers:
    """A comparison of the ranks' own seconds per step, which reports each rank that becomes slow or has caught up once.

    Args:
        world_size: Number of ranks; none is reported until each has filled its window.
        factor: A straggler takes more than this many times the median of the others.
        window: Number of reports per rank whose median counts, so that one slow step is ignored.
        min_difference: Smallest difference in seconds per step that counts.
    """

    def __init__(self, world_size: int, *, factor: float = 1.5, window: int = 8, min_difference: float = 0.01) -> None:
        self._factor = factor
        self._min_difference = min_difference
        self._world_size = world_size
        self._seconds: dict[int, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=window)
        )
        self._window = window
        self._steps: dict[int, int] = {}  # newest step of each rank
        self._untaken: set[int] = set()  # ranks with reports since the last `take_times`
        self._slow: set[int] = set()  # ranks that were returned as slow, and have not been returned as caught up
        self._slowest: Straggler | None = None

    def pulse(self, rank: int, step: int, seconds: float) -> Straggler | None:
        """Add the duration of a rank's step; return a rank that has become slow or has caught up, None if none has.

        If several ranks have changed, this rank or the first of them is returned, and the others after the next steps.
        """
        self._seconds[rank].append(seconds)
        self._untaken.add(rank)
        self._steps[rank] = step
        full_windows = [window for window in self._seconds.values() if len(window) == self._window]
        if len(full_windows) < self._world_size or self._world_size < 2:
            return None
        medians = {other: statistics.median(window) for other, window in self._seconds.items()}
        slow = slow_ranks(medians, self._factor, self._min_difference)
        slowest = max(slow, key=medians.__getitem__, default=None)
        self._slowest = None
        if slowest is not None:
            self._slowest = Straggler(slowest, self._steps[slowest], medians[slowest], median=slow[slowest])
        changed_ranks = sorted(self._slow.symmetric_difference(slow))
        if not changed_ranks:
            return None
        return self._change(rank if rank in changed_ranks else changed_ranks[0], medians)

    def _change(self, rank: int, medians: Mapping[int, float]) -> Straggler:
        """Record that a rank has become slow or has caught up, and return it; `medians` has the seconds of each rank."""
        is_slow = rank not in self._slow
        self._slow.symmetric_difference_update({rank})
        other_median = statistics.median(seconds for other, seconds in medians.items() if other != rank)
        return Straggler(rank, self._steps[rank], seconds=medians[rank], median=other_median, is_slow=is_slow)

    @property
    def has_all_times(self) -> bool:
        """Whether every rank has reported since the last `take_times`."""
        return len(self._untaken) == self._world_size

    def take_times(self) -> dict[int, float]:
        """Return the seconds per step of each rank with reports since the last call: the median over its window."""
        times = {rank: statistics.median(self._seconds[rank]) for rank in sorted(self._untaken)}
        self._untaken.clear()
        return times

    @property
    def slow(self) -> frozenset[int]:
        """The ranks that are slow now."""
        return frozenset(self._slow)

    @property
    def slowest(self) -> Straggler | None:
        """The slowest rank by the newest steps, even if `pulse` has not returned it yet; None if no rank is slow."""
        return self._slowest


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
