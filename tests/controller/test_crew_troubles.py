"""A crew in trouble: moves that fail, a consumer that ends too soon, slots that come late, a stop that takes its time.

The slots are doubles that do what they are told. Not checked here: what goes as it should, and producers that fail
(test_crews.py).
"""

from __future__ import annotations

import time

import pytest
from tests.controller.conftest import request
from tests.controller.crew import Crew

from trialplane.controller import crews, iteration
from trialplane.controller.workers import MAX_EMPTY, MAX_LOST
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import WEIGHTS, Offer


def test_a_consumer_that_offers_weights_and_ends_in_the_same_moment() -> None:
    crew = Crew()
    crew.warm()
    crew.consumer.fail(0, FailureClass.ERROR, "ValueError: at once", offers=(Offer(WEIGHTS, 50),))
    assert crew.end().message == "ValueError: at once"
    assert not crew.consumer.fetching, "there is nobody to fetch them from"


def test_weights_that_the_store_does_not_take_end_the_iteration() -> None:
    crew = Crew()
    crew.warm()
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 50),))
    crew.listen()
    crew.consumer.fetched(0, gone=(WEIGHTS,), why="OutOfDiskError: no room")
    crew.listen()
    assert [failure for _, failure, _ in crew.consumer.killed] == [FailureClass.LOST], "or it would wait for ever"
    crew.consumer.fail(0, FailureClass.LOST, "killed")
    assert crew.end().message == "the weights could not be put into the object store: OutOfDiskError: no room"


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_a_result_that_is_lost_again_and_again_is_its_units_failure(where: str, caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew(max_failed=1)
    crew.begin()
    for _ in range(3):
        assert crew.want(0) == [6]
        crew.offer(0, 6)
        if where == "fetch":
            crew.producers.fetched(0, gone=(6,), why="no room")
            crew.listen()
        else:
            crew.producers.fetched(0, 6, reference="result 6")
            crew.listen()
            crew.consumer.fed(0, lost=True, why="no room")
            crew.listen()
    assert crew.pool.progress.units_failed == 1
    assert crew.pool.progress.workers[0].failed == 1
    assert caplog.messages[0] == "iteration 1: worker 0: the result of unit 6 was lost on its way: no room; it is done again"
    assert caplog.messages[-1].endswith("no room; that was once too often, so the unit has failed")


def test_a_run_that_is_to_stop_starts_no_producers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer may need a while to save itself."""
    monkeypatch.setattr(crews, "END_INTERVAL", 0.0)
    crew = Crew()
    crew.begin()
    crew.want(0)
    crew.pool.stop(0, "the user paused the run")
    for slot in (0, 1):
        crew.producers.fail(slot, FailureClass.STOPPED, "the user paused the run")
    crew.listen()
    assert not crew.producers.started
    crew.consumer.fail(0, FailureClass.LOST, "stopped")
    assert crew.end().failure is FailureClass.LOST
    crew.pool.start(0, request(8, trial=1, attempt=2))
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 0),))
    crew.listen()
    assert len(crew.producers.started) == 2, "the next attempt is not stopped"


def test_a_slot_that_came_late_gets_its_try() -> None:
    crew = Crew()
    crew.warm()
    crew.producers.warm(0)
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 0),))
    crew.listen()
    for slot in (0, 1):
        for _ in range(MAX_EMPTY - 1):
            crew.producers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
            crew.listen()
    crew.pool.resize(3)
    crew.producers.warm(2)
    for slot in (0, 1):
        crew.producers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
    crew.listen()
    assert not crew.consumer.killed
    assert 2 in crew.producers.started


def test_a_consumer_that_returns_before_it_has_read_everything_is_told() -> None:
    crew = Crew()
    crew.begin()
    crew.want(0, 2)
    crew.pass_on(0, 6)
    crew.consumer.end(0)
    told = crew.end()
    assert (told.state, told.message) == (TrialState.COMPLETE, "the consumer returned when 1 of 6 units had come")


def test_what_producers_do_is_over_with_the_iteration() -> None:
    crew = Crew()
    crew.begin()
    crew.want(0, 2)
    assert crew.pool.progress.workers[0].state == "working"
    crew.consumer.end(0)
    crew.listen()
    assert [row.state for row in crew.pool.progress.workers] == ["waiting", "waiting"]


def test_of_several_units_the_one_that_was_begun_is_guilty(caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew(max_failed=1)
    crew.begin()
    assert crew.want(0, 3) == [6, 7, 8]
    crew.producers.fail(0, FailureClass.ERROR, "ValueError: bad move", begun=(6,))
    crew.listen()
    assert crew.pool.progress.units_failed == 1
    assert "worker 0 at unit 6: " in caplog.text
    assert crew.want(0, 3) == [7, 8, 9]


def test_a_producer_that_never_begins_what_it_has_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew()
    crew.begin()
    for _ in range(MAX_EMPTY):
        for slot in (0, 1):
            assert crew.want(slot)
        for slot in (0, 1):
            crew.producers.end(slot, begun=())
        crew.listen()
    assert [row.state for row in crew.pool.progress.workers] == ["gone", "gone"]
    assert "without taking a unit" in crew.pool.progress.workers[0].message
    assert "worker 0: invalid: play(ctx) returned" in caplog.text


def test_a_producer_that_is_lost_for_ever_before_its_first_unit_is_given_up() -> None:
    """A full disk, a node that kills what is started there."""
    crew = Crew()
    crew.begin()
    for _ in range(MAX_LOST):
        for slot in (0, 1):
            crew.producers.fail(slot, FailureClass.LOST, "its template died")
        crew.listen()
    assert [row.state for row in crew.pool.progress.workers] == ["gone", "gone"]
    crew.consumer.fail(0, FailureClass.LOST, "killed")
    told = crew.end()
    assert told.failure is FailureClass.LOST, "the iteration is tried again, as a lost trial is"
    assert told.message.startswith("worker 0: its template died")


def test_a_slot_that_got_ready_and_had_to_go_is_not_used() -> None:
    """Both are said at once when the consumer gets ready, for it then takes the place of one."""
    crew = Crew()
    crew.producers.warm(0, 1)
    crew.pool.resize(1)
    crew.producers.resize(1)
    crew.consumer.warm(0)
    crew.listen()
    crew.pool.start(0, request(7, trial=1))
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 0),))
    crew.listen()
    assert set(crew.producers.started) == {0}


def test_one_bad_worker_ends_nothing_while_another_is_being_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew()
    crew.begin()
    crew.want(1)
    crew.pass_on(1, 6)
    for _ in range(MAX_EMPTY):
        crew.producers.fail(0, FailureClass.ERROR, "RuntimeError: no CUDA device")
        crew.listen()
    crew.producers.fail(1, FailureClass.LOST, "its pod is gone", gone=True)
    crew.listen()
    assert not crew.consumer.killed
    crew.producers.warm(1)
    crew.listen()
    assert 1 in crew.producers.started
    crew.producers.fail(1, FailureClass.LOST, "its pod is gone", gone=True)
    crew.listen()
    assert not crew.consumer.killed
    monkeypatch.setattr(iteration, "PATIENCE", 0.0)
    crew.listen()
    assert [failure for _, failure, _ in crew.consumer.killed] == [FailureClass.ERROR], "nobody came"


def test_units_that_failed_are_told_with_their_iteration(caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew(max_failed=2)
    crew.begin()
    for slot in (0, 1):
        crew.want(slot)
        crew.producers.fail(slot, FailureClass.ERROR, f"ValueError: of {slot}", traceback=f"Traceback of {slot}\n")
        crew.listen()
    for unit in crew.want(0, 4):
        crew.pass_on(0, unit)
    crew.consumer.end(0)
    told = crew.end()
    assert told.state is TrialState.COMPLETE
    assert told.message == (
        "2 of 6 units failed: 6, 7; the first: unit 6, by worker 0: ValueError: of 0; "
        "`platform logs toy-1 1 --worker 0` shows its log (trials/0001/worker-0.log)"
    )
    assert "its log is trials/0001/worker-1.log\nTraceback of 1" in caplog.text


def test_what_each_worker_did_is_told_with_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    crew = Crew(max_failed=1)
    crew.begin()
    crew.want(0, 5)
    now[0] += 2
    for unit in (6, 7, 8, 9, 10):
        crew.pass_on(0, unit)
    crew.want(1)
    crew.producers.fail(1, FailureClass.ERROR, "ValueError: bad")
    crew.listen()
    crew.consumer.end(0)
    told = crew.end().metrics
    assert {name: value for name, value in told.items() if name.startswith("worker_0/")} == {
        "worker_0/units_per_second": 2.5,
        "worker_0/items_per_second": 7.5,
        "worker_0/units_failed": 0.0,
    }
    assert told["worker_1/units_failed"] == 1
