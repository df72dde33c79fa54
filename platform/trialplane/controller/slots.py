"""Slots: one Ray actor per place where a trial can run. Ray is known here, in `slot_actor` and in `ray_session`.

A slot actor runs one trial at a time and answers each call with the trial's next event, so the pool has at most one call
under way per slot and `events` waits for whichever answers first. An actor that dies has lost its trial; the pool says
so and puts a new actor in its place. In a cluster an actor waits for its pod, for as long as that takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray

from trialplane import errors
from trialplane.controller import ray_session
from trialplane.controller.slot_actor import GROUPS, SlotActor
from trialplane.controller.slot_events import SlotEvent, SlotFed, SlotFetched, SlotReady, SlotTrial
from trialplane.controller.starting import StartFailures
from trialplane.wire import cluster, messages
from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Parcel, Unit

log = logging.getLogger(__name__)

MAX_START_FAILURES = 3  # in a row: of one slot while others work, else over all slots
START_PATIENCE = 600.0  # seconds for which a cluster may give no slot that starts, and only ones that fail
POD_GOES = 10.0  # seconds for a pod to be gone after its trial was stopped


@dataclasses.dataclass
class _Place:
    """One slot as the pool sees it.

    Attributes:
        index: its number; free again when the slot has gone for good.
        actor: None while it waits to be tried again, until `again`.
        node: where its template is warm, or "".
        running: the trial in it.
        leaving: whether it goes when its trial has ended.
        asked: whether we have asked the trial in it to end.
        starts: how often in a row it has failed to start while others worked.
        trouble: why it did the last time; "" when it has started.
        is_given_up: whether it is not tried again.
    """

    index: int
    starts: StartFailures
    actor: Any = None
    again: float = 0.0
    node: str = ""
    running: TrialRequest | None = None
    leaving: bool = False
    asked: bool = False
    trouble: str = ""
    is_given_up: bool = False


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of an actor that has not answered: "start", "trial", "fetch" or "feed"."""

    place: _Place
    what: str
    request: TrialRequest | None = None
    units: tuple[int, ...] = ()
    reference: Any = None


