"""A collection: when workers start and with what, what moves while there is room, and what becomes of what fails.

The slots are doubles that do what they are told; real ones are in tests/study/test_collection.py. Not checked here: the book
of the units by itself (test_units.py).
"""

from __future__ import annotations

import pytest
from tests.controller.collecting import UNITS, Collecting
from tests.controller.conftest import request

from trialplane.controller.iteration import STORE_SHARE
from trialplane.controller.workers import MAX_EMPTY
from trialplane.controller.workloads import collection
from trialplane.wire.messages import LogGrown
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, TrialState


def test_workers_start_with_the_weights_when_the_learner_has_them() -> None:
    run = Collecting()
    run.learner.warm(0)
    run.workers.warm(0)
    run.listen()
    assert [ready.slot for ready in run.ready] == [0], "it has one slot for attempts, the learner's"
    run.work.start(0, request(7, trial=1))
    run.listen()
    assert run.learner.started[0].units == UNITS
    assert not run.workers.started, "there are no weights yet"
    run.learner.say(0, weights=50)
    run.listen()
    assert run.exchange.fetching_weights == 1
    run.exchange.fetched_weights("the weights")
    run.listen()
    run.workers.warm(1)  # later than the other
    run.listen()
    assert run.workers.weights == {0: "the weights", 1: "the weights"}
    assert {slot: asked.worker for slot, asked in run.workers.started.items()} == {0: 0, 1: 1}
    assert all(
        (asked.number, asked.trial, asked.attempt, asked.timeout) == (7, 1, 1, 600.0)
        for asked in run.workers.started.values()
    )
    assert run.work.running() == {0: request(7, trial=1)}


def test_an_iteration_goes_from_units_to_its_outcome() -> None:
    run = Collecting()
    run.begin()
    assert run.workers.weights == {0: None, 1: None}
    assert run.want(0, 2) == [6, 7], "of the second iteration"
    assert run.want(1, 9) == [8, 9, 10, 11]
    for slot, unit in ((1, 8), (0, 6), (1, 9), (0, 7), (1, 10)):
        run.pass_on(slot, unit)
    assert run.want(0) == []
    assert not run.last_word(0), "unit 11 may be lost yet"
    assert run.work.progress.workers[0].state == "waiting"
    assert run.work.progress.workers[1].state == "working"
    assert not run.exchange.end_fed
    run.pass_on(1, 11)
    assert run.last_word(0) and run.last_word(1)
    assert run.exchange.end_fed == [0]
    for slot in (0, 1):
        run.workers.end(slot)
    run.learner.say(0, reports=(TrialReport(7, 1, {"loss": 2.0}, 1.0),), log=b"learning\n")
    (said,) = [said for said in run.listen() if said.reports]
    assert said.reports[0].metrics == {"loss": 2.0}
    assert [one.metrics for one in run.reported] == [{"loss": 2.0}]
    run.learner.end(0, metrics={"loss": 1.0}, arrays="packed")
    told = run.end()
    assert told.state is TrialState.COMPLETE
    assert {name: told.metrics[name] for name in ("loss", "units", "units_failed", "items", "gigabytes")} == {
        "loss": 1.0,
        "units": UNITS,
        "units_failed": 0,
        "items": 3 * UNITS,
        "gigabytes": 10 * UNITS / 1e9,
    }
    assert not run.work.running()
    assert [(row.units, row.items, row.bytes) for row in run.work.progress.workers] == [(2, 6, 20), (4, 12, 40)]
    assert len(run.workers.answered) == 3 + UNITS, "each event is answered at once"


