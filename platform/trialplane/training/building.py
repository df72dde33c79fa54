"""Files of a cache: one process builds a file, the others wait for it, and none ever sees an incomplete one.

The lock is the system's, so it ends with the process that holds it, however that ends: the next process takes over.
Independent of the content. Standard library only.
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
# Errors of flock on a file system without locks (some network mounts). Two processes may then build the same file, which
# wastes work and does no harm: each renames a complete file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, after waiting for the process that holds it. `target` may exist by then: check again.

    Raises:
        OSError: the folder of `target` cannot be made or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f"{target.name}.lock")
    with _locked(lock):
        try:
            yield
        finally:
            # While it is held: a process that waits for it finds that the name is gone, and locks a new file.
            lock.unlink(missing_ok=True)


def once(target: Path, make: Callable[[], object]) -> None:
    """Call `make` to write `target`, unless it exists or another process has just written it."""
    if target.exists():
        return
    with alone(target):
        if not target.exists():
            sweep(target.parent, target.name)
            make()


@contextlib.contextmanager
def whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `target` when the block ends without an error and is removed otherwise."""
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
        by_name = lock.stat()
    except FileNotFoundError:
        return False
    locked = os.fstat(handle.fileno())
    return (by_name.st_dev, by_name.st_ino) == (locked.st_dev, locked.st_ino)
