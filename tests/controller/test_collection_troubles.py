"""A collection in trouble: moves that fail, a learner that ends too soon, slots that come late, a stop that takes its time.

The slots are doubles that do what they are told. Not checked here: what goes as it should, and workers that fail
(test_collection.py).
"""

from __future__ import annotations

import time

import pytest
from tests.controller.collecting import UNITS, Collecting
from tests.controller.conftest import request

from trialplane import errors
from trialplane.controller import iteration
from trialplane.controller.pool import SlotTrial
from trialplane.controller.workers import MAX_EMPTY, MAX_LOST
from trialplane.controller.workloads import collection
from trialplane.wire.states import FailureClass, TrialState


def test_a_learner_that_offers_weights_and_ends_in_the_same_moment() -> None:
    run = Collecting()
    run.warm()
    run.learner.fail(0, FailureClass.ERROR, "ValueError: at once", weights=50)
    assert run.end().message == "ValueError: at once"
    assert not run.exchange.fetching_weights, "there is nobody to fetch them from"


def test_weights_that_the_store_does_not_take_end_the_iteration() -> None:
    run = Collecting()
    run.warm()
    run.learner.say(0, weights=50)
    run.listen()
    run.exchange.fetched_weights(error="OutOfDiskError: no room")
    run.listen()
    assert [failure for _, failure, _ in run.learner.killed] == [FailureClass.LOST], "or it would wait for ever"
    run.learner.fail(0, FailureClass.LOST, "killed")
    assert run.end().message == "the weights could not be put into the object store: OutOfDiskError: no room"


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_a_result_that_is_lost_again_and_again_is_its_units_failure(where: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Collecting(max_failed=1)
    run.begin()
    for _ in range(3):
        assert run.want(0) == [6]
        run.offer(0, 6)
        if where == "fetch":
            run.exchange.fetched(0, lost=(6,), error="no room")
            run.listen()
        else:
            run.exchange.fetched(0, 6, reference="result 6")
            run.listen()
            run.exchange.fed(lost=True, error="no room")
            run.listen()
    assert run.work.progress.units_failed == 1
    assert run.work.progress.workers[0].failed == 1
    assert caplog.messages[0] == "iteration 1: worker 0: the result of unit 6 was lost in transit: no room; it is retried"
    assert caplog.messages[-1].endswith("no room; its retries are used up, so the unit has failed")


def test_a_run_that_is_to_stop_starts_no_workers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its learner may need a while to save itself."""
    monkeypatch.setattr(collection, "END_INTERVAL", 0.0)
    run = Collecting()
    run.begin()
    run.want(0)
    run.work.stop(0, "the user paused the run")
    for slot in (0, 1):
        run.workers.fail(slot, FailureClass.STOPPED, "the user paused the run")
    run.listen()
    assert not run.workers.started
    run.learner.fail(0, FailureClass.LOST, "stopped")
    assert run.end().failure is FailureClass.LOST
    run.work.start(0, request(8, trial=1, attempt=2))
    run.learner.say(0, weights=0)
    run.listen()
    assert len(run.workers.started) == 2, "the next attempt is not stopped"


def test_a_slot_that_came_late_gets_its_try() -> None:
    run = Collecting()
    run.warm()
    run.workers.warm(0)
    run.learner.say(0, weights=0)
    run.listen()
    for slot in (0, 1):
        for _ in range(MAX_EMPTY - 1):
            run.workers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
            run.listen()
    run.work.resize(3, 0)
    run.workers.warm(2)
    for slot in (0, 1):
        run.workers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
    run.listen()
    assert not run.learner.killed
    assert 2 in run.workers.started


def test_a_learner_that_returns_before_it_has_read_everything_is_told() -> None:
    run = Collecting()
    run.begin()
    run.want(0, 2)
    run.pass_on(0, 6)
    run.learner.end(0)
    told = run.end()
    assert (told.state, told.message) == (TrialState.COMPLETE, "the learner returned when 1 of 6 units had arrived")


def test_what_workers_do_is_over_with_the_iteration() -> None:
    run = Collecting()
    run.begin()
    run.want(0, 2)
    assert run.work.progress.workers[0].state == "working"
    run.learner.end(0)
    run.listen()
    assert [row.state for row in run.work.progress.workers] == ["waiting", "waiting"]


def test_of_several_units_the_one_that_was_begun_is_faulty(caplog: pytest.LogCaptureFixture) -> None:
    run = Collecting(max_failed=1)
    run.begin()
    assert run.want(0, 3) == [6, 7, 8]
    run.workers.fail(0, FailureClass.ERROR, "ValueError: bad move", begun=(6,))
    run.listen()
    assert run.work.progress.units_failed == 1
    assert "worker 0 at unit 6: " in caplog.text
    assert run.want(0, 3) == [7, 8, 9]


def test_a_worker_that_never_begins_what_it_has_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    run = Collecting()
    run.begin()
    for _ in range(MAX_EMPTY):
        for slot in (0, 1):
            assert run.want(slot)
        for slot in (0, 1):
            run.workers.end(slot, begun=())
        run.listen()
    assert [row.state for row in run.work.progress.workers] == ["gone", "gone"]
    assert "without taking a unit" in run.work.progress.workers[0].message
    assert "worker 0: invalid: play(ctx) returned" in caplog.text


def test_a_worker_that_is_lost_for_ever_before_its_first_unit_is_given_up() -> None:
    """A full disk, a node that kills what is started there."""
    run = Collecting()
    run.begin()
    for _ in range(MAX_LOST):
        for slot in (0, 1):
            run.workers.fail(slot, FailureClass.LOST, "its template died")
        run.listen()
    assert [row.state for row in run.work.progress.workers] == ["gone", "gone"]
    run.learner.fail(0, FailureClass.LOST, "killed")
    told = run.end()
    assert told.failure is FailureClass.LOST, "the iteration is tried again, as a lost trial is"
    assert told.message.startswith("worker 0: its template died")


def test_a_slot_that_got_ready_and_had_to_go_is_not_used() -> None:
    """Both are said at once when the learner gets ready, for it then takes the place of one."""
    run = Collecting()
    run.workers.warm(0, 1)
    run.work.resize(1, 0)
    run.workers.resize(1)
    run.learner.warm(0)
    run.listen()
    run.work.start(0, request(7, trial=1))
    run.learner.say(0, weights=0)
    run.listen()
    assert set(run.workers.started) == {0}


def test_one_bad_worker_ends_nothing_while_another_is_being_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Collecting()
    run.begin()
    run.want(1)
    run.pass_on(1, 6)
    for _ in range(MAX_EMPTY):
        run.workers.fail(0, FailureClass.ERROR, "RuntimeError: no CUDA device")
        run.listen()
    run.workers.fail(1, FailureClass.LOST, "its pod is gone", slot_lost=True)
    run.listen()
    assert not run.learner.killed
    run.workers.warm(1)
    run.listen()
    assert 1 in run.workers.started
    run.workers.fail(1, FailureClass.LOST, "its pod is gone", slot_lost=True)
    run.listen()
    assert not run.learner.killed
    monkeypatch.setattr(iteration, "PATIENCE", 0.0)
    run.listen()
    assert [failure for _, failure, _ in run.learner.killed] == [FailureClass.ERROR], "nobody came"


def test_units_that_failed_are_told_with_their_iteration(caplog: pytest.LogCaptureFixture) -> None:
    run = Collecting(max_failed=2)
    run.begin()
    for slot in (0, 1):
        run.want(slot)
        run.workers.fail(slot, FailureClass.ERROR, f"ValueError: of {slot}", traceback=f"Traceback of {slot}\n")
        run.listen()
    for unit in run.want(0, 4):
        run.pass_on(0, unit)
    run.learner.end(0)
    told = run.end()
    assert told.state is TrialState.COMPLETE
    assert told.message == (
        "2 of 6 units failed: 6, 7; the first: unit 6, by worker 0: ValueError: of 0; "
        "`platform logs toy-1 1 --worker 0` shows its log (trials/0001/worker-0.log)"
    )
    assert "its log is trials/0001/worker-1.log\nTraceback of 1" in caplog.text


def test_what_each_worker_did_is_told_with_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Collecting(max_failed=1)
    run.begin()
    run.want(0, 5)
    now[0] += 2
    for unit in (6, 7, 8, 9, 10):
        run.pass_on(0, unit)
    run.want(1)
    run.workers.fail(1, FailureClass.ERROR, "ValueError: bad")
    run.listen()
    run.learner.end(0)
    told = run.end().metrics
    assert {name: value for name, value in told.items() if name.startswith("worker_0/")} == {
        "worker_0/units_per_second": 2.5,
        "worker_0/items_per_second": 7.5,
        "worker_0/units_failed": 0.0,
    }
    assert told["worker_1/units_failed"] == 1


def test_an_outcome_counts_though_the_workers_slots_fail_in_the_same_moment() -> None:
    run = Collecting()
    run.begin()
    run.learner.fail(0, FailureClass.ERROR, "ValueError: no")
    run.workers.break_down(errors.SlotError("3 slots in a row could not be started"))
    events = run.work.events(0)
    *_, ended = (next(events) for _ in range(1))
    assert isinstance(ended, SlotTrial)
    assert ended.outcome is not None and ended.outcome.message == "ValueError: no"
    with pytest.raises(errors.SlotError, match="could not be started"):
        next(events)


def test_what_was_fed_to_a_learner_that_ended_in_the_same_moment_has_arrived() -> None:
    """It had read as many results as it expected, and asked for no more."""
    run = Collecting()
    run.begin()
    run.want(0, UNITS)
    for unit in range(UNITS, 2 * UNITS - 1):
        run.pass_on(0, unit)
    run.offer(0, 2 * UNITS - 1)
    run.exchange.fetched(0, 2 * UNITS - 1, reference="the last result")
    run.listen()
    run.exchange.fed()
    run.learner.end(0)
    ended = run.end()
    assert (ended.state, ended.message, ended.metrics["units"]) == (TrialState.COMPLETE, "", UNITS)
