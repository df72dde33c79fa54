"""Logs on their way: in pieces from a controller to the gateway, and as artifacts of MLflow, of a long one its end.

An offset always counts from the beginning of the log as it was written, also where only its end is left.
"""

from __future__ import annotations

import re

PIECE = 1 << 20  # bytes of a log in one answer
KEPT = 8 << 20  # bytes of a log that MLflow gets; of a longer log its end
KEY_HEADER = "X-Trialplane-Key"  # of the gateway's requests: the hash of the run's token, which only those two know
NOTICE_BYTES = 100  # of the longest notice

_NOTICE = re.compile(rb"\[trialplane: the first ([0-9]{1,15}) bytes of this log are left out\]\n")


def notice(left_out: int) -> bytes:
    """The first line of a log whose beginning is left out."""
    return b"[trialplane: the first %d bytes of this log are left out]\n" % left_out


def left_out(beginning: bytes) -> tuple[int, int]:
    """How many bytes a log's first line says are left out, and the length of that line; 0 and 0 of a whole log."""
    found = _NOTICE.match(beginning)
    return (int(found[1]), found.end()) if found else (0, 0)
