"""The pool of slots: one actor for each process of a role that can run at a time.

An actor runs one process at a time and answers each call with its next event, so the pool has at most one pending call per
slot, and `events` waits for whichever answers first. When an actor dies, its process is lost; the pool reports that and
starts a new actor instead. The host (`slot_host`) decides what an actor is.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from trialplane import errors
from trialplane.controller.pool import SlotCall, SlotEvent, SlotReady, SlotTrial
from trialplane.controller.slot_host import Actor, SlotHost
from trialplane.wire import backoff, messages, states
from trialplane.wire.messages import TrialEnded
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_START_FAILURES = 3  # in a row: of one slot while others work, else over all slots
START_PATIENCE = 600.0  # seconds for which every slot of a cluster may fail to start
CLOSE_PATIENCE = 10.0  # seconds for all slots to end their templates
KILL_PATIENCE = 300.0  # seconds for a slot to answer after it was to kill its process, and to remove the files of that
POD_GOES = 10.0  # seconds for a pod to be gone after its trial was stopped
_LONGEST_PAUSE = 30.0  # seconds before a slot that failed to start is tried again


class StartFailures:
    """Counts failures in a row: those of one slot while others work, else those of all slots together.

    Args:
        limit: how many are too many.
        seconds: how long the failures must have lasted. On one machine a slot that failed to start will fail again; in a
            cluster three drained pods mean nothing for the next ones.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self.count = 0
        self._first_time = 0.0

    def success(self) -> None:
        """Record that a slot has started."""
        self.count = 0

    def failure(self, now: float) -> bool:
        """Record that a slot has failed to start; return whether the limit is reached."""
        if not self.count:
            self._first_time = now
        self.count += 1
        return self.count >= self._limit and now - self._first_time >= self._seconds

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try."""
        return backoff.pause(self.count, _LONGEST_PAUSE) if self.count and self._seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Process:
    """The process in a slot: one of a role, or the one that supervises its ranks.

    Attributes:
        actor: the slot's.
        serial: distinguishes it from earlier ones in the slot: a call may arrive when the next one already runs.
        request: the attempt that it works on.
    """

    actor: Actor
    serial: int
    request: TrialRequest

    def send(self, message: messages.Control) -> None:
        """Send the process a message, which is dropped if it has ended."""
        self.actor.call("control", self.serial, messages.encode(message))


@dataclasses.dataclass(frozen=True)
class _ActorCall(Generic[T]):
    """A `SlotCall` of an actor; `decode` reads what it returned."""

    host: SlotHost
    reference: Any
    decode: Callable[[Any], T]

    def done(self) -> bool:
        return bool(self.host.wait([self.reference], 0))

    def result(self) -> T:
        return self.decode(self.host.result(self.reference))


@dataclasses.dataclass
class _SlotState:
    """The state of one slot.

    Attributes:
        index: its number; free again when the slot has gone for good.
        actor: None while it waits for its next start, until `again`.
        node: where its template is warm, or "".
        running: the process in it.
        leaving: whether it is removed when its process has ended.
        was_ended: whether the controller has ended its process.
        answer_by: when a slot that was to kill its process must have answered, by the monotonic clock; or None.
        exiting_since: since when its process has been known to exit for long, by the monotonic clock; or None.
        starts: how often in a row it has failed to start while others worked.
        trouble: why it failed the last time; "" when it has started.
        is_given_up: whether it is not started again.
    """

    index: int
    starts: StartFailures
    actor: Actor | None = None
    again: float = 0.0
    node: str = ""
    running: Process | None = None
    leaving: bool = False
    was_ended: bool = False
    answer_by: float | None = None
    exiting_since: float | None = None
    trouble: str = ""
    is_given_up: bool = False


class SlotPool:
    """A `Pool` of actors.

    Args:
        host: starts the actors.
        config: what all slots share.
        size: how many.
        patience: seconds for which slots may do nothing but fail to start: 0 on one machine.
        has_begun: whether the job's code is known to import, as slots of a former controller have run it.
    """

    def __init__(
        self, host: SlotHost, config: SlotConfig, size: int, patience: float = 0.0, *, has_begun: bool = False
    ) -> None:
        self._host = host
        self._config = config
        self._patience = patience
        self._has_begun = has_begun
        self._pending: dict[Any, _SlotState] = {}  # reference to an answer → the slot that owes it
        self._states: dict[int, _SlotState] = {}
        self._serials = itertools.count()
        self._failures = StartFailures(MAX_START_FAILURES, patience)
        self._generation = 0
        self.resize(size)

    @property
    def size(self) -> int:
        """The number of slots, including those still starting and without those being removed."""
        return sum(not state.leaving for state in self._states.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return tuple(sorted({state.node for state in self._states.values() if state.node}))

    @property
    def ready(self) -> int:
        """The number of slots with a warm template."""
        return sum(bool(state.node) for state in self._states.values())

    @property
    def pending(self) -> tuple[Any, ...]:
        """References to the outstanding answers of slots."""
        return tuple(self._pending)

    @property
    def slots(self) -> frozenset[int]:
        """All slots, including those that start or are being removed, without those that were given up."""
        return frozenset(state.index for state in self._states.values() if not state.is_given_up)

    @property
    def idle(self) -> list[int]:
        """The slots with a warm template in which nothing runs."""
        return [state.index for state in self._states.values() if state.node and state.running is None]

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why, or whose process does not exit; "" when all is well."""
        failing = [state for state in self._states.values() if state.trouble]
        if not failing:
            return next((self._exiting(state) for state in self._states.values() if state.exiting_since is not None), "")
        state = max(failing, key=lambda state: state.is_given_up)
        remark = f"; {errors.counted(len(failing) - 1, 'other slot')} failed to start as well" if len(failing) > 1 else ""
        return f"{self._named(state)} {state.trouble}{remark}"

    @property
    def leaving(self) -> frozenset[int]:
        """The slots that are removed when their trial has ended."""
        return frozenset(state.index for state in self._states.values() if state.leaving)

    def resize(self, size: int) -> None:
        """Grow at once, or shrink by removing slots: those given up, those that start, then idle ones.

        A slot in which a process runs is removed when that has ended.
        """
        slot_states = self._states.values()
        for state in sorted(
            slot_states, key=lambda state: (state.running is not None, bool(state.node), not state.is_given_up)
        ):
            surplus = self.size - size
            if surplus > 0 and not state.leaving:
                if state.running is None:
                    self._remove(state)
                else:
                    state.leaving = True
            elif surplus < 0 and state.leaving:
                state.leaving = False
        while self.size < size:
            index = next(number for number in itertools.count() if number not in self._states)
            self._states[index] = _SlotState(index, StartFailures(MAX_START_FAILURES, self._patience))
            self._open(self._states[index])

    def start(self, slot: int, request: TrialRequest, weights: Any = None) -> None:
        """Start an attempt in an idle slot; a collection's worker with the reference to its packed weights."""
        state = self._states[slot]
        assert state.running is None, f"slot {slot} runs {state.running}"
        assert state.actor is not None
        state.running = process = Process(state.actor, next(self._serials), request)
        state.was_ended, state.answer_by, state.exiting_since = False, None, None
        start = messages.encode(messages.StartAttempt(request))
        reference = process.actor.call("run", process.serial, start, [] if weights is None else [weights])
        self._pending[reference] = state

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the event of a slot whose process has not ended."""
        state = self._states[slot]
        assert state.actor is not None
        reference = state.actor.call("answer", messages.encode(messages.AnswerReport(prune_at, suggested)))
        self._pending[reference] = state

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the process in a slot; its outcome comes as an event."""
        self._end(slot, messages.KillTrial(failure, message))

    def stop(self, slot: int, message: str) -> None:
        """Let the process in a slot save itself and end, within `SlotConfig.grace`; its outcome comes as an event."""
        self._end(slot, messages.StopTrial(message))

    def remove(self, trials: tuple[int, ...]) -> SlotCall[None] | None:
        """Remove all checkpoints of these trials, in a slot; None when no slot is ready."""
        if (actor := self._ready_actor()) is None:
            return None
        reference = actor.call("remove", messages.encode(messages.RemoveCheckpoints(trials)))
        return _ActorCall(self._host, reference, lambda _: None)

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Send files to MLflow, from a slot; None when no slot is ready."""
        if (actor := self._ready_actor()) is None:
            return None
        reference = actor.call("send_files", messages.encode(message))
        return _ActorCall(self._host, reference, lambda data: messages.decode(data, messages.FILES_SENT))

    def _ready_actor(self) -> Actor | None:
        return next((state.actor for state in self._states.values() if state.node and not state.leaving), None)

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return {state.index: state.running.request for state in self._states.values() if state.running is not None}

    def process(self, slot: int) -> Process | None:
        """The process in a slot, or None."""
        return self._states[slot].running if slot in self._states else None

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """The slots' next events, waiting at most `timeout` seconds for the first. Raises as `take`."""
        yield from self.take(self._host.wait(self.pending, timeout))

    def take(self, answered: Iterable[Any]) -> Iterator[SlotEvent]:
        """The events of these answers; references of others are ignored.

        Raises:
            EntrypointError: the job's code does not import, and never has in this run.
            SlotError: slots fail to start repeatedly, and too few are left.
        """
        for state in self._states.values():
            if state.actor is None and not state.is_given_up and time.monotonic() >= state.again:
                self._open(state)
        for reference in answered:
            if reference not in self._pending:  # another pool's, or the slot was removed after another answer
                continue
            state = self._pending.pop(reference)
            state.answer_by = None  # the loop sends the kill again, if it is still to end
            try:
                event = self._event(state, self._host.result(reference))
            except Exception as error:  # the actor died, is of another version, or is broken itself
                if isinstance(error, errors.EntrypointError) and not self._has_begun:
                    raise errors.EntrypointError(f"{states.NO_TRIAL}: {error}") from error
                yield from self._lost(state, error)
            else:
                yield event
        for state in list(self._pending.values()):
            if state.answer_by is not None and time.monotonic() >= state.answer_by:
                self._pending = {answer: owner for answer, owner in self._pending.items() if owner is not state}
                state.answer_by = None
                yield from self._lost(state, errors.SlotError(f"it did not answer for {KILL_PATIENCE:g} s (stopped?)"))

    def close(self) -> None:
        """End all slots."""
        actors = [state.actor for state in self._states.values() if state.actor is not None]
        # A slot that still imports takes no call; its template ends with it.
        closing = {state.actor.call("close") for state in self._states.values() if state.node and state.actor is not None}
        until = time.monotonic() + CLOSE_PATIENCE
        while closing and (seconds := until - time.monotonic()) > 0:
            closing -= set(self._host.wait(list(closing), seconds))
        for actor in actors:
            actor.kill()

    def _end(self, slot: int, message: messages.KillTrial | messages.StopTrial) -> None:
        """Send the message that ends the process in a slot, if there is one."""
        state = self._states[slot]
        state.was_ended = True
        if state.running is not None:
            if isinstance(message, messages.KillTrial) and state.answer_by is None:
                state.answer_by = time.monotonic() + KILL_PATIENCE
            state.running.send(message)

    def _open(self, state: _SlotState) -> None:
        """Start a new actor and its template in a slot."""
        self._generation += 1
        role = "" if self._config.role == "trial" else f"{self._config.role}-"
        state.actor = self._host.open(self._config, f"{role}{state.index}-{self._generation}")
        self._pending[state.actor.call("start")] = state

    def _remove(self, state: _SlotState) -> None:
        """Remove a slot in which nothing runs; its template ends with it, and its pod is free."""
        del self._states[state.index]
        self._pending = {answer: owner for answer, owner in self._pending.items() if owner is not state}
        self._kill(state)

    def _kill(self, state: _SlotState) -> None:
        """Kill a slot's actor, if it has one."""
        if state.actor is not None:
            state.actor.kill()
            state.actor = None

    def _event(self, state: _SlotState, answer: Any) -> SlotEvent:
        """The event of an answer; if nothing runs in the slot, its template is warm.

        Raises:
            MessageError: it is not a valid answer.
        """
        if state.running is not None:
            decoded = tuple(messages.decode(message, messages.FROM_SLOT) for message in answer[0])
            if any(isinstance(message, messages.Exiting) for message in decoded):
                state.exiting_since = time.monotonic()
            files = {name: self._host.read(reference) for name, reference in answer[1].items()}
            event = SlotTrial(state.index, state.running.request, decoded, files.get("arrays"), files.get("store"))
            return (
                event if event.outcome is None else dataclasses.replace(event, slot_lost=self._ended(state, event.outcome))
            )
        started = messages.decode(answer, messages.FROM_STARTING)
        self._has_begun = True
        self._failures.success()
        state.starts.success()
        state.node, state.trouble = started.node, ""
        log.info("%s is warm after %.1f s of imports", self._named(state), started.seconds)
        if started.unclean:
            reasons = "; ".join(started.unclean)
            log.warning("%s spawns its processes, which takes longer than forking: %s", self._named(state), reasons)
        return SlotReady(state.index, started.seconds, started.unclean, started.node, started.address)

    def _ended(self, state: _SlotState, outcome: TrialOutcome) -> bool:
        """Handle the end of a slot's process; return whether the slot is gone with it."""
        goes, state.running, state.exiting_since = self._goes(state, outcome), None, None
        if state.leaving:
            self._remove(state)
        elif goes:
            self._kill(state)
            state.node = ""
            state.again = time.monotonic() + POD_GOES
        return state.leaving or goes

    def _goes(self, state: _SlotState, outcome: TrialOutcome) -> bool:
        """Whether a slot's pod is terminating: its preStop hook stopped a trial that the controller did not stop.

        A retry in the same pod would be lost once more.
        """
        stopped = outcome.failure is FailureClass.LOST and outcome.exit_code is not None  # otherwise its template died
        return self._config.ship and stopped and not state.was_ended

    def _lost(self, state: _SlotState, error: Exception) -> Iterator[SlotTrial]:
        """Handle the loss of a slot and its process."""
        process, state.running, state.exiting_since = state.running, None, None
        node, state.node = state.node, ""
        self._kill(state)  # it may only have been unreachable for a moment
        if state.leaving:
            self._remove(state)
        elif not node:
            self._start_failed(state, error)
        else:
            self._open(state)
        if process is not None:
            outcome = TrialOutcome(
                number=process.request.number,
                state=TrialState.FAILED,
                failure=FailureClass.LOST,
                message=f"slot {state.index} was lost with its trial: {errors.first_line(error)}",
                ended=time.time(),
                node=node,
            )
            yield SlotTrial(state.index, process.request, (TrialEnded(outcome),), slot_lost=True)

    def _start_failed(self, state: _SlotState, error: Exception) -> None:
        """Restart a slot that did not start; give it up, or the run when too few are left for a trial."""
        goes_on = self.ready >= self._config.nodes
        failures = state.starts if goes_on else self._failures
        is_over = failures.failure(time.monotonic())
        if is_over and not goes_on:
            raise errors.SlotError(
                f"{failures.count} slots in a row could not be started: {error}; see {self._config.root}/slots"
            ) from error
        consequence = "is not used until the run is paused and resumed" if is_over else "is started again"
        state.trouble = (
            f"failed to start {errors.counted(failures.count, 'time')} and {consequence}: {errors.first_line(error)}"
        )
        log.warning("%s %s; see %s/slots", self._named(state), state.trouble, self._config.root)
        state.is_given_up = is_over
        state.again = time.monotonic() + failures.pause
        if not failures.pause and not is_over:
            self._open(state)

    def _exiting(self, state: _SlotState) -> str:
        """A message about the process in a slot that does not exit."""
        assert state.running is not None
        assert state.exiting_since is not None
        seconds = time.monotonic() - state.exiting_since
        return (
            f"{self._named(state)}: trial {state.running.request.trial} has its result, but its process has not exited for "
            f"more than {seconds:.0f} s (an exit hook?); it is killed after {self._config.linger:g} s, see "
            "budget.exit_timeout"
        )

    def _named(self, state: _SlotState) -> str:
        role = self._config.role
        return "the learner" if role == "learner" else f"{'worker' if role == 'worker' else 'slot'} {state.index}"
