"""What a refit says of configurations: intervals that hold, ties that are called ties, winners as often as stated. Pure."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from trialplane.plan import refit

SEEDS = 5


def simulated(chance: random.Random, *means: float, noise: float = 1.0, seeds: int = SEEDS) -> refit.Comparison:
    values = {trial: [chance.gauss(mean, noise) for _ in range(seeds)] for trial, mean in enumerate(means)}
    return refit.compare(values, maximize=False)


@pytest.mark.slow
def test_planted_ties_are_ties() -> None:
    chance = random.Random(1)
    ties = sum(simulated(chance, 0.0, 0.0, 0.0).winner is None for _ in range(200))
    assert ties >= 0.95 * 200


@pytest.mark.slow
def test_nothing_is_called_worse_that_is_not() -> None:
    chance = random.Random(2)
    whole = sum(all(one.is_best for one in simulated(chance, 0.0, 0.0, 0.0).candidates) for _ in range(400))
    assert whole >= 0.95 * 400 - 2 * math.sqrt(400 * 0.95 * 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("configurations", "seeds"), [(2, 5), (3, 5), (5, 5), (3, 10)])
def test_a_planted_winner_is_found_as_often_as_stated(configurations: int, seeds: int) -> None:
    """The difference is stated for the noise that was seen; planted is its mean over many refits."""
    chance = random.Random(3)
    others = configurations - 1
    gap = statistics.fmean(simulated(chance, *[0.0] * configurations, seeds=seeds).difference or 0.0 for _ in range(300))
    winners = [simulated(chance, 0.0, *[gap] * others, seeds=seeds).winner for _ in range(400)]
    share = sum(winner is not None and winner.trial == 0 for winner in winners) / len(winners)
    assert abs(share - refit.POWER) < 0.1, share
    assert not any(winner is not None and winner.trial for winner in winners)


@pytest.mark.slow
def test_intervals_hold_together() -> None:
    chance = random.Random(4)
    held = sum(all(abs(one.mean) <= one.margin for one in simulated(chance, 0.0, 0.0, 0.0).candidates) for _ in range(400))
    assert held >= 0.95 * 400 - 2 * math.sqrt(400 * 0.95 * 0.05)


def test_the_direction_and_the_order() -> None:
    values = {3: [1.0, 1.1, 0.9], 7: [5.0, 5.1, 4.9], 9: [5.0, 5.2, 4.7]}
    found = refit.compare(values, maximize=True)
    assert [(one.trial, one.is_best) for one in found.candidates] == [(7, True), (9, True), (3, False)]
    assert found.winner is None
    winner = refit.compare({3: values[3], 7: values[7]}, maximize=False).winner
    assert winner is not None
    assert winner.trial == 3


def test_one_seed_says_nothing() -> None:
    found = refit.compare({0: [1.0], 1: [2.0]}, maximize=False)
    assert (found.winner, found.difference, found.candidates[0].margin) == (None, None, math.inf)


def test_without_noise_any_difference_counts() -> None:
    found = refit.compare({0: [1.0, 1.0], 1: [2.0, 2.0], 2: []}, maximize=False)
    assert found.winner is not None
    assert (found.winner.trial, len(found.candidates)) == (0, 2)


def test_nothing_to_compare() -> None:
    assert refit.compare({}, maximize=False) == refit.Comparison((), None)
