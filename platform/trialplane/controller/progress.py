"""How far a training is by its reports, and how long the rest of it will take. Pure."""

from __future__ import annotations

import collections

from trialplane.wire import progress
from trialplane.wire.progress import RunProgress, TrainingProgress
from trialplane.wire.records import TrialReport

WINDOW = 50  # reports that the rate is taken from
TOTAL = "total_steps"
LEFT = "seconds_left"  # where the job says itself, as `training.progress` makes it
# Said while it is so, and gone from the reports when it is not.
_PASSING = ("slowest_rank", "slowest_rank_factor")


class Progress:
    """How far a run is; follows the reports of a training, one attempt at a time.

    Reports may come from several places of the job, training and evaluation for example, so each metric keeps its newest
    value until another attempt starts.

    Attributes:
        now: how far it is.

    Args:
        begun: how far it was before.
    """

    def __init__(self, begun: RunProgress) -> None:
        self.now = begun
        self._number = -1
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)
        self._end: float | None = None  # when the last step is done, as the job says

    def reported(self, report: TrialReport) -> None:
        """Takes a report of a training; one of another attempt begins anew."""
        now = self.now
        if report.number != self._number or not isinstance(now, TrainingProgress):
            self._number = report.number
            now = TrainingProgress()
            self._steps.clear()
            self._end = None
        metrics = dict(report.metrics)
        if LEFT in metrics:
            self._end = report.time + metrics[LEFT]
        total = progress.whole(metrics.pop(TOTAL, now.total_steps))
        step = report.step if now.step is None else max(report.step, now.step)
        kept = {name: value for name, value in now.metrics.items() if name not in _PASSING}
        self.now = TrainingProgress(step, total, {**kept, **metrics})
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((report.time, step))

    def eta(self, now: float) -> float | None:
        """Seconds until the last step, or None while nobody can tell."""
        if self._end is not None:
            return max(0.0, self._end - now)
        total = self.now.total_steps if isinstance(self.now, TrainingProgress) else None
        if total is None or len(self._steps) < 2:
            return None
        (begin, first), (end, last) = self._steps[0], self._steps[-1]
        if end <= begin:
            return None
        return max(0.0, (total - last) * (end - begin) / (last - first) - (now - end))
