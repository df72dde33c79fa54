"""When the controller hears what a process of a collection has said, until when a producer must have a result, and that
the memory of results ends with their trial.

Not checked here: what is said, and by real processes (test_collect.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialplane.policies import transport
from trialplane.wire.records import TrialRequest
from trialplane.wire.units import TOGETHER, TOGETHER_BYTES, Parcel, Unit
from trialplane.worker.collect import exchange as exchanges
from trialplane.worker.collect.exchange import AHEAD, GATHER, Exchange

TIMEOUT = 30.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(exchanges.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def exchange(tmp_path: Path, clock: list[float]) -> Iterator[Exchange]:
    """Of a producer that has three units, has begun one, and of which the controller has just heard."""
    sent: list[Mapping[str, Any]] = []
    made = Exchange(
        TrialRequest("toy", 0, 1, -1, {}, 0, (), worker=0, timeout=TIMEOUT), sent.append, None, tmp_path / "work"
    )
    made.hear({"wants": 3})
    assert is_told_now(made), "it has nothing to do"
    assert made.news()["wants"] == 3
    made.hand([Unit(number, 0) for number in range(3)], False)
    made.hear({"began": [0]})
    assert made.tell_at is None
    yield made
    made.close()


def offer(exchange: Exchange, unit: int, size: int = 10) -> None:
    exchange.hear({"offer": {"unit": unit, "bytes": size}, "file": "a file"})


def is_told_now(exchange: Exchange) -> bool:
    return exchange.tell_at is not None and exchange.tell_at <= exchanges.time.monotonic()


def test_what_a_producer_offers_that_has_enough_to_do_is_gathered(exchange: Exchange, clock: list[float]) -> None:
    offer(exchange, 0)
    exchange.hear({"began": [1]})
    exchange.hear({"wants": 1})
    assert exchange.tell_at == clock[0] + GATHER
    clock[0] += GATHER / 2
    offer(exchange, 1)
    assert not is_told_now(exchange)
    clock[0] += GATHER
    assert is_told_now(exchange), "the second does not make the first wait longer"
    news = exchange.news()
    assert (news["wants"], [each.unit for each in news["offers"]]) == (1, [0, 1])


def test_a_slow_producer_is_heard_at_once(exchange: Exchange, clock: list[float]) -> None:
    clock[0] += 10
    offer(exchange, 0)
    assert is_told_now(exchange)


def test_one_that_waits_for_a_unit_is_heard_at_once(exchange: Exchange) -> None:
    exchange.hear({"began": [1, 2]})
    offer(exchange, 0)
    assert not is_told_now(exchange)
    exchange.hear({"wants": 1})
    assert is_told_now(exchange)
    exchange.news()
    offer(exchange, 1)
    assert is_told_now(exchange), "it still waits"


@pytest.mark.parametrize(("count", "size"), [(AHEAD, TOGETHER_BYTES // 2), (TOGETHER, 10)])
def test_one_that_waits_until_something_is_fetched_is_heard_at_once(exchange: Exchange, count: int, size: int) -> None:
    for unit in range(count):
        assert not is_told_now(exchange)
        offer(exchange, unit, size)
    assert is_told_now(exchange)


def test_a_consumer_is_heard_at_once(exchange: Exchange) -> None:
    exchange.hear({"took": [7]})
    assert is_told_now(exchange)


def test_one_that_has_work_has_so_long_for_its_next_result(exchange: Exchange, clock: list[float]) -> None:
    assert exchange.deadline == clock[0] + TIMEOUT
    clock[0] += 20
    offer(exchange, 0)
    assert exchange.deadline == clock[0] + TIMEOUT, "it has not begun the others, and is to"


def test_one_that_waits_for_units_is_not_late(exchange: Exchange, clock: list[float]) -> None:
    exchange.hear({"began": [1, 2]})
    for unit in range(3):
        offer(exchange, unit)
    assert exchange.deadline == clock[0] + TIMEOUT, "it has asked for none"
    exchange.hear({"wants": 1})
    assert exchange.deadline is None
    clock[0] += 20
    exchange.hand([Unit(3, 0)], False)
    assert exchange.deadline == clock[0] + TIMEOUT


def test_one_that_is_told_that_there_are_no_more_units_is_to_end(exchange: Exchange, clock: list[float]) -> None:
    exchange.hear({"began": [1, 2]})
    for unit in range(3):
        offer(exchange, unit)
    exchange.hear({"wants": 1})
    exchange.hand([], True)
    assert exchange.deadline == clock[0] + TIMEOUT
    exchange.hear({"returned": True})
    assert exchange.deadline is None, "what it has given has not been fetched"
    exchange.release([0, 1, 2])
    assert exchange.deadline == clock[0] + TIMEOUT


def test_one_with_as_much_on_offer_as_may_be_is_not_late(exchange: Exchange) -> None:
    offer(exchange, 0, TOGETHER_BYTES)
    assert exchange.deadline is not None
    offer(exchange, 1, TOGETHER_BYTES)
    assert exchange.deadline is None


def test_the_memory_of_results_is_free_when_their_trial_has_ended(tmp_path: Path) -> None:
    made = Exchange(TrialRequest("toy", 0, 1, -1, {}, 0, ()), lambda message: None, None, tmp_path / "work")
    folder = made.lent["folder"]
    assert folder is not None
    made.feed([Parcel(0, 0, 0, 1.0)], [transport.pack({"states": np.zeros(1000)})])
    assert folder in Path("/proc/self/maps").read_text()
    made.close()
    assert folder not in Path("/proc/self/maps").read_text(), "a mapped file keeps its pages, also one without a name"
