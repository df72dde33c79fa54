"""Logs on their way: in pieces from a controller to the gateway, and as artifacts of MLflow, of a long one its end.

An offset always counts from the beginning of the log as it was written, also where only its end is left.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 20  # bytes of a log in one answer
KEPT = 8 << 20  # bytes of a log that MLflow gets; of a longer log its end
KEY_HEADER = "X-Trialplane-Key"  # of the gateway's requests: the hash of the run's token, which only those two know
NOTICE_BYTES = 100  # of the longest notice

_NOTICE = re.compile(rb"\[trialplane: the first ([0-9]{1,15}) bytes of this log are left out\]\n")


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a log: its bytes, the next offset, and whether more may follow."""

    data: bytes
    next: int
    growing: bool = False


def notice(left_out: int) -> bytes:
    """The first line of a log whose beginning is left out."""
    return b"[trialplane: the first %d bytes of this log are left out]\n" % left_out


def left_out(beginning: bytes) -> tuple[int, int]:
    """Return the number of bytes left out by a log's first line, and the length of that line; 0 and 0 for a whole log."""
    match = _NOTICE.match(beginning)
    return (int(match[1]), match.end()) if match else (0, 0)


def follow(read: Callable[[int], Piece], pause: float) -> Iterator[bytes]:
    """Yield the bytes of a log, and new ones while it grows.

    Args:
        read: Return the piece at an offset.
        pause: Seconds between reads at its end.
    """
    offset = 0
    while (piece := read(offset)).data or piece.growing:
        offset = piece.next
        if piece.data:
            yield piece.data
        else:
            time.sleep(pause)


def lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a log that comes in pieces; each state of a progress bar is a line."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    remainder = ""
    for piece in pieces:
        *complete, remainder = (remainder + decoder.decode(piece)).split("\n")
        yield from (f"{line}\n" for line in complete)
    if remainder := remainder + decoder.decode(b"", final=True):
        yield remainder