def test_no_more_is_in_flight_than_may_be_and_the_first_who_offers_is_the_first_to_be_served() -> None:
    run = Collecting()
    run.begin()
    assert run.want(0, 3) == [6, 7, 8]
    assert run.want(1, 3) == [9, 10, 11]
    for slot, unit, size in ((0, 6, 60), (1, 9, 50), (0, 7, 40)):
        run.offer(slot, unit, size)
    assert run.exchange.fetching == [(0, (6,))], "9 does not fit beside it, and 7 does not overtake"
    assert run.work.progress.in_flight_bytes == 60
    run.exchange.fetched(0, 6, reference="result 6")
    run.listen()
    run.exchange.fed()
    run.listen()
    assert not run.exchange.fetching, "the learner has it and has not read it"
    run.learner.say(0, took=(6,))
    run.listen()
    assert run.exchange.fetching == [(1, (9,)), (0, (7,))]
    assert run.work.progress.in_flight_bytes == 90
    assert run.work.progress.units == 1


def test_a_learner_has_two_results_ahead_at_most() -> None:
    run = Collecting()
    run.begin()
    run.want(0, 3)
    for unit in (6, 7, 8):
        run.offer(0, unit, 30)
        run.exchange.fetched(0, unit, reference=f"result {unit}")
    run.listen()
    assert [units for units, _ in run.exchange.feeding] == [(6,), (7,)]
    run.exchange.fed()
    run.listen()
    assert len(run.exchange.feeding) == 1, "it has not read it"
    run.learner.say(0, took=(6,))
    run.listen()
    assert run.exchange.feeding == [((7,), "result 7"), ((8,), "result 8")]


def test_results_that_come_while_others_are_fetched_move_together() -> None:
    run = Collecting(in_flight=1000)
    run.begin()
    assert run.want(0, 4) == [6, 7, 8, 9]
    for unit in (6, 7, 8, 9):
        run.offer(0, unit)
    assert run.exchange.fetching == [(0, (6,))]
    run.exchange.fetched(0, 6, reference="result 6")
    run.listen()
    assert run.exchange.fetching == [(0, (7, 8, 9))]
    run.exchange.fetched(0, 7, 9, reference="results 7 and 9", lost=(8,))
    run.listen()
    assert run.exchange.feeding == [((6,), "result 6"), ((7, 9), "results 7 and 9")]
    for _ in range(2):
        run.exchange.fed()
    run.listen()
    assert (run.work.progress.units, run.work.progress.bytes) == (3, 30)
    assert run.work.progress.in_flight_bytes == 30, "the learner has not read them"
    assert run.want(1) == [8]


def test_a_result_that_is_too_large_is_its_units_failure() -> None:
    run = Collecting(max_failed=1)
    run.begin()
    assert run.want(0, 2) == [6, 7]
    run.offer(0, 6, 101)
    assert run.exchange.released == [(0, (6,))], "its worker goes on"
    assert run.work.progress.workers[0].failed == 1
    assert run.work.progress.units_failed == 1
    run.pass_on(0, 7)


def test_the_object_stores_bound_what_is_in_flight() -> None:
    run = Collecting()
    run.store = 150
    run.begin("weights of 50 bytes")
    run.want(0, 2)
    run.offer(0, 6, int(150 * STORE_SHARE) - 50)
    run.offer(0, 7, 10)
    assert run.exchange.fetching == [(0, (6,))]


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_what_is_lost_on_its_way_is_done_again(where: str) -> None:
    run = Collecting()
    run.begin()
    assert run.want(0) == [6]
    run.offer(0, 6)
    if where == "fetch":
        run.exchange.fetched(0, lost=(6,))
        run.listen()
    else:
        run.exchange.fetched(0, 6, reference="result 6")
        run.listen()
        run.exchange.fed(lost=True)
        run.listen()
    assert run.work.progress.in_flight_bytes == 0
    assert run.work.progress.units == 0
    assert run.want(1) == [6]
    run.pass_on(1, 6)
    assert run.work.progress.units == 1


