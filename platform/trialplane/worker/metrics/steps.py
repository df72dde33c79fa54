"""Collect the metrics of lines into reports with steps."""

from __future__ import annotations

from collections.abc import Collection

from trialplane.wire import records
from trialplane.worker.metrics import lines
from trialplane.worker.metrics.lines import LineMetrics

Report = tuple[int, dict[str, float]]


class Steps:
    """Collect the metrics of lines into reports whose steps never decrease.

    Lines after one with a step belong to that step. Without steps, successive lines belong together until a metric is
    repeated. Steps that begin anew in each epoch continue those of the epoch before (`lines.Epochs`); instead of other steps
    that do not grow, the next number is used. If many lines name one step, as those of an epoch's batches, the last value
    counts for metrics that the job does not name: otherwise the metrics at the end of the epoch would have the number of
    lines as their step. Whether lines do that is known at the end of the first step, whose report waits until then.

    Args:
        requested: Metrics that the job names.
    """

    def __init__(self, requested: Collection[str]) -> None:
        self._requested = frozenset(requested)
        self._has_repeats = False  # whether lines of one step have repeated a metric
        self._epochs = lines.Epochs()
        self._named_step: int | None = None  # the newest step that the program has named, with the steps of former epochs
        self._is_first_step = True  # whether the program has not named a second step yet
        self._is_named_step_empty = False  # whether no metric has followed that step yet
        self._step = -1  # step of the newest report, or of the one that is being collected
        self._step_metrics: set[str] = set()  # metrics at that step
        self._reported_metrics: set[str] = set()  # those of them that are in a report already
        self._metrics: dict[str, float] = {}  # the report that is being collected

    def add(self, line: LineMetrics) -> list[Report]:
        """Add the metrics of a line; return the report that it completes, if any."""
        complete: list[Report] = []
        step, names = self._epochs.step(line), line.metrics.keys()
        if step is not None and step != self._named_step:
            complete = self.flush()
            self._is_first_step = self._is_first_step and self._named_step is None
            self._named_step, self._is_named_step_empty = step, True
        elif not (repeated := self._step_metrics & names).isdisjoint(self._requested) or (repeated and step is None):
            complete = self.flush()
            self._begin_step(self._step + 1)
        elif repeated:
            self._has_repeats = True
        if not names:
            return complete
        if self._is_named_step_empty and self._named_step is not None:
            self._is_named_step_empty = False
            if self._named_step > self._step:
                self._begin_step(self._named_step)
            elif self._named_step < self._step or not self._step_metrics.isdisjoint(names):
                self._begin_step(self._step + 1)
        elif self._step < 0:
            self._begin_step(0)
        self._step_metrics |= names
        self._metrics.update(line.metrics)
        return complete

    def flush_idle(self) -> list[Report]:
        """Return the collected report while no lines arrive, unless later lines of its step may replace it."""
        is_wanted = not self._metrics.keys().isdisjoint(self._requested)
        may_repeat = self._named_step is not None and (self._has_repeats or self._is_first_step)
        return self.flush() if is_wanted or not may_repeat else []

    def flush(self) -> list[Report]:
        """Return the collected report, without metrics that were reported at this step before."""
        metrics = {name: value for name, value in self._metrics.items() if name not in self._reported_metrics}
        self._reported_metrics |= metrics.keys()
        self._metrics = {}
        return [(self._step, metrics)] if metrics else []

    def _begin_step(self, step: int) -> None:
        """Begin to collect a report of a step."""
        self._step = min(step, records.STEPS - 1)
        self._step_metrics, self._reported_metrics = set(), set()
