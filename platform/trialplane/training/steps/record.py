"""Descriptions of checkpoints without their tensors: the COMPLETE file, and the rules of retention. Pure; no torch.

A checkpoint is a folder such as `step-0000001200`. It is complete if it contains COMPLETE, which is written last and has the
name, size and checksum of every other file:

    state.pt            rank 0's state: model, optimizer, scheduler, …; if sharded, state-00003.pt of each rank
    rank-00003.pt       other state of one rank: its random generators
    COMPLETE            one line of JSON, and its checksum

A second checkpoint of the same step (written because the first is damaged) is `step-0000001200.1`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trialplane import errors

COMPLETE = "COMPLETE"
FORMAT = 1
Direction = Literal["minimize", "maximize"]
Shapes = Mapping[str, Sequence[int]]  # of a model's parameters and buffers

_NAME = re.compile(r"step-(\d{10})(?:\.(\d+))?")


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a checkpoint: its size in bytes, its CRC-32, and the shapes of the model's parameters in it."""

    size: int
    crc: int
    shapes: Shapes = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A complete checkpoint.

    Attributes:
        step: Number of optimizer steps done.
        name: Name of its folder.
        location: Path or URL of its folder.
        world_size: Number of ranks that saved it.
        sharded: Whether each rank wrote a part of the state.
        metric: Value for `keep_best`. None without a value.
        parts: Files, by name.
        meta: Plain values that the job saved with it.
    """

    step: int
    name: str
    location: str
    world_size: int
    sharded: bool
    metric: float | None
    parts: Mapping[str, Part]
    meta: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Size of all files, in bytes."""
        return sum(part.size for part in self.parts.values())


def state_file(rank: int, sharded: bool) -> str:
    """Return the name of the file with the training's state, as a rank loads it."""
    return f"state-{rank:05d}.pt" if sharded else "state.pt"


def rank_file(rank: int) -> str:
    """Return the name of the file with the state of one rank."""
    return f"rank-{rank:05d}.pt"


def unused_name(step: int, existing: Sequence[str]) -> str:
    """Return a folder name for a new checkpoint of a step, which none of the existing ones has: `step-0000001200.1`."""
    numbers = [number for existing_step, number in map(sort_key, existing) if existing_step == step]
    return f"step-{step:010d}" + (f".{max(numbers) + 1}" if numbers else "")


def is_name(name: str) -> bool:
    """Whether a folder is named like a checkpoint."""
    return _NAME.fullmatch(name) is not None


