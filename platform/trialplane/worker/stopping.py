"""SIGTERM as a request to save a checkpoint and end, so that the trial can continue later.

It is sent when a pod is deleted, a spot node is reclaimed or a run is paused. A job that never reads the request has nothing
to save: SIGTERM ends it at once, like any process.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

_STANDARD_ERROR = 2  # a signal handler must not use Python's streams, which the interrupted code may be writing to


class Stop:
    """Whether a stop of this process was requested.

    Args:
        grace: seconds after SIGTERM until the process is ended (by SIGALRM, independently of any other process); None if
            another process enforces it.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._grace = grace
        self._has_handler = False
        self._requested = False

    @property
    def requested(self) -> bool:
        """Whether it was; the first read, in the main thread, installs the handler of SIGTERM."""
        if not self._has_handler and threading.current_thread() is threading.main_thread():
            self._has_handler = True
            signal.signal(signal.SIGTERM, self._request)
        return self._requested

    @property
    def received(self) -> bool:
        """Whether it was and the job handles it; reading this installs no handler."""
        return self._requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            return
        self._requested = True
        if self._grace is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(self._grace, 0.001))
            os.write(_STANDARD_ERROR, f"SIGTERM: {self._grace:g} s to save a checkpoint and end\n".encode())
