"""The costs of a run, and estimates of what pruning and promotion save."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

METHOD = (
    "A pruned trial would have taken its own time per step for the steps of a typical complete trial (the median); without "
    "reports, the median time of complete trials. So would a trial that was paused at a rung when the run ended; while the "
    "run goes on, paused trials may be promoted and count as no saving. A promoted trial counts with all of its segments."
)


@dataclasses.dataclass(frozen=True)
class Hours:
    """Slot-hours, and the GPU-hours and the price that they amount to.

    Attributes:
        slots: Slot-hours.
        gpus: GPU-hours; 0 without GPUs.
        money: Price of the GPU-hours, or of the slot-hours without GPUs; None without a price.
    """

    slots: float
    gpus: float
    money: float | None

    @classmethod
    def from_seconds(cls, seconds: float, gpus: int, price: float | None) -> Hours:
        """Return the hours that slot-seconds amount to.

        Args:
            seconds: Slot-seconds.
            gpus: Number of GPUs of a slot.
            price: Price of a GPU-hour, or of a slot-hour without GPUs; None if unknown.
        """
        slots = seconds / 3600
        priced_hours = slots * gpus if gpus else slots
        return cls(slots, slots * gpus, None if price is None else price * priced_hours)


def busy_seconds(attempts: Sequence[TrialRow], width: int) -> float:
    """Return the slot-seconds that attempts have used, each with `width` slots."""
    return sum(attempt.seconds or 0.0 for attempt in attempts) * width


def saved_seconds(rows: Sequence[TrialRow], steps: Mapping[int, int], width: int, is_active: bool = False) -> float:
    """Return the slot-seconds that pruning and promotion have saved, estimated as `METHOD` describes.

    Args:
        rows: Newest attempt of each trial, with the seconds of all of its segments.
        steps: Number of steps that each attempt has trained, by the attempt's number.
        width: Number of slots of a trial.
        is_active: Whether the run is active, so that a paused trial may be promoted and saves nothing yet.
    """
    stopped_states = (TrialState.PRUNED,) if is_active else (TrialState.PRUNED, TrialState.PAUSED)
    complete = [row for row in rows if row.state is TrialState.COMPLETE and row.seconds is not None]
    if not complete:
        return 0.0
    complete_seconds = statistics.median(row.seconds or 0.0 for row in complete)
    known_steps = [steps[row.number] for row in complete if row.number in steps]
    complete_steps = statistics.median(known_steps) if known_steps else 0
    seconds = 0.0
    for row in rows:
        if row.state not in stopped_states or row.failure is not None or row.seconds is None:
            continue
        trained_steps = steps.get(row.number)
        if not trained_steps or not complete_steps:
            seconds += max(0.0, complete_seconds - row.seconds)
        else:
            seconds += max(0.0, row.seconds * (complete_steps - trained_steps) / trained_steps)
    return seconds * width


def lost_seconds(attempts: Sequence[TrialRow], width: int) -> float:
    """Return the slot-seconds of attempts that failed or were lost, each with `width` slots."""
    failed_states = (TrialState.FAILED, TrialState.LOST)
    return sum(attempt.seconds or 0.0 for attempt in attempts if attempt.state in failed_states) * width
