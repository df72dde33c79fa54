"""How a cache gets a file: one process builds it, the others wait for it, and nobody ever sees half of it.

The lock is the system's, so it ends with the process that holds it, however that dies: the next one takes over. Knows
nothing of what is built. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
# What flock says on a file system that has no locks (some network mounts). Two processes may then build the same thing,
# which is wasted work but no harm: each renames a whole file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, after waiting for whoever has it. Look again whether `target` is there now.

    Raises:
        OSError: the folder of `target` cannot be made or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f"{target.name}.lock")
    with _locked(lock):
        try:
            yield
        finally:
            # While it is held: whoever waits for it finds that the name is gone, and asks for a new one.
            lock.unlink(missing_ok=True)


def once(target: Path, make: Callable[[], object]) -> None:
    """Has `make` write `target` unless it is there, or another process has just written it."""
    if target.exists():
        return
    with alone(target):
        if not target.exists():
            sweep(target.parent, target.name)
            make()


@contextlib.contextmanager
def whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `target` when the block ends well and is removed when it does not."""
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART}")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename: after a power failure the name must not lead to an empty file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed builders of the file `name`, of any file without it, left half done. Hold the lock."""
    for file in folder.glob(f"{glob.escape(name) or '*'}.????????{PART}"):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    while True:
        with lock.open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                yield
                return
            if _is_still(handle, lock):
                yield
                return


def _is_still(handle: BinaryIO, lock: Path) -> bool:
    """Whether the name still leads to the file that was locked."""
    try:
        there = lock.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(handle.fileno())
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
