"""Slots: one Ray actor per place where a trial can run; the only module that knows Ray.

A slot actor runs one trial at a time and answers each call with the trial's next event, so the pool has at most one call
under way per slot and `events` waits for whichever answers first. An actor that dies has lost its trial; the pool says
so and puts a new actor in its place.
"""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from trialplane import errors
from trialplane.wire.records import SlotConfig, TrialEvent, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

SLOT_RESOURCE = "trial_slot"
MAX_START_FAILURES = 3  # in a row, over all slots; then something is wrong with the place, not with a slot


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """A slot's template is warm.

    `unclean` says why its trials are spawned, not forked; `mlflow` whether the job has imported MLflow.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    mlflow: bool


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """The trial of a slot has something to say.

    `arrays` holds the packed arrays of its result; `replaced` says that the slot is gone and a new one is on its way.
    """

    slot: int
    event: TrialEvent
    arrays: Any = None
    replaced: bool = False


class _Actor:
    """The actor's class. Knows the runtime by name only: the controller's room does not import it."""

    def __init__(self, config: SlotConfig, name: str) -> None:
        runtime = importlib.import_module("trialplane.runtime.slot")
        self._slot = runtime.Slot(config, name)

    def start(self) -> dict[str, Any]:
        return dict(self._slot.start())

    def run(self, request: TrialRequest) -> tuple[TrialEvent, Any]:
        return self._with_arrays(self._slot.run(request))

    def go_on(self, prune: bool) -> tuple[TrialEvent, Any]:
        return self._with_arrays(self._slot.go_on(prune))

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def kill(self, failure: FailureClass, message: str) -> None:
        self._slot.kill(failure, message)

    def close(self) -> None:
        self._slot.close()

    def _with_arrays(self, event: TrialEvent) -> tuple[TrialEvent, Any]:
        """The event, and the result's arrays as a reference into the object store."""
        if event.arrays is None:
            return event, None
        import numpy as np

        file = Path(event.arrays)
        reference = ray.put(np.fromfile(file, dtype=np.uint8))
        file.unlink()
        return event, [reference]  # in a list, so that Ray hands out the reference and not the array


@dataclasses.dataclass
class _Place:
    """One slot as the pool sees it: its actor now, and the trial in it."""

    index: int
    actor: Any
    running: TrialRequest | None = None


class SlotPool:
    """`size` slots, replaced when they die.

    Args:
        config: what all slots share.
        size: how many.
    """

    def __init__(self, config: SlotConfig, size: int) -> None:
        self._config = config
        self._pending: dict[Any, tuple[_Place, str]] = {}  # reference of a call → place and what was called
        self._places: list[_Place] = []
        self._start_failures = 0
        self._generation = 0
        for index in range(size):
            place = _Place(index, None)
            self._places.append(place)
            self._open(place)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Starts a trial in a slot that is ready and idle."""
        place = self._places[slot]
        assert place.running is None, f"slot {slot} runs trial {place.running}"
        place.running = request
        self._pending[place.actor.run.remote(request)] = (place, "trial")

    def go_on(self, slot: int, prune: bool = False) -> None:
        """Answers the event of a slot whose trial has not ended."""
        place = self._places[slot]
        self._pending[place.actor.go_on.remote(prune)] = (place, "trial")

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the trial in a slot; its outcome comes as an event."""
        self._places[slot].actor.kill.remote(failure, message)

    def running(self) -> dict[int, TrialRequest]:
        """Slot → the attempt in it."""
        return {place.index: place.running for place in self._places if place.running is not None}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """What slots say, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError: the job's code does not import.
            SlotError: slots fail to start, again and again.
        """
        if not self._pending:
            time.sleep(timeout)
            return
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        for reference in done:
            place, call = self._pending.pop(reference)
            try:
                answer = ray.get(reference)
                arrays = ray.get(answer[1][0]) if call == "trial" and answer[1] is not None else None
            except ray.exceptions.RayTaskError as error:
                yield from self._failed(place, call, error)
            except ray.exceptions.RayError as error:  # the actor died, or the arrays' owner with it
                yield from self._lost(place, call, error)
            else:
                if call == "start":
                    self._start_failures = 0
                    yield SlotReady(place.index, answer["seconds"], tuple(answer["unclean"]), answer["mlflow"])
                else:
                    event = answer[0]
                    if event.outcome is not None:
                        place.running = None
                    yield SlotTrial(place.index, event, arrays)

    def close(self) -> None:
        """Ends all slots."""
        starting = {place.index for place, call in self._pending.values() if call == "start"}
        # A slot that still imports hears nothing; its template ends with it.
        closing = [place.actor.close.remote() for place in self._places if place.index not in starting]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=10)
        for place in self._places:
            ray.kill(place.actor)

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

    def _lost(self, place: _Place, call: str, error: Exception) -> Iterator[SlotTrial]:
        request, place.running = place.running, None
        if call == "start":
            self._count_start_failure(error)
        self._open(place)
        if request is not None:
            message = f"slot {place.index} was lost with its trial: {errors.first_line(error)}"
            yield SlotTrial(
                place.index,
                TrialEvent(
                    outcome=TrialOutcome(
                        number=request.number,
                        state=TrialState.FAILED,
                        failure=FailureClass.LOST,
                        message=message,
                        ended=time.time(),
                    )
                ),
                replaced=True,
            )

    def _failed(self, place: _Place, call: str, error: ray.exceptions.RayTaskError) -> Iterator[SlotTrial]:
        """A call raised: the job's code does not import, or the slot itself is broken and is replaced."""
        cause = error.cause
        if isinstance(cause, errors.EntrypointError):
            raise errors.EntrypointError(str(cause)) from error
        ray.kill(place.actor)
        yield from self._lost(place, call, cause or error)

    def _count_start_failure(self, error: Exception) -> None:
        self._start_failures += 1
        if self._start_failures >= MAX_START_FAILURES:
            raise errors.SlotError(
                f"{self._start_failures} slots in a row could not be started: {error}; see {self._config.root}/slots"
            ) from error


def connect(parallel: int, gpus: int) -> None:
    """Starts a Ray of this process's own on this machine, with one slot resource per parallel trial.

    Ray reads its settings when it is imported: see `__main__`.

    Raises:
        SlotError: Ray does not start, or has fewer GPUs than the trials need.
    """
    free = shutil.disk_usage("/dev/shm").free
    try:
        ray.init(
            address="local",
            num_cpus=max(parallel, 1),
            resources={SLOT_RESOURCE: parallel},
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=max(80 << 20, min(free // 2, 1 << 30)),
        )
    except (RuntimeError, ConnectionError, OSError, ValueError) as error:
        raise errors.SlotError(f"Ray does not start on this machine: {errors.first_line(error)}") from error
    have = int(ray.cluster_resources().get("GPU", 0))
    if have < gpus * parallel:
        raise errors.SlotError(
            f"{parallel} trials of {gpus} GPUs need {gpus * parallel}, but Ray sees {have}; lower --parallel"
        )


def disconnect() -> None:
    """Ends the Ray that `connect` started."""
    ray.shutdown()


def arrays_to_file(arrays: Any, file: Path) -> None:
    """Writes packed arrays as they are, complete or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    arrays.tofile(partial)
    partial.replace(file)
