"""One attempt at an iteration of a collection: its units, its results in flight, its workers, and their metrics.

In an iteration, workers produce the results of a number of units of work, such as games, and one learner reads them. The
results pass through the object stores of Ray.

This module records events and decides what follows from them. `workloads.collection` then sends the messages to the slots
and moves the data.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from trialplane import errors
from trialplane.controller.flow import Flow
from trialplane.controller.units import FailedUnit, Units
from trialplane.controller.workers import WorkerSlot
from trialplane.job.kinds import Collection
from trialplane.wire import paths
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Offer, Transfer, Unit, WorkerStatus

log = logging.getLogger(__name__)

STORE_SHARE = 0.7  # share of an object store that results may fill; Ray spills to disk from 0.8 on
PATIENCE = 600.0  # seconds to wait for another worker after every ready one has been given up
MOST_NAMED = 10  # failed units listed in one message
SPILL_INTERVAL = 5.0  # seconds between checks of what the object stores have spilled


@dataclasses.dataclass(frozen=True)
class IterationFailure:
    """The reason why an iteration fails, whatever its learner's outcome. `traceback` is of the job's exception, or ""."""

    failure_class: FailureClass
    message: str
    traceback: str = ""


class Iteration:
    """The state of an attempt at an iteration.

    Args:
        request: Request of the learner's attempt.
        job: The collection.
        spilled: Bytes that the object stores had spilled to disk when the iteration started; None if unknown.

    Attributes:
        collect: Settings of the collection.
        units: State of the iteration's units.
        flow: Results on their way from the workers to the learner.
        workers: Workers by slot.
        weights: Reference to the weights that workers start with, in the object store; None if the learner has none.
        weights_bytes: Size of the packed weights.
        is_published: Whether the learner has offered its weights, so that workers may start.
        is_all_fed: Whether the learner was told that no more results follow.
        failure: Failure of the iteration itself; None if its outcome is the learner's.
        is_ending: Whether the iteration is being ended, so that nothing new is started.
    """

    def __init__(self, request: TrialRequest, job: Collection, spilled: int | None) -> None:
        self.request = request
        self.collect = job.collect
        first_unit = request.trial * job.collect.units  # the units of all iterations are numbered in one sequence
        self.units = Units(first_unit, count=job.collect.units, seed=job.seed, retries=job.retries)
        self.flow = Flow(job.collect.in_flight_bytes)
        self.workers: dict[int, WorkerSlot] = {}
        self.weights: Any = None
        self.weights_bytes = 0
        self.is_published = False
        self.is_all_fed = False
        self.failure: IterationFailure | None = None
        self.is_ending = False
        self._items = 0  # in the results that have arrived
        self._bytes = 0  # of the results that have arrived
        self._reused = 0  # number of units whose results the learner has kept from an earlier attempt
        self._spilled_at_start = spilled
        self._spilled = 0  # bytes that were spilled since the start
        # Times by the monotonic clock; None before the event
        self._stuck_since: float | None = None  # since when every ready worker has been given up
        self._start_time: float | None = None  # when the first unit was assigned
        self._last_arrival: float | None = None  # when the newest result arrived
        self._next_spill_check = 0.0

    def publish(self, weights: Any, store_bytes: int) -> None:
        """Let workers start, and set the limit of bytes in flight so that the object stores have room for them.

        Args:
            weights: Reference to the weights in the object store; None if the learner has none.
            store_bytes: Size of the smallest object store; 0 if unknown.
        """
        self.weights, self.is_published = weights, True
        desired_limit = self.collect.in_flight_bytes
        if store_bytes:
            room = int(STORE_SHARE * store_bytes) - self.weights_bytes
            self.flow.limit = min(desired_limit, max(1, room))
        if self.flow.limit < desired_limit:
            log.warning(
                "iteration %d: only %d MB may be in flight, not collect.in_flight's %d MB: the smallest object store has "
                "%d MB, which also hold the weights; raise resources.shm to make it larger",
                self.request.trial,
                self.flow.limit >> 20,
                desired_limit >> 20,
                store_bytes >> 20,
            )

    def assign_units(self, worker: WorkerSlot) -> tuple[Unit, ...]:
        """Assign units to a worker, at most as many as it has requested and not received, and return them."""
        units = self.units.assign(worker.index, worker.requested)
        if units:
            now = time.monotonic()
            self._start_time = self._start_time or now
            worker.start_time = worker.start_time or now
            worker.requested -= len(units)
            worker.received += len(units)
        return units

    def record_offer(self, worker: WorkerSlot, offer: Offer) -> bool:
        """Record a result that a worker offers; return whether it will be fetched.

        It will not if its unit was not assigned to the worker. If it is too large to be fetched, its unit fails.
        """
        if not self.units.record_offer(worker.index, offer.unit):
            log.warning("worker %d offered a result of unit %d, which was not assigned to it", worker.index, offer.unit)
            return False
        if offer.bytes > self.flow.limit:
            message = self._too_large_message(offer)
            self.units.refuse_result(offer.unit, FailureClass.INVALID, message)
            worker.failed += 1
            log.warning("iteration %d: worker %d: %s", self.request.trial, worker.index, message)
            return False
        self.flow.add_offer(Transfer(unit=offer.unit, worker=worker.index, bytes=offer.bytes, items=offer.items))
        return True

    def record_fetched(self, units: tuple[int, ...], reference: Any, lost: tuple[int, ...], error: str) -> None:
        """Record the end of a fetch, which moves results from a worker into the object store.

        For the arguments see `exchange.ResultsFetched`.
        """
        if units:
            self.flow.record_stored(units, reference)
        for unit in lost:
            self._lose_result(unit, error or "its worker has ended")

    def record_fed(self, units: tuple[int, ...], lost: bool, error: str) -> None:
        """Record that results were fed to the learner, or were lost. For the arguments see `exchange.ResultsFed`."""
        for unit in units:
            if lost:
                self._lose_result(unit, error or "the object store has lost it")
            elif (transfer := self.flow.fed_transfer(unit)) is not None and self.units.record_arrival(unit):
                self._count_arrival(transfer)

    def record_taken(self, units: Iterable[int]) -> None:
        """Record that the learner has read the results of these units, or has kept them from an earlier attempt."""
        for unit in units:
            transfer = self.flow.record_taken(unit)
            if transfer is None:  # it was not fed in this attempt, so the learner has kept it
                if self.units.record_reuse(unit):
                    self._reused += 1
            elif self.units.record_arrival(unit):  # the event that it was fed has not come yet
                self._count_arrival(transfer)

    def put_back_unbegun(self, worker: WorkerSlot, begun: tuple[int, ...] | None) -> None:
        """Let the units that an ended worker had not begun wait again, as if they had never been assigned.

        If `begun` is None, it is unknown which ones it had begun: maybe all of them, so none waits again.
        """
        if begun is not None:
            unbegun = self.units.assigned_to(worker.index) - set(begun)
            self.units.put_back(worker.index, unbegun)
            worker.received -= len(unbegun)

    def end_worker(self, worker: WorkerSlot, outcome: TrialOutcome) -> TrialOutcome:
        """Record the end of a worker's process: its units are retried or have failed.

        Returns:
            The outcome, changed to a failure if the process returned too early without taking a unit.
        """
        # A process that failed while it worked on units may have failed because of them. So these units use up retries, and
        # the units whose results it had offered do not. If it worked on none, the offered results may be the cause.
        uses_retry = not self.units.assigned_to(worker.index)  # of the units whose results it had offered
        for unit in self.flow.withdraw(worker.index):
            reason = f"its worker ended before it was fetched: {outcome.message}"
            self._retry_lost_result(unit, worker.index, reason, uses_retry=uses_retry)
        if self.units.end_worker(worker.index, outcome) is not None:  # a unit has failed for good
            worker.failed += 1
        if outcome.state is TrialState.COMPLETE and not worker.is_at_end and not worker.received:
            message = "play(ctx) returned before the iteration was complete, without taking a unit"
            outcome = dataclasses.replace(outcome, state=TrialState.FAILED, failure=FailureClass.INVALID, message=message)
        worker.end(None if outcome.failure in (None, FailureClass.STOPPED) else outcome)
        return outcome

    def find_failure(self, warm: Set[int], expected: Set[int]) -> IterationFailure | None:
        """Return the reason why the iteration has failed: too many failed units, or no worker; None if it has not.

        Args:
            warm: Workers whose slots are ready.
            expected: Workers whose slots are ready or are starting.
        """
        failed = self.units.failed
        if len(failed) > self.collect.most_failed:
            first = next(iter(failed.values()))
            count = f"{errors.counted(len(failed), 'unit')} of {self.collect.units} failed"
            text = f"{self._describe_failure(first)}; {count}, more than collect.max_failed = {self.collect.most_failed}"
            return IterationFailure(first.failure, message=text, traceback=first.traceback)
        return self._find_lack_of_workers(warm, expected)

    def _find_lack_of_workers(self, warm: Set[int], expected: Set[int]) -> IterationFailure | None:
        """Return the failure of an iteration whose units wait, but every worker has been given up; otherwise None.

        While other workers are starting, the iteration waits for one of them, for at most `PATIENCE` seconds. For the
        arguments see `find_failure`.
        """
        given_up = {slot for slot, worker in self.workers.items() if worker.is_given_up}
        usable = warm - given_up
        is_stuck = bool(given_up) and not usable and self.units.waiting > 0
        if not is_stuck:
            self._stuck_since = None
            return None
        now = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = now
        starting = expected - given_up
        if starting and now < self._stuck_since + PATIENCE:  # one of them may still become ready
            return None
        worker = self.workers[min(given_up)]
        assert worker.failed_outcome is not None
        assert worker.failed_outcome.failure is not None
        text = f"worker {worker.index}: {worker.failed_outcome.message}; {self._log_hint(worker.index)}"
        message = f"{text}; no worker is left that can start a unit"
        return IterationFailure(worker.failed_outcome.failure, message, traceback=worker.failed_outcome.traceback)

    def close(self) -> None:
        """End the iteration and release its objects in the object store."""
        self.weights = None
        self.flow = Flow(0)  # a new one refers to no results, so the object store can free them
        for worker in self.workers.values():
            worker.close()

    def check_spilling(self, measure: Callable[[], int | None], *, at_once: bool = False) -> None:
        """Check whether the object stores have spilled results to disk; log a warning the first time.

        Args:
            measure: Function that returns the bytes that the stores have spilled so far; None while unknown.
            at_once: Whether to check even if the last check was less than `SPILL_INTERVAL` seconds ago.
        """
        if not at_once and time.monotonic() < self._next_spill_check:
            return
        self._next_spill_check = time.monotonic() + SPILL_INTERVAL
        total = measure()
        if total is None:
            return
        if self._spilled_at_start is None or total < self._spilled_at_start:  # smaller if a node has left the cluster
            self._spilled_at_start = total
        had_spilled = self._spilled > 0
        self._spilled = max(self._spilled, total - self._spilled_at_start)
        if self._spilled and not had_spilled:
            log.warning(
                "iteration %d: the object store is full and spills results to disk (%.1f MB), which is slow; make it "
                "larger (resources.shm), or set collect.in_flight lower",
                self.request.trial,
                self._spilled / 1e6,
            )

    # Metrics and messages

    @property
    def share_done(self) -> float:
        """The share of the units that have arrived or failed, 0 to 1."""
        return (self.units.arrived + len(self.units.failed)) / self.units.count

    def outcome(self, learner_outcome: TrialOutcome) -> TrialOutcome:
        """Return the outcome of the iteration: that of its learner, unless the iteration itself has failed.

        The platform's metrics of the iteration and its workers are added. The message of a success names failed units.
        """
        outcome = learner_outcome
        if self.failure is not None:
            outcome = dataclasses.replace(
                outcome,
                state=TrialState.FAILED,
                failure=self.failure.failure_class,
                message=self.failure.message,
                traceback=self.failure.traceback or outcome.traceback,
            )
        elif outcome.state is TrialState.COMPLETE:
            messages: list[str] = []
            if not self.units.is_done:
                messages.append(f"the learner returned when {self.units.arrived} of {self.units.count} units had arrived")
            if self.units.failed:
                messages.append(self._failed_units_message())
            outcome = dataclasses.replace(outcome, message="; ".join(messages))
        return dataclasses.replace(outcome, metrics={**outcome.metrics, **self.metrics(), **self.worker_metrics()})

    def metrics(self) -> dict[str, float]:
        """Return the metrics that the platform adds to the iteration's outcome."""
        seconds = self._seconds()
        computed = self.units.arrived - self._reused  # in this attempt, as `seconds` is the time of this attempt
        return {
            "units": float(self.units.arrived),
            "units_failed": float(len(self.units.failed)),
            "items": float(self._items),
            "gigabytes": self._bytes / 1e9,
            "units_per_second": computed / seconds if seconds else 0.0,
            "items_per_second": self._items / seconds if seconds else 0.0,
        }

    def worker_metrics(self) -> dict[str, float]:
        """Return the metrics of each worker that has completed or failed a unit."""
        metrics: dict[str, float] = {}
        for status in self._worker_statuses(nodes={}):  # the metrics do not name nodes
            if status.units or status.failed:
                name = f"worker_{status.worker}"
                metrics[f"{name}/units_per_second"] = status.units / status.seconds if status.seconds else 0.0
                metrics[f"{name}/items_per_second"] = status.items / status.seconds if status.seconds else 0.0
                metrics[f"{name}/units_failed"] = float(status.failed)
        return metrics

    def progress(self, nodes: Mapping[int, str]) -> CollectionProgress:
        """Return the progress of the iteration.

        Args:
            nodes: Node of each ready slot, by slot.
        """
        metrics = self.metrics()
        return CollectionProgress(
            iteration=self.request.trial,  # iterations are numbered as trials
            units=self.units.arrived,
            units_total=self.units.count,
            units_failed=len(self.units.failed),
            items=self._items,
            bytes=self._bytes,
            in_flight_bytes=self.flow.in_flight,
            units_per_second=metrics["units_per_second"],
            items_per_second=metrics["items_per_second"],
            spilled_bytes=self._spilled,
            workers=self._worker_statuses(nodes),
        )

    def _failed_units_message(self) -> str:
        """Return a message that lists the failed units, of which there is at least one, with the error of the first."""
        failed = self.units.failed
        numbers = ", ".join(str(unit) for unit in list(failed)[:MOST_NAMED])
        if len(failed) > MOST_NAMED:
            numbers += " …"
        description = self._describe_failure(next(iter(failed.values())))
        return f"{len(failed)} of {errors.counted(self.units.count, 'unit')} failed: {numbers}; the first: {description}"

    def _worker_statuses(self, nodes: Mapping[int, str]) -> tuple[WorkerStatus, ...]:
        """Return the status of each worker, also of a ready slot in which none has run yet. For `nodes` see `progress`."""
        now = time.monotonic()
        workers = {slot: WorkerSlot(slot) for slot in nodes} | self.workers
        return tuple(
            worker.status(
                now,
                nodes.get(slot, ""),
                has_units=bool(self.units.assigned_to(slot)),
                has_unfetched=self.flow.has_unfetched(slot),
            )
            for slot, worker in sorted(workers.items())
        )

    def _lose_result(self, unit: int, reason: str) -> None:
        """Record that a result was lost after its fetch had begun, and retry its unit."""
        transfer = self.flow.record_lost(unit)
        if transfer is not None:
            self._retry_lost_result(unit, transfer.worker, reason)

    def _retry_lost_result(self, unit: int, worker: int, reason: str, *, uses_retry: bool = True) -> None:
        """Retry a unit whose result was lost, or fail it if its retries are used up, and log that.

        While the iteration ends, nothing is retried any more, and nothing is logged.

        Args:
            unit: Number of the unit.
            worker: Number of the worker that offered the result.
            reason: Reason for the loss.
            uses_retry: Whether the loss uses up a retry of this unit, see `Units.retry_lost_result`.
        """
        message = f"its result was lost in transit: {reason}"
        has_failed = self.units.retry_lost_result(unit, message, uses_retry=uses_retry) is not None
        if has_failed:
            self.workers[worker].failed += 1
        if not self.is_ending:
            consequence = "its retries are used up, so the unit has failed" if has_failed else "it is retried"
            log.warning(
                "iteration %d: worker %d: the result of unit %d was lost in transit: %s; %s",
                self.request.trial,
                worker,
                unit,
                reason,
                consequence,
            )

    def _count_arrival(self, transfer: Transfer) -> None:
        """Count a result that has arrived."""
        self._last_arrival = time.monotonic()
        self._items += transfer.items
        self._bytes += transfer.bytes
        self.workers[transfer.worker].record_arrival(transfer.items, transfer.bytes, self._last_arrival)

    def _seconds(self) -> float:
        """Return the seconds between the first assignment of a unit and the newest arrival of a result."""
        if self._start_time is None or self._last_arrival is None:
            return 0.0
        return self._last_arrival - self._start_time

    def _too_large_message(self, offer: Offer) -> str:
        """Return the message about a result that is larger than the limit of bytes in flight."""
        size, limit = f"{offer.bytes / 1e6:.1f} MB", f"{self.flow.limit / 1e6:.1f} MB"
        if self.flow.limit < self.collect.in_flight_bytes:  # the object store sets the limit, see `publish`
            reason = f"the object store has room for {limit}; make it larger (resources.shm)"
        else:
            reason = f"collect.in_flight is {limit}; raise it (`--set collect.in_flight=2Gi`)"
        return f"the result of unit {offer.unit} is {size}, and {reason}, or give smaller units"

    def _describe_failure(self, failed: FailedUnit) -> str:
        """Return a text for the user about a failed unit, with its worker and the log of that."""
        return f"unit {failed.unit}, by worker {failed.worker}: {failed.message}; {self._log_hint(failed.worker)}"

    def _log_hint(self, worker: int) -> str:
        """Return a text for the user that names the command and the file with the log of a worker."""
        path = paths.trial_log(self.request.trial, self.request.attempt, worker)
        return f"`platform logs {self.request.run} {self.request.trial} --worker {worker}` shows its log ({path})"
