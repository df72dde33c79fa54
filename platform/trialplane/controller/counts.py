"""Counts logical trials, keeps their best reports, decides what is retried, and detects repeated failures. Pure."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trialplane.job.resources import Retries
from trialplane.job.search import Objective
from trialplane.wire.records import BestReport, TrialOutcome, TrialRequest
from trialplane.wire.states import FAILURE_RULES, FailureClass, TrialState


@dataclasses.dataclass
class Counts:
    """Logical trials by state; `retried` counts attempts, `counted_failures` the failures that count against budgets.

    `paused` are trials at a rung, which may continue.

    Retries are counted per trial and class of failure. Where trials keep checkpoints the count restarts with an attempt
    that got further than all before it: a training of a week may lose its machine every day, but one that repeatedly fails
    at the same step ends when its retries are used up.

    Attributes:
        keeps_checkpoints: whether an attempt continues where the previous one stopped.
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
    _used: dict[int, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter), repr=False
    )
    _furthest: dict[int, int] = dataclasses.field(default_factory=dict, repr=False)  # trial → the last step ever reported

    @property
    def ended(self) -> int:
        """Logical trials that will not run again."""
        return self.complete + self.pruned + self.failed

    def shown(self) -> dict[str, Any]:
        """The counters of `RunStatus`."""
        return {
            "complete": self.complete,
            "pruned": self.pruned,
            "failed": self.failed,
            "running": self.running,
            "paused": self.paused,
            "retried": self.retried,
            "failures": dict(self.failures),
        }

    def may_retry(self, trial: int, failure: FailureClass, retries: Retries, step: int = 0) -> bool:
        """Whether an attempt at `trial` that failed with this class after `step` is retried, given those counted so far."""
        rule = FAILURE_RULES[failure]
        if rule.retry is None:
            return False
        used = 0 if self._is_progress(trial, step) else self._used[trial][failure]
        return rule.retry == "always" or used < getattr(retries, rule.retry)

    def add(self, trial: int, outcome: TrialOutcome) -> None:
        """Count the end of an attempt."""
        if self._is_progress(trial, outcome.step):
            self._furthest[trial] = outcome.step
            self._used[trial].clear()
        if outcome.failure is not None:
            self._used[trial][outcome.failure] += 1
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
            self._count_failed(outcome.failure, 1)

    def take_back(self, trial: int, failure: FailureClass) -> None:
        """Reopen a trial that had failed for good, at the user's request, with all its retries."""
        self._count_failed(failure, -1)
        self.failures = +self.failures  # drops classes whose count is zero
        self.retried += 1
        self._used[trial].clear()

    def _count_failed(self, failure: FailureClass, count: int) -> None:
        self.failed += count
        self.failures[failure] += count
        self.counted_failures += count * FAILURE_RULES[failure].counts

    def _is_progress(self, trial: int, step: int) -> bool:
        """Whether an attempt that reported `step` got further than all before it."""
        return self.keeps_checkpoints and step > self._furthest.get(trial, 0)


class Repeats:
    """The attempts to be retried, in the order of their failures.

    Args:
        counts: updated when a trial that had failed for good is reopened.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._waiting: collections.deque[TrialRequest] = collections.deque()
        self._failed: dict[int, tuple[TrialRequest, FailureClass]] = {}  # number → an attempt that failed for good

    def __len__(self) -> int:
        """The number of attempts that wait for a retry."""
        return len(self._waiting)

    def take(self) -> TrialRequest:
        """Remove and return the attempt to be retried next."""
        return self._waiting.popleft()

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Record the end of an attempt."""
        if outcome.retried:
            self._waiting.append(request)
        elif outcome.failure is not None:
            self._failed[request.number] = request, outcome.failure

    def begun(self, request: TrialRequest) -> None:
        """Record an attempt of a former controller: what it repeats is no longer waiting, or was reopened."""
        number = request.retry_of
        if number in self._failed:
            self._open(number)
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.number != number)

    def take_up(self, number: int | None) -> bool:
        """Queue an attempt that failed for good once more, with all the retries of its trial.

        Args:
            number: of the attempt; None for the newest that failed for good.

        Returns:
            Whether there is such an attempt.
        """
        if number is None:
            number = max(self._failed, default=None)
        if number is None or number not in self._failed:
            return False
        self._open(number)
        return True

    def reopen(self, below: int) -> None:
        """Queue all attempts with lower numbers that failed for good, in order, with all the retries of their trials."""
        for number in sorted(number for number in self._failed if number < below):
            self._open(number)

    def _open(self, number: int) -> None:
        request, failure = self._failed.pop(number)
        self._counts.take_back(request.trial, failure)
        self._waiting.append(request)


