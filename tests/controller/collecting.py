"""A collection's workload over doubles of slots and of the exchange, driven as the loop does it."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from typing import Any

from tests.controller.conftest import request
from tests.controller.slots_double import Slots

from trialplane.controller.exchange import ExchangeEvent, ResultsFed, ResultsFetched, WeightsFetched
from trialplane.controller.pool import SlotReady, SlotTrial
from trialplane.controller.workloads.collection import CollectionWorkload, ObjectStores
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialOutcome, TrialReport
from trialplane.wire.units import Offer, Transfer, Unit

UNITS = 6


def job(**collect: Any) -> Job:
    fields = {"units": UNITS, "iterations": 3, "workers": 2, "learner": "train:learn", "in_flight": 100, **collect}
    return kinds.read({"name": "toy", "kind": "collect", "collect": fields, "retries": {"lost": 2}})


class Exchange:
    """The double of the exchange. Its lists are what was asked of it; `fetched`, `fetched_weights` and `fed` answer that."""

    pending = ()

    def __init__(self, learner: Slots, workers: Slots) -> None:
        self._learner = learner
        self._workers = workers
        self.handed: list[tuple[int, list[int], bool]] = []
        self.released: list[tuple[int, tuple[int, ...]]] = []
        self.fetching: list[tuple[int, tuple[int, ...]]] = []
        self.fetching_weights = 0
        self.feeding: list[tuple[tuple[int, ...], Any]] = []
        self.end_fed: list[int] = []
        self._events: collections.deque[ExchangeEvent] = collections.deque()

    def send_units(self, worker: int, units: tuple[Unit, ...], last: bool) -> None:
        self.handed.append((worker, [unit.number for unit in units], last))

    def release(self, worker: int, units: tuple[int, ...]) -> None:
        self.released.append((worker, units))

    def fetch(self, worker: int, units: tuple[int, ...]) -> None:
        assert worker in self._workers.started
        assert worker not in dict(self.fetching), "what came meanwhile is fetched together"
        self.fetching.append((worker, units))

    def fetch_weights(self) -> None:
        assert self._learner.started
        self.fetching_weights += 1

    def feed(self, transfers: tuple[Transfer, ...], reference: Any) -> None:
        assert self._learner.started
        assert reference is not None
        self.feeding.append((tuple(transfer.unit for transfer in transfers), reference))

    def end_feed(self, failed: int) -> None:
        self.end_fed.append(failed)

    def take_events(self, answered: Iterable[object]) -> Iterator[ExchangeEvent]:
        while self._events:
            yield self._events.popleft()

    def fetched(self, worker: int, *units: int, reference: Any = None, lost: tuple[int, ...] = (), error: str = "") -> None:
        """A fetch that was asked for is answered: these are in the store, and those are gone."""
        requested = dict(self.fetching)[worker]
        assert sorted((*units, *lost)) == sorted(requested)
        self.fetching.remove((worker, requested))
        self._events.append(ResultsFetched(worker, self._workers.started[worker], units, reference, lost, error))

    def fetched_weights(self, reference: Any = None, error: str = "") -> None:
        self._events.append(WeightsFetched(self._learner.started[0], reference, error))

    def fed(self, *, lost: bool = False, error: str = "") -> tuple[int, ...]:
        """The first feed that was asked for is answered; gives its units."""
        units = self.feeding.pop(0)[0]
        self._events.append(ResultsFed(self._learner.started[0], units, lost, error))
        return units


class Collecting:
    """A collection over such doubles, driven as the loop does it."""

    def __init__(self, **collect: Any) -> None:
        self.learner = Slots(1)
        self.workers = Slots(2)
        self.exchange = Exchange(self.learner, self.workers)
        self.store = 0
        self.spilled: int | None = 0
        self.reported: list[TrialReport] = []
        self.sizes: list[int] = []
        ledger = types.SimpleNamespace(job=job(**collect), report=self.reported.append, record_workers=self.sizes.append)
        parts: tuple[Any, ...] = (ledger, self.learner, self.workers, self.exchange)
        self.work = CollectionWorkload(*parts, ObjectStores(lambda: self.store, lambda: self.spilled))
        self.ready: list[SlotReady] = []

    def listen(self) -> list[SlotTrial]:
        """Takes every event there is; gives those of trials."""
        taken: list[SlotTrial] = []
        for event in self.work.events(0):
            if isinstance(event, SlotReady):
                self.ready.append(event)
            else:
                taken.append(event)
        return taken

    def warm(self) -> None:
        """Everything is warm, and the learner of the second iteration starts."""
        self.learner.warm(0)
        self.workers.warm(0, 1)
        self.learner.ready = 1
        self.listen()
        self.work.start(0, request(7, trial=1, metrics=("units", "loss")))

    def begin(self, weights: Any = None) -> None:
        """And it offers the weights that workers get."""
        self.warm()
        self.learner.say(0, weights=0 if weights is None else 50)
        self.listen()
        if weights is not None:
            self.exchange.fetched_weights(weights)
            self.listen()

    def want(self, slot: int, count: int = 1) -> list[int]:
        """A worker wants units; gives the numbers it gets."""
        before = len(self.exchange.handed)
        self.workers.say(slot, wants=count)
        self.listen()
        return [unit for to, units, _ in self.exchange.handed[before:] if to == slot for unit in units]

    def offer(self, slot: int, unit: int, size: int = 10) -> None:
        self.workers.say(slot, offers=(Offer(unit, size, items=3),))
        self.listen()

    def pass_on(self, slot: int, unit: int, size: int = 10) -> None:
        """A result goes all the way."""
        self.offer(slot, unit, size)
        self.exchange.fetched(slot, unit, reference=f"result {unit}")
        self.listen()
        assert self.exchange.fed() == (unit,)
        self.learner.say(0, took=(unit,))
        self.listen()

    def last_word(self, slot: int) -> bool:
        return [last for to, _, last in self.exchange.handed if to == slot][-1]

    def end(self) -> TrialOutcome:
        """The iteration's outcome, after every event before."""
        *_, ended = self.listen()
        assert ended.outcome is not None
        assert ended.request == request(7, trial=1, metrics=("units", "loss")), "as the loop gave it"
        return ended.outcome
