"""Operating-system functions for processes of a training: cores, child processes, seeds. Imports no heavy library."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # as a container sees its own cgroup, version 2


def cores(quota: Path = _QUOTA) -> int:
    """Return the number of cores that this process may use, at least 1. Affinity and the container's quota limit it.

    In a pod that is limited to 4 of a node's 64 cores, it is 4: more threads would only wait.
    """
    count = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()  # "400000 100000": 4 cores
        share = math.ceil(int(limit) / int(period))
    except (OSError, ValueError):  # no cgroup version 2, or the text "max", which means no limit
        return count
    return max(1, min(count, share))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, so that no orphan holds a GPU.

    Args:
        parent: Pid of the parent. If the parent has already ended, this process ends at once.
    """
    end_with_parent()
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, which must not have ended before this call."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(adopts: bool = True) -> None:
    """Let this process become the parent of processes that its children leave running. With False, no longer."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def children(pid: int | None = None) -> set[int]:
    """Return the pids of a process's children, of all its threads; by default of this process."""
    pids: set[int] = set()
    with contextlib.suppress(OSError):  # the process has just ended
        for thread in Path(f"/proc/{pid or 'self'}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended, or the kernel has no such file
                pids.update(map(int, (thread / "children").read_text().split()))
    return pids


def kill_tree(pid: int, patience: float) -> None:
    """Kill a process that adopts orphans, and all processes that it and its descendants have started.

    Args:
        pid: Pid of the process, which must be a child of this one.
        patience: Seconds to wait for the descendants, which do not end while they wait for a disk.
    """
    os.kill(pid, signal.SIGSTOP)  # it must outlive its descendants, whose orphans would else have another parent
    deadline = time.monotonic() + patience
    while (remaining := _running_descendants(pid)) and time.monotonic() < deadline:
        for descendant in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def _running_descendants(pid: int) -> set[int]:
    """Return the pids of a process's children, their children and so on, without those that have ended."""
    descendants: set[int] = set()
    for child in children(pid):
        with contextlib.suppress(OSError):  # it has just been reaped
            # "1234 (a name) S 1 …": the state is behind the name, which may contain spaces and parentheses.
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":  # zombie or dead
                descendants |= {child, *_running_descendants(child)}
    return descendants


def kill_children(pids: Collection[int]) -> None:
    """Kill children, and wait until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def flush() -> None:
    """Flush the standard streams. A full disk, or streams that the job has closed or replaced, raise no error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, and of numpy and torch where they are loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
