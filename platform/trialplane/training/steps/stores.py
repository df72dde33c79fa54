"""Stores of checkpoints: a local folder, or an fsspec URL (`s3://…`, `gs://…`, `memory://…`). Independent of tensors.

The file COMPLETE of a checkpoint is written last. In a folder the checkpoint is written below a temporary name, flushed to
the disk, and then renamed. An object store has no rename of folders, so there COMPLETE alone completes a checkpoint. Nothing
but `sweep` and `remove` deletes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from trialplane import errors
from trialplane.training.steps import record
from trialplane.wire import paths

T = TypeVar("T")

_PIECE = 4 << 20  # bytes between two releases of the interpreter's lock
_DRAFT, _DELETED = ".saving", ".deleted"


class Target(Protocol):
    """Target of a `Sink`: a binary file."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of `data`. Return the number of bytes, or None for all."""


class Sink:
    """File being written, with its size and checksum.

    After its first error, it ignores writes. This is because torch's writer continues to write after an error, and would
    replace the first error by a later one.

    Attributes:
        size: Number of bytes written.
        crc: CRC-32 of the bytes written.
        error: First error; None without an error.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.size = 0
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, in pieces, so that other threads can run in between. Ignore it after an error."""
        view = memoryview(data).cast("B")
        if self.error is not None:  # see the class
            return len(view)
        try:
            for first in range(0, len(view), _PIECE):
                piece = view[first : first + _PIECE]
                self.crc = zlib.crc32(piece, self.crc)
                while piece:
                    written = self._target.write(piece) or len(piece)
                    piece = piece[written:]
        except OSError as error:
            self.error = error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: the sink has no buffer, and the file is flushed when it is closed."""


class Store(Protocol):
    """Folder of checkpoints. A draft is a checkpoint that is being written.

    Attributes:
        location: Path or URL of the folder.
    """

    location: str

    def complete(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""

    def has(self, name: str) -> bool:
        """Whether a checkpoint is complete. This is newer than `complete`, whose list of a shared folder may be outdated."""

    def url(self, name: str) -> str:
        """Return the path or URL of a checkpoint."""

    def read(self, name: str, file: str) -> bytes:
        """Read a small file of a complete checkpoint."""

    def local(self, name: str, file: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager with the local path of a file of a complete checkpoint."""

    def create(self, name: str, file: str) -> contextlib.AbstractContextManager[Sink]:
        """Return a context manager with a new file of a draft, which is flushed to the disk when the block ends."""

    def read_draft(self, name: str, file: str) -> bytes | None:
        """Read a small file of a draft; None when it does not exist."""

    def discard(self, name: str, file: str) -> None:
        """Remove a file of a draft, if it exists."""

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Complete a draft.

        Args:
            name: Name of the checkpoint.
            complete: Content of COMPLETE.
            files: Names of the draft's files. Other files, which a crash has left, are removed.
        """

    def remove(self, name: str) -> None:
        """Delete a complete checkpoint. It is never seen as complete while some of its files are deleted."""

    def sweep(self) -> None:
        """Delete the leftovers of crashes: drafts and unfinished deletions."""

    def free(self) -> int | None:
        """Return the number of free bytes; None if it is unknown."""


def open_store(location: str) -> Store:
    """Open the store of a local folder or an fsspec URL.

    Raises:
        InputError: fsspec does not know the URL's protocol, or its library is not installed.
    """
    folder = paths.local_folder(location)
    return UrlStore(location) if folder is None else FolderStore(folder.expanduser().absolute())


class Records(NamedTuple):
    """The complete checkpoints, oldest first, and the errors of those whose COMPLETE is damaged."""

    saved: list[record.Saved]
    damaged: list[errors.CheckpointDamaged]


def records(store: Store) -> Records:
    """Read the descriptions of all complete checkpoints."""
    result = Records([], [])
    for name in store.complete():
        try:
            result.saved.append(_load(store, name))
        except errors.CheckpointDamaged as error:
            result.damaged.append(error)
    return result


def _load(store: Store, name: str) -> record.Saved:
    """Return the description of a complete checkpoint; raise CheckpointDamaged if it is damaged."""
    return record.load(store.read(name, record.COMPLETE), name, store.url(name))


def newest(
    store: Store, read: Callable[[record.Saved], T], is_usable: Callable[[int], bool] = lambda step: True
) -> T | None:
    """Read the newest intact checkpoint that can be used. Damaged ones are skipped with a warning.

    Args:
        store: Store of the checkpoints.
        read: Function that reads a checkpoint, and raises CheckpointDamaged if it is damaged.
        is_usable: Function that returns whether a checkpoint of a step can be used.

    Returns:
        What `read` returns for this checkpoint. None if there is no usable checkpoint.

    Raises:
        CheckpointDamaged: No usable checkpoint is intact, and at least one is damaged.
    """
    saved, damaged = records(store)
    for error in damaged:
        warnings.warn(f"a damaged checkpoint is skipped: {error}", stacklevel=4)
    for checkpoint in reversed([checkpoint for checkpoint in saved if is_usable(checkpoint.step)]):
        try:
            return read(checkpoint)
        except errors.CheckpointDamaged as error:
            damaged.append(error)
            warnings.warn(f"a damaged checkpoint is skipped, and the one before it is used: {error}", stacklevel=4)
    if damaged:
        raise errors.CheckpointDamaged(
            f"all checkpoints at {store.location} that can be used are damaged "
            f"({errors.counted(len(damaged), 'checkpoint')}). To start again from step 0, delete or move them"
        )
    return None


def only_newest(store: Store, read: Callable[[record.Saved], T]) -> T | None:
    """Return what `read` returns for the newest checkpoint; None if there is no checkpoint.

    Raises:
        CheckpointDamaged: It is damaged. An older one is not read instead.
    """
    names = store.complete()
    return read(_load(store, names[-1])) if names else None


def verify(path: Path, part: record.Part, location: str) -> None:
    """Compare a file with its description in COMPLETE: size and checksum. Errors name it by its path or URL `location`.

    Raises:
        CheckpointDamaged: The file is missing, truncated or changed.
    """
    size, crc = 0, 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
    except FileNotFoundError as error:
        raise errors.CheckpointDamaged(f"{location} is missing") from error
    if size != part.size:
        raise errors.CheckpointDamaged(f"{location} has {size:,} bytes of {part.size:,}")
    if crc != part.crc:
        raise errors.CheckpointDamaged(f"{location} was changed after it was written: its checksum differs")


def save_file(location: str, step: int, file: str, write: Callable[[Sink], object], keep: int) -> None:
    """Save a checkpoint that consists of one file, and delete the oldest ones.

    Args:
        location: Folder or fsspec URL of the checkpoints.
        step: Number of optimizer steps, epochs or rounds done.
        file: Name of the file.
        write: Function that writes the content of the file.
        keep: Number of checkpoints to keep.

    Raises:
        CheckpointError: The checkpoint could not be written. Older ones are unchanged.
    """
    store = open_store(location)
    try:
        existing = store.complete()
        name = record.unused_name(step, existing)
        with store.create(name, file) as sink:
            write(sink)
        saved = record.Saved(
            step=step,
            name=name,
            location=store.url(name),
            world_size=1,
            sharded=False,
            metric=None,
            parts={file: record.Part(sink.size, sink.crc)},
            meta={},
        )
        store.publish(name, record.dump(saved), [file])
        for outdated in [*existing, name][:-keep]:
            store.remove(outdated)
        store.sweep()
    except OSError as error:
        raise errors.CheckpointError(
            f"the checkpoint of step {step} could not be written to {store.location}: {error.strerror or error}. Free "
            "some space there, then continue from the previous checkpoint with `platform resume`"
        ) from error


class FolderStore:
    """Checkpoints in a folder that all ranks can reach, on one machine or on a shared volume."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._folder = folder

    def complete(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""
        if not self._folder.is_dir():
            return []
        names = [
            path.name for path in self._folder.iterdir() if record.is_name(path.name) and (path / record.COMPLETE).exists()
        ]
        return sorted(names, key=record.sort_key)

    def has(self, name: str) -> bool:
        """Whether a checkpoint is complete."""
        return (self._folder / name / record.COMPLETE).exists()

    def url(self, name: str) -> str:
        """Return a checkpoint's path."""
        return str(self._folder / name)

    def read(self, name: str, file: str) -> bytes:
        """Read a small file of a complete checkpoint."""
        return (self._folder / name / file).read_bytes()

    @contextlib.contextmanager
    def local(self, name: str, file: str) -> Iterator[Path]:
        """Yield the path of a file of a complete checkpoint."""
        yield self._folder / name / file

    @contextlib.contextmanager
    def create(self, name: str, file: str) -> Iterator[Sink]:
        """Yield a new file of a draft, which is flushed to the disk when the block ends."""
        folder = self._draft(name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("wb", buffering=0) as raw:
            yield Sink(raw)
            os.fsync(raw.fileno())

    def read_draft(self, name: str, file: str) -> bytes | None:
        """Read a small file of a draft; None when it does not exist."""
        path = self._draft(name) / file
        return path.read_bytes() if path.exists() else None

    def discard(self, name: str, file: str) -> None:
        """Remove a file of a draft."""
        (self._draft(name) / file).unlink(missing_ok=True)

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """See `Store`: delete other files, write COMPLETE, then rename the draft."""
        folder = self._draft(name)
        for path in folder.iterdir():
            if path.name not in files:  # of an attempt to write it that was killed
                path.unlink()
        with self.create(name, record.COMPLETE) as sink:
            sink.write(complete)
        _fsync_folder(folder)
        folder.rename(self._folder / name)
        _fsync_folder(self._folder)

    def remove(self, name: str) -> None:
        """Rename a complete checkpoint, then delete it."""
        renamed = self._folder / f".{name}{_DELETED}"
        (self._folder / name).rename(renamed)
        shutil.rmtree(renamed)

    def sweep(self) -> None:
        """Delete drafts and unfinished deletions."""
        for path in [*self._folder.glob(f".step-*{_DRAFT}"), *self._folder.glob(f".step-*{_DELETED}")]:
            shutil.rmtree(path)

    def free(self) -> int | None:
        """Return the number of free bytes."""
        # The folder is created with the first checkpoint, so its nearest existing parent is asked.
        existing_folder = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        return shutil.disk_usage(existing_folder).free

    def _draft(self, name: str) -> Path:
        return self._folder / f".{name}{_DRAFT}"


class UrlStore:
    """Checkpoints below an fsspec URL."""

    def __init__(self, location: str) -> None:
        import fsspec  # only needed for URLs

        self.location = location.rstrip("/")
        try:
            self._files, self._root = fsspec.url_to_fs(self.location)
        except (ImportError, ValueError) as error:  # a library that is not installed, or an unknown protocol
            raise errors.InputError(
                f"checkpoints cannot be kept at {location}: {error}. Install the library in the image of the run, or give a "
                "folder"
            ) from error

    def complete(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""
        self._files.invalidate_cache()  # other processes write there, too
        try:
            entries = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        folder_names = [entry.rstrip("/").rpartition("/")[2] for entry in entries]
        names = [name for name in folder_names if record.is_name(name)]
        return sorted((name for name in names if self._files.exists(self._path(name, record.COMPLETE))), key=record.sort_key)

    def has(self, name: str) -> bool:
        """Whether a checkpoint is complete."""
        self._files.invalidate_cache()
        return bool(self._files.exists(self._path(name, record.COMPLETE)))

    def url(self, name: str) -> str:
        """Return a checkpoint's URL."""
        return f"{self.location}/{name}"

    def read(self, name: str, file: str) -> bytes:
        """Read a small file of a complete checkpoint."""
        data: bytes = self._files.cat_file(self._path(name, file))
        return data

    @contextlib.contextmanager
    def local(self, name: str, file: str) -> Iterator[Path]:
        """Yield the path of a local copy of a file of a complete checkpoint."""
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            path = Path(folder) / file
            self._files.get_file(self._path(name, file), str(path))
            yield path

    @contextlib.contextmanager
    def create(self, name: str, file: str) -> Iterator[Sink]:
        """Yield a new file of a draft, which is uploaded when the block ends."""
        self._files.makedirs(f"{self._root}/{name}", exist_ok=True)
        with self._files.open(self._path(name, file), "wb") as raw:
            yield Sink(raw)

    def read_draft(self, name: str, file: str) -> bytes | None:
        """Read a small file of a draft; None when it does not exist."""
        self._files.invalidate_cache()
        try:
            return self.read(name, file)
        except FileNotFoundError:
            return None

    def discard(self, name: str, file: str) -> None:
        """Remove a file of a draft."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name, file))

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """See `Store`: delete other files, and write COMPLETE last."""
        for entry in self._files.ls(f"{self._root}/{name}", detail=False):
            if entry.rpartition("/")[2] not in files:
                self._files.rm_file(entry)
        self._files.pipe_file(self._path(name, record.COMPLETE), complete)

    def remove(self, name: str) -> None:
        """Delete a complete checkpoint, beginning with COMPLETE."""
        self._files.rm_file(self._path(name, record.COMPLETE))
        self._files.rm(f"{self._root}/{name}", recursive=True)

    def sweep(self) -> None:
        """Delete drafts and unfinished deletions."""
        complete = self.complete()
        for entry in self._files.ls(self._root, detail=False):
            name = entry.rstrip("/").rpartition("/")[2]
            if record.is_name(name) and name not in complete:
                self._files.rm(entry, recursive=True)

    def free(self) -> int | None:
        """Return None: the size of an object store is unknown."""
        return None

    def _path(self, name: str, file: str) -> str:
        return f"{self._root}/{name}/{file}"


def _fsync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
