"""Slots: one Ray actor per place where a trial can run; the only module that knows Ray.

A slot actor runs one trial at a time and answers each call with the trial's next event, so the pool has at most one call
under way per slot and `events` waits for whichever answers first. An actor that dies has lost its trial; the pool says
so and puts a new actor in its place. In a cluster an actor waits for its pod, for as long as that takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from trialplane import errors
from trialplane.controller.starting import StartFailures
from trialplane.wire.records import SlotConfig, TrialEvent, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

SLOT_RESOURCE = "trial_slot"
MAX_START_FAILURES = 3  # in a row, over all slots
START_PATIENCE = 600.0  # seconds for which a cluster may give no slot that starts, and only ones that fail
POD_GOES = 10.0  # seconds for a pod to be gone after its trial was stopped


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """A slot's template is warm.

    `unclean` says why its trials are spawned, not forked; `mlflow` whether the job has imported MLflow; `node` is its
    host or pod, `address` a host:port of it where ranks of several nodes can meet.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    mlflow: bool
    node: str
    address: str = ""


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """The trial of a slot has something to say.

    `arrays` holds the packed arrays of its result, `store` the packed MLflow store of its own; `gone` says that the slot
    is no more, and that a new one is on its way unless the pool has become smaller.
    """

    slot: int
    request: TrialRequest
    event: TrialEvent
    arrays: Any = None
    store: Any = None
    gone: bool = False


class _Actor:
    """The actor's class. Knows the runtime by name only: the controller's room does not import it."""

    def __init__(self, config: SlotConfig, name: str) -> None:
        runtime = importlib.import_module("trialplane.runtime.slot")
        self._slot = runtime.Slot(config, name)
        self._number = -1  # of the newest attempt

    def start(self) -> dict[str, Any]:
        return dict(self._slot.start())

    def run(self, request: TrialRequest) -> tuple[TrialEvent, dict[str, Any]]:
        self._number = request.number
        return self._with_files(self._slot.run(request))

    def go_on(self, prune: bool) -> tuple[TrialEvent, dict[str, Any]]:
        return self._with_files(self._slot.go_on(prune))

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def kill(self, number: int, failure: FailureClass, message: str) -> None:
        if number == self._number:  # else the call took longer than its trial, and the next one runs
            self._slot.kill(failure, message)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def stop(self, number: int, message: str) -> None:
        if number == self._number:
            self._slot.stop(message)

    def close(self) -> None:
        self._slot.close()

    def _with_files(self, event: TrialEvent) -> tuple[TrialEvent, dict[str, Any]]:
        """The event, and the files it names as references into the object store, which Ray hands out as they are."""
        files = {name: Path(file) for name in ("arrays", "store") if (file := getattr(event, name)) is not None}
        if not files:
            return event, {}
        import numpy as np

        references = {name: ray.put(np.fromfile(file, dtype=np.uint8)) for name, file in files.items()}
        for file in files.values():
            file.unlink()
        return event, references


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
    """

    index: int
    actor: Any = None
    again: float = 0.0
    node: str = ""
    running: TrialRequest | None = None
    leaving: bool = False
    asked: bool = False


class SlotPool:
    """Slots, replaced when they die.

    Args:
        config: what all slots share.
        size: how many.
        patience: seconds for which slots may do nothing but fail to start: 0 on one machine.
    """

    def __init__(self, config: SlotConfig, size: int, patience: float = 0.0) -> None:
        self._config = config
        self._pending: dict[Any, tuple[_Place, str]] = {}  # reference of a call → place and what was called
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

    def resize(self, size: int) -> set[int]:
        """Makes it `size` slots: more at once; fewer by ending those that start, then idle ones.

        A slot that runs a trial goes when the trial has ended.

        Returns:
            The slots that are gone now.
        """
        gone = set()
        for place in sorted(self._places.values(), key=lambda place: (place.running is not None, bool(place.node))):
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
            self._places[index] = _Place(index)
            self._open(self._places[index])
        return gone

    def start(self, slot: int, request: TrialRequest) -> None:
        """Starts a trial in a slot that is ready and idle."""
        place = self._places[slot]
        assert place.running is None, f"slot {slot} runs trial {place.running}"
        place.running, place.asked = request, False
        self._pending[place.actor.run.remote(request)] = (place, "trial")

    def go_on(self, slot: int, prune: bool = False) -> None:
        """Answers the event of a slot whose trial has not ended."""
        place = self._places[slot]
        self._pending[place.actor.go_on.remote(prune)] = (place, "trial")

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the trial in a slot; its outcome comes as an event."""
        place = self._places[slot]
        if place.running is not None:
            place.asked = True
            place.actor.kill.remote(place.running.number, failure, message)

    def stop(self, slot: int, message: str) -> None:
        """Lets the trial in a slot save itself and end, within the grace of `SlotConfig`; its outcome comes as an event."""
        place = self._places[slot]
        if place.running is not None:
            place.asked = True
            place.actor.stop.remote(place.running.number, message)

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return {place.index: place.running for place in self._places.values() if place.running is not None}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """What slots say, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError: the job's code does not import.
            SlotError: slots fail to start, again and again.
        """
        for place in self._places.values():
            if place.actor is None and time.monotonic() >= place.again:
                self._open(place)
        if not self._pending:
            time.sleep(timeout)
            return
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        for reference in done:
            place, call = self._pending.pop(reference)
            try:
                answer = ray.get(reference)
                files = {name: ray.get(part) for name, part in answer[1].items()} if call == "trial" else {}
            except ray.exceptions.RayTaskError as error:
                yield from self._failed(place, call, error)
            except ray.exceptions.RayError as error:  # the actor died, or the files' owner with it
                yield from self._lost(place, call, error)
            else:
                if call == "start":
                    self._failures.success()
                    place.node = answer["node"]
                    unclean = tuple(answer["unclean"])
                    address = answer.get("address", "")
                    yield SlotReady(place.index, answer["seconds"], unclean, answer["mlflow"], place.node, address)
                else:
                    yield self._said(place, answer[0], files)

    def close(self) -> None:
        """Ends all slots."""
        starting = {place.index for place, call in self._pending.values() if call == "start"}
        actors = {place.index: place.actor for place in self._places.values() if place.actor is not None}
        # A slot that still imports hears nothing; its template ends with it.
        closing = [actor.close.remote() for index, actor in actors.items() if index not in starting]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=10)
        for actor in actors.values():
            ray.kill(actor)

    def _open(self, place: _Place) -> None:
        """Puts a new actor in a place and starts its template."""
        self._generation += 1
        options: dict[str, Any] = {
            "resources": {SLOT_RESOURCE: 1},
            "num_cpus": 0,  # the slot's resource already says: one trial per place
            "num_gpus": self._config.gpus,
            "concurrency_groups": {"control": 1},  # so that `kill` need not wait for the trial
        }
        actor = ray.remote(**options)(_Actor)
        place.actor = actor.remote(self._config, f"{place.index}-{self._generation}")
        self._pending[place.actor.start.remote()] = (place, "start")

    def _remove(self, place: _Place) -> None:
        """Ends a slot that runs nothing, for good; its template ends with it, and its pod is free."""
        del self._places[place.index]
        self._pending = {call: (of, what) for call, (of, what) in self._pending.items() if of is not place}
        if place.actor is not None:
            ray.kill(place.actor)

    def _said(self, place: _Place, event: TrialEvent, files: Mapping[str, Any]) -> SlotTrial:
        request = place.running
        assert request is not None
        gone = False
        if event.outcome is not None:
            place.running = None
            gone = place.leaving or self._goes(place, event.outcome)
            if place.leaving:
                self._remove(place)
            elif gone:
                ray.kill(place.actor)
                place.actor, place.node = None, ""
                place.again = time.monotonic() + POD_GOES
        return SlotTrial(place.index, request, event, files.get("arrays"), files.get("store"), gone)

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
            yield SlotTrial(place.index, request, TrialEvent(outcome=outcome), gone=True)

    def _failed(self, place: _Place, call: str, error: ray.exceptions.RayTaskError) -> Iterator[SlotTrial]:
        """A call raised: the job's code does not import, or the slot itself is broken and is replaced."""
        cause = error.cause
        if isinstance(cause, errors.EntrypointError):
            raise errors.EntrypointError(str(cause)) from error
        yield from self._lost(place, call, cause or error)

    def _start_failed(self, place: _Place, error: Exception) -> None:
        if self._failures.failure(time.monotonic()):
            raise errors.SlotError(
                f"{self._failures.count} slots in a row could not be started: {error}; see {self._config.root}/slots"
            ) from error
        place.again = time.monotonic() + self._failures.pause
        if not self._failures.pause:
            self._open(place)


