"""Digests of the data that a job reads, by which a later run detects that the data has changed.

Files of the job's folder are part of its code. Of a large file, the size, the time of its last change and both ends count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from trialplane.job.kinds import Job

UNREADABLE = ""  # digest of data that this machine does not have
_MOST_WHOLE = 64 << 20  # bytes of a file that is read in full
_END = 1 << 20  # bytes at each end of a larger one
_MOST_FILES = 10_000  # files of a folder


def digests(job: Job) -> dict[str, str]:
    """Return the digests of the data of a job, by parameter.

    These are the fixed parameters that are absolute paths, or lists of them: those in `inputs`, and any whose files exist.
    The digest of an input that this machine cannot read is `UNREADABLE`.
    """
    digest_by_param = {}
    for name, value in job.params.items():
        paths = [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str) and path]
        absolute = [path for path in paths if path[0] in "/~"]
        try:
            files = [Path(path).expanduser() for path in absolute]
            if absolute and (name in job.inputs or all(file.exists() for file in files)):
                digest_by_param[name] = _digest(files)
        except (OSError, RuntimeError, ValueError):
            if name in job.inputs:
                digest_by_param[name] = UNREADABLE
    return digest_by_param


def _digest(paths: list[Path]) -> str:
    """Return the digest of files, and of all files in folders. `UNREADABLE` if there are too many."""
    total = hashlib.sha256()
    for number, file in enumerate(path for root in paths for path in _files(root)):
        if number >= _MOST_FILES:
            return UNREADABLE
        size = file.stat().st_size
        total.update(f"{file}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _MOST_WHOLE:
                total.update(stream.read())
                continue
            total.update(f"{file.stat().st_mtime_ns}\0".encode())
            total.update(stream.read(_END))
            stream.seek(-_END, os.SEEK_END)
            total.update(stream.read())
    return total.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """Yield all files in a folder, or the path itself if it is no folder."""
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())
    else:
        yield path
