"""Files of a cache: one process builds a file, the others wait for it, and no process ever sees an incomplete one.

The operating system releases the lock of a process that ends, even if it is killed. The next process then takes over.
The module is independent of the content, and imports only the standard library.
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

PART = ".part"  # end of the name of an incomplete file: `vocabulary.txt.1f2e3d4c.part`
# Errors of flock on a file system without locks, such as some network mounts. Two processes may then build the same file.
# That wastes work but does no harm, because each renames a complete file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)


@contextlib.contextmanager
def lock(target: Path) -> Iterator[None]:
    """Wait for the lock of `target`, and hold it during the block.

    Another process may have created `target` while this one waited, so check for it in the block.

    Raises:
        OSError: The folder of `target` cannot be created or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_file = target.with_name(f"{target.name}.lock")
    with _hold(lock_file):
        try:
            yield
        finally:
            # The file is deleted before the lock is released. A process that waits for the lock then notices that the file
            # is gone, and locks a new one.
            lock_file.unlink(missing_ok=True)


def build_once(target: Path, make: Callable[[], object]) -> None:
    """Call `make` to write `target`, unless it exists. If another process is writing it, wait for that process instead."""
    if target.exists():
        return
    with lock(target):
        if not target.exists():
            sweep(target.parent, target.name)
            make()


@contextlib.contextmanager
def open_new(target: Path) -> Iterator[BinaryIO]:
    """Yield a file to write. It becomes `target` when the block ends without an error, and is removed otherwise."""
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART}")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename, so that `target` is not empty after a power failure
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sweep(folder: Path, name: str = "") -> None:
    """Remove incomplete files that killed processes have left. The caller must hold the lock.

    Args:
        folder: Folder of the files.
        name: Name of the complete file. "" removes the incomplete files of all names.
    """
    for file in folder.glob(f"{glob.escape(name) or '*'}.????????{PART}"):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _hold(lock_file: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing."""
    while True:
        with lock_file.open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                yield  # without a lock, because the file system has none
                return
            # Otherwise the previous holder has removed this file while this process waited for its lock.
            if _is_current_file(handle, lock_file):
                yield
                return


def _is_current_file(handle: BinaryIO, lock_file: Path) -> bool:
    """Whether the path `lock_file` still refers to the open file."""
    try:
        current = lock_file.stat()
    except FileNotFoundError:
        return False
    locked = os.fstat(handle.fileno())
    return (current.st_dev, current.st_ino) == (locked.st_dev, locked.st_ino)
