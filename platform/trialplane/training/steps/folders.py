"""Entire folder of a trial's checkpoints: its summary, other files that are copied into it, and its removal."""

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


class UncopiedFiles(NamedTuple):
    """Files that `put_files` could not copy.

    Attributes:
        unmatched: Patterns without a file.
        failed: Reason of each failure, by relative path or pattern.
    """

    unmatched: tuple[str, ...]
    failed: Mapping[str, str]


def put_files(location: str, folder: Path, patterns: Iterable[str]) -> UncopiedFiles:
    """Copy files into `files/` of a folder of checkpoints, with their paths relative to `folder`.

    Args:
        location: Local folder or fsspec URL of the checkpoints.
        folder: Folder of the files.
        patterns: Relative paths of the files, with wildcards.

    Returns:
        The files that were not copied. Failures raise no error, because the trial that wrote the files has succeeded.
    """
    selected: set[Path] = set()
    unmatched, failed = [], {}
    for pattern in patterns:
        try:
            files = {file for file in folder.glob(pattern) if file.is_file()}
        except (OSError, ValueError) as error:  # an unreadable folder, or an invalid pattern, such as a** before Python 3.13
            failed[pattern] = _reason(error)
            continue
        selected |= files
        if not files:
            unmatched.append(pattern)
    for file in sorted(selected):
        try:
            _put_file(f"{location}/files", file, file.relative_to(folder))
        except Exception as error:  # noqa: BLE001  the libraries of object stores have errors of their own
            failed[str(file.relative_to(folder))] = _reason(error)
    return UncopiedFiles(tuple(unmatched), failed)


def _put_file(location: str, file: Path, name: Path) -> None:
    """Copy a file to a location, under a relative name."""
    folder = paths.local_folder(location)
    if folder is None:
        import fsspec  # only needed for URLs

        filesystem, path = fsspec.url_to_fs(f"{location}/{name}")
        filesystem.put_file(str(file), path)
    else:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _reason(error: Exception) -> str:
    """Return an error without the paths of its trial, so that errors of several trials can be compared."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return errors.first_line(error)


def remove_each(locations: Iterable[str]) -> None:
    """Remove several folders of checkpoints, each as `remove_all` does.

    Raises:
        CheckpointError: Some folders cannot be removed. The others are removed.
    """
    failures = []
    for location in locations:
        try:
            remove_all(location)
        except errors.CheckpointError as error:
            failures.append(str(error))
    if failures:
        raise errors.CheckpointError("; ".join(failures))


def remove_all(location: str) -> None:
    """Remove a local folder or fsspec URL of checkpoints, with all of its contents. A missing one is no error.

    Raises:
        CheckpointError: The folder cannot be removed.
    """
    folder = paths.local_folder(location)
    try:
        if folder is None:
            import fsspec  # only needed for URLs

            filesystem, root = fsspec.url_to_fs(location)
            filesystem.invalidate_cache()
            filesystem.rm(root, recursive=True)
        elif folder.is_symlink():  # a trial replaced the folder by a link; the target is not the platform's
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, ImportError, ValueError) as error:
        raise errors.CheckpointError(f"{location} cannot be removed: {error}") from error


def summary(location: str) -> CheckpointSummary | None:
    """Return the summary of a local folder or fsspec URL of checkpoints, without the files of `put_files`.

    Drafts in a local folder are left out. Drafts at a URL are not, as they have the names of complete checkpoints. The
    digest covers the names and sizes of all files, and the checksums in COMPLETE files. None if there are no files.

    Raises:
        CheckpointError: The folder cannot be read.
    """
    try:
        files = sorted(_files(location))
        complete_contents = {name: _read(location, name) for name, _ in files if name.endswith(f"/{record.COMPLETE}")}
    except (OSError, ImportError, ValueError) as error:
        raise errors.CheckpointError(f"{location} cannot be read: {error}") from error
    if not files:
        return None
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(json.dumps([name, size]).encode() + complete_contents.get(name, b""))
    count = len({name.partition("/")[0] for name, _ in files})  # each checkpoint is a folder at the top
    return CheckpointSummary(number=count, bytes=sum(size for _, size in files), digest=digest.hexdigest())


def _files(location: str) -> Iterator[tuple[str, int]]:
    """Yield the files of the checkpoints at a location, see `summary`: their paths relative to it, and their sizes."""
    folder = paths.local_folder(location)
    if folder is None:
        import fsspec  # only needed for URLs

        filesystem, root = fsspec.url_to_fs(location)
        filesystem.invalidate_cache()
        info_by_path = filesystem.find(root, detail=True)
        entries = ((path.removeprefix(root).lstrip("/"), int(info["size"])) for path, info in info_by_path.items())
    else:
        entries = ((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    for name, size in entries:
        if not name.startswith((".", "files/")):  # drafts and deleted checkpoints, or files of `put_files`
            yield name, size


def _read(location: str, name: str) -> bytes:
    """Return the content of a file at a location."""
    folder = paths.local_folder(location)
    if folder is not None:
        return (folder / name).read_bytes()
    import fsspec  # only needed for URLs

    filesystem, root = fsspec.url_to_fs(location)
    content: bytes = filesystem.cat_file(f"{root}/{name}")
    return content
