"""Pieces of logs, as the gateway reads them from controllers and from MLflow.

MLflow gets only the end of a long log, with a notice of the missing bytes as its first line. An offset counts from the
beginning of the log as it was written, even if only its end is available.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 20  # bytes of a log in one answer
ARTIFACT_BYTES = 8 << 20  # limit of a log that MLflow gets; of a longer log it gets the end
KEY_HEADER = "X-Trialplane-Key"  # authenticates the gateway to a controller: the digest of the run's token
NOTICE_BYTES = 100  # upper limit of a notice's length

_NOTICE = re.compile(rb"\[trialplane: the first ([0-9]{1,15}) bytes of this log are left out\]\n")


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a log: its bytes, the offset of the next piece, and whether the log may still grow."""

    data: bytes
    next: int
    is_growing: bool = False


def notice(left_out: int) -> bytes:
    """Return the first line of a log whose first `left_out` bytes are missing."""
    return b"[trialplane: the first %d bytes of this log are left out]\n" % left_out


def parse_notice(beginning: bytes) -> tuple[int, int]:
    """Return the number of missing bytes in a log's notice, and the length of the notice. 0 and 0 without a notice."""
    match = _NOTICE.match(beginning)
    return (int(match[1]), match.end()) if match else (0, 0)


def follow(read: Callable[[int], Piece], pause: float) -> Iterator[bytes]:
    """Yield the bytes of a log in pieces, until its end. At the end of a log that grows, wait for more.

    Args:
        read: Function that returns the piece at an offset.
        pause: Pause before the next read at the end of a growing log, in seconds.
    """
    piece = read(0)
    while piece.data or piece.is_growing:
        if piece.data:
            yield piece.data
        else:
            time.sleep(pause)
        piece = read(piece.next)


def lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a log that is in pieces, with their line ends.

    A carriage return ends a line too, so each state of a progress bar is a line.
    """
    # It turns each line end into a newline, also if a piece ends within a line end or within a character.
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    remainder = ""
    for piece in pieces:
        *complete, remainder = (remainder + decoder.decode(piece)).split("\n")
        yield from (f"{line}\n" for line in complete)
    remainder += decoder.decode(b"", final=True)
    if remainder:
        yield remainder
