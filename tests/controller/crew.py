"""A crew over doubles of slots, driven as the loop does it."""

from __future__ import annotations

from typing import Any

from tests.controller.conftest import request
from tests.controller.slots_double import Slots

from trialplane.controller.crews import CrewPool
from trialplane.controller.slot_events import SlotReady, SlotTrial
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire.records import TrialOutcome
from trialplane.wire.units import WEIGHTS, Offer

UNITS = 6


def job(**collect: Any) -> Job:
    fields = {"units": UNITS, "iterations": 3, "workers": 2, "learner": "train:learn", "in_flight": 100, **collect}
    return jobs.read({"name": "toy", "kind": "collect", "collect": fields, "retries": {"lost": 2}})


class Crew:
    """A crew over such slots, driven as the loop does it."""

    def __init__(self, **collect: Any) -> None:
        self.consumer = Slots(1)
        self.producers = Slots(2)
        self.store = 0
        self.spilled: int | None = 0
        self.pool = CrewPool(
            self.consumer,  # type: ignore[arg-type]  # a double
            self.producers,  # type: ignore[arg-type]
            job(**collect),
            lambda: self.store,
            lambda: self.spilled,
        )
        self.ready: list[SlotReady] = []

    def listen(self) -> list[SlotTrial]:
        """Hears everything there is to hear; gives the trials' events."""
        heard: list[SlotTrial] = []
        for said in self.pool.events(0):
            if isinstance(said, SlotReady):
                self.ready.append(said)
            else:
                heard.append(said)
                if said.outcome is None:
                    self.pool.go_on(said.slot)
        return heard

    def warm(self) -> None:
        """Everything is warm, and the consumer of the second iteration starts."""
        self.consumer.warm(0)
        self.producers.warm(0, 1)
        self.consumer.ready = 1
        self.listen()
        self.pool.start(0, request(7, trial=1, metrics=("units", "loss")))

    def begin(self, weights: Any = None) -> None:
        """And it says what weights producers get."""
        self.warm()
        self.consumer.say(0, offers=(Offer(WEIGHTS, 0 if weights is None else 50),))
        self.listen()
        if weights is not None:
            self.consumer.fetched(0, WEIGHTS, reference=weights)
            self.listen()

    def want(self, slot: int, count: int = 1) -> list[int]:
        """A producer wants units; gives the numbers it gets."""
        before = len(self.producers.handed)
        self.producers.say(slot, wants=count)
        self.listen()
        return [unit for to, units, _ in self.producers.handed[before:] if to == slot for unit in units]

    def offer(self, slot: int, unit: int, size: int = 10) -> None:
        self.producers.say(slot, offers=(Offer(unit, size, items=3),))
        self.listen()

    def pass_on(self, slot: int, unit: int, size: int = 10) -> None:
        """A result goes all the way."""
        self.offer(slot, unit, size)
        self.producers.fetched(slot, unit, reference=f"result {unit}")
        self.listen()
        assert self.consumer.fed(0) == (unit,)
        self.consumer.say(0, took=(unit,))
        self.listen()

    def last_word(self, slot: int) -> bool:
        return [last for to, _, last in self.producers.handed if to == slot][-1]

    def end(self) -> TrialOutcome:
        """The iteration's outcome, after everything that was said before."""
        *_, ended = self.listen()
        assert ended.outcome is not None
        assert ended.request == request(7, trial=1, metrics=("units", "loss")), "as the loop gave it"
        return ended.outcome
