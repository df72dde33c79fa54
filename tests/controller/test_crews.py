"""A crew: when producers start and with what, what moves while there is room, and what becomes of what fails.

The slots are doubles that do what they are told; real ones are in tests/study/test_collection.py. Not checked here: the book
of the units by itself (test_units.py).
"""

from __future__ import annotations

import pytest
from tests.controller.conftest import request
from tests.controller.crew import UNITS, Crew

from trialplane.controller import crews
from trialplane.controller.iteration import STORE_SHARE
from trialplane.controller.workers import MAX_EMPTY
from trialplane.wire.messages import LogGrown
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import WEIGHTS, Offer


def test_producers_start_with_the_weights_when_the_consumer_has_them() -> None:
    crew = Crew()
    crew.consumer.warm(0)
    crew.producers.warm(0)
    crew.listen()
    assert [ready.slot for ready in crew.ready] == [0], "a crew is one slot, and its consumer says when it is ready"
    crew.pool.start(0, request(7, trial=1))
    crew.listen()
    assert crew.consumer.started[0].units == UNITS
    assert not crew.producers.started, "there are no weights yet"
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 50),))
    crew.listen()
    assert crew.consumer.fetching == [(0, (WEIGHTS,))]
    crew.consumer.fetched(0, WEIGHTS, reference="the weights")
    crew.listen()
    crew.producers.warm(1)  # later than the other
    crew.listen()
    assert crew.producers.weights == {0: "the weights", 1: "the weights"}
    numbers = {asked.number for asked in crew.producers.started.values()}
    assert len(numbers) == 2 and max(numbers) < 0, "no attempt of the ledger has such a number"
    assert {slot: asked.worker for slot, asked in crew.producers.started.items()} == {0: 0, 1: 1}
    assert all((asked.trial, asked.attempt, asked.timeout) == (1, 1, 600.0) for asked in crew.producers.started.values())
    assert crew.pool.running() == {0: request(7, trial=1)}


def test_an_iteration_goes_from_units_to_its_outcome() -> None:
    crew = Crew()
    crew.begin()
    assert crew.producers.weights == {0: None, 1: None}
    assert crew.want(0, 2) == [6, 7], "of the second iteration"
    assert crew.want(1, 9) == [8, 9, 10, 11]
    for slot, unit in ((1, 8), (0, 6), (1, 9), (0, 7), (1, 10)):
        crew.pass_on(slot, unit)
    assert crew.want(0) == []
    assert not crew.last_word(0), "unit 11 may be lost yet"
    assert crew.pool.progress.workers[0].state == "waiting"
    assert crew.pool.progress.workers[1].state == "working"
    assert not crew.consumer.end_fed
    crew.pass_on(1, 11)
    assert crew.last_word(0) and crew.last_word(1)
    assert crew.consumer.end_fed == [0]
    for slot in (0, 1):
        crew.producers.end(slot)
    crew.consumer.say(0, reports=(TrialReport(7, 1, {"loss": 2.0}, 1.0),), log=b"learning\n")
    (said,) = [said for said in crew.listen() if said.reports]
    assert said.reports[0].metrics == {"loss": 2.0}
    crew.consumer.end(0, metrics={"loss": 1.0}, arrays="packed")
    told = crew.end()
    assert told.state is TrialState.COMPLETE
    assert {name: told.metrics[name] for name in ("loss", "units", "units_failed", "items", "gigabytes")} == {
        "loss": 1.0,
        "units": UNITS,
        "units_failed": 0,
        "items": 3 * UNITS,
        "gigabytes": 10 * UNITS / 1e9,
    }
    assert not crew.pool.running()
    assert [(row.units, row.items, row.bytes) for row in crew.pool.progress.workers] == [(2, 6, 20), (4, 12, 40)]
    assert len(crew.producers.answered) == 3 + UNITS, "each event is answered at once"


