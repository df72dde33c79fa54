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
    """Logical trials by how they stand; `retried` counts attempts, `counted_failures` those that budgets count."""

    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    retried: int = 0
    counted_failures: int = 0
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    _used: dict[int, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter), repr=False
    )

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

    def may_retry(self, trial: int, failure: FailureClass, retries: Retries) -> bool:
        """Whether an attempt at `trial` that failed so is tried again, after those counted so far."""
        rule = FAILURE_RULES[failure]
        if rule.retry is None:
            return False
        return rule.retry == "always" or self._used[trial][failure] < getattr(retries, rule.retry)

    def add(self, trial: int, outcome: TrialOutcome) -> None:
        """Counts the end of an attempt."""
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
            self.failed += 1
            self.failures[outcome.failure] += 1
            self.counted_failures += FAILURE_RULES[outcome.failure].counts
