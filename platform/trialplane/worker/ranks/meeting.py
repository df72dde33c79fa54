"""Reserve a TCP port as the rendezvous of a trial's ranks, at which rank 0 listens and the others connect.

A port that is chosen and released may be taken by another program. So the port stays bound here without listening: the
kernel does not assign it to others, and rank 0 can still bind and listen on it, because both set SO_REUSEADDR (torch's
TCPStore does).
"""

from __future__ import annotations

import socket

from trialplane import errors

LOOPBACK = "127.0.0.1"


class Port:
    """A TCP port of this machine, held until it is closed.

    Attributes:
        host: Name or address of this machine for other nodes.
        number: Number of the port.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self.host = host
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The rendezvous, as host:port."""
        return f"{self.host}:{self.number}"

    def close(self) -> None:
        """Release the port."""
        self._socket.close()


class RemotePort:
    """A rendezvous port that another process holds: a slot, for the ranks of several nodes.

    Attributes:
        address: Rendezvous, as host:port.
    """

    def __init__(self, address: str) -> None:
        if not address.rpartition(":")[2].isdigit():
            raise errors.SlotError(f"a trial of several nodes needs a rendezvous as host:port, not {address!r}")
        self.address = address

    def close(self) -> None:
        """Do nothing: the slot holds the port."""


def own_address() -> str:
    """Return this machine's address for other machines or pods; the loopback address if it has no other."""
    try:
        address = socket.gethostbyname(socket.gethostname())  # a pod's own name is in /etc/hosts
        if not address.startswith("127."):
            return address
    except OSError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket sends nothing here: the kernel only chooses a route, to an address for examples (RFC 5737).
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
