"""The way of results in a collection: from the slots of workers into the object store, and from there to the learner's.

A channel beside the slots' own events: its calls have threads of their own in a slot actor, and move a result while the
process that made it goes on. Each `fetch` and each `feed` is answered by one event, whatever becomes of the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ray

from trialplane import errors
from trialplane.controller.slots import Process, SlotPool
from trialplane.wire import messages
from trialplane.wire.records import TrialRequest
from trialplane.wire.units import Parcel, Unit


@dataclasses.dataclass(frozen=True)
class ResultsFetched:
    """Results that a worker offered lie in the object store, as a list in the order of `units`; `gone` do not.

    `why` is what went wrong in a slot that is still there.
    """

    worker: int
    request: TrialRequest
    units: tuple[int, ...] = ()
    reference: Any = None
    gone: tuple[int, ...] = ()
    why: str = ""


@dataclasses.dataclass(frozen=True)
class WeightsFetched:
    """The learner's weights lie in the object store, or are gone (`reference` is None); `why` as above."""

    request: TrialRequest
    reference: Any = None
    why: str = ""


@dataclasses.dataclass(frozen=True)
class ResultsFed:
    """The learner's slot has the results, or they were lost on their way; `why` as above."""

    request: TrialRequest
    units: tuple[int, ...]
    lost: bool
    why: str = ""


ExchangeEvent = ResultsFetched | WeightsFetched | ResultsFed


class Exchange:
    """The calls that move results, weights and units.

    Args:
        learner: a pool of one slot.
        workers: the pool of the workers' slots.
    """

    def __init__(self, learner: SlotPool, workers: SlotPool) -> None:
        self._learner = learner
        self._workers = workers
        # Reference to an answer → the event that it makes, and what the object store has to keep until then.
        self._pending: dict[Any, tuple[Callable[[Any, str], ExchangeEvent], Any]] = {}

    @property
    def pending(self) -> tuple[Any, ...]:
        """References to the answers that slots owe."""
        return tuple(self._pending)

    def hand(self, worker: int, units: tuple[Unit, ...], last: bool) -> None:
        """Hands units to a worker; `last` means that it gets no more."""
        self._send(self._workers.process(worker), messages.HandUnits(units, last))

    def release(self, worker: int, units: tuple[int, ...]) -> None:
        """Lets a worker use the memory of results again that have been fetched, or that nobody will fetch."""
        self._send(self._workers.process(worker), messages.ReleaseResults(units))

    def end_feed(self, failed: int) -> None:
        """The learner has all results there will be; so many units failed."""
        self._send(self._learner.process(0), messages.EndFeed(failed))

    def fetch(self, worker: int, units: tuple[int, ...]) -> None:
        """Puts results that a worker offers into the object store, as one object; it then has room for others."""
        process = _running(self._workers, worker)

        def event(there: Any, why: str) -> ResultsFetched:
            if self._workers.process(worker) is process:  # also what could not be fetched: it is made again
                self.release(worker, units)
            gone = tuple(unit for unit in units if unit not in there)
            return ResultsFetched(worker, process.request, tuple(there), results if there else None, gone, why)

        known, results = _fetch(process, messages.FetchResults(units))
        self._pending[known] = event, results

    def fetch_weights(self) -> None:
        """Puts the weights that the learner offers into the object store."""
        process = _running(self._learner, 0)

        def event(there: Any, why: str) -> WeightsFetched:
            if self._learner.process(0) is process:
                process.send(messages.ReleaseWeights())
            return WeightsFetched(process.request, weights if there else None, why)

        known, weights = _fetch(process, messages.FetchWeights())
        self._pending[known] = event, weights

    def feed(self, parcels: tuple[Parcel, ...], results: Any) -> None:
        """Gives the learner the results that one `fetch` has put into the object store."""
        process = _running(self._learner, 0)
        units, feed = tuple(parcel.unit for parcel in parcels), messages.encode(messages.FeedParcels(parcels))
        fed = process.actor.feed.remote(process.serial, feed, [results])
        self._pending[fed] = lambda taken, why: ResultsFed(process.request, units, not taken, why), results

    def take(self, answered: Iterable[Any]) -> Iterator[ExchangeEvent]:
        """The events that these answers make; answers of others are left alone."""
        for reference in answered:
            if reference not in self._pending:
                continue
            event, _ = self._pending.pop(reference)
            try:
                yield event(ray.get(reference), "")
            except ray.exceptions.RayTaskError as error:
                yield event((), errors.first_line(error.cause or error))
            except ray.exceptions.RayError:  # the actor is dead, which the pool reports
                yield event((), "")

    def _send(self, process: Process | None, message: messages.Control) -> None:
        if process is not None:
            process.send(message)


def _running(pool: SlotPool, slot: int) -> Process:
    process = pool.process(slot)
    assert process is not None, f"nothing runs in slot {slot}"
    return process


def _fetch(process: Process, message: messages.Fetch) -> tuple[Any, Any]:
    """References to what could be fetched, and to that."""
    known, there = process.actor.fetch.remote(process.serial, messages.encode(message))
    return known, there