class BestReports:
    """The best report of each objective that is the best of a trial's reports.

    Reports of former attempts count where the next one continues from a checkpoint.

    Args:
        objectives: the job's.
        keeps_checkpoints: whether an attempt continues where the previous one stopped.
    """

    def __init__(self, objectives: Iterable[Objective], keeps_checkpoints: bool) -> None:
        self._objectives = {objective.metric: objective for objective in objectives if objective.of == "best"}
        self._keeps_checkpoints = keeps_checkpoints
        self._reports: dict[int, dict[str, BestReport]] = {}  # trial → metric → report

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics whose final value may be a report's."""
        return tuple(self._objectives)

    def begun(self, trial: int) -> None:
        """Record that an attempt at a trial starts."""
        if not self._keeps_checkpoints:
            self._reports.pop(trial, None)

    def add(self, trial: int, step: int, metrics: Mapping[str, float]) -> None:
        """Take a report of a trial; of equal values the first counts."""
        for metric, objective in self._objectives.items():
            value = metrics.get(metric, math.nan)
            reports = self._reports.setdefault(trial, {})
            if math.isfinite(value) and (metric not in reports or objective.is_better(value, reports[metric].value)):
                reports[metric] = BestReport(value, step)

    def applied(self, trial: int, outcome: TrialOutcome) -> TrialOutcome:
        """An outcome with the best reports; those of a trial that completed replace worse values of its result."""
        reports, metrics = self._reports.get(trial, {}), dict(outcome.metrics)
        if outcome.state is TrialState.COMPLETE:
            for metric, best in reports.items():
                if self._objectives[metric].is_better(best.value, metrics[metric]):
                    metrics[metric] = best.value
        return dataclasses.replace(outcome, best=dict(reports), metrics=metrics)

    def ended(self, trial: int, outcome: TrialOutcome) -> None:
        """Record the end of an attempt, also of a former controller."""
        self._reports.pop(trial, None)
        if (outcome.failure is not None or outcome.state is TrialState.PAUSED) and outcome.best:
            self._reports[trial] = dict(outcome.best)


class Alike:
    """Detects that the first trials of a study all fail in the same way: the code is at fault, not the points.

    Failures are alike if they have the same class and were raised in the same line of the job's code, or results if they
    lack the same; of those raised elsewhere the message must be the same. Only consecutive trials count, and none once one
    has succeeded. Failures that a point or a machine may cause (out of memory, too slow, crashed, lost) are never alike.

    Args:
        most: how many are enough; None disables the check.
        ended_well: whether a trial of the study has a result, or was pruned.

    Attributes:
        certain: the first attempt that failed as every other would, an import for example; it is enough by itself.
    """

    def __init__(self, most: int | None, ended_well: bool) -> None:
        self._most = None if ended_well else most
        self._kind: tuple[FailureClass, str] | None = None
        self._row: list[TrialRequest] = []
        self.certain: TrialRequest | None = None

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Record the end of an attempt."""
        if outcome.retried:
            return
        if outcome.failure is None:
            self._most = None
            return
        if outcome.certain and self.certain is None:
            self.certain = request
        deterministic = outcome.failure in (FailureClass.ERROR, FailureClass.INVALID)
        kind = (outcome.failure, outcome.place or outcome.message) if deterministic else None
        if kind != self._kind:
            self._kind, self._row = kind, []
        if deterministic:
            self._row.append(request)

    def failures(self, running: Iterable[TrialRequest]) -> tuple[TrialRequest, ...]:
        """The attempt that failed as every other would, or those that failed alike, once there are enough.

        Of the latter none while one that started before the last of them runs: so of concurrent trials the ones that fail at
        once do not end the slower ones.
        """
        if self._most is not None and self.certain is not None:
            return (self.certain,)
        if self._most is None or len(self._row) < self._most:
            return ()
        candidates = sorted(self._row, key=lambda request: request.number)[: self._most]
        return tuple(candidates) if all(request.number > candidates[-1].number for request in running) else ()