def test_a_worker_that_failed_is_started_again_and_its_unit_is_not_counted_twice() -> None:
    run = Collecting(max_failed=1)
    run.begin()
    assert run.want(0, 2) == [6, 7]
    run.offer(0, 6, 100)
    run.workers.fail(0, FailureClass.ERROR, "ValueError: bad move", traceback="Traceback …")
    run.listen()
    assert run.work.progress.units_failed == 1, "unit 7: 6 is made, and only has to be fetched"
    assert run.workers.starts == [0, 1, 0]
    assert run.work.progress.workers[0].message == "ValueError: bad move"
    run.exchange.fetching.clear()
    assert run.want(0) == [8]


def test_an_offer_that_nobody_has_fetched_is_gone_with_its_worker_and_done_again() -> None:
    run = Collecting()
    run.begin()
    run.want(0, 2)
    run.want(1, 1)
    run.offer(1, 8, 100)
    run.offer(0, 6)
    run.offer(0, 7)
    run.workers.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
    run.listen()
    assert run.work.progress.units_failed == 0
    assert sorted(run.want(0, 2)) == [6, 7]


@pytest.mark.parametrize("works", [True, False])
def test_what_was_given_is_to_blame_only_when_its_worker_had_nothing_else(works: bool) -> None:
    run = Collecting(max_failed=5)
    run.begin()
    run.want(1)
    run.offer(1, 6, 100)  # so that there is room for no other
    for _ in range(3):
        had = run.want(0, 2 if works else 1)
        run.offer(0, 7)
        assert 7 in had
        run.workers.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
        run.listen()
    failed = run.work._iteration.units.failed  # type: ignore[union-attr]
    assert (7 in failed) != works
    assert len(failed) == 1, "8 is what it worked on"


def test_too_many_failed_units_end_the_iteration_with_the_first_ones_failure() -> None:
    run = Collecting(max_failed=1)
    run.begin()
    for slot in (0, 1):
        run.want(slot)
        run.workers.fail(slot, FailureClass.ERROR, f"ValueError: of {slot}", traceback=f"Traceback of {slot}")
        run.listen()
    assert [(slot, failure) for slot, failure, _ in run.learner.killed] == [(0, FailureClass.ERROR)]
    run.learner.fail(0, FailureClass.ERROR, "killed")
    told = run.end()
    assert (told.failure, told.traceback) == (FailureClass.ERROR, "Traceback of 0")
    assert told.message == (
        "unit 6, by worker 0: ValueError: of 0; `platform logs toy-1 1 --worker 0` shows its log (trials/0001/worker-0.log)"
        "; 2 units of 6 failed, more than collect.max_failed = 1"
    )
    assert told.metrics["units_failed"] == 2


def test_workers_that_never_get_to_a_unit_are_given_up() -> None:
    run = Collecting()
    run.begin()
    for _ in range(MAX_EMPTY):
        for slot in (0, 1):
            run.workers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
        run.listen()
    assert [row.state for row in run.work.progress.workers] == ["gone", "gone"]
    assert not run.workers.started
    run.learner.fail(0, FailureClass.ERROR, "killed")
    told = run.end()
    assert told.message.startswith("worker 0: ValueError: these weights do not fit; `platform logs toy-1 1 --worker 0`")
    assert told.message.endswith("no worker is left that can start a unit")


def test_a_lost_slot_is_no_fault_of_the_worker() -> None:
    run = Collecting()
    run.begin()
    for _ in range(MAX_EMPTY + 1):
        run.workers.fail(0, FailureClass.LOST, "its pod is gone", slot_lost=True)
        run.listen()
        assert 0 not in run.workers.started, "its slot is not warm"
        run.workers.warm(0)
        run.listen()
        assert 0 in run.workers.started
    assert run.want(0) == [6]


def test_the_end_of_the_learner_is_the_iterations_and_the_next_one_starts_afresh() -> None:
    run = Collecting()
    run.begin()
    run.want(0, 2)
    run.offer(0, 6)
    run.learner.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
    assert run.end().failure is FailureClass.CRASHED
    assert {slot for slot, *_ in run.workers.killed} == {0, 1}
    run.work.start(0, request(8, trial=1, attempt=2))
    run.learner.say(0, weights=0)
    run.exchange.fetched(0, 6, reference="result of the former attempt")
    run.listen()
    assert run.work.progress.units == 0
    for slot in (0, 1):
        run.workers.fail(slot, FailureClass.STOPPED, "the iteration is over")
    run.listen()
    assert run.want(1, UNITS) == [6, 7, 8, 9, 10, 11], "its learner has read nothing"


