"""The two ways in which a trial is stopped before its end: SIGTERM, and a rule of the job's `stop`.

SIGTERM is a request to save a checkpoint and end, so that the trial can continue later. It is sent when a pod is deleted, a
spot node is reclaimed or a run is paused. A job that never reads the request has nothing to save: SIGTERM ends it at once,
like any process. A rule ends the trial for good, as complete.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from types import FrameType

from trialplane.wire.records import StopRule

_STANDARD_ERROR = 2  # a signal handler must not use Python's streams, which the interrupted code may be writing to


class Stop:
    """A request to stop this process, by SIGTERM.

    Args:
        grace: Seconds after SIGTERM until SIGALRM ends the process, whatever other processes do; None if another process
            enforces the limit.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._grace = grace
        self._has_handler = False
        self._requested = False

    def handle_sigterm(self) -> None:
        """Make SIGTERM a request from now on, if this is the main thread. Before, SIGTERM ends the process."""
        if not self._has_handler and threading.current_thread() is threading.main_thread():
            self._has_handler = True
            signal.signal(signal.SIGTERM, self._request)

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested since `handle_sigterm`."""
        return self._requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        """Record the first SIGTERM, and set the alarm that ends the process after the grace period, if it has one."""
        if self._requested:
            return
        self._requested = True
        if self._grace is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(self._grace, 0.001))  # 0 would set no alarm
            os.write(_STANDARD_ERROR, f"SIGTERM: {self._grace:g} s to save a checkpoint and end\n".encode())


def met_rule(rules: Iterable[StopRule], step: int, metrics: Mapping[str, float]) -> str:
    """Describe the first rule that a report meets, for a message; return "" if it meets none."""
    for rule in rules:
        if rule.step is not None:
            if step >= rule.step:
                return f"step {rule.step} is reached"
        elif step >= rule.after and rule.metric in metrics:
            value = metrics[rule.metric]
            if rule.above is not None and value > rule.above:
                return f"{rule.metric} {value:g} is above {rule.above:g}"
            if rule.below is not None and value < rule.below:
                return f"{rule.metric} {value:g} is below {rule.below:g}"
    return ""


def unreported_remarks(rules: Iterable[StopRule], reported: Container[str]) -> Iterator[str]:
    """Yield remarks on rules whose metric was never reported, as its name may be misspelled."""
    for rule in rules:
        if rule.metric and rule.metric not in reported:
            yield f"no report had {rule.metric}, which stop watches"
