"""A folder of each test process in memory, which goes with it however it ends."""

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
    """This process's own folder, in memory where there is one: hundreds of studies wait long for a busy disk.

    It is locked while the process lives and removed at its end. A process that is killed removes nothing, and memory on
    Linux is not given back before somebody does: whoever comes next removes the folders that nobody has locked.
    """
    memory = Path("/dev/shm")
    place = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"trialplane-tests-{os.getuid()}"
    place.mkdir(mode=0o711, exist_ok=True)  # PostgreSQL runs as somebody else
    everyone = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(everyone, fcntl.LOCK_EX)  # a folder that is made at this moment is not locked yet
        for folder in place.iterdir():
            _remove_if_left(folder)
        made = Path(tempfile.mkdtemp(dir=place, prefix=""))
        made.chmod(0o711)
        fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)  # held until this process and what it forked have ended
    finally:
        os.close(everyone)
    atexit.register(_remove, made, os.getpid())
    return made


def _remove_if_left(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(held)
    shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # what a test forks may end as Python does
        shutil.rmtree(folder, ignore_errors=True)
