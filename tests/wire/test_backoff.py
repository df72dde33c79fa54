"""Pauses between tries."""

from __future__ import annotations

from trialplane.wire import backoff


def test_a_pause_doubles_up_to_the_longest() -> None:
    assert [backoff.pause(failures, longest=10.0, first=1.5) for failures in range(1, 6)] == [1.5, 3.0, 6.0, 10.0, 10.0]
    assert backoff.pause(10**6, longest=60.0) == 60.0
