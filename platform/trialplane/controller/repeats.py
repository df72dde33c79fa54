"""Attempts that are to be tried again, and those that failed for good and can be taken up. Pure."""

from __future__ import annotations

import collections

from trialplane.controller.counts import Counts
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass


class Repeats:
    """What is there to try again, in the order it failed.

    Args:
        counts: is told when a trial that had failed for good is open again.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._waiting: collections.deque[TrialRequest] = collections.deque()
        self._failed: dict[int, tuple[TrialRequest, FailureClass]] = {}  # number → an attempt that failed for good

    def __len__(self) -> int:
        """How many attempts wait to be tried again."""
        return len(self._waiting)

    def take(self) -> TrialRequest:
        """The attempt that is tried again next."""
        return self._waiting.popleft()

    def ended(self, request: TrialRequest, outcome: TrialOutcome) -> None:
        """Takes note of an attempt that ended."""
        if outcome.retried:
            self._waiting.append(request)
        elif outcome.failure is not None:
            self._failed[request.number] = request, outcome.failure

    def begun(self, request: TrialRequest) -> None:
        """Takes note of an attempt of a former controller: what it repeats is not tried again, or was taken up."""
        number = request.retry_of
        if number in self._failed:
            self._open(number)
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.number != number)

    def take_up(self, number: int | None) -> bool:
        """Has an attempt that failed for good tried again, with all the retries of its trial.

        Args:
            number: of the attempt; None for the newest that failed for good.

        Returns:
            Whether it had failed so.
        """
        if number is None:
            number = max(self._failed, default=None)
        if number is None or number not in self._failed:
            return False
        self._open(number)
        return True

    def _open(self, number: int) -> None:
        request, failure = self._failed.pop(number)
        self._counts.take_back(request.trial, failure)
        self._waiting.append(request)