def test_a_worker_that_was_just_starting_when_its_iteration_ended_is_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "END_INTERVAL", 0.0)
    run = Collecting()
    run.begin()
    run.listen()
    assert not run.workers.killed
    run.learner.end(0)
    run.listen()
    assert len(run.workers.killed) == 2
    run.listen()
    assert len(run.workers.killed) == 4, "the first word may have come before there was somebody to hear it"


def test_what_a_former_attempt_has_written_is_not_done_again() -> None:
    run = Collecting()
    run.warm()
    run.learner.say(0, took=(6, 7, 11))
    run.learner.say(0, weights=0)
    run.listen()
    assert run.want(0, 9) == [8, 9, 10]
    assert run.work.progress.units == 3
    for unit in (8, 9, 10):
        run.pass_on(0, unit)
    assert run.exchange.end_fed == [0]


def test_a_worker_that_is_to_go_first_does_what_it_has() -> None:
    run = Collecting()
    run.begin()
    assert run.want(1) == [6]
    run.workers.leaving = frozenset({1})
    run.work.resize(1, 0)
    assert not run.workers.killed
    run.pass_on(1, 6)
    assert run.want(1) == []
    assert run.last_word(1)
    run.workers.end(1, slot_lost=True)
    run.listen()
    assert 1 not in run.workers.started
    assert run.workers.size == 1
    assert run.sizes == [2, 1], "the ledger counts the hours of each"


def test_a_lost_learner_gets_the_next_place_there_is() -> None:
    run = Collecting()
    run.begin()
    run.workers.ready, run.learner.ready = 1, 0  # the other waits for a pod
    run.learner.fail(0, FailureClass.LOST, "its pod is gone", slot_lost=True)
    run.listen()
    assert run.workers.size == 1
    run.work.resize(2, 0)  # as the loop wants it all the time
    assert run.workers.size == 1
    run.learner.warm(0)
    run.listen()
    assert run.workers.size == 2


def test_what_is_spilled_is_shown() -> None:
    run = Collecting()
    run.spilled = 1000
    run.begin()
    assert run.work.progress.spilled_bytes == 0, "that was before"
    run.spilled = 1500
    run.learner.end(0)
    run.listen()
    assert run.work.progress.spilled_bytes == 500


def test_a_stop_lets_the_learner_save_itself_and_ends_the_workers() -> None:
    run = Collecting()
    run.begin()
    run.work.stop(0, "the user paused the run")
    assert (run.learner.stopped, {slot for slot, *_ in run.workers.killed}) == ([0], {0, 1})


def test_a_workers_log_is_its_own() -> None:
    run = Collecting()
    run.begin()
    run.workers.say(1, log=b"a game\n")
    (said,) = run.listen()
    assert (said.messages, said.request.worker, said.request.trial) == ((LogGrown(b"a game\n"),), 1, 1)


def test_a_unit_that_a_worker_keeps_to_itself_has_failed() -> None:
    run = Collecting(max_failed=2)
    run.begin()
    run.want(0)
    run.workers.end(0)
    run.listen()
    assert run.work.progress.units_failed == 1


def test_the_answers_of_both_pools_and_of_the_exchange_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[object, ...]] = []

    def wait(pending: tuple[object, ...], timeout: float) -> list[object]:
        waited.append(pending)
        return []

    monkeypatch.setattr(collection.ray_session, "wait", wait)
    run = Collecting()
    run.learner.pending, run.workers.pending, run.exchange.pending = ("a run",), ("another",), ("a fetch",)  # type: ignore[assignment]
    run.listen()
    assert waited == [("a run", "another", "a fetch")]
