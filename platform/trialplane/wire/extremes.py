"""The reports with the minimum and maximum of each metric. They are kept when a curve is thinned out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


class Extremes:
    """Numbers of the reports with the first minimum and the first maximum of each metric that the job names.

    Args:
        names: Names of the metrics.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._lows: dict[str, tuple[float, int]] = {}  # metric → its minimum, and the number of the report
        self._highs: dict[str, tuple[float, int]] = {}

    @property
    def numbers(self) -> set[int]:
        """Numbers of the reports with an extreme."""
        return {number for extremes in (self._lows, self._highs) for _, number in extremes.values()}

    def add(self, number: int, metrics: Mapping[str, float]) -> list[int] | None:
        """Add the next report.

        Args:
            number: Number of the report.
            metrics: Metrics of the report, by name.

        Returns:
            The numbers of the reports whose extremes it replaces; empty if it has only first values. None if it has no
            extreme.
        """
        replaced: list[int] | None = None
        for name in self._names:
            value = metrics.get(name, math.nan)
            if not math.isfinite(value):
                continue
            for extremes, sign in ((self._lows, 1.0), (self._highs, -1.0)):  # a maximum is the minimum of negated values
                old_extreme = extremes.get(name)
                if old_extreme is None or sign * value < sign * old_extreme[0]:
                    replaced = [*(replaced or ()), *(() if old_extreme is None else (old_extreme[1],))]
                    extremes[name] = value, number
        return replaced
