"""The processes of a session, which is what a trial and everything it starts belongs to."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def memory(session: int) -> int:
    """Bytes of memory resident in all processes of a session; pages they share with others count."""
    total = 0
    for process in _session(session):
        with contextlib.suppress(OSError, IndexError):
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def kill(session: int) -> None:
    """Kills all processes of a session."""
    for process in _session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)


def _session(session: int) -> list[Path]:
    """The folders in /proc of all processes of a session."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                    found.append(process)
    return found
