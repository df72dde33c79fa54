"""Save and load the checkpoints of a collection: weights and state, numbered by the iteration that starts with them.

They have the format of a training's checkpoints (`training/steps`), with the iteration as the step, so each is complete or
absent. Two files, `weights.packed` and `state.packed`, are trees packed by `policies/transport.py`: reading them runs no
code, and needs no torch if numpy arrays were written. An iteration loads the checkpoint with exactly its own number. A newer
one may be there, from an attempt whose outcome was lost and which is done again.
"""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.policies import transport
from trialplane.training.steps import record, stores

if TYPE_CHECKING:
    from trialplane.worker.collect.segments import Bytes

WEIGHTS, STATE = "weights.packed", "state.packed"


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of an iteration: packed trees by the names of their files, without trees that were never returned."""

    packed: Mapping[str, Bytes] = dataclasses.field(default_factory=dict)

    def tree(self, file: str) -> Any:
        """Return a tree, with read-only arrays; None if there is none."""
        return transport.unpack(self.packed[file]) if file in self.packed else None


class States:
    """Weights and state of a run's iterations, at one location.

    Args:
        location: Folder or fsspec URL.
    """

    def __init__(self, location: str) -> None:
        self._store = stores.open_store(location)

    def load(self, iteration: int) -> Start:
        """Load the checkpoint of an iteration.

        Raises:
            CheckpointError: The checkpoint is missing.
            CheckpointDamaged: The checkpoint was changed after it was written.
        """
        names = [name for name in self._store.complete() if record.step_of(name) == iteration]  # the newest last
        if not names:
            raise errors.CheckpointError(
                f"the checkpoint for iteration {iteration} is missing from {self._store.location}. Were "
                "checkpoints deleted, or is the volume another one? A new run with --resume starts from the newest "
                "checkpoint of this one"
            )
        return self._read(names[-1])

    def newest(self) -> Start:
        """Return the newest undamaged checkpoint, of a run that has ended.

        Raises:
            CheckpointError: There is no undamaged checkpoint.
        """
        damaged = ""
        for name in reversed(self._store.complete()):
            try:
                return self._read(name)
            except errors.CheckpointDamaged as error:
                damaged = f"; {error}"
        raise errors.CheckpointError(f"there is no iteration to resume from in {self._store.location}{damaged}")

    def save(self, iteration: int, start: Start) -> None:
        """Save the checkpoint of an iteration, and remove those older than the iteration before it.

        Raises:
            CheckpointError: The checkpoint could not be written; the previous ones are untouched.
        """
        try:
            complete_names = self._store.complete()
            self._write(record.unused_name(iteration, complete_names), iteration, start)
        except OSError as error:
            raise errors.CheckpointError(
                f"the checkpoint for iteration {iteration} could not be written to {self._store.location}: "
                f"{error.strerror or error}. Make room there and `platform resume` the run"
            ) from error
        self._remove_old(complete_names, iteration)

    def _write(self, name: str, iteration: int, start: Start) -> None:
        """Write a checkpoint and publish it; raise OSError if that fails."""
        store = self._store
        parts = {}
        for file, packed_tree in start.packed.items():
            with store.create(name, file) as sink:
                sink.write(packed_tree.data)
            parts[file] = record.Part(sink.size, sink.crc)
        if not parts:  # an empty file, because a store can only publish a checkpoint with a file
            with store.create(name, STATE):
                pass
        saved = record.Saved(
            step=iteration,
            name=name,
            location=store.url(name),
            world_size=1,
            sharded=False,
            metric=None,
            parts=parts,
            meta={},
        )
        store.publish(name, record.dump(saved), [*parts])

    def _remove_old(self, names: Sequence[str], iteration: int) -> None:
        """Remove those of the named checkpoints that are older than the iteration before this one, or of this iteration.

        Failures are warnings, as the new checkpoint is complete.
        """
        try:
            for name in names:
                is_old = record.step_of(name) < iteration - 1
                is_of_earlier_attempt = record.step_of(name) == iteration
                if is_old or is_of_earlier_attempt:
                    self._store.remove(name)
            self._store.sweep()
        except OSError as error:
            location = self._store.location
            warnings.warn(
                f"checkpoints of older iterations could not be deleted from {location}, and still take space: {error}",
                stacklevel=2,
            )

    def _read(self, name: str) -> Start:
        """Return the packed trees of a checkpoint.

        Raises:
            CheckpointDamaged: A file is not as it was written.
        """
        import numpy as np

        store = self._store
        saved = record.load(store.read(name, record.COMPLETE), name, store.url(name))
        packed = {}
        for file, part in saved.parts.items():
            with store.local(name, file) as path:
                data = np.fromfile(path, dtype=np.uint8)
            if data.nbytes != part.size or zlib.crc32(data.data) != part.crc:
                raise errors.CheckpointDamaged(f"{saved.location}/{file} is cut or changed")
            packed[file] = data
        return Start(packed)
