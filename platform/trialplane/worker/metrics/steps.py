"""Collect the metrics of a program's lines into reports, each with a step.

`tails.Tail` finds the lines, one `Steps` per file makes reports of them, and `reader.Reader` passes the reports on.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from typing import NamedTuple

from trialplane.wire import records
from trialplane.worker.metrics import bars
from trialplane.worker.metrics.names import LineMetrics


class Report(NamedTuple):
    """The metrics of one step."""

    step: int
    metrics: dict[str, float]


class Epochs:
    """A count of steps through all epochs, for programs whose steps begin anew in each epoch.

    If an epoch has 600 steps, `Epoch [2/5], Step [100/600]` is step 700. If lines do not name the number of steps, it is the
    last step that the epoch has named.
    """

    def __init__(self) -> None:
        self._newest = LineMetrics(step=None, metrics={})  # the newest line that names an epoch and a step
        self._before = 0  # steps in the epochs before the current one

    def step(self, line: LineMetrics) -> int | None:
        """Return the step of a line, counted from the first epoch on; None if the line names no step."""
        if line.step is None:
            return None
        if line.epoch is None:
            return self._before + line.step
        previous, self._newest = self._newest, line
        if previous.epoch is not None and previous.step is not None:
            steps_began_anew = line.epoch > previous.epoch and line.step <= previous.step
            if steps_began_anew and previous.steps:  # epochs between the two lines have as many, and may print nothing
                self._before += (int(line.epoch) - int(previous.epoch)) * previous.steps
            elif steps_began_anew:
                self._before += previous.step
        return self._before + line.step


class Restarts:
    """A count of how often the numbers of a metric's epochs or steps begin again, as in another training or fold.

    They do if a lower number is followed by one that is not above the highest before. In `best epoch: 2` between the lines
    of epochs 5 and 6, they do not.

    Attributes:
        count: Number of restarts.
        are_epochs: Whether the numbers are those of epochs.
        text: Description: "epochs begin again at 1 after 3, as in another training or fold, 2 in all"; "" without a restart.
    """

    def __init__(self) -> None:
        self.count, self.are_epochs, self.text = 0, False, ""
        self._highest: tuple[float, int] | None = None  # epoch and step; 0 as the one that is not named
        self._lower: tuple[float, int] | None = None  # the newest one if it is below the highest
        self._has_several = False  # whether there was a number below the highest

    def add(self, number: tuple[float, int]) -> None:
        """Add the epoch and the step of the next value."""
        if self._highest is None or number > self._highest:
            self._has_several = self._highest is not None
            self._highest, self._lower = number, None
        elif self._lower is not None and number > self._lower and self._has_several:
            self.count += 1
            self.are_epochs = self._highest[0] > 0
            first, last = (epoch if self.are_epochs else step for epoch, step in (self._lower, self._highest))
            numbers, parts = ("epochs", "training") if self.are_epochs else ("steps", "epoch, training")
            parts += f" or fold, {self.count + 1} in all"
            self.text = f"{numbers} begin again at {first:.0f} after {last:.0f}, as in another {parts}"
            self._highest, self._lower = number, None
        elif number < self._highest:
            self._lower = number


class Steps:
    """A collector of lines into reports whose steps never decrease.

    A line without a step belongs to the step of the last line with one. If no line names a step, successive lines form one
    report until a metric is repeated.

    Steps that begin anew in each epoch are counted through all epochs (`Epochs`). If the program names another step
    that is not greater than the last one, the report gets the next number.

    If several lines name one step, as the batches of an epoch do, a repeated metric begins the next number only if the job
    names that metric. Of other metrics the last value counts, so the number of batches does not become the step. Until the
    first step ends, it is unknown whether its lines repeat metrics, so its report waits for that.

    A progress bar with a metric that the job names counts by its position through all bars (`bars.Bars`), unless lines
    outside of bars have named a step before. How often it is drawn depends on time, so the last values at a position count,
    and their report waits for the next position.

    Args:
        requested: Metrics that the job names.

    Attributes:
        restarts: Metric that the job names → how often its epochs or steps begin again.
    """

    def __init__(self, requested: Collection[str]) -> None:
        self.restarts = collections.defaultdict[str, Restarts](Restarts)
        self._number: tuple[float, int] | None = None  # the newest epoch and step that the program has named
        self._requested = frozenset(requested)
        self._has_repeats = False  # whether lines of one step have repeated a metric that the job does not name
        self._epochs = Epochs()
        self._bars = bars.Bars()
        self._counts_bars: bool | None = None  # whether positions of bars are the steps; None before the first step
        self._is_bar = False  # whether the newest metrics are in a bar that may be drawn again
        self._named_step: int | None = None  # the newest step that the program has named, counted through all epochs
        self._is_first_step = True  # whether the program has not named a second step yet
        self._is_named_step_empty = False  # whether no metric has followed `_named_step` yet
        self._step = -1  # step of the newest report, or of the one that is being collected
        self._step_metrics: set[str] = set()  # metrics at `_step`
        self._reported_metrics: set[str] = set()  # those of `_step_metrics` that are in a report already
        self._metrics: dict[str, float] = {}  # the report that is being collected

    def add(self, line: LineMetrics) -> list[Report]:
        """Add the metrics of a line; return the report that it completes, or an empty list."""
        complete: list[Report] = []
        step, names = self._count(line), line.metrics.keys()
        repeated = self._step_metrics & names
        is_bar = self._is_counted_bar(line)
        final = self._reported_metrics if is_bar else repeated  # values that this line cannot replace
        repeats_requested = not (final & names).isdisjoint(self._requested)
        if step is not None and step != self._named_step:  # the line names a new step
            complete = self.flush()
            self._is_first_step = self._is_first_step and self._named_step is None
            self._named_step, self._is_named_step_empty = step, True
        elif repeats_requested or (repeated and step is None and not is_bar):
            complete = self.flush()
            self._begin_step(self._step + 1)
        elif repeated:
            self._has_repeats = True
        self._count_restarts(line)
        if names:
            self._begin_step_if_due(names)
            self._step_metrics |= names
            self._metrics.update(line.metrics)
            self._is_bar = is_bar
        return complete

    def _count_restarts(self, line: LineMetrics) -> None:
        """Record the epoch and the step of the metrics of a line that the job names; see `Restarts`."""
        if line.step is not None:
            epoch = self._number[0] if self._number is not None and line.epoch is None else line.epoch or 0
            self._number = (line.step, 0) if line.is_epoch else (epoch, line.step)
        if self._number is not None:
            for name in self._requested & line.metrics.keys():
                self.restarts[name].add(self._number)

    def _is_counted_bar(self, line: LineMetrics) -> bool:
        """Return whether a line is a progress bar with a metric that the job names, or with any if it names none."""
        return line.bar is not None and not (self._requested and self._requested.isdisjoint(line.metrics))

    def _count(self, line: LineMetrics) -> int | None:
        """Return the step of a line, counted through all epochs or bars; None if it has none."""
        is_bar = self._is_counted_bar(line)
        if self._counts_bars is None and (is_bar or (line.bar is None and line.step is not None)):
            self._counts_bars = is_bar
        if line.bar is None or not self._counts_bars:
            return self._epochs.step(line)
        return self._bars.step(line.bar) if is_bar else None

    def _begin_step_if_due(self, names: Collection[str]) -> None:
        """Begin the step of the next metrics, if they are the first ones of a named step or of all.

        Args:
            names: Names of the metrics.
        """
        if self._is_named_step_empty:
            assert self._named_step is not None
            self._is_named_step_empty = False
            repeats_metrics = not self._step_metrics.isdisjoint(names)
            if self._named_step > self._step:
                self._begin_step(self._named_step)
            elif self._named_step < self._step or repeats_metrics:  # that number is past, or has these metrics already
                self._begin_step(self._step + 1)
            # Otherwise the lines add other metrics to the current step.
        elif self._step < 0:
            self._begin_step(0)

    def flush_idle(self) -> list[Report]:
        """Return the collected report when no new line has arrived; an empty list if a later line may replace its values."""
        has_requested = not self._metrics.keys().isdisjoint(self._requested)
        may_repeat = self._named_step is not None and (self._has_repeats or self._is_first_step)
        return self.flush() if not self._is_bar and (has_requested or not may_repeat) else []

    def flush(self) -> list[Report]:
        """Return the collected report, and begin an empty one at the same step.

        The report lacks metrics that an earlier report has at this step. Without others the list is empty.
        """
        metrics = {name: value for name, value in self._metrics.items() if name not in self._reported_metrics}
        self._reported_metrics |= metrics.keys()
        self._metrics = {}
        return [Report(self._step, metrics)] if metrics else []

    def _begin_step(self, step: int) -> None:
        """Begin to collect reports of a step, at most of the largest step that the ledger can hold."""
        self._step = min(step, records.MAX_STEP)
        self._step_metrics, self._reported_metrics = set(), set()
