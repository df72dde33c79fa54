"""Shard of a token cache: a file with the tokens of a fixed number of lines, memory-mapped by its readers.

It has a header of 64 bytes; then the offset of each line's tokens, counted in tokens, and the total, in 4 bytes each; then
all tokens. A shard is renamed after it is written, so an existing one is complete. Its content depends only on its lines and
the tokenizer.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import typing as npt

from trialplane import errors
from trialplane.training import building

LINES = 1 << 14  # lines of a shard; the last one may have fewer. A killed process loses at most the work on one shard.

_HEADER = struct.Struct("<8sQQI36x")  # mark, lines, tokens, bytes of one token
_MARK = b"tokens 1"
_OFFSET = np.dtype("<u4")
assert _HEADER.size == 64


def path(folder: Path, number: int) -> Path:
    """Return the file of shard `number`."""
    return folder / f"{number:06d}.tokens"


def write(file: Path, rows: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> None:
    """Write a shard with the tokens of its lines, one row per line.

    Raises:
        OSError: The shard cannot be written. Then there is no file.
    """
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    total = int(offsets[-1])
    tokens = np.empty(total, dtype)
    for row, start, end in zip(rows, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        tokens[start:end] = row
    with building.open_new(file) as out:
        out.write(_HEADER.pack(_MARK, len(rows), total, dtype.itemsize))
        out.write(offsets.astype(_OFFSET).tobytes())
        out.write(tokens.tobytes())


def token_count(file: Path, lines: int, dtype: np.dtype[Any]) -> int | None:
    """Return the number of tokens in a shard of `lines` lines; None if it is missing, incomplete or of another shape."""
    try:
        with file.open("rb") as handle:
            mark, line_count, tokens, itemsize = _HEADER.unpack(handle.read(_HEADER.size))
            size = os.fstat(handle.fileno()).st_size
    except (OSError, struct.error):
        return None
    expected_size = _HEADER.size + (lines + 1) * _OFFSET.itemsize + tokens * dtype.itemsize
    is_complete = (mark, line_count, itemsize, size) == (_MARK, lines, dtype.itemsize, expected_size)
    return int(tokens) if is_complete else None


class Shard:
    """Memory-mapped shard.

    Raises:
        CacheError: The file is missing or damaged.
    """

    __slots__ = ("_offsets", "_tokens")

    def __init__(self, file: Path, lines: int, dtype: np.dtype[Any]) -> None:
        if token_count(file, lines, dtype) is None:
            raise errors.CacheError(
                f"token file {file} is {'damaged' if file.exists() else 'missing'}; the other shards are intact: tokenize "
                "again, which creates only missing shards, and open the result"
            )
        with file.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        begin = _HEADER.size + (lines + 1) * _OFFSET.itemsize
        self._offsets = memoryview(mapped)[_HEADER.size : begin].cast("I")
        self._tokens = np.frombuffer(mapped, dtype, offset=begin)

    def row(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of one line: a read-only view of the file."""
        return self._tokens[self._offsets[number] : self._offsets[number + 1]]
