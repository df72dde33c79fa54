"""When the controller hears what a process of a collection has said.

Not checked here: what is said, and by real processes (test_collect.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trialplane.runtime.collect import exchange as exchanges
from trialplane.runtime.collect.exchange import AHEAD, GATHER, Exchange
from trialplane.wire.records import TrialRequest
from trialplane.wire.units import TOGETHER, TOGETHER_BYTES, Unit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(exchanges.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def exchange(tmp_path: Path, clock: list[float]) -> Iterator[Exchange]:
    """Of a producer that has three units, has begun one, and of which the controller has just heard."""
    sent: list[Mapping[str, Any]] = []
    made = Exchange(TrialRequest("toy", 0, 1, -1, {}, 0, (), worker=0), sent.append, None, tmp_path / "work")
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
