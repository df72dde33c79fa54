"""What passes through the supervisor of the ranks without ever holding it up: their lines, and messages to the slot."""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import struct
from multiprocessing.connection import Connection

MAX_LINE = 8 << 10  # bytes; a longer one, or a progress bar's, is written in pieces
_CHUNK = 64 << 10  # all that a pipe holds, unless somebody makes it larger


class Lines:
    """A rank's output on its way to the trial's log, each line with the rank's number before it.

    The pipe is the kernel's: what a rank wrote is there also when the rank was killed in the next moment.

    Args:
        source: the pipe's end; closed by `close`.
        prefix: of each line.
        log: descriptor of the log.
    """

    def __init__(self, source: int, prefix: str, log: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self._prefix = prefix.encode()
        self._log = log
        self._rest = b""

    def pump(self) -> bool:
        """Writes what is there now, not what comes meanwhile, which may never end; False once the other end is closed."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)
        return bool(data)

    def close(self) -> None:
        """Writes the rest, whole line or not; of what somebody goes on writing, as much as a pipe holds."""
        self.pump()
        if self._rest:
            self._write([self._rest])
            self._rest = b""
        os.close(self.source)

    def _write(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # a full disk ends no training
            write_all(self._log, b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))


class Outbox:
    """Messages to a `Connection` that never wait for the other side to read them."""

    def __init__(self, channel: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(channel.fileno()))
        self._waiting: collections.deque[bytes] = collections.deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: bytes) -> None:
        """Adds a message, and sends what can be sent."""
        self._waiting.append(struct.pack("!i", len(message)) + message)  # as Connection.send_bytes frames it
        self.send()

    def send(self, wait: bool = False) -> None:
        """Sends what can be sent; everything, however long it takes, when it is to wait."""
        try:
            while self._waiting:
                sent = self._socket.send(self._waiting[0], 0 if wait else socket.MSG_DONTWAIT)
                if sent < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][sent:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):  # nobody reads any more
            self._waiting.clear()

    def close(self) -> None:
        """Gives up its descriptor."""
        self._socket.close()


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it."""
    while data:
        data = data[os.write(descriptor, data) :]