def connect(size: int, gpus: int) -> None:
    """Starts a Ray of this process's own on this machine, with room for `size` slots of `gpus` GPUs each.

    Ray reads its settings when it is imported: see `__main__`.

    Raises:
        SlotError: Ray does not start, or has fewer GPUs than the trials need.
    """
    free = shutil.disk_usage("/dev/shm").free
    with _told("Ray does not start on this machine"):
        ray.init(
            address="local",
            num_cpus=max(size, 1),
            resources={SLOT_RESOURCE: size},
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=max(80 << 20, min(free // 2, 1 << 30)),
        )
    have = int(ray.cluster_resources().get("GPU", 0))
    if have < gpus * size:
        raise errors.SlotError(
            f"{errors.counted(size, 'slot')} with {errors.counted(gpus, 'GPU')} each: that is {gpus * size}, but Ray sees "
            f"{have}; lower --parallel, --nodes or --gpus"
        )


def join(address: str) -> None:
    """Joins the Ray of a cluster, whose pods bring the slots.

    Raises:
        SlotError: it does not answer.
    """
    with _told(f"the Ray at {address} cannot be joined"):
        ray.init(address=address, log_to_driver=False, configure_logging=False)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Says what Ray could not do, as SlotError."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise errors.SlotError(f"{what}: {errors.first_line(error)}") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        # A plain one says that its processes took over 30 s, a limit that nobody can change.
        text = f"{what}: {errors.first_line(error)} Is the machine very busy? `platform resume` tries again"
        raise errors.SlotError(text) from error


def disconnect() -> None:
    """Ends the Ray that `connect` started, or leaves the one that was joined."""
    ray.shutdown()
