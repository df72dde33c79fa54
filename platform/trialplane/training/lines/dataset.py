r"""Lines of text files as a dataset that is cheap to send to workers: `LineDataset(files)[i]` is `{"text": line}`.

A small index beside each file (see `index.py`) has the beginnings of its lines. A pickled dataset is a recipe of a few
hundred bytes: paths, sizes and times. A worker that unpickles it has the length, opens the files on first use, and raises
an error if one is missing or has changed; it never continues with an empty dataset.

Lines end at `\n` or `\r\n` and nowhere else; a line of blanks is not empty; a byte order mark at the beginning of a file is
not part of its text. Truncating a memory-mapped file kills its readers.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import operator
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.training import building
from trialplane.training.lines import index as line_index
from trialplane.training.lines.header import Text
from trialplane.training.lines.index import Empty, OpenText

INLINE = 800  # bytes of a recipe that is sent; a longer one is written to a file whose name is sent


class _File(NamedTuple):
    """Text file with its index, as in a recipe: a list that is pickled, or written as JSON."""

    path: str
    size: int
    mtime_ns: int
    index_file: str
    lines: int

    @property
    def text(self) -> Text:
        """The file without its index."""
        return Text(self.path, self.size, self.mtime_ns)


class LineDataset:
    r"""Lines of one or more text files, as a map-style dataset for torch's DataLoader: item i is `{"text": line}`.

    Files are memory-mapped, so all processes of a machine share one copy in memory, and the dataset pickles to a few hundred
    bytes. Lines end with `\n` or `\r\n`. Do not change a file in place while it is used: write a new file and rename it.

    Args:
        files: One file or several, as UTF-8 text.
        max_samples: Maximum number of lines, from the first. Default: all.
        empty: Treatment of empty lines: "skip" them, or "keep" them as "".
        cache: Folder for the index. Default: beside the text, or in trialplane's cache if that folder is read-only.

    Raises:
        DataError: A file is missing, empty, compressed or binary, or no file has lines.
        CacheError: The index cannot be written.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        max_samples: int | None = None,
        empty: Empty = "skip",
        cache: str | Path | None = None,
    ) -> None:
        if isinstance(files, (str, Path)):
            files = [files]
        text_files = [Path(file).expanduser().absolute() for file in files]
        if not text_files:
            raise errors.DataError("no text file was named; give LineDataset one, or a list of them")
        if max_samples is not None and max_samples < 1:
            raise errors.DataError(f"max_samples is {max_samples}; it must be at least 1, or None for all lines")
        if empty not in ("skip", "keep"):
            raise errors.DataError(f"empty is {empty!r}; it must be skip or keep")
        self._cache = None if cache is None else Path(cache).expanduser().absolute()
        indexed_files = [line_index.find_or_build(file, empty, self._cache) for file in text_files]
        # Plain lists instead of objects, because the recipe is pickled, and should be short.
        self._recipe: dict[str, Any] = {
            "empty": empty,
            "files": [
                [file.text.path, file.text.size, file.text.mtime_ns, file.index, file.header.lines] for file in indexed_files
            ],
        }
        lines = sum(file.header.lines for file in indexed_files)
        if lines == 0:
            raise errors.DataError(f"text file {text_files[0]}: all its lines are empty; is it the right file?")
        self._length = lines if max_samples is None else min(lines, max_samples)
        self._manifest = ""  # file with the recipe, in a dataset that was pickled and has a long recipe
        self._opened: list[OpenText | None] | None = None
        self._ends: list[int] = []  # for each file, the number of lines in it and the files before it

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, str]:
        """Return a line, by its index from 0, or from the end if negative.

        Raises:
            IndexError: The index is out of range.
            DataError: The file is missing or has changed, or the line is not UTF-8.
        """
        text, row = self._locate(index)
        return {"text": text.line(row)}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, str]]:
        """Return several lines. A DataLoader calls this once per batch."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[dict[str, str]]:
        return map(self.__getitem__, range(self._length))

    def __repr__(self) -> str:
        files = self._files()
        where = files[0].path if len(files) == 1 else f"{len(files)} files"
        return f"LineDataset({self._length:,} lines of {where})"

    @property
    def content(self) -> str:
        """Digest of the content, as 64 hexadecimal digits. It does not depend on the location of the files.

        It covers every byte of the files, their order, and the selection of lines. It is computed once per file.
        """
        digests = [line_index.content_digest(file.text, Path(file.index_file)) for file in self._files()]
        facts = json.dumps([self._read_recipe()["empty"] == "skip", self._length, digests])
        return hashlib.blake2b(facts.encode(), digest_size=32).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Return a recipe of less than 1 KB. With too many files for that, it names a file in the cache with their list."""
        state = {"length": self._length, "cache": None if self._cache is None else str(self._cache)}
        if not self._manifest:
            if len(pickle.dumps(self._recipe)) <= INLINE:
                return {**state, "recipe": self._recipe}
            self._manifest = str(_write_manifest(self._recipe, self._cache or line_index.default_cache()))
        return {**state, "manifest": self._manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._length = state["length"]
        self._cache = None if state["cache"] is None else Path(state["cache"])
        self._recipe = state.get("recipe", {})
        self._manifest = state.get("manifest", "")
        self._opened = None
        self._ends = []

    def _locate(self, index: int) -> tuple[OpenText, int]:
        """Return the opened file that holds a line, and the line's row in it."""
        row = operator.index(index)
        if row < 0:
            row += self._length
        if not 0 <= row < self._length:
            raise IndexError(f"line {index} of {self._length:,}")
        opened = self._opened if self._opened is not None else self._open()
        file_number = bisect.bisect_right(self._ends, row)
        if file_number > 0:
            row -= self._ends[file_number - 1]
        text = opened[file_number]
        if text is None:
            file = _File(*self._recipe["files"][file_number])
            text = OpenText(text=file.text, index=Path(file.index_file), empty=self._recipe["empty"], lines=file.lines)
            opened[file_number] = text
        return text, row

    def _open(self) -> list[OpenText | None]:
        """Create and return the list of opened files, in which None is a file that is not open yet. Set `_ends` too."""
        files = self._files()
        self._ends = list(itertools.accumulate(file.lines for file in files))
        self._opened = [None] * len(files)
        return self._opened

    def _files(self) -> list[_File]:
        """Return the text files with their indexes."""
        return [_File(*fields) for fields in self._read_recipe()["files"]]

    def _read_recipe(self) -> dict[str, Any]:
        """Return the recipe, which an unpickled dataset may have to read from a file first."""
        if not self._recipe:
            self._recipe = _read_manifest(Path(self._manifest))
        return self._recipe


def _write_manifest(recipe: dict[str, Any], folder: Path) -> Path:
    """Write the recipe to a file that is named after its content, unless it exists, and return the file."""
    data = json.dumps(recipe).encode()
    file = folder / f"{_manifest_name(data)}.files.json"
    if not file.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with building.open_new(file) as out:
                out.write(data)
        except OSError as error:
            raise errors.CacheError(
                f"the list of {len(recipe['files']):,} text files, too long to send to workers, cannot be written to "
                f"{folder} ({error.strerror}); make room, or name another folder: LineDataset(…, cache=FOLDER)"
            ) from error
    return file


def _read_manifest(file: Path) -> dict[str, Any]:
    """Return the recipe from a file of `_write_manifest`. Raise DataError if it is missing or was changed."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise errors.DataError(
            f"{file}, the list of this dataset's text files, cannot be read ({error.strerror}); create the dataset again "
            "with LineDataset(…, cache=FOLDER), a folder that every worker can reach"
        ) from error
    if _manifest_name(data) != file.name.partition(".")[0]:
        raise errors.DataError(f"{file}, the list of this dataset's text files, was changed; create the dataset again")
    recipe: dict[str, Any] = json.loads(data)
    return recipe


def _manifest_name(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