def test_no_more_is_in_flight_than_may_be_and_the_first_who_offers_is_the_first_to_be_served() -> None:
    crew = Crew()
    crew.begin()
    assert crew.want(0, 3) == [6, 7, 8]
    assert crew.want(1, 3) == [9, 10, 11]
    for slot, unit, size in ((0, 6, 60), (1, 9, 50), (0, 7, 40)):
        crew.offer(slot, unit, size)
    assert crew.producers.fetching == [(0, (6,))], "9 does not fit beside it, and 7 does not overtake"
    assert crew.pool.progress.in_flight_bytes == 60
    crew.producers.fetched(0, 6, reference="result 6")
    crew.listen()
    crew.consumer.fed(0)
    crew.listen()
    assert not crew.producers.fetching, "the consumer has it and has not read it"
    crew.consumer.say(0, took=(6,))
    crew.listen()
    assert crew.producers.fetching == [(1, (9,)), (0, (7,))]
    assert crew.pool.progress.in_flight_bytes == 90
    assert crew.pool.progress.units == 1


def test_a_consumer_has_two_results_ahead_at_most() -> None:
    crew = Crew()
    crew.begin()
    crew.want(0, 3)
    for unit in (6, 7, 8):
        crew.offer(0, unit, 30)
        crew.producers.fetched(0, unit, reference=f"result {unit}")
    crew.listen()
    assert [units for units, _ in crew.consumer.feeding] == [(6,), (7,)]
    crew.consumer.fed(0)
    crew.listen()
    assert len(crew.consumer.feeding) == 1, "it has not read it"
    crew.consumer.say(0, took=(6,))
    crew.listen()
    assert crew.consumer.feeding == [((7,), "result 7"), ((8,), "result 8")]


def test_results_that_come_while_others_are_fetched_move_together() -> None:
    crew = Crew(in_flight=1000)
    crew.begin()
    assert crew.want(0, 4) == [6, 7, 8, 9]
    for unit in (6, 7, 8, 9):
        crew.offer(0, unit)
    assert crew.producers.fetching == [(0, (6,))]
    crew.producers.fetched(0, 6, reference="result 6")
    crew.listen()
    assert crew.producers.fetching == [(0, (7, 8, 9))]
    crew.producers.fetched(0, 7, 9, reference="results 7 and 9", gone=(8,))
    crew.listen()
    assert crew.consumer.feeding == [((6,), "result 6"), ((7, 9), "results 7 and 9")]
    for _ in range(2):
        crew.consumer.fed(0)
    crew.listen()
    assert (crew.pool.progress.units, crew.pool.progress.bytes) == (3, 30)
    assert crew.pool.progress.in_flight_bytes == 30, "the consumer has not read them"
    assert crew.want(1) == [8]


def test_a_result_that_is_too_large_is_its_units_failure() -> None:
    crew = Crew(max_failed=1)
    crew.begin()
    assert crew.want(0, 2) == [6, 7]
    crew.offer(0, 6, 101)
    assert crew.producers.released == [(0, 6)], "its producer goes on"
    assert crew.pool.progress.workers[0].failed == 1
    assert crew.pool.progress.units_failed == 1
    crew.pass_on(0, 7)


def test_the_object_stores_bound_what_is_in_flight() -> None:
    crew = Crew()
    crew.store = 150
    crew.begin("weights of 50 bytes")
    crew.want(0, 2)
    crew.offer(0, 6, int(150 * STORE_SHARE) - 50)
    crew.offer(0, 7, 10)
    assert crew.producers.fetching == [(0, (6,))]


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_what_is_lost_on_its_way_is_done_again(where: str) -> None:
    crew = Crew()
    crew.begin()
    assert crew.want(0) == [6]
    crew.offer(0, 6)
    if where == "fetch":
        crew.producers.fetched(0, gone=(6,))
        crew.listen()
    else:
        crew.producers.fetched(0, 6, reference="result 6")
        crew.listen()
        crew.consumer.fed(0, lost=True)
        crew.listen()
    assert crew.pool.progress.in_flight_bytes == 0
    assert crew.pool.progress.units == 0
    assert crew.want(1) == [6]
    crew.pass_on(1, 6)
    assert crew.pool.progress.units == 1


