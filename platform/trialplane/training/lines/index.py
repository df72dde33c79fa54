"""Where the lines of a text file begin: an index built once, kept on disk, and memory-mapped by whoever reads lines.

An index holds one number per line: where the line after it begins, so that line i is what lies between numbers i and
i + 1, without its line end. Numbers are 4 bytes for files under 4 GiB, else 8. A header says which file it is the index
of: size, modification time and a digest of samples all over the file. Whoever opens it compares them.

It lies beside the text as `.NAME.POLICY.lines`, where every machine that sees the text finds it, or in a cache when that
folder cannot be written. Where the index is found and checked is here; how it is counted, in `scan.py`. Reading
needs no numpy: a worker has its first line before numpy would be imported.
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
from trialplane.training.lines.header import HEADER, VERSION, Header, Text
from trialplane.wire import env, paths

Empty = Literal["skip", "keep", "error"]


@dataclasses.dataclass(frozen=True)
class Indexed:
    """A text with its index, found or built."""

    text: Text
    index: str
    header: Header


def find(path: Path, empty: Empty, cache: Path | None) -> Indexed:
    """The index of `path`, which this process builds if nobody has; while another does, this one waits.

    Args:
        path: a text file.
        empty: "skip" leaves empty lines out.
        cache: folder for the index; None for beside the text, else trialplane's cache.

    Raises:
        DataError: the file is missing, empty, changing, or no plain text.
        CacheError: the index can be written nowhere.
    """
    text = look(path)
    refusals: list[OSError] = []
    places = _places(path, "skip" if empty == "skip" else "keep", cache)
    for place in places:  # all before any is built: beside the text there may be none, but one in the cache
        header = _fitting(place, text)
        if header is not None:
            return Indexed(text, str(place), header)
    for place in places:
        try:
            return Indexed(text, str(place), _built(place, text, skip=empty == "skip"))
        except OSError as error:
            refusals.append(error)
    said = "; ".join(f"{place.parent}: {error.strerror}" for place, error in zip(places, refusals, strict=True))
    raise errors.CacheError(
        f"the line index of {path} (about {text.size / 10 / 2**20:,.0f} MiB) cannot be written ({said}); make room, "
        "or name another folder: LineDataset(…, cache=FOLDER)"
    )


def look(path: Path) -> Text:
    """The file's facts.

    Raises:
        DataError: there is no such file, it is empty or may not be read.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise errors.DataError(f"text file {path}: {error.strerror}; see `ls -l {path.parent}`") from error
    if stat.S_ISDIR(facts.st_mode):
        raise errors.DataError(f"text file {path} is a folder; name the files in it")
    if not stat.S_ISREG(facts.st_mode):
        raise errors.DataError(f"text file {path} is no regular file, so it cannot be memory-mapped; write it to one")
    if not os.access(path, os.R_OK):
        raise errors.DataError(f"text file {path} may not be read by this user; see `ls -l {path}`")
    if facts.st_size == 0:
        raise errors.DataError(f"text file {path} is empty; was its copy or its making interrupted?")
    return Text(str(path), facts.st_size, facts.st_mtime_ns)


def refuse_changed(text: Text) -> None:
    """Raise DataError when the file is not what it was when `text` was made."""
    try:
        now = Path(text.path).stat()
    except OSError as error:
        raise errors.DataError(
            f"text file {text.path} was there when this dataset was made and cannot be read now ({error.strerror}); put "
            "it back, or make the dataset again from files that every worker sees"
        ) from error
    if (now.st_size, now.st_mtime_ns) != (text.size, text.mtime_ns):
        raise errors.DataError(
            f"text file {text.path} has changed since this dataset was made: {text.size:,} bytes then, {now.st_size:,} "
            "now, or a newer modification time; make the dataset again, and write new text to a new file"
        )


def content(text: Text, index: Path) -> str:
    """A digest of every byte of the text, reckoned once and kept beside the index.

    Raises:
        DataError: the file has changed.
    """
    refuse_changed(text)
    kept = Path(f"{index}.content")
    facts = f"{VERSION} {text.size} {text.mtime_ns} {headers.samples(text.path, text.size)} "
    with contextlib.suppress(OSError):
        said = kept.read_text()
        if said.startswith(facts):
            return said.removeprefix(facts)
    from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

    digest = scan.digest(text)
    refuse_changed(text)
    # Nowhere to keep it is no failure: the next one reckons it again.
    with contextlib.suppress(OSError), building.whole(kept) as file:
        file.write((facts + digest).encode())
    return digest


