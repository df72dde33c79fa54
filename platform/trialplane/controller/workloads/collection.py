"""A collection: a learner and its workers, iteration after iteration.

The learner's process is the attempt at an iteration: its reports, its log and its outcome are those of the attempt. The
learner offers the weights that workers start with. Then units are assigned to workers. Their results are fetched into the
object store while there is room, and fed to the learner. A unit whose result is lost in transit is done again. Too many
failed units fail the iteration. Each attempt starts with all units, because a new learner has read no result.

`iteration` records what happens and decides, `exchange` moves the data, and this module connects both with the slots.
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

BURST = 64  # largest number of times that events are polled in a row, before the loop does other work
END_INTERVAL = 0.2  # seconds between checks for workers that should have ended
_LEARNER_SLOT = 0  # the only slot in the learner's pool


@dataclasses.dataclass(frozen=True)
class ObjectStores:
    """Measurements of the object stores that results pass through.

    Attributes:
        smallest_bytes: Returns the size of the smallest store in bytes; 0 while unknown.
        spilled_bytes: Returns the bytes that all stores have spilled to disk so far; None while no node answers.
    """

    smallest_bytes: Callable[[], int]
    spilled_bytes: Callable[[], int | None]


class CollectionWorkload(Workload):
    """The iterations of a collection.

    Args:
        ledger: Ledger of the run.
        learner: Pool of one slot, in which the learner runs.
        workers: Pool with a slot for each worker.
        exchange: Exchange of weights, units and results between the two pools.
        stores: Object stores that results pass through.
    """

    def __init__(
        self, ledger: Ledger, learner: SlotPool, workers: SlotPool, exchange: Exchange, stores: ObjectStores
    ) -> None:
        super().__init__(ledger, learner)
        assert isinstance(ledger.job, Collection)
        self._job = ledger.job
        self._learner = learner
        self._workers = workers
        self._size = workers.size  # desired number of workers
        ledger.record_workers(workers.size)
        self._exchange = exchange
        self._stores = stores
        self._warm_nodes: dict[int, str] = {}  # slot of a worker whose template is warm → node
        self._next_end_check = 0.0  # by the monotonic clock
        self._has_warned_of_stores = False  # whether the warning about lost MLflow stores of workers was logged
        self._iteration: Iteration | None = None  # the iteration that runs now
        self._newest_iteration: Iteration | None = None  # the iteration that runs or ran last

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
        """A message on each pool with a slot that does not start; "" if all start."""
        return "; ".join(filter(None, (self._learner.trouble, self._workers.trouble)))

    @property
    def progress(self) -> CollectionProgress:
        """The progress of the iteration that runs or ran last."""
        return CollectionProgress() if self._newest_iteration is None else self._newest_iteration.progress(self._warm_nodes)

    @property
    def _unended(self) -> float:
        """The number of iterations that have not ended; the one that runs counts as the fraction that is left of it."""
        return super()._unended - (0.0 if self._iteration is None else self._iteration.share_done)

    def resize(self, parallel: int, startable: int) -> None:
        """Set the number of workers to the desired one. A worker that is removed first finishes its units.

        Args:
            parallel: Desired number of workers.
            startable: Ignored: an iteration needs all workers.
        """
        if parallel == self._size:
            return
        log.info("resizing from %d to %d workers", self._size, parallel)
        self._size = parallel
        self._ledger.record_workers(parallel)
        if self._learner.ready:
            self._resize_workers(parallel)
        if self._iteration is not None:
            self._advance(self._iteration)

    def running(self) -> dict[int, TrialRequest]:
        """Return the attempt at an iteration that runs, by the learner's slot; empty if none runs."""
        return {} if self._iteration is None else {_LEARNER_SLOT: self._iteration.request}

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start the learner of an iteration; its workers start after the learner has offered the weights."""
        self._iteration = self._newest_iteration = Iteration(request, self._job, self._stores.spilled_bytes())
        # The learner need not report the metrics that the platform adds at the end.
        metrics = tuple(name for name in request.metrics if name not in collection.ADDED)
        self._learner.start(slot, dataclasses.replace(request, units=self._job.collect.units, metrics=metrics))

    def stop(self, slot: int, message: str) -> None:
        """Let the learner end within its grace period; end the workers, so that no more results are produced."""
        super().stop(slot, message)
        self._wind_up(message)

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the learner, see `Pool.kill`, and end the workers."""
        super().kill(slot, failure, message)
        self._wind_up(message)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """Yield the iteration's events, waiting at most `timeout` seconds for the first.

        As long as there are further events, they are taken without waiting, up to `BURST` times.

        Raises:
            EntrypointError, SlotError: As `Pool.events`.
        """
        self._end_late_workers()
        for turn in range(BURST):
            pending = (*self._learner.pending, *self._workers.pending, *self._exchange.pending)
            answered = ray_session.wait(pending, timeout=0 if turn else timeout)
            learner_events, worker_events, error = self._take_slot_events(answered)
            exchange_events = list(self._exchange.take_events(answered))
            # These come before the learner's events, which may end the iteration: after that, results that were fed to the
            # learner would not be counted.
            for exchange_event in exchange_events:
                self._take_exchange_event(exchange_event)
            for event in learner_events:
                yield from self._take_learner_event(event)
            for event in worker_events:
                yield from self._take_worker_event(event)
            if error is not None:
                raise error
            if self._iteration is not None:
                self._advance(self._iteration)
            if not (learner_events or worker_events or exchange_events):
                break
        if self._iteration is not None:
            self._iteration.check_spilling(self._stores.spilled_bytes)

    def failure_ending(self) -> Ending | None:
        """Return the run's ending if an iteration failed for good, as the next one needs its weights; otherwise None."""
        if not self._ledger.counts.failed:
            return None
        row = next(row for row in self._ledger.newest.values() if row.failure is not None)
        attempt = f" at attempt {row.attempt}" if row.attempt > 1 else ""
        text = f"iteration {row.trial} failed{attempt} ({row.failure}): {row.message}"
        return Ending(RunState.FAILED, f"{text}; `platform resume {self._ledger.run}` retries it", kill=True)

    def final_ending(self) -> Ending:
        """Return the run's ending after every iteration has ended: a success if any iteration is complete."""
        counts = self._ledger.counts
        if not counts.complete:
            text = f"none of {counts.ended} iterations completed ({endings.failure_classes(counts)})"
            return Ending(RunState.FAILED, text, kill=False)
        return Ending(RunState.SUCCEEDED, f"all {errors.counted(counts.ended, 'iteration')} ended", kill=False)

    def close(self) -> None:
        """End all slots."""
        self._workers.close()
        self._learner.close()

    def _take_slot_events(
        self, answered: Sequence[Any]
    ) -> tuple[list[SlotEvent], list[SlotEvent], errors.TrialplaneError | None]:
        """Return the events of the learner's slot, the events of the workers' slots, and the first error of a pool or None.

        The error is returned instead of raised, because the events before it must be handled first.
        """
        learner_events: list[SlotEvent] = []
        worker_events: list[SlotEvent] = []
        first_error: errors.TrialplaneError | None = None
        for pool, events in ((self._learner, learner_events), (self._workers, worker_events)):
            try:
                for event in pool.take(answered):
                    events.append(event)
            except errors.TrialplaneError as error:
                first_error = first_error or error
        return learner_events, worker_events, first_error

    # Events of the learner

    def _take_learner_event(self, event: SlotEvent) -> Iterator[SlotEvent]:
        """Act on an event of the learner's slot, and yield it with only those of its messages that concern the loop."""
        if isinstance(event, SlotReady):
            self._resize_workers(self._size)  # workers may have made room for the learner's pod, see `_end_iteration`
            yield event
            return
        if event.outcome is None:  # the process goes on, and waits for an answer
            self._learner.answer(event.slot)
        iteration = self._iteration_of(event.request)
        if iteration is None:  # the event is that of an earlier attempt
            return
        for report in event.reports:
            self._ledger.report(report)
        for message in event.messages:
            if isinstance(message, messages.WeightsOffered) and event.outcome is None:
                self._take_offered_weights(iteration, message.bytes)
            elif isinstance(message, messages.ResultsTaken):
                iteration.record_taken(message.units)
        if event.outcome is not None:
            yield self._end_iteration(iteration, event, event.outcome)
            return
        updates = tuple(message for message in event.messages if isinstance(message, TrialUpdate))
        if updates:
            yield SlotTrial(event.slot, iteration.request, messages=updates)

    def _take_offered_weights(self, iteration: Iteration, size: int) -> None:
        """Fetch the weights that the learner has offered; if it has none, let workers start without them."""
        iteration.weights_bytes = size
        if size:
            self._exchange.fetch_weights()
        else:
            iteration.publish(weights=None, store_bytes=self._stores.smallest_bytes())

    def _end_iteration(self, iteration: Iteration, event: SlotTrial, learner_outcome: TrialOutcome) -> SlotTrial:
        """End the iteration whose learner has ended, and its workers; return the event of the iteration's end."""
        iteration.check_spilling(self._stores.spilled_bytes, at_once=True)  # otherwise only at intervals
        self._iteration = None
        iteration.close()
        self._end_workers("the iteration is over")
        if event.slot_lost:
            # The learner needs another pod. Slots of workers that wait for a pod are removed, so that it gets the next one.
            # They come back when the learner's slot is ready.
            self._resize_workers(self._workers.ready)
        outcome = iteration.outcome(learner_outcome)
        arrays = event.arrays if outcome.state is TrialState.COMPLETE else None
        updates = (message for message in event.messages if isinstance(message, TrialUpdate))
        return dataclasses.replace(event, request=iteration.request, messages=(*updates, TrialEnded(outcome)), arrays=arrays)

    # Events of workers

    def _take_worker_event(self, event: SlotEvent) -> Iterator[SlotTrial]:
        """Act on an event of a worker's slot, and yield the lines of its log."""
        if isinstance(event, SlotReady):
            if event.slot in self._workers.slots:  # the slot may have been removed since
                self._warm_nodes[event.slot] = event.node
            return
        if event.outcome is None:
            self._workers.answer(event.slot)
        iteration = self._iteration_of(event.request)
        for message in event.messages:
            if isinstance(message, LogGrown):
                yield SlotTrial(_LEARNER_SLOT, event.request, messages=(message,))  # the only slot that the loop knows
            elif iteration is not None:
                self._take_worker_message(iteration, iteration.workers[event.slot], message)
        if event.slot_lost:
            self._warm_nodes.pop(event.slot, None)
        if event.store is not None and not self._has_warned_of_stores:
            self._has_warned_of_stores = True
            log.warning("what workers log to MLflow themselves is lost while MLflow is away; log in the learner instead")

    def _take_worker_message(self, iteration: Iteration, worker: WorkerSlot, message: messages.FromSlot) -> None:
        """Act on a message of a worker's process about its units, their results, or its end. Others are ignored."""
        match message:
            case messages.UnitsWanted(count):
                worker.requested += count
            case messages.ResultsOffered(offers):
                refused_units = tuple(offer.unit for offer in offers if not iteration.record_offer(worker, offer))
                if refused_units:
                    self._exchange.release(worker.index, refused_units)
            case TrialEnded(outcome, begun):
                iteration.put_back_unbegun(worker, begun)
                # After this call the worker has only units that it may have been at work on, and `end_worker` takes them.
                unfinished = sorted(iteration.units.assigned_to(worker.index))
                worker_outcome = iteration.end_worker(worker, outcome)
                self._log_end(iteration, worker, unfinished, worker_outcome)

    def _log_end(self, iteration: Iteration, worker: WorkerSlot, unfinished: list[int], outcome: TrialOutcome) -> None:
        """Log a worker's failure with the units that it has not finished, and the traceback, which only its own log has."""
        if outcome.failure in (None, FailureClass.STOPPED):
            return
        units = ", ".join(str(unit) for unit in unfinished)
        log.warning(
            "iteration %d: worker %d%s: %s: %s; its log is %s%s",
            iteration.request.trial,
            worker.index,
            f" at unit{'s' if len(unfinished) > 1 else ''} {units}" if unfinished else "",
            outcome.failure,
            outcome.message,
            paths.trial_log(iteration.request.trial, iteration.request.attempt, worker.index),
            f"\n{outcome.traceback.rstrip()}" if outcome.traceback else "",
        )

    # Results and weights in transit

    def _take_exchange_event(self, event: ExchangeEvent) -> None:
        """Record that weights or results were moved or lost."""
        iteration = self._iteration_of(event.request)
        if iteration is None:
            return
        match event:
            case WeightsFetched(_, weights, error):
                if weights is not None:
                    iteration.publish(weights, store_bytes=self._stores.smallest_bytes())
                elif error:  # without an error the learner was lost, and its outcome follows
                    text = f"the weights could not be put into the object store: {error}"
                    self._fail(iteration, IterationFailure(FailureClass.LOST, text))
            case ResultsFetched(_, _, units, results, lost, error):
                iteration.record_fetched(units, reference=results, lost=lost, error=error)
            case ResultsFed(_, units, lost, error):
                iteration.record_fed(units, lost=lost, error=error)

    def _iteration_of(self, request: TrialRequest) -> Iteration | None:
        """Return the iteration that runs; None if none runs, or if the request belongs to an earlier attempt."""
        if self._iteration is None or request.number != self._iteration.request.number:
            return None
        return self._iteration

    def _fail(self, iteration: Iteration, failure: IterationFailure) -> None:
        """Record why an iteration has failed, and kill its learner. The end of the learner then ends the iteration."""
        iteration.failure = failure
        self.kill(_LEARNER_SLOT, failure.failure_class, failure.message)

    def _resize_workers(self, size: int) -> None:
        """Set the number of workers, and remove the nodes of slots that no longer exist from `_warm_nodes`."""
        self._workers.resize(size)
        self._warm_nodes = {slot: node for slot, node in self._warm_nodes.items() if slot in self._workers.slots}

    def _wind_up(self, message: str) -> None:
        """End the workers, and let the iteration that runs start nothing new."""
        self._end_workers(message)
        if self._iteration is not None:
            self._iteration.is_ending = True

    def _end_workers(self, message: str) -> None:
        """End the processes of all workers."""
        for slot in self._workers.running():
            self._workers.kill(slot, FailureClass.STOPPED, message)

    def _end_late_workers(self) -> None:
        """End workers of an iteration that is over or is being ended.

        This is repeated, because a process that is just starting ignores the message that ends it.
        """
        if time.monotonic() < self._next_end_check:
            return
        self._next_end_check = time.monotonic() + END_INTERVAL
        for slot, request in self._workers.running().items():
            iteration = self._iteration_of(request)
            if iteration is None or iteration.is_ending:
                self._workers.kill(slot, FailureClass.STOPPED, "the iteration is over")

    # Progress of the iteration

    def _advance(self, iteration: Iteration) -> None:
        """Start every step of the iteration that is possible now.

        While the iteration is ending, nothing new is produced, but stored results are still fed to the learner.
        """
        if not iteration.is_ending:
            remaining_slots = self._workers.slots - self._workers.leaving
            failure = iteration.find_failure(warm=self._warm_nodes.keys(), expected=remaining_slots)
            if failure is not None:
                self._fail(iteration, failure)
        if iteration.failure is not None or not iteration.is_published:
            return
        if not iteration.is_ending:
            self._produce_results(iteration)
        for load in iteration.flow.take_loads():  # results that are one object in the object store
            self._exchange.feed(load.transfers, load.reference)
        if iteration.units.is_done and not iteration.is_all_fed:
            iteration.is_all_fed = True
            self._exchange.end_feed(len(iteration.units.failed))

    def _produce_results(self, iteration: Iteration) -> None:
        """Assign units, fetch results and start workers as needed."""
        leaving = self._workers.leaving
        for worker in iteration.workers.values():
            if worker.request is not None and worker.requested and not worker.is_at_end:
                self._assign_units(iteration, worker, worker.index in leaving)
        for slot, units in iteration.flow.grant_fetches().items():
            self._exchange.fetch(slot, units)
        running = self._workers.running()
        for slot in self._warm_nodes:
            worker = iteration.workers.setdefault(slot, WorkerSlot(slot))
            is_free = slot not in running and slot not in leaving and not worker.is_given_up
            if is_free and iteration.units.waiting:
                self._start_worker(iteration, worker)

    def _assign_units(self, iteration: Iteration, worker: WorkerSlot, is_leaving: bool) -> None:
        """Send units to a worker, or tell it that no more units follow.

        No more follow if the worker's slot is being removed, or if every unit has ended or is in transit. If there are no
        units now but may be later, nothing is sent.
        """
        units = () if is_leaving else iteration.assign_units(worker)
        worker.is_at_end = is_leaving or (not units and iteration.units.is_all_assigned)
        if units or worker.is_at_end:
            self._exchange.send_units(worker.index, units, worker.is_at_end)

    def _start_worker(self, iteration: Iteration, worker: WorkerSlot) -> None:
        """Start a worker's process with the weights of the iteration. Its request is that of the learner, with changes.

        A worker returns no metrics, because only the learner's outcome is the attempt's. For the same reason the process is
        not a retry of any attempt.
        """
        request = dataclasses.replace(
            iteration.request, worker=worker.index, metrics=(), timeout=self._job.collect.timeout, retry_of=None
        )
        worker.record_start(request)
        self._workers.start(worker.index, request, iteration.weights)
