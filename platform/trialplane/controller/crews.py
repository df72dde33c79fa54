"""The crew of a collection: one consumer and its producers, which the loop sees as one slot that runs one iteration.

The consumer is the trial: its reports, its log, its outcome. It offers the weights that producers start with; then the crew
hands out units, has results fetched into the object store as far as there is room, and feeds them to the consumer. What was
lost on the way is done again; what fails is data, and ends the iteration when there is too much of it. An attempt at an
iteration starts with a book of its own, for a new consumer has read nothing yet.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterator

from trialplane.controller import ray_session
from trialplane.controller.iteration import Iteration, Verdict
from trialplane.controller.slot_events import SlotEvent, SlotFed, SlotFetched, SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.controller.workers import Worker
from trialplane.spec.jobs import Collection, collection
from trialplane.wire import paths
from trialplane.wire.messages import FromSlot, LogGrown, ResultsOffered, ResultsTaken, Shown, TrialEnded, UnitsWanted
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import WEIGHTS, Offer

log = logging.getLogger(__name__)

BURST = 64  # times in a row to listen, before the loop looks after other things
END_INTERVAL = 0.2  # seconds between looks for producers that should have ended


class CrewPool:
    """A consumer and its producers, with the methods of `SlotPool`; see there.

    Args:
        consumer: a pool of one slot.
        producers: a pool of `collect.workers` slots.
        job: the collection.
        store_bytes: says how large the smallest object store is, 0 while that is not known.
        spilled: says how many bytes the object stores have written to disk so far; None while nobody answers.
    """

    def __init__(
        self,
        consumer: SlotPool,
        producers: SlotPool,
        job: Collection,
        store_bytes: Callable[[], int],
        spilled: Callable[[], int | None],
    ) -> None:
        self._consumer = consumer
        self._producers = producers
        self._size = producers.size
        self._job = job
        self._collect = job.collect
        self._store_bytes = store_bytes
        self._spilled = spilled
        self._warm: dict[int, str] = {}  # slot of a producer → node
        self._numbers = itertools.count(-1, -1)  # of producers' processes: the ledger's are from 0 up
        self._slot = 0  # the consumer's
        self._end_at = 0.0
        self._has_warned = False
        self._now: Iteration | None = None
        self._last: Iteration | None = None  # what runs, or ran last, to be shown

    @property
    def size(self) -> int:
        """How many producers there are or will be."""
        return self._size

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return tuple(sorted({*self._consumer.nodes, *self._producers.nodes}))

    @property
    def ready(self) -> int:
        """How many slots have a warm template."""
        return self._consumer.ready + self._producers.ready

    @property
    def trouble(self) -> str:
        """Who does not start, and why."""
        return "; ".join(filter(None, (self._consumer.trouble, self._producers.trouble)))

    @property
    def progress(self) -> CollectionProgress:
        """How far the iteration is that runs, or ran last."""
        return CollectionProgress() if self._last is None else self._last.progress(self._warm)

    def resize(self, size: int) -> set[int]:
        """Makes it `size` producers; one that has to go first does the units it has. The crew itself stays."""
        self._size = size
        if self._consumer.ready:
            self._fit(size)
        if self._now is not None:
            self._move(self._now)
        return set()

    def start(self, slot: int, request: TrialRequest) -> None:
        """Starts an iteration: first its consumer, and the producers when that has said what weights they get."""
        self._slot = slot
        self._now = self._last = Iteration(request, self._job, self._spilled())
        metrics = tuple(name for name in request.metrics if name not in collection.ADDED)  # those are ours to add
        self._consumer.start(slot, dataclasses.replace(request, units=self._collect.units, metrics=metrics))

    def go_on(self, slot: int, prune: bool = False) -> None:
        """Nothing: what a slot of a crew says is answered at once."""

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the iteration; its outcome comes as an event."""
        self._consumer.kill(self._slot, failure, message)
        self._wind_up(message)

    def stop(self, slot: int, message: str) -> None:
        """Lets the consumer end in its own time, with the results that are in the store; no more are made."""
        self._consumer.stop(self._slot, message)
        self._wind_up(message)

    def running(self) -> dict[int, TrialRequest]:
        """The attempt at an iteration that runs."""
        return {} if self._now is None else {self._slot: self._now.request}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """What the crew says, waiting at most `timeout` seconds for the first. Raises as `SlotPool.events`."""
        self._end_late()
        for turn in range(BURST):
            pending = (*self._consumer.pending, *self._producers.pending)
            answered = ray_session.wait(pending, 0 if turn else timeout)
            of_consumer, of_producers = list(self._consumer.hear(answered)), list(self._producers.hear(answered))
            for said in of_consumer:
                yield from self._hear_consumer(said)
            for said in of_producers:
                yield from self._hear_producer(said)
            if self._now is not None:
                self._move(self._now)
            if not of_consumer and not of_producers:
                break
        if self._now is not None:
            self._now.note_spilled(self._spilled)

    def close(self) -> None:
        """Ends all slots."""
        self._producers.close()
        self._consumer.close()

    # What the consumer says

    def _hear_consumer(self, said: SlotEvent) -> Iterator[SlotReady | SlotTrial]:
        if isinstance(said, SlotReady):
            self._fit(self._size)
            yield said
            return
        if isinstance(said, SlotTrial) and said.outcome is None:
            self._consumer.go_on(said.slot)
        now = self._now
        if now is None or said.request.number != now.request.number:
            return  # of an attempt that is over
        if isinstance(said, SlotFetched):
            if said.reference is not None:
                now.publish(said.reference, self._store_bytes())
            elif said.why:  # else the consumer has ended, and its outcome is on its way
                text = f"the weights could not be put into the object store: {said.why}"
                now.verdict = Verdict(FailureClass.LOST, text)
                self.kill(self._slot, FailureClass.LOST, text)
        elif isinstance(said, SlotFed):
            now.fed(said.units, said.lost, said.why)
        else:
            for message in said.messages:
                if isinstance(message, ResultsOffered) and said.outcome is None:
                    self._offered_weights(now, said.slot, message.offers)
                elif isinstance(message, ResultsTaken):
                    now.took(message.units)
            passed = tuple(message for message in said.messages if isinstance(message, Shown))
            if said.outcome is not None:
                yield self._ended(now, said, said.outcome)
            elif passed:
                yield SlotTrial(said.slot, now.request, passed)

    def _offered_weights(self, now: Iteration, slot: int, offers: tuple[Offer, ...]) -> None:
        for offer in offers:
            now.weights_bytes = offer.bytes
            if offer.bytes:
                self._consumer.fetch(slot, (WEIGHTS,))
            else:
                now.publish(None, self._store_bytes())

    def _ended(self, now: Iteration, said: SlotTrial, outcome: TrialOutcome) -> SlotTrial:
        """The iteration's end is its consumer's, unless too many units have failed."""
        now.note_spilled(self._spilled, again=True)
        self._now = None
        now.close()
        self._end_producers("the iteration is over")
        if said.gone:  # the next place there is, is for the consumer: no producer that waits for one is to be before it
            self._fit(self._producers.ready)
        if now.verdict is not None:
            outcome = dataclasses.replace(
                outcome,
                state=TrialState.FAILED,
                failure=now.verdict.failure,
                message=now.verdict.message,
                traceback=now.verdict.traceback or outcome.traceback,
            )
        elif outcome.state is TrialState.COMPLETE and not now.book.is_done:
            early = f"the consumer returned when {now.book.arrived} of {now.book.count} units had come"
            outcome = dataclasses.replace(outcome, message="; ".join(filter(None, (early, now.troubles()))))
        elif outcome.state is TrialState.COMPLETE:
            outcome = dataclasses.replace(outcome, message=now.troubles())
        outcome = dataclasses.replace(outcome, metrics={**outcome.metrics, **now.metrics(), **now.of_workers()})
        arrays = said.arrays if outcome.state is TrialState.COMPLETE else None
        shown = (message for message in said.messages if isinstance(message, Shown))
        return dataclasses.replace(said, request=now.request, messages=(*shown, TrialEnded(outcome)), arrays=arrays)

    # What producers say

    def _hear_producer(self, said: SlotEvent) -> Iterator[SlotTrial]:
        if isinstance(said, SlotReady):
            if said.slot not in self._producers.slots:  # it went after it had said so: the crew has become smaller
                return
            self._warm[said.slot] = said.node
            log.info("worker %d is warm after %.1f s of imports", said.slot, said.seconds)
            if said.unclean:
                log.warning("worker %d spawns its processes, which takes longer: %s", said.slot, "; ".join(said.unclean))
            return
        now = self._now if self._now is not None and said.request.number in self._now.numbers else None
        if isinstance(said, SlotFetched):
            if now is not None:
                now.fetched(said.units, said.reference, said.gone, said.why)
        elif isinstance(said, SlotTrial):
            if said.outcome is None:
                self._producers.go_on(said.slot)
            for message in said.messages:
                if isinstance(message, LogGrown):
                    yield SlotTrial(self._slot, said.request, (message,))
                elif now is not None:
                    self._hear_worker(now, now.workers[said.slot], message)
            if said.gone:
                self._warm.pop(said.slot, None)
            if said.store is not None and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "what producers log to MLflow by themselves is not kept while MLflow is away; log in the consumer"
                )

    def _hear_worker(self, now: Iteration, worker: Worker, message: FromSlot) -> None:
        match message:
            case UnitsWanted(count):
                worker.owed += count
            case ResultsOffered(offers):
                for offer in offers:
                    self._offered(now, worker, offer)
            case TrialEnded(outcome, begun):
                now.take_back(worker, begun)
                had = sorted(now.book.open(worker.index))
                self._log_end(now, worker, had, now.producer_ended(worker, outcome))

    def _offered(self, now: Iteration, worker: Worker, offer: Offer) -> None:
        if not now.offered(worker, offer):
            self._producers.release(worker.index, offer.unit)

    def _log_end(self, now: Iteration, worker: Worker, had: list[int], outcome: TrialOutcome) -> None:
        """A producer's failure and the units it had begun; nothing else keeps the traceback but its own log."""
        if outcome.failure in (None, FailureClass.STOPPED):
            return
        units = ", ".join(str(unit) for unit in had)
        log.warning(
            "iteration %d: worker %d%s: %s: %s; its log is %s%s",
            now.request.trial,
            worker.index,
            f" at unit{'s' if len(had) > 1 else ''} {units}" if had else "",
            outcome.failure,
            outcome.message,
            paths.trial_log(now.request.trial, now.request.attempt, worker.index),
            f"\n{outcome.traceback.rstrip()}" if outcome.traceback else "",
        )

    def _fit(self, size: int) -> None:
        for gone in self._producers.resize(size):
            self._warm.pop(gone, None)

    def _wind_up(self, message: str) -> None:
        """Begins nothing new in the iteration that runs."""
        self._end_producers(message)
        if self._now is not None:
            self._now.is_ending = True

    def _end_producers(self, message: str) -> None:
        for slot in self._producers.running():
            self._producers.kill(slot, FailureClass.STOPPED, message)

    def _end_late(self) -> None:
        """Ends producers of an iteration that is over; again and again, for one that was just starting."""
        if time.monotonic() < self._end_at:
            return
        self._end_at = time.monotonic() + END_INTERVAL
        wanted = self._now.numbers if self._now is not None and not self._now.is_ending else ()
        for slot, request in self._producers.running().items():
            if request.number not in wanted:
                self._producers.kill(slot, FailureClass.STOPPED, "the iteration is over")

    # What is to be done now

    def _move(self, now: Iteration) -> None:
        """Does everything that can be done now."""
        if not now.is_ending:
            now.judge(self._warm.keys(), self._producers.slots - self._producers.leaving)
            if now.verdict is not None:
                self.kill(self._slot, now.verdict.failure, now.verdict.message)
        if now.verdict is not None or not now.is_published:
            return
        if not now.is_ending:
            self._make(now)
        for load in now.flow.feeds():
            self._consumer.feed(self._slot, load.parcels, load.reference)
        if now.book.is_done and not now.is_all_fed:
            now.is_all_fed = True
            self._consumer.end_feed(self._slot, len(now.book.failed))

    def _make(self, now: Iteration) -> None:
        """Has results made, as long as they are wanted."""
        leaving = self._producers.leaving
        for worker in now.workers.values():
            if worker.request is not None and worker.owed and not worker.last:
                self._hand(now, worker, worker.index in leaving)
        for slot, units in now.flow.grants().items():
            self._producers.fetch(slot, units)
        running = self._producers.running()
        for slot in self._warm:
            worker = now.workers.setdefault(slot, Worker(slot))
            if now.book.waiting and slot not in running and slot not in leaving and not worker.is_given_up:
                self._launch(now, worker)

    def _hand(self, now: Iteration, worker: Worker, leaves: bool) -> None:
        units = () if leaves else now.hand(worker)
        worker.last = leaves or (not units and now.book.is_handed_out)
        if units or worker.last:
            self._producers.hand(worker.index, units, worker.last)

    def _launch(self, now: Iteration, worker: Worker) -> None:
        request = dataclasses.replace(
            now.request,
            number=next(self._numbers),
            worker=worker.index,
            metrics=(),
            timeout=self._collect.timeout,
            retry_of=None,
        )
        worker.start(request)
        now.numbers.add(request.number)
        self._producers.start(worker.index, request, now.weights)
