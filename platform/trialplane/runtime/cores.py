"""How many cores this process may use: its affinity, and the share of them that its container was given."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # as a container sees its own cgroup, version 2


def usable(quota: Path = _QUOTA) -> int:
    """Cores to keep busy, at least 1. A pod limited to 4 of a node's 64 cores gets 4: more would only wait."""
    count = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
        share = math.ceil(int(limit) / int(period))
    except (OSError, ValueError):  # no cgroup version 2 here, or "max": no limit
        return count
    return max(1, min(count, share))
