"""Reads the ledger of one run page by page: from a database, from the gateway, or from a copy."""

from __future__ import annotations

import bisect
from typing import Protocol

from trialplane.ledger import attempts as reading
from trialplane.ledger import remote, tables
from trialplane.ledger.attempts import Attempt, Reports
from trialplane.wire.exports import Copy

PAGE = 200  # largest number of attempts on a page; fewer mean that no more follow


class Source(Protocol):
    """The ledger of a run, read in pages after a position. A page is empty if nothing follows.

    Attributes:
        pause: Shortest time in seconds between the starts of two rounds of reads.
        idle: Time in seconds after which the ledger is read again if no message has said that it has new records.
    """

    pause: float
    idle: float

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return running attempts with numbers above `after`, in the order of their numbers; from the gateway one page."""

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""


class Database:
    """A ledger in SQLite or PostgreSQL.

    Args:
        url: URL of the database.
        run: Name of the run.
    """

    pause = 0.0
    idle = 1.0

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._engine = tables.engine(url)

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return running attempts with numbers above `after`, in the order of their numbers."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.running_after(tables.select(connection), self._run, after)

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.attempt(tables.select(connection), self._run, number)

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.ended_after(tables.select(connection), self._run, after, PAGE)[1]

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""
        with tables.map_errors(self._url, self._run), self._engine.connect() as connection:
            return reading.reports(tables.select(connection), self._run, after)


class Gateway:
    """A ledger behind the gateway, which is read less often.

    Args:
        url: URL of the gateway, with the run's token.
        run: Name of the run.
    """

    pause = 1.0
    idle = 10.0

    def __init__(self, url: str, run: str) -> None:
        self.reader = remote.Reader(url, run)

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return a page of running attempts with numbers above `after`, in the order of their numbers."""
        return self.reader.attempts(after, "running", PAGE)

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""
        return self.reader.attempts(number - 1, "number", 1)[0]

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""
        return self.reader.attempts(after, "end_number", PAGE)

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""
        return self.reader.reports(after)


class LedgerCopy:
    """A copy of a ledger, which does not change.

    Args:
        copy: Attempts and reports, in any order.
    """

    pause = 0.0
    idle = 1.0

    def __init__(self, copy: Copy) -> None:
        attempts = [Attempt(stored.request, stored.outcome, stored.end_number) for stored in copy.attempts]
        self._by_number = {attempt.request.number: attempt for attempt in attempts}
        ended = [attempt for attempt in attempts if attempt.end_number is not None]
        self._ended = sorted(ended, key=lambda attempt: attempt.end_number or 0)
        self._reports = sorted(copy.reports, key=lambda report: report.mark)

    def running_attempts(self, after: int) -> list[Attempt]:
        """Return running attempts with numbers above `after`, in the order of their numbers."""
        numbers = sorted(number for number in self._by_number if number > after)
        return [self._by_number[number] for number in numbers if self._by_number[number].end_number is None]

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with a number."""
        return self._by_number[number]

    def ended_attempts(self, after: int) -> list[Attempt]:
        """Return a page of the attempts whose ends have numbers above `after`, in the order of their ends."""
        begin = bisect.bisect_right(self._ended, after, key=lambda attempt: attempt.end_number or 0)
        return self._ended[begin : begin + PAGE]

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""
        begin = bisect.bisect_right(self._reports, after, key=lambda report: report.mark)
        end = begin + 10 * PAGE  # reports are small, so a page has more of them than of attempts
        return Reports(self._reports[begin:end], end < len(self._reports))
