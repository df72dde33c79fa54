"""Configurations that were trained again with several seeds: means, intervals, winner and ties. Pure.

The best value of a study is too good: it is the luckiest of many. So the best configurations are trained again with new
seeds, which the selection has not seen, and compared by Welch's t-test. All statements hold together in 95 % of refits
(Bonferroni): an interval for each configuration, and a comparison for each pair.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

LEVEL = 0.95  # share of refits in which all statements are right
POWER = 0.8  # share of refits in which the stated difference is found
_PIECES = 400  # of the integral, an even number


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One configuration.

    Attributes:
        trial: Number of the trial that the configuration is from.
        values: Values with the new seeds.
        mean: Their mean.
        margin: Half the width of the interval of the mean. Infinite with one value.
        is_best: Whether no other configuration is better for certain.
    """

    trial: int
    values: tuple[float, ...]
    mean: float
    margin: float
    is_best: bool


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The configurations of a refit, best mean first.

    Attributes:
        candidates: See above.
        difference: Difference to the second that would be found with a probability of 80 %. None if unknown.
    """

    candidates: tuple[Candidate, ...]
    difference: float | None

    @property
    def winner(self) -> Candidate | None:
        """The only best configuration. None in a tie."""
        best = [candidate for candidate in self.candidates if candidate.is_best]
        return best[0] if len(best) == 1 else None


def compare(values: Mapping[int, Sequence[float]], *, maximize: bool) -> Comparison:
    """Compare configurations by their values with new seeds.

    Args:
        values: Values by the trial that the configuration is from. Those without values are left out.
        maximize: Whether larger values are better.
    """
    present = {trial: tuple(map(float, numbers)) for trial, numbers in values.items() if numbers}
    sign = -1.0 if maximize else 1.0
    order = sorted(present, key=lambda trial: (sign * statistics.fmean(present[trial]), trial))
    pairs = max(1, len(list(itertools.combinations(order, 2))))
    tail = (1 - LEVEL) / pairs / 2
    leader = present[order[0]] if order else ()
    candidates = tuple(
        Candidate(
            trial,
            present[trial],
            statistics.fmean(present[trial]),
            _margin(present[trial], (1 - LEVEL) / len(order) / 2),
            trial == order[0] or not _differ(leader, present[trial], tail),
        )
        for trial in order
    )
    second = present[order[1]] if len(order) > 1 else ()
    error, freedom = _welch(leader, second)
    is_noisy = math.isfinite(freedom) and error > 0
    return Comparison(candidates, (quantile(1 - tail, freedom) + quantile(POWER, freedom)) * error if is_noisy else None)


@functools.cache
def quantile(share: float, freedom: float) -> float:
    """Return the value below which a share (over 0.5) of Student's t distribution is."""
    low, high = 0.0, 1.0
    while _share_below(high, freedom) < share:
        high *= 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_below(middle, freedom) < share else (low, middle)
    return high


def _share_below(value: float, freedom: float) -> float:
    """Return the share of Student's t distribution below a value over 0: with x = √n·tan φ, an integral of cosⁿ⁻¹ φ."""
    end = math.atan(value / math.sqrt(freedom))
    heights = [math.pow(math.cos(end * piece / _PIECES), freedom - 1) for piece in range(_PIECES + 1)]
    area = end / _PIECES / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 0.5 + scale * area


def _margin(values: Sequence[float], tail: float) -> float:
    if len(values) < 2:
        return math.inf
    return quantile(1 - tail, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the difference of two means, and its degrees of freedom; infinite if unknown."""
    if len(first) < 2 or len(second) < 2:
        return 0.0, math.inf
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    return math.sqrt(sum(parts)), sum(parts) ** 2 / spread if spread else math.inf


def _differ(first: Sequence[float], second: Sequence[float], tail: float) -> bool:
    """Whether two means differ, in a test that errs in twice the share `tail`."""
    error, freedom = _welch(first, second)
    distance = abs(statistics.fmean(first) - statistics.fmean(second))
    if not math.isfinite(freedom):  # one seed says nothing; without noise, any difference is one
        return min(len(first), len(second)) > 1 and distance > 0
    return _share_below(distance / error, freedom) > 1 - tail
