"""Lines of a log file, and those that are still to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL = 0.2


def lines(file: Path) -> Iterator[str]:
    """The lines of a file, each with its end of line."""
    with file.open(encoding="utf-8", errors="replace") as handle:
        yield from handle


def follow(file: Path, is_growing: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """The lines of a file, and new ones until nobody writes any more; a file that is not there yet is waited for.

    Args:
        file: the log.
        is_growing: whether somebody may still write.
        pause: waits so many seconds.
    """
    while not file.exists():
        if not is_growing():
            return
        pause(POLL)
    with file.open(encoding="utf-8", errors="replace") as handle:
        pending = ""
        while True:
            growing = is_growing()  # asked before reading, so that the last lines are not missed
            for piece in handle:
                pending += piece
                if pending.endswith("\n"):
                    yield pending
                    pending = ""
            if not growing:
                break
            pause(POLL)
        if pending:
            yield pending