class SlotPool:
    """Slots, replaced when they die.

    Args:
        config: what all slots share.
        size: how many.
        patience: seconds for which slots may do nothing but fail to start: 0 on one machine.
        has_begun: whether the job's code is known to import, because slots of a former controller have run it.
    """

    def __init__(self, config: SlotConfig, size: int, patience: float = 0.0, *, has_begun: bool = False) -> None:
        self._config = config
        self._patience = patience
        self._has_begun = has_begun
        self._pending: dict[Any, _Call] = {}  # by the reference to the answer
        self._places: dict[int, _Place] = {}
        self._failures = StartFailures(MAX_START_FAILURES, patience)
        self._generation = 0
        self.resize(size)

    @property
    def size(self) -> int:
        """How many slots there are or will be; those that leave do not count."""
        return sum(not place.leaving for place in self._places.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return tuple(sorted({place.node for place in self._places.values() if place.node}))

    @property
    def ready(self) -> int:
        """How many slots have a warm template."""
        return sum(bool(place.node) for place in self._places.values())

    @property
    def pending(self) -> tuple[Any, ...]:
        """References to the answers that slots owe."""
        return tuple(self._pending)

    @property
    def slots(self) -> frozenset[int]:
        """The slots there are or will be, also those that leave; without those that were given up."""
        return frozenset(place.index for place in self._places.values() if not place.is_given_up)

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why; "" when all do."""
        failing = [place for place in self._places.values() if place.trouble]
        if not failing:
            return ""
        place = max(failing, key=lambda place: place.is_given_up)
        others = f"; {errors.counted(len(failing) - 1, 'other slot')} failed to start as well" if len(failing) > 1 else ""
        return f"{self._named(place)} {place.trouble}{others}"

    @property
    def leaving(self) -> frozenset[int]:
        """The slots that go when their trial has ended."""
        return frozenset(place.index for place in self._places.values() if place.leaving)

    def resize(self, size: int) -> set[int]:
        """Makes it `size` slots: more at once; fewer by ending those that start, then idle ones.

        A slot that was given up goes before any other, one that runs a trial goes when the trial has ended.

        Returns:
            The slots that are gone now.
        """
        gone = set()
        places = self._places.values()
        for place in sorted(places, key=lambda place: (place.running is not None, bool(place.node), not place.is_given_up)):
            surplus = self.size - size
            if surplus > 0 and not place.leaving:
                if place.running is None:
                    self._remove(place)
                    gone.add(place.index)
                else:
                    place.leaving = True
            elif surplus < 0 and place.leaving:
                place.leaving = False
        while self.size < size:
            index = next(number for number in itertools.count() if number not in self._places)
            self._places[index] = _Place(index, StartFailures(MAX_START_FAILURES, self._patience))
            self._open(self._places[index])
        return gone

    def start(self, slot: int, request: TrialRequest, weights: Any = None) -> None:
        """Starts a trial in a slot that is ready and idle; a producer with the reference to its packed weights."""
        place = self._places[slot]
        assert place.running is None, f"slot {slot} runs trial {place.running}"
        place.running, place.asked = request, False
        start = messages.encode(messages.StartAttempt(request))
        started = place.actor.run.remote(start, [] if weights is None else [weights])
        self._pending[started] = _Call(place, "trial")

    def go_on(self, slot: int, prune: bool = False) -> None:
        """Answers the event of a slot whose trial has not ended."""
        place = self._places[slot]
        answer = messages.encode(messages.AnswerReport(prune))
        self._pending[place.actor.go_on.remote(answer)] = _Call(place, "trial")

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the trial in a slot; its outcome comes as an event."""
        self._places[slot].asked = True
        self._control(slot, messages.KillTrial(failure, message))

    def stop(self, slot: int, message: str) -> None:
        """Lets the trial in a slot save itself and end, within the grace of `SlotConfig`; its outcome comes as an event."""
        self._places[slot].asked = True
        self._control(slot, messages.StopTrial(message))

    def hand(self, slot: int, units: tuple[Unit, ...], last: bool) -> None:
        """Hands units to the producer in a slot; `last` says that it gets no more."""
        self._control(slot, messages.HandUnits(units, last))

    def fetch(self, slot: int, units: tuple[int, ...]) -> None:
        """Has results that a slot's trial offers put into the object store, as one object; it then has room for others."""
        place = self._places[slot]
        assert place.running is not None, f"nothing runs in slot {slot}"
        known, results = place.actor.fetch.remote(place.running.number, messages.encode(messages.FetchResults(units)))
        self._pending[known] = _Call(place, "fetch", place.running, units, results)

    def release(self, slot: int, unit: int) -> None:
        """Tells a producer that nobody will fetch a result."""
        self._control(slot, messages.ReleaseResults((unit,)))

    def feed(self, slot: int, parcels: tuple[Parcel, ...], reference: Any) -> None:
        """Gives the consumer in a slot the results that one `fetch` has put into the object store."""
        place = self._places[slot]
        assert place.running is not None, f"nothing runs in slot {slot}"
        data = messages.encode(messages.FeedParcels(parcels))
        fed = place.actor.feed.remote(place.running.number, data, [reference])
        units = tuple(parcel.unit for parcel in parcels)
        self._pending[fed] = _Call(place, "feed", place.running, units, reference)

    def end_feed(self, slot: int, failed: int) -> None:
        """Tells the consumer in a slot that it has all results there will be, and how many units failed."""
        self._control(slot, messages.EndFeed(failed))

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return {place.index: place.running for place in self._places.values() if place.running is not None}

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """What slots say, waiting at most `timeout` seconds for the first. Raises as `hear`."""
        yield from self.hear(ray_session.wait(self.pending, timeout))

    def hear(self, answered: Iterable[Any]) -> Iterator[SlotEvent]:
        """What slots say by these answers; those of others are left alone.

        Raises:
            EntrypointError: the job's code does not import, and never has in this run.
            SlotError: slots fail to start, again and again, and too few are left.
        """
        for place in self._places.values():
            if place.actor is None and not place.is_given_up and time.monotonic() >= place.again:
                self._open(place)
        for reference in answered:
            call = self._pending.pop(reference, None)
            if call is None:  # another pool's, or the slot went because of what another one said
                continue
            place = call.place
            about: tuple[FromSlot, ...] = ()
            files: dict[str, Any] = {}
            try:
                answer = ray.get(reference)
                if call.what == "start":
                    answer = messages.decode(answer, messages.FROM_STARTING)
                elif call.what == "trial":
                    about = tuple(messages.decode(each, messages.FROM_SLOT) for each in answer[0])
                    files = {name: ray.get(part) for name, part in answer[1].items()}
            except errors.MessageError as error:
                yield from self._lost(place, call.what, error)
            except ray.exceptions.RayError as error:
                if call.request is not None:  # the actor's death is told by the trial in it
                    is_there = isinstance(error, ray.exceptions.RayTaskError)
                    yield self._moved(call, (), errors.first_line(error.cause or error) if is_there else "")
                elif isinstance(error, ray.exceptions.RayTaskError):
                    yield from self._failed(place, call.what, error)
                else:  # the actor died, or the files' owner with it
                    yield from self._lost(place, call.what, error)
            else:
                if call.request is not None:
                    yield self._moved(call, answer)
                elif call.what == "start":
                    self._has_begun = True
                    self._failures.success()
                    place.starts.success()
                    place.node, place.trouble = answer.node, ""
                    yield SlotReady(place.index, answer.seconds, answer.unclean, answer.mlflow, answer.node, answer.address)
                else:
                    yield self._said(place, about, files)

    def close(self) -> None:
        """Ends all slots."""
        starting = {call.place.index for call in self._pending.values() if call.what == "start"}
        actors = {place.index: place.actor for place in self._places.values() if place.actor is not None}
        # A slot that still imports hears nothing; its template ends with it.
        closing = [actor.close.remote() for index, actor in actors.items() if index not in starting]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=10)
        for actor in actors.values():
            ray.kill(actor)

    def _control(self, slot: int, message: messages.Control) -> None:
        """Sends a message to the trial in a slot, if there is one."""
        place = self._places[slot]
        if place.running is not None:
            place.actor.control.remote(place.running.number, messages.encode(message))

    def _open(self, place: _Place) -> None:
        """Puts a new actor in a place and starts its template."""
        self._generation += 1
        options: dict[str, Any] = {
            "resources": {cluster.slot(self._config.role): 1},
            "num_cpus": 0,  # the slot's resource already says: one trial per place
            "num_gpus": self._config.gpus,
            "concurrency_groups": GROUPS,  # so that `kill` need not wait for the trial
        }
        actor = ray.remote(**options)(SlotActor)
        role = "" if self._config.role == "trial" else f"{self._config.role}-"
        place.actor = actor.remote(self._config, f"{role}{place.index}-{self._generation}")
        self._pending[place.actor.start.remote()] = _Call(place, "start")

    def _remove(self, place: _Place) -> None:
        """Ends a slot that runs nothing, for good; its template ends with it, and its pod is free."""
        del self._places[place.index]
        kept = {
            answer: call for answer, call in self._pending.items() if call.place is not place or call.request is not None
        }
        self._pending = kept
        if place.actor is not None:
            ray.kill(place.actor)

    def _moved(self, call: _Call, answer: Any, why: str = "") -> SlotFetched | SlotFed:
        """Results have moved from a producer to the store, or from there to a consumer; or they are lost."""
        place, request = call.place, call.request
        assert request is not None
        if call.what == "feed":
            return SlotFed(place.index, request, call.units, not answer, why)
        if place.running is request:  # also what could not be fetched: it is made again, and would take up room for ever
            self._control(place.index, messages.ReleaseResults(call.units))
        gone = tuple(unit for unit in call.units if unit not in answer)
        return SlotFetched(place.index, request, answer, call.reference if answer else None, gone, why)

    def _said(self, place: _Place, about: tuple[FromSlot, ...], files: Mapping[str, Any]) -> SlotTrial:
        request = place.running
        assert request is not None
        said = SlotTrial(place.index, request, about, files.get("arrays"), files.get("store"))
        gone = False
        if said.outcome is not None:
            place.running = None
            gone = place.leaving or self._goes(place, said.outcome)
            if place.leaving:
                self._remove(place)
            elif gone:
                ray.kill(place.actor)
                place.actor, place.node = None, ""
                place.again = time.monotonic() + POD_GOES
        return dataclasses.replace(said, gone=gone)

    def _goes(self, place: _Place, outcome: TrialOutcome) -> bool:
        """Whether a slot's pod is about to end: what stops a trial there that is not ours to stop is the pod's hook.

        The trial would be tried again in the same pod, and be lost once more with it.
        """
        stopped = outcome.failure is FailureClass.LOST and outcome.exit_code is not None  # else its template died
        return self._config.ship and stopped and not place.asked

    def _lost(self, place: _Place, call: str, error: Exception) -> Iterator[SlotTrial]:
        request, place.running = place.running, None
        node, place.node = place.node, ""
        ray.kill(place.actor)  # it may only have been out of reach for a moment
        place.actor = None
        if place.leaving:
            self._remove(place)
        elif call == "start":
            self._start_failed(place, error)
        else:
            self._open(place)
        if request is not None:
            outcome = TrialOutcome(
                number=request.number,
                state=TrialState.FAILED,
                failure=FailureClass.LOST,
                message=f"slot {place.index} was lost with its trial: {errors.first_line(error)}",
                ended=time.time(),
                node=node,
            )
            yield SlotTrial(place.index, request, (TrialEnded(outcome),), gone=True)

    def _failed(self, place: _Place, call: str, error: ray.exceptions.RayTaskError) -> Iterator[SlotTrial]:
        """A call raised: the job's code does not import, or the slot itself is broken and is replaced."""
        cause = error.cause
        if isinstance(cause, errors.EntrypointError) and not self._has_begun:
            raise errors.EntrypointError(f"no trial was started: {cause}") from error
        yield from self._lost(place, call, cause or error)

    def _start_failed(self, place: _Place, error: Exception) -> None:
        """Tries a slot again that did not start; gives it up, or the run when too few are left for a trial."""
        goes_on = self.ready >= self._config.nodes
        failures = place.starts if goes_on else self._failures
        is_over = failures.failure(time.monotonic())
        if is_over and not goes_on:
            raise errors.SlotError(
                f"{failures.count} slots in a row could not be started: {error}; see {self._config.root}/slots"
            ) from error
        what = "is not used until the run is paused and resumed" if is_over else "is started again"
        place.trouble = f"failed to start {errors.counted(failures.count, 'time')} and {what}: {errors.first_line(error)}"
        log.warning("%s %s; see %s/slots", self._named(place), place.trouble, self._config.root)
        place.is_given_up = is_over
        place.again = time.monotonic() + failures.pause
        if not failures.pause and not is_over:
            self._open(place)

    def _named(self, place: _Place) -> str:
        role = self._config.role
        return "the learner" if role == "learner" else f"{'worker' if role == 'worker' else 'slot'} {place.index}"
