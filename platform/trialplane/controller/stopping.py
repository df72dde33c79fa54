"""Stop requests to a controller: signal handlers only record the signal, and the loops poll the record."""

from __future__ import annotations

import signal


def record_signals(stopped: list[int]) -> None:
    """Records SIGTERM and SIGINT in `stopped` and ignores SIGHUP, replacing handlers that libraries have installed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopped.append(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