def default_cache() -> Path:
    """Where indexes go that cannot lie beside their text."""
    chosen = os.environ.get(env.CACHE)
    return (Path(chosen) if chosen else paths.cache(paths.home())) / "lines"


class OpenText:
    """A text and its index, memory-mapped: gives single lines. Opening reads two pages and a few samples.

    Raises:
        DataError: the text is gone or has changed.
        CacheError: the index is gone, and cannot be built again.
    """

    __slots__ = ("_bytes", "_numbers", "_skipped", "text")

    def __init__(self, text: Text, index: Path, empty: Empty, lines: int) -> None:
        refuse_changed(text)
        header = headers.read_header(index)
        if header is None or (header.size, header.mtime_ns) != (text.size, text.mtime_ns):
            # The text is what it was, so its lines are: an index lost from a cache is only built again.
            found = find(Path(text.path), empty, index.parent)
            index, header = Path(found.index), found.header
        if header.samples != headers.samples(text.path, text.size) or header.lines != lines:
            raise errors.DataError(
                f"text file {text.path} has changed since this dataset was made, though it kept its size and time; make "
                f"the dataset again (`touch {text.path}` first)"
            )
        self.text = text
        self._skipped = header.skipped and header.empty > 0
        self._bytes = _mapped(text.path)
        self._numbers = memoryview(_mapped(str(index)))[HEADER:].cast("I" if header.width == 4 else "Q")

    def line(self, row: int) -> str:
        """Line `row` of those that the index holds, without its line end.

        Raises:
            DataError: it is not UTF-8.
        """
        raw = self._bytes[self._numbers[row] : self._numbers[row + 1] - 1]
        if self._skipped:
            raw = raw[raw.rfind(b"\n") + 1 :]  # empty lines that were left out lie before it
        if raw.endswith(b"\r"):
            raw = raw[:-1]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise errors.DataError(
                f"text file {self.text.path}, line {self.number(row):,}: not UTF-8 ({error.reason} at byte {error.start} of "
                f"the line, {raw[error.start : error.start + 1]!r}); convert the file, for example "
                f"`iconv -f GB18030 -t UTF-8 {Path(self.text.path).name}`"
            ) from error

    def number(self, row: int) -> int:
        """The line's number in the file, counted from 1. Reads all that lies before it when empty lines were left out."""
        if not self._skipped:
            return row + 1
        from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

        raw = self._bytes[self._numbers[row] : self._numbers[row + 1] - 1]
        return scan.newlines(self.text.path, self._numbers[row] + raw.rfind(b"\n") + 1) + 1


def _places(path: Path, policy: str, cache: Path | None) -> Sequence[Path]:
    """Where the index may lie, best first."""
    resolved = path.resolve()
    name = hashlib.blake2b(os.fsencode(resolved), digest_size=8).hexdigest()
    in_cache = f"{path.name[:100]}.{name}.{policy}.lines"
    if cache is not None:
        return [cache / in_cache]
    return [resolved.with_name(f".{resolved.name}.{policy}.lines"), default_cache() / in_cache]


def _fitting(place: Path, text: Text) -> Header | None:
    """The header of the index there if it is this text's, else None."""
    header = headers.read_header(place)
    if header is None or (header.size, header.mtime_ns) != (text.size, text.mtime_ns):
        return None
    return header if header.samples == headers.samples(text.path, text.size) else None


def _built(place: Path, text: Text, *, skip: bool) -> Header:
    """Build the index there, unless another process just has."""
    from trialplane.training.lines import scan  # numpy, which a reader of lines need not have imported

    with building.alone(place):
        header = _fitting(place, text)
        if header is None:
            building.sweep(place.parent, place.name)
            with building.whole(place) as file:
                header = scan.write(file, text, skip=skip)
                refuse_changed(text)
        return header


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (as above)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
