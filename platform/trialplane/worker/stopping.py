"""SIGTERM as a request: whoever sends it wants the trial to save a checkpoint and end, and to go on later.

A pod that is deleted, a spot node that is taken back and a run that is paused all say it this way. A job that never asks
whether it is to stop has nothing to save: SIGTERM ends it at once, as it ends any process.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

_STANDARD_ERROR = 2  # a signal handler must not use Python's streams, which the interrupted code may be writing to


class Stop:
    """Whether this process was asked to stop.

    Args:
        grace: seconds after SIGTERM in which the process is ended (by SIGALRM, so that nobody else has to live for it); None
            where somebody else sees to that.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._grace = grace
        self._listens = False
        self._requested = False

    @property
    def requested(self) -> bool:
        """Whether it was; who asks for the first time, in the main thread, takes SIGTERM as a request from then on."""
        if not self._listens and threading.current_thread() is threading.main_thread():
            self._listens = True
            signal.signal(signal.SIGTERM, self._request)
        return self._requested

    @property
    def heard(self) -> bool:
        """Whether it was, and the job has asked before: to look here makes nobody listen."""
        return self._requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            return
        self._requested = True
        if self._grace is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(self._grace, 0.001))
            os.write(_STANDARD_ERROR, f"SIGTERM: {self._grace:g} s to save a checkpoint and end\n".encode())
