"""Repeats the attempts of an earlier run without training, as long as the search decides the same. Pure.

A repeated study would decide the same, but a decision depends on which attempts have ended by then, and so on how long they
have taken. Therefore an attempt that needs no training does not end at once. It is held for as long as it ran in the earlier
run, counted in starts: if it had ended there before the next start, it ends before the next start here.

The first start that differs ends this. Held attempts then end, as after the last start of a run that was stopped, and the
study goes on by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trialplane.wire import earlier
from trialplane.wire.earlier import EarlierAttempt
from trialplane.wire.records import Segment, TrialOutcome, TrialRequest


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

    def record_start(self, request: TrialRequest, previous: TrialOutcome | None) -> None:
        """Record the start of an attempt. If the earlier run has started another one here, it is followed no further.

        Args:
            request: Request of the attempt.
            previous: Outcome of the attempt that it repeats or continues; None for the first one of a trial.
        """
        if previous is not None and previous.failure is not None:  # it is a retry
            if previous.answered_by:  # the user has the failure of the earlier run tried again
                self._positions.pop(_key(request), None)
            return
        if self._next == len(self._attempts):  # the study is not followed any further
            return
        expected, segment = self._attempts[self._next], request.segment or Segment()
        is_same = (request.trial, request.seed, segment.rung, segment.done) == (
            expected.trial,
            expected.seed,
            expected.rung,
            expected.done,
        )
        if is_same and earlier.params_key(request.params) == earlier.params_key(expected.params):
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

    def reports(self, request: TrialRequest, last_step: int) -> Iterator[tuple[int, Mapping[str, float]]]:
        """Yield the reports, up to a step, of the attempt of the earlier run whose checkpoint an attempt continues."""
        position = self._positions.get(_key(request))
        reports = () if position is None else self._attempts[position].reports
        yield from ((step, metrics) for step, metrics in reports if step <= last_step)

    def hold(self, request: TrialRequest) -> None:
        """Hold an attempt that takes over the end of an earlier one, until `take_due` yields it."""
        self._held[self._positions[_key(request)]] = request

    def take_due(self, is_stuck: bool) -> Iterator[TrialRequest]:
        """Remove and yield the held attempts that end before the next start, in the order of their ends.

        Args:
            is_stuck: Whether nothing starts before one of the held attempts has ended.
        """
        due = in_order = sorted(self._held, key=self._end_time)
        if self._next < len(self._attempts):  # the study is still followed
            due = [position for position in self._attempts[self._next].ended_before if position in self._held]
        if not due and is_stuck:
            due = in_order[:1]
        for position in due:
            yield self._held.pop(position)

    def _end_time(self, position: int) -> tuple[float, int]:
        """Return the time at which the attempt at a position has ended in the earlier run, and the position."""
        outcome = self._attempts[position].outcome
        assert outcome is not None
        return outcome.ended, position


def _key(request: TrialRequest) -> tuple[int, int]:
    """Return the trial of an attempt, and the rung at which it ends."""
    return request.trial, 0 if request.segment is None else request.segment.rung