def test_a_producer_that_failed_is_started_again_and_its_unit_is_not_counted_twice() -> None:
    crew = Crew(max_failed=1)
    crew.begin()
    assert crew.want(0, 2) == [6, 7]
    crew.offer(0, 6, 100)
    crew.producers.fail(0, FailureClass.ERROR, "ValueError: bad move", traceback="Traceback …")
    crew.listen()
    assert crew.pool.progress.units_failed == 1, "unit 7: 6 is made, and only has to be fetched"
    first, again = crew.producers.started[1].number, crew.producers.started[0].number
    assert again < first
    assert crew.pool.progress.workers[0].message == "ValueError: bad move"
    crew.producers.fetching.clear()
    assert crew.want(0) == [8]


def test_an_offer_that_nobody_has_fetched_is_gone_with_its_producer_and_done_again() -> None:
    crew = Crew()
    crew.begin()
    crew.want(0, 2)
    crew.want(1, 1)
    crew.offer(1, 8, 100)
    crew.offer(0, 6)
    crew.offer(0, 7)
    crew.producers.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
    crew.listen()
    assert crew.pool.progress.units_failed == 0
    assert sorted(crew.want(0, 2)) == [6, 7]


@pytest.mark.parametrize("works", [True, False])
def test_what_was_given_is_to_blame_only_when_its_producer_had_nothing_else(works: bool) -> None:
    crew = Crew(max_failed=5)
    crew.begin()
    crew.want(1)
    crew.offer(1, 6, 100)  # so that there is room for no other
    for _ in range(3):
        had = crew.want(0, 2 if works else 1)
        crew.offer(0, 7)
        assert 7 in had
        crew.producers.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
        crew.listen()
    failed = crew.pool._now.book.failed  # type: ignore[union-attr]
    assert (7 in failed) != works
    assert len(failed) == 1, "8 is what it worked on"


def test_too_many_failed_units_end_the_iteration_with_the_first_ones_failure() -> None:
    crew = Crew(max_failed=1)
    crew.begin()
    for slot in (0, 1):
        crew.want(slot)
        crew.producers.fail(slot, FailureClass.ERROR, f"ValueError: of {slot}", traceback=f"Traceback of {slot}")
        crew.listen()
    assert [(slot, failure) for slot, failure, _ in crew.consumer.killed] == [(0, FailureClass.ERROR)]
    crew.consumer.fail(0, FailureClass.ERROR, "killed")
    told = crew.end()
    assert (told.failure, told.traceback) == (FailureClass.ERROR, "Traceback of 0")
    assert told.message == (
        "unit 6, by worker 0: ValueError: of 0; `platform logs toy-1 1 --worker 0` shows its log (trials/0001/worker-0.log)"
        "; 2 units of 6 failed, more than collect.max_failed = 1"
    )
    assert told.metrics["units_failed"] == 2


def test_producers_that_never_get_to_a_unit_are_given_up() -> None:
    crew = Crew()
    crew.begin()
    for _ in range(MAX_EMPTY):
        for slot in (0, 1):
            crew.producers.fail(slot, FailureClass.ERROR, "ValueError: these weights do not fit")
        crew.listen()
    assert [row.state for row in crew.pool.progress.workers] == ["gone", "gone"]
    assert not crew.producers.started
    crew.consumer.fail(0, FailureClass.ERROR, "killed")
    told = crew.end()
    assert told.message.startswith("worker 0: ValueError: these weights do not fit; `platform logs toy-1 1 --worker 0`")
    assert told.message.endswith("no producer is left that gets as far as a unit")


def test_a_lost_slot_is_no_fault_of_the_producer() -> None:
    crew = Crew()
    crew.begin()
    for _ in range(MAX_EMPTY + 1):
        crew.producers.fail(0, FailureClass.LOST, "its pod is gone", gone=True)
        crew.listen()
        assert 0 not in crew.producers.started, "its slot is not warm"
        crew.producers.warm(0)
        crew.listen()
        assert 0 in crew.producers.started
    assert crew.want(0) == [6]


