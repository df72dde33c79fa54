"""Create files and folders in this node's memory, /dev/shm, that are removed when no process holds them any more.

A process holds a file or folder by a lock, which the kernel releases when the process ends. So each process that creates or
releases one also removes those that killed processes have left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trialplane.training import building

if TYPE_CHECKING:
    from trialplane.worker.collect.segments import Bytes

_MEMORY = Path("/dev/shm")
_MARGIN = 16 << 20  # bytes that stay free for others


class HeldPath:
    """A file or folder that this process holds, so that it is not removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the file or folder; it is removed when no other process holds it."""
        if self._descriptor is None:
            return
        with _lock(self.path.parent):
            os.close(self._descriptor)
            self._descriptor = None
            _sweep(self.path.parent)


def create_folder(name: str, size: int, disk_folder: Path) -> HeldPath:
    """Create and hold a folder for this process alone, in memory or, if that has no room, on disk.

    Args:
        name: Prefix of the folder's name.
        size: Bytes that must be free for it.
        disk_folder: Folder on disk for these files alone, used if memory has no room.
    """
    parent = _parent_folder(size, disk_folder)
    with _lock(parent):
        _sweep(parent)
        return HeldPath(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)))


def share_file(name: str, data: Bytes, disk_folder: Path) -> HeldPath:
    """Share a file between processes: the first caller writes it, the others hold the same file.

    Args:
        name: Name of the file; other contents need another name.
        data: Contents, of shape (bytes,).
        disk_folder: Folder on disk for these files alone, used if memory has no room.
    """
    for parent in (_MEMORY / _user_folder(), disk_folder):  # another process may have written it to either
        if (parent / name).exists():
            with _lock(parent), contextlib.suppress(FileNotFoundError):  # it may just have been removed
                return HeldPath(parent / name)
    parent = _parent_folder(data.nbytes, disk_folder)
    with _lock(parent):
        _sweep(parent)
        if not (parent / name).exists():
            with building.open_new(parent / name) as file:
                file.write(data.data)
        return HeldPath(parent / name)


def _user_folder() -> str:
    """Return the name of this user's folder in memory."""
    return f"trialplane-{os.getuid()}"


def _parent_folder(size: int, disk_folder: Path) -> Path:
    """Create and return the folder in memory, or `disk_folder` if memory has less than `size` bytes of room."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= size + _MARGIN:
            user_folder = _MEMORY / _user_folder()
            user_folder.mkdir(mode=0o700, exist_ok=True)
            return user_folder
    disk_folder.mkdir(parents=True, exist_ok=True)
    return disk_folder


def _lock(folder_path: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder. Entries are created and removed under this lock, so none is removed before it has a lock of its own."""
    return building.lock(folder_path / "all")


def _sweep(folder_path: Path) -> None:
    """Remove everything that no `HeldPath` holds, apart from locks. The caller has locked the folder."""
    building.sweep(folder_path)
    for path in folder_path.iterdir():
        if path.suffix == ".lock":
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a HeldPath of this or another process, as each opens the file anew
            continue
        finally:
            os.close(descriptor)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
