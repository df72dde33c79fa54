"""Where checkpoints lie: a local folder, or an fsspec URL (`s3://…`, `gs://…`, `memory://…`). Moves bytes; knows no tensors.

In a folder a checkpoint is written below a temporary name, flushed to the disk and renamed. An object store has no rename of
folders, so there COMPLETE, written last, is what makes a checkpoint one. Nothing but `sweep` and `remove` deletes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from trialplane import errors
from trialplane.training.steps import record
from trialplane.wire import paths

_PIECE = 4 << 20  # bytes between two releases of the interpreter's lock
_DRAFT, _DELETED = ".saving", ".deleted"


class Target(Protocol):
    """What bytes are written to."""

    def write(self, data: memoryview, /) -> int | None:
        """Take some of `data`; how much, or None for all."""


class Sink:
    """A file being written: counts, sums up, and stays quiet after its first error, which `error` keeps.

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
        """Nothing is kept back here; the file is flushed when it is closed."""


class Store(Protocol):
    """One folder of checkpoints."""

    place: str

    def complete(self) -> list[str]:
        """Names of the complete ones, the oldest first."""

    def has(self, name: str) -> bool:
        """Whether that one is complete, by its name: another machine's list of a shared folder may be seconds old."""

    def url(self, name: str) -> str:
        """Path or URL of a checkpoint."""

    def read(self, name: str, file: str) -> bytes:
        """A small file of a complete one."""

    def local(self, name: str, file: str) -> contextlib.AbstractContextManager[Path]:
        """A file of a complete one on this machine's disk."""

    def create(self, name: str, file: str) -> contextlib.AbstractContextManager[Sink]:
        """A new file of one that is being written; on the disk when the block ends."""

    def written(self, name: str, file: str) -> bytes | None:
        """A small file of one that is being written; None when it is not there."""

    def discard(self, name: str, file: str) -> None:
        """Take back a file of one that is being written, if it is there."""

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Make one complete. Files that are not among `files` are left-overs of a crash, and go."""

    def remove(self, name: str) -> None:
        """Delete a complete one; it is no longer complete from the first moment on."""

    def sweep(self) -> None:
        """Delete what crashes have left: drafts, and halves of deletions."""

    def free(self) -> int | None:
        """Bytes that can still be written; None when nobody knows."""


def open_store(place: str) -> Store:
    """The store of a local folder or an fsspec URL.

    Raises:
        InputError: fsspec does not know the URL's protocol, or its library is not installed.
    """
    folder = paths.local_folder(place)
    return UrlStore(place) if folder is None else FolderStore(folder.expanduser().absolute())


def records(store: Store) -> tuple[list[record.Saved], list[errors.CheckpointDamaged]]:
    """The complete checkpoints, the oldest first, and what is wrong with those whose COMPLETE is damaged."""
    found, damaged = [], []
    for name in store.complete():
        try:
            data = store.read(name, record.COMPLETE)
            found.append(record.load(data, name, store.url(name)))
        except errors.CheckpointDamaged as error:
            damaged.append(error)
    return found, damaged


class FolderStore:
    """Checkpoints in a folder, which all ranks see: of one machine, or of a shared volume."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def complete(self) -> list[str]:
        """Names of the complete ones, the oldest first."""
        if not self._folder.is_dir():
            return []
        found = [
            path.name for path in self._folder.iterdir() if record.is_name(path.name) and (path / record.COMPLETE).exists()
        ]
        return sorted(found, key=record.order)

    def has(self, name: str) -> bool:
        """Whether that one is complete."""
        return (self._folder / name / record.COMPLETE).exists()

    def url(self, name: str) -> str:
        """A checkpoint's path."""
        return str(self._folder / name)

    def read(self, name: str, file: str) -> bytes:
        """A small file of a complete one."""
        return (self._folder / name / file).read_bytes()

    @contextlib.contextmanager
    def local(self, name: str, file: str) -> Iterator[Path]:
        """A file of a complete one on this machine."""
        yield self._folder / name / file

    @contextlib.contextmanager
    def create(self, name: str, file: str) -> Iterator[Sink]:
        """A new file of a draft; on the disk when the block ends."""
        folder = self._draft(name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("wb", buffering=0) as raw:
            yield Sink(raw)
            os.fsync(raw.fileno())

    def written(self, name: str, file: str) -> bytes | None:
        """A small file of a draft, or None."""
        path = self._draft(name) / file
        return path.read_bytes() if path.exists() else None

    def discard(self, name: str, file: str) -> None:
        """Take a file of a draft back."""
        (self._draft(name) / file).unlink(missing_ok=True)

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Make a draft complete: COMPLETE, then the rename."""
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
        """Delete a complete one; renamed first."""
        gone = self._folder / f".{name}{_DELETED}"
        (self._folder / name).rename(gone)
        shutil.rmtree(gone)

    def sweep(self) -> None:
        """Delete drafts and halves of deletions."""
        for path in [*self._folder.glob(f".step-*{_DRAFT}"), *self._folder.glob(f".step-*{_DELETED}")]:
            shutil.rmtree(path)

    def free(self) -> int | None:
        """Bytes that can still be written."""
        return shutil.disk_usage(next(path for path in (self._folder, *self._folder.parents) if path.exists())).free

    def _draft(self, name: str) -> Path:
        return self._folder / f".{name}{_DRAFT}"


class UrlStore:
    """Checkpoints below an fsspec URL."""

    def __init__(self, place: str) -> None:
        import fsspec  # only who writes to a URL needs it

        self.place = place.rstrip("/")
        try:
            self._files, self._root = fsspec.url_to_fs(self.place)
        except (ImportError, ValueError) as error:  # its library is not installed; no such protocol
            raise errors.InputError(
                f"checkpoints cannot be kept at {place}: {error}. Install the library in the image of the run, or give a "
                "folder"
            ) from error

    def complete(self) -> list[str]:
        """Names of the complete ones, the oldest first."""
        self._files.invalidate_cache()  # others write there too
        try:
            entries = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        names = [entry.rstrip("/").rpartition("/")[2] for entry in entries]
        found = [name for name in names if record.is_name(name)]
        found = [name for name in found if self._files.exists(self._path(name, record.COMPLETE))]
        return sorted(found, key=record.order)

    def has(self, name: str) -> bool:
        """Whether that one is complete."""
        self._files.invalidate_cache()
        return bool(self._files.exists(self._path(name, record.COMPLETE)))

    def url(self, name: str) -> str:
        """A checkpoint's URL."""
        return f"{self.place}/{name}"

    def read(self, name: str, file: str) -> bytes:
        """A small file of a complete one."""
        data: bytes = self._files.cat_file(self._path(name, file))
        return data

    @contextlib.contextmanager
    def local(self, name: str, file: str) -> Iterator[Path]:
        """A file of a complete one on this machine, fetched."""
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            path = Path(folder) / file
            self._files.get_file(self._path(name, file), str(path))
            yield path

    @contextlib.contextmanager
    def create(self, name: str, file: str) -> Iterator[Sink]:
        """A new file of a draft; an object appears when the block ends."""
        self._files.makedirs(f"{self._root}/{name}", exist_ok=True)
        with self._files.open(self._path(name, file), "wb") as raw:
            yield Sink(raw)

    def written(self, name: str, file: str) -> bytes | None:
        """A small file of a draft, or None."""
        self._files.invalidate_cache()
        try:
            return self.read(name, file)
        except FileNotFoundError:
            return None

    def discard(self, name: str, file: str) -> None:
        """Take a file of a draft back."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name, file))

    def publish(self, name: str, complete: bytes, files: Collection[str]) -> None:
        """Make a draft complete: COMPLETE is written last."""
        for entry in self._files.ls(f"{self._root}/{name}", detail=False):
            if entry.rpartition("/")[2] not in files:
                self._files.rm_file(entry)
        self._files.pipe_file(self._path(name, record.COMPLETE), complete)

    def remove(self, name: str) -> None:
        """Delete a complete one; COMPLETE first."""
        self._files.rm_file(self._path(name, record.COMPLETE))
        self._files.rm(f"{self._root}/{name}", recursive=True)

    def sweep(self) -> None:
        """Delete drafts and halves of deletions."""
        complete = self.complete()
        for entry in self._files.ls(self._root, detail=False):
            name = entry.rstrip("/").rpartition("/")[2]
            if record.is_name(name) and name not in complete:
                self._files.rm(entry, recursive=True)

    def free(self) -> int | None:
        """Bytes that can still be written: nobody knows."""
        return None

    def _path(self, name: str, file: str) -> str:
        return f"{self._root}/{name}/{file}"


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
