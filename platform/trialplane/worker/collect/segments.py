"""Pass packed results between processes of a node as files in shared memory, which are read without a copy.

A file whose result was read is reused under the same name, because its pages exist already: allocating new ones takes
several times as long as the copy itself. `memory` creates the folders.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import mmap
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.policies import transport

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

# The share of the free memory that one result may take. Ray's object store is in the same memory and takes pages only when
# it needs them; a process that finds none is killed. So some memory always stays free: an eighth after three results.
SHARE = 0.5
# A file is reused for a result if it has at most twice the result's size and so many bytes more. A larger one is removed, so
# that the memory of one huge result is freed.
_REUSE_MARGIN = 64 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass
class _Segment:
    """A mapped file.

    Attributes:
        path: Path of the file.
        buffer: Whole file, mapped.
        is_taken: Whether it holds a result that may still be read.
    """

    path: Path
    buffer: Bytes
    is_taken: bool = True


class Writer:
    """A writer of one process's results into files. Not for several threads at once.

    Args:
        folder: Folder in shared memory; must exist, and other processes may use it too.
        spare: Folder on disk, for results that do not fit in `folder`; created when needed. None without one.
    """

    def __init__(self, folder: Path | str, spare: Path | str | None = None) -> None:
        self._folder = Path(folder)
        self._spare = None if spare is None else Path(spare)
        self._segments: dict[str, _Segment] = {}
        self._names = (f"{os.getpid()}-{number}" for number in itertools.count())

    def write(self, tree: Any) -> tuple[str, int]:
        """Pack a tree directly into a file.

        Returns:
            The path of the file, and the size of the packed tree in bytes; the file itself may be longer.

        Raises:
            TransportError: The tree contains a value that cannot be sent, or there is no room.
        """
        packing = transport.Packing(tree)
        segment = self._free_segment(packing.nbytes)
        packing.write(segment.buffer)
        return str(segment.path), packing.nbytes

    def copy(self, packed: Bytes) -> tuple[str, int]:
        """Copy a packed tree into a file; return its path and the size of the tree in bytes.

        Raises:
            TransportError: There is no room.
        """
        segment = self._free_segment(packed.nbytes)
        segment.buffer[: packed.nbytes] = packed
        return str(segment.path), packed.nbytes

    def release(self, path: str) -> None:
        """Allow the reuse of a file whose result was read. No array may refer to it any more."""
        self._segments[path].is_taken = False

    def close(self) -> None:
        """Unmap the files; their memory is free when they are removed too. Nothing may be written afterwards."""
        self._segments.clear()

    def _free_segment(self, size: int) -> _Segment:
        """Return a file of at least `size` bytes that holds no result; create one if none has a suitable size.

        Before one is created, the largest unsuitable one is removed, so there are never more files than results.

        Raises:
            TransportError: There is no room.
        """
        free = sorted(
            (segment for segment in self._segments.values() if not segment.is_taken),
            key=lambda segment: segment.buffer.nbytes,
        )
        for segment in free:
            if size <= segment.buffer.nbytes <= 2 * size + _REUSE_MARGIN:
                segment.is_taken = True
                return segment
        if free:
            largest = free[-1]
            del self._segments[str(largest.path)]
            largest.path.unlink(missing_ok=True)
        segment = self._create_segment(size)
        self._segments[str(segment.path)] = segment
        return segment

    def _create_segment(self, size: int) -> _Segment:
        """Create a file of at least `size` bytes: in shared memory, or on disk if that has no room.

        Raises:
            TransportError: Neither has room.
        """
        name = next(self._names)
        if size <= shutil.disk_usage(self._folder).free * SHARE:
            # An eighth more than is needed now, so that a slightly larger result needs no new file.
            segment = _map_new(self._folder / name, size + size // 8)
            if segment is not None:
                return segment
        if self._spare is not None:
            self._spare.mkdir(parents=True, exist_ok=True)
            segment = _map_new(self._spare / name, size)
            if segment is not None:
                return segment
        folders = [self._folder] if self._spare is None else [self._folder, self._spare]
        free_texts = [f"{shutil.disk_usage(folder).free / 1e6:,.0f} MB free in {folder}" for folder in folders]
        raise errors.TransportError(
            f"there is no room for a result of {size / 1e6:,.1f} MB: {' and '.join(free_texts)}; one result may take at "
            "most half of the shared memory; give smaller results, or raise resources.shm"
        )


def read(path: str | Path, on_release: Callable[[], object] | None = None) -> Bytes:
    """Return the packed tree in a file: a read-only uint8 array of shape (bytes,), mapped, not copied.

    Args:
        path: Path as returned by a Writer.
        on_release: Called when the array and its views are gone, perhaps in another thread; not at the process's end.

    Raises:
        TransportError: The file is missing, or does not hold a packed tree.
    """
    import numpy as np

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapping = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise errors.TransportError(f"the packed result {path} cannot be read: {errors.first_line(error)}") from error
    packed = np.frombuffer(mapping, dtype=np.uint8)
    try:
        packed = packed[: transport.size_of(packed)]
    except errors.TransportError as error:
        raise errors.TransportError(f"{path}: {error}") from error
    if on_release is not None:
        weakref.finalize(mapping, on_release).atexit = False
    return packed


def _map_new(path: Path, size: int) -> _Segment | None:
    """Return a new, mapped file of `size` bytes; None if there is no room.

    Its pages are allocated at once. Otherwise a later write to the mapping could find no room, which kills the process by
    SIGBUS.
    """
    import numpy as np

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return _Segment(path, np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8))
    except OSError as error:
        path.unlink()
        if error.errno not in _NO_ROOM:
            raise
        return None
    finally:
        os.close(descriptor)
