"""Stores of checkpoints: a local folder, or an fsspec URL (`s3://…`, `gs://…`, `memory://…`). Independent of tensors.

In a folder a checkpoint is written below a temporary name, flushed to the disk and renamed. An object store has no rename of
folders, so there the file COMPLETE, written last, completes a checkpoint. Nothing but `sweep` and `remove` deletes.
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
from typing import Any, Protocol, TypeVar

from trialplane import errors
from trialplane.training.steps import record
from trialplane.wire import paths

T = TypeVar("T")

_PIECE = 4 << 20  # bytes between two releases of the interpreter's lock
_DRAFT, _DELETED = ".saving", ".deleted"


class Target(Protocol):
    """A target of writes."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of `data`; return the number of bytes, or None for all."""


class Sink:
    """A file being written, with its size and checksum. After the first error, `error`, it ignores writes.

    torch's writer goes on writing while it unwinds, and would hide the error behind one of its own.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.size = 0
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, in pieces."""
        view = memoryview(data).cast("B")
        if self.error is not None:
            return len(view)
        try:
            for first in range(0, len(view), _PIECE):
                piece = view[first : first + _PIECE]
                self.crc = zlib.crc32(piece, self.crc)
                while piece:
                    piece = piece[self._target.write(piece) or len(piece) :]
        except OSError as error:
            self.error = error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: there is no buffer here; the file is flushed when it is closed."""


class Store(Protocol):
    """One folder of checkpoints."""

    location: str

    def complete(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""

    def has(self, name: str) -> bool:
        """Whether a checkpoint is complete, by its name: another machine's list of a shared folder may be seconds old."""

    def url(self, name: str) -> str:
        """Return the path or URL of a checkpoint."""

    def read(self, name: str, file: str) -> bytes:
        """Read a small file of a complete checkpoint."""

    def local(self, name: str, file: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager with the local path of a file of a complete checkpoint."""

    def create(self, name: str, file: str) -> contextlib.AbstractContextManager[Sink]:
        """Return a context manager with a new file of a draft; on the disk when the block ends."""

    def written(self, name: str, file: str) -> bytes | None:
        """Read a small file of a draft; None when it does not exist."""

    def discard(self, name: str, file: str) -> None:
        """Remove a file of a draft, if it exists."""

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Complete a draft. Remove its files that are not among `files`, which a crash has left."""

    def remove(self, name: str) -> None:
        """Delete a complete checkpoint; it is incomplete from the first moment on."""

    def sweep(self) -> None:
        """Delete the leftovers of crashes: drafts and unfinished deletions."""

    def free(self) -> int | None:
        """Return the bytes that can still be written; None if unknown."""


def open_store(location: str) -> Store:
    """Open the store of a local folder or an fsspec URL.

    Raises:
        InputError: fsspec does not know the URL's protocol, or its library is not installed.
    """
    folder = paths.local_folder(location)
    return UrlStore(location) if folder is None else FolderStore(folder.expanduser().absolute())


def records(store: Store) -> tuple[list[record.Saved], list[errors.CheckpointDamaged]]:
    """Return the complete checkpoints, oldest first, and the errors of those whose COMPLETE is damaged."""
    saved, damaged = [], []
    for name in store.complete():
        try:
            data = store.read(name, record.COMPLETE)
            saved.append(record.load(data, name, store.url(name)))
        except errors.CheckpointDamaged as error:
            damaged.append(error)
    return saved, damaged


def newest(
    store: Store, read: Callable[[record.Saved], T], is_usable: Callable[[int], bool] = lambda step: True
) -> tuple[record.Saved, T] | None:
    """Return the newest intact checkpoint and its content; skip damaged ones with a warning. None without a checkpoint.

    Args:
        store: has the checkpoints.
        read: reads one, and raises CheckpointDamaged.
        is_usable: whether a checkpoint of a step may be used.

    Raises:
        CheckpointDamaged: all are damaged.
    """
    saved, damaged = records(store)
    for error in damaged:
        warnings.warn(f"a damaged checkpoint is skipped: {error}", stacklevel=4)
    for checkpoint in reversed([checkpoint for checkpoint in saved if is_usable(checkpoint.step)]):
        try:
            return checkpoint, read(checkpoint)
        except errors.CheckpointDamaged as error:
            damaged.append(error)
            warnings.warn(f"a damaged checkpoint is skipped, and the one before it is used: {error}", stacklevel=4)
    if damaged:
        raise errors.CheckpointDamaged(
            f"all checkpoints at {store.location} are damaged ({errors.counted(len(damaged), 'checkpoint')}). To start "
            "again from step 0, delete or move that folder"
        )
    return None


def verify(path: Path, part: record.Part, location: str) -> None:
    """Compare a file with its size and checksum in COMPLETE.

    Raises:
        CheckpointDamaged: it is missing, cut or changed.
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
        raise errors.CheckpointDamaged(f"{location} was changed after it was written: its checksum is another")


class FolderStore:
    """Checkpoints in a folder that all ranks can reach: of one machine, or of a shared volume."""

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
        return sorted(names, key=record.order)

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
        """Yield a new file of a draft; on the disk when the block ends."""
        folder = self._draft(name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("wb", buffering=0) as raw:
            yield Sink(raw)
            os.fsync(raw.fileno())

    def written(self, name: str, file: str) -> bytes | None:
        """Read a small file of a draft; None when it does not exist."""
        path = self._draft(name) / file
        return path.read_bytes() if path.exists() else None

    def discard(self, name: str, file: str) -> None:
        """Remove a file of a draft."""
        (self._draft(name) / file).unlink(missing_ok=True)

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Complete a draft: write COMPLETE, then rename."""
        folder = self._draft(name)
        for path in folder.iterdir():
            if path.name not in files:
                path.unlink()
        with self.create(name, record.COMPLETE) as sink:
            sink.write(complete)
        _fsync_folder(folder)
        folder.rename(self._folder / name)
        _fsync_folder(self._folder)

    def remove(self, name: str) -> None:
        """Delete a complete checkpoint; rename it first."""
        renamed = self._folder / f".{name}{_DELETED}"
        (self._folder / name).rename(renamed)
        shutil.rmtree(renamed)

    def sweep(self) -> None:
        """Delete drafts and unfinished deletions."""
        for path in [*self._folder.glob(f".step-*{_DRAFT}"), *self._folder.glob(f".step-*{_DELETED}")]:
            shutil.rmtree(path)

    def free(self) -> int | None:
        """Return the bytes that can still be written."""
        return shutil.disk_usage(next(path for path in (self._folder, *self._folder.parents) if path.exists())).free

    def _draft(self, name: str) -> Path:
        return self._folder / f".{name}{_DRAFT}"


class UrlStore:
    """Checkpoints below an fsspec URL."""

    def __init__(self, location: str) -> None:
        import fsspec  # only needed for URLs

        self.location = location.rstrip("/")
        try:
            self._files, self._root = fsspec.url_to_fs(self.location)
        except (ImportError, ValueError) as error:  # its library is not installed; no such protocol
            raise errors.InputError(
                f"checkpoints cannot be kept at {location}: {error}. Install the library in the image of the run, or give a "
                "folder"
            ) from error

    def complete(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""
        self._files.invalidate_cache()  # others write there too
        try:
            entries = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        names = [entry.rstrip("/").rpartition("/")[2] for entry in entries]
        complete = [name for name in names if record.is_name(name)]
        complete = [name for name in complete if self._files.exists(self._path(name, record.COMPLETE))]
        return sorted(complete, key=record.order)

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
        """Yield a new file of a draft; an object appears when the block ends."""
        self._files.makedirs(f"{self._root}/{name}", exist_ok=True)
        with self._files.open(self._path(name, file), "wb") as raw:
            yield Sink(raw)

    def written(self, name: str, file: str) -> bytes | None:
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
        """Complete a draft: write COMPLETE last."""
        for entry in self._files.ls(f"{self._root}/{name}", detail=False):
            if entry.rpartition("/")[2] not in files:
                self._files.rm_file(entry)
        self._files.pipe_file(self._path(name, record.COMPLETE), complete)

    def remove(self, name: str) -> None:
        """Delete a complete checkpoint; COMPLETE first."""
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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