def sort_key(name: str) -> tuple[int, int]:
    """Return the sort key of a checkpoint: its step, and its number among those of that step, from 0.

    Raises:
        ValueError: `name` is not the name of a checkpoint.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a checkpoint")
    return int(match[1]), int(match[2] or 0)


def step_of(name: str) -> int:
    """Return the step of a checkpoint, by its name; raise ValueError as `sort_key` does."""
    return sort_key(name)[0]


def dump(saved: Saved) -> bytes:
    """Return the content of the COMPLETE file: the description of a checkpoint as JSON, and a line with its checksum."""
    fields = {"format": FORMAT, **dataclasses.asdict(saved)}
    del fields["name"], fields["location"]  # the folder may be moved
    body = json.dumps(fields).encode()
    return body + f"\ncrc32 {zlib.crc32(body):08x}\n".encode()


def load(complete: bytes, name: str, location: str) -> Saved:
    """Return the checkpoint that the content of a COMPLETE file describes.

    Raises:
        CheckpointDamaged: The file has changed since it was written.
        CheckpointError: A newer trialplane wrote it.
    """
    body, _, tail = complete.partition(b"\n")
    if tail != f"crc32 {zlib.crc32(body):08x}\n".encode():
        raise errors.CheckpointDamaged(f"{location}/{COMPLETE} is truncated or changed")
    fields = json.loads(body)
    if fields.pop("format") != FORMAT:
        raise errors.CheckpointError(f"{location} was written by a newer trialplane; read it with that one")
    parts = {file: Part(**part) for file, part in fields.pop("parts").items()}
    return Saved(name=name, location=location, parts=parts, **fields)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of retention: a checkpoint is kept if any rule selects it.

    Attributes:
        keep_last: Number of newest steps to keep.
        keep_best: Number of best steps to keep, by metric. Steps without a metric, or with NaN, do not count.
        keep_every: Keep all steps that are multiples of this number; None for no such rule.
        direction: "minimize" if smaller metrics are better, otherwise "maximize".

    Raises:
        InputError: A number is out of range.
    """

    keep_last: int
    keep_best: int
    keep_every: int | None
    direction: Direction

    def __post_init__(self) -> None:
        if self.keep_last < 1 or self.keep_best < 0 or (self.keep_every is not None and self.keep_every < 1):
            raise errors.InputError(
                f"keep_last={self.keep_last}, keep_best={self.keep_best}, keep_every={self.keep_every}: keep_last and "
                "keep_every are at least 1, keep_best is at least 0"
            )

    def surplus(self, saved: Sequence[Saved]) -> list[Saved]:
        """Return the checkpoints that no rule keeps.

        Of several checkpoints of one step, only the last can be kept.

        Args:
            saved: All complete checkpoints.
        """
        in_order = sorted(saved, key=lambda checkpoint: sort_key(checkpoint.name))
        last_of_step = {checkpoint.step: checkpoint for checkpoint in in_order}  # the last one replaces those before it
        steps = list(last_of_step)
        retained_steps = set(steps[-self.keep_last :])
        if self.keep_every is not None:
            retained_steps.update(step for step in steps if step % self.keep_every == 0)
        losses = {  # smaller is better
            step: checkpoint.metric if self.direction == "minimize" else -checkpoint.metric
            for step, checkpoint in last_of_step.items()
            if checkpoint.metric is not None and not math.isnan(checkpoint.metric)
        }
        best_first = sorted(losses, key=lambda step: (losses[step], -step))  # of equal metrics, the newest step first
        retained_steps.update(best_first[: self.keep_best])
        retained_names = {last_of_step[step].name for step in retained_steps}
        return [checkpoint for checkpoint in saved if checkpoint.name not in retained_names]


def difference(saved_shapes: Shapes, model_shapes: Shapes) -> str:
    """Describe the difference between a checkpoint's parameters and a model's; "" when they match."""
    missing = sorted(model_shapes.keys() - saved_shapes.keys())
    extra = sorted(saved_shapes.keys() - model_shapes.keys())
    reshaped = [
        name for name in model_shapes if name in saved_shapes and list(model_shapes[name]) != list(saved_shapes[name])
    ]
    parts = []
    if reshaped:
        name = reshaped[0]
        more = f" (and {len(reshaped) - 1} more)" if len(reshaped) > 1 else ""
        saved_shape, model_shape = _shape_text(saved_shapes[name]), _shape_text(model_shapes[name])
        parts.append(f"{name} is {saved_shape} in the checkpoint and {model_shape} in this model{more}")
    if missing:
        parts.append(f"{_names_with_verb(missing)} only in this model")
    if extra:
        parts.append(f"{_names_with_verb(extra)} only in the checkpoint")
    return "; ".join(parts)


def _shape_text(shape: Sequence[int]) -> str:
    """Return a shape as `768×3072`. A tensor without dimensions is a number."""
    return "×".join(map(str, shape)) or "a number"


def _names_with_verb(names: Sequence[str]) -> str:
    """Return names as the start of a sentence: `a is`, `a, b are` or `a, b, c and 4 more are`."""
    shown = ", ".join(names[:3])
    if len(names) > 3:
        return f"{shown} and {len(names) - 3} more are"
    return f"{shown} is" if len(names) == 1 else f"{shown} are"
