"""The actor around a slot: which attempt a call is about. What slots do is checked in tests/worker, Ray in tests/study."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.controller.conftest import request

from trialplane.controller.slot_actor import SlotActor
from trialplane.wire.records import SlotConfig, TrialRequest
from trialplane.wire.states import FailureClass


class Slot:
    """A slot whose attempts end at once; one that is being killed has another started."""

    def __init__(self, _config: SlotConfig, _name: str) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self.has_begun = threading.Event()
        self.while_killing: Any = None

    def run(self, asked: TrialRequest) -> tuple[object, ...]:
        self.started.append(asked.number)
        if len(self.started) > 1:
            self.has_begun.set()
        return ()

    def kill(self, _failure: FailureClass, _message: str) -> None:
        if self.while_killing is not None:
            self.while_killing()
        self.killed.append(self.started[-1])


def actor(monkeypatch: pytest.MonkeyPatch) -> tuple[SlotActor, Slot]:
    monkeypatch.setattr("trialplane.worker.slot.Slot", Slot)
    made = SlotActor(SlotConfig("toy", "/code", "train:run", "/root", "/cache"), "0-1")
    return made, made._slot


def test_a_call_is_about_the_attempt_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made, slot = actor(monkeypatch)
    made.run(request(1))
    made.run(request(2))
    made.kill(1, FailureClass.TIMEOUT, "too late")
    assert slot.killed == []
    made.kill(2, FailureClass.TIMEOUT, "too late")
    assert slot.killed == [2]


def test_the_next_attempt_does_not_begin_in_the_middle_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was to end the attempt before would end this one."""
    made, slot = actor(monkeypatch)
    made.run(request(1))
    started = threading.Thread(target=made.run, args=(request(2),))

    def start() -> None:
        started.start()
        assert not slot.has_begun.wait(0.2)

    slot.while_killing = start
    made.kill(1, FailureClass.STOPPED, "enough")
    started.join()
    assert (slot.killed, slot.started) == ([1], [1, 2])
