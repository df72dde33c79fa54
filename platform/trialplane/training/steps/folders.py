"""A trial's folder of checkpoints as a whole: the files that are put beside them, and its removal."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from trialplane import errors
from trialplane.wire import paths


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
