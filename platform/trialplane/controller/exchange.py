"""Moves the results of a collection: from the workers' slots into the object store, and from there to the learner's slot.

It works beside the slots' own events: its calls have threads of their own in a slot actor, and move a result while the
process that made it continues. Each `fetch` and each `feed` is answered by one event, even if the slot is lost.
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

    `why` is an error in a slot that still exists.
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
        # Reference to an answer → what makes its event, and the object that the store has to keep until then.
        self._pending: dict[Any, tuple[Callable[[Any, str], ExchangeEvent], Any]] = {}

    @property
    def pending(self) -> tuple[Any, ...]:
        """References to the outstanding answers of slots."""
        return tuple(self._pending)

    def hand(self, worker: int, units: tuple[Unit, ...], last: bool) -> None:
        """Hand units to a worker; `last` means that no more will follow."""
        self._send(self._workers.process(worker), messages.HandUnits(units, last))

    def release(self, worker: int, units: tuple[int, ...]) -> None:
        """Let a worker reuse the memory of results that have been fetched, or never will be."""
        self._send(self._workers.process(worker), messages.ReleaseResults(units))

    def end_feed(self, failed: int) -> None:
        """End the learner's results; `failed` is the number of failed units."""
        self._send(self._learner.process(0), messages.EndFeed(failed))

    def fetch(self, worker: int, units: tuple[int, ...]) -> None:
        """Put results that a worker offers into the object store, as one object; the worker's memory is then free again."""
        process = _running(self._workers, worker)

        def event(found: Any, why: str) -> ResultsFetched:
            process.send(messages.ReleaseResults(units))  # also of those that could not be fetched: they are made again
            gone = tuple(unit for unit in units if unit not in (found or ()))
            return ResultsFetched(worker, process.request, tuple(found or ()), results if found else None, gone, why)

        found_units, results = _fetch(process, messages.FetchResults(units))
        self._pending[found_units] = event, results

    def fetch_weights(self) -> None:
        """Put the weights that the learner offers into the object store."""
        process = _running(self._learner, 0)

        def event(found: Any, why: str) -> WeightsFetched:
            process.send(messages.ReleaseWeights())
            return WeightsFetched(process.request, weights if found else None, why)

        was_found, weights = _fetch(process, messages.FetchWeights())
        self._pending[was_found] = event, weights

    def feed(self, parcels: tuple[Parcel, ...], results: Any) -> None:
        """Pass the results of one `fetch` from the object store to the learner."""
        process = _running(self._learner, 0)
        units, feed = tuple(parcel.unit for parcel in parcels), messages.encode(messages.FeedParcels(parcels))
        fed = process.actor.call("feed", process.serial, feed, [results])
        self._pending[fed] = lambda taken, why: ResultsFed(process.request, units, not taken, why), results

    def take(self, answered: Iterable[Any]) -> Iterator[ExchangeEvent]:
        """The events of these answers; references of others are ignored."""
        for reference in answered:
            if reference not in self._pending:
                continue
            event, _ = self._pending.pop(reference)
            answer, why = None, ""
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                why = errors.first_line(error.cause or error)
            except ray.exceptions.RayError:
                pass  # the actor is dead, which the pool reports
            yield event(answer, why)

    def _send(self, process: Process | None, message: messages.Control) -> None:
        if process is not None:
            process.send(message)


def _running(pool: SlotPool, slot: int) -> Process:
    process = pool.process(slot)
    assert process is not None, f"nothing runs in slot {slot}"
    return process


def _fetch(process: Process, message: messages.Fetch) -> tuple[Any, Any]:
    """References to which results could be fetched, and to the results."""
    found, results = process.actor.call("fetch", process.serial, messages.encode(message))
    return found, results
