"""The progress of a run: the part of its status that depends on the kind of its job. Frozen values.

In each class, `kind` is the kind of the job, and `slots_aside` the number of slots that `RunStatus.parallel` does not count.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from trialplane.wire.units import WorkerStatus


@dataclasses.dataclass(frozen=True)
class RungProgress:
    """The progress at a rung, a number of steps at which trials are compared and paused.

    Attributes:
        step: Number of steps at which the rung is.
        reached: Number of trials that have reached it.
        paused: Number of trials that are paused at it.
    """

    step: int
    reached: int
    paused: int


@dataclasses.dataclass(frozen=True)
class StudyProgress:
    """The progress of a study in addition to the numbers of its trials, which `RunStatus` has.

    Attributes:
        steps: Number of steps of all its trials, without the attempts that still run. Steps of earlier trials
            that answer one count too. 0 without promotion.
        rungs: Progress at each rung, from the lowest. Empty without promotion.
        checkpoints: Number of checkpoints of its trials.
        checkpoint_bytes: Size of these checkpoints, in bytes.
        answered: Number of trials with the result of an earlier trial with the same parameters, which were not trained.
        begun: Number of ended trials that have begun from a checkpoint of an earlier run.
        spared_steps: Number of steps of these checkpoints, which were not trained again.
        avoided: Number of drawn points that were not run, because they would have been out of memory.
    """

    steps: int = 0
    rungs: tuple[RungProgress, ...] = ()
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    answered: int = 0
    begun: int = 0
    spared_steps: int = 0
    avoided: int = 0
    kind: Literal["hpo"] = dataclasses.field(default="hpo", init=False)
    slots_aside = 0

    @property
    def numbers(self) -> Mapping[str, float]:
        """Numbers to display, by name: none, because only trainings and collections have such numbers."""
        return {}


@dataclasses.dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training, from the reports of its newest attempt.

    Attributes:
        step: Newest step. None before the first report.
        total_steps: Number of steps of the whole training. None if the job does not report it.
        metrics: Newest values of the metrics, by name.
    """

    kind: Literal["train"] = dataclasses.field(default="train", init=False)
    step: int | None = None
    total_steps: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    slots_aside = 0

    @property
    def numbers(self) -> Mapping[str, float]:
        """Numbers to display, by name. Empty before the first report."""
        counts = {"step": self.step, "total_steps": self.total_steps}
        return {**self.metrics, **{name: value for name, value in counts.items() if value is not None}}


@dataclasses.dataclass(frozen=True)
class CollectionProgress:
    """The progress of a collection in its newest iteration.

    Attributes:
        iteration: Number of the iteration. None before the first one.
        units: Number of units whose results have arrived.
        units_total: Number of units of the iteration.
        units_failed: Number of units that have failed and are not retried.
        items: Number of items in the results that have arrived, such as positions or samples, as counted by the job.
        bytes: Size of the results that have arrived.
        in_flight_bytes: Size of the results that are being sent to the learner.
        units_per_second, items_per_second: Rates between the first unit and the newest result.
        spilled_bytes: Number of bytes that the object store has written to disk.
        workers: Status of each worker.
    """

    kind: Literal["collect"] = dataclasses.field(default="collect", init=False)
    iteration: int | None = None
    units: int = 0
    units_total: int = 0
    units_failed: int = 0
    items: int = 0
    bytes: int = 0
    in_flight_bytes: int = 0
    units_per_second: float = 0.0
    items_per_second: float = 0.0
    spilled_bytes: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    slots_aside = 1  # the learner's

    @property
    def numbers(self) -> Mapping[str, float]:
        """Numbers to display, by name. Empty before the first iteration."""
        if self.iteration is None:
            return {}
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("kind", "workers")]
        return {name: getattr(self, name) for name in names}


RunProgress = StudyProgress | TrainingProgress | CollectionProgress

_KINDS: Mapping[str, type[RunProgress]] = {
    progress.kind: progress for progress in (StudyProgress, TrainingProgress, CollectionProgress)
}


def initial_progress(kind: str) -> RunProgress:
    """Return the progress of a run that has not begun, for this kind of job."""
    return _KINDS[kind]()


def as_count(value: Any) -> int | None:
    """Return a number that a job has reported, as an integer without its fraction. None if it is None or not finite."""
    if value is None or not math.isfinite(float(value)):
        return None
    return int(float(value))
