"""Messages over a stream socket between two processes: four bytes of length, then the message (wire/messages.py).

A trial is untrusted code, so its data may neither block the slot nor take unbounded memory: an incomplete message waits in a
buffer, and a message whose length is over the limit is an error before it is read.
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

Outgoing = TypeVar("Outgoing")
Incoming = TypeVar("Incoming")

_HEAD = struct.Struct("!I")
_CHUNK = 64 << 10  # bytes of one read


class Channel(Generic[Outgoing, Incoming]):
    """One end of a connection over which messages are sent and received.

    Args:
        end: One of a connected pair of stream sockets; closed by `close`.
        direction: Messages that are accepted from the other end.
    """

    def __init__(self, end: socket.socket, direction: Direction[Incoming]) -> None:
        self._socket = end
        self._direction = direction
        self._incoming = bytearray()
        self._unsent = bytearray()
        self._arrived_messages: collections.deque[Incoming] = collections.deque()
        self._is_broken = False

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`; -1 if it is closed."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether data of a `send` without waiting is still buffered."""
        return bool(self._unsent)

    def send(self, message: Outgoing, *, wait: bool = True) -> None:
        """Send a message. Without `wait`, what the system does not accept at once is buffered, and `flush` sends it.

        Raises:
            MessageError: The message is too long.
            OSError: The other end is closed, or does not read in time (TimeoutError, see `set_patience`).
        """
        data = messages.encode(message)
        if len(data) > messages.MAX_BYTES:
            text = f"{type(message).__name__} has {len(data):,} bytes; a message has at most {messages.MAX_BYTES:,}"
            raise errors.MessageError(text)
        self._unsent += _HEAD.pack(len(data)) + data
        self.flush(wait=wait)

    def flush(self, *, wait: bool = False) -> None:
        """Send buffered data: all of it with `wait`, otherwise as much as the system accepts now.

        Raises:
            OSError: As in `send`. The data is dropped.
        """
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
        """Limit the time of a `send` that waits, which has no limit by default."""
        self._socket.settimeout(seconds)

    def is_readable(self, timeout: float = 0.0) -> bool:
        """Return whether `read` has data or the end of the channel to read; wait for it at most `timeout` seconds."""
        poll = select.poll()  # poll accepts descriptors of any size, unlike `select`
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout))

    def read(self) -> Iterator[Incoming]:
        """Yield the messages that one read completes; blocks unless the channel is readable.

        Raises:
            EOFError: The other end is closed, perhaps in the middle of a message.
            MessageError: The other end sent an invalid message; from then on the channel counts as closed.
        """
        try:
            chunk = b"" if self._is_broken else self._socket.recv(_CHUNK)
        except OSError as error:  # the other process was killed
            raise EOFError(str(error)) from error
        if not chunk:
            raise EOFError
        self._incoming += chunk
        try:
            while len(self._incoming) >= _HEAD.size:
                (length,) = _HEAD.unpack_from(self._incoming)
                end = _HEAD.size + length
                if length > messages.MAX_BYTES:
                    limit = f"a message has at most {messages.MAX_BYTES:,}"
                    raise errors.MessageError(f"{self._direction.sender} began a message of {length:,} bytes; {limit}")
                if len(self._incoming) < end:
                    return
                data = bytes(self._incoming[_HEAD.size : end])
                del self._incoming[:end]
                yield messages.decode(data, self._direction)
        except errors.MessageError:
            self._is_broken = True
            raise

    def receive(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None if nothing arrives within `timeout` seconds.

        Raises:
            EOFError: As in `read`.
            MessageError: As in `read`.
        """
        while not self._arrived_messages:
            if timeout is not None and not self.is_readable(timeout):
                return None
            self._arrived_messages.extend(self.read())
        return self._arrived_messages.popleft()

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self._socket.close()


# The channel between a slot and a process that runs a trial, from the trial's side.
TrialChannel = Channel[messages.FromTrial, messages.ToTrial]


def open_trial_channel(descriptor: int) -> TrialChannel:
    """Open the trial's end of its channel, in the trial's process."""
    return Channel(socket.socket(fileno=descriptor), messages.TO_TRIAL)
