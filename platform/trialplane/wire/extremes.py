"""The reports with the minimum and the maximum of each metric, which the ledger keeps when it thins out a curve."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple


class _Extreme(NamedTuple):
    """A minimum or maximum of a metric, and the number of its report."""

    value: float
    number: int


class Extremes:
    """Numbers of the reports with the first minimum and the first maximum of each metric that the job names.

    Args:
        names: Names of the metrics.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._lows: dict[str, _Extreme] = {}  # by metric
        self._highs: dict[str, _Extreme] = {}

    @property
    def numbers(self) -> set[int]:
        """Numbers of the reports with an extreme."""
        return {extreme.number for extremes in (self._lows, self._highs) for extreme in extremes.values()}

    def add(self, number: int, metrics: Mapping[str, float]) -> list[int] | None:
        """Add the next report.

        Args:
            number: Number of the report.
            metrics: Metrics of the report, by name.

        Returns:
            None if no metric of the report is a new minimum or maximum. Otherwise, the numbers of the reports whose minimum
            or maximum it replaces; empty if these are the first values of the metrics.
        """
        has_extreme = False
        replaced: list[int] = []
        for name in self._names:
            value = metrics.get(name, math.nan)
            if not math.isfinite(value):  # missing, NaN or infinite
                continue
            for extremes, sign in ((self._lows, 1.0), (self._highs, -1.0)):  # a maximum is the minimum of negated values
                old = extremes.get(name)
                if old is None or sign * value < sign * old.value:
                    has_extreme = True
                    replaced += [] if old is None else [old.number]
                    extremes[name] = _Extreme(value, number)
        return replaced if has_extreme else None
