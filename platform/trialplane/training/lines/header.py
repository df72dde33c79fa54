"""Header of a text file's index, which is its first page, with a digest that recognizes the text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

VERSION = 1
HEADER_SIZE = 4096  # bytes before the offsets, so that these begin at a page
SAMPLE_COUNT, SAMPLE_SIZE = 16, 256  # number of pieces of a file whose digest recognizes it, and bytes of each


@dataclasses.dataclass(frozen=True)
class Text:
    """Path, size and modification time of a file when its lines were counted."""

    path: str
    size: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class Header:
    """Header of an index, with facts about the index and its text.

    Attributes:
        version: Version of the format.
        size: Size of the text, in bytes.
        mtime_ns: Modification time of the text.
        samples: Digest of pieces of the text.
        lines: Number of lines in the index.
        width: Size of an offset in the index, in bytes.
        skipped: Whether empty lines are left out.
        empty: Number of empty lines in the text.
    """

    version: int
    size: int
    mtime_ns: int
    samples: str
    lines: int
    width: int
    skipped: bool
    empty: int


def read_header(index: Path) -> Header | None:
    """Return the header of an index; None if it is missing, damaged or of another version."""
    try:
        with index.open("rb") as file:
            header = Header(**json.loads(file.read(HEADER_SIZE).rstrip(b"\0")))
            # An offset for the beginning of each line, and one for the end of the last.
            is_complete = HEADER_SIZE + (header.lines + 1) * header.width == os.fstat(file.fileno()).st_size
    except (OSError, ValueError, TypeError):
        return None
    return header if is_complete and header.version == VERSION else None


def write_header(file: BinaryIO, header: Header) -> None:
    """Write the header at the beginning of the file."""
    file.seek(0)
    file.write(json.dumps(dataclasses.asdict(header)).encode().ljust(HEADER_SIZE, b"\0"))


def samples_digest(path: str, size: int) -> str:
    """Return a digest of pieces from the entire file, which distinguishes files of the same size and time."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a worker opens each file once; Path doubles the time)
        for number in range(SAMPLE_COUNT):
            offset = max(0, size - SAMPLE_SIZE) * number // (SAMPLE_COUNT - 1)  # the first and the last byte are included
            digest.update(os.pread(file.fileno(), SAMPLE_SIZE, offset))
    return digest.hexdigest()
