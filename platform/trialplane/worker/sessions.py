"""Measure and kill the processes of a session, by the files in /proc.

A trial's process leads a session of its own, to which its descendants belong unless they begin another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def resident_memory(session: int, limit: int | None = None) -> int:
    """Return the bytes of memory resident in all processes of a session.

    The quick sum counts a page once for each process that shares it, which is too much for ranks forked from one process.
    The exact sum takes longer.

    Args:
        session: Id of the session.
        limit: If the quick sum is more than this, the exact sum is returned. None for the quick sum.
    """
    folders = _process_folders(session)
    quick_sum = sum(_resident_bytes(folder) for folder in folders)
    if limit is None or quick_sum <= limit:
        return quick_sum
    return sum(_proportional_bytes(folder) for folder in folders)


def processor_seconds(session: int) -> float:
    """Return the processor time of all processes of a session, and of their ended children, in seconds."""
    # The fields after the name of the program: user and system time of the process and of its children that it waited for.
    ticks = sum(int(ticks) for folder in _process_folders(session) for ticks in _stat_fields(folder)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def kill(session: int) -> None:
    """Kill all processes of a session."""
    for folder in _process_folders(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(folder.name), signal.SIGKILL)


def _resident_bytes(folder: Path) -> int:
    """Return the resident bytes of a process by its folder in /proc, shared pages in full; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError):
        _, resident_pages, *_ = (folder / "statm").read_text().split()
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional_bytes(folder: Path) -> int:
    """Return the resident bytes of a process, each page divided by the number of processes that share it.

    If the kernel has no such sum, return all resident bytes. 0 if the process has ended.
    """
    with contextlib.suppress(OSError):
        for line in (folder / "smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":  # "proportional set size"
                return int(rest.split()[0]) * 1024  # from kB
    return _resident_bytes(folder)


def _process_folders(session: int) -> list[Path]:
    """Return the folders in /proc of all processes of a session."""
    folders = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(IndexError, ValueError):  # the process has just ended
                if int(_stat_fields(folder)[3]) == session:
                    folders.append(folder)
    return folders


def _stat_fields(folder: Path) -> list[bytes]:
    """Return the fields of a process by its folder in /proc, from its state on; empty if it has ended."""
    with contextlib.suppress(OSError):
        return (folder / "stat").read_bytes().rpartition(b")")[2].split()  # the name before them may be no UTF-8
    return []
