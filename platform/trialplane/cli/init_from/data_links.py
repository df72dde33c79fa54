"""Data beside a script that a job links to instead of uploading them: they are too large, or outside of the folder."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trialplane.errors import InputError, NotPackedError
from trialplane.plan import pack as packing

# A folder with such a file is not linked as a whole: it has code, or settings, which a trial may replace in its copy.
_CODE_SUFFIXES = (".py", ".ipynb", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".gin")
# Usual names of what scripts write. Trials would write into the user's own folder.
_OUTPUT = re.compile(
    r"(?:.*[-_.])?(?:checkpoints?|ckpts?|runs?|logs?|outputs?|out|results?|experiments?|mlruns|wandb|saved?|saved_models"
    r"|snapshots?|work_dirs?|tensorboard|tb_logs|lightning_logs|artifacts)",
    re.IGNORECASE,
)
_LEAST_SHARE = 0.05  # of the limits of what can be uploaded; data with a smaller share are not linked
_MOST_ENTRIES = 100_000  # files and folders that are looked at


def find(folder: Path, ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of data to link to, so that the rest of a folder can be packed; () if the whole folder can.

    These are links that lead out of the folder to data, and the largest folders and files that are neither code nor
    settings nor, by their names, results. () also if the rest would still be too large, or has links to other things.

    Args:
        folder: The folder.
        ignored: Further lines of its `.jobignore`.

    Raises:
        InputError: The folder cannot be read, or its `.jobignore` is invalid.
    """
    if _can_be_packed(folder, ignored):
        return ()
    survey = _Survey(folder, packing.ignore_rule(folder, ignored))
    try:
        content = survey.content("", ancestors=())
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    candidates = [data for data in content.data if data.is_needed]
    candidates.sort(key=lambda data: (-data.share_of_limits, data.path))
    for number in range(len(candidates) + 1):  # of linked ones: as few as possible, the largest first
        linked = candidates[:number]
        links = [*content.outward_links, *(data.path for data in linked)]
        size = content.size - sum(data.size for data in linked)
        count = content.count - sum(data.count for data in linked)
        is_small = size <= packing.MAX_UNPACKED and count <= packing.MOST_ENTRIES
        if links and is_small and _can_be_packed(folder, [*ignored, *packing.ignored_lines(links)]):
            return tuple(sorted(links))
    return ()


def names_output(path: str) -> bool:
    """Return whether a part of a path is a usual name of what scripts write: `checkpoints`, `my_logs`."""
    return any(map(_OUTPUT.fullmatch, Path(path).parts))


def _can_be_packed(folder: Path, ignored: Sequence[str]) -> bool:
    """Return whether a folder can be packed without the paths that lines of `.jobignore` ignore."""
    try:
        packing.pack(folder, ignored=ignored)
    except NotPackedError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _Data:
    """A folder without code and settings, or a file that is neither.

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

    @property
    def is_needed(self) -> bool:
        """Whether a link to it may help: it is large, and no result."""
        return self.share_of_limits >= _LEAST_SHARE and not names_output(self.path)


@dataclasses.dataclass
class _Content:
    """Content of a folder.

    Attributes:
        size: Size of all files, in bytes.
        count: Number of files and folders.
        has_code: Whether there is code, or a settings file.
        outward_links: Paths of the links that lead out of the job's folder to data.
        data: Folders without code and files that are not code, without those in another of these folders.
    """

    size: int = 0
    count: int = 0
    has_code: bool = False
    outward_links: list[str] = dataclasses.field(default_factory=list)
    data: list[_Data] = dataclasses.field(default_factory=list)

    def add_folder(self, path: str, inner: _Content) -> None:
        """Add the content of a subfolder."""
        self.size += inner.size
        self.count += inner.count
        self.has_code |= inner.has_code
        self.outward_links += inner.outward_links
        is_data = not (inner.has_code or inner.outward_links)
        self.data += [_Data(path, inner.size, inner.count + 1)] if is_data else inner.data


class _Survey:
    """A walk through a folder, of which the first `_MOST_ENTRIES` files and folders are looked at.

    Args:
        root: Folder of the job.
        is_ignored: Rule that returns whether a path is not packed.
    """

    def __init__(self, root: Path, is_ignored: Callable[[str], bool]) -> None:
        self._root = root.resolve()
        self._is_ignored = is_ignored
        self._remaining = _MOST_ENTRIES

    def content(self, path: str, ancestors: tuple[Path, ...]) -> _Content:
        """Return the content of a folder. Links within the job's folder are followed, as they are when it is packed.

        Args:
            path: Path of the folder in the job's folder; "" for itself.
            ancestors: Real paths of the folders above it. A link to one of them is not followed, as it would have no end.
        """
        content = _Content()
        ancestors = (*ancestors, (self._root / path).resolve())
        for entry in self._entries(path):
            entry_path = f"{path}/{entry.name}" if path else entry.name
            if self._is_ignored(entry_path) or (entry.is_dir() and self._is_ignored(f"{entry_path}/")):
                continue
            content.count += 1
            real_path = Path(os.path.realpath(entry.path))
            leads_out = entry.is_symlink() and not real_path.is_relative_to(self._root)
            if leads_out:
                if real_path.exists() and not _has_code(real_path):
                    content.outward_links.append(entry_path)
            elif entry.is_dir() and real_path not in ancestors:
                content.add_folder(entry_path, self.content(entry_path, ancestors))
            elif entry.is_file():
                size = entry.stat().st_size
                content.size += size
                if entry.name.endswith(_CODE_SUFFIXES):
                    content.has_code = True
                else:
                    content.data.append(_Data(entry_path, size, 1))
        return content

    def _entries(self, path: str) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of a folder, up to `_MOST_ENTRIES` of all folders together."""
        with os.scandir(self._root / path) as entries:
            for entry in entries:
                if self._remaining <= 0:
                    return
                self._remaining -= 1
                yield entry


def _has_code(path: Path) -> bool:
    """Return whether a path is a Python file, or a folder that has one in it or in its subfolders."""
    return path.suffix == ".py" or any(path.glob("*.py")) or any(path.glob("*/*.py"))
