"""The process's end of the channel to its slot, in a collection: messages of JSON, one at a time."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

from trialplane.worker import context, stopping

_LOOK = 0.2  # seconds between looks whether the process was asked to stop


class Line:
    """Sends and receives; for the thread that runs the job's function.

    Args:
        channel: to the slot.
        stop: whether this process was asked to stop.
    """

    def __init__(self, channel: Connection, stop: stopping.Stop) -> None:
        self._channel = channel
        self._stop = stop

    @property
    def stopping(self) -> bool:
        """Whether the process was asked to stop and the job listens to that."""
        return self._stop.heard

    def send(self, **message: Any) -> None:
        """Sends one message."""
        self._channel.send_bytes(json.dumps(message).encode())

    def receive(self, *, wait: bool) -> dict[str, Any] | None:
        """The next message; None when there is none yet and `wait` is false.

        Raises:
            Stopped: the process was asked to stop while it waited, or its slot is gone.
        """
        try:
            while not self._channel.poll(_LOOK if wait else 0):
                if not wait:
                    return None
                if self._stop.heard:
                    raise context.Stopped("stopped by SIGTERM while it waited")
            message: dict[str, Any] = json.loads(self._channel.recv_bytes())
        except (EOFError, OSError) as error:
            raise context.Stopped("its slot is gone") from error
        return message
