"""A collection: a learner and its workers, iteration after iteration.

The learner's process is the attempt: its reports, its log, its outcome. It offers the weights that workers start with; then
units are handed out, results are fetched into the object store while there is room, and fed to the learner. Results lost in
transit are produced again; failed units are recorded, and too many of them fail the iteration. Each attempt at an iteration
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
from trialplane.wire.messages import LogGrown, TrialEnded, TrialUpdate
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
        self._current: Iteration | None = None
        self._newest: Iteration | None = None  # the iteration that runs or ran last, for the status

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return tuple(sorted({*self._learner.nodes, *self._workers.nodes}))

    @property
    def ready(self) -> int:
        """The number of slots with a warm template."""
        return self._learner.ready + self._workers.ready

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why."""
        return "; ".join(filter(None, (self._learner.trouble, self._workers.trouble)))

    @property
    def progress(self) -> CollectionProgress:
        """The progress of the iteration that runs or ran last."""
        return CollectionProgress() if self._newest is None else self._newest.progress(self._warm)

    @property
    def _unended(self) -> float:
        return super()._unended - (0.0 if self._current is None else self._current.done)

    def resize(self, parallel: int, unstarted: int) -> None:
        """Set the number of workers as desired. One that is removed first finishes its units."""
        if parallel == self._size:
            return
        log.info("resizing from %d to %d workers", self._size, parallel)
        self._size = parallel
        if self._learner.ready:
            self._resize_workers(parallel)
        if self._current is not None:
            self._advance(self._current)

    def running(self) -> dict[int, TrialRequest]:
        """The attempt at an iteration that runs."""
        return {} if self._current is None else {0: self._current.request}

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start an iteration: first its learner, and the workers once it has offered the weights."""
        self._current = self._newest = Iteration(request, self._job, self._stores.spilled())
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
            for moved_event in moved:  # first: a learner that has ended had read what was fed to it
                self._take_moved(moved_event)
            for event in of_learner:
                yield from self._of_learner(event)
            for event in of_workers:
                yield from self._of_worker(event)
            if failed is not None:
                raise failed
            if self._current is not None:
                self._advance(self._current)
            if not (of_learner or of_workers or moved):
                break
        if self._current is not None:
            self._current.note_spilled(self._stores.spilled)

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
        for pool, events in ((self._learner, of_learner), (self._workers, of_workers)):
            try:
                for event in pool.take(answered):
                    events.append(event)
            except errors.TrialplaneError as error:
                failed = failed or error
        return of_learner, of_workers, failed

    # Events of the learner

    def _of_learner(self, event: SlotEvent) -> Iterator[SlotEvent]:
        if isinstance(event, SlotReady):
            self._resize_workers(self._size)
            yield event
            return
        if event.outcome is None:
            self._learner.answer(event.slot)
        iteration = self._current_of(event.request)
        if iteration is None:
            return  # of a former attempt
        for report in event.reports:
            self._ledger.report(report)
        for message in event.messages:
            if isinstance(message, messages.WeightsOffered) and event.outcome is None:
                self._offered_weights(iteration, message.bytes)
            elif isinstance(message, messages.ResultsTaken):
                iteration.took(message.units)
        if event.outcome is not None:
            yield self._end_of(iteration, event, event.outcome)
        elif shown := tuple(message for message in event.messages if isinstance(message, TrialUpdate)):
            yield SlotTrial(event.slot, iteration.request, shown)

    def _offered_weights(self, iteration: Iteration, size: int) -> None:
        iteration.weights_bytes = size
        if size:
            self._exchange.fetch_weights()
        else:
            iteration.publish(None, self._stores.smallest())

    def _end_of(self, iteration: Iteration, event: SlotTrial, outcome: TrialOutcome) -> SlotTrial:
        """The iteration's end, which is its learner's unless too many units have failed."""
        iteration.note_spilled(self._stores.spilled, again=True)
        self._current = None
        iteration.close()
        self._end_workers("the iteration is over")
        if event.slot_lost:  # the next free pod is the learner's: no waiting worker may take it
            self._resize_workers(self._workers.ready)
        if iteration.failure is not None:
            outcome = dataclasses.replace(
                outcome,
                state=TrialState.FAILED,
                failure=iteration.failure.failure,
                message=iteration.failure.message,
                traceback=iteration.failure.traceback or outcome.traceback,
            )
        elif outcome.state is TrialState.COMPLETE and not iteration.book.is_done:
            early = f"the learner returned when {iteration.book.arrived} of {iteration.book.count} units had arrived"
            outcome = dataclasses.replace(outcome, message="; ".join(filter(None, (early, iteration.troubles()))))
        elif outcome.state is TrialState.COMPLETE:
            outcome = dataclasses.replace(outcome, message=iteration.troubles())
        outcome = dataclasses.replace(outcome, metrics={**outcome.metrics, **iteration.metrics(), **iteration.of_workers()})
        arrays = event.arrays if outcome.state is TrialState.COMPLETE else None
        shown = (message for message in event.messages if isinstance(message, TrialUpdate))
        return dataclasses.replace(event, request=iteration.request, messages=(*shown, TrialEnded(outcome)), arrays=arrays)

    # Events of workers

    def _of_worker(self, event: SlotEvent) -> Iterator[SlotTrial]:
        if isinstance(event, SlotReady):
            if event.slot in self._workers.slots:  # otherwise the pool has become smaller
                self._warm[event.slot] = event.node
            return
        if event.outcome is None:
            self._workers.answer(event.slot)
        iteration = self._current_of(event.request)
        for message in event.messages:
            if isinstance(message, LogGrown):
                yield SlotTrial(0, event.request, (message,))
            elif iteration is not None:
                self._take_message(iteration, iteration.workers[event.slot], message)
        if event.slot_lost:
            self._warm.pop(event.slot, None)
        if event.store is not None and not self._has_warned:
            self._has_warned = True
            log.warning("what workers log to MLflow themselves is lost while MLflow is away; log in the learner instead")

    def _take_message(self, iteration: Iteration, worker: WorkerSlot, message: messages.FromSlot) -> None:
        match message:
            case messages.UnitsWanted(count):
                worker.owed += count
            case messages.ResultsOffered(offers):
                refused = tuple(offer.unit for offer in offers if not iteration.offered(worker, offer))
                if refused:
                    self._exchange.release(worker.index, refused)
            case TrialEnded(outcome, begun):
                iteration.take_back(worker, begun)
                open_units = sorted(iteration.book.open(worker.index))
                self._log_end(iteration, worker, open_units, iteration.worker_ended(worker, outcome))

    def _log_end(self, iteration: Iteration, worker: WorkerSlot, open_units: list[int], outcome: TrialOutcome) -> None:
        """Log a worker's failure, with the units it had begun and the traceback, which otherwise only its own log has."""
        if outcome.failure in (None, FailureClass.STOPPED):
            return
        units = ", ".join(str(unit) for unit in open_units)
        log.warning(
            "iteration %d: worker %d%s: %s: %s; its log is %s%s",
            iteration.request.trial,
            worker.index,
            f" at unit{'s' if len(open_units) > 1 else ''} {units}" if open_units else "",
            outcome.failure,
            outcome.message,
            paths.trial_log(iteration.request.trial, iteration.request.attempt, worker.index),
            f"\n{outcome.traceback.rstrip()}" if outcome.traceback else "",
        )

    # Results and weights in transit

    def _take_moved(self, event: ExchangeEvent) -> None:
        iteration = self._current_of(event.request)
        if iteration is None:
            return
        match event:
            case WeightsFetched(_, weights, error):
                if weights is not None:
                    iteration.publish(weights, self._stores.smallest())
                elif error:  # otherwise the learner has ended, and its outcome follows
                    text = f"the weights could not be put into the object store: {error}"
                    self._fail(iteration, IterationFailure(FailureClass.LOST, text))
            case ResultsFetched(_, _, units, results, lost, error):
                iteration.fetched(units, results, lost, error)
            case ResultsFed(_, units, lost, error):
                iteration.fed(units, lost, error)

    def _current_of(self, request: TrialRequest) -> Iteration | None:
        """The iteration that runs, if the request belongs to the same attempt."""
        return self._current if self._current is not None and request.number == self._current.request.number else None

    def _fail(self, iteration: Iteration, failure: IterationFailure) -> None:
        iteration.failure = failure
        self.kill(0, failure.failure, failure.message)

    def _resize_workers(self, size: int) -> None:
        self._workers.resize(size)
        self._warm = {slot: node for slot, node in self._warm.items() if slot in self._workers.slots}

    def _wind_up(self, message: str) -> None:
        """Start nothing new in the iteration that runs."""
        self._end_workers(message)
        if self._current is not None:
            self._current.is_ending = True

    def _end_workers(self, message: str) -> None:
        for slot in self._workers.running():
            self._workers.kill(slot, FailureClass.STOPPED, message)

    def _end_late(self) -> None:
        """End workers of an iteration that is over; repeatedly, as one may just have been starting."""
        if time.monotonic() < self._end_at:
            return
        self._end_at = time.monotonic() + END_INTERVAL
        for slot, request in self._workers.running().items():
            iteration = self._current_of(request)
            if iteration is None or iteration.is_ending:
                self._workers.kill(slot, FailureClass.STOPPED, "the iteration is over")

    # Progress of the iteration

    def _advance(self, iteration: Iteration) -> None:
        """Start every step of the iteration that is possible now."""
        if not iteration.is_ending:
            failure = iteration.judge(self._warm.keys(), self._workers.slots - self._workers.leaving)
            if failure is not None:
                self._fail(iteration, failure)
        if iteration.failure is not None or not iteration.is_published:
            return
        if not iteration.is_ending:
            self._make(iteration)
        for load in iteration.flow.feeds():
            self._exchange.feed(load.transfers, load.reference)
        if iteration.book.is_done and not iteration.is_all_fed:
            iteration.is_all_fed = True
            self._exchange.end_feed(len(iteration.book.failed))

    def _make(self, iteration: Iteration) -> None:
        """Hand out units, fetch results and start workers as needed."""
        leaving = self._workers.leaving
        for worker in iteration.workers.values():
            if worker.request is not None and worker.owed and not worker.last:
                self._hand(iteration, worker, worker.index in leaving)
        for slot, units in iteration.flow.grants().items():
            self._exchange.fetch(slot, units)
        running = self._workers.running()
        for slot in self._warm:
            worker = iteration.workers.setdefault(slot, WorkerSlot(slot))
            if iteration.book.waiting and slot not in running and slot not in leaving and not worker.is_given_up:
                self._launch(iteration, worker)

    def _hand(self, iteration: Iteration, worker: WorkerSlot, leaves: bool) -> None:
        units = () if leaves else iteration.hand(worker)
        worker.last = leaves or (not units and iteration.book.is_handed_out)
        if units or worker.last:
            self._exchange.hand(worker.index, units, worker.last)

    def _launch(self, iteration: Iteration, worker: WorkerSlot) -> None:
        request = dataclasses.replace(
            iteration.request, worker=worker.index, metrics=(), timeout=self._job.collect.timeout, retry_of=None
        )
        worker.start(request)
        self._workers.start(worker.index, request, iteration.weights)
