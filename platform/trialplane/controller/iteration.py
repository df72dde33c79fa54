"""One attempt at an iteration of a collection: its units, its results in flight, its workers, and their metrics.

It only decides; `workloads.collection` acts.
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

STORE_SHARE = 0.7  # of an object store that results may fill; Ray spills to disk from 0.8 on
PATIENCE = 600.0  # seconds to wait for another worker after all present ones have been given up
MOST_NAMED = 10  # failed units listed in one message
SPILL_INTERVAL = 5.0  # seconds between checks of what the object stores have spilled


@dataclasses.dataclass(frozen=True)
class IterationFailure:
    """The reason why an iteration fails, whatever its learner's outcome."""

    failure: FailureClass
    message: str
    traceback: str = ""


class Iteration:
    """The state of an attempt at an iteration.

    Attributes:
        request: the learner's.
        weights: a reference to what workers start with, or None.
        is_published: whether the learner has offered them.
        is_all_fed: whether the end of the results was sent to the learner.
        failure: why the iteration itself failed, if it did.
        is_ending: whether it is being ended, for whatever reason: nothing new is started.
    """

    def __init__(self, request: TrialRequest, job: Collection, spilled: int | None) -> None:
        self.request = request
        self.collect = job.collect
        self.book = Units(request.trial * job.collect.units, job.collect.units, job.seed, job.retries)
        self.flow = Flow(job.collect.in_flight_bytes)
        self.workers: dict[int, WorkerSlot] = {}
        self.weights: Any = None
        self.weights_bytes = 0
        self.is_published = False
        self.is_all_fed = False
        self.failure: IterationFailure | None = None
        self.is_ending = False
        self._stuck_since: float | None = None  # since when all present workers have been given up
        self._items = 0
        self._bytes = 0
        self._reused = 0
        self._began: float | None = None  # when the first unit was handed out
        self._newest: float | None = None  # when the newest result arrived
        self._spilled_before = spilled
        self._spilled = 0
        self._spill_at = 0.0

    def publish(self, weights: Any, store_bytes: int) -> None:
        """Let workers start, with these weights."""
        self.weights, self.is_published = weights, True
        limit = self.collect.in_flight_bytes
        room = int(STORE_SHARE * store_bytes) - self.weights_bytes
        self.flow.limit = min(limit, max(1, room)) if store_bytes else limit
        if self.flow.limit < limit:
            log.warning(
                "iteration %d: only %d MB may be in flight, not collect.in_flight's %d MB: the smallest object store has "
                "%d MB, which also hold the weights; raise resources.shm to make it larger",
                *(self.request.trial, self.flow.limit >> 20, limit >> 20, store_bytes >> 20),
            )

    def hand(self, worker: WorkerSlot) -> tuple[Unit, ...]:
        """Hand units to a worker that has requested some."""
        units = self.book.hand(worker.index, worker.owed)
        if units:
            now = time.monotonic()
            self._began = self._began or now
            worker.began = worker.began or now
            worker.owed -= len(units)
            worker.handed += len(units)
        return units

    def offered(self, worker: WorkerSlot, offer: Offer) -> bool:
        """Record a result that a worker offers; False when it will not be fetched."""
        if not self.book.offer(worker.index, offer.unit):
            log.warning("worker %d offered a result of unit %d, which was not assigned to it", worker.index, offer.unit)
            return False
        if offer.bytes > self.flow.limit:
            failed_unit = self.book.refuse(offer.unit, FailureClass.INVALID, self._too_large(offer))
            worker.failed += failed_unit is not None
            log.warning("iteration %d: worker %d: %s", self.request.trial, worker.index, self._too_large(offer))
            return False
        self.flow.offer(Transfer(offer.unit, worker.index, offer.bytes, offer.items))
        return True

    def fetched(self, units: tuple[int, ...], reference: Any, lost: tuple[int, ...], error: str) -> None:
        """Record the results that are in the object store, and those that are lost."""
        if units:
            self.flow.store(units, reference)
        for unit in lost:
            self._lose(unit, error or "its worker has ended")

    def fed(self, units: tuple[int, ...], lost: bool, error: str) -> None:
        """Record that results were fed to the learner, or lost."""
        for unit in units:
            if lost:
                self._lose(unit, error or "the object store has lost it")
            elif (transfer := self.flow.fed(unit)) is not None and self.book.arrive(unit):
                self._count(transfer)

    def took(self, units: Iterable[int]) -> None:
        """Record that the learner has read results, or has kept those of a former attempt."""
        for unit in units:
            transfer = self.flow.take(unit)
            if transfer is None:
                self._reused += self.book.keep(unit)
            elif self.book.arrive(unit):  # before the event that it was fed
                self._count(transfer)

    def take_back(self, worker: WorkerSlot, begun: tuple[int, ...] | None) -> None:
        """Return the units that an ended worker had not begun, as if they had never been handed out."""
        if begun is not None:
            unbegun = self.book.open(worker.index) - set(begun)
            self.book.put_back(worker.index, unbegun)
            worker.handed -= len(unbegun)

    def worker_ended(self, worker: WorkerSlot, outcome: TrialOutcome) -> TrialOutcome:
        """Record the end of a worker's process: its units are retried or have failed. Returns its final outcome."""
        # If it failed while working on units, those are at fault, not the results it had given.
        counts = not self.book.open(worker.index)
        for unit in self.flow.withdraw(worker.index):
            self._again(unit, worker.index, f"its worker ended before it was fetched: {outcome.message}", counts=counts)
        lost = self.book.lose(worker.index, outcome)
        if outcome.state is TrialState.COMPLETE and not worker.last and not worker.handed:
            early = "play(ctx) returned before the iteration was complete, without taking a unit"
            outcome = dataclasses.replace(outcome, state=TrialState.FAILED, failure=FailureClass.INVALID, message=early)
        worker.failed += lost.failed is not None
        worker.end(None if outcome.failure in (None, FailureClass.STOPPED) else outcome)
        return outcome

    def judge(self, warm: Set[int], expected: Set[int]) -> IterationFailure | None:
        """The reason why the iteration has failed, or None.

        Args:
            warm: the workers whose slots are ready.
            expected: the workers there are or will be: a slot may be starting, for the first time or again.
        """
        failed = self.book.failed
        if len(failed) > self.collect.most_failed:
            failure = next(iter(failed.values()))
            text = f"{errors.counted(len(failed), 'unit')} of {self.collect.units} failed, more than collect.max_failed = "
            return IterationFailure(
                failure.failure, f"{self._describe(failure)}; {text}{self.collect.most_failed}", failure.traceback
            )
        given_up = {slot for slot, worker in self.workers.items() if worker.is_given_up}
        if not given_up or warm - given_up or not self.book.waiting:
            self._stuck_since = None
            return None
        now = time.monotonic()
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if not expected <= given_up and now < self._stuck_since + PATIENCE:
            return None
        worker = self.workers[min(given_up)]
        assert worker.failure is not None
        assert worker.failure.failure is not None
        text = f"worker {worker.index}: {worker.failure.message}; {self._log_hint(worker.index)}"
        message = f"{text}; no worker is left that can start a unit"
        return IterationFailure(worker.failure.failure, message, worker.failure.traceback)

    def close(self) -> None:
        """End the iteration and release its objects in the object store."""
        self.weights = None
        self.flow = Flow(0)
        for worker in self.workers.values():
            worker.close()

    def note_spilled(self, spilled: Callable[[], int | None], *, again: bool = False) -> None:
        """Check periodically, or `again` at once, whether an object store spilled results to disk; warn once."""
        if not again and time.monotonic() < self._spill_at:
            return
        self._spill_at = time.monotonic() + SPILL_INTERVAL
        total = spilled()
        if total is None:
            return
        if self._spilled_before is None or total < self._spilled_before:  # a node is gone, and its count with it
            self._spilled_before = total
        before, self._spilled = self._spilled, max(self._spilled, total - self._spilled_before)
        if self._spilled and not before:
            log.warning(
                "iteration %d: the object store is full and spills results to disk (%.1f MB), which is slow; make it "
                "larger (resources.shm), or set collect.in_flight lower",
                *(self.request.trial, self._spilled / 1e6),
            )

    # Metrics and messages

    @property
    def done(self) -> float:
        """The share of its units that have arrived or failed, 0 to 1."""
        return (self.book.arrived + len(self.book.failed)) / self.book.count

    def metrics(self) -> dict[str, float]:
        """The metrics that the platform adds to the iteration's outcome."""
        seconds = self._seconds()
        fresh = self.book.arrived - self._reused
        return {
            "units": float(self.book.arrived),
            "units_failed": float(len(self.book.failed)),
            "items": float(self._items),
            "gigabytes": self._bytes / 1e9,
            "units_per_second": fresh / seconds if seconds else 0.0,
            "items_per_second": self._items / seconds if seconds else 0.0,
        }

    def of_workers(self) -> dict[str, float]:
        """The same for each worker that did any unit."""
        metrics: dict[str, float] = {}
        for row in self._workers({}):
            if row.units or row.failed:
                per_second = 1 / row.seconds if row.seconds else 0.0
                metrics[f"worker_{row.worker}/units_per_second"] = row.units * per_second
                metrics[f"worker_{row.worker}/items_per_second"] = row.items * per_second
                metrics[f"worker_{row.worker}/units_failed"] = float(row.failed)
        return metrics

    def progress(self, nodes: Mapping[int, str]) -> CollectionProgress:
        """The progress of the iteration.

        Args:
            nodes: slot → its node, for ready slots.
        """
        metrics = self.metrics()
        return CollectionProgress(
            iteration=self.request.trial,
            units=self.book.arrived,
            units_total=self.book.count,
            units_failed=len(self.book.failed),
            items=self._items,
            bytes=self._bytes,
            in_flight_bytes=self.flow.in_flight,
            units_per_second=metrics["units_per_second"],
            items_per_second=metrics["items_per_second"],
            spilled_bytes=self._spilled,
            workers=self._workers(nodes),
        )

    def troubles(self) -> str:
        """The failed units, and the error of the first one; "" for none."""
        failed = self.book.failed
        if not failed:
            return ""
        numbers = ", ".join(str(unit) for unit in list(failed)[:MOST_NAMED]) + (" …" if len(failed) > MOST_NAMED else "")
        description = self._describe(next(iter(failed.values())))
        return f"{len(failed)} of {errors.counted(self.book.count, 'unit')} failed: {numbers}; the first: {description}"

    def _workers(self, nodes: Mapping[int, str]) -> tuple[WorkerStatus, ...]:
        now = time.monotonic()
        workers = {**{slot: WorkerSlot(slot) for slot in nodes}, **self.workers}
        return tuple(
            worker.status(now, nodes.get(slot, ""), bool(self.book.open(slot)), self.flow.waits(slot))
            for slot, worker in sorted(workers.items())
        )

    def _lose(self, unit: int, reason: str) -> None:
        if (transfer := self.flow.lose(unit)) is not None:
            self._again(unit, transfer.worker, reason)

    def _again(self, unit: int, worker: int, reason: str, *, counts: bool = True) -> None:
        failed = self.book.again(unit, f"its result was lost in transit: {reason}", counts=counts)
        self.workers[worker].failed += failed is not None
        if not self.is_ending:
            text = "iteration %d: worker %d: the result of unit %d was lost in transit: %s; %s"
            consequence = "it is retried" if failed is None else "its retries are used up, so the unit has failed"
            log.warning(text, self.request.trial, worker, unit, reason, consequence)

    def _count(self, transfer: Transfer) -> None:
        self._newest = time.monotonic()
        self._items += transfer.items
        self._bytes += transfer.bytes
        self.workers[transfer.worker].arrived(transfer.items, transfer.bytes, self._newest)

    def _seconds(self) -> float:
        """Seconds from the first unit to the newest result."""
        return 0.0 if self._began is None or self._newest is None else self._newest - self._began

    def _too_large(self, offer: Offer) -> str:
        text = f"the result of unit {offer.unit} is {offer.bytes / 1e6:.1f} MB, and "
        if self.flow.limit < self.collect.in_flight_bytes:
            return (
                f"{text}the object store has room for {self.flow.limit / 1e6:.1f} MB; make it larger (resources.shm), or "
                "give smaller units"
            )
        return (
            f"{text}collect.in_flight is {self.flow.limit / 1e6:.1f} MB; raise it (`--set collect.in_flight=2Gi`), or give "
            "smaller units"
        )

    def _describe(self, failed: FailedUnit) -> str:
        return f"unit {failed.unit}, by worker {failed.worker}: {failed.message}; {self._log_hint(failed.worker)}"

    def _log_hint(self, worker: int) -> str:
        log_ = paths.trial_log(self.request.trial, self.request.attempt, worker)
        return f"`platform logs {self.request.run} {self.request.trial} --worker {worker}` shows its log ({log_})"
