"""The state of one iteration's units: which wait, which worker has which, and which are retried after a failure. Pure.

Each unit ends once, as arrived or as failed. Before that it waits, is assigned to one worker, or is in transit: its result
is on its way to the learner, and no longer depends on the worker.

If a process fails with one unit, that unit is at fault and is retried like a trial with that failure. If it has several, the
faulty one is unknown: each is handed out again alone. A lost slot or a killed process at first counts as no unit's fault:
its units are handed out together again, as often as a trial would be retried.
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


@dataclasses.dataclass(frozen=True)
class FailedUnit:
    """A unit that failed for good, and why."""

    unit: int
    worker: int
    failure: FailureClass
    message: str
    traceback: str = ""


@dataclasses.dataclass(frozen=True)
class Lost:
    """The units that a worker had when it ended.

    Attributes:
        faulty: the unit that made it fail, if that is known.
        failed: the same if it is not retried.
        again: those that are retried.
    """

    faulty: int | None = None
    failed: FailedUnit | None = None
    again: tuple[int, ...] = ()


class Units:
    """The units of one iteration.

    Args:
        first: number of the first.
        count: how many there are.
        seed: the job's; each unit derives its own.
        retries: how often a faulty unit is retried.
    """

    def __init__(self, first: int, count: int, seed: int, retries: Retries) -> None:
        self.count = count
        self.failed: dict[int, FailedUnit] = {}
        self._seed = seed
        self._retries = retries
        self._waiting = collections.deque(range(first, first + count))
        self._alone: collections.deque[int] = collections.deque()  # wait for a worker without other units
        self._suspects: set[int] = set()  # units that are handed out alone
        self._out: dict[int, set[int]] = collections.defaultdict(set)  # worker → units whose results it has not offered
        self._in_transit: dict[int, int] = {}  # unit whose result is on its way → worker
        self._arrived: set[int] = set()
        self._used: collections.Counter[tuple[int, FailureClass]] = collections.Counter()
        self._together: collections.Counter[tuple[int, FailureClass]] = (
            collections.Counter()
        )  # failures shared with other units

    @property
    def waiting(self) -> int:
        """The number of units that are not assigned."""
        return len(self._waiting) + len(self._alone)

    @property
    def is_handed_out(self) -> bool:
        """Whether no unit is left to hand out or to do, unless a result on its way is lost."""
        return not self.waiting and not any(self._out.values())

    @property
    def arrived(self) -> int:
        """The number of units that have arrived."""
        return len(self._arrived)

    @property
    def is_done(self) -> bool:
        """Whether every unit has ended."""
        return len(self._arrived) + len(self.failed) == self.count

    def open(self, worker: int) -> frozenset[int]:
        """The units assigned to a worker whose results it has not offered."""
        return frozenset(self._out.get(worker, ()))

    def hand(self, worker: int, count: int) -> tuple[Unit, ...]:
        """Hand out at most `count` units, in the order of their numbers unless some are retried.

        A suspect goes to a worker that has no other unit, which gets no further one until its end.
        """
        out = self._out[worker]
        if out & self._suspects or count < 1:
            return ()
        handed: list[int] = []
        if self._alone and not out:
            handed = [self._alone.popleft()]
        else:
            while len(handed) < count and self._waiting:
                handed.append(self._waiting.popleft())
        out.update(handed)
        return tuple(Unit(number, units.unit_seed(self._seed, number)) for number in handed)

    def put_back(self, worker: int, unbegun: Iterable[int]) -> None:
        """Return units that a worker has not begun, as if they had never been handed out."""
        for unit in sorted(unbegun, reverse=True):
            if unit in self._out[worker]:
                self._out[worker].discard(unit)
                self._return(unit)

    def offer(self, worker: int, unit: int) -> bool:
        """Record that a worker offers the result of a unit; False when the unit is not assigned to it."""
        if unit not in self._out[worker]:
            return False
        self._out[worker].discard(unit)
        self._in_transit[unit] = worker
        return True

    def arrive(self, unit: int) -> bool:
        """Record that the learner has a result; False when it was not on its way, so that none counts twice."""
        if self._in_transit.pop(unit, None) is None:
            return False
        self._arrived.add(unit)
        self._suspects.discard(unit)
        return True

    def keep(self, unit: int) -> bool:
        """Record that the learner has kept a result of a former attempt; False when the unit is not waiting."""
        if unit not in self._waiting:
            return False
        self._waiting.remove(unit)
        self._arrived.add(unit)
        return True

    def again(self, unit: int, message: str, *, counts: bool = True) -> FailedUnit | None:
        """Retry a unit whose result was lost on its way, unless that has happened too often.

        With `counts` False another unit is at fault, whose own count limits the retries.
        """
        worker = self._in_transit.pop(unit, None)
        if worker is None:
            return None
        if counts:
            return self._retry(unit, worker, FailureClass.LOST, message, "")
        self._return(unit)
        return None

    def refuse(self, unit: int, failure: FailureClass, message: str) -> FailedUnit | None:
        """Fail a unit whose result cannot be accepted, as a retry would give the same."""
        worker = self._in_transit.pop(unit, None)
        return None if worker is None else self._fail(unit, worker, failure, message, "")

    def lose(self, worker: int, outcome: TrialOutcome) -> Lost:
        """Record that a worker has ended: its units wait again, unless one is known to have failed for good."""
        out = sorted(self._out.pop(worker, ()))
        failure, message = outcome.failure, outcome.message
        if outcome.state is TrialState.COMPLETE and out:
            failure, message = FailureClass.INVALID, "the worker returned without a result of this unit"
        if failure is None or failure is FailureClass.STOPPED or len(out) != 1:
            for unit in reversed(out):
                if failure is not FailureClass.STOPPED and not self._may_recur(unit, failure, self._together):
                    self._suspects.add(unit)
                self._return(unit)
            return Lost(again=tuple(out))
        (unit,) = out
        failed = self._retry(unit, worker, failure, message, outcome.traceback)
        return Lost(unit, failed, again=() if failed else (unit,))

    def _retry(self, unit: int, worker: int, failure: FailureClass, message: str, traceback: str) -> FailedUnit | None:
        """Let a unit wait again, or fails it for good."""
        if not self._may_recur(unit, failure, self._used):
            return self._fail(unit, worker, failure, message, traceback)
        self._return(unit)
        return None

    def _may_recur(
        self, unit: int, failure: FailureClass | None, past: collections.Counter[tuple[int, FailureClass]]
    ) -> bool:
        """Whether a unit may have this failure once more, given its past ones; if so, it is counted."""
        rule = None if failure is None else FAILURE_RULES[failure].retry
        if failure is None or rule is None or past[unit, failure] >= getattr(self._retries, rule):
            return False
        past[unit, failure] += 1
        return True

    def _fail(self, unit: int, worker: int, failure: FailureClass, message: str, traceback: str) -> FailedUnit:
        self._suspects.discard(unit)
        self.failed[unit] = FailedUnit(unit, worker, failure, message, traceback)
        return self.failed[unit]

    def _return(self, unit: int) -> None:
        (self._alone if unit in self._suspects else self._waiting).appendleft(unit)
