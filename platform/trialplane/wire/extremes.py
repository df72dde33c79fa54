"""The reports with the minimum and maximum of each metric, which stay when a curve is thinned out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


class Extremes:
    """Numbers of the reports with the first minimum and the first maximum of each metric that the job names.

    Args:
        names: metrics that the job names.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._lows: dict[str, tuple[float, int]] = {}  # metric → its minimum, and the number of the report
        self._highs: dict[str, tuple[float, int]] = {}

    @property
    def numbers(self) -> set[int]:
        """Numbers of these reports."""
        return {number for extremes in (self._lows, self._highs) for _, number in extremes.values()}

    def add(self, number: int, metrics: Mapping[str, float]) -> list[int] | None:
        """Add the next report.

        Returns:
            The numbers of the reports that it replaces, or None if it is not an extreme.
        """
        replaced: list[int] | None = None
        for name in self._names:
            value = metrics.get(name, math.nan)
            if not math.isfinite(value):
                continue
            for extremes, sign in ((self._lows, 1.0), (self._highs, -1.0)):
                before = extremes.get(name)
                if before is None or sign * value < sign * before[0]:
                    replaced = [*(replaced or ()), *(() if before is None else (before[1],))]
                    extremes[name] = value, number
        return replaced
