"""A training: one trial, whose reports give its progress and the time left."""

from __future__ import annotations

import collections

from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import Pool
from trialplane.controller.workloads.workload import Workload
from trialplane.wire import progress, ranks, system_metrics
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import TrialReport
from trialplane.wire.states import RunState

WINDOW = 50  # number of reports from which the rate of steps is computed
TOTAL_STEPS = "total_steps"  # name of a metric: the number of steps of the training
SECONDS_LEFT = "seconds_left"  # name of a metric: the expected time to the end, which jobs with `training.progress` report
# Metrics that are reported only while a rank is slow. A report without them means that no rank is slow any more.
_TRANSIENT = (ranks.SLOWEST_RANK, ranks.SLOWEST_RANK_FACTOR)


class TrainingWorkload(Workload):
    """The one trial of a training, which is retried from its newest checkpoint."""

    def __init__(self, ledger: Ledger, slots: Pool) -> None:
        super().__init__(ledger, slots)
        self._reports = TrainingReports()

    def _take_report(self, report: TrialReport) -> bool:
        """Record a report for the progress and in the ledger; return whether the attempt is pruned."""
        if not system_metrics.is_sample(report.metrics):
            self._reports.add(report)
        return super()._take_report(report)

    def final_ending(self) -> Ending:
        """Return the run's ending after its last attempt: a success unless this attempt failed."""
        row = self._ledger.newest[0]
        if row.failure is None:
            text = "; ".join(filter(None, ("the training ended", row.message)))
            return Ending(RunState.SUCCEEDED, text, kill=False)
        attempt = f"at attempt {row.attempt} " if row.attempt > 1 else ""
        return Ending(RunState.FAILED, f"the training failed {attempt}({row.failure}): {row.message}", kill=False)

    @property
    def progress(self) -> TrainingProgress:
        """The reports of the attempt that runs or ran last."""
        return self._reports.progress

    def eta(self, now: float, rate: float | None) -> float | None:
        """Return the seconds until the last step; None while unknown."""
        return self._reports.eta(now)


class TrainingReports:
    """The reports of a training, of one attempt at a time.

    Reports may come from several parts of the job, such as training and evaluation, each with other metrics. So the newest
    value of each metric stays until another attempt starts.

    Attributes:
        progress: Newest step and metrics.
    """

    def __init__(self) -> None:
        self.progress = TrainingProgress()
        self._number: int | None = None  # number of the attempt that has reported last
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)  # (time, step) of reports
        self._end: float | None = None  # expected time of the last step, if the job reports the seconds left

    def add(self, report: TrialReport) -> None:
        """Add a report; the first report of another attempt resets the progress."""
        newest = self.progress  # before this report
        if report.number != self._number:
            self._number = report.number
            newest = TrainingProgress()
            self._steps.clear()
            self._end = None
        metrics = dict(report.metrics)
        if SECONDS_LEFT in metrics:
            self._end = report.time + metrics[SECONDS_LEFT]
        total_steps = progress.as_count(metrics.pop(TOTAL_STEPS, newest.total_steps))
        step = report.step if newest.step is None else max(report.step, newest.step)
        lasting = {name: value for name, value in newest.metrics.items() if name not in _TRANSIENT}
        self.progress = TrainingProgress(step=step, total_steps=total_steps, metrics={**lasting, **metrics})
        if newest.step is None or step > newest.step:
            self._steps.append((report.time, step))

    def eta(self, now: float) -> float | None:
        """Return the seconds until the last step; None while unknown.

        Args:
            now: Current time in seconds since the epoch.
        """
        if self._end is not None:
            return max(0.0, self._end - now)
        total = self.progress.total_steps
        if total is None or len(self._steps) < 2:
            return None
        (first_time, first_step), (newest_time, newest_step) = self._steps[0], self._steps[-1]
        if newest_time <= first_time:
            return None
        seconds_per_step = (newest_time - first_time) / (newest_step - first_step)
        return max(0.0, (total - newest_step) * seconds_per_step - (now - newest_time))
