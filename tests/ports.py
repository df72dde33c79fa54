"""Free ports for servers that tests start."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

# Ray's workers have the ports below the first. The system takes one from the last on for an outgoing connection of any
# process, at any moment.
_FIRST = 20_000
_LAST = max(int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), 32_768)
_candidates = random.Random(os.urandom(8))


def free_port() -> int:
    """Return a port on loopback that no process listens on, and that the system hands to no outgoing connection."""
    for _ in range(1000):
        port = _candidates.randrange(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {_FIRST} to {_LAST - 1} is free")
