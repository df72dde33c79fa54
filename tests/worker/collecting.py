"""Two slots of a collection on the bench, and between them the least that a controller has to do. Without Ray."""

from __future__ import annotations

import collections
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.worker.conftest import Event, Slot

from trialplane.policies import transport
from trialplane.wire import messages
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import Transfer, Unit

CODE = Path(__file__).parent / "collect"
SHARED = Path(f"/dev/shm/trialplane-{os.getuid()}")
RUN = f"games-of-{os.getpid()}"  # tests side by side share this node's memory, and look at what is theirs


class Place:
    """A started slot, and a thread that answers each event of the trial in it at once."""

    def __init__(self, config: SlotConfig, name: str, events: queue.Queue[tuple[Place, Event]]) -> None:
        self.name = name
        self.slot = Slot(config, name)
        self.ready = self.slot.start()
        self.outcome: TrialOutcome | None = None
        self._events = events
        self._thread: threading.Thread | None = None

    def start(self, request: TrialRequest, weights: Any = None) -> None:
        self.outcome = None
        self._thread = threading.Thread(target=self._serve, args=(request, weights))
        self._thread.start()

    def _serve(self, request: TrialRequest, weights: Any) -> None:
        event = self.slot.run(request, weights)
        while event.outcome is None:
            self._events.put((self, event))
            event = self.slot.answer()
        self._events.put((self, event))

    def close(self) -> None:
        self.slot.kill(FailureClass.STOPPED, "the test is over")
        if self._thread is not None:
            self._thread.join()
        self.slot.close()


