"""How far a training or a collection is, and how long the rest of a training will take. Pure."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from trialplane.wire.records import TrialReport
from trialplane.wire.units import WorkerStatus

WINDOW = 50  # reports that the rate is taken from
TOTAL = "total_steps"
LEFT = "seconds_left"  # where the job says itself, as `training.progress` makes it
# Said while it is so, and gone from the reports when it is not.
_PASSING = ("slowest_rank", "slowest_rank_factor")


class Progress:
    """Follows the reports of one trial at a time.

    Reports may come from several places of the job, training and evaluation for example, so each metric keeps its newest
    value until another attempt starts.
    """

    def __init__(self) -> None:
        self._number = -1
        self._metrics: dict[str, float] = {}
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)
        self._end: float | None = None  # when the last step is done, as the job says
        self.workers: tuple[WorkerStatus, ...] = ()

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metric → its newest value, with `step`, or what a collection shows; empty before there is any."""
        return self._metrics

    def reported(self, report: TrialReport) -> None:
        """Takes a report; one of another attempt begins anew."""
        if report.number != self._number:
            self._number = report.number
            self._metrics = {}
            self._steps.clear()
            self._end = None
        if LEFT in report.metrics:
            self._end = report.time + report.metrics[LEFT]
        kept = {name: value for name, value in self._metrics.items() if name not in _PASSING}
        step = max(report.step, int(kept.get("step", report.step)))
        self._metrics = {**kept, **report.metrics, "step": float(step)}
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((report.time, step))

    def collected(self, metrics: Mapping[str, float], workers: tuple[WorkerStatus, ...]) -> None:
        """Takes how far the iteration of a collection is, and its producers; see `RunStatus`."""
        self._metrics = dict(metrics)
        self.workers = workers

    @property
    def done(self) -> float:
        """The share of a collection's iteration that is done."""
        total = self._metrics.get("units_total", 0.0)
        return (self._metrics["units"] + self._metrics["units_failed"]) / total if total else 0.0

    def eta(self, now: float) -> float | None:
        """Seconds until the last step, or None while nobody can tell."""
        if self._end is not None:
            return max(0.0, self._end - now)
        total = self._metrics.get(TOTAL)
        if total is None or len(self._steps) < 2:
            return None
        (begin, first), (end, last) = self._steps[0], self._steps[-1]
        if end <= begin:
            return None
        return max(0.0, (total - last) * (end - begin) / (last - first) - (now - end))
