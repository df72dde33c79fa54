"""The exchange of a collection: each fetch and each feed has one answer, whatever becomes of the slot.

Ray is a double that answers what a test wants. Not checked here: what is to be moved (test_collection.py), and real slots
(tests/study/test_collection.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import ray
from tests.controller.conftest import outcome, request
from tests.controller.ray_double import FakeRay, clock, fake, running

from trialplane.controller.exchange import Exchange, ResultsFed, ResultsFetched, WeightsFetched
from trialplane.controller.pool import SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Transfer, Unit

__all__ = ["clock", "fake"]

TRANSFERS = (Transfer(7, 2, 10, 30), Transfer(8, 2, 10, 30))
NO_ROOM = ray.exceptions.RayTaskError("fetch", "Traceback", OSError("no room"))
GONE = ray.exceptions.RayActorError()


def over(pool: SlotPool) -> Exchange:
    """An exchange with the one slot of the pool, be it the learner's or a worker's."""
    return Exchange(pool, pool)


def events(made: Exchange) -> list[Any]:
    return list(made.take_events([call for call in made.pending if call.answer is not None]))


def sent(fake: FakeRay) -> list[tuple[Any, ...]]:
    """What the process in the slot was sent: its serial, and the message."""
    return [call.given for call in fake.calls if call.method == "control"]


@pytest.mark.parametrize("answer", [(7, 8), (8,), (), GONE])
def test_each_fetch_has_one_answer_whatever_becomes_of_the_slot(fake: FakeRay, clock: list[float], answer: Any) -> None:
    pool = running(fake)
    made = over(pool)
    made.fetch(0, (7, 8))
    assert not events(made)
    fake.answer("fetch", answer)
    there = answer if isinstance(answer, tuple) else ()
    gone = tuple(unit for unit in (7, 8) if unit not in there)
    assert events(made) == [ResultsFetched(0, request(5), there, "result of fetch" if there else None, gone)]
    assert not made.pending
    released = messages.encode(messages.ReleaseResults((7, 8)))
    assert sent(fake) == [(0, released)], "it has room for others only when these are in the store, or are made again"
    assert pool.running() == {0: request(5)}, "the process's own call tells of its end"


@pytest.mark.parametrize(("answer", "weights"), [(True, "result of fetch"), (False, None), (GONE, None)])
def test_the_weights_are_fetched_and_their_file_may_go(
    fake: FakeRay, clock: list[float], answer: Any, weights: str | None
) -> None:
    made = over(running(fake))
    made.fetch_weights()
    assert fake.calls[-1].given == (0, messages.encode(messages.FetchWeights()))
    fake.answer("fetch", answer)
    assert events(made) == [WeightsFetched(request(5), weights)]
    assert sent(fake) == [(0, messages.encode(messages.ReleaseWeights()))]


@pytest.mark.parametrize("answer", [True, False, GONE])
def test_each_feed_has_one_answer(fake: FakeRay, clock: list[float], answer: Any) -> None:
    made = over(running(fake))
    made.feed(TRANSFERS, "results")
    assert fake.calls[-1].given == (0, messages.encode(messages.FeedTransfers(TRANSFERS)), ["results"])
    fake.answer("feed", answer)
    assert events(made) == [ResultsFed(request(5), (7, 8), lost=answer is not True)]


def test_what_a_slot_could_not_do_comes_with_its_reason(fake: FakeRay, clock: list[float]) -> None:
    made = over(running(fake))
    made.fetch(0, (7,))
    fake.answer("fetch", NO_ROOM)
    assert events(made) == [ResultsFetched(0, request(5), lost=(7,), error="no room")]
    made.fetch_weights()
    fake.answer("fetch", NO_ROOM)
    assert events(made) == [WeightsFetched(request(5), None, "no room")]
    made.feed(TRANSFERS, "results")
    fake.answer("feed", NO_ROOM)
    assert events(made) == [ResultsFed(request(5), (7, 8), lost=True, error="no room")]


@pytest.mark.parametrize("removed", [False, True])
def test_a_fetch_from_a_slot_that_has_gone_is_answered(fake: FakeRay, clock: list[float], removed: bool) -> None:
    pool = running(fake)
    made = over(pool)
    made.fetch(0, (7,))
    if removed:
        pool.resize(0)
    fake.answer("run", GONE)
    (event,) = pool.events(0)
    assert isinstance(event, SlotTrial) and event.slot_lost
    assert pool.process(0) is None
    made.send_units(0, (), last=True)
    fake.answer("fetch", GONE)
    assert events(made) == [ResultsFetched(0, request(5), lost=(7,))]


def test_a_late_release_is_for_the_process_that_was_fetched_from(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    made = over(pool)
    made.fetch(0, (7,))
    made.fetch_weights()
    lost = outcome(5, state=TrialState.FAILED, failure=FailureClass.ERROR)
    fake.answer("run", ([messages.encode(messages.TrialEnded(lost))], {}))
    list(pool.events(0))
    pool.start(0, request(6))
    for call in fake.calls:
        if call.method == "fetch":
            call.answer = GONE
    assert {event.request.number for event in events(made)} == {5}
    assert [serial for serial, _ in sent(fake)] == [0, 0], "the results on offer of process 1 stay"


def test_what_is_sent_names_the_process_that_runs(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    made = over(pool)
    made.send_units(0, (Unit(4, 99),), last=True)
    fake.answer("run", GONE)
    list(pool.events(0))
    made.send_units(0, (), last=True)
    made.end_feed(2)
    assert sent(fake) == [(0, messages.encode(messages.HandUnits((Unit(4, 99),), last=True)))], "nothing runs any more"
