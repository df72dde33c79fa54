"""The actor around a slot: which process a call is about, and what a message requests of the slot.

Not checked here: what slots do (tests/worker), and Ray (tests/study).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import request

from trialplane import __version__, errors
from trialplane.wire import messages
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import SlotConfig, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import Unit
from trialplane.worker.slot_actor import SlotActor

TO_EXCHANGE = (
    messages.HandUnits((Unit(4, 99),), last=True),
    messages.ReleaseResults((4, 5)),
    messages.ReleaseWeights(),
    messages.EndFeed(3),
)


class Slot:
    """A slot whose attempts end at once; one that is being killed has another started."""

    def __init__(self, _config: SlotConfig, _name: str) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self.has_begun = threading.Event()
        self.while_killing: Any = None
        self.config = _config

    def run(self, asked: TrialRequest) -> tuple[object, ...]:
        self.started.append(asked.number)
        if len(self.started) > 1:
            self.has_begun.set()
        return ()

    def kill(self, _failure: FailureClass, _message: str) -> None:
        if self.while_killing is not None:
            self.while_killing()
        self.killed.append(self.started[-1])


def start(number: int) -> bytes:
    return messages.encode(messages.StartAttempt(request(number)))


def actor(monkeypatch: pytest.MonkeyPatch) -> tuple[SlotActor, Slot]:
    monkeypatch.setattr("trialplane.worker.slot_actor.Slot", Slot)
    made = SlotActor(SlotConfig("toy", "/code", "train:run", "/root", "/cache"), "0-1")
    return made, made._slot


def test_a_call_is_about_the_process_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made, slot = actor(monkeypatch)
    late = messages.encode(messages.KillTrial(FailureClass.TIMEOUT, "too late"))
    made.run(1, start(1))
    made.run(2, start(2))
    made.control(1, late)
    assert slot.killed == []
    made.control(2, late)
    assert slot.killed == [2]


def test_the_next_attempt_does_not_begin_in_the_middle_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was to end the attempt before would end this one."""
    made, slot = actor(monkeypatch)
    made.run(1, start(1))
    started = threading.Thread(target=made.run, args=(2, start(2)))

    def begin() -> None:
        started.start()
        assert not slot.has_begun.wait(0.2)

    slot.while_killing = begin
    made.control(1, messages.encode(messages.KillTrial(FailureClass.STOPPED, "enough")))
    started.join()
    assert (slot.killed, slot.started) == ([1], [1, 2])


class Told:
    """A slot that only notes what is requested of it."""

    def __init__(self, _config: SlotConfig, _name: str) -> None:
        self.requested: list[tuple[str, tuple[Any, ...]]] = []
        self.exchange = self

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.requested.append((name, given)) or ()

    def fetch(self, units: tuple[int, ...]) -> dict[int, str]:
        return {unit: f"result {unit}" for unit in units if unit < 9}

    def fetch_weights(self) -> str:
        return "weights"


def told(monkeypatch: pytest.MonkeyPatch) -> tuple[SlotActor, Told]:
    """An actor whose attempt 1 runs."""
    monkeypatch.setattr("trialplane.worker.slot_actor.Slot", Told)
    made = SlotActor(SlotConfig("toy", "/code", "train:run", "/root", "/cache"), "0-1")
    made.run(1, start(1))
    made._slot.requested.clear()
    return made, made._slot


@pytest.mark.parametrize(
    ("message", "requested"),
    [
        (messages.KillTrial(FailureClass.LOST, "why"), ("kill", (FailureClass.LOST, "why"))),
        (messages.StopTrial("why"), ("stop", ("why",))),
        *((message, ("pass_on", (message,))) for message in TO_EXCHANGE),
    ],
)
def test_each_message_is_one_request_of_the_slot(
    monkeypatch: pytest.MonkeyPatch, message: messages.Control, requested: tuple[str, Any]
) -> None:
    made, slot = told(monkeypatch)
    made.control(1, messages.encode(message))
    assert slot.requested == [requested]
    made.answer(messages.encode(messages.AnswerReport(3)))
    assert slot.requested[1:] == [("answer", (3, None))]


def test_results_are_fetched_as_far_as_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = told(monkeypatch)
    wanted = messages.encode(messages.FetchResults((7, 9, 8)))
    assert made.fetch(1, wanted) == ((7, 8), ["result 7", "result 8"])
    assert made.fetch(2, wanted) == ((), []), "of another process"
    weights = messages.encode(messages.FetchWeights())
    assert made.fetch(1, weights) == (True, ["weights"])
    assert made.fetch(2, weights) == (False, [None])


@pytest.mark.parametrize(
    "data", [b'["Hibernate","9.9.9",{}]', b'["KillTrial","9.9.9",{"failure":3,"message":""}]', b'["StopTrial"']
)
def test_what_a_controller_of_another_version_requests_is_an_error(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    made, slot = told(monkeypatch)
    for call, given in ((made.control, (1, data)), (made.fetch, (1, data)), (made.run, (2, data)), (made.answer, (data,))):
        with pytest.raises(errors.MessageError, match=r"^a controller "):
            call(*given)
    assert slot.requested == []


def test_checkpoints_are_removed_from_where_the_slots_trials_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, slot = actor(monkeypatch)
    slot.config = SlotConfig("toy", "/code", "train:run", str(tmp_path), "/cache")
    for trial in range(3):
        (tmp_path / "checkpoints" / "toy" / f"trial-{trial}" / "step-1").mkdir(parents=True)
    for text in ('""', '"../other"', '{"trial": "..", "step": 0}'):
        with pytest.raises(errors.MessageError):
            made.remove(f'["RemoveCheckpoints","{__version__}",{{"folders":[{text}]}}]'.encode())
    made.remove(messages.encode(messages.RemoveCheckpoints((TrialFolder(0), TrialFolder(2), TrialFolder(7)))))
    assert [place.name for place in (tmp_path / "checkpoints" / "toy").iterdir()] == ["trial-1"]
