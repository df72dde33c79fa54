"""Free ports for servers that tests start."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

# Ray's workers use ports below the first of these. From the last on, the system may take a port for an outgoing connection
# of any process at any moment.
_FIRST = 20_000
_LAST = max(int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), 32_768)
_candidates = random.Random(os.urandom(8))


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens, and which the system uses for no outgoing connection."""
    for _ in range(1000):
        port = _candidates.randrange(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {_FIRST} to {_LAST - 1} is free")
