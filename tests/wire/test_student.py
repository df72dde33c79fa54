"""Student's t distribution and Welch's test, compared with scipy."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from trialplane.wire import student

SHARES = (0.5, 0.6, 0.8, 0.9, 0.975, 0.999, 0.9999, 0.99999, 0.999999)


@pytest.fixture(scope="module")
def stats() -> Any:
    """Module `scipy.stats`, which takes a second to import."""
    from scipy import stats

    return stats


@pytest.mark.parametrize("freedom", [0.5, 1.0, 1.05, 1.3, 1.9, 2.5, 7.77, *range(2, 201), 1234.5, 20_000])
def test_quantiles_are_those_of_scipy(freedom: float, stats: Any) -> None:
    for share in SHARES:
        assert student.quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("freedom", [0.5, 1.0, 1.3, 2.0, 3.7, 40.0, 1234.5])
@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 1.0, 2.5, 40.0, 1e6, 1e200])
def test_shares_above_a_value_are_those_of_scipy(freedom: float, value: float, stats: Any) -> None:
    assert student.share_above(value, freedom) == pytest.approx(stats.t.sf(value, freedom), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("scale", [1.0, 1e-100])  # the squares of the variances of small values underflow
@pytest.mark.parametrize("sizes", [(2, 2), (3, 5), (10, 4), (200, 150)])
def test_the_interval_of_a_difference_is_that_of_welch(sizes: tuple[int, int], scale: float, stats: Any) -> None:
    chance = random.Random(sum(sizes))
    a, b = ([chance.gauss(mean, 1 + mean) for _ in range(size)] for mean, size in enumerate(sizes))
    difference = student.difference([scale * value for value in a], [scale * value for value in b])
    assert difference is not None
    margin = difference.margin(0.025)
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    interval = (difference.value - margin, difference.value + margin)
    assert interval == pytest.approx((scale * expected.low, scale * expected.high), rel=1e-8, abs=0)


def test_one_value_has_no_spread_and_equal_values_differ_by_nothing_else() -> None:
    assert student.difference([1.0], [2.0, 3.0]) is None
    equal = student.difference([1.0, 1.0], [3.0, 3.0])
    assert equal == student.Difference(2.0, 0.0, math.inf)
    assert equal.margin(0.025) == 0


def test_equal_means_are_found_to_differ_in_a_twentieth_of_cases() -> None:
    chance = random.Random(1)
    missed = 0
    for _ in range(300):
        a, b = ([chance.gauss(0, spread) for _ in range(4)] for spread in (1, 3))
        difference = student.difference(a, b)
        assert difference is not None
        missed += abs(difference.value) > difference.margin(0.025)
    assert missed <= 27  # 15 are expected; with 5 % each, more than 27 are there in one of a thousand cases
