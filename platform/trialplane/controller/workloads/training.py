"""A training: one trial, whose reports give its progress and the time left."""

from __future__ import annotations

import collections

from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool
from trialplane.controller.workloads.workload import Workload
from trialplane.wire import progress
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import TrialReport
from trialplane.wire.states import RunState

WINDOW = 50  # reports from which the rate is computed
TOTAL = "total_steps"
LEFT = "seconds_left"  # where the job reports it itself, as `training.progress` makes it
# Reported only while there is a slow rank.
_PASSING = ("slowest_rank", "slowest_rank_factor")


class TrainingWorkload(Workload):
    """The one trial of a training, which is retried from its newest checkpoint."""

    def __init__(self, ledger: Ledger, slots: Pool) -> None:
        super().__init__(ledger, slots)
        self._reports = TrainingReports()

    def _prunes(self, report: TrialReport) -> bool:
        self._reports.add(report)
        return super()._prunes(report)

    def finished(self) -> Ending:
        """The ending of its last attempt."""
        row = self._ledger.newest[0]
        if row.failure is None:
            text = "; ".join(filter(None, ("the training ended", row.message)))
            return Ending(RunState.SUCCEEDED, text, kill=False)
        tried = f"at attempt {row.attempt} " if row.attempt > 1 else ""
        return Ending(RunState.FAILED, f"the training failed {tried}({row.failure}): {row.message}", kill=False)

    @property
    def progress(self) -> TrainingProgress:
        """The reports of the attempt that runs or ran last."""
        return self._reports.progress

    def eta(self, now: float, rate: float | None) -> float | None:
        """Seconds until the last step."""
        return self._reports.eta(now)


class TrainingReports:
    """The reports of a training, of one attempt at a time.

    They may come from several places of the job, training and evaluation for example, so each metric keeps its newest value
    until another attempt starts.

    Attributes:
        progress: the newest values.
    """

    def __init__(self) -> None:
        self.progress = TrainingProgress()
        self._number: int | None = None  # of the attempt
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)
        self._end: float | None = None  # when the last step will be done, as reported by the job

    def add(self, report: TrialReport) -> None:
        """Take a report; the first one of another attempt resets the progress."""
        newest = self.progress
        if report.number != self._number:
            self._number = report.number
            newest = TrainingProgress()
            self._steps.clear()
            self._end = None
        metrics = dict(report.metrics)
        if LEFT in metrics:
            self._end = report.time + metrics[LEFT]
        total = progress.as_count(metrics.pop(TOTAL, newest.total_steps))
        step = report.step if newest.step is None else max(report.step, newest.step)
        lasting = {name: value for name, value in newest.metrics.items() if name not in _PASSING}
        self.progress = TrainingProgress(step, total, {**lasting, **metrics})
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((report.time, step))

    def eta(self, now: float) -> float | None:
        """Seconds until the last step, or None while unknown."""
        if self._end is not None:
            return max(0.0, self._end - now)
        total = self.progress.total_steps
        if total is None or len(self._steps) < 2:
            return None
        (begin, first_step), (end, last_step) = self._steps[0], self._steps[-1]
        if end <= begin:
            return None
        return max(0.0, (total - last_step) * (end - begin) / (last_step - first_step) - (now - end))
