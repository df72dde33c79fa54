"""The header of a text file's index, its first page, and a digest that recognizes the text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

VERSION = 1
HEADER = 4096  # bytes before the numbers, so that these begin at a page
SAMPLES, SAMPLE = 16, 256  # number of pieces of a file whose digest recognizes it, and their bytes


@dataclasses.dataclass(frozen=True)
class Text:
    """A file as it was when its lines were counted."""

    path: str
    size: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of an index, about itself and its text.

    Attributes:
        version: of the format.
        size: bytes of the text.
        mtime_ns: when the text was last modified.
        samples: digest of pieces of the text.
        lines: number of lines in the index.
        width: bytes of one number.
        skipped: whether empty lines are left out.
        empty: number of empty lines in the text.
        first_empty: number of the first one, counted from 1; 0 without one.
    """

    version: int
    size: int
    mtime_ns: int
    samples: str
    lines: int
    width: int
    skipped: bool
    empty: int
    first_empty: int


def read_header(index: Path) -> Header | None:
    """Return the header of an index; None if it is missing, damaged or of another version."""
    try:
        with index.open("rb") as file:
            header = Header(**json.loads(file.read(HEADER).rstrip(b"\0")))
            whole = HEADER + (header.lines + 1) * header.width == os.fstat(file.fileno()).st_size
    except (OSError, ValueError, TypeError):
        return None
    return header if whole and header.version == VERSION else None


def write_header(file: BinaryIO, header: Header) -> None:
    """Write the header at the beginning of the file."""
    file.seek(0)
    file.write(json.dumps(dataclasses.asdict(header)).encode().ljust(HEADER, b"\0"))


def samples(path: str, size: int) -> str:
    """Return a digest of pieces over the whole file: it distinguishes files of the same size and time."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a worker opens each file once; Path doubles the time)
        for number in range(SAMPLES):
            offset = max(0, size - SAMPLE) * number // (SAMPLES - 1)
            digest.update(os.pread(file.fileno(), SAMPLE, offset))
    return digest.hexdigest()
