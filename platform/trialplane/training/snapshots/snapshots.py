"""Evolution snapshots: a model's weights and metrics at chosen steps of its training, thinned to a budget, to be compared.

A snapshot is a folder `step-0000000120` with `model.safetensors`, `config.json` where the model has one (then transformers
can load the folder), and COMPLETE, which is written last and has step, bytes and metrics: together they are the manifest. If
there are too many, the snapshot whose neighbors are nearest to each other is deleted, so the remaining steps resemble a
geometric series: training changes a model fast at first. `report` compares. Rank 0 alone saves. Imports torch when
something is saved.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.training.steps import record, stores

if TYPE_CHECKING:
    import torch

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A snapshot.

    Attributes:
        step: Number of optimizer steps done.
        name: Name of its folder.
        location: Path or URL of its folder.
        size: Size of the weights, in bytes.
        metrics: Metrics at this step, by name.
    """

    step: int
    name: str
    location: str
    size: int
    metrics: Mapping[str, float]


class Snapshots:
    """The snapshots of a training.

    Args:
        location: Folder or fsspec URL, used for nothing else.
        keep: Maximum number of snapshots, at least 2. The first and the last are always kept.
        max_bytes: Maximum size of all weights, in bytes. The first and the last are kept even if they are larger. Default:
            no limit.

    Raises:
        InputError: An argument is out of range, or `location` cannot be used.
    """

    def __init__(self, location: str | Path, *, keep: int = 12, max_bytes: int | None = None) -> None:
        if keep < 2 or (max_bytes is not None and max_bytes < 1):
            raise errors.InputError(
                f"snapshots: keep={keep}, max_bytes={max_bytes}: keep is at least 2, the first and the last; max_bytes is "
                "at least 1 or null"
            )
        self._store = stores.open_store(str(location))
        self._keep, self._max_bytes = keep, max_bytes

    @property
    def location(self) -> str:
        """Folder or URL of the snapshots."""
        return self._store.location

    def all(self) -> list[Snapshot]:
        """List the complete snapshots, by step.

        Raises:
            CheckpointError: A snapshot was written by a newer version.
        """
        by_step = {}
        for name in self._store.complete():
            fields = json.loads(self._store.read(name, record.COMPLETE))
            if fields["format"] != FORMAT:
                raise errors.CheckpointError(f"{self._store.url(name)} was written by a newer trialplane; read it with that")
            by_step[fields["step"]] = Snapshot(
                step=fields["step"],
                name=name,
                location=self._store.url(name),
                size=fields["size"],
                metrics=fields["metrics"],
            )
        return [by_step[step] for step in sorted(by_step)]

    def save(self, step: int, model: torch.nn.Module, metrics: Mapping[str, float]) -> Snapshot:
        """Save a snapshot, and delete others beyond the limits. Call it in rank 0 only.

        Args:
            step: Number of optimizer steps done. An existing snapshot of this step is replaced.
            model: Model to save. If it has a `config`, as in transformers, that is saved too.
            metrics: Metrics by name.

        Raises:
            CheckpointError: The snapshot could not be written. The others are unchanged.
        """
        store = self._store
        try:
            existing = store.complete()
            name = record.unused_name(step, existing)
            size = self._save_weights(name, model)
            config = getattr(model, "config", None)
            if config is not None and hasattr(config, "to_json_string"):
                with store.create(name, CONFIG) as sink:
                    sink.write(config.to_json_string().encode())
            values = {key: float(value) for key, value in metrics.items()}
            fields = {"format": FORMAT, "step": step, "size": size, "metrics": values}
            store.publish(name, json.dumps(fields).encode(), (WEIGHTS, CONFIG))
            for older in existing:
                if record.step_of(older) == step:
                    store.remove(older)
            for surplus in surplus_snapshots(self.all(), self._keep, self._max_bytes):
                store.remove(surplus.name)
            store.sweep()
        except OSError as error:
            raise errors.CheckpointError(
                f"the snapshot of step {step} could not be written to {self.location}: {error.strerror or error}. Make "
                "room, keep fewer, or take none"
            ) from error
        return Snapshot(step=step, name=name, location=store.url(name), size=size, metrics=values)

    def _save_weights(self, name: str, model: torch.nn.Module) -> int:
        """Write the weights of a model into the folder of a snapshot, and return their size in bytes."""
        with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
            file = Path(folder) / WEIGHTS
            _write_weights(model, file)
            with self._store.create(name, WEIGHTS) as sink, file.open("rb") as source:
                shutil.copyfileobj(source, sink)
            return file.stat().st_size

    def weights(self, snapshot: Snapshot) -> Any:
        """Return a context manager with the local path of the weights, a file in safetensors format."""
        return self._store.local(snapshot.name, WEIGHTS)


def is_due(step: int, last: int, *, every: int | None = None, steps: Collection[int] = ()) -> bool:
    """Return whether a snapshot is due: at step 0, at the last step, at multiples of `every`, and at `steps`.

    Args:
        step: Number of optimizer steps done.
        last: Last step of the training.
        every: Number of steps between two snapshots. Default: none.
        steps: Other steps with a snapshot.
    """
    return step in (0, last) or step in steps or (every is not None and step % every == 0)


def surplus_snapshots(snapshots: Sequence[Snapshot], keep: int, max_bytes: int | None) -> list[Snapshot]:
    """Return the snapshots to delete, so that the others are within the limits.

    Again and again, the snapshot whose two neighbors are nearest to each other is deleted, on a logarithmic scale. The first
    and the last stay.

    Args:
        snapshots: All snapshots, by step.
        keep: Maximum number of snapshots to keep.
        max_bytes: Maximum size of the weights to keep, in bytes. None: no limit.
    """
    remaining, deleted = list(snapshots), []

    def exceeds_limits() -> bool:
        size = sum(snapshot.size for snapshot in remaining)
        return len(remaining) > keep or (max_bytes is not None and size > max_bytes)

    while len(remaining) > 2 and exceeds_limits():
        log_steps = [math.log1p(snapshot.step) for snapshot in remaining]
        # Element i is the distance between the neighbors of snapshot i + 1.
        gaps = [after - before for before, after in zip(log_steps, log_steps[2:], strict=False)]
        deleted.append(remaining.pop(1 + gaps.index(min(gaps))))
    return deleted


def _write_weights(model: torch.nn.Module, file: Path) -> None:
    """Write weights as transformers does: tensors that share memory are written once, under the first of their names."""
    from safetensors import torch as safetensors

    tensors: dict[str, Any] = {}
    written = set()
    for name, tensor in model.state_dict().items():
        key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in written:  # empty tensors have no memory that they could share
            continue
        written.add(key)
        tensors[name] = tensor.detach().contiguous()
    safetensors.save_file(tensors, file, metadata={"format": "pt"})
