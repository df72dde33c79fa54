"""Signals to a controller: on a laptop they are requests to stop, which the loops poll; in a pod they end it at once.

The end of a pod says nothing about its run: the desired state is in the ledger, where the next controller continues.
"""

from __future__ import annotations

import math
import signal
import time


def record_signals(stopped: list[int]) -> None:
    """Record SIGTERM and SIGINT in `stopped` and ignore SIGHUP, replacing handlers that libraries have installed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopped.append(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end this process at once, replacing handlers that libraries have installed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def wait_for_removal(seconds: float = math.inf) -> None:
    """Wait, without using anything, for the signal that ends this process, or for so many seconds."""
    end_on_signals()
    if seconds == math.inf:
        while True:
            signal.pause()
    time.sleep(seconds)
