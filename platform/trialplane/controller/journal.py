"""What the MLflow writer keeps on disk for its successor: how far it came, and which runs it made."""

from __future__ import annotations

import collections
import fcntl
import json
from pathlib import Path
from typing import Any


class Journal:
    """Notes of (kind, key, value), the newest of which counts. Held by one writer at a time.

    Args:
        file: JSON lines; made when it is not there. Opening waits until a former writer has ended.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("a+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.seek(0)
        data = self._file.read()
        self.notes: dict[str, dict[str, Any]] = collections.defaultdict(dict)
        for line in data.splitlines():
            try:
                kind, key, value = json.loads(line)
            except ValueError:  # the last line of a writer that was killed
                continue
            self.notes[kind][key] = value
        if data and not data.endswith(b"\n"):
            self._file.write(b"\n")

    def note(self, kind: str, key: str, value: Any) -> None:
        """Adds a note."""
        self._file.write(json.dumps([kind, key, value]).encode() + b"\n")
        self._file.flush()


def given(events: Path) -> set[str]:
    """Ids of the MLflow runs that trials in the spool have in their environment, written to MLflow or not."""
    if not events.exists():
        return set()
    with events.open("rb") as spool:
        started = (json.loads(line) for line in spool if line.startswith(b'{"kind": "started"') and line.endswith(b"\n"))
        return {event["run_id"] for event in started if event["run_id"]}
