"""The reports of one read: all of them, or of too many an even sample with those that decide something."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from trialplane.wire.extremes import Extremes
from trialplane.worker.metrics.steps import Report

MOST = 2_000  # reports of one read

Of = TypeVar("Of")


class Burst(Generic[Of]):
    """Reports, each with its source.

    Of more than `MOST` an even sample stays, the last one among them; and the first minimum and the first maximum of each
    metric that the job names, and the first report that `decides`: the best value and the end of a trial must not depend on
    how fast its program prints.

    Args:
        names: metrics that the job names.
        decides: whether a report ends the trial.
    """

    def __init__(self, names: Collection[str], decides: Callable[[Report], bool]) -> None:
        self._decides = decides
        self._count = 0
        self._stride = 1
        self._sample: dict[int, tuple[Of, Report]] = {}  # each `stride`th, by number
        self._extremes = Extremes(names)
        self._extreme_items: dict[int, tuple[Of, Report]] = {}
        self._decisive: dict[int, tuple[Of, Report]] = {}
        self._last: dict[int, tuple[Of, Report]] = {}

    def add(self, of: Of, report: Report) -> None:
        """Add the next report."""
        number, item = self._count, (of, report)
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

    def reports(self) -> list[tuple[Of, Report]]:
        """Return the sample and the decisive reports, in order."""
        if self._count <= MOST:
            return list(self._sample.values())
        selected = self._extreme_items | self._decisive | self._last
        room = max(0, MOST - len(selected))
        numbers = [number for number in self._sample if number not in selected]
        spread = [numbers[len(numbers) * index // room] for index in range(min(room, len(numbers)))]
        return [item for _, item in sorted((selected | {position: self._sample[position] for position in spread}).items())]
