"""Whole messages over a stream socket between two processes: four bytes of length, then the message (wire/messages.py).

A trial is untrusted code, so nothing that it writes may block its slot or take unbounded memory: an incomplete message waits
in a buffer, and one whose length is over the limit is an error before it is read.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

from trialplane import errors
from trialplane.wire import messages
from trialplane.wire.messages import Direction

Sent = TypeVar("Sent")
Taken = TypeVar("Taken")

_HEAD = struct.Struct("!I")
_CHUNK = 64 << 10  # bytes of one read


class Channel(Generic[Sent, Taken]):
    """One end of such a socket.

    Args:
        end: of a connected pair of stream sockets; closed by `close`.
        direction: the messages that are accepted from the other end.

    Attributes:
        has_unsent: whether data of a `send` without waiting is still buffered.
    """

    def __init__(self, end: socket.socket, direction: Direction[Taken]) -> None:
        self._socket = end
        self._direction = direction
        self._incoming = bytearray()
        self._unsent = bytearray()
        self._arrived: collections.deque[Taken] = collections.deque()
        self._is_broken = False

    def fileno(self) -> int:
        """The descriptor, for `select`; -1 when it is closed."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether data of a `send` without waiting is still buffered."""
        return bool(self._unsent)

    def send(self, message: Sent, *, wait: bool = True) -> None:
        """Send a message; without waiting, as much as the system accepts, and `flush` sends the rest.

        Raises:
            MessageError: it is too long.
            OSError: the other end is closed, or does not read in time (TimeoutError, see `set_patience`).
        """
        data = messages.encode(message)
        if len(data) > messages.MAX_BYTES:
            most = f"a message has at most {messages.MAX_BYTES:,}"
            raise errors.MessageError(f"{type(message).__name__} has {len(data):,} bytes; {most}")
        self._unsent += _HEAD.pack(len(data)) + data
        self.flush(wait=wait)

    def flush(self, *, wait: bool = False) -> None:
        """Send buffered data, or drop it if the other end is closed. Raises as `send`."""
        try:
            if wait:
                self._socket.sendall(self._unsent)
                self._unsent.clear()
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            raise

    def set_patience(self, seconds: float) -> None:
        """Limit how long a waiting `send` may take; by default there is no limit."""
        self._socket.settimeout(seconds)

    def is_readable(self, timeout: float = 0.0) -> bool:
        """Whether there is data for `read`, or the end, within `timeout` seconds."""
        poll = select.poll()  # which accepts descriptors that `select` does not
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout))

    def read(self) -> Iterator[Taken]:
        """The messages that one read completes; blocks unless the channel is readable.

        Raises:
            EOFError: the other end is closed, perhaps in the middle of a message.
            MessageError: it sent an invalid message; from then on the channel counts as closed.
        """
        try:
            data = b"" if self._is_broken else self._socket.recv(_CHUNK)
        except OSError as error:  # the other process was killed
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError
        self._incoming += data
        try:
            while len(self._incoming) >= _HEAD.size:
                (length,) = _HEAD.unpack_from(self._incoming)
                end = _HEAD.size + length
                if length > messages.MAX_BYTES:
                    most = f"a message has at most {messages.MAX_BYTES:,}"
                    raise errors.MessageError(f"{self._direction.sender} began a message of {length:,} bytes; {most}")
                if len(self._incoming) < end:
                    return
                data = bytes(self._incoming[_HEAD.size : end])
                del self._incoming[:end]
                yield messages.decode(data, self._direction)
        except errors.MessageError:
            self._is_broken = True
            raise

    def receive(self, timeout: float | None = None) -> Taken | None:
        """The next message; None if it is not complete after `timeout` seconds. Raises as `read`."""
        while not self._arrived:
            if timeout is not None and not self.is_readable(timeout):
                return None
            self._arrived.extend(self.read())
        return self._arrived.popleft()

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self._socket.close()


# The channel between a slot and a process that runs a trial, from the trial's side.
TrialChannel = Channel[messages.FromTrial, messages.ToTrial]


def of_trial(descriptor: int) -> TrialChannel:
    """The trial's end, in its process."""
    return Channel(socket.socket(fileno=descriptor), messages.TO_TRIAL)
