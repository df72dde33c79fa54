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
        self._positions: dict[tuple[int, int], int] = {}  # segment that has started, see `_segment_key` → its position
        self._held: dict[int, TrialRequest] = {}  # position → request of an attempt that has not ended yet

    @property
    def _expected(self) -> EarlierAttempt | None:
        """The attempt that has to start next; None if the earlier run is followed no further."""
        return self._attempts[self._next] if self._next < len(self._attempts) else None

    def record_start(self, request: TrialRequest, previous: TrialOutcome | None) -> None:
        """Record the start of an attempt. If the earlier run has started another one here, it is followed no further.

        Args:
            request: Request of the attempt.
            previous: Outcome of the attempt that it repeats or continues; None for the first one of a trial.
        """
        if previous is not None and previous.failure is not None:  # it is a retry
            if previous.answered_by:  # the user has requested the retry of a failure of the earlier run: it is trained
                self._positions.pop(_segment_key(request), None)
            return
        if (expected := self._expected) is None:
            return
        segment = request.segment or Segment()
        is_same = (
            (request.trial, request.seed) == (expected.trial, expected.seed)
            and (segment.rung, segment.done) == (expected.rung, expected.done)
            and earlier.params_key(request.params) == earlier.params_key(expected.params)
        )
        if is_same:
            self._positions[_segment_key(request)] = self._next
            self._next += 1
        else:
            self._attempts = self._attempts[: self._next]

    def may_repeat_next(self, trial: int, rung: int) -> bool:
        """Return whether an attempt at this trial up to this rung, if it starts next, may need no training."""
        expected = self._expected
        if expected is None or expected.outcome is None:
            return False
        return (expected.trial, expected.rung) == (trial, rung)

    def repeated_attempt(self, request: TrialRequest) -> EarlierAttempt | None:
        """Return the attempt of the earlier run whose end an attempt takes over; None if it must be trained."""
        position = self._positions.get(_segment_key(request))
        if position is None or self._attempts[position].outcome is None:
            return None
        return self._attempts[position]

    def reports_until(self, request: TrialRequest, last_step: int) -> Iterator[tuple[int, Mapping[str, float]]]:
        """Yield the reports up to a step of the earlier attempt whose checkpoint an attempt continues: step and metrics."""
        position = self._positions.get(_segment_key(request))
        reports = () if position is None else self._attempts[position].reports
        for step, metrics in reports:
            if step <= last_step:
                yield step, metrics

    def hold(self, request: TrialRequest) -> None:
        """Hold an attempt that takes over the end of an earlier one, until `take_due` yields it."""
        self._held[self._positions[_segment_key(request)]] = request

    def take_due(self, is_stuck: bool) -> Iterator[TrialRequest]:
        """Remove and yield the held attempts that end before the next start, in the order of their ends.

        Args:
            is_stuck: Whether nothing starts before one of the held attempts has ended.
        """
        in_order = sorted(self._held, key=self._end_time)
        due = in_order
        if (expected := self._expected) is not None:
            due = [position for position in expected.ended_before if position in self._held]
        if not due and is_stuck:
            due = in_order[:1]
        for position in due:
            yield self._held.pop(position)

    def _end_time(self, position: int) -> tuple[float, int]:
        """Return a key to sort positions by the time at which their attempts have ended in the earlier run."""
        outcome = self._attempts[position].outcome
        assert outcome is not None
        return outcome.ended, position


def _segment_key(request: TrialRequest) -> tuple[int, int]:
    """Return the trial of an attempt, and the rung at which it ends; 0 if it trains to the end."""
    return request.trial, 0 if request.segment is None else request.segment.rung
