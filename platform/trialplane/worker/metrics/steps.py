"""Collect metrics of lines into reports: which belong together, and under which step."""

from __future__ import annotations

from collections.abc import Collection

from trialplane.wire import records
from trialplane.worker.metrics import lines
from trialplane.worker.metrics.lines import LineMetrics

Report = tuple[int, dict[str, float]]


class Steps:
    """Collect metrics of lines into reports whose steps never decrease.

    What follows a line with a step belongs to that step, and so does what stands in lines after each other, until a metric
    comes again. Steps that begin anew in each epoch go on behind those before (`lines.Epochs`); others that do not grow are
    counted on. Where many lines name one step, as those of the batches of an epoch, the last
    counts for metrics that the job does not name: otherwise what is printed at the end of the epoch would have as its step
    the number of lines. Whether lines do that is known once the first step is over; its report waits for that.

    Args:
        requested: metrics that the job names.
    """

    def __init__(self, requested: Collection[str]) -> None:
        self._requested = frozenset(requested)
        self._repeats = False  # whether lines that name one step have repeated a metric
        self._epochs = lines.Epochs()
        self._named: int | None = None  # the newest step, as the program names it, those of former epochs added
        self._is_first = True  # whether no second step has been named yet
        self._is_next = False  # whether no metric has come since that step was named
        self._step = -1  # of the newest report, and of the one that is being collected
        self._names: set[str] = set()  # of the metrics at that step
        self._reported: set[str] = set()  # those that are in a report
        self._metrics: dict[str, float] = {}  # of the report that is being collected

    def add(self, line: LineMetrics) -> list[Report]:
        """Add the metrics of a line; return the report that it completes, if any."""
        complete: list[Report] = []
        step, names = self._epochs.step(line), line.metrics.keys()
        if step is not None and step != self._named:
            complete = self.flush()
            self._is_first = self._is_first and self._named is None
            self._named, self._is_next = step, True
        elif not (repeated := self._names & names).isdisjoint(self._requested) or (repeated and step is None):
            complete = self.flush()
            self._begin(self._step + 1)
        elif repeated:
            self._repeats = True
        if not names:
            return complete
        if self._is_next and self._named is not None:
            self._is_next = False
            if self._named > self._step:
                self._begin(self._named)
            elif self._named < self._step or not self._names.isdisjoint(names):
                self._begin(self._step + 1)
        elif self._step < 0:
            self._begin(0)
        self._names |= names
        self._metrics.update(line.metrics)
        return complete

    def rest(self) -> list[Report]:
        """Return the report being collected when no more lines wait, unless lines of its step may replace it."""
        is_wanted = not self._metrics.keys().isdisjoint(self._requested)
        may_repeat = self._named is not None and (self._repeats or self._is_first)
        return self.flush() if is_wanted or not may_repeat else []

    def flush(self) -> list[Report]:
        """Return the report being collected, without metrics that were reported before lines were known to repeat them."""
        metrics = {name: value for name, value in self._metrics.items() if name not in self._reported}
        self._reported |= metrics.keys()
        self._metrics = {}
        return [(self._step, metrics)] if metrics else []

    def _begin(self, step: int) -> None:
        self._step = min(step, records.STEPS - 1)
        self._names, self._reported = set(), set()
