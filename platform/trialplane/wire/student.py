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
        """Return half the width of a confidence interval around `value`.

        Args:
            tail: Probability that the true difference is above the interval, and also that it is below the interval.
        """
        return quantile(1 - tail, self.freedom) * self.error if self.error else 0.0


def difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Return the difference of two means by Welch's test. None if a sample has fewer than two values."""
    if len(first) < 2 or len(second) < 2:
        return None
    value = statistics.fmean(second) - statistics.fmean(first)
    variances_of_means = [statistics.variance(sample) / len(sample) for sample in (first, second)]
    total = sum(variances_of_means)
    if not total:
        return Difference(value, error=0.0, freedom=math.inf)
    # Welch and Satterthwaite's formula for the degrees of freedom. It has shares of the total, because the squares of very
    # small variances could both be 0 in floating point.
    shares = [variance / total for variance in variances_of_means]
    inverse_freedom = sum(share**2 / (len(sample) - 1) for share, sample in zip(shares, (first, second), strict=True))
    return Difference(value, error=math.sqrt(total), freedom=1 / inverse_freedom)


@functools.lru_cache(maxsize=1000)
def quantile(share: float, freedom: float) -> float:
    """Return the value below which a share of Student's t distribution lies.

    Args:
        share: Share, from 0.5 to less than 1.
        freedom: Degrees of freedom, over 0; need not be an integer.
    """
    # Double an upper bound until it is large enough, then halve the interval between the bounds.
    low, high = 0.0, 1.0
    for _ in range(_DOUBLINGS):
        if share_above(high, freedom) <= 1 - share:
            break
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if share_above(middle, freedom) > 1 - share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def share_above(value: float, freedom: float) -> float:
    """Return the share of Student's t distribution above a value of 0 or more.

    It is half the regularized incomplete beta function I(x; a, b), where a = freedom / 2, b = 1/2 and
    x = freedom / (freedom + value²). There is no closed form of it, but a continued fraction (Numerical Recipes, 6.4). As
    this converges only for small x, 1 - I(1 - x; b, a), which is the same number, is computed for large x.
    """
    a, b, square = freedom / 2, 0.5, value * value
    x, complement = freedom / (freedom + square), square / (freedom + square)  # `1 - x` would be inexact if x is nearly 1
    if not complement:
        return 0.5
    if not x:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    # The factor before the fraction, x^a (1 - x)^b / B(a, b), by logarithms; log1p(square / freedom) is -log x.
    scale = math.exp(b * math.log(complement) - a * math.log1p(square / freedom) - log_beta)
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(x, a, b) / a / 2
    return (1 - scale * _beta_fraction(complement, b, a) / b) / 2


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by the modified method of Lentz.

    The method evaluates the fraction from its first term on. With each coefficient, it multiplies the result by two ratios:
    of successive numerators, and of successive denominators, inverted. (Numerical Recipes, 5.2 and 6.4)
    """
    numerator_ratio, inverse_denominator_ratio = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = inverse_denominator_ratio
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for coefficient in (even, odd):
            numerator_ratio = _nonzero(1 + coefficient / numerator_ratio)
            inverse_denominator_ratio = 1 / _nonzero(1 + coefficient * inverse_denominator_ratio)
            fraction *= numerator_ratio * inverse_denominator_ratio
        if abs(numerator_ratio * inverse_denominator_ratio - 1) < _PRECISION:
            break
    return fraction


def _nonzero(number: float) -> float:
    """Return a number, or a tiny one in place of 0, so that it can be a divisor."""
    return number if abs(number) > _SMALLEST else _SMALLEST
