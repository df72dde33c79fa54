"""Where the ranks of one trial meet: a TCP port that stays theirs.

A port that was free a moment ago is a race. This one stays bound here, without listening, for as long as it is held: the
kernel gives it to nobody who asks for any port, and rank 0, which asks for this one, may bind and listen on it, since both
set SO_REUSEADDR (as torch's TCPStore does).
"""

from __future__ import annotations

import socket

from trialplane import errors

LOOPBACK = "127.0.0.1"


class Port:
    """A TCP port of this machine, held until it is closed.

    Attributes:
        host: name or address at which the others find this machine.
        number: the port's.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self.host = host
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """As host:port."""
        return f"{self.host}:{self.number}"

    def close(self) -> None:
        """Gives the port back."""
        self._socket.close()


class Elsewhere:
    """A meeting place that somebody else holds: a slot, for the ranks of several nodes.

    Attributes:
        address: as host:port.
    """

    def __init__(self, address: str) -> None:
        if not address.rpartition(":")[2].isdigit():
            raise errors.SlotError(f"a trial of several nodes needs a rendezvous as host:port, not {address!r}")
        self.address = address

    def close(self) -> None:
        """Nothing to give back."""


def own_address() -> str:
    """The address at which other machines, or pods, find this one; the loopback's when it has no other."""
    try:
        own = socket.gethostbyname(socket.gethostname())  # in a pod /etc/hosts says it
        if not own.startswith("127."):
            return own
    except OSError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses the way out (RFC 5737's example net)
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
