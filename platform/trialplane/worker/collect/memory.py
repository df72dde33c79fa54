"""Files and folders in this node's memory, /dev/shm: each exists as long as a process holds it, however that process ends.

Each is held by a file lock, so the leftovers of a killed process are swept by the next one. Independent of their contents.
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


class Held:
    """A file or a folder that exists as long as a process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the file or folder; it is removed when no other process holds it."""
        if self._handle is None:
            return
        with _alone(self.path.parent):
            os.close(self._handle)
            self._handle = None
            _sweep(self.path.parent)


def folder(name: str, size: int, instead: Path) -> Held:
    """A new folder for this process alone.

    Args:
        name: the prefix of its name.
        size: bytes that must be free for it.
        instead: folder on disk, used when memory has no room.
    """
    parent = _create_folder(size, instead)
    with _alone(parent):
        _sweep(parent)
        return Held(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)))


def shared(name: str, data: Bytes, instead: Path) -> Held:
    """A file of that name with `data` in it: the first caller writes it, the others hold the same one.

    Args:
        name: identifies the contents; other contents need another name.
        data: of shape (bytes,).
        instead: folder on disk, used when memory has no room.
    """
    for parent in (_MEMORY / _user_folder(), instead):
        if (parent / name).exists():
            with _alone(parent), contextlib.suppress(FileNotFoundError):  # it may just have been removed
                return Held(parent / name)
    parent = _create_folder(data.nbytes, instead)
    with _alone(parent):
        _sweep(parent)
        if not (parent / name).exists():
            with building.open_new(parent / name) as file:
                file.write(data.data)
        return Held(parent / name)


def _user_folder() -> str:
    return f"trialplane-{os.getuid()}"


def _create_folder(size: int, instead: Path) -> Path:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= size + _MARGIN:
            user_folder = _MEMORY / _user_folder()
            user_folder.mkdir(mode=0o700, exist_ok=True)
            return user_folder
    instead.mkdir(parents=True, exist_ok=True)
    return instead


def _alone(folder_path: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder, so that no entry is swept between its creation and its own lock."""
    return building.lock(folder_path / "all")


def _sweep(folder_path: Path) -> None:
    """Remove the entries that no process holds; the caller has locked the folder."""
    building.sweep(folder_path)
    for path in folder_path.iterdir():
        if path.suffix == ".lock":
            continue
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
