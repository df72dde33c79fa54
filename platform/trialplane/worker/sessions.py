"""The processes of a session, to which a trial and all its descendants belong."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def resident_memory(session: int, enough: int | None = None) -> int:
    """Return the bytes of memory resident in all processes of a session.

    A shared page counts once for each process, which is quick to compute but too much for ranks forked from one process.

    Args:
        session: Id of the session.
        enough: A sum over this is computed again, exactly: each page is divided by the number of its processes.
    """
    processes = _process_folders(session)
    total = sum(_resident_bytes(process) for process in processes)
    if enough is None or total <= enough:
        return total
    return sum(_proportional_bytes(process) for process in processes)


def kill(session: int) -> None:
    """Kill all processes of a session."""
    for process in _process_folders(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)


def _resident_bytes(process: Path) -> int:
    """Return the resident bytes of a process, shared pages in full; 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional_bytes(process: Path) -> int:
    """Return the resident bytes of a process, shared pages in proportion."""
    with contextlib.suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                return int(rest.split()[0]) << 10
    return _resident_bytes(process)


def _process_folders(session: int) -> list[Path]:
    """Return the folders in /proc of all processes of a session."""
    folders = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                    folders.append(process)
    return folders
