"""What the loop and the workloads rely on, of every pool: slots of Ray, gangs of them, and the double of the other tests.

Add another pool to `PLAYS`. Not checked here: slots that fail (test_slot_pool.py), nodes that fail (test_gangs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest
from tests.controller.conftest import outcome, request
from tests.controller.ray_double import CONFIG, READY, Call, FakeRay, clock, fake
from tests.controller.slots_double import Slots

from trialplane.controller.gangs import GangPool
from trialplane.controller.pool import Pool, SlotReady, SlotTrial
from trialplane.controller.ray_slots import RayHost
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import SlotConfig, TrialReport
from trialplane.wire.states import FailureClass, TrialState

__all__ = ["clock", "fake"]


class Play(Protocol):
    """A pool of two slots, and the part of its processes."""

    pool: Pool

    def warm(self) -> None:
        """Every slot that starts gets ready."""

    def report(self, slot: int, step: int) -> None:
        """Its process reports a step."""

    def end(self, slot: int) -> None:
        """Its process completes."""

    def killed(self, slot: int) -> bool:
        """Whether its process was to be killed."""


class OnRay:
    """Actors of a double of Ray, in gangs of so many."""

    def __init__(self, fake: FakeRay, nodes: int) -> None:
        config = SlotConfig("toy", "/code", "train:run", "/root", "/cache", nodes=nodes)
        slots = SlotPool(RayHost(), config if nodes > 1 else CONFIG, 2 * nodes)
        self.pool: Pool = slots if nodes == 1 else GangPool(slots, config)
        self._fake = fake
        self._nodes = nodes

    def _calls(self, *methods: str) -> list[Call]:
        return [call for call in self._fake.calls if call.method in methods and call.answer is None]

    def warm(self) -> None:
        for call in self._calls("start"):
            call.answer = messages.encode(READY)

    def _say(self, slot: int, message: FromSlot) -> None:
        """Of all nodes of the slot."""
        for call in self._calls("run", "answer"):
            if self._fake.actors.index(call.actor) // self._nodes == slot:
                call.answer = ([messages.encode(message)], {})

    def report(self, slot: int, step: int) -> None:
        self._say(slot, TrialReport(self.pool.running()[slot].number, step, {"loss": 0.5}, 1.0))

    def end(self, slot: int) -> None:
        self._say(slot, TrialEnded(outcome(self.pool.running()[slot].number)))

    def killed(self, slot: int) -> bool:
        actors = self._fake.actors[slot * self._nodes :][: self._nodes]
        kills = (messages.decode(call.given[1], messages.CONTROL) for call in self._calls("control") if call.actor in actors)
        return any(isinstance(message, messages.KillTrial) for message in kills)


class Doubles:
    """The double."""

    def __init__(self) -> None:
        self.pool = self._slots = Slots(2)

    def warm(self) -> None:
        self._slots.warm(0, 1)

    def report(self, slot: int, step: int) -> None:
        self._slots.say(slot, reports=(TrialReport(self._slots.started[slot].number, step, {"loss": 0.5}, 1.0),))

    def end(self, slot: int) -> None:
        self._slots.end(slot)

    def killed(self, slot: int) -> bool:
        return slot in {one for one, *_ in self._slots.killed}


PLAYS: dict[str, Callable[[FakeRay], Play]] = {
    "slots": lambda fake: OnRay(fake, 1),
    "gangs": lambda fake: OnRay(fake, 2),
    "double": lambda _: Doubles(),
}


@pytest.fixture(params=PLAYS)
def play(request: pytest.FixtureRequest, fake: FakeRay, clock: list[float]) -> Play:
    return PLAYS[request.param](fake)


def trials(play: Play) -> list[SlotTrial]:
    return [event for event in play.pool.events(0) if isinstance(event, SlotTrial)]


def warmed(play: Play) -> Pool:
    play.warm()
    ready = [event for event in play.pool.events(0) if isinstance(event, SlotReady)]
    assert sorted(event.slot for event in ready) == [0, 1]
    return play.pool


def test_slots_are_idle_once_they_are_warm(play: Play) -> None:
    assert (play.pool.size, play.pool.idle, play.pool.running()) == (2, [], {})
    pool = warmed(play)
    assert (sorted(pool.idle), pool.slots, pool.trouble) == ([0, 1], frozenset({0, 1}), "")


def test_an_attempt_has_a_slot_to_itself_until_its_outcome_comes(play: Play) -> None:
    pool = warmed(play)
    pool.start(1, request(5))
    assert (pool.idle, {slot: one.number for slot, one in pool.running().items()}) == ([0], {1: 5})
    play.end(1)
    last = trials(play)[-1]
    assert last.outcome is not None
    assert (last.slot, last.request.number, last.outcome.state, last.slot_lost) == (1, 5, TrialState.COMPLETE, False)
    assert (sorted(pool.idle), pool.running()) == ([0, 1], {})


def test_an_event_waits_for_its_answer(play: Play) -> None:
    pool = warmed(play)
    pool.start(0, request(5))
    for step in (1, 2):
        play.report(0, step)
        reports = []
        for event in pool.events(0):
            assert isinstance(event, SlotTrial) and event.outcome is None
            reports += [report.step for report in event.reports]
            pool.answer(event.slot)
        assert reports == [step]
    assert not trials(play), "its process has said nothing since"


def test_an_attempt_that_is_killed_ends_as_an_event(play: Play) -> None:
    pool = warmed(play)
    pool.start(0, request(5))
    pool.kill(0, FailureClass.STOPPED, "the run was cancelled")
    assert play.killed(0) and not play.killed(1)
    assert pool.running(), "until its outcome comes"


def test_a_smaller_pool_lets_what_runs_end(play: Play) -> None:
    pool = warmed(play)
    for slot in (0, 1):
        pool.start(slot, request(5 + slot))
    pool.resize(1)
    assert (pool.size, pool.idle, sorted(pool.running())) == (1, [], [0, 1])
    for slot in (0, 1):
        play.end(slot)
        assert trials(play)[-1].outcome is not None
    assert len(pool.idle) == 1
