"""A trial's folder of checkpoints as a whole: its summary, the files that are put beside them, and its removal."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trialplane import errors
from trialplane.training.steps import record
from trialplane.wire import paths
from trialplane.wire.records import CheckpointSummary


class Unkept(NamedTuple):
    """What `put_files` has not copied.

    Attributes:
        unmatched: patterns without a file.
        failed: file, below its folder, or pattern → why it could not be copied.
    """

    unmatched: tuple[str, ...]
    failed: Mapping[str, str]


def put_files(place: str, folder: Path, patterns: Iterable[str]) -> Unkept:
    """Copy files into `files/` of a folder of checkpoints, under their paths below `folder`, each by itself.

    Args:
        place: a local folder or an fsspec URL.
        folder: where the files are.
        patterns: of the files, with wildcards, below it.

    Returns:
        What was not copied; nothing is raised, as whoever made the files has done his work.
    """
    found: set[Path] = set()
    unmatched, failed = [], {}
    for pattern in patterns:
        try:
            files = {file for file in folder.glob(pattern) if file.is_file()}
        except (OSError, ValueError) as error:  # a folder that cannot be read; ** beside other letters
            failed[pattern] = _why(error)
            continue
        found |= files
        if not files:
            unmatched.append(pattern)
    for file in sorted(found):
        try:
            _put_file(f"{place}/files", file, file.relative_to(folder))
        except Exception as error:  # noqa: BLE001  the libraries of object stores have errors of their own
            failed[str(file.relative_to(folder))] = _why(error)
    return Unkept(tuple(unmatched), failed)


def _put_file(place: str, file: Path, name: Path) -> None:
    folder = paths.local_folder(place)
    if folder is None:
        import fsspec  # only who writes to a URL needs it

        files, path = fsspec.url_to_fs(f"{place}/{name}")
        files.put_file(str(file), path)
    else:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _why(error: Exception) -> str:
    """An error without the paths of the trial that met it, so that the same one of many trials reads the same."""
    return (error.strerror if isinstance(error, OSError) else None) or errors.first_line(error)


def remove_each(places: Iterable[str]) -> None:
    """Remove several such folders as `remove_all` does.

    Raises:
        CheckpointError: some cannot be removed; the others are.
    """
    left = []
    for place in places:
        try:
            remove_all(place)
        except errors.CheckpointError as error:
            left.append(str(error))
    if left:
        raise errors.CheckpointError("; ".join(left))


def remove_all(place: str) -> None:
    """Remove a folder of checkpoints, with everything in it; one that is not there is removed.

    Args:
        place: a local folder or an fsspec URL.

    Raises:
        CheckpointError: it cannot be removed.
    """
    folder = paths.local_folder(place)
    try:
        if folder is None:
            import fsspec  # only who writes to a URL needs it

            files, root = fsspec.url_to_fs(place)
            files.invalidate_cache()
            files.rm(root, recursive=True)
        elif folder.is_symlink():  # a trial has moved it; what is there is not ours
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, ImportError, ValueError) as error:
        raise errors.CheckpointError(f"{place} cannot be removed: {error}") from error


def summary(place: str) -> CheckpointSummary | None:
    """Return what a folder of checkpoints holds: without what is being written, and without the files of `put_files`.

    The digest is of the names and sizes of all files, and of the checksums that COMPLETE files have of theirs.

    Args:
        place: a local folder or an fsspec URL.

    Returns:
        None if there is nothing.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        files = sorted(_files(place))
        complete = {name: _read(place, name) for name, _ in files if name.endswith(f"/{record.COMPLETE}")}
    except (OSError, ImportError, ValueError) as error:
        raise errors.CheckpointError(f"{place} cannot be read: {error}") from error
    if not files:
        return None
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(json.dumps([name, size]).encode() + complete.get(name, b""))
    number = len({name.partition("/")[0] for name, _ in files})
    return CheckpointSummary(number, sum(size for _, size in files), digest.hexdigest())


def _files(place: str) -> Iterator[tuple[str, int]]:
    """The files below a place, as paths relative to it, and their sizes."""
    folder = paths.local_folder(place)
    if folder is None:
        import fsspec  # only who reads a URL needs it

        files, root = fsspec.url_to_fs(place)
        files.invalidate_cache()
        found = ((path[len(root) :].lstrip("/"), int(info["size"])) for path, info in files.find(root, detail=True).items())
    else:
        found = ((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    for name, size in found:
        if not name.startswith((".", "files/")):
            yield name, size


def _read(place: str, name: str) -> bytes:
    folder = paths.local_folder(place)
    if folder is not None:
        return (folder / name).read_bytes()
    import fsspec  # only who reads a URL needs it

    files, root = fsspec.url_to_fs(place)
    content: bytes = files.cat_file(f"{root}/{name}")
    return content
