"""Moves the results of a collection: from the workers' slots into the object store, and from there to the learner's slot.

A worker's process offers its results, and the learner's process reads them. The object store is that of Ray.

The calls have their own threads in the slot's actor, so a result is moved while the process that produced it continues. Each
call `fetch`, `fetch_weights` or `feed` starts a move and returns at once. Its end is an event of `take_events`, even if the
slot is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import ray

from trialplane import errors
from trialplane.controller.slots import Process, SlotPool
from trialplane.wire import messages
from trialplane.wire.records import TrialRequest
from trialplane.wire.units import Transfer, Unit


@dataclasses.dataclass(frozen=True)
class ResultsFetched:
    """The event that a fetch of a worker's results has ended.

    Attributes:
        worker: Number of the worker.
        request: Request of the worker's process.
        units: Units whose results are in the object store.
        reference: Reference to a list of these results in the same order; None if there are no results.
        lost: Units whose results could not be fetched.
        error: Error of the call; "" if there was none, or if the slot was lost.
    """

    worker: int
    request: TrialRequest
    units: tuple[int, ...] = ()
    reference: Any = None
    lost: tuple[int, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class WeightsFetched:
    """The event that a fetch of the learner's weights has ended.

    Attributes:
        request: Request of the learner's process.
        reference: Reference to the weights in the object store; None if they could not be fetched.
        error: Error of the call; "" if there was none, or if the slot was lost.
    """

    request: TrialRequest
    reference: Any = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class ResultsFed:
    """The event that results were fed to the learner's slot, or lost on the way.

    Attributes:
        request: Request of the learner's process.
        units: Units of the results.
        lost: Whether the results were lost.
        error: Error of the call; "" if there was none, or if the slot was lost.
    """

    request: TrialRequest
    units: tuple[int, ...]
    lost: bool
    error: str = ""


ExchangeEvent = ResultsFetched | WeightsFetched | ResultsFed


class _Move(NamedTuple):
    """A move of data that has started, and will end with an event.

    Attributes:
        make_event: Function that returns the event of its end. Its arguments are the slot's answer, None after an error, and
            the message of the error, "" without one.
        data: Reference to the moved data. The object store would delete them if nobody referred to them.
    """

    make_event: Callable[[Any, str], ExchangeEvent]
    data: Any


class Exchange:
    """The calls that move results, weights and units.

    Args:
        learner: Pool of one slot, in which the learner runs.
        workers: Pool of the workers' slots.
    """

    def __init__(self, learner: SlotPool, workers: SlotPool) -> None:
        self._learner = learner
        self._workers = workers
        self._pending: dict[Any, _Move] = {}  # reference to the answer that a slot will give → the move that it ends

    @property
    def pending(self) -> tuple[Any, ...]:
        """References to the outstanding answers of slots."""
        return tuple(self._pending)

    def send_units(self, worker: int, units: tuple[Unit, ...], last: bool) -> None:
        """Send units to a worker; with `last`, tell it that no more units follow."""
        self._send(self._workers.process(worker), messages.HandUnits(units, last))

    def release(self, worker: int, units: tuple[int, ...]) -> None:
        """Let a worker reuse the memory of results that were fetched, or that will not be fetched."""
        self._send(self._workers.process(worker), messages.ReleaseResults(units))

    def end_feed(self, failed: int) -> None:
        """Tell the learner that no more results follow, and how many units have failed."""
        self._send(self._learner.process(slot=0), messages.EndFeed(failed))

    def fetch(self, worker: int, units: tuple[int, ...]) -> None:
        """Start to move results from a worker's memory into the object store, as one object."""
        process = _process_in(self._workers, worker)
        answer_reference, results = _fetch(process, messages.FetchResults(units))

        def make_event(available_units: tuple[int, ...] | None, error: str) -> ResultsFetched:
            # The units of lost results are done again. So the worker may reuse the memory of all results.
            process.send(messages.ReleaseResults(units))
            fetched = tuple(available_units or ())
            lost = tuple(unit for unit in units if unit not in fetched)
            return ResultsFetched(
                worker, process.request, units=fetched, reference=results if fetched else None, lost=lost, error=error
            )

        self._pending[answer_reference] = _Move(make_event, data=results)

    def fetch_weights(self) -> None:
        """Start to move the weights that the learner offers into the object store."""
        process = _process_in(self._learner, slot=0)
        answer_reference, weights = _fetch(process, messages.FetchWeights())

        def make_event(is_available: bool | None, error: str) -> WeightsFetched:
            process.send(messages.ReleaseWeights())
            return WeightsFetched(process.request, reference=weights if is_available else None, error=error)

        self._pending[answer_reference] = _Move(make_event, data=weights)

    def feed(self, transfers: tuple[Transfer, ...], results: Any) -> None:
        """Start to move the results of one `fetch` from the object store to the learner.

        Args:
            transfers: The results.
            results: Reference to the list of them in the object store.
        """
        process = _process_in(self._learner, slot=0)
        units = tuple(transfer.unit for transfer in transfers)
        message = messages.encode(messages.FeedTransfers(transfers))
        # In a list, Ray passes the reference itself. The slot reads the results.
        answer_reference = process.actor.call("feed", process.serial, message, [results])

        def make_event(was_fed: bool | None, error: str) -> ResultsFed:
            return ResultsFed(process.request, units, lost=not was_fed, error=error)

        self._pending[answer_reference] = _Move(make_event, data=results)

    def take_events(self, answered: Iterable[Any]) -> Iterator[ExchangeEvent]:
        """Yield the events of the moves that have ended.

        Args:
            answered: References to answers that have arrived. Those that are not in `pending` are ignored.
        """
        for reference in answered:
            move = self._pending.pop(reference, None)
            if move is None:
                continue
            answer, message = None, ""
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayTaskError as error:  # the call has raised an error
                message = errors.first_line(error.cause or error)
            except ray.exceptions.RayError:
                pass  # the actor has died, and the pool reports that
            yield move.make_event(answer, message)

    def _send(self, process: Process | None, message: messages.Control) -> None:
        """Send a message to a process, if it runs."""
        if process is not None:
            process.send(message)


def _process_in(pool: SlotPool, slot: int) -> Process:
    """Return the process in a slot, which must not be idle."""
    process = pool.process(slot)
    assert process is not None, f"nothing runs in slot {slot}"
    return process


def _fetch(process: Process, message: messages.Fetch) -> tuple[Any, Any]:
    """Call `fetch` in a slot.

    Returns:
        References to its two answers, see `worker.slot_actor.SlotActor.fetch`: the units whose results are available, or
        whether the weights are; and the data.
    """
    answer_reference, data = process.actor.call("fetch", process.serial, messages.encode(message))
    return answer_reference, data
