"""The time that the attempts of a run have taken and lost, and an estimate of what pruning and promotion saved."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from trialplane.wire.costs import Busy
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

METHOD = (
    "A pruned trial would have taken its own time per step for the steps of a typical complete trial (the median); without "
    "reports, the median time of complete trials. So would a trial that was paused at a rung when the run ended; while the "
    "run goes on, paused trials may be promoted and count as no saving. A promoted trial counts with all of its segments."
)


def busy(attempts: Iterable[TrialRow], now: float) -> Busy:
    """Return the time that attempts have taken, of themselves and of their workers.

    Args:
        attempts: Attempts. One that runs counts up to now. The number of its workers is unknown and counts as 0.
        now: Current time, in seconds since the epoch.
    """
    total = Busy()
    for attempt in attempts:
        seconds = attempt.seconds or 0.0
        if attempt.state is TrialState.RUNNING and attempt.started is not None:
            seconds = max(0.0, now - attempt.started)
        total += Busy(seconds, worker_seconds=seconds * attempt.workers)
    return total


def saved_seconds(rows: Sequence[TrialRow], steps: Mapping[int, int], is_active: bool = False) -> float:
    """Return the estimated seconds that pruning and promotion have saved. `METHOD` describes the estimate.

    Args:
        rows: Newest attempt of each trial, with the seconds of all of its segments.
        steps: Number of steps that each attempt has trained, by the attempt's number.
        is_active: Whether the run is active. If so, paused trials may still be promoted, and count as no saving.
    """
    saving_states = (TrialState.PRUNED,) if is_active else (TrialState.PRUNED, TrialState.PAUSED)
    complete = [row for row in rows if row.state is TrialState.COMPLETE and row.seconds is not None]
    if not complete:
        return 0.0
    typical_seconds = statistics.median(row.seconds or 0.0 for row in complete)
    reported_steps = [steps[row.number] for row in complete if row.number in steps]
    typical_steps = statistics.median(reported_steps) if reported_steps else 0  # 0 without reports
    saved = 0.0
    for row in rows:
        was_stopped_with_run = row.failure is not None  # and not at a rung
        if row.state not in saving_states or was_stopped_with_run or row.seconds is None:
            continue
        trained_steps = steps.get(row.number, 0)
        if trained_steps and typical_steps:
            seconds_per_step = row.seconds / trained_steps
            saved += max(0.0, seconds_per_step * (typical_steps - trained_steps))
        else:
            saved += max(0.0, typical_seconds - row.seconds)
    return saved


def lost(attempts: Iterable[TrialRow]) -> Busy:
    """Return the time of the attempts that failed or were lost."""
    lost_attempts = [attempt for attempt in attempts if attempt.state in (TrialState.FAILED, TrialState.LOST)]
    return busy(lost_attempts, now=0.0)  # `now` is only for attempts that run
