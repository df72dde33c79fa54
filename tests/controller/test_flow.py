"""What is on its way between workers and the learner, driven through every order of events.

Not checked here: what a collection does with it (test_collection.py).
"""

from __future__ import annotations

import collections
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trialplane.controller.flow import AHEAD, SHARE, Flow
from trialplane.wire.units import BATCH_BYTES, BATCH_RESULTS, Transfer

SIZES = st.integers(1, 100) | st.integers(BATCH_BYTES // 4, 2 * BATCH_BYTES)


@given(st.lists(st.tuples(st.integers(0, 2), SIZES), max_size=200), st.integers(2, 40), st.data())
def test_everything_arrives_once_in_its_workers_order_and_within_the_limit(
    offers: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    flow = Flow(limit * BATCH_BYTES)
    waiting = collections.deque(Transfer(unit, *offer, 1) for unit, offer in enumerate(offers))
    transfers = {transfer.unit: transfer for transfer in waiting}
    moving: dict[int, tuple[int, ...]] = {}
    with_learner: collections.deque[int] = collections.deque()
    arrived: list[int] = []

    def look() -> None:
        granted = flow.grant_fetches()
        assert not moving.keys() & granted.keys(), "one fetch of a worker at a time"
        moving.update(granted)
        for units in granted.values():
            assert len(units) <= BATCH_RESULTS
            assert len(units) == 1 or sum(transfers[unit].bytes for unit in units) <= BATCH_BYTES
        for load in flow.take_loads():
            with_learner.extend(transfer.unit for transfer in load.transfers)
        assert flow.in_flight <= flow.limit

    while waiting or moving or with_learner:
        can: list[Any] = [*(["offer"] if waiting else []), *moving, *(["take"] if with_learner else [])]
        what = data.draw(st.sampled_from(can))
        if what == "offer":
            flow.add_offer(waiting.popleft())
        elif what == "take":
            unit = with_learner.popleft()
            assert flow.fed_transfer(unit) == transfers[unit]
            assert flow.record_taken(unit) == transfers[unit]
            arrived.append(unit)
        else:
            flow.record_stored(moving.pop(what), "a reference")
        look()
    assert sorted(arrived) == sorted(transfers), "nothing is left lying"
    for worker in range(3):
        own = [unit for unit in arrived if transfers[unit].worker == worker]
        assert own == sorted(own)
    assert flow.in_flight == 0


def test_small_results_share_a_call_and_large_ones_do_not() -> None:
    for size, expected in ((8, BATCH_RESULTS), (BATCH_BYTES // 4, 4), (BATCH_BYTES, 1)):
        flow = Flow(1000 * BATCH_BYTES)
        for unit in range(2 * BATCH_RESULTS):
            flow.add_offer(Transfer(unit, 0, size, 1))
        assert flow.grant_fetches() == {0: tuple(range(expected))}


def test_no_call_moves_more_than_a_part_of_the_limit() -> None:
    flow = Flow(SHARE * 100)
    for unit in range(30):
        flow.add_offer(Transfer(unit, 0, 20, 1))
    assert flow.grant_fetches() == {0: (0, 1, 2, 3, 4)}


def test_a_large_result_is_not_overtaken_for_ever() -> None:
    flow = Flow(100)
    for unit, (worker, size) in enumerate([(0, 60), (1, 90), (0, 10), (2, 10)]):
        flow.add_offer(Transfer(unit, worker, size, 1))
    assert flow.grant_fetches() == {0: (0,)}, "of the others the first does not fit"
    flow.record_lost(0)
    assert flow.grant_fetches() == {1: (1,), 0: (2,)}


def test_the_learner_has_two_results_ahead_however_large_they_are() -> None:
    flow = Flow(1000 * BATCH_BYTES)
    for unit in range(4):
        flow.add_offer(Transfer(unit, unit, 10 * BATCH_BYTES, 1))
    for worker, units in flow.grant_fetches().items():
        flow.record_stored(units, f"of {worker}")
    assert len(flow.take_loads()) == AHEAD
    assert not flow.take_loads()
    flow.record_taken(0)
    assert [load.reference for load in flow.take_loads()] == ["of 2"]


def test_what_is_lost_is_no_longer_in_flight() -> None:
    flow = Flow(100)
    for unit in range(3):
        flow.add_offer(Transfer(unit, unit, 10, 1))
    assert flow.grant_fetches() == {0: (0,), 1: (1,), 2: (2,)}
    assert flow.record_lost(0) is not None
    flow.record_stored((1,), "of 1")
    flow.take_loads()
    assert flow.record_lost(1) is not None
    assert flow.record_lost(1) is None
    assert flow.in_flight == 10
    assert flow.withdraw(2) == [], "it is being fetched already"
