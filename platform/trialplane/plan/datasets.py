"""Digests of the data that a job reads. A later run compares them to detect that the data has changed.

Files of the job's folder are left out, because they are part of its code. Of a large file, and of all files after the first
GiB of data, the digest has only the size, the time of the last change, and the beginning and the end.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from trialplane.job.kinds import Job

UNREADABLE = ""  # digest of data that this machine does not have
_LARGEST_WHOLE = 64 << 20  # size of the largest file that is read completely, in bytes
_MOST_WHOLE = 1 << 30  # bytes of the files of a parameter that are read completely
_END = 1 << 20  # bytes that are read at each end of a larger file
_MOST_FILES = 10_000  # limit of the files of a parameter
# Names of parameters whose texts are data (`train_data`, `dataset_path`), or, with a slash as in the names of a hub, a model
# (`model_name`; only then there is a group 1).
_DATA_NAME = re.compile(
    r"(?:^|[^a-z])(?:data|datasets?|corpus|(model))(?:_(?:name|path|files?|url|dir|folder|id))?$", re.IGNORECASE
)


def digests(job: Job) -> dict[str, str]:
    """Return the digests of the data of a job, by parameter, and of the targets of its links, by `links.LINK`.

    A fixed parameter names data if it is an absolute path, or a list with absolute paths, and if it is one of the job's
    `inputs` or all of these files exist. The digest of an input or a target that this machine cannot read is `UNREADABLE`.
    """
    digest_by_param = {}
    for link, target in job.links.items():
        try:
            digest_by_param[f"links.{link}"] = _digest([Path(target)])
        except OSError:
            digest_by_param[f"links.{link}"] = UNREADABLE
    for name, value in job.params.items():
        items = value if isinstance(value, list) else [value]
        absolute_paths = [item for item in items if isinstance(item, str) and item.startswith(("/", "~"))]
        try:
            files = [Path(path).expanduser() for path in absolute_paths]
            if files and (name in job.inputs or all(file.exists() for file in files)):
                digest_by_param[name] = _digest(files)
        except (OSError, RuntimeError, ValueError):
            if name in job.inputs:
                digest_by_param[name] = UNREADABLE
    return digest_by_param


def uncompared(job: Job, digest_by_param: Mapping[str, str], files: Iterable[str]) -> dict[str, str]:
    """Return the first text that seems to name data without a digest, by parameter. Changes of these data are not detected.

    Such a text is a URL, an absolute path or one that leads out of the job's folder, or that of a parameter whose name says
    that it is data or, with a slash, a model. A choice of a searched parameter never has a digest.

    Args:
        job: The job.
        digest_by_param: Digests of its data.
        files: Paths of the files of its code, which is compared.
    """
    code = {str(path) for file in files for path in (PurePosixPath(file), *PurePosixPath(file).parents)}
    values = {name: value for name, value in job.params.items() if name not in digest_by_param}
    for name, parameter in job.search.parameters.items():
        values[name] = list(getattr(parameter, "choices", ()))
    by_param: dict[str, str] = {}
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and _names_data(name, item) and os.path.normpath(item) not in code:
                by_param.setdefault(name, item)
    return by_param


def _names_data(name: str, text: str) -> bool:
    """Return whether the text of a parameter seems to name data or a model."""
    if "://" in text or text.startswith(("/", "~", "../")):
        return True
    match = _DATA_NAME.search(name)
    return bool(text) and match is not None and (match[1] is None or "/" in text)


def _digest(paths: list[Path]) -> str:
    """Return the digest of files, and of all files in folders. `UNREADABLE` if there are too many files."""
    digest, whole_size = hashlib.sha256(), 0
    for number, file in enumerate(path for root in paths for path in _files(root)):
        if number >= _MOST_FILES:
            return UNREADABLE
        size = file.stat().st_size
        digest.update(f"{file}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _LARGEST_WHOLE and whole_size + size <= _MOST_WHOLE:
                whole_size += size
                digest.update(stream.read())
                continue
            digest.update(f"{file.stat().st_mtime_ns}\0".encode())
            digest.update(stream.read(_END))
            stream.seek(-min(_END, size), os.SEEK_END)
            digest.update(stream.read())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """Yield the files in a folder, one more than `_MOST_FILES` at most, or the path itself if it is not a folder."""
    if path.is_dir():
        yield from sorted(itertools.islice((file for file in path.rglob("*") if file.is_file()), _MOST_FILES + 1))
    else:
        yield path
