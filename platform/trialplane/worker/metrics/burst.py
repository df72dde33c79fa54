"""Limit the reports of one read of a program's output, without losing those that decide the result.

A program may print faster than reports can be recorded. The reader adds each report to a `Burst` and takes its selection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from trialplane.wire.extremes import Extremes
from trialplane.worker.metrics.steps import Report

MOST = 2_000  # reports that are selected in one read

SourceT = TypeVar("SourceT")


class Burst(Generic[SourceT]):
    """A selection of reports, each with its source.

    If there are more than `MOST`, an even sample is selected, and with it the last report, the first minimum and the first
    maximum of each metric that the job names, and the first report that ends the trial. So the best value and the end of a
    trial do not depend on how fast its program prints.

    Args:
        names: Metrics that the job names.
        ends_trial: Returns whether a report ends the trial.
    """

    def __init__(self, names: Collection[str], ends_trial: Callable[[Report], bool]) -> None:
        self._ends_trial = ends_trial
        self._count = 0  # reports that were added; a report's number is the count before it
        self._stride = 1
        # Selected reports, each with its source, by number.
        self._sample: dict[int, tuple[SourceT, Report]] = {}  # those whose number is a multiple of `_stride`
        self._extremes = Extremes(names)
        self._extreme_items: dict[int, tuple[SourceT, Report]] = {}  # those whose numbers `_extremes` has
        self._ending: dict[int, tuple[SourceT, Report]] = {}  # the first one that ends the trial
        self._last: dict[int, tuple[SourceT, Report]] = {}  # the last one

    def add(self, source: SourceT, report: Report) -> None:
        """Add the next report, and drop those that it replaces in the selection."""
        number, item = self._count, (source, report)
        self._count += 1
        replaced = self._extremes.add(number, report.metrics)
        if replaced is not None:  # the report has a new minimum or maximum
            self._extreme_items[number] = item
            # A replaced report may still have the extreme of another metric.
            for old_number in set(replaced) - self._extremes.numbers:
                del self._extreme_items[old_number]
        if not self._ending and self._ends_trial(report):
            self._ending[number] = item
        self._last = {number: item}
        if number % self._stride == 0:
            self._sample[number] = item
            if len(self._sample) > 2 * MOST:  # drop every second one
                self._stride *= 2
                self._sample = {
                    position: sampled for position, sampled in self._sample.items() if position % self._stride == 0
                }

    def reports(self) -> list[tuple[SourceT, Report]]:
        """Return the selected reports with their sources, in order; all reports if there are at most `MOST`."""
        if self._count <= MOST:
            return list(self._sample.values())  # `_stride` is still 1
        selected = self._extreme_items | self._ending | self._last
        sampled = [number for number in self._sample if number not in selected]
        room = max(0, MOST - len(selected))
        for index in range(min(room, len(sampled))):
            number = sampled[len(sampled) * index // room]  # spread evenly over the sample
            selected[number] = self._sample[number]
        return [item for _, item in sorted(selected.items())]
