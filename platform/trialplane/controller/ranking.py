"""Compares the rankings of trials at two rungs, as PASHA does (Bohdal et al. 2023). Pure.

Trials whose losses differ by no more than the noise count as equal. The noise is estimated from pairs of trials that change
their order twice: from the losses at the rungs, and not from reports in between. Only the former are written together with
the end of a segment, so a crash changes no decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

_SHARE = 0.9  # percentile of the differences that counts as noise


def agree(lower: Mapping[int, float], upper: Mapping[int, float], noise: float) -> bool:
    """Whether the trials of two rungs have the same ranking at both, up to the noise.

    Args:
        lower: Loss of each trial at the lower rung. Trials that only one of the rungs has are not compared.
        upper: Loss of each trial at the upper rung.
        noise: Difference of two losses at the lower rung up to which they count as equal.
    """
    trials = lower.keys() & upper.keys()
    before = sorted(trials, key=lambda trial: (lower[trial], trial))
    after = sorted(trials, key=lambda trial: (upper[trial], trial))
    # The trial of each rank may be any of those that count as equal to the trial that had this rank.
    return all(
        lower[trial] == lower[other] or abs(lower[trial] - lower[other]) <= noise
        for trial, other in zip(after, before, strict=True)
    )


def noise(rungs: Sequence[Mapping[int, float]]) -> float:
    """Return the difference of losses that is noise: 0 if no two trials have changed their order twice.

    Args:
        rungs: Loss of each trial at each rung, from the lowest rung to the top. Trials that some rung lacks are left out.
    """
    if len(rungs) < 3:
        return 0.0
    trials = sorted(set(rungs[0]).intersection(*rungs[1:]))
    losses = np.array([[rung[trial] for trial in trials] for rung in rungs])
    first, second = np.triu_indices(len(trials), 1)
    differences: list[float] = []
    returns = _last_returns([(row[first] > row[second]) * 1 - (row[first] < row[second]) * 1 for row in losses])
    for index in range(2, len(rungs)):
        pairs = returns == index
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.abs(losses[index, first[pairs]] - losses[index, second[pairs]])
        differences += apart[np.isfinite(apart)].tolist()
    differences.sort()
    return differences[math.ceil(_SHARE * len(differences)) - 1] if differences else 0.0


def _last_returns(signs: Sequence[np.ndarray]) -> np.ndarray:
    """Return, by pair, the last index at which it has an order that it had before, with the opposite one in between.

    Args:
        signs: By index, the sign of each pair's difference of losses.

    Returns:
        Indices; 0 for a pair without one.
    """
    last = np.zeros(len(signs[0]), dtype=int)
    present = {sign: np.zeros(len(last), dtype=bool) for sign in (1, -1)}
    opposed = {sign: np.zeros(len(last), dtype=bool) for sign in (1, -1)}  # with the opposite one after it
    for index, current in enumerate(signs):
        for sign in (1, -1):
            last[opposed[sign] & (current == sign)] = index
            opposed[sign] |= present[sign] & (current == -sign)
            present[sign] |= current == sign
    return last
