"""Signals to a controller: on a laptop they request a stop, in a pod they end the controller at once.

The end of a pod says nothing about its run: another controller reads the desired state from the ledger and continues.
"""

from __future__ import annotations

import math
import signal
import time


def record_signals(signals: list[int]) -> None:
    """Append each SIGTERM and SIGINT to `signals`, and ignore SIGHUP. Handlers of libraries are replaced."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end this process at once. Handlers of libraries are replaced."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def wait_for_removal(seconds: float = math.inf) -> None:
    """Sleep until a signal ends this process, for at most `seconds`."""
    end_on_signals()
    if seconds == math.inf:
        while True:
            signal.pause()
    time.sleep(seconds)
