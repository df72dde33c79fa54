"""How many units a worker's process asks for before its job needs them.

The slot is a double, and so is the clock. Not checked here: real processes (test_collect.py, test_collect_pace.py).
"""

from __future__ import annotations

import collections
import itertools
from pathlib import Path

import pytest

from trialplane.wire import messages
from trialplane.wire.units import MAX_UNITS, Unit
from trialplane.worker.collect import worker
from trialplane.worker.collect.learner import ResultFeed
from trialplane.worker.collect.worker import AHEAD_SECONDS, AHEAD_UNITS, PACE_WINDOW, WorkerUnits


class Slot:
    """Gives as many units as are asked for, and fetches what is offered."""

    def __init__(self) -> None:
        self.asked = 0
        self._numbers = itertools.count()
        self._said: collections.deque[messages.ToTrial] = collections.deque()

    def send(self, message: messages.WorkerMessage) -> None:
        if isinstance(message, messages.UnitsWanted):
            self.asked += message.count
            given = tuple(Unit(next(self._numbers), 0) for _ in range(message.count))
            self._said.append(messages.HandUnits(given, last=False))
        elif isinstance(message, messages.ResultOffered):
            self._said.append(messages.ReleaseResults((message.offer.unit,)))

    def receive(self, *, wait: bool) -> messages.ToTrial | None:
        assert self._said or not wait, "it would wait for ever"
        return self._said.popleft() if self._said else None


class Job:
    """Takes units and gives them, after so many seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(worker.time, "monotonic", lambda: self.now)
        self.slot = Slot()
        self.desk = WorkerUnits(self.slot, folder, folder / "spare")  # type: ignore[arg-type]  # a double

    def do(self, *seconds: float, at_once: int = 1) -> list[int]:
        """Does that many batches; gives how many units it was ahead when it took each, and with it."""
        sizes = []
        for each in seconds:
            taken = self.desk.take(at_once, True)
            sizes.append(len(taken))
            self.now += each
            for unit in taken:
                self.desk.give(unit, 1, 1)
        return sizes

    @property
    def ahead(self) -> int:
        """Units asked for that it has not taken, when it next takes one."""
        (unit,) = self.desk.take(1, True)
        before = self.slot.asked - unit.number - 1
        self.desk.give(unit, 1, 1)
        return before


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_a_slow_job_has_one_at_a_time(job: Job) -> None:
    job.do(*[2 * AHEAD_SECONDS] * 10)
    assert job.slot.asked == 10


def test_a_quick_job_gets_ahead_step_by_step(job: Job) -> None:
    job.do(0.001)
    assert job.slot.asked == 1, "nothing is known of it"
    job.do(0.001)
    assert job.slot.asked == 3, "one ahead"
    job.do(*[0.001] * 10)
    assert job.ahead == AHEAD_UNITS


def test_one_slow_unit_counts_for_a_while(job: Job) -> None:
    job.do(*[0.001] * 20)
    job.do(2 * AHEAD_SECONDS)
    asked = job.slot.asked
    job.do(*[0.001] * (PACE_WINDOW - 1))
    assert job.slot.asked == asked, "it does what it has"
    job.do(*[0.001] * 20)
    assert job.ahead == AHEAD_UNITS


def test_batches_stay_whole(job: Job) -> None:
    assert job.do(*[0.4] * 12, at_once=8)[1:] == [8] * 11


def test_no_message_names_more_units_than_fit(job: Job) -> None:
    assert len(job.desk.take(10 * MAX_UNITS, True)) == MAX_UNITS
    sent: list[messages.ResultsTaken] = []
    job.slot.send = sent.append  # type: ignore[assignment, method-assign]
    ResultFeed(job.slot).report_existing(range(2 * MAX_UNITS + 1))  # type: ignore[arg-type]  # a double
    assert [len(message.units) for message in sent] == [MAX_UNITS, MAX_UNITS, 1]
    assert [unit for message in sent for unit in message.units] == list(range(2 * MAX_UNITS + 1))
    assert all(len(messages.encode(message)) < messages.MAX_BYTES for message in sent)
