"""The process's end of the channel to its slot, in a collection: who waits for a message notices a request to stop."""

from __future__ import annotations

from trialplane.wire import messages
from trialplane.worker import context, stopping
from trialplane.worker.channel import TrialChannel

_LOOK = 0.2  # seconds between looks whether the process was asked to stop


class Line:
    """Sends and receives; for the thread that runs the job's function.

    Args:
        channel: to the slot.
        stop: whether this process was asked to stop.
    """

    def __init__(self, channel: TrialChannel, stop: stopping.Stop) -> None:
        self._channel = channel
        self._stop = stop

    @property
    def stopping(self) -> bool:
        """Whether the process was asked to stop and the job listens to that."""
        return self._stop.heard

    def send(self, message: messages.OfWorker | messages.OfLearner) -> None:
        """Sends one message."""
        self._channel.send(message)

    def receive(self, *, wait: bool) -> messages.ToTrial | None:
        """The next message; None when there is none yet and `wait` is false.

        Raises:
            Stopped: the process was asked to stop while it waited, or its slot is gone.
        """
        try:
            while (message := self._channel.receive(_LOOK if wait else 0.0)) is None and wait:
                if self._stop.heard:
                    raise context.Stopped("stopped by SIGTERM while it waited")
        except (EOFError, OSError) as error:
            raise context.Stopped("its slot is gone") from error
        return message
