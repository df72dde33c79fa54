"""A collection: a learner and its workers, iteration after iteration.

The learner's process is the attempt: its reports, its log, its outcome. It offers the weights that workers start with; then
units are handed out, results are fetched into the object store while there is room, and fed to the learner. Results lost in
transit are made again; failed units are recorded, and too many of them fail the iteration. Each attempt at an iteration
starts with new units, as its learner has read nothing yet.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trialplane import errors
from trialplane.controller import endings, ray_session
from trialplane.controller.endings import Ending
from trialplane.controller.exchange import Exchange, ExchangeEvent, ResultsFed, ResultsFetched, WeightsFetched
from trialplane.controller.iteration import Iteration, IterationFailure
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotEvent, SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.controller.workers import WorkerSlot
from trialplane.controller.workloads.workload import Workload
from trialplane.job.kinds import Collection, collection
from trialplane.wire import messages, paths
from trialplane.wire.messages import LogGrown, Shown, TrialEnded
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

log = logging.getLogger(__name__)

BURST = 64  # polls for events in a row, before the loop continues with other work
END_INTERVAL = 0.2  # seconds between checks for workers that should have ended


@dataclasses.dataclass(frozen=True)
class ObjectStores:
    """Measurements of the object stores that results pass through.

    Attributes:
        smallest: returns the size of the smallest one in bytes, 0 while unknown.
        spilled: returns the bytes that they have spilled to disk so far; None while no node answers.
    """

    smallest: Callable[[], int]
    spilled: Callable[[], int | None]


class CollectionWorkload(Workload):
    """The iterations of a collection.

    Args:
        ledger: of the run.
        learner: a pool of one slot.
        workers: a pool with a slot for each worker.
        exchange: between the two.
        stores: those that results pass through.
    """

    def __init__(
        self, ledger: Ledger, learner: SlotPool, workers: SlotPool, exchange: Exchange, stores: ObjectStores
    ) -> None:
        super().__init__(ledger, learner)
        assert isinstance(ledger.job, Collection)
        self._job = ledger.job
        self._learner = learner
        self._workers = workers
        self._size = workers.size
        self._exchange = exchange
        self._stores = stores
        self._warm: dict[int, str] = {}  # slot of a worker → node
        self._end_at = 0.0
        self._has_warned = False
        self._now: Iteration | None = None
        self._last: Iteration | None = None  # the iteration that runs or ran last, for the status

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return tuple(sorted({*self._learner.nodes, *self._workers.nodes}))

    @property
    def ready(self) -> int:
        """How many slots have a warm template."""
        return self._learner.ready + self._workers.ready

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why."""
        return "; ".join(filter(None, (self._learner.trouble, self._workers.trouble)))

    @property
    def progress(self) -> CollectionProgress:
        """The progress of the iteration that runs or ran last."""
        return CollectionProgress() if self._last is None else self._last.progress(self._warm)

    @property
    def _left(self) -> float:
        return super()._left - (0.0 if self._now is None else self._now.done)

    def resize(self, parallel: int, unstarted: int) -> None:
        """Set the number of workers as desired. One that is removed first finishes its units."""
        if parallel == self._size:
            return
        log.info("resizing from %d to %d workers", self._size, parallel)
        self._size = parallel
        if self._learner.ready:
            self._fit(parallel)
        if self._now is not None:
            self._advance(self._now)

    def running(self) -> dict[int, TrialRequest]:
        """The attempt at an iteration that runs."""
        return {} if self._now is None else {0: self._now.request}

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an iteration: first its learner, and the workers once it has offered the weights."""
        self._now = self._last = Iteration(request, self._job, self._stores.spilled())
        metrics = tuple(name for name in request.metrics if name not in collection.ADDED)  # those are added here
        self._learner.start(slot, dataclasses.replace(request, units=self._job.collect.units, metrics=metrics))

    def stop(self, slot: int, message: str) -> None:
        """Let the learner end within its grace period, with the results that are in the store; no more are made."""
        super().stop(slot, message)
        self._wind_up(message)

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """End the iteration; its outcome comes as an event."""
        super().kill(slot, failure, message)
        self._wind_up(message)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The iteration's events, waiting at most `timeout` seconds for the first. Raises as `Pool.events`."""
        self._end_late()
        for turn in range(BURST):
            pending = (*self._learner.pending, *self._workers.pending, *self._exchange.pending)
            answered = ray_session.wait(pending, 0 if turn else timeout)
            of_learner, of_workers, failed = self._take(answered)
            moved = list(self._exchange.take(answered))
            for one in moved:  # first: a learner that has ended had read what was fed to it
                self._moved(one)
            for event in of_learner:
                yield from self._of_learner(event)
            for event in of_workers:
                yield from self._of_worker(event)
            if failed is not None:
                raise failed
            if self._now is not None:
                self._advance(self._now)
            if not (of_learner or of_workers or moved):
                break
        if self._now is not None:
            self._now.note_spilled(self._stores.spilled)

    def failed(self) -> Ending | None:
        """The run's ending after an iteration failed for good, as the next one needs its weights."""
        if not self._ledger.counts.failed:
            return None
        row = next(row for row in self._ledger.newest.values() if row.failure is not None)
        tried = f" at attempt {row.attempt}" if row.attempt > 1 else ""
        text = f"iteration {row.trial} failed{tried} ({row.failure}): {row.message}"
        return Ending(RunState.FAILED, f"{text}; `platform resume {self._ledger.run}` retries it", kill=True)

    def finished(self) -> Ending:
        """A success if any iteration completed."""
        counts = self._ledger.counts
        if not counts.complete:
            text = f"none of {counts.ended} iterations completed ({endings.classes(counts)})"
            return Ending(RunState.FAILED, text, kill=False)
        return Ending(RunState.SUCCEEDED, f"all {errors.counted(counts.ended, 'iteration')} ended", kill=False)

    def close(self) -> None:
        """End all slots."""
        self._workers.close()
        self._learner.close()

    def _take(self, answered: Sequence[Any]) -> tuple[list[SlotEvent], list[SlotEvent], errors.TrialplaneError | None]:
        """Events of the learner's slot and of the workers', and the first error of a pool: the events before it count."""
        of_learner: list[SlotEvent] = []
        of_workers: list[SlotEvent] = []
        failed: errors.TrialplaneError | None = None
        for pool, taken in ((self._learner, of_learner), (self._workers, of_workers)):
            try:
                for event in pool.take(answered):
                    taken.append(event)
            except errors.TrialplaneError as error:
                failed = failed or error
        return of_learner, of_workers, failed

    # Events of the learner

    def _of_learner(self, event: SlotEvent) -> Iterator[SlotEvent]:
        if isinstance(event, SlotReady):
            self._fit(self._size)
            yield event
            return
        if event.outcome is None:
            self._learner.answer(event.slot)
        now = self._of(event.request)
        if now is None:
            return  # of a former attempt
        for report in event.reports:
            self._ledger.report(report)
        for message in event.messages:
            if isinstance(message, messages.WeightsOffered) and event.outcome is None:
                self._offered_weights(now, message.bytes)
            elif isinstance(message, messages.ResultsTaken):
                now.took(message.units)
        if event.outcome is not None:
            yield self._ended(now, event, event.outcome)
        elif shown := tuple(message for message in event.messages if isinstance(message, Shown)):
            yield SlotTrial(event.slot, now.request, shown)

    def _offered_weights(self, now: Iteration, size: int) -> None:
        now.weights_bytes = size
        if size:
            self._exchange.fetch_weights()
        else:
            now.publish(None, self._stores.smallest())

    def _ended(self, now: Iteration, event: SlotTrial, outcome: TrialOutcome) -> SlotTrial:
        """The iteration's end, which is its learner's unless too many units have failed."""
        now.note_spilled(self._stores.spilled, again=True)
        self._now = None
        now.close()
        self._end_workers("the iteration is over")
        if event.gone:  # the next free place is the learner's: no waiting worker may take it
            self._fit(self._workers.ready)
        if now.verdict is not None:
            outcome = dataclasses.replace(
                outcome,
                state=TrialState.FAILED,
                failure=now.verdict.failure,
                message=now.verdict.message,
                traceback=now.verdict.traceback or outcome.traceback,
            )
        elif outcome.state is TrialState.COMPLETE and not now.book.is_done:
            early = f"the learner returned when {now.book.arrived} of {now.book.count} units had arrived"
            outcome = dataclasses.replace(outcome, message="; ".join(filter(None, (early, now.troubles()))))
        elif outcome.state is TrialState.COMPLETE:
            outcome = dataclasses.replace(outcome, message=now.troubles())
        outcome = dataclasses.replace(outcome, metrics={**outcome.metrics, **now.metrics(), **now.of_workers()})
        arrays = event.arrays if outcome.state is TrialState.COMPLETE else None
        shown = (message for message in event.messages if isinstance(message, Shown))
        return dataclasses.replace(event, request=now.request, messages=(*shown, TrialEnded(outcome)), arrays=arrays)

    # Events of workers

    def _of_worker(self, event: SlotEvent) -> Iterator[SlotTrial]:
        if isinstance(event, SlotReady):
            if event.slot in self._workers.slots:  # otherwise the pool has become smaller
                self._warm[event.slot] = event.node
            return
        if event.outcome is None:
            self._workers.answer(event.slot)
        now = self._of(event.request)
        for message in event.messages:
            if isinstance(message, LogGrown):
                yield SlotTrial(0, event.request, (message,))
            elif now is not None:
                self._sent(now, now.workers[event.slot], message)
        if event.gone:
            self._warm.pop(event.slot, None)
        if event.store is not None and not self._has_warned:
            self._has_warned = True
            log.warning("what workers log to MLflow themselves is lost while MLflow is away; log in the learner instead")

    def _sent(self, now: Iteration, worker: WorkerSlot, message: messages.FromSlot) -> None:
        match message:
            case messages.UnitsWanted(count):
                worker.owed += count
            case messages.ResultsOffered(offers):
                refused = tuple(offer.unit for offer in offers if not now.offered(worker, offer))
                if refused:
                    self._exchange.release(worker.index, refused)
            case TrialEnded(outcome, begun):
                now.take_back(worker, begun)
                had = sorted(now.book.open(worker.index))
                self._log_end(now, worker, had, now.worker_ended(worker, outcome))

    def _log_end(self, now: Iteration, worker: WorkerSlot, had: list[int], outcome: TrialOutcome) -> None:
        """Log a worker's failure, with the units it had begun and the traceback, which otherwise only its own log has."""
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

    # Results and weights in transit

    def _moved(self, event: ExchangeEvent) -> None:
        now = self._of(event.request)
        if now is None:
            return
        match event:
            case WeightsFetched(_, weights, why):
                if weights is not None:
                    now.publish(weights, self._stores.smallest())
                elif why:  # otherwise the learner has ended, and its outcome follows
                    text = f"the weights could not be put into the object store: {why}"
                    self._fail(now, IterationFailure(FailureClass.LOST, text))
            case ResultsFetched(_, _, units, results, gone, why):
                now.fetched(units, results, gone, why)
            case ResultsFed(_, units, lost, why):
                now.fed(units, lost, why)

    def _of(self, request: TrialRequest) -> Iteration | None:
        """The iteration that runs, if the request belongs to the same attempt."""
        return self._now if self._now is not None and request.number == self._now.request.number else None

    def _fail(self, now: Iteration, verdict: IterationFailure) -> None:
        now.verdict = verdict
        self.kill(0, verdict.failure, verdict.message)

    def _fit(self, size: int) -> None:
        self._workers.resize(size)
        self._warm = {slot: node for slot, node in self._warm.items() if slot in self._workers.slots}

    def _wind_up(self, message: str) -> None:
        """Start nothing new in the iteration that runs."""
        self._end_workers(message)
        if self._now is not None:
            self._now.is_ending = True

    def _end_workers(self, message: str) -> None:
        for slot in self._workers.running():
            self._workers.kill(slot, FailureClass.STOPPED, message)

    def _end_late(self) -> None:
        """End workers of an iteration that is over; repeatedly, as one may just have been starting."""
        if time.monotonic() < self._end_at:
            return
        self._end_at = time.monotonic() + END_INTERVAL
        for slot, request in self._workers.running().items():
            now = self._of(request)
            if now is None or now.is_ending:
                self._workers.kill(slot, FailureClass.STOPPED, "the iteration is over")

    # Progress of the iteration

    def _advance(self, now: Iteration) -> None:
        """Start every step of the iteration that is possible now."""
        if not now.is_ending:
            verdict = now.judge(self._warm.keys(), self._workers.slots - self._workers.leaving)
            if verdict is not None:
                self._fail(now, verdict)
        if now.verdict is not None or not now.is_published:
            return
        if not now.is_ending:
            self._make(now)
        for load in now.flow.feeds():
            self._exchange.feed(load.parcels, load.reference)
        if now.book.is_done and not now.is_all_fed:
            now.is_all_fed = True
            self._exchange.end_feed(len(now.book.failed))

    def _make(self, now: Iteration) -> None:
        """Hand out units, fetch results and start workers as needed."""
        leaving = self._workers.leaving
        for worker in now.workers.values():
            if worker.request is not None and worker.owed and not worker.last:
                self._hand(now, worker, worker.index in leaving)
        for slot, units in now.flow.grants().items():
            self._exchange.fetch(slot, units)
        running = self._workers.running()
        for slot in self._warm:
            worker = now.workers.setdefault(slot, WorkerSlot(slot))
            if now.book.waiting and slot not in running and slot not in leaving and not worker.is_given_up:
                self._launch(now, worker)

    def _hand(self, now: Iteration, worker: WorkerSlot, leaves: bool) -> None:
        units = () if leaves else now.hand(worker)
        worker.last = leaves or (not units and now.book.is_handed_out)
        if units or worker.last:
            self._exchange.hand(worker.index, units, worker.last)

    def _launch(self, now: Iteration, worker: WorkerSlot) -> None:
        request = dataclasses.replace(
            now.request, worker=worker.index, metrics=(), timeout=self._job.collect.timeout, retry_of=None
        )
        worker.start(request)
        self._workers.start(worker.index, request, now.weights)
