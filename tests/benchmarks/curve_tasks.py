"""Learning curves to search in: those of a folder, and planted ones whose curves cross.

A task is a table: its configurations, and the loss of each after every step. A configuration is a point of the unit cube:
each of its values is replaced by the value's rank among all configurations, so that samplers need not know its scale.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TASKSET = "taskset.npz"
CLIP = "clip.csv"
CLIP_EPOCHS = 8  # of CLIP only the configurations that train at least so long, up to here
_CLIP_VALUES = (
    "global_batch_size",
    "beta1",
    "beta2",
    "eps",
    "lr",
    "text_width",
    "vision_width",
    "warmup_fraction",
    "wd",
    "total_epochs",
)
_PLANTED = (1000, 64)  # configurations and steps of a planted task


@dataclasses.dataclass(frozen=True)
class Task:
    """A table of learning curves.

    Attributes:
        name: Name of the task.
        losses: Losses, (configurations, steps + 1). Column 0 is before training; infinite where the training diverged.
        points: Configurations in the unit cube, (configurations, parameters).
        is_planted: Whether the task is made up.
    """

    name: str
    losses: Floats
    points: Floats
    is_planted: bool = False

    @property
    def steps(self) -> int:
        """Number of steps of a whole trial."""
        return self.losses.shape[1] - 1

    def shuffled(self, seed: int) -> Task:
        """Return the task with its configurations in another order."""
        order = np.random.default_rng(seed).permutation(len(self.losses))
        return dataclasses.replace(self, losses=self.losses[order], points=self.points[order])


def read(folder: Path) -> Iterator[Task]:
    """Yield the tasks of a folder, then the planted ones."""
    if (folder / TASKSET).exists():
        yield from _taskset(folder / TASKSET)
    if (folder / CLIP).exists():
        yield _clip(folder / CLIP)
    yield from planted()


def _taskset(file: Path) -> Iterator[Task]:
    with np.load(file) as arrays:
        for name in arrays.files:
            if not name.endswith("_hp"):
                yield Task(name, _finite_or_infinite(arrays[name]), _ranks(arrays[f"{name}_hp"]))


def _clip(file: Path) -> Task:
    """Return the validation losses of OpenCLIP models of ScAn-Bench (`vlm/data.csv`), one report per epoch."""
    configurations: dict[int, list[float]] = {}
    losses: dict[int, Floats] = {}
    with file.open(newline="") as opened:
        for row in csv.DictReader(opened):
            epoch, number = int(float(row["epoch"])), int(row["config_id"])
            if float(row["total_epochs"]) >= CLIP_EPOCHS and epoch <= CLIP_EPOCHS:
                configurations.setdefault(number, [float(row[name]) for name in _CLIP_VALUES])
                losses.setdefault(number, np.full(CLIP_EPOCHS + 1, math.inf))[epoch] = float(row["val_loss"] or "nan")
    return Task(
        "CLIP", _finite_or_infinite(np.array(list(losses.values()))), _ranks(np.array(list(configurations.values())))
    )


def planted() -> Iterator[Task]:
    """Yield two tasks in which curves cross: final loss + height · exp(-step / time).

    In `crossing`, height and time have nothing to do with the final loss: early on, the order is mostly theirs. In
    `inverted`, the lower the final loss, the longer the time: at first the order is the reverse of the final one.
    """
    configurations, steps = _PLANTED
    generator = np.random.default_rng(7)
    points = generator.uniform(0, 1, (configurations, 4))
    distance = ((points[:, :2] - [0.3, 0.6]) ** 2).sum(axis=1)
    final = distance.argsort().argsort() / configurations
    step = np.arange(steps + 1)
    crossing = (1 + 2 * points[:, 2, None]) * np.exp(-step / 20 ** points[:, 3, None])
    inverted = 10 * np.exp(-step / 10 ** (1 - final[:, None]))
    yield Task("crossing", final[:, None] + crossing, points, is_planted=True)
    yield Task("inverted", final[:, None] + inverted, points, is_planted=True)


def _finite_or_infinite(losses: npt.NDArray[np.floating]) -> Floats:
    return np.nan_to_num(losses.astype(float), nan=math.inf, posinf=math.inf)


def _ranks(values: npt.NDArray[np.floating]) -> Floats:
    """Return each value's rank in its column, from 0 to 1; equal values have the same rank."""
    columns = [np.unique(column, return_inverse=True)[1] for column in values.T]
    return np.stack([column / max(1, column.max()) for column in columns], axis=1)
