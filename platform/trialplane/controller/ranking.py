"""Compares the rankings of trials at two rungs, as PASHA does (Bohdal et al. 2023). Pure.

A study with `max: auto` raises its top rung while the ranking at it differs from the ranking at the rung below. Trials
whose losses differ by no more than the noise count as equal, so either may rank first. The noise is estimated from pairs of
trials that change their order twice. Only losses at rungs are used, never reports in between: the ledger writes the losses
at a rung together with the end of the segment, so a crash changes no decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

_NOISE_QUANTILE = 0.9  # of the differences between trials that change their order twice; the paper's value


def is_same(lower: Mapping[int, float], upper: Mapping[int, float], noise: float) -> bool:
    """Return whether the trials have the same ranking at two rungs, up to the noise.

    Trials that have reached only one of the rungs are not compared.

    Args:
        lower: Loss of each trial at the lower rung.
        upper: Loss of each trial at the upper rung.
        noise: Difference of two losses at the lower rung up to which they count as equal.
    """
    trials = lower.keys() & upper.keys()
    lower_ranking = sorted(trials, key=lambda trial: (lower[trial], trial))
    upper_ranking = sorted(trials, key=lambda trial: (upper[trial], trial))
    # The two trials that have the same rank at the two rungs must have equal losses at the lower rung, up to the noise. Two
    # infinite losses are equal, but their difference is NaN, which no noise covers.
    return all(
        lower[at_lower] == lower[at_upper] or abs(lower[at_lower] - lower[at_upper]) <= noise
        for at_lower, at_upper in zip(lower_ranking, upper_ranking, strict=True)
    )


def estimate_noise(rungs: Sequence[Mapping[int, float]]) -> float:
    """Return the difference of losses that counts as noise; 0 if no two trials have changed their order twice.

    Two trials that return to an earlier order are too close to be ranked. Their difference, at the last rung at which they
    returned, is one sample of the noise. The result is a high quantile of the samples.

    Args:
        rungs: Loss of each trial at each rung, from the lowest rung to the top. Trials that have not reached every rung are
            left out.
    """
    if len(rungs) < 3:  # an order can return at the third rung at the earliest
        return 0.0
    trials = sorted(set(rungs[0]).intersection(*rungs[1:]))
    losses = np.array([[rung[trial] for trial in trials] for rung in rungs])
    first, second = np.triu_indices(len(trials), 1)  # positions of the two trials of each pair
    # Comparisons instead of np.sign of the difference, which would be NaN for two infinite losses.
    signs = [np.select([row[first] > row[second], row[first] < row[second]], [1, -1], default=0) for row in losses]
    last_returns = _last_returns(signs)
    samples: list[float] = []
    for rung in range(2, len(rungs)):
        returned = last_returns == rung  # for each pair, whether it returned at this rung
        with np.errstate(over="ignore", invalid="ignore"):
            differences = np.abs(losses[rung, first[returned]] - losses[rung, second[returned]])
        samples += differences[np.isfinite(differences)].tolist()
    samples.sort()
    return samples[math.ceil(_NOISE_QUANTILE * len(samples)) - 1] if samples else 0.0


def _last_returns(signs: Sequence[np.ndarray]) -> np.ndarray:
    """Return, for each pair of trials, the last rung at which it returned to an earlier order.

    A pair returns if it has an order again after the opposite order. Equal losses are not an order.

    Args:
        signs: For each rung, the sign of the difference of losses of each pair: 1, -1, or 0 if they are equal.

    Returns:
        Index of the rung for each pair; 0 for a pair that never returned.
    """
    last = np.zeros(len(signs[0]), dtype=int)
    # For each order: whether each pair has had it at an earlier rung, and whether it had the opposite order afterwards.
    had_before = {order: np.zeros(len(last), dtype=bool) for order in (1, -1)}
    reversed_since = {order: np.zeros(len(last), dtype=bool) for order in (1, -1)}
    for rung, current in enumerate(signs):
        for order in (1, -1):
            last[reversed_since[order] & (current == order)] = rung
            reversed_since[order] |= had_before[order] & (current == -order)
            had_before[order] |= current == order
    return last
