"""Files and folders of a script's folder that a job links to instead of uploading them, because they are too large."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trialplane.errors import NotPackedError
from trialplane.plan import pack as packing

_CODE_SUFFIXES = (".py", ".ipynb")  # a folder with such files is no data folder, but files in it may be data


def find(folder: Path, ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the paths to link to, so that the rest of a folder can be packed; () if the whole folder can, or nothing helps.

    These are the links that lead out of the folder, and the largest folders without code and files other than code.

    Args:
        folder: The folder.
        ignored: Further lines of its `.jobignore`.

    Raises:
        InputError: The folder cannot be read, or its `.jobignore` is invalid.
    """
    try:
        packing.pack(folder, ignored=ignored)
    except NotPackedError:
        content = _survey(folder, "", packing.ignore_rule(folder, ignored))
    else:
        return ()
    links = list(content.outward_links)
    size, count = content.size, content.count
    for data in sorted(content.data, key=lambda data: (-data.share_of_limits, data.path)):
        if size <= packing.MAX_BYTES and count <= packing.MOST_ENTRIES:
            break
        links.append(data.path)
        size, count = size - data.size, count - data.count
    return tuple(sorted(links))


@dataclasses.dataclass(frozen=True)
class _Data:
    """A folder without code, or a file that is not code.

    Attributes:
        path: Path in the job's folder.
        size: Size of all its files, in bytes.
        count: Number of its files and folders.
    """

    path: str
    size: int
    count: int

    @property
    def share_of_limits(self) -> float:
        """Size or number of files, as a share of the most that can be uploaded. The larger share counts."""
        return max(self.size / packing.MAX_BYTES, self.count / packing.MOST_ENTRIES)


@dataclasses.dataclass
class _Content:
    """Content of a folder.

    Attributes:
        size: Size of all files, in bytes.
        count: Number of files and folders.
        has_code: Whether there is code.
        outward_links: Paths of the links that lead out of the job's folder.
        data: Folders without code and files that are not code, without those in another of these folders.
    """

    size: int = 0
    count: int = 0
    has_code: bool = False
    outward_links: list[str] = dataclasses.field(default_factory=list)
    data: list[_Data] = dataclasses.field(default_factory=list)


def _survey(root: Path, path: str, is_ignored: Callable[[str], bool]) -> _Content:
    """Return the content of a folder. Links to folders are not followed.

    Args:
        root: Folder of the job.
        path: Path of the folder in it; "" for itself.
        is_ignored: Rule that returns whether a path is not packed.
    """
    content = _Content()
    with os.scandir(root / path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            entry_path = f"{path}/{entry.name}" if path else entry.name
            if is_ignored(entry_path) or (entry.is_dir() and is_ignored(f"{entry_path}/")):
                continue
            content.count += 1
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root.resolve()):
                if entry.is_dir() or entry.is_file():  # it exists
                    content.outward_links.append(entry_path)
            elif entry.is_dir(follow_symlinks=False):
                _add_folder(content, entry_path, _survey(root, entry_path, is_ignored))
            elif entry.is_file():
                size = entry.stat().st_size
                content.size += size
                if entry.name.endswith(_CODE_SUFFIXES):
                    content.has_code = True
                else:
                    content.data.append(_Data(entry_path, size, 1))
    return content


def _add_folder(content: _Content, path: str, inner: _Content) -> None:
    """Add the content of a subfolder to that of its folder."""
    content.size += inner.size
    content.count += inner.count
    content.has_code |= inner.has_code
    content.outward_links += inner.outward_links
    content.data += inner.data if inner.has_code or inner.outward_links else [_Data(path, inner.size, inner.count + 1)]