class Collecting:
    """One learner and some workers.

    Args:
        root: an empty folder.
        workers: how many workers.
        learner: entrypoint of the learner.
        **config: fields of both configs.
    """

    def __init__(self, root: Path, workers: int = 1, learner: str = "train:learn", **config: Any) -> None:
        self.root = root / "run"
        common = {"run": RUN, "code": str(CODE), "root": str(self.root), "cache": str(root / "cache"), **config}
        common.setdefault("grace", 10.0)
        self.name: str = common["run"]  # of the run; each test file has its own, for they share this node's memory
        write = common.pop("write", {})
        self.events: queue.Queue[tuple[Place, Event]] = queue.Queue()
        self.learner = Place(SlotConfig(**common, entrypoint=learner, role="learner", write=write), "c", self.events)
        config_ = SlotConfig(**common, entrypoint="train:play", role="worker")
        self.workers = [Place(config_, f"p{index}", self.events) for index in range(workers)]
        self.timeout: float | None = 300.0  # of a worker without a result
        self.on_event: Callable[[Place, Event], None] = lambda place, event: None
        self.failures: list[TrialOutcome] = []  # of workers
        self.results: dict[int, Any] = {}
        self.limit = 4  # results in flight
        self.giant: int | None = None  # bytes of a result that is refused
        self._numbers = iter(range(-1, -1000, -1))

    def __enter__(self) -> Collecting:
        return self

    def __exit__(self, *_: object) -> None:
        for place in (self.learner, *self.workers):
            place.close()

    def stop(self) -> None:
        """Ends whatever runs, and forgets what it said."""
        for place in (self.learner, *self.workers):
            place.slot.kill(FailureClass.STOPPED, "enough")
        for place in (self.learner, *self.workers):
            if place._thread is not None:
                place._thread.join()
        while not self.events.empty():
            self.events.get()

    def request(self, iteration: int, attempt: int, units: int, worker: int | None, **params: Any) -> TrialRequest:
        return TrialRequest(
            run=self.name,
            trial=iteration,
            attempt=attempt,
            number=next(self._numbers) if worker is not None else iteration * 10 + attempt,
            params={"units": units, **params},
            seed=42,
            metrics=(),
            timeout=300.0 if worker is None else self.timeout,
            worker=worker,
            units=units,
        )

    def begin(self, iteration: int = 0, *, attempt: int = 1, units: int = 6, resume: str = "", **params: Any) -> Any:
        """Starts the learner and, when the weights are there, the workers with them."""
        self.asked, self.iteration, self.attempt, self.params = units, iteration, attempt, params
        self.waiting = collections.deque(Unit(iteration * units + index, 1000 + index) for index in range(units))
        self.units = {unit.number: unit for unit in self.waiting}
        self.open: dict[int, dict[int, Unit]] = collections.defaultdict(dict)
        self.wants: collections.Counter[int] = collections.Counter()
        self.offered: collections.deque[tuple[int, Any]] = collections.deque()
        self.fed: set[int] = set()
        self.taken: list[int] = []
        self.lost = 0
        self.weights: Any = None
        self.started = self.ended = False
        request = self.request(iteration, attempt, units, None, **params)
        self.learner.start(dataclasses.replace(request, resume=resume))

    def run(self, iteration: int = 0, **options: Any) -> TrialOutcome:
        """One iteration, to its end; a worker that fails is not started again, and its units are lost."""
        self.begin(iteration, **options)
        return self.rest()

    def rest(self) -> TrialOutcome:
        """The rest of an iteration that has begun."""
        while self.learner.outcome is None or any(p.outcome is None and p._thread is not None for p in self.workers):
            self.step()
        outcome = self.learner.outcome
        assert outcome is not None
        return outcome

    def step(self) -> None:
        """Hears one event and does what follows."""
        place, event = self.events.get(timeout=300)
        place.outcome = event.outcome
        self.on_event(place, event)
        if place is self.learner:
            self._of_learner(event)
        else:
            self._of_worker(self.workers.index(place), event)
        self._move()

    def _of_learner(self, event: Event) -> None:
        for unit in event.took:
            self.taken.append(unit)
            self.fed.discard(unit)
        if event.weights is not None:
            self.started = True
            if event.weights:
                assert self.learner.slot.exchange is not None
                self.weights = np.array(self.learner.slot.exchange.fetch_weights())
                assert self.weights.nbytes == event.weights
                self.learner.slot.exchange.pass_on(messages.ReleaseWeights())
            for index, worker in enumerate(self.workers):
                worker.start(self.request(self.iteration, self.attempt, self.asked, index, **self.params), self.weights)
        if event.outcome is not None:
            for worker in self.workers:
                worker.slot.hand([], True)
            if event.arrays:
                self.results = transport.unpack(np.fromfile(event.arrays, dtype=np.uint8))
                Path(event.arrays).unlink()

    def _of_worker(self, index: int, event: Event) -> None:
        self.wants[index] += event.wants
        for offer in event.offers:
            self.open[index].pop(offer.unit)
            if self.giant is not None and offer.bytes > self.giant:
                self.lost += 1
                self.workers[index].slot.release([offer.unit])
            else:
                self.offered.append((index, offer))
        if event.outcome is not None:
            self.wants[index] = 0
            self.waiting.extend(self.units[offer.unit] for worker, offer in self.offered if worker == index)
            self.offered = collections.deque(each for each in self.offered if each[0] != index)
            had = self.open.pop(index, {})
            begun = had if event.begun is None else event.begun
            self.waiting.extendleft(had[unit] for unit in sorted(had.keys() - set(begun), reverse=True))
            self.lost += len(begun)
            if event.outcome.failure is not None:
                self.failures.append(event.outcome)

    def _move(self) -> None:
        for index, worker in enumerate(self.workers):
            count = min(self.wants[index], len(self.waiting))
            if count:
                handed = [self.waiting.popleft() for _ in range(count)]
                self.open[index].update({unit.number: unit for unit in handed})
                self.wants[index] -= count
                worker.slot.hand(handed, False)
            elif self.wants[index] and not self.waiting and not any(self.open.values()):
                self.wants[index] = 0
                worker.slot.hand([], True)
        while self.offered and (len(self.fed) < self.limit or self.learner.outcome is not None):
            index, offer = self.offered.popleft()
            if self.learner.outcome is not None:  # nobody wants it any more
                self.workers[index].slot.release([offer.unit])
                continue
            packed = np.array(self.workers[index].slot.fetch([offer.unit])[offer.unit])
            assert packed.nbytes == offer.bytes
            self.workers[index].slot.release([offer.unit])
            self.fed.add(offer.unit)
            if (exchange := self.learner.slot.exchange) is not None:  # else it has just ended, which is yet to be heard
                exchange.feed([Transfer(offer.unit, index, offer.bytes, offer.items)], [packed])
        remaining = self.waiting or self.offered or any(self.open.values())
        gone = all(worker.outcome is not None for worker in self.workers)
        if self.started and not self.ended and (not remaining or gone):
            self.ended = True
            self.learner.slot.end_feed(self.lost + len(self.waiting))

    def log(self, name: str) -> str:
        return (self.root / "trials" / name).read_text()


def shared_memory(names: Sequence[str] = (f"{RUN}-",)) -> list[str]:
    """The files of runs with such names in this node's memory."""
    if not SHARED.exists():
        return []
    return [path.name for path in SHARED.iterdir() if path.name.startswith(tuple(names))]
