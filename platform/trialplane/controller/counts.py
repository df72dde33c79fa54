"""Counts of logical trials, and the rule by which a failed attempt is tried again. Pure."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from trialplane.spec.resources import Retries
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FAILURE_RULES, FailureClass, TrialState


@dataclasses.dataclass
class Counts:
    """Logical trials by how they stand; `retried` counts attempts, `counted_failures` those that budgets count.

    Retries are counted per trial and class of failure. Where trials keep checkpoints the count begins anew with an attempt
    that came further than every one before it: a training of a week may lose its machine every day, but what fails again
    and again at the same step is over when its retries are.

    Attributes:
        keeps_checkpoints: whether an attempt goes on where the one before was.
    """

    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
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
        """The fields of `RunStatus` that count."""
        return {
            "complete": self.complete,
            "pruned": self.pruned,
            "failed": self.failed,
            "running": self.running,
            "retried": self.retried,
            "failures": dict(self.failures),
        }

    def may_retry(self, trial: int, failure: FailureClass, retries: Retries, step: int = 0) -> bool:
        """Whether an attempt at `trial` that failed so, after `step`, is tried again, after those counted so far."""
        rule = FAILURE_RULES[failure]
        if rule.retry is None:
            return False
        used = 0 if self._is_progress(trial, step) else self._used[trial][failure]
        return rule.retry == "always" or used < getattr(retries, rule.retry)

    def add(self, trial: int, outcome: TrialOutcome) -> None:
        """Counts the end of an attempt."""
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
        else:
            assert outcome.failure is not None
            self._count_failed(outcome.failure, 1)

    def take_back(self, trial: int, failure: FailureClass) -> None:
        """A trial that had failed for good is tried again, because the user wants it, and has all its retries again."""
        self._count_failed(failure, -1)
        self.failures = +self.failures  # without classes that count nothing any more
        self.retried += 1
        self._used[trial].clear()

    def _count_failed(self, failure: FailureClass, by: int) -> None:
        self.failed += by
        self.failures[failure] += by
        self.counted_failures += by * FAILURE_RULES[failure].counts

    def _is_progress(self, trial: int, step: int) -> bool:
        """Whether an attempt that reported `step` came further than every one before it."""
        return self.keeps_checkpoints and step > self._furthest.get(trial, 0)
