"""The trial's checkpoints, each of one file that a library writes: complete or absent, in a folder or at a URL."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import trialplane
from trialplane import errors
from trialplane.training.steps import record, stores
from trialplane.wire import paths

_PIECE = 8 << 20


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint to go on from.

    Attributes:
        step: epochs, rounds or optimizer steps done when it was made.
        file: a copy of its own, in the trial's scratch folder.
    """

    step: int
    file: Path


class Saves:
    """The checkpoints of the trial that this process runs; of none, outside of a trial.

    Args:
        file: the name of the file in each of them, with the ending that the library wants.
        keep: so many of the newest are kept. With 2, a damaged newest one has one before it.
    """

    def __init__(self, file: str, keep: int = 2) -> None:
        self._file, self._keep = file, keep

    def save(self, step: int, write: Callable[[Path], object]) -> None:
        """Makes a checkpoint, in rank 0; deletes those that are too old.

        Args:
            step: epochs, rounds or optimizer steps done.
            write: writes the file, under the path that it is given.

        Raises:
            CheckpointError: it could not be written; the others are as they were.
        """
        ctx = trialplane.current()
        if ctx is None or not ctx.is_main:
            return
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            file = Path(folder) / self._file
            write(file)
            self.add(step, file)

    def add(self, step: int, file: Path) -> None:
        """Makes a checkpoint of a file that is there; otherwise as `save`."""
        ctx = trialplane.current()
        if ctx is None or not ctx.is_main:
            return
        store = stores.open_store(ctx.checkpoints)
        try:
            taken = store.complete()
            name = record.name_of(step, taken)
            with store.create(name, self._file) as sink, file.open("rb") as source:
                while piece := source.read(_PIECE):
                    sink.write(piece)
            parts = {self._file: record.Part(sink.size, sink.crc)}
            saved = record.Saved(step, name, store.url(name), 1, False, None, parts, {})
            store.publish(name, record.dump(saved), [self._file])
            for older in taken[: len(taken) + 1 - self._keep]:
                store.remove(older)
            store.sweep()
        except OSError as error:
            raise errors.CheckpointError(
                f"the checkpoint of step {step} could not be written to {store.place}: {error.strerror or error}. Make "
                "room there; `platform resume` goes on from the one before"
            ) from error

    def newest(self) -> Found | None:
        """The newest whole checkpoint of the trial, or else of the run that `--resume` names; None when there is none.

        Raises:
            CheckpointDamaged: there are checkpoints, and none is whole.
            CheckpointError: the run that `--resume` names has none.
        """
        ctx = trialplane.current()
        if ctx is None:
            return None
        other = ctx.resume_from
        found = self._newest(ctx.checkpoints, ctx.workdir)
        if found is None and other is not None:
            found = self._newest(other, ctx.workdir)
            if found is None:
                raise errors.CheckpointError(none_at(other))
        return found

    def _newest(self, place: str, workdir: Path) -> Found | None:
        store = stores.open_store(place)
        found, damaged = stores.records(store)
        for saved in reversed(found):
            if self._file not in saved.parts:
                raise errors.CheckpointError(
                    f"{saved.place} holds {', '.join(saved.parts)}, and not the {self._file} of this library: give the run "
                    "a new name, or its checkpoints another place"
                )
            copy = workdir / f"{saved.name}-{self._file}"
            crc = 0
            with store.local(saved.name, self._file) as path, path.open("rb") as source, copy.open("wb") as target:
                while piece := source.read(_PIECE):
                    crc = zlib.crc32(piece, crc)
                    target.write(piece)
            if (crc, copy.stat().st_size) == (saved.parts[self._file].crc, saved.parts[self._file].size):
                return Found(saved.step, copy)
            damaged.append(errors.CheckpointDamaged(f"{saved.place}/{self._file} is cut or changed"))
            warnings.warn(f"a checkpoint is left out, and the one before it is taken: {damaged[-1]}", stacklevel=4)
        if damaged:
            raise errors.CheckpointDamaged(
                f"none of the {errors.counted(len(damaged), 'checkpoint')} at {place} is whole. To begin again from step 0, "
                "delete or move that place"
            )
        return None


def none_at(place: str) -> str:
    """What to say when the run that `--resume` names has no checkpoint."""
    return (
        f"there is no checkpoint at {place} to go on from: that run has saved none, or it was deleted. To begin from step "
        "0, submit without --resume"
    )


def folder(place: str, library: str) -> Path:
    """A place of checkpoints as a folder, for a library that writes to folders alone.

    Raises:
        InputError: it is a URL.
    """
    local = paths.local_folder(place)
    if local is None:
        raise errors.InputError(
            f"the checkpoints of this run lie at {place}, and {library} writes to folders alone: leave checkpoints.url out "
            "of job.yaml, have the chart keep checkpoints on a volume (its value checkpoints), or save by "
            "trialplane.training.checkpoint, which writes to URLs"
        )
    return local