def test_the_end_of_the_consumer_is_the_iterations_and_the_next_one_starts_afresh() -> None:
    crew = Crew()
    crew.begin()
    crew.want(0, 2)
    crew.offer(0, 6)
    crew.consumer.fail(0, FailureClass.CRASHED, "killed by SIGKILL")
    assert crew.end().failure is FailureClass.CRASHED
    assert {slot for slot, *_ in crew.producers.killed} == {0, 1}
    crew.pool.start(0, request(8, trial=1, attempt=2))
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 0),))
    crew.producers.fetched(0, 6, reference="result of the former attempt")
    crew.listen()
    assert crew.pool.progress.units == 0
    for slot in (0, 1):
        crew.producers.fail(slot, FailureClass.STOPPED, "the iteration is over")
    crew.listen()
    assert crew.want(1, UNITS) == [6, 7, 8, 9, 10, 11], "its consumer has read nothing"


def test_a_producer_that_was_just_starting_when_its_iteration_ended_is_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "END_INTERVAL", 0.0)
    crew = Crew()
    crew.begin()
    crew.listen()
    assert not crew.producers.killed
    crew.consumer.end(0)
    crew.listen()
    assert len(crew.producers.killed) == 2
    crew.listen()
    assert len(crew.producers.killed) == 4, "the first word may have come before there was somebody to hear it"


def test_what_a_former_attempt_has_written_is_not_done_again() -> None:
    crew = Crew()
    crew.warm()
    crew.consumer.say(0, took=(6, 7, 11))
    crew.consumer.say(0, offers=(Offer(WEIGHTS, 0),))
    crew.listen()
    assert crew.want(0, 9) == [8, 9, 10]
    assert crew.pool.progress.units == 3
    for unit in (8, 9, 10):
        crew.pass_on(0, unit)
    assert crew.consumer.end_fed == [0]


def test_a_producer_that_is_to_go_first_does_what_it_has() -> None:
    crew = Crew()
    crew.begin()
    assert crew.want(1) == [6]
    crew.producers.leaving = frozenset({1})
    crew.pool.resize(1)
    assert not crew.producers.killed
    crew.pass_on(1, 6)
    assert crew.want(1) == []
    assert crew.last_word(1)
    crew.producers.end(1, gone=True)
    crew.listen()
    assert 1 not in crew.producers.started
    assert crew.pool.size == 1


def test_a_lost_consumer_gets_the_next_place_there_is() -> None:
    crew = Crew()
    crew.begin()
    crew.producers.ready, crew.consumer.ready = 1, 0  # the other waits for a pod
    crew.consumer.fail(0, FailureClass.LOST, "its pod is gone", gone=True)
    crew.listen()
    assert (crew.producers.size, crew.pool.size) == (1, 2)
    crew.pool.resize(2)  # as the loop wants it all the time
    assert crew.producers.size == 1
    crew.consumer.warm(0)
    crew.listen()
    assert crew.producers.size == 2


def test_what_is_spilled_is_shown() -> None:
    crew = Crew()
    crew.spilled = 1000
    crew.begin()
    assert crew.pool.progress.spilled_bytes == 0, "that was before"
    crew.spilled = 1500
    crew.consumer.end(0)
    crew.listen()
    assert crew.pool.progress.spilled_bytes == 500


def test_a_stop_lets_the_consumer_save_itself_and_ends_the_producers() -> None:
    crew = Crew()
    crew.begin()
    crew.pool.stop(0, "the user paused the run")
    assert (crew.consumer.stopped, {slot for slot, *_ in crew.producers.killed}) == ([0], {0, 1})


def test_a_producers_log_is_its_own() -> None:
    crew = Crew()
    crew.begin()
    crew.producers.say(1, log=b"a game\n")
    (said,) = crew.listen()
    assert (said.messages, said.request.worker, said.request.trial) == ((LogGrown(b"a game\n"),), 1, 1)


def test_a_unit_that_a_producer_keeps_to_itself_has_failed() -> None:
    crew = Crew(max_failed=2)
    crew.begin()
    crew.want(0)
    crew.producers.end(0)
    crew.listen()
    assert crew.pool.progress.units_failed == 1
