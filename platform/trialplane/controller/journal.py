"""What the MLflow writer keeps on disk for its successor: how far it came, and which runs it made."""

from __future__ import annotations

import collections
import fcntl
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARKED = 4096  # bytes of the spool that a mark is made of


class Journal:
    """Notes of (kind, key, value), the newest of which counts. Held by one writer at a time.

    Args:
        file: JSON lines; made when it is not there.

    Raises:
        BlockingIOError: a former writer still has it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise
        self._file.seek(0)
        data = self._file.read()
        self.notes = _notes(data.splitlines())
        if data and not data.endswith(b"\n"):
            self._file.write(b"\n")

    def note(self, kind: str, key: str, value: Any) -> None:
        """Adds a note."""
        self._file.write(json.dumps([kind, key, value]).encode() + b"\n")
        self._file.flush()


def tracking_uri(file: Path) -> str | None:
    """Where the run has been recorded so far; None for one that has not been. Reads the notes whoever holds them."""
    if not file.exists():
        return None
    with file.open("rb") as lines:
        uri: str | None = _notes(line for line in lines if line.startswith(b'["uri"'))["uri"].get("")
        return uri


def _notes(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """The newest value of each kind and key."""
    notes: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for line in lines:
        try:
            kind, key, value = json.loads(line)
            notes[kind][key] = value
        except (ValueError, TypeError):  # the last line of a writer that was killed, or what a power cut left
            continue
    return notes


def mark(events: Path, offset: int) -> str:
    """A digest of the spool's bytes before `offset`: it tells whether a spool still is the one that was written up to there.

    After a power cut a file may be older than what another says of it. Of 0 bytes, and of a spool that ends before the
    offset, it is "".
    """
    if not offset or not events.exists() or events.stat().st_size < offset:
        return ""
    with events.open("rb") as spool:
        begin = max(0, offset - MARKED)
        spool.seek(begin)
        return hashlib.sha256(spool.read(offset - begin)).hexdigest()


def given(events: Path) -> set[str]:
    """Ids of the MLflow runs that trials in the spool have in their environment, written to MLflow or not."""
    if not events.exists():
        return set()
    with events.open("rb") as spool:
        started = (json.loads(line) for line in spool if line.startswith(b'{"kind": "started"') and line.endswith(b"\n"))
        return {event["run_id"] for event in started if event["run_id"]}
