"""Save and read checkpoints of one file that a library writes: complete or absent, in a folder or at a URL."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import trialplane
from trialplane import errors
from trialplane.training.steps import record, stores
from trialplane.wire import paths

KEEP = 2  # checkpoints of a trial; if the newest is damaged, there is an older one


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A checkpoint to continue from.

    Attributes:
        step: Epochs, rounds or optimizer steps done when it was saved.
        file: Copy of the file in the trial's scratch folder.
    """

    step: int
    file: Path


class Saves:
    """Checkpoints of the trial in this process. Outside of a trial there are none.

    Args:
        file: Name of the file in each checkpoint, with the suffix that the library expects.
    """

    def __init__(self, file: str) -> None:
        self._file = file

    def save(self, step: int, write: Callable[[Path], object]) -> None:
        """Save a checkpoint in rank 0, and delete all but the newest `KEEP`.

        Args:
            step: Epochs, rounds or optimizer steps done.
            write: Function that writes the file to a path.

        Raises:
            CheckpointError: The checkpoint could not be written. Older ones are unchanged.
        """
        ctx = trialplane.current()
        if ctx is None or not ctx.is_main:
            return
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            file = Path(folder) / self._file
            write(file)
            self.add_file(step, file)

    def add_file(self, step: int, file: Path) -> None:
        """Save an existing file as a checkpoint, like `save`."""
        ctx = trialplane.current()
        if ctx is None or not ctx.is_main:
            return
        ctx.confirm_reports(step)

        def write(sink: stores.Sink) -> None:
            with file.open("rb") as source:
                shutil.copyfileobj(source, sink)

        stores.save_file(ctx.checkpoints, step, self._file, write=write, keep=KEEP)
        ctx.saved(step)

    def newest(self) -> SavedFile | None:
        """Return the newest intact checkpoint of the trial, or else of the run or trial from which it starts.

        Returns:
            The checkpoint. None without one, and outside of a trial.

        Raises:
            CheckpointDamaged: No usable checkpoint is intact, and at least one is damaged. Or the newest of another trial in
                a population is damaged.
            CheckpointError: The run or trial from which it starts has no checkpoint, or a checkpoint is of another library.
        """
        ctx = trialplane.current()
        if ctx is None:
            return None
        resumed_location = ctx.resume_from
        checkpoint = self._newest(ctx.checkpoints, ctx.workdir, ctx.is_usable)
        if checkpoint is None and resumed_location is not None:
            checkpoint = self._newest(resumed_location, ctx.workdir, only_newest=ctx.needs_newest)
            if checkpoint is None:
                raise errors.CheckpointError(no_checkpoint_message(ctx, resumed_location))
        return checkpoint

    def _newest(
        self,
        location: str,
        workdir: Path,
        is_usable: Callable[[int], bool] = lambda step: True,
        *,
        only_newest: bool = False,
    ) -> SavedFile | None:
        """Return the newest checkpoint at a location, with a copy of its file in `workdir`. None without one.

        Checkpoints whose step is not usable are skipped, and so are damaged ones, which are an error with `only_newest`.
        """
        store = stores.open_store(location)

        def read(saved: record.Saved) -> SavedFile:
            return SavedFile(saved.step, self._copy(store, saved, workdir))

        return stores.only_newest(store, read) if only_newest else stores.newest(store, read, is_usable)

    def _copy(self, store: stores.Store, saved: record.Saved, workdir: Path) -> Path:
        """Copy the file of a checkpoint to `workdir`, and return the path of the copy.

        Raises:
            CheckpointDamaged: The file is not as it was written.
            CheckpointError: The checkpoint is of another library.
        """
        if self._file not in saved.parts:
            raise errors.CheckpointError(
                f"{saved.location} contains {', '.join(saved.parts)}, but not {self._file}, which this library reads. Give "
                "the run another name, or set another location for its checkpoints"
            )
        copy = workdir / f"{saved.name}-{self._file}"
        with store.local(saved.name, self._file) as path:
            stores.verify(path, saved.parts[self._file], f"{saved.location}/{self._file}")
            shutil.copyfile(path, copy)
        return copy


def no_checkpoint_message(ctx: trialplane.Context, location: str) -> str:
    """Return the message that the run or the trial from which this one starts has no checkpoint at its location."""
    is_trial = ctx.needs_newest  # of a population, which continues from another trial
    saver = "trial" if is_trial else "run"
    advice = "" if is_trial else ". To start from step 0, submit without --resume"
    return f"there is no checkpoint to continue from at {location}: the {saver} has saved none, or it was deleted{advice}"


def local_folder(location: str, writer: str) -> Path:
    """Return the folder at a location of checkpoints, for a library that only writes to folders.

    Args:
        location: Folder or URL.
        writer: Name of the library, for the error.

    Raises:
        InputError: The location is a URL.
    """
    local = paths.local_folder(location)
    if local is None:
        raise errors.InputError(
            f"the checkpoints of this run are at {location}, and {writer} only writes to folders. Remove "
            "checkpoints.url from job.yaml, have the chart store checkpoints on a volume (its value checkpoints), or save "
            "with trialplane.training.checkpoint, which writes to URLs"
        )
    return local
