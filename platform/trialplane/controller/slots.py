"""A pool of slots. Each slot is one actor, and runs one process of a role at a time.

An actor first starts a template: a process that imports the job's modules once, and from which each attempt's process is
forked. A slot is warm when its template has imported them. Roles are those of the job's processes: trial, worker or learner.

The pool calls an actor to start an attempt, or to answer its last event. The actor answers the call with its next event. So
the pool has at most one pending call per slot, and `events` waits for the first answer. When an actor dies, its process is
lost: the pool reports the loss and starts a new actor. The host (`slot_host`) starts the actors, in Ray or as processes of
this machine.
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
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_START_FAILURES = 3  # consecutive failures: of one slot while others work, otherwise of all slots together
START_PATIENCE = 600.0  # seconds during which all slots of a cluster may fail to start
CLOSE_PATIENCE = 10.0  # seconds in which all slots end their templates
KILL_PATIENCE = 300.0  # seconds in which a slot kills its process, removes its files and answers
POD_END_SECONDS = 10.0  # seconds in which a pod ends after its trial was stopped
_LONGEST_PAUSE = 30.0  # longest pause in seconds before a slot that failed to start is started again


class StartFailures:
    """Consecutive failures to start, of one slot or of all slots together.

    Args:
        seconds: Time that must have passed since the first failure, before `MAX_START_FAILURES` are too many. In a cluster
            this is long, because the failures of a few pods on a drained node say nothing about other pods. On one machine
            it is 0.

    Attributes:
        count: Number of consecutive failures.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.count = 0
        self._first_time = 0.0  # of the first failure

    def record_success(self) -> None:
        """Record that a slot has started."""
        self.count = 0

    def record_failure(self, now: float) -> bool:
        """Record that a slot has failed to start at the time `now`; return whether these are too many failures."""
        if not self.count:
            self._first_time = now
        self.count += 1
        return self.count >= MAX_START_FAILURES and now - self._first_time >= self._seconds

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try. On one machine a slot is started again at once."""
        return backoff.pause(self.count, _LONGEST_PAUSE) if self.count and self._seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Process:
    """The process in a slot: one process of a role, or the one that supervises its ranks.

    Attributes:
        actor: Actor of the slot.
        serial: Number of the process. A call for it may arrive after its end, when the slot has another process.
        request: Request of the attempt that it works on.
    """

    actor: Actor
    serial: int
    request: TrialRequest

    def send(self, message: messages.Control) -> None:
        """Send the process a message, which is dropped if the process has ended."""
        self.actor.call("control", self.serial, messages.encode(message))


@dataclasses.dataclass(frozen=True)
class _ActorCall(Generic[T]):
    """A `SlotCall` of an actor.

    Attributes:
        host: Host of the slots.
        reference: Reference to the answer.
        decode: Function that decodes the answer.
    """

    host: SlotHost
    reference: Any
    decode: Callable[[Any], T]

    def done(self) -> bool:
        return bool(self.host.wait([self.reference], timeout=0))

    def result(self) -> T:
        return self.decode(self.host.result(self.reference))


@dataclasses.dataclass
class _SlotState:
    """The state of one slot.

    Times are by the monotonic clock.

    Attributes:
        index: Number of the slot; reused after the slot was removed.
        start_failures: Consecutive failures of the slot to start while others worked.
        actor: Actor of the slot; None while it waits for its next start.
        next_start: Time of the next start.
        node: Host or pod on which its template is warm; "" while it is not warm.
        running: Process in the slot; None while it is idle.
        is_leaving: Whether the slot is removed when its process has ended.
        was_told_to_end: Whether the controller has told the process to end.
        answer_by: Time by which the slot must have killed its process and answered; None unless the controller requested
            that.
        exiting_since: Time when the process reported that its exit takes long; None if it has not.
        trouble: Description of its last failure to start; "" after a start.
        is_given_up: Whether it is not started again.
    """

    index: int
    start_failures: StartFailures
    actor: Actor | None = None
    next_start: float = 0.0
    node: str = ""
    running: Process | None = None
    is_leaving: bool = False
    was_told_to_end: bool = False
    answer_by: float | None = None
    exiting_since: float | None = None
    trouble: str = ""
    is_given_up: bool = False


class SlotPool:
    """A `Pool` of actors.

    Args:
        host: Host that starts the actors.
        config: Configuration that all slots share.
        size: Number of slots.
        patience: Seconds for which all slots may fail to start before the run fails; 0 on one machine.
        has_begun: Whether attempts have run under an earlier controller. The job's code can be imported then, so a slot that
            fails to import it does not end the run.
    """

    def __init__(
        self, host: SlotHost, config: SlotConfig, size: int, patience: float = 0.0, *, has_begun: bool = False
    ) -> None:
        self._host = host
        self._config = config
        self._patience = patience
        self._has_begun = has_begun
        self._pending: dict[Any, _SlotState] = {}  # reference to an answer → the slot that will send it
        self._states: dict[int, _SlotState] = {}
        self._serials = itertools.count()
        self._failures = StartFailures(patience)
        self._generation = 0  # number of actors started so far, for their names
        self.resize(size)

    @property
    def size(self) -> int:
        """The number of slots, including those still starting and without those being removed."""
        return sum(not state.is_leaving for state in self._states.values())

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
        """A message on a slot that does not start, or else on one whose process does not exit; "" if there is none."""
        failing = [state for state in self._states.values() if state.trouble]
        if failing:
            shown = next((state for state in failing if state.is_given_up), failing[0])
            others = len(failing) - 1
            remark = f"; {errors.counted(others, 'other slot')} failed to start as well" if others else ""
            return f"{self._slot_name(shown)} {shown.trouble}{remark}"
        exiting = (state for state in self._states.values() if state.exiting_since is not None)
        return next((self._exit_message(state) for state in exiting), "")

    @property
    def leaving(self) -> frozenset[int]:
        """The slots that will be removed when their process has ended."""
        return frozenset(state.index for state in self._states.values() if state.is_leaving)

    def resize(self, size: int) -> None:
        """Grow or shrink to `size` slots.

        Slots are removed in this order: those that were given up, those that are starting, idle ones, and then those in
        which a process runs. The latter are removed when their process has ended, unless the pool grows again before.
        """

        def removal_order(state: _SlotState) -> tuple[bool, bool, bool]:
            """Return a key that sorts slots in this order, as False sorts before True."""
            is_running, is_warm = state.running is not None, bool(state.node)
            return is_running, is_warm, not state.is_given_up

        for state in sorted(self._states.values(), key=removal_order):
            surplus = self.size - size
            if surplus > 0 and not state.is_leaving:
                if state.running is None:
                    self._remove(state)
                else:
                    state.is_leaving = True
            elif surplus < 0 and state.is_leaving:
                state.is_leaving = False
        while self.size < size:
            index = next(number for number in itertools.count() if number not in self._states)
            self._states[index] = _SlotState(index, StartFailures(self._patience))
            self._start_actor(self._states[index])

    def start(self, slot: int, request: TrialRequest, weights: Any = None) -> None:
        """Start an attempt in an idle slot.

        Args:
            slot: Number of the slot.
            request: Request of the attempt.
            weights: Reference to the packed weights, for a worker of a collection; otherwise None.
        """
        state = self._states[slot]
        assert state.running is None, f"slot {slot} runs {state.running}"
        assert state.actor is not None
        state.running = process = Process(state.actor, serial=next(self._serials), request=request)
        state.was_told_to_end, state.answer_by, state.exiting_since = False, None, None
        start = messages.encode(messages.StartAttempt(request))
        # Ray would fetch the weights of a plain reference before the call. In a list the actor fetches them itself.
        reference = process.actor.call("run", process.serial, start, [] if weights is None else [weights])
        self._pending[reference] = state

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the event of a slot whose process has not ended; see `Pool.answer`."""
        state = self._states[slot]
        assert state.actor is not None
        reference = state.actor.call("answer", messages.encode(messages.AnswerReport(prune_at, suggested)))
        self._pending[reference] = state

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the process in a slot, see `Pool.kill`. A slot that does not answer for `KILL_PATIENCE` is replaced."""
        state = self._states[slot]
        if state.running is not None and state.answer_by is None:
            state.answer_by = time.monotonic() + KILL_PATIENCE
        self._send_end(state, messages.KillTrial(failure, message))

    def stop(self, slot: int, message: str) -> None:
        """Let the process in a slot save a checkpoint and end, see `Pool.stop`."""
        self._send_end(self._states[slot], messages.StopTrial(message))

    def remove_checkpoints(self, folders: tuple[TrialFolder, ...]) -> SlotCall[None] | None:
        """Start the removal of folders of checkpoints in a ready slot; None if no slot is ready. See `Pool`."""
        if (actor := self._ready_actor()) is None:
            return None
        reference = actor.call("remove", messages.encode(messages.RemoveCheckpoints(folders)))
        return _ActorCall(self._host, reference, decode=lambda _: None)

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Let a slot send files to MLflow, see `Pool.send_files`."""
        if (actor := self._ready_actor()) is None:
            return None
        reference = actor.call("send_files", messages.encode(message))
        return _ActorCall(self._host, reference, decode=lambda data: messages.decode(data, messages.FILES_SENT))

    def _ready_actor(self) -> Actor | None:
        """Return the actor of a slot with a warm template; None if there is none."""
        return next((state.actor for state in self._states.values() if state.node and not state.is_leaving), None)

    def running(self) -> dict[int, TrialRequest]:
        """Return the attempt in each slot that has one, by slot."""
        return {state.index: state.running.request for state in self._states.values() if state.running is not None}

    def process(self, slot: int) -> Process | None:
        """Return the process in a slot; None if the slot is idle or does not exist."""
        return self._states[slot].running if slot in self._states else None

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        """Yield the slots' next events, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError, SlotError: As `take`.
        """
        yield from self.take(self._host.wait(self.pending, timeout))

    def take(self, answered: Iterable[Any]) -> Iterator[SlotEvent]:
        """Yield the events of these answers.

        Also start slots whose next start is due, and replace slots that have not answered a kill in time.

        Args:
            answered: References to answers that have arrived; those of other pools are ignored.

        Raises:
            EntrypointError: The job's code cannot be imported, and no attempt of this run has started.
            SlotError: Slots repeatedly failed to start, and too few are left.
        """
        for state in self._states.values():
            is_due = time.monotonic() >= state.next_start
            if state.actor is None and not state.is_given_up and is_due:
                self._start_actor(state)
        for reference in answered:
            if reference not in self._pending:  # of another pool, or of a slot that an earlier answer has removed
                continue
            state = self._pending.pop(reference)
            state.answer_by = None  # if the process still runs and must be killed, the loop calls `kill` again
            is_of_start = state.running is None  # otherwise the answer is that of the process in the slot
            try:
                answer = self._host.result(reference)
                event = self._record_warm(state, answer) if is_of_start else self._take_messages(state, answer)
            except Exception as error:  # the actor died, is of another version, or is broken
                if isinstance(error, errors.EntrypointError) and not self._has_begun:  # the job's code has never worked
                    raise errors.EntrypointError(f"{states.NO_TRIAL}: {error}") from error
                yield from self._handle_loss(state, error)
            else:
                yield event
        yield from self._replace_unresponsive()

    def close(self) -> None:
        """End all slots."""
        actors = [state.actor for state in self._states.values() if state.actor is not None]
        # A slot that still imports the job's code answers no call; it is killed below.
        closing = {state.actor.call("close") for state in self._states.values() if state.node and state.actor is not None}
        deadline = time.monotonic() + CLOSE_PATIENCE
        while closing and (seconds := deadline - time.monotonic()) > 0:
            closing -= set(self._host.wait(list(closing), seconds))
        for actor in actors:
            actor.kill()

    def _replace_unresponsive(self) -> Iterator[SlotTrial]:
        """Replace slots that have not answered a kill in time, and yield the ends of their processes."""
        for state in list(self._pending.values()):
            if state.answer_by is not None and time.monotonic() >= state.answer_by:
                self._forget_pending(state)
                state.answer_by = None
                no_answer = errors.SlotError(f"it did not answer for {KILL_PATIENCE:g} s (stopped?)")
                yield from self._handle_loss(state, no_answer)

    def _send_end(self, state: _SlotState, message: messages.KillTrial | messages.StopTrial) -> None:
        """Send the message that kills or stops the process in a slot, if a process runs."""
        state.was_told_to_end = True
        if state.running is not None:
            state.running.send(message)

    def _start_actor(self, state: _SlotState) -> None:
        """Start a new actor and its template in a slot."""
        self._generation += 1
        prefix = "" if self._config.role == "trial" else f"{self._config.role}-"
        name = f"{prefix}{state.index}-{self._generation}"  # for example 0-1, or worker-3-17
        state.actor = self._host.open(self._config, name)
        self._pending[state.actor.call("start")] = state

    def _remove(self, state: _SlotState) -> None:
        """Remove a slot in which nothing runs. Its template ends, and its pod is free."""
        del self._states[state.index]
        self._forget_pending(state)
        self._kill_actor(state)

    def _forget_pending(self, state: _SlotState) -> None:
        """Stop waiting for answers of a slot."""
        self._pending = {answer: owner for answer, owner in self._pending.items() if owner is not state}

    def _kill_actor(self, state: _SlotState) -> None:
        """Kill a slot's actor, if it has one."""
        if state.actor is not None:
            state.actor.kill()
            state.actor = None

    def _take_messages(self, state: _SlotState, answer: Any) -> SlotTrial:
        """Return the event that the process in a slot has sent messages, and record its end if it has ended.

        Args:
            state: State of the slot.
            answer: Answer of the slot, see `worker.slot_actor.Answer`.

        Raises:
            MessageError: The answer is not valid.
        """
        assert state.running is not None
        encoded_messages, file_references = answer
        decoded = tuple(messages.decode(message, messages.FROM_SLOT) for message in encoded_messages)
        if any(isinstance(message, messages.Exiting) for message in decoded):
            state.exiting_since = time.monotonic()
        files = {name: self._host.read(reference) for name, reference in file_references.items()}
        arrays, store = files.get("arrays"), files.get("store")
        event = SlotTrial(state.index, state.running.request, messages=decoded, arrays=arrays, store=store)
        if event.outcome is None:
            return event
        is_slot_lost = self._end_process(state, event.outcome)
        return dataclasses.replace(event, slot_lost=is_slot_lost)

    def _record_warm(self, state: _SlotState, answer: Any) -> SlotReady:
        """Record that a slot's template is warm, and return the event about it.

        Args:
            state: State of the slot.
            answer: Answer of the slot to its start.

        Raises:
            MessageError: The answer is not valid.
        """
        started = messages.decode(answer, messages.FROM_STARTING)
        self._has_begun = True
        self._failures.record_success()
        state.start_failures.record_success()
        state.node, state.trouble = started.node, ""
        log.info("%s is warm after %.1f s of imports", self._slot_name(state), started.seconds)
        if started.unclean:
            reasons = "; ".join(started.unclean)
            log.warning("%s spawns its processes, which takes longer than forking: %s", self._slot_name(state), reasons)
        return SlotReady(
            slot=state.index, seconds=started.seconds, unclean=started.unclean, node=started.node, address=started.address
        )

    def _end_process(self, state: _SlotState, outcome: TrialOutcome) -> bool:
        """Record the end of a slot's process.

        A slot that is leaving is removed. If the slot's pod ends, a new actor is started later, in another pod.

        Returns:
            Whether the slot is lost with the process, for either reason.
        """
        pod_ends = self._is_pod_ending(state, outcome)
        state.running, state.exiting_since = None, None
        if state.is_leaving:
            self._remove(state)
        elif pod_ends:
            self._kill_actor(state)
            state.node = ""
            state.next_start = time.monotonic() + POD_END_SECONDS
        return state.is_leaving or pod_ends

    def _is_pod_ending(self, state: _SlotState, outcome: TrialOutcome) -> bool:
        """Return whether a slot's pod is terminating, so that a retry in it would be lost as well.

        In a cluster the preStop hook of a terminating pod stops the process by SIGTERM. So the pod is taken for terminating
        if its process was stopped, but not by the controller.
        """
        # A process that was stopped by SIGTERM is LOST with an exit code. Without an exit code its template has died.
        # A trial whose checkpoint is missing is LOST with an exit code, too: another pod may find it.
        was_stopped = outcome.failure is FailureClass.LOST and outcome.exit_code is not None
        in_cluster = self._config.ship
        return in_cluster and was_stopped and not state.was_told_to_end

    def _handle_loss(self, state: _SlotState, error: Exception) -> Iterator[SlotTrial]:
        """Replace the actor of a slot that was lost or failed to start, and yield the end of its process if one ran.

        A slot that is leaving is removed instead.

        Raises:
            SlotError: See `_handle_start_failure`.
        """
        process, node = state.running, state.node
        state.running, state.exiting_since, state.node = None, None, ""
        self._kill_actor(state)  # it may still run, if it was only unreachable for a moment
        if state.is_leaving:
            self._remove(state)
        elif not node:  # it was not warm yet
            self._handle_start_failure(state, error)
        else:
            self._start_actor(state)
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

    def _handle_start_failure(self, state: _SlotState, error: Exception) -> None:
        """Start a slot that has failed to start again, at once or after a pause, or give it up after too many failures.

        While enough other slots work for a trial, the failures of this slot are counted, and too many only give it up.
        Otherwise the failures of all slots are counted together, and too many end the run.

        Raises:
            SlotError: There were too many failures, and too few other slots are left for a trial.
        """
        can_continue = self.ready >= self._config.nodes
        failures = state.start_failures if can_continue else self._failures
        has_too_many = failures.record_failure(time.monotonic())
        if has_too_many and not can_continue:
            raise errors.SlotError(
                f"{failures.count} slots in a row could not be started: {error}; see {self._config.root}/slots"
            ) from error
        consequence = "is not used until the run is paused and resumed" if has_too_many else "is started again"
        state.trouble = (
            f"failed to start {errors.counted(failures.count, 'time')} and {consequence}: {errors.first_line(error)}"
        )
        log.warning("%s %s; see %s/slots", self._slot_name(state), state.trouble, self._config.root)
        state.is_given_up = has_too_many
        state.next_start = time.monotonic() + failures.pause  # `take` starts it then
        if not failures.pause and not has_too_many:
            self._start_actor(state)

    def _exit_message(self, state: _SlotState) -> str:
        """Return a message about a process that takes long to exit after it has returned its result."""
        assert state.running is not None
        assert state.exiting_since is not None
        seconds = time.monotonic() - state.exiting_since
        return (
            f"{self._slot_name(state)}: trial {state.running.request.trial} has its result, but its process has not exited "
            f"for more than {seconds:.0f} s (an exit hook?); it is killed after {self._config.linger:g} s, see "
            "budget.exit_timeout"
        )

    def _slot_name(self, state: _SlotState) -> str:
        """Return the name of a slot in messages."""
        role = self._config.role
        if role == "learner":
            return "the learner"
        return f"{'worker' if role == 'worker' else 'slot'} {state.index}"
