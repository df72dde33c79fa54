"""Repeats the attempts of an earlier run without training, as long as the search decides the same. Pure.

A repeated study would decide the same, but a decision depends on which attempts have ended by then, and so on how long they
have taken. Therefore an attempt that needs no training does not end at once. It is held for as long as it ran in the earlier
run, counted in starts: if it had ended there before the next start, it ends before the next start here.

The first start that differs ends this. Held attempts then end, and the study goes on by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from trialplane.wire import earlier
from trialplane.wire.earlier import EarlierAttempt
from trialplane.wire.records import Segment, TrialRequest


class Following:
    """The attempts of an earlier run that a study repeats.

    Args:
        attempts: Attempts of the earlier run, in the order of their starts.
    """

    def __init__(self, attempts: Sequence[EarlierAttempt]) -> None:
        self._attempts = attempts
        self._next = 0  # position of the attempt that has to start next
        self._positions: dict[tuple[int, int], int] = {}  # trial and rung of a segment that has started → its position
        self._held: dict[int, TrialRequest] = {}  # position → request of an attempt that has not ended yet

    def record_start(self, request: TrialRequest, is_retry: bool) -> None:
        """Record the start of an attempt. If the earlier run has started another one here, it is followed no further."""
        if is_retry or self._next == len(self._attempts):
            return
        expected, segment = self._attempts[self._next], request.segment or Segment()
        is_same = (request.trial, request.seed, segment.rung, segment.done) == (
            expected.trial,
            expected.seed,
            expected.rung,
            expected.done,
        )
        if is_same and earlier.key(request.params) == earlier.key(expected.params):
            self._positions[request.trial, segment.rung] = self._next
            self._next += 1
        else:
            self._attempts = self._attempts[: self._next]

    def repeats(self, trial: int, rung: int) -> bool:
        """Return whether the attempt that starts next may be at this trial and up to this rung, and need no training."""
        if self._next == len(self._attempts):
            return False
        expected = self._attempts[self._next]
        return (expected.trial, expected.rung) == (trial, rung) and expected.outcome is not None

    def attempt(self, request: TrialRequest) -> EarlierAttempt | None:
        """Return the attempt of the earlier run whose end an attempt takes over; None if it must be trained."""
        position = self._positions.get(_key(request))
        attempt = None if position is None else self._attempts[position]
        return attempt if attempt is not None and attempt.outcome is not None else None

    def hold(self, request: TrialRequest) -> None:
        """Hold an attempt that takes over the end of an earlier one, until `take_due` returns it."""
        self._held[self._positions[_key(request)]] = request

    def take_due(self, is_stuck: bool) -> list[TrialRequest]:
        """Remove and return the held attempts that end before the next start, in the order of their ends.

        Args:
            is_stuck: Whether nothing starts before one of the held attempts has ended.
        """
        ended_before = self._attempts[self._next].ended_before if self._next < len(self._attempts) else None
        due = (
            sorted(self._held) if ended_before is None else [position for position in ended_before if position in self._held]
        )
        if is_stuck and not due:
            due = sorted(self._held)[:1]
        return [self._held.pop(position) for position in due]


def _key(request: TrialRequest) -> tuple[int, int]:
    """Return the trial of an attempt, and the rung at which it ends."""
    return request.trial, 0 if request.segment is None else request.segment.rung
