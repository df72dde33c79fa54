"""The costs of a run, and the savings of pruning and promotion: estimates, with their method in words."""

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
    """Slot-hours, and the GPU-hours and money they stand for.

    Attributes:
        slots: slot-hours.
        gpus: GPU-hours; 0 without GPUs.
        money: price of the GPU-hours, or of the slot-hours without GPUs; None without a price.
    """

    slots: float
    gpus: float
    money: float | None

    @classmethod
    def of(cls, seconds: float, gpus: int, price: float | None) -> Hours:
        """Return the hours for the seconds of slots with `gpus` GPUs each."""
        slots = seconds / 3600
        paid = slots * gpus if gpus else slots
        return cls(slots, slots * gpus, None if price is None else price * paid)


def busy(attempts: Sequence[TrialRow], width: int) -> float:
    """Return the seconds of slots that attempts have used, each with `width` slots."""
    return sum(attempt.seconds or 0.0 for attempt in attempts) * width


def saved(rows: Sequence[TrialRow], steps: Mapping[int, int], width: int, is_active: bool = False) -> float:
    """Return the seconds of slots that pruning and promotion have saved; see `METHOD`.

    Args:
        rows: newest attempt of each trial, with the seconds of all of its segments.
        steps: number of steps that each attempt has trained, by its number.
        width: slots of a trial.
        is_active: whether the run goes on, so that a paused trial may be promoted.
    """
    stopped = (TrialState.PRUNED,) if is_active else (TrialState.PRUNED, TrialState.PAUSED)
    complete = [row for row in rows if row.state is TrialState.COMPLETE and row.seconds is not None]
    if not complete:
        return 0.0
    typical = statistics.median(row.seconds or 0.0 for row in complete)
    last_steps = [steps[row.number] for row in complete if row.number in steps]
    last = statistics.median(last_steps) if last_steps else 0
    seconds = 0.0
    for row in rows:
        if row.state not in stopped or row.failure is not None or row.seconds is None:
            continue
        step = steps.get(row.number)
        if not step or not last:
            seconds += max(0.0, typical - row.seconds)
        else:
            seconds += max(0.0, row.seconds * (last - step) / step)
    return seconds * width


def lost(attempts: Sequence[TrialRow], width: int) -> float:
    """Return the seconds of slots of attempts that failed or were lost."""
    ended = (TrialState.FAILED, TrialState.LOST)
    return sum(attempt.seconds or 0.0 for attempt in attempts if attempt.state in ended) * width
