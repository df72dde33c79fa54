"""What the index of a text file says of itself and of the text: its first page, and a digest that knows the text again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

VERSION = 1
HEADER = 4096  # bytes before the numbers, so that these begin at a page
SAMPLES, SAMPLE = 16, 256  # how many pieces of a file are looked at to know it again, and of how many bytes


@dataclasses.dataclass(frozen=True)
class Text:
    """A file as it was when its lines were counted."""

    path: str
    size: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class Header:
    """What an index says of itself and its text.

    Attributes:
        version: of the format.
        size: bytes of the text.
        mtime_ns: when the text was last modified.
        samples: digest of pieces of the text.
        lines: how many the index holds.
        width: bytes of one number.
        skipped: whether empty lines are left out.
        empty: how many empty lines the text has.
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


def read_header(place: Path) -> Header | None:
    """The header of a whole index; None where there is none, or one of another version, or a damaged one."""
    try:
        with place.open("rb") as file:
            header = Header(**json.loads(file.read(HEADER).rstrip(b"\0")))
            whole = HEADER + (header.lines + 1) * header.width == os.fstat(file.fileno()).st_size
    except (OSError, ValueError, TypeError):
        return None
    return header if whole and header.version == VERSION else None


def write_header(file: BinaryIO, header: Header) -> None:
    """Put the header in its place."""
    file.seek(0)
    file.write(json.dumps(dataclasses.asdict(header)).encode().ljust(HEADER, b"\0"))


def samples(path: str, size: int) -> str:
    """A digest of pieces from the file's begin to its end: tells files apart that have one size and time."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a worker opens each file once; Path doubles the time)
        for number in range(SAMPLES):
            offset = max(0, size - SAMPLE) * number // (SAMPLES - 1)
            digest.update(os.pread(file.fileno(), SAMPLE, offset))
    return digest.hexdigest()
