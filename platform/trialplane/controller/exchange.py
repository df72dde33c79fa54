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
from trialplane.wire.units import Transfer, Unit


@dataclasses.dataclass(frozen=True)
class ResultsFetched:
    """Results that a worker offered are in the object store, as a list in the order of `units`; those of `lost` are not.

    `error` is that of a slot that still exists.
    """

    worker: int
    request: TrialRequest
    units: tuple[int, ...] = ()
    reference: Any = None
    lost: tuple[int, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class WeightsFetched:
    """The learner's weights are in the object store, or lost (`reference` is None); `error` as above."""

    request: TrialRequest
    reference: Any = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class ResultsFed:
    """The learner's slot has the results, or they were lost on their way; `error` as above."""

    request: TrialRequest
    units: tuple[int, ...]
    lost: bool
    error: str = ""


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

        def event(available: Any, error: str) -> ResultsFetched:
            process.send(messages.ReleaseResults(units))  # also those that could not be fetched: their units are retried
            lost = tuple(unit for unit in units if unit not in (available or ()))
            return ResultsFetched(
                worker, process.request, tuple(available or ()), results if available else None, lost, error
            )

        available_units, results = _fetch(process, messages.FetchResults(units))
        self._pending[available_units] = event, results

    def fetch_weights(self) -> None:
        """Put the weights that the learner offers into the object store."""
        process = _running(self._learner, 0)

        def event(is_available: Any, error: str) -> WeightsFetched:
            process.send(messages.ReleaseWeights())
            return WeightsFetched(process.request, weights if is_available else None, error)

        availability, weights = _fetch(process, messages.FetchWeights())
        self._pending[availability] = event, weights

    def feed(self, transfers: tuple[Transfer, ...], results: Any) -> None:
        """Pass the results of one `fetch` from the object store to the learner."""
        process = _running(self._learner, 0)
        units, feed = tuple(transfer.unit for transfer in transfers), messages.encode(messages.FeedTransfers(transfers))
        fed = process.actor.call("feed", process.serial, feed, [results])
        self._pending[fed] = lambda is_taken, error: ResultsFed(process.request, units, not is_taken, error), results

    def take(self, answered: Iterable[Any]) -> Iterator[ExchangeEvent]:
        """The events of these answers; references of others are ignored."""
        for reference in answered:
            if reference not in self._pending:
                continue
            event, _ = self._pending.pop(reference)
            answer, problem = None, ""
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                problem = errors.first_line(error.cause or error)
            except ray.exceptions.RayError:
                pass  # the actor is dead, which the pool reports
            yield event(answer, problem)

    def _send(self, process: Process | None, message: messages.Control) -> None:
        if process is not None:
            process.send(message)


def _running(pool: SlotPool, slot: int) -> Process:
    process = pool.process(slot)
    assert process is not None, f"nothing runs in slot {slot}"
    return process


def _fetch(process: Process, message: messages.Fetch) -> tuple[Any, Any]:
    """References to the units whose results could be fetched, and to the results."""
    available, results = process.actor.call("fetch", process.serial, messages.encode(message))
    return available, results
