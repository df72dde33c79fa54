"""A folder in memory for each test process, which is removed after the end of the process, even if that is killed."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path


@functools.cache
def scratch() -> Path:
    """Return the folder of this process. It is in memory if the system has /dev/shm, as hundreds of studies wait for a disk.

    The process locks its folder while it lives, and removes it at its end. A process that is killed removes nothing, so each
    process first removes the folders that no process has locked.
    """
    memory = Path("/dev/shm")
    # Its name is short, because the path of a Unix socket in it has at most 107 characters.
    parent = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"tp-{os.getuid()}"
    parent.mkdir(mode=0o711, exist_ok=True)  # PostgreSQL runs as another user
    parent_lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(parent_lock, fcntl.LOCK_EX)  # a folder that another process is just creating is not locked yet
        for other_folder in parent.iterdir():
            _remove_if_unlocked(other_folder)
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=""))
        folder.chmod(0o711)
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until this process and those that it forks have ended
    finally:
        os.close(parent_lock)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove_if_unlocked(folder: Path) -> None:
    """Remove a folder unless a process has locked it."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder, if this process is the owner: a forked process runs the functions of `atexit`, too."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
