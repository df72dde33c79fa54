"""Student's t distribution, and the difference of two means by Welch's test. Pure, without scipy."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

_SMALLEST = 1e-300  # replaces a zero in the continued fraction, which divides by its terms
_PRECISION = 1e-15  # relative; the continued fraction ends when a term changes less
_MOST_TERMS = 10_000  # it needs about the square root of the degrees of freedom
_DOUBLINGS = 1_000  # until an upper bound of a quantile would be infinite
_HALVINGS = 55  # of the bounds of a quantile, until they differ in the last digit


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of the means of two samples, with its standard error. The variances need not be equal.

    Attributes:
        value: Mean of the second sample minus that of the first.
        error: Standard error of the difference. 0 if neither sample varies.
        freedom: Degrees of freedom of the t distribution of value / error. Infinite if the error is 0.
    """

    value: float
    error: float
    freedom: float

    def margin(self, tail: float) -> float:
        """Return half the width of an interval around `value`: the true difference is above it with probability `tail`.

        It is below the interval with the same probability.
        """
        return quantile(1 - tail, self.freedom) * self.error if self.error else 0.0


def difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Return the difference of two means by Welch's test. None if a sample has fewer than two values."""
    if len(first) < 2 or len(second) < 2:
        return None
    value = statistics.fmean(second) - statistics.fmean(first)
    squares = [statistics.variance(sample) / len(sample) for sample in (first, second)]  # of the errors of the means
    total = sum(squares)
    if not total:
        return Difference(value, 0.0, math.inf)
    shares = [square / total for square in squares]  # their squares cannot underflow both
    spread = sum(share**2 / (len(sample) - 1) for share, sample in zip(shares, (first, second), strict=True))
    return Difference(value, math.sqrt(total), 1 / spread)


@functools.lru_cache(maxsize=1000)
def quantile(share: float, freedom: float) -> float:
    """Return the value below which a share of Student's t distribution lies.

    Args:
        share: Share, from 0.5 to less than 1.
        freedom: Degrees of freedom, over 0; need not be an integer.

    Raises:
        ValueError: The share is out of its range.
    """
    if not 0.5 <= share < 1:
        raise ValueError(f"the share {share} is not from 0.5 to less than 1")
    low, high = 0.0, 1.0
    for _ in range(_DOUBLINGS):
        if share_above(high, freedom) <= 1 - share:
            break
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_above(middle, freedom) > 1 - share else (low, middle)
    return (low + high) / 2


def share_above(value: float, freedom: float) -> float:
    """Return the share of Student's t distribution above a value of 0 or more.

    It is half the regularized incomplete beta function I(x; a, b) with a = freedom / 2, b = 1/2 and x = freedom / (freedom +
    value²). As there is no closed form, its continued fraction is evaluated, or for large x that of 1 - I(1 - x; b, a), for
    it converges only for small x (Numerical Recipes, 6.4).
    """
    half, square = freedom / 2, value * value
    x, rest = freedom / (freedom + square), square / (freedom + square)  # `1 - x` would be inexact if x is nearly 1
    if not rest:
        return 0.5
    if not x:
        return 0.0
    log_beta = math.lgamma(half) + math.lgamma(0.5) - math.lgamma(half + 0.5)
    scale = math.exp(0.5 * math.log(rest) - half * math.log1p(square / freedom) - log_beta)
    if x < (half + 1) / (half + 2.5):
        return scale * _beta_fraction(x, half, 0.5) / half / 2
    return (1 - scale * _beta_fraction(rest, 0.5, half) / 0.5) / 2


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method.

    The method multiplies the result by the ratio of two successive numerators, and divides it by that of two denominators.
    """
    numerator, denominator = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = denominator
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for coefficient in (even, odd):
            numerator = _nonzero(1 + coefficient / numerator)
            denominator = 1 / _nonzero(1 + coefficient * denominator)
            fraction *= numerator * denominator
        if abs(numerator * denominator - 1) < _PRECISION:
            break
    return fraction


def _nonzero(number: float) -> float:
    return number if abs(number) > _SMALLEST else _SMALLEST
