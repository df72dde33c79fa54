"""Counts the time that a run's attempts take, and the time of the workers of a collection. Pure.

The number of workers may change while an attempt runs. So the time of all workers is a sum that only grows, and an attempt
has the difference between its values at the attempt's end and start.
"""

from __future__ import annotations

from typing import NamedTuple

from trialplane.wire.costs import Busy


class _Start(NamedTuple):
    """Start of a running attempt: its time, and the seconds of all workers up to it."""

    time: float
    worker_seconds: float


class Hours:
    """Seconds of the attempts of a run, and of their workers. Times are in seconds since the epoch.

    Attributes:
        workers: Current number of workers of a collection; 0 in any other run.
    """

    def __init__(self) -> None:
        self.workers = 0
        self._ended = Busy()  # of the attempts that have ended
        self._running: dict[int, _Start] = {}  # number of an attempt → its start
        self._worker_seconds = 0.0  # of all workers up to the last change of their number
        self._last_change = 0.0  # time of this change

    def set_workers(self, number: int, now: float) -> None:
        """Record that a collection has `number` workers from the time `now` on."""
        self._worker_seconds = self._worker_seconds_at(now)
        self._last_change, self.workers = now, number

    def start(self, attempt: int, now: float) -> None:
        """Record the start of an attempt."""
        self._running[attempt] = _Start(time=now, worker_seconds=self._worker_seconds_at(now))

    def end(self, attempt: int, now: float) -> float | None:
        """Record the end of a running attempt, and return the mean number of workers during it.

        The result is None if an earlier controller started the attempt. Call `add` for its time, which the outcome has.
        """
        start = self._running.pop(attempt, None)
        if start is None:
            return None
        seconds = now - start.time
        if seconds <= 0:  # the clock was set back, or the attempt took no time
            return float(self.workers)
        return (self._worker_seconds_at(now) - start.worker_seconds) / seconds

    def add(self, seconds: float, workers: float) -> None:
        """Add the time of an attempt that has ended.

        Args:
            seconds: Its duration.
            workers: Mean number of its workers.
        """
        self._ended += Busy(seconds=seconds, worker_seconds=seconds * workers)

    def total(self, now: float) -> Busy:
        """Return the time of all attempts, including those that run."""
        worker_seconds, total = self._worker_seconds_at(now), self._ended
        for start in self._running.values():
            total += Busy(seconds=max(0.0, now - start.time), worker_seconds=max(0.0, worker_seconds - start.worker_seconds))
        return total

    def _worker_seconds_at(self, now: float) -> float:
        """Return the seconds of all workers up to a time."""
        return self._worker_seconds + self.workers * max(0.0, now - self._last_change)
