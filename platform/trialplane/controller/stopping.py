"""How a controller hears that it is to stop: signals are noted, and whoever works looks at the notes."""

from __future__ import annotations

import signal


def hear(stopped: list[int]) -> None:
    """Notes SIGTERM and SIGINT in `stopped`, and lets the terminal go away. Libraries may have put handlers of their own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopped.append(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
