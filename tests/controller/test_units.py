"""The book of an iteration's units: whatever happens in whatever order, every unit ends exactly once.

Not checked here: workers that do them (test_collection.py, tests/study/test_collection.py).
"""

from __future__ import annotations

import collections

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.controller.conftest import outcome

from trialplane.controller.units import Units
from trialplane.job.resources import Retries
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import unit_seed

FIRST = 20
COUNT = 10
WORKERS = st.integers(0, 2)
CLASSES = st.sampled_from([*FailureClass, None])


def end(failure: FailureClass | None, message: str = "why") -> TrialOutcome:
    state = TrialState.COMPLETE if failure is None else TrialState.FAILED
    return outcome(-1, state=state, failure=failure, message=message, traceback="Traceback")


def book(count: int = COUNT, **retries: int) -> Units:
    return Units(FIRST, count, 7, Retries(**retries))


class Iteration(RuleBasedStateMachine):
    """An iteration in which everything happens that can, and what the book must hold whatever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.book = book(lost=2)
        self.out: dict[int, set[int]] = collections.defaultdict(set)
        self.way: list[int] = []
        self.ends: collections.Counter[int] = collections.Counter()
        self.seeds: dict[int, int] = {}

    @rule(worker=WORKERS, wants=st.integers(0, 4))
    def hand(self, worker: int, wants: int) -> None:
        given = self.book.assign(worker, wants)
        assert len(given) <= wants
        for unit in given:
            assert unit.number not in self.way
            assert not any(unit.number in out for out in self.out.values()), "one worker at a time has it"
            assert self.ends[unit.number] == 0, "what has ended is not done again"
            assert self.seeds.setdefault(unit.number, unit.seed) == unit.seed, "the same unit has the same seed again"
            self.out[worker].add(unit.number)
        assert self.book.assigned_to(worker) == self.out[worker]

    @rule(worker=WORKERS, data=st.data())
    def put_back(self, worker: int, data: st.DataObject) -> None:
        unbegun = data.draw(st.sets(st.sampled_from(sorted(self.out[worker]) or [FIRST])))
        self.book.put_back(worker, unbegun)
        self.out[worker] -= unbegun
        assert self.book.assigned_to(worker) == self.out[worker]

    @rule(worker=WORKERS, unit=st.integers(FIRST - 1, FIRST + COUNT))
    def make(self, worker: int, unit: int) -> None:
        assert self.book.record_offer(worker, unit) is (unit in self.out[worker])
        if unit in self.out[worker]:
            self.out[worker].discard(unit)
            self.way.append(unit)

    @rule(which=st.integers(0, COUNT), what=st.sampled_from(["arrive", "again", "refuse"]))
    def travel(self, which: int, what: str) -> None:
        if which >= len(self.way):
            return
        unit = self.way.pop(which)
        if what == "arrive":
            assert self.book.record_arrival(unit)
            self.ends[unit] += 1
        elif what == "refuse":
            assert self.book.refuse_result(unit, FailureClass.INVALID, "too large") is not None
            self.ends[unit] += 1
        elif self.book.retry_lost_result(unit, "lost") is not None:
            self.ends[unit] += 1

    @rule(unit=st.integers(FIRST, FIRST + COUNT))
    def arrive_late(self, unit: int) -> None:
        if unit not in self.way:
            assert not self.book.record_arrival(unit)
            assert self.book.refuse_result(unit, FailureClass.INVALID, "") is None
            assert self.book.retry_lost_result(unit, "lost") is None

    @rule(worker=WORKERS, failure=CLASSES)
    def lose(self, worker: int, failure: FailureClass | None) -> None:
        failed = self.book.end_worker(worker, end(failure))
        units = self.out.pop(worker, set())
        if failed is not None:
            assert units == {failed.unit}
            self.ends[failed.unit] += 1

    @invariant()
    def every_unit_is_somewhere_once(self) -> None:
        assert all(count == 1 for count in self.ends.values() if count)
        ended = sum(self.ends.values())
        assert self.book.arrived + len(self.book.failed) == ended
        assert self.book.waiting + sum(map(len, self.out.values())) + len(self.way) + ended == COUNT
        assert self.book.is_done is (ended == COUNT)

    def teardown(self) -> None:
        """The rest is done, by workers that take one at a time."""
        for worker in range(3):
            self.lose(worker, FailureClass.STOPPED)
        for unit in self.way:
            self.book.record_arrival(unit)
        while given := self.book.assign(0, 1):
            assert self.book.record_offer(0, given[0].number)
            assert self.book.record_arrival(given[0].number)
        assert self.book.is_done
        super().teardown()


Iteration.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_every_unit_ends_once = Iteration.TestCase


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        *(
            (failure, 1)
            for failure in (FailureClass.ERROR, FailureClass.OOM, FailureClass.INVALID, FailureClass.TIMEOUT, None)
        ),
        (FailureClass.CRASHED, 2),
        (FailureClass.LOST, 6),
    ],
)
def test_a_faulty_unit_is_retried_as_a_trial_would_be(failure: FailureClass | None, tries: int) -> None:
    units = book(1)
    for attempt in range(1, tries + 1):
        assert [unit.number for unit in units.assign(0, 1)] == [FIRST]
        assert (units.end_worker(0, end(failure)) is None) is (attempt < tries)
    assert units.is_done
    (failed,) = units.failed.values()
    assert (failed.unit, failed.worker, failed.failure) == (FIRST, 0, failure or FailureClass.INVALID)
    assert failed.message == ("why" if failure else "the worker returned without a result of this unit")


def test_of_several_none_is_faulty_and_each_is_done_again_alone() -> None:
    units = book(4)
    assert len(units.assign(0, 3)) == 3
    assert units.end_worker(0, end(FailureClass.ERROR)) is None
    assert [unit.number for unit in units.assign(0, 3)] == [20], "alone"
    assert not units.assign(0, 3), "and nothing beside it"
    assert [unit.number for unit in units.assign(1, 3)] == [21], "it works on nothing yet"
    units.end_worker(0, end(FailureClass.ERROR))
    assert list(units.failed) == [20]
    units.record_offer(1, 21)
    assert [unit.number for unit in units.assign(1, 3)] == [22]
    units.record_offer(1, 22)
    assert [unit.number for unit in units.assign(1, 3)] == [23]


@pytest.mark.parametrize("failure", [FailureClass.LOST, FailureClass.CRASHED])
def test_those_of_a_lost_slot_are_done_again_together_until_that_happens_too_often(failure: FailureClass) -> None:
    units = book(3, lost=2, crashed=2)
    for _ in range(2):
        assert len(units.assign(0, 3)) == 3, "none of them is known to have done it"
        assert units.end_worker(0, end(failure)) is None
    assert len(units.assign(0, 3)) == 3
    units.end_worker(0, end(failure))
    for _ in range(2):
        assert [unit.number for unit in units.assign(0, 3)] == [20], "alone"
        assert units.end_worker(0, end(failure)) is None, "what it shared with others is not held against it"
    assert [unit.number for unit in units.assign(0, 3)] == [20]
    assert units.end_worker(0, end(failure)) is not None
    assert [unit.number for unit in units.assign(0, 3)] == [21]


def test_a_result_that_is_lost_on_its_way_again_and_again_has_failed() -> None:
    units = book(1, lost=2)
    for attempt in range(3):
        units.assign(0, 1)
        units.record_offer(0, 20)
        failed = units.retry_lost_result(20, "the disk is full")
        assert (failed is None) is (attempt < 2)
    assert failed is not None
    assert (failed.unit, failed.worker, failed.failure, failed.message) == (20, 0, FailureClass.LOST, "the disk is full")


def test_a_result_on_its_way_is_nothing_to_the_end_of_its_worker() -> None:
    units = book(2)
    units.assign(0, 2)
    units.record_offer(0, 20)
    units.end_worker(0, end(FailureClass.ERROR))
    assert list(units.failed) == [21], "the only one it worked on"
    assert units.record_arrival(20)
    assert units.is_done


def test_seeds_are_the_jobs_and_the_units() -> None:
    seeds = [unit.seed for unit in book().assign(0, COUNT)]
    assert len(set(seeds)) == COUNT
    assert seeds[0] == unit_seed(7, FIRST), "as where the job runs without the platform"
    assert seeds == [unit.seed for unit in book().assign(0, COUNT)]
    assert seeds != [unit.seed for unit in Units(FIRST, COUNT, 8, Retries()).assign(0, COUNT)]


def test_units_that_were_not_begun_have_nothing_to_do_with_their_workers_end() -> None:
    units = book()
    assert [unit.number for unit in units.assign(0, 3)] == [20, 21, 22]
    units.put_back(0, (21, 22))
    units.end_worker(0, end(FailureClass.ERROR))
    assert list(units.failed) == [20]
    assert [unit.number for unit in units.assign(1, 3)] == [21, 22, 23], "as if nobody had had them"
