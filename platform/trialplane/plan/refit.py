"""Comparison of configurations that were trained again with several seeds: means, intervals, winner and ties. Pure.

The best value of a study is biased, because it is the luckiest of many. So the best configurations are trained again with
other seeds, and compared by Welch's t-test. The statements are an interval for each configuration and a comparison for each
pair. All of them are right together in 95 % of refits (Bonferroni).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from trialplane.wire import student

LEVEL = 0.95  # share of refits in which all statements are right
MIN_SEEDS = 5  # fewer values estimate the noise too badly for a statement about POWER
POWER = 0.8  # share of refits in which a true difference of the stated size is detected


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One configuration.

    Attributes:
        trial: Number of the trial that the configuration is from.
        values: Values of the objective with the new seeds.
        mean: Mean of the values.
        margin: Half the width of the interval of the mean. Infinite if there is one value.
        is_best: Whether no other configuration is significantly better.
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
        candidates: The configurations.
        difference: Smallest true difference by which a configuration must be better than each of the others to be the winner
            with a probability of about 80 %, according to the noise of the two best. None if one has fewer values than
            MIN_SEEDS.
    """

    candidates: tuple[Candidate, ...]
    difference: float | None

    @property
    def winner(self) -> Candidate | None:
        """The only best configuration. None in a tie."""
        best = [candidate for candidate in self.candidates if candidate.is_best]
        return best[0] if len(best) == 1 else None


def compare(values: Mapping[int, Sequence[float]], *, maximize: bool) -> Comparison:
    """Return the comparison of configurations by their values with new seeds.

    Args:
        values: Values by the number of the trial that the configuration is from. A configuration without values is left out.
        maximize: Whether larger values are better.
    """
    samples = {trial: tuple(map(float, numbers)) for trial, numbers in values.items() if numbers}
    if not samples:
        return Comparison((), None)
    sign = -1.0 if maximize else 1.0
    order = sorted(samples, key=lambda trial: (sign * statistics.fmean(samples[trial]), trial))
    # Bonferroni: the probability of an error, 1 - LEVEL, is divided by the number of intervals, or of pairs. Each interval
    # has half of its part above it and half below it.
    interval_tail = (1 - LEVEL) / len(order) / 2
    pair_tail = (1 - LEVEL) / max(1, math.comb(len(order), 2)) / 2
    leader = samples[order[0]]
    candidates = tuple(
        Candidate(
            trial,
            samples[trial],
            mean=statistics.fmean(samples[trial]),
            margin=_margin(samples[trial], interval_tail),
            is_best=trial == order[0] or not _differ(leader, samples[trial], pair_tail),
        )
        for trial in order
    )
    if len(order) == 1:
        return Comparison(candidates, None)
    # A winner must differ from each of the others, so the probability to miss one is divided by their number.
    miss = (1 - POWER) / (len(order) - 1)
    return Comparison(candidates, _detectable(leader, samples[order[1]], pair_tail, miss))


def _margin(sample: Sequence[float], tail: float) -> float:
    """Return half the width of the interval of a mean. The true mean is outside of it with probability 2 * `tail`."""
    if len(sample) < 2:
        return math.inf
    return student.quantile(1 - tail, len(sample) - 1) * statistics.stdev(sample) / math.sqrt(len(sample))


def _differ(first: Sequence[float], second: Sequence[float], tail: float) -> bool:
    """Whether two means differ significantly, at the level 2 * `tail`. Samples of one value never do."""
    difference = student.difference(first, second)
    return difference is not None and abs(difference.value) > difference.margin(tail)


def _detectable(first: Sequence[float], second: Sequence[float], tail: float, miss: float) -> float | None:
    """Return the smallest true difference that a test of the level 2 * `tail` misses with a probability of `miss`.

    This is the minimum detectable effect. None if a sample has fewer values than MIN_SEEDS, or if neither varies.
    """
    difference = student.difference(first, second)
    if min(len(first), len(second)) < MIN_SEEDS or difference is None or not difference.error:
        return None
    # The test detects a measured difference above the first margin. A measured one is below the true one by more than the
    # second margin with probability `miss`. So the true one must be larger than the first by the second.
    return difference.margin(tail) + difference.margin(miss)
