"""The reports of one read: all of them, or an even sample if there are too many, with those that matter for the result."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from trialplane.wire.extremes import Extremes
from trialplane.worker.metrics.steps import Report

MOST = 2_000  # reports of one read that are kept

SourceT = TypeVar("SourceT")


class Burst(Generic[SourceT]):
    """Reports, each with its source.

    If there are more than `MOST`, an even sample is selected, and with it the last report, the first minimum and the first
    maximum of each metric that the job names, and the first report that ends the trial. So the best value and the end of a
    trial do not depend on how fast its program prints.

    Args:
        names: Metrics that the job names.
        decides: Returns whether a report ends the trial.
    """

    def __init__(self, names: Collection[str], decides: Callable[[Report], bool]) -> None:
        self._decides = decides
        self._count = 0
        self._stride = 1
        self._sample: dict[int, tuple[SourceT, Report]] = {}  # each `_stride`th report, by number
        self._extremes = Extremes(names)
        self._extreme_items: dict[int, tuple[SourceT, Report]] = {}
        self._decisive: dict[int, tuple[SourceT, Report]] = {}
        self._last: dict[int, tuple[SourceT, Report]] = {}

    def add(self, source: SourceT, report: Report) -> None:
        """Add the next report."""
        number, item = self._count, (source, report)
        self._count += 1
        if (replaced := self._extremes.add(number, report[1])) is not None:
            self._extreme_items[number] = item
            for other in set(replaced) - self._extremes.numbers:
                del self._extreme_items[other]
        if not self._decisive and self._decides(report):
            self._decisive[number] = item
        self._last = {number: item}
        if number % self._stride == 0:
            self._sample[number] = item
            if len(self._sample) > 2 * MOST:
                self._stride *= 2
                self._sample = {
                    position: sampled for position, sampled in self._sample.items() if position % self._stride == 0
                }

    def reports(self) -> list[tuple[SourceT, Report]]:
        """Return the sample and the decisive reports, in order."""
        if self._count <= MOST:
            return list(self._sample.values())
        selected = self._extreme_items | self._decisive | self._last
        room = max(0, MOST - len(selected))
        numbers = [number for number in self._sample if number not in selected]
        spread = [numbers[len(numbers) * index // room] for index in range(min(room, len(numbers)))]
        return [item for _, item in sorted((selected | {position: self._sample[position] for position in spread}).items())]
