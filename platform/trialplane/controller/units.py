"""The state of the units of one iteration: which of them wait, are assigned to a worker, or have ended. Pure.

A unit is one piece of the work of an iteration, for example a game, with one result. Each unit ends once, as arrived or as
failed. Before that it waits, is assigned to one worker, or is in transit: the worker has offered its result, which is on its
way to the learner.

If a worker's process fails with one unit assigned, that unit is at fault. It is retried as often as a trial with the same
failure. If several units are assigned, it is unknown which one is at fault. If the failure may be retried, such as a lost
slot, the units are assigned again together, as often as a trial would be retried. After that, or after another failure,
they become suspects: each is assigned alone, so that the next failure shows which one is at fault.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from trialplane.job.resources import Retries
from trialplane.wire import units
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FAILURE_RULES, FailureClass, TrialState
from trialplane.wire.units import Unit

_FailureCounts = collections.Counter[tuple[int, FailureClass]]  # (unit, failure) → number of retries


@dataclasses.dataclass(frozen=True)
class FailedUnit:
    """A unit that failed for good, and why."""

    unit: int
    worker: int
    failure: FailureClass
    message: str
    traceback: str = ""


class Units:
    """The units of one iteration.

    Args:
        first: Number of the first unit.
        count: Number of units.
        seed: Seed of the job, from which the seed of each unit is derived.
        retries: Limits of the retries of a faulty unit, by class of failure.

    Attributes:
        failed: Units that failed for good, by number.
    """

    def __init__(self, first: int, count: int, seed: int, retries: Retries) -> None:
        self.count = count
        self.failed: dict[int, FailedUnit] = {}
        self._seed = seed
        self._retries = retries
        self._waiting = collections.deque(range(first, first + count))
        self._waiting_alone: collections.deque[int] = collections.deque()  # each needs a worker without other units
        self._suspects: set[int] = set()  # units that are assigned alone, because one of them made a process fail
        # Worker → units whose results it must still offer.
        self._assigned: dict[int, set[int]] = collections.defaultdict(set)
        self._in_transit: dict[int, int] = {}  # unit → worker that offered its result
        self._arrived: set[int] = set()
        self._own_retries: _FailureCounts = collections.Counter()  # after failures that the unit itself has caused
        self._shared_retries: _FailureCounts = collections.Counter()  # after failures with other units assigned

    @property
    def waiting(self) -> int:
        """The number of units that wait for a worker."""
        return len(self._waiting) + len(self._waiting_alone)

    @property
    def is_all_assigned(self) -> bool:
        """Whether every unit has ended or is in transit, so that no worker gets another one unless a result is lost."""
        return not self.waiting and not any(self._assigned.values())

    @property
    def arrived(self) -> int:
        """The number of units that have arrived."""
        return len(self._arrived)

    @property
    def is_done(self) -> bool:
        """Whether every unit has ended."""
        return len(self._arrived) + len(self.failed) == self.count

    def assigned_to(self, worker: int) -> frozenset[int]:
        """Return the units that are assigned to a worker, and whose results it has not offered."""
        return frozenset(self._assigned.get(worker, ()))

    def assign(self, worker: int, count: int) -> tuple[Unit, ...]:
        """Assign at most `count` waiting units to a worker, and return them.

        A suspect is assigned only to a worker without other units. This worker gets no further unit until it has offered the
        result of the suspect.
        """
        assigned = self._assigned[worker]
        if assigned & self._suspects or count < 1:
            return ()
        numbers: list[int] = []
        if self._waiting_alone and not assigned:
            numbers = [self._waiting_alone.popleft()]
        else:
            while len(numbers) < count and self._waiting:
                numbers.append(self._waiting.popleft())
        assigned.update(numbers)
        return tuple(Unit(number, seed=units.unit_seed(self._seed, number)) for number in numbers)

    def put_back(self, worker: int, unbegun: Iterable[int]) -> None:
        """Let units that a worker has not begun wait again, as if they had never been assigned."""
        for unit in sorted(unbegun, reverse=True):
            if unit in self._assigned[worker]:
                self._assigned[worker].discard(unit)
                self._wait_again(unit)

    def record_offer(self, worker: int, unit: int) -> bool:
        """Record that a worker offers the result of a unit; return False if the unit is not assigned to the worker."""
        if unit not in self._assigned[worker]:
            return False
        self._assigned[worker].discard(unit)
        self._in_transit[unit] = worker
        return True

    def record_arrival(self, unit: int) -> bool:
        """Record that the learner has the result of a unit; return whether that is new.

        It is not if the unit was not in transit, as after an earlier record of the same arrival.
        """
        if self._in_transit.pop(unit, None) is None:
            return False
        self._arrived.add(unit)
        self._suspects.discard(unit)
        return True

    def record_reuse(self, unit: int) -> bool:
        """Record that the learner reuses a unit's result of an earlier attempt; return False if the unit is not waiting."""
        if unit not in self._waiting:
            return False
        self._waiting.remove(unit)
        self._arrived.add(unit)
        return True

    def retry_lost_result(self, unit: int, message: str, *, uses_retry: bool = True) -> FailedUnit | None:
        """Let a unit whose result was lost in transit wait again, unless its retries are used up.

        Args:
            unit: Number of the unit.
            message: Reason for the loss.
            uses_retry: Whether the loss uses up a retry of this unit. If it does not, the unit always waits again.

        Returns:
            The record of the unit if it has failed for good. None if it waits again or was not in transit.
        """
        worker = self._in_transit.pop(unit, None)
        if worker is None:
            return None
        if uses_retry:
            return self._retry_or_fail(FailedUnit(unit, worker, FailureClass.LOST, message))
        self._wait_again(unit)
        return None

    def refuse_result(self, unit: int, failure: FailureClass, message: str) -> FailedUnit | None:
        """Fail a unit whose result cannot be accepted: a retry would give the same result.

        Returns:
            The record of the failed unit. None if the unit was not in transit.
        """
        worker = self._in_transit.pop(unit, None)
        return None if worker is None else self._fail(FailedUnit(unit, worker, failure, message))

    def end_worker(self, worker: int, outcome: TrialOutcome) -> FailedUnit | None:
        """Record that a worker's process has ended: its units wait again, or one fails for good, see the module's docstring.

        Returns:
            The record of the unit that has failed for good; None if all wait again.
        """
        assigned = sorted(self._assigned.pop(worker, ()))
        failure, message = outcome.failure, outcome.message
        if outcome.state is TrialState.COMPLETE and assigned:
            failure, message = FailureClass.INVALID, "the worker returned without a result of this unit"
        is_failure = failure is not FailureClass.STOPPED  # the platform stops workers that are removed
        if len(assigned) == 1 and failure is not None and is_failure:
            return self._retry_or_fail(FailedUnit(assigned[0], worker, failure, message, traceback=outcome.traceback))
        for unit in reversed(assigned):  # each goes to the front of the queue, so their order stays
            if is_failure and not self._count_retry(unit, failure, self._shared_retries):
                self._suspects.add(unit)
            self._wait_again(unit)
        return None

    def _retry_or_fail(self, failed: FailedUnit) -> FailedUnit | None:
        """Let a unit that is at fault wait again, or fail it for good if its retries are used up.

        Args:
            failed: Record of the unit in case it fails for good.

        Returns:
            The record if the unit has failed for good; None if it waits again.
        """
        if not self._count_retry(failed.unit, failed.failure, self._own_retries):
            return self._fail(failed)
        self._wait_again(failed.unit)
        return None

    def _count_retry(self, unit: int, failure: FailureClass | None, counts: _FailureCounts) -> bool:
        """Count a retry of a unit if the limit for this failure allows another one; return whether it does.

        Args:
            unit: Number of the unit.
            failure: Class of the failure; None for an end without one, after which nothing is counted.
            counts: Retries that are counted so far.
        """
        if failure is None or not FAILURE_RULES[failure].allows_retry(self._retries, counts[unit, failure]):
            return False
        counts[unit, failure] += 1
        return True

    def _fail(self, failed: FailedUnit) -> FailedUnit:
        """Record that a unit has failed for good, and return its record."""
        self._suspects.discard(failed.unit)
        self.failed[failed.unit] = failed
        return failed

    def _wait_again(self, unit: int) -> None:
        """Put a unit at the front of those that wait."""
        queue = self._waiting_alone if unit in self._suspects else self._waiting
        queue.appendleft(unit)
