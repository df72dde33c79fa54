"""When the controller hears what a process of a collection has said, until when a worker must have a result, and that
the memory of results ends with their trial.

Not checked here: what is said, and by real processes (test_collect.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trialplane import errors
from trialplane.policies import transport
from trialplane.wire import messages
from trialplane.wire.records import TrialRequest
from trialplane.wire.units import BATCH_BYTES, BATCH_RESULTS, Offer, Transfer, Unit
from trialplane.worker.collect import exchange as exchanges
from trialplane.worker.collect import segments
from trialplane.worker.collect.exchange import AHEAD, GATHER, Exchange

TIMEOUT = 30.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(exchanges.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def exchange(tmp_path: Path, clock: list[float]) -> Iterator[Exchange]:
    """Of a worker that has three units, has begun one, and of which the controller has just heard."""
    sent: list[messages.ToTrial] = []
    made = Exchange(TrialRequest("toy", 0, 1, 0, {}, 0, (), worker=0, timeout=TIMEOUT), sent.append, None, tmp_path / "work")
    made.receive(messages.UnitsWanted(3))
    assert is_told_now(made), "it has nothing to do"
    assert made.news() == (messages.UnitsWanted(3),)
    made.pass_on(messages.HandUnits(tuple(Unit(number, 0) for number in range(3)), last=False))
    made.receive(messages.UnitsBegun((0,)))
    assert made.report_at is None
    yield made
    made.close()


def offer(exchange: Exchange, unit: int, size: int = 10) -> None:
    exchange.receive(messages.ResultOffered(Offer(unit, size), f"{exchange.shared_files.folder}/a file"))


def is_told_now(exchange: Exchange) -> bool:
    return exchange.report_at is not None and exchange.report_at <= exchanges.time.monotonic()


def test_what_a_worker_offers_that_has_enough_to_do_is_gathered(exchange: Exchange, clock: list[float]) -> None:
    offer(exchange, 0)
    exchange.receive(messages.UnitsBegun((1,)))
    exchange.receive(messages.UnitsWanted(1))
    assert exchange.report_at == clock[0] + GATHER
    clock[0] += GATHER / 2
    offer(exchange, 1)
    assert not is_told_now(exchange)
    clock[0] += GATHER
    assert is_told_now(exchange), "the second does not make the first wait longer"
    wanted, offered = exchange.news()
    assert wanted == messages.UnitsWanted(1)
    assert isinstance(offered, messages.ResultsOffered)
    assert [each.unit for each in offered.offers] == [0, 1]


def test_a_slow_worker_is_heard_at_once(exchange: Exchange, clock: list[float]) -> None:
    clock[0] += 10
    offer(exchange, 0)
    assert is_told_now(exchange)


def test_one_that_waits_for_a_unit_is_heard_at_once(exchange: Exchange) -> None:
    exchange.receive(messages.UnitsBegun((1, 2)))
    offer(exchange, 0)
    assert not is_told_now(exchange)
    exchange.receive(messages.UnitsWanted(1))
    assert is_told_now(exchange)
    exchange.news()
    offer(exchange, 1)
    assert is_told_now(exchange), "it still waits"


@pytest.mark.parametrize(("count", "size"), [(AHEAD, BATCH_BYTES // 2), (BATCH_RESULTS, 10)])
def test_one_that_waits_until_something_is_fetched_is_heard_at_once(exchange: Exchange, count: int, size: int) -> None:
    for unit in range(count):
        assert not is_told_now(exchange)
        offer(exchange, unit, size)
    assert is_told_now(exchange)


def test_a_learner_is_heard_at_once(exchange: Exchange) -> None:
    exchange.receive(messages.ResultsTaken((7,)))
    assert is_told_now(exchange)


def test_one_that_has_work_has_so_long_for_its_next_result(exchange: Exchange, clock: list[float]) -> None:
    assert exchange.deadline == clock[0] + TIMEOUT
    clock[0] += 20
    offer(exchange, 0)
    assert exchange.deadline == clock[0] + TIMEOUT, "it has not begun the others, and is to"


def test_one_that_waits_for_units_is_not_late(exchange: Exchange, clock: list[float]) -> None:
    exchange.receive(messages.UnitsBegun((1, 2)))
    for unit in range(3):
        offer(exchange, unit)
    assert exchange.deadline == clock[0] + TIMEOUT, "it has asked for none"
    exchange.receive(messages.UnitsWanted(1))
    assert exchange.deadline is None
    clock[0] += 20
    exchange.pass_on(messages.HandUnits((Unit(3, 0),), last=False))
    assert exchange.deadline == clock[0] + TIMEOUT


def test_one_that_is_told_that_there_are_no_more_units_is_to_end(exchange: Exchange, clock: list[float]) -> None:
    exchange.receive(messages.UnitsBegun((1, 2)))
    for unit in range(3):
        offer(exchange, unit)
    exchange.receive(messages.UnitsWanted(1))
    exchange.pass_on(messages.HandUnits((), last=True))
    assert exchange.deadline == clock[0] + TIMEOUT
    exchange.receive(messages.JobReturned())
    assert exchange.deadline is None, "what it has given has not been fetched"
    exchange.pass_on(messages.ReleaseResults((0, 1, 2)))
    assert exchange.deadline == clock[0] + TIMEOUT


def test_one_with_as_much_on_offer_as_may_be_is_not_late(exchange: Exchange) -> None:
    offer(exchange, 0, BATCH_BYTES)
    assert exchange.deadline is not None
    offer(exchange, 1, BATCH_BYTES)
    assert exchange.deadline is None


def test_the_memory_of_results_is_free_when_their_trial_has_ended(tmp_path: Path) -> None:
    made = Exchange(TrialRequest("toy", 0, 1, 0, {}, 0, ()), lambda message: None, None, tmp_path / "work")
    folder = made.shared_files.folder
    made.feed([Transfer(0, 0, 0, 1.0)], [transport.pack({"states": np.zeros(1000)})])
    assert folder in Path("/proc/self/maps").read_text()
    made.close()
    assert folder not in Path("/proc/self/maps").read_text(), "a mapped file keeps its pages, also one without a name"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (messages.UnitsWanted(0), "requested 0 units"),
        (messages.UnitsWanted(-5), "requested -5 units"),
        (messages.ResultOffered(Offer(-1, 10), "{folder}/weights"), "a worker offered 10 bytes and 0 items of unit -1"),
        (messages.ResultOffered(Offer(0, 10), "/etc/passwd"), "offered in '/etc/passwd', where this process has no folder"),
        (messages.ResultOffered(Offer(0, 10), "{folder}/../other/file"), "where this process has no folder"),
        (messages.ResultOffered(Offer(0, -10), "{folder}/file"), "a worker offered -10 bytes"),
        (messages.ResultOffered(Offer(0, 0), "{folder}/file"), "a worker offered 0 bytes"),
        (messages.WeightsOffered(-1), "offered weights of -1 bytes"),
        (messages.WeightsOffered(10, "/etc/passwd"), "where this process has no folder"),
        (messages.FilesFree((3,)), "freed files of results that it does not have"),
    ],
)
def test_what_a_process_may_not_claim_is_an_error(exchange: Exchange, message: messages.WorkerMessage, said: str) -> None:
    if isinstance(message, messages.ResultOffered):
        file = message.file.replace("{folder}", exchange.shared_files.folder)
        message = messages.ResultOffered(message.offer, file)
    exchange.news()
    with pytest.raises(errors.MessageError, match=said):
        exchange.receive(message)
    assert (exchange.news(), exchange.fetch([0])) == ((), {})


def test_a_file_is_freed_once(tmp_path: Path) -> None:
    made = Exchange(TrialRequest("toy", 0, 1, 0, {}, 0, ()), lambda message: None, None, tmp_path / "work")
    made.feed([Transfer(0, 0, 0, 1.0)], [transport.pack({"states": np.zeros(10)})])
    with pytest.raises(errors.MessageError, match="freed files of results that it does not have"):
        made.receive(messages.FilesFree((0, 0)))
    made.receive(messages.FilesFree((0,)))
    made.close()


def test_weights_are_offered_at_once_and_there_until_they_are_released(tmp_path: Path) -> None:
    sent: list[messages.ToTrial] = []
    made = Exchange(TrialRequest("toy", 0, 1, 0, {}, 0, ()), sent.append, None, tmp_path / "work")
    file, size = segments.Writer(made.shared_files.folder).write({"bias": 1.0})
    made.receive(messages.WeightsOffered(size, file))
    assert is_told_now(made)
    assert made.news() == (messages.WeightsOffered(size),), "the file is the slot's business"
    weights = made.fetch_weights()
    assert weights is not None and weights.nbytes == size
    made.pass_on(messages.ReleaseWeights())
    assert (sent, made.fetch_weights()) == ([messages.ReleaseWeights()], None)
    made.close()
