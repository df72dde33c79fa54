"""Operating-system functions for every process of a training: cores, end with the parent, seeds. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import sys
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # as a container sees its own cgroup, version 2


def cores(quota: Path = _QUOTA) -> int:
    """Return the number of cores to use, at least 1: limited by affinity and by the container's quota.

    4 in a pod limited to 4 of a node's 64 cores: more threads would only wait.
    """
    count = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
        share = math.ceil(int(limit) / int(period))
    except (OSError, ValueError):  # no cgroup version 2 here, or "max": no limit
        return count
    return max(1, min(count, share))


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, so that no orphan holds a GPU."""
    end_with_parent()
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def end_with_parent() -> None:
    """As `die_with_parent`, for a process whose parent exists for certain, as after a fork."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(adopts: bool = True) -> None:
    """Adopt processes that children leave running, or stop doing so."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def children() -> set[int]:
    """Return the pids of this process's children, of all its threads."""
    pids: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended, or the kernel has no such file
            pids.update(map(int, (thread / "children").read_text().split()))
    return pids


def kill_children(pids: Collection[int]) -> None:
    """Kill children, and wait until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def flush() -> None:
    """Flush what was printed; a full disk, or streams that the job has closed or replaced, change nothing."""
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
