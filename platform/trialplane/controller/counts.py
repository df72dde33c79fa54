"""Numbers that the ledger derives from the starts and ends of attempts. Pure.

A trial has one attempt after another: retries, and the continuations of a trial that was paused at a rung.

`Counts` has the numbers of trials by state, and decides whether a failed attempt is retried. `Repeats` has the attempts
that wait for their retry. `BestReports` serves objectives with `of: best`. `AlikeFailures` detects that all trials fail in
the same way. `SavedCheckpoints` has the number and size of the checkpoints. A new controller fills them again from the
ledger.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trialplane.job.resources import Retries
from trialplane.job.search import Objective
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import BestReport, CheckpointSummary, TrialOutcome, TrialRequest
from trialplane.wire.states import FAILURE_RULES, FailureClass, TrialState


@dataclasses.dataclass
class Counts:
    """Numbers of logical trials by state.

    Retries are counted per trial and class of failure. If trials keep checkpoints, the count restarts after an attempt that
    got further than all earlier ones. So a training of a week may lose its machine every day, while a training that always
    fails at the same step ends when its retries are used up.

    Attributes:
        complete: Number of complete trials.
        pruned: Number of pruned trials.
        failed: Number of trials that failed for good.
        running: Number of running trials.
        paused: Number of trials that are paused at a rung and may continue.
        retried: Number of attempts that were retried.
        counted_failures: Number of failed trials that count against budgets.
        failures: Number of failed trials by class of failure.
        keeps_checkpoints: Whether an attempt continues where the previous one stopped.
    """

    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    paused: int = 0
    retried: int = 0
    counted_failures: int = 0
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    keeps_checkpoints: bool = False
    _retries: dict[int, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter), repr=False
    )
    _furthest: dict[int, int] = dataclasses.field(default_factory=dict, repr=False)  # trial → largest step reported

    @property
    def ended(self) -> int:
        """The number of trials that will not run again."""
        return self.complete + self.pruned + self.failed

    def status_fields(self) -> dict[str, Any]:
        """Return the fields of `RunStatus` that are counts."""
        names = ("complete", "pruned", "failed", "running", "paused", "retried")
        return {name: getattr(self, name) for name in names} | {"failures": dict(self.failures)}

    def may_retry(self, trial: int, failure: FailureClass, retries: Retries, step: int) -> bool:
        """Return whether an attempt that has just failed may be retried. Call this before `add_end` counts its failure.

        Args:
            trial: Number of the trial.
            failure: Class of the failure.
            retries: Limits of the job, by class of failure.
            step: Last step of the attempt.
        """
        used_retries = 0 if self._is_progress(trial, step) else self._retries[trial][failure]
        return FAILURE_RULES[failure].allows_retry(retries, used_retries)

    def add_end(self, trial: int, outcome: TrialOutcome) -> None:
        """Count the end of an attempt."""
        if self._is_progress(trial, outcome.step):
            self._furthest[trial] = outcome.step
            self._retries[trial].clear()  # they count from 0 again
        if outcome.failure is not None:
            self._retries[trial][outcome.failure] += 1
        if outcome.retried:
            self.retried += 1
        elif outcome.state is TrialState.COMPLETE:
            self.complete += 1
        elif outcome.state is TrialState.PRUNED:
            self.pruned += 1
        elif outcome.state is TrialState.PAUSED:
            self.paused += 1
        else:
            assert outcome.failure is not None
            self._count_failed(outcome.failure, change=1)

    def reopen(self, trial: int, failure: FailureClass) -> None:
        """Count a trial that had failed for good as not ended, and reset its retries."""
        self._count_failed(failure, change=-1)
        if not self.failures[failure]:
            del self.failures[failure]  # the status shows only classes that have occurred
        self.retried += 1
        self._retries[trial].clear()

    def _count_failed(self, failure: FailureClass, *, change: int) -> None:
        """Add `change` to the numbers of failed trials: 1 after a failure of this class, -1 if the trial is reopened."""
        self.failed += change
        self.failures[failure] += change
        if FAILURE_RULES[failure].counts:  # against budgets; the loss of a machine does not
            self.counted_failures += change

    def _is_progress(self, trial: int, step: int) -> bool:
        """Return whether an attempt whose last step is `step` got further than all earlier ones."""
        return self.keeps_checkpoints and step > self._furthest.get(trial, 0)


class Repeats:
    """The attempts that wait for a retry, in the order of their failures.

    Args:
        counts: Numbers of trials, which change when a trial that had failed for good is reopened.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._waiting: collections.deque[TrialRequest] = collections.deque()
        # Number → attempt that failed for good, and its failure. The user may request that it is retried.
        self._failed: dict[int, tuple[TrialRequest, FailureClass]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def trials(self) -> frozenset[int]:
        """The trials that wait for a retry."""
        return frozenset(request.trial for request in self._waiting)

    def take(self) -> TrialRequest:
        """Remove and return the attempt to be retried next."""
        return self._waiting.popleft()

    def record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Record the end of an attempt: it waits for its retry if it gets one."""
        if outcome.retried:
            self._waiting.append(request)
        elif outcome.failure is not None:
            self._failed[request.number] = request, outcome.failure

    def record_start(self, request: TrialRequest) -> None:
        """Record an attempt that an earlier controller has started. The attempt that it repeats no longer waits."""
        repeated_number = request.retry_of
        if repeated_number in self._failed:  # it had failed for good, so the earlier controller must have reopened it
            self._reopen(repeated_number)
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.number != repeated_number)

    def reopen_failure(self, number: int | None) -> bool:
        """Let an attempt that failed for good be retried, and reset the retries of its trial.

        Args:
            number: Number of the attempt; None for the newest one that failed for good.

        Returns:
            Whether there is such an attempt.
        """
        if number is None:
            number = max(self._failed, default=None)
        if number is None or number not in self._failed:
            return False
        self._reopen(number)
        return True

    def reopen_failures_before(self, number: int) -> None:
        """Let all attempts with smaller numbers that failed for good be retried, and reset the retries of their trials."""
        for failed_number in sorted(self._failed):
            if failed_number < number:
                self._reopen(failed_number)

    def _reopen(self, number: int) -> None:
        """Let an attempt that failed for good wait for a retry, and count its trial as not ended."""
        request, failure = self._failed.pop(number)
        self._counts.reopen(request.trial, failure)
        self._waiting.append(request)


class BestReports:
    """The best reports of trials, for objectives with `of: best`.

    If an attempt continues from a checkpoint, the reports of earlier attempts at its trial count too.

    Args:
        objectives: Objectives of the job.
        keeps_checkpoints: Whether an attempt continues where the previous one stopped.

    Attributes:
        metrics: Metrics of the objectives with `of: best`.
    """

    def __init__(self, objectives: Iterable[Objective], keeps_checkpoints: bool) -> None:
        self._objectives = {objective.metric: objective for objective in objectives if objective.of == "best"}
        self.metrics = tuple(self._objectives)
        self._keeps_checkpoints = keeps_checkpoints
        self._reports: dict[int, dict[str, BestReport]] = {}  # trial → metric → best report

    def record_start(self, trial: int) -> None:
        """Record that an attempt at a trial starts. Without checkpoints it starts over, so earlier reports do not count."""
        if not self._keeps_checkpoints:
            self._reports.pop(trial, None)

    def begin_with(self, trial: int, reports: Mapping[str, BestReport]) -> None:
        """Add the best reports of an earlier run's trial that this trial continues. Its own ones have priority."""
        if reports:
            self._reports[trial] = {**reports, **self._reports.get(trial, {})}

    def take_over(self, trial: int, reports: Mapping[str, BestReport]) -> None:
        """Replace the best reports of a trial by those of another one, whose state it takes over."""
        self._reports[trial] = dict(reports)

    def add(self, trial: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add a report of a trial. If a value is equal to the best one, the earlier report stays the best."""
        best_reports = self._reports.setdefault(trial, {})
        for metric, objective in self._objectives.items():
            value = metrics.get(metric, math.nan)
            if not math.isfinite(value):  # missing, NaN or infinite
                continue
            if metric not in best_reports or objective.is_better(value, best_reports[metric].value):
                best_reports[metric] = BestReport(value, step)

    def add_to(self, outcome: TrialOutcome, trial: int) -> TrialOutcome:
        """Return an outcome with the best reports of its trial. If it is complete, they replace metrics that are worse."""
        best_reports, metrics = self._reports.get(trial, {}), dict(outcome.metrics)
        if outcome.state is TrialState.COMPLETE:
            for metric, best in best_reports.items():
                if self._objectives[metric].is_better(best.value, metrics[metric]):
                    metrics[metric] = best.value
        return dataclasses.replace(outcome, best=best_reports, metrics=metrics)

    def record_end(self, trial: int, outcome: TrialOutcome) -> None:
        """Record the end of an attempt; keep its best reports if another attempt may follow."""
        may_continue = outcome.failure is not None or outcome.state is TrialState.PAUSED
        if may_continue and outcome.best:
            self._reports[trial] = dict(outcome.best)
        else:
            self._reports.pop(trial, None)


class AlikeFailures:
    """Detects that the first trials of a study all fail in the same way: the code is at fault, and not their parameters.

    Failures are alike if they have the same class and the same fingerprint: the line of the job's code that raised the
    error, or the metrics that the result lacks. Without a fingerprint they must have the same message. Only consecutive
    trials count, and none after a trial has succeeded. Failures that parameters or a machine may cause (out of memory,
    timeout, crash, loss) are never alike.

    Args:
        limit: Number of alike failures that are enough; None disables the check.
        has_success: Whether a trial of the study has a result, or was pruned.

    Attributes:
        certain: First attempt with a failure that every other attempt would have too, such as a failed import; None without
            one. One such failure is enough.
    """

    def __init__(self, limit: int | None, has_success: bool) -> None:
        self._limit = None if has_success else limit
        # Class, and fingerprint or message, of the last failures; None if these are never alike.
        self._kind: tuple[FailureClass, str] | None = None
        self._alike: list[TrialRequest] = []  # consecutive attempts with failures of that kind
        self.certain: TrialRequest | None = None

    def record_end(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Record the end of an attempt: it continues the row of alike failures, begins another one, or ends the check."""
        if outcome.retried:
            return
        if outcome.failure is None:
            self._limit = None  # a trial has succeeded, so the code works
            return
        if outcome.certain and self.certain is None:  # every other attempt would fail too
            self.certain = request
        may_be_fault_of_code = outcome.failure in (FailureClass.ERROR, FailureClass.INVALID)
        kind = (outcome.failure, outcome.fingerprint or outcome.message) if may_be_fault_of_code else None
        if kind != self._kind:
            self._kind, self._alike = kind, []
        if may_be_fault_of_code:
            self._alike.append(request)

    def find_fatal(self, running: Iterable[TrialRequest]) -> tuple[TrialRequest, ...]:
        """Return the attempts whose failures end the study; empty if it continues.

        These are the attempt `certain` alone, or else the first `limit` attempts that failed alike. While an attempt runs
        that started before the last of those, the study continues, as this attempt may still succeed.

        Args:
            running: Attempts that run now.
        """
        if self._limit is None:  # the check is disabled, or a trial has succeeded
            return ()
        if self.certain is not None:
            return (self.certain,)
        if len(self._alike) < self._limit:
            return ()
        first_failures = sorted(self._alike, key=lambda request: request.number)[: self._limit]
        last_number = first_failures[-1].number
        has_earlier_running = any(request.number < last_number for request in running)
        return () if has_earlier_running else tuple(first_failures)


class SavedCheckpoints:
    """The number and size of the checkpoints that a study's trials have saved and still need.

    Attributes:
        number: Number of all checkpoints.
        bytes: Bytes of all checkpoints.
    """

    def __init__(self) -> None:
        self.number = 0
        self.bytes = 0
        self._summaries: dict[TrialFolder, CheckpointSummary] = {}

    def add(self, folder: TrialFolder, summary: CheckpointSummary) -> None:
        """Count the checkpoints in a folder, instead of those that were counted in it before."""
        self.forget((folder,))
        self._summaries[folder] = summary
        self.number += summary.number
        self.bytes += summary.bytes

    def forget(self, folders: Iterable[TrialFolder]) -> None:
        """Stop counting the checkpoints in these folders; a folder that is not counted is ignored."""
        for folder in folders:
            if (summary := self._summaries.pop(folder, None)) is not None:
                self.number -= summary.number
                self.bytes -= summary.bytes
