"""Index of a text file's lines: built once, stored on disk, and memory-mapped by every reader.

An index has one number per line, the offset of the next line, so line i is between numbers i and i + 1, without its line
end. Numbers have 4 bytes for files under 4 GiB, otherwise 8. A header describes the file: size, modification time, and a
digest of samples from the entire file. They are compared when the index is opened.

The index is beside the text as `.NAME.POLICY.lines`, where POLICY is "skip" if empty lines are omitted, otherwise "keep". So
every machine with access to the text finds it. If that folder cannot be written, it is in a cache. This module finds and
checks indexes, and `scan.py` counts lines. Reading needs no numpy, whose import would take longer than the first line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trialplane import errors
from trialplane.training import building
from trialplane.training.lines import header as headers
from trialplane.training.lines.header import HEADER_SIZE, VERSION, Header, Text
from trialplane.wire import env, paths

Empty = Literal["skip", "keep"]


@dataclasses.dataclass(frozen=True)
class IndexedText:
    """Text with its index."""

    text: Text
    index: str
    header: Header


def find_or_build(path: Path, empty: Empty, cache: Path | None) -> IndexedText:
    """Return the index of a text file. Build it if it does not exist, or wait while another process builds it.

    Args:
        path: Text file.
        empty: "skip" omits empty lines from the index.
        cache: Folder for the index. None: beside the text, or in trialplane's cache if that folder is read-only.

    Raises:
        DataError: The file is missing, empty, changing, or not plain text.
        CacheError: The index cannot be written.
    """
    text = text_of(path)
    candidates = _possible_files(path, empty, cache)
    for candidate in candidates:  # all are checked before one is built, because an existing index may be in the cache
        header = _matching_header(candidate, text)
        if header is not None:
            return IndexedText(text, index=str(candidate), header=header)
    reasons: list[str] = []
    for candidate in candidates:
        try:
            return IndexedText(text, index=str(candidate), header=_build(candidate, text, skip=empty == "skip"))
        except OSError as error:
            reasons.append(f"{candidate.parent}: {error.strerror}")
    mib = text.size / 10 / 2**20  # an index has 4 or 8 bytes per line, about a tenth of the text
    raise errors.CacheError(
        f"the line index of {path} (about {mib:,.0f} MiB) cannot be written ({'; '.join(reasons)}); make room, or name "
        "another folder: LineDataset(…, cache=FOLDER)"
    )


def text_of(path: Path) -> Text:
    """Return the path, size and time of a file.

    Raises:
        DataError: The file does not exist, is empty, is not a regular file, or may not be read.
    """
    try:
        file_stat = path.stat()
    except OSError as error:
        raise errors.DataError(f"text file {path}: {error.strerror}; see `ls -l {path.parent}`") from error
    if stat.S_ISDIR(file_stat.st_mode):
        raise errors.DataError(f"text file {path} is a folder; name the files in it")
    if not stat.S_ISREG(file_stat.st_mode):
        raise errors.DataError(
            f"text file {path} is not a regular file, so it cannot be memory-mapped; copy its text to a regular file"
        )
    if not os.access(path, os.R_OK):
        raise errors.DataError(f"text file {path} may not be read by this user; see `ls -l {path}`")
    if file_stat.st_size == 0:
        raise errors.DataError(f"text file {path} is empty; was copying or writing it interrupted?")
    return Text(path=str(path), size=file_stat.st_size, mtime_ns=file_stat.st_mtime_ns)


def refuse_changed(text: Text) -> None:
    """Raise DataError if the file has changed since `text` was created."""
    try:
        current = Path(text.path).stat()
    except OSError as error:
        raise errors.DataError(
            f"text file {text.path} existed when this dataset was created and cannot be read now ({error.strerror}); put "
            "it back, or create the dataset again from files that every worker can reach"
        ) from error
    if (current.st_size, current.st_mtime_ns) != (text.size, text.mtime_ns):
        raise errors.DataError(
            f"text file {text.path} has changed since this dataset was created: {text.size:,} bytes then, "
            f"{current.st_size:,} now, or a newer modification time; create the dataset again, and write new text to a new "
            "file"
        )


def content_digest(text: Text, index: Path) -> str:
    """Return a digest of every byte of the text, computed once and stored beside the index.

    The digest in the index's header is of samples only, so that opening an index takes no longer for a large text. It
    detects most changes of a text, but does not identify a text.

    Raises:
        DataError: The file has changed.
    """
    refuse_changed(text)
    digest_file = Path(f"{index}.content")
    # What the file has before the digest, and what differs if the digest is of an older text.
    facts = f"{VERSION} {text.size} {text.mtime_ns} {headers.samples_digest(text.path, text.size)} "
    with contextlib.suppress(OSError):
        recorded = digest_file.read_text()
        if recorded.startswith(facts):
            return recorded.removeprefix(facts)
    from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

    digest = scan.digest(text)
    refuse_changed(text)
    # If the digest cannot be stored, it is computed again next time.
    with contextlib.suppress(OSError), building.open_new(digest_file) as file:
        file.write((facts + digest).encode())
    return digest


def default_cache() -> Path:
    """Return the folder of indexes that cannot be beside their text."""
    cache = os.environ.get(env.CACHE)
    return (Path(cache) if cache else paths.cache(paths.home())) / "lines"


class OpenText:
    """Memory-mapped text and index, for access to single lines. Opening reads two pages and a few samples.

    Args:
        text: Text, as it was when the dataset was created.
        index: Path of its index, which may be lost.
        empty: What is done with empty lines, to build the index again.
        lines: Number of lines when the dataset was created.

    Raises:
        DataError: The text is missing or has changed.
        CacheError: The index is missing, and cannot be built again.
    """

    __slots__ = ("_bytes", "_offsets", "_omits_empty_lines", "text")

    def __init__(self, text: Text, index: Path, empty: Empty, lines: int) -> None:
        refuse_changed(text)
        header = headers.read_header(index)
        if header is None or (header.size, header.mtime_ns) != (text.size, text.mtime_ns):
            # The text is unchanged, so its index was lost from a cache, or is that of another version of the text.
            indexed = find_or_build(Path(text.path), empty, index.parent)
            index, header = Path(indexed.index), indexed.header
        if header.samples != headers.samples_digest(text.path, text.size) or header.lines != lines:
            raise errors.DataError(
                f"text file {text.path} has changed since this dataset was created, though it kept its size and time; "
                f"create the dataset again (`touch {text.path}` first)"
            )
        self.text = text
        self._omits_empty_lines = header.skipped and header.empty > 0
        self._bytes = _map_file(text.path)
        self._offsets = memoryview(_map_file(str(index)))[HEADER_SIZE:].cast("I" if header.width == 4 else "Q")

    def line(self, row: int) -> str:
        """Return line `row` of the index, without its line end.

        Raises:
            DataError: The line is not UTF-8.
        """
        # Without the newline at its end. If the file does not end in one, the last offset is one more than its size.
        raw = self._bytes[self._offsets[row] : self._offsets[row + 1] - 1]
        if self._omits_empty_lines:
            raw = raw[raw.rfind(b"\n") + 1 :]  # the omitted lines are before this one
        if raw.endswith(b"\r"):
            raw = raw[:-1]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise errors.DataError(
                f"text file {self.text.path}, line {self.line_number(row):,}: not UTF-8 ({error.reason} at byte "
                f"{error.start} of the line, {raw[error.start : error.start + 1]!r}); convert the file, for example "
                f"`iconv -f GB18030 -t UTF-8 {Path(self.text.path).name}`"
            ) from error

    def line_number(self, row: int) -> int:
        """Return the number in the file, from 1, of line `row` of the index. With omitted lines, read all text before it."""
        if not self._omits_empty_lines:
            return row + 1
        from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

        # As in `line`, omitted lines may be before this one.
        raw = self._bytes[self._offsets[row] : self._offsets[row + 1] - 1]
        start = self._offsets[row] + raw.rfind(b"\n") + 1
        return scan.newlines(self.text.path, start) + 1


def _possible_files(path: Path, policy: str, cache: Path | None) -> Sequence[Path]:
    """Return the possible files of an index, in order of preference. `policy` is "skip" or "keep", for empty lines."""
    resolved = path.resolve()
    path_digest = hashlib.blake2b(os.fsencode(resolved), digest_size=8).hexdigest()
    in_cache = f"{path.name[:100]}.{path_digest}.{policy}.lines"
    if cache is not None:
        return [cache / in_cache]
    return [resolved.with_name(f".{resolved.name}.{policy}.lines"), default_cache() / in_cache]


def _matching_header(index: Path, text: Text) -> Header | None:
    """Return the header of an index if it is of this text, otherwise None."""
    header = headers.read_header(index)
    if header is None or (header.size, header.mtime_ns) != (text.size, text.mtime_ns):
        return None
    return header if header.samples == headers.samples_digest(text.path, text.size) else None


def _build(index: Path, text: Text, *, skip: bool) -> Header:
    """Build an index, unless another process has just built it. Return its header."""
    from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

    with building.lock(index):
        header = _matching_header(index, text)
        if header is None:
            building.sweep(index.parent, index.name)
            with building.open_new(index) as file:
                header = scan.write(file, text, skip=skip)
                refuse_changed(text)  # the index would not match a text that was changed in the meantime
        return header


def _map_file(path: str) -> mmap.mmap:
    """Return a file's read-only memory map."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (Path doubles the time to open a file)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
