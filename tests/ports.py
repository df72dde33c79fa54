"""Free ports for servers that tests start."""

from __future__ import annotations

import itertools
import os
import random
import socket
from pathlib import Path

# Below these are the ports of outgoing connections: another process may take one of them at any moment.
_EPHEMERAL = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_candidates = random.Random(os.urandom(8))


def free_port() -> int:
    """Return a port on loopback that no process listens on, and that the system hands to no outgoing connection."""
    for _ in itertools.repeat(None, 1000):
        port = _candidates.randrange(10_000, _EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port between 10000 and the ephemeral ones is free")
