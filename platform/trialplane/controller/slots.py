"""Slots: one Ray actor per place where a process of a role can run.

Ray is known here, in `exchange`, `slot_actor` and `ray_session`.

A slot actor runs one process at a time and answers each call with its next event, so the pool has at most one call under way
per slot, and `events` waits for whichever answers first. An actor that dies has lost what ran in it; the pool reports that
and puts a new actor in its place. In a cluster an actor waits for its pod, for as long as that takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

import ray

from trialplane import errors
from trialplane.controller import ray_session
from trialplane.controller.slot_actor import GROUPS, SlotActor
from trialplane.controller.slot_events import SlotEvent, SlotReady, SlotTrial
from trialplane.wire import cluster, messages
from trialplane.wire.messages import TrialEnded
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

log = logging.getLogger(__name__)

MAX_START_FAILURES = 3  # in a row: of one slot while others work, else over all slots
START_PATIENCE = 600.0  # seconds for which a cluster may give no slot that starts, and only ones that fail
POD_GOES = 10.0  # seconds for a pod to be gone after its trial was stopped


_LONGEST_PAUSE = 30.0  # seconds before a slot that failed to start is tried again


class StartFailures:
    """Counts failures in a row: those of one slot while others work, else those of all slots together.

    Args:
        limit: how many are too many.
        seconds: for how long nothing but failures must have come. On one machine a slot that does not start will not; in a
            cluster three drained pods say nothing of the next ones.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self.count = 0
        self._first = 0.0

    def success(self) -> None:
        """A slot has started."""
        self.count = 0

    def failure(self, now: float) -> bool:
        """A slot has failed to start; says whether that is one too many."""
        if not self.count:
            self._first = now
        self.count += 1
        return self.count >= self._limit and now - self._first >= self._seconds

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try."""
        return min(2.0 ** min(self.count - 1, 10), _LONGEST_PAUSE) if self.count and self._seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Process:
    """What runs in a slot: one process of a role, or the one that supervises its ranks.

    Attributes:
        slot: where.
        actor: the slot's.
        serial: tells it from those before it in the slot: a call may come when it has ended, and the next one runs.
        request: the attempt that it works on.
    """

    slot: int
    actor: Any
    serial: int
    request: TrialRequest

    def send(self, message: messages.Control) -> None:
        """Sends it a message; one that comes when it has ended is dropped."""
        self.actor.control.remote(self.serial, messages.encode(message))


@dataclasses.dataclass
class _Place:
    """One slot as the pool sees it.

    Attributes:
        index: its number; free again when the slot has gone for good.
        actor: None while it waits to be tried again, until `again`.
        node: where its template is warm, or "".
        running: what runs in it.
        leaving: whether it goes when what runs in it has ended.
        asked: whether we have asked what runs in it to end.
        starts: how often in a row it has failed to start while others worked.
        trouble: why it did the last time; "" when it has started.
        is_given_up: whether it is not tried again.
    """

    index: int
    starts: StartFailures
    actor: Any = None
    again: float = 0.0
    node: str = ""
    running: Process | None = None
    leaving: bool = False
    asked: bool = False
    trouble: str = ""
    is_given_up: bool = False


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
        self._pending: dict[Any, _Place] = {}  # reference to an answer → who owes it
        self._places: dict[int, _Place] = {}
        self._serials = itertools.count()
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
    def idle(self) -> list[int]:
        """The slots with a warm template in which nothing runs."""
        return [place.index for place in self._places.values() if place.node and place.running is None]

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

    def resize(self, size: int) -> None:
        """Makes it `size` slots: more at once; fewer by ending those that start, then idle ones.

        A slot that was given up goes before any other, and one in which something runs when that has ended.
        """
        places = self._places.values()
        for place in sorted(places, key=lambda place: (place.running is not None, bool(place.node), not place.is_given_up)):
            surplus = self.size - size
            if surplus > 0 and not place.leaving:
                if place.running is None:
                    self._remove(place)
                else:
                    place.leaving = True
            elif surplus < 0 and place.leaving:
                place.leaving = False
        while self.size < size:
            index = next(number for number in itertools.count() if number not in self._places)
            self._places[index] = _Place(index, StartFailures(MAX_START_FAILURES, self._patience))
            self._open(self._places[index])

    def start(self, slot: int, request: TrialRequest, weights: Any = None) -> None:
        """Starts an attempt in a slot that is idle; a collection's worker with the reference to its packed weights."""
        place = self._places[slot]
        assert place.running is None, f"slot {slot} runs {place.running}"
        place.running = process = Process(slot, place.actor, next(self._serials), request)
        place.asked = False
        start = messages.encode(messages.StartAttempt(request))
        started = process.actor.run.remote(process.serial, start, [] if weights is None else [weights])
        self._pending[started] = place

    def answer(self, slot: int, prune: bool = False) -> None:
        """Answers the event of a slot whose process has not ended."""
        place = self._places[slot]
        self._pending[place.actor.answer.remote(messages.encode(messages.AnswerReport(prune)))] = place

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends what runs in a slot; its outcome comes as an event."""
        self._ask(slot, messages.KillTrial(failure, message))

    def stop(self, slot: int, message: str) -> None:
        """Lets what runs in a slot save itself and end, within the grace of `SlotConfig`; its outcome comes as an event."""
        self._ask(slot, messages.StopTrial(message))

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return {place.index: place.running.request for place in self._places.values() if place.running is not None}

    def process(self, slot: int) -> Process | None:
        """What runs in a slot, if anything does."""
        return self._places[slot].running if slot in self._places else None

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The slots' next events, waiting at most `timeout` seconds for the first. Raises as `take`."""
        yield from self.take(ray_session.wait(self.pending, timeout))

    def take(self, answered: Iterable[Any]) -> Iterator[SlotEvent]:
        """The events that these answers make; answers of others are left alone.

        Raises:
            EntrypointError: the job's code does not import, and never has in this run.
            SlotError: slots fail to start, again and again, and too few are left.
        """
        for place in self._places.values():
            if place.actor is None and not place.is_given_up and time.monotonic() >= place.again:
                self._open(place)
        for reference in answered:
            if reference not in self._pending:  # another pool's, or the slot went because of what another one answered
                continue
            place = self._pending.pop(reference)
            try:
                event = self._event(place, ray.get(reference))
            except errors.MessageError as error:
                yield from self._lost(place, error)
            except ray.exceptions.RayTaskError as error:  # the job's code does not import, or the slot itself is broken
                cause = error.cause or error
                if isinstance(cause, errors.EntrypointError) and not self._has_begun:
                    raise errors.EntrypointError(f"no trial was started: {cause}") from error
                yield from self._lost(place, cause)
            except ray.exceptions.RayError as error:  # the actor died, or the files' owner with it
                yield from self._lost(place, error)
            else:
                yield event

    def close(self) -> None:
        """Ends all slots."""
        actors = [place.actor for place in self._places.values() if place.actor is not None]
        # A slot that still imports takes no call; its template ends with it.
        closing = [place.actor.close.remote() for place in self._places.values() if place.node]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=10)
        for actor in actors:
            ray.kill(actor)

    def _ask(self, slot: int, message: messages.KillTrial | messages.StopTrial) -> None:
        """Asks what runs in a slot to end, if anything does."""
        place = self._places[slot]
        place.asked = True
        if place.running is not None:
            place.running.send(message)

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
        self._pending[place.actor.start.remote()] = place

    def _remove(self, place: _Place) -> None:
        """Ends a slot in which nothing runs, for good; its template ends with it, and its pod is free."""
        del self._places[place.index]
        self._pending = {answer: owed for answer, owed in self._pending.items() if owed is not place}
        if place.actor is not None:
            ray.kill(place.actor)

    def _event(self, place: _Place, answer: Any) -> SlotEvent:
        """The event that an answer makes: of a slot in which nothing runs that its template is warm.

        Raises:
            MessageError: it is no answer.
        """
        if place.running is not None:
            about = tuple(messages.decode(each, messages.FROM_SLOT) for each in answer[0])
            files = {name: ray.get(part) for name, part in answer[1].items()}
            event = SlotTrial(place.index, place.running.request, about, files.get("arrays"), files.get("store"))
            return event if event.outcome is None else dataclasses.replace(event, gone=self._ended(place, event.outcome))
        started = messages.decode(answer, messages.FROM_STARTING)
        self._has_begun = True
        self._failures.success()
        place.starts.success()
        place.node, place.trouble = started.node, ""
        log.info("%s is warm after %.1f s of imports", self._named(place), started.seconds)
        if started.unclean:
            reasons = "; ".join(started.unclean)
            log.warning("%s spawns its processes, which takes longer than forking: %s", self._named(place), reasons)
        return SlotReady(place.index, started.seconds, started.unclean, started.mlflow, started.node, started.address)

    def _ended(self, place: _Place, outcome: TrialOutcome) -> bool:
        """What ran in a slot has ended so; returns whether the slot is gone with it."""
        goes, place.running = self._goes(place, outcome), None
        if place.leaving:
            self._remove(place)
        elif goes:
            ray.kill(place.actor)
            place.actor, place.node = None, ""
            place.again = time.monotonic() + POD_GOES
        return place.leaving or goes

    def _goes(self, place: _Place, outcome: TrialOutcome) -> bool:
        """Whether a slot's pod is about to end: what stops a trial there that is not ours to stop is the pod's hook.

        The trial would be tried again in the same pod, and be lost once more with it.
        """
        stopped = outcome.failure is FailureClass.LOST and outcome.exit_code is not None  # else its template died
        return self._config.ship and stopped and not place.asked

    def _lost(self, place: _Place, error: Exception) -> Iterator[SlotTrial]:
        """A slot is lost, and what ran in it."""
        process, place.running = place.running, None
        node, place.node = place.node, ""
        ray.kill(place.actor)  # it may only have been out of reach for a moment
        place.actor = None
        if place.leaving:
            self._remove(place)
        elif not node:
            self._start_failed(place, error)
        else:
            self._open(place)
        if process is not None:
            outcome = TrialOutcome(
                number=process.request.number,
                state=TrialState.FAILED,
                failure=FailureClass.LOST,
                message=f"slot {place.index} was lost with its trial: {errors.first_line(error)}",
                ended=time.time(),
                node=node,
            )
            yield SlotTrial(place.index, process.request, (TrialEnded(outcome),), gone=True)

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
