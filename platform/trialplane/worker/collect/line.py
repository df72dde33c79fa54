"""Exchange messages with the slot in a collection's process, so that a wait for a message ends if a stop is requested."""

from __future__ import annotations

from trialplane.wire import messages
from trialplane.worker import context, stopping
from trialplane.worker.channel import TrialChannel

_POLL = 0.2  # seconds between checks whether a stop was requested


class Line:
    """A channel to the slot, for the thread that runs the job's function."""

    def __init__(self, channel: TrialChannel, stop: stopping.Stop) -> None:
        self._channel = channel
        self._stop = stop

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested and the job handles it."""
        return self._stop.is_requested

    def send(self, message: messages.WorkerMessage | messages.LearnerMessage) -> None:
        """Send one message."""
        self._channel.send(message)

    def receive(self, *, wait: bool) -> messages.ToTrial | None:
        """Return the next message; None without `wait` if there is none yet.

        Raises:
            Stopped: A stop was requested during the wait, or the slot is gone.
        """
        try:
            while True:
                message = self._channel.receive(_POLL if wait else 0.0)
                if message is not None or not wait:
                    return message
                if self._stop.is_requested:
                    raise context.Stopped("stopped by SIGTERM while it waited")
        except (EOFError, OSError) as error:
            raise context.Stopped("its slot is gone") from error
