"""Reads a copy of the ledger of one run page by page."""

from __future__ import annotations

import bisect

from trialplane.ledger.attempts import SOURCE_PAGE, Attempt, Reports
from trialplane.wire.exports import Copy


class LedgerCopy:
    """Copy of a ledger, which does not change: a `storages.Source`.

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
        return self._ended[begin : begin + SOURCE_PAGE]

    def reports(self, after: int) -> Reports:
        """Return a page of the reports with marks above `after`, in the order of their marks."""
        begin = bisect.bisect_right(self._reports, after, key=lambda report: report.mark)
        end = begin + 10 * SOURCE_PAGE  # reports are small, so a page has more of them than of attempts
        return Reports(self._reports[begin:end], end < len(self._reports))
