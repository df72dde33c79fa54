"""The progress of a run: the part of a status that depends on the kind of its job, which `kind` names. Frozen values.

`slots_aside` is how many slots a run of the kind has beside those that `RunStatus.parallel` counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from trialplane.wire.units import WorkerStatus


@dataclasses.dataclass(frozen=True)
class RungProgress:
    """A rung: its number of steps, and how many trials have reached it and how many are paused there."""

    step: int
    reached: int
    paused: int


@dataclasses.dataclass(frozen=True)
class StudyProgress:
    """The progress of a study; its status counts its trials and has the best of them.

    Attributes:
        steps: that its trials have trained between rungs.
        rungs: from the lowest; empty without promotion.
        checkpoints: number of checkpoints of its trials.
        checkpoint_bytes: their size.
    """

    steps: int = 0
    rungs: tuple[RungProgress, ...] = ()
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    kind: Literal["hpo"] = dataclasses.field(default="hpo", init=False)
    slots_aside = 0

    @property
    def numbers(self) -> Mapping[str, float]:
        """An empty mapping: only trainings and collections have numbers to display."""
        return {}


@dataclasses.dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training: the reports of the attempt that runs, or ran last.

    Attributes:
        step: the newest; None before the first report.
        total_steps: None where the job does not report them.
        metrics: metric → its newest value.
    """

    kind: Literal["train"] = dataclasses.field(default="train", init=False)
    step: int | None = None
    total_steps: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    slots_aside = 0

    @property
    def numbers(self) -> Mapping[str, float]:
        """Each number by its name; empty before the first report."""
        counts = {"step": self.step, "total_steps": self.total_steps}
        return {**self.metrics, **{name: value for name, value in counts.items() if value is not None}}


@dataclasses.dataclass(frozen=True)
class CollectionProgress:
    """The progress of a collection: the iteration that runs, or ran last.

    Attributes:
        iteration: its number; None before the first.
        units: that arrived.
        units_total: that it is to have.
        units_failed: that failed for good.
        items: what the job counts in the results that arrived: positions, samples.
        bytes: of the results that arrived.
        in_flight_bytes: of those on their way to the learner.
        units_per_second, items_per_second: from the first unit to the newest result.
        spilled_bytes: that the object store had to write to disk.
        workers: the state of each of them.
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
        """Each number by its name; empty before the first iteration."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("kind", "workers")]
        return {} if self.iteration is None else {name: getattr(self, name) for name in names}


RunProgress = StudyProgress | TrainingProgress | CollectionProgress

_KINDS: Mapping[str, type[RunProgress]] = {
    progress.kind: progress for progress in (StudyProgress, TrainingProgress, CollectionProgress)
}


def initial(kind: str) -> RunProgress:
    """The progress of a run of that kind that has not begun."""
    return _KINDS[kind]()


def whole(value: Any) -> int | None:
    """A count that a job reported, as an integer; None for one that is none or no finite number."""
    return int(value) if value is not None and math.isfinite(value := float(value)) else None
