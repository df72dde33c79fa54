"""The processes of a session, to which a trial and all its descendants belong."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def memory(session: int, enough: int | None = None) -> int:
    """Bytes of memory resident in all processes of a session.

    Shared pages count once per process, which is quick to compute but too much for ranks forked from one process. So a sum
    over `enough` is computed again, exactly: each such page divided by the number of its users.
    """
    processes = _session(session)
    total = sum(_resident(process) for process in processes)
    if enough is None or total <= enough:
        return total
    return sum(_proportional(process) for process in processes)


def kill(session: int) -> None:
    """Kill all processes of a session."""
    for process in _session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)


def _resident(process: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(process: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                return int(rest.split()[0]) << 10
    return _resident(process)


def _session(session: int) -> list[Path]:
    """The folders in /proc of all processes of a session."""
    folders = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                    folders.append(process)
    return folders
