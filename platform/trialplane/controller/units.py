"""The book of one iteration's units: which wait, who does which, and what becomes of those whose process failed. Pure.

Each unit ends once, as arrived or as failed. In between it waits, is out with one worker, or is made: its result lies
somewhere between the worker and the learner, and what becomes of the worker is nothing to it any more.

A unit that was the only one its process worked on when that failed is guilty of it, and is tried again as a trial that
failed so would be. Of several none is guilty yet: each is handed out again alone. A lost slot or a killed process is first
taken for nobody's fault: those of several that went with it are handed out as before, as often as a trial is tried again.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from trialplane.spec.resources import Retries
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
    """What became of the units that a worker was working on when it ended.

    Attributes:
        guilty: the unit that made it fail, if that is known.
        failed: the same when it is not tried again.
        again: those that are.
    """

    guilty: int | None = None
    failed: FailedUnit | None = None
    again: tuple[int, ...] = ()


class Units:
    """The units of one iteration.

    Args:
        first: number of the first.
        count: how many there are.
        seed: the job's; each unit derives its own.
        retries: how often a guilty unit is tried again.
    """

    def __init__(self, first: int, count: int, seed: int, retries: Retries) -> None:
        self.count = count
        self.failed: dict[int, FailedUnit] = {}
        self._seed = seed
        self._retries = retries
        self._waiting = collections.deque(range(first, first + count))
        self._alone: collections.deque[int] = collections.deque()  # wait for a worker that works on nothing else
        self._suspects: set[int] = set()  # units that are handed out alone
        self._out: dict[int, set[int]] = collections.defaultdict(set)  # worker → what it has and has not given
        self._made: dict[int, int] = {}  # unit whose result is on its way → worker
        self._arrived: set[int] = set()
        self._used: collections.Counter[tuple[int, FailureClass]] = collections.Counter()
        self._together: collections.Counter[tuple[int, FailureClass]] = collections.Counter()  # failures that it shared

    @property
    def waiting(self) -> int:
        """How many units nobody has."""
        return len(self._waiting) + len(self._alone)

    @property
    def is_handed_out(self) -> bool:
        """Whether there is nothing to do, as far as nothing is lost that is on its way."""
        return not self.waiting and not any(self._out.values())

    @property
    def arrived(self) -> int:
        """How many have ended well."""
        return len(self._arrived)

    @property
    def is_done(self) -> bool:
        """Whether every unit has ended."""
        return len(self._arrived) + len(self.failed) == self.count

    def open(self, worker: int) -> frozenset[int]:
        """The units a worker has and has not given."""
        return frozenset(self._out.get(worker, ()))

    def hand(self, worker: int, wants: int) -> tuple[Unit, ...]:
        """Hands out at most `wants` units, in the order of their numbers as far as nothing fails.

        A unit that may be guilty goes to a worker that has no other, and until its end nothing else goes there.
        """
        out = self._out[worker]
        if out & self._suspects or wants < 1:
            return ()
        given: list[int] = []
        if self._alone and not out:
            given = [self._alone.popleft()]
        else:
            while len(given) < wants and self._waiting:
                given.append(self._waiting.popleft())
        out.update(given)
        return tuple(Unit(number, units.seed_of(self._seed, number)) for number in given)

    def put_back(self, worker: int, unbegun: Iterable[int]) -> None:
        """Units that a worker had and has not begun: they wait as if nobody had had them."""
        for unit in sorted(unbegun, reverse=True):
            if unit in self._out[worker]:
                self._out[worker].discard(unit)
                self._return(unit)

    def made(self, worker: int, unit: int) -> bool:
        """A worker offers the result of a unit; False when it has no such unit."""
        if unit not in self._out[worker]:
            return False
        self._out[worker].discard(unit)
        self._made[unit] = worker
        return True

    def arrive(self, unit: int) -> bool:
        """A result is with the learner; False when the unit was not on its way, so that none is counted twice."""
        if self._made.pop(unit, None) is None:
            return False
        self._arrived.add(unit)
        self._suspects.discard(unit)
        return True

    def keep(self, unit: int) -> bool:
        """The learner has a result from a former attempt: the unit need not be done. False when it is no longer waiting."""
        if unit not in self._waiting:
            return False
        self._waiting.remove(unit)
        self._arrived.add(unit)
        return True

    def again(self, unit: int, message: str, *, counts: bool = True) -> FailedUnit | None:
        """A result was lost on its way: the unit is done again, unless that has happened to it too often.

        It counts only where no other unit is to blame, whose own count then sees to an end.
        """
        worker = self._made.pop(unit, None)
        if worker is None:
            return None
        if counts:
            return self._retry(unit, worker, FailureClass.LOST, message, "")
        self._return(unit)
        return None

    def refuse(self, unit: int, failure: FailureClass, message: str) -> FailedUnit | None:
        """A result on its way cannot be taken, and another try would give the same."""
        worker = self._made.pop(unit, None)
        return None if worker is None else self._fail(unit, worker, failure, message, "")

    def lose(self, worker: int, outcome: TrialOutcome) -> Lost:
        """A worker has ended: its units wait again, unless it is clear which one failed and that it fails again."""
        out = sorted(self._out.pop(worker, ()))
        failure, message = outcome.failure, outcome.message
        if outcome.state is TrialState.COMPLETE and out:
            failure, message = FailureClass.INVALID, "the worker returned without a result of this unit"
        if failure is None or failure is FailureClass.STOPPED or len(out) != 1:
            for unit in reversed(out):
                if failure is not FailureClass.STOPPED and not self._excused(unit, failure, self._together):
                    self._suspects.add(unit)
                self._return(unit)
            return Lost(again=tuple(out))
        (unit,) = out
        failed = self._retry(unit, worker, failure, message, outcome.traceback)
        return Lost(unit, failed, again=() if failed else (unit,))

    def _retry(self, unit: int, worker: int, failure: FailureClass, message: str, traceback: str) -> FailedUnit | None:
        """A unit waits again, or has failed for good."""
        if not self._excused(unit, failure, self._used):
            return self._fail(unit, worker, failure, message, traceback)
        self._return(unit)
        return None

    def _excused(self, unit: int, failure: FailureClass | None, past: collections.Counter[tuple[int, FailureClass]]) -> bool:
        """Whether this kind of failure may happen to a unit once more, after those that are past; it has then happened."""
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
