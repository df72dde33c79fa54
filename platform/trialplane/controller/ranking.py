"""Compares the rankings of trials at two rungs, as PASHA does (Bohdal et al. 2023). Pure.

Trials whose losses differ by no more than the noise count as equal. The noise is estimated from pairs of trials that change
their order twice: from the losses at the rungs, and not from reports in between. Only the former are written together with
the end of a segment, so a crash changes no decision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

_SHARE = 0.9  # percentile of the differences that counts as noise


def agree(lower: Mapping[int, float], upper: Mapping[int, float], noise: float) -> bool:
    """Whether the ranking at a rung is that of the same trials at the rung below, up to the noise.

    Args:
        lower: Loss of each trial at the rung below; it may have more trials.
        upper: Loss of each trial at the rung.
        noise: Difference of two losses at the rung below up to which they count as equal.
    """
    before = sorted(upper, key=lambda trial: (lower[trial], trial))
    after = sorted(upper, key=lambda trial: (upper[trial], trial))
    # The trial of each rank may be any of those that count as equal to the trial that had this rank.
    return all(
        lower[trial] == lower[other] or abs(lower[trial] - lower[other]) <= noise
        for trial, other in zip(after, before, strict=True)
    )


def noise(rungs: Sequence[Mapping[int, float]]) -> float:
    """Return the difference of losses that is noise: 0 if no two trials have changed their order twice.

    Args:
        rungs: Loss of each trial at each rung, from the lowest rung to the top.
    """
    differences = sorted(
        abs(rungs[index][first] - rungs[index][second])
        for first, second in itertools.combinations(sorted(rungs[-1]), 2)
        if (index := _last_return([rung[first] - rung[second] for rung in rungs])) is not None
    )
    finite = [difference for difference in differences if math.isfinite(difference)]
    return finite[math.ceil(_SHARE * len(finite)) - 1] if finite else 0.0


def _last_return(differences: Sequence[float]) -> int | None:
    """Return the last index at which two losses are in an order that they had before, with the opposite one in between."""
    signs = [(difference > 0) - (difference < 0) for difference in differences]
    for index in range(len(signs) - 1, 1, -1):
        opposite = next((between for between in range(index - 1, 0, -1) if signs[between] == -signs[index] != 0), None)
        if opposite is not None and signs[index] in signs[:opposite]:
            return index
    return None
