"""The ranks of a training on its page: the own time per step of each, and the ranks that delayed the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from trialplane.pages import columns, curves
from trialplane.pages.columns import Column
from trialplane.wire import ranks
from trialplane.wire.records import ReportRow

_MAX_STEPS = 400  # limit of the steps whose times the page draws


@dataclasses.dataclass
class Straggler:
    """A rank that delayed the others.

    Attributes:
        rank: Number of the rank.
        reports: Number of reports that name it as the slowest.
        first, last: Lowest and highest step of these reports.
        factor: Its own time per step as a multiple of that of the others, the largest one of these reports.
    """

    rank: int
    reports: int
    first: int
    last: int
    factor: float


def stragglers(reports: Sequence[ReportRow]) -> list[Straggler]:
    """Return the ranks that reports name as the slowest, ordered by the number of these reports, the highest first."""
    straggler_by_rank: dict[int, Straggler] = {}
    for report in reports:
        rank, factor = report.metrics.get(ranks.SLOWEST_RANK), report.metrics.get(ranks.SLOWEST_RANK_FACTOR, 0.0)
        if rank is None:
            continue
        new_straggler = Straggler(int(rank), reports=0, first=report.step, last=report.step, factor=factor)
        straggler = straggler_by_rank.setdefault(int(rank), new_straggler)
        straggler.reports += 1
        straggler.first = min(straggler.first, report.step)
        straggler.last = max(straggler.last, report.step)
        straggler.factor = max(straggler.factor, factor)
    return sorted(straggler_by_rank.values(), key=lambda straggler: -straggler.reports)


def time_columns(reports: Sequence[ReportRow]) -> Iterator[Column]:
    """Yield the columns of the table `ranks`: the own seconds per step of each rank at reported steps, rank by rank.

    If a step was trained again after a restart, its newest times count. Of more than `_MAX_STEPS` steps, evenly spaced ones
    are taken.
    """
    times: dict[int, dict[int, float]] = {}  # step → rank → seconds
    for report in reports:
        times.setdefault(report.step, {}).update(ranks.seconds(report.metrics))
    times = {step: by_rank for step, by_rank in times.items() if by_rank}  # without steps of which no rank has a time
    steps = curves.thin(sorted(times), _MAX_STEPS)
    rank_numbers = sorted({rank for step in steps for rank in times[step]})
    rows = [(rank, step, times[step][rank]) for rank in rank_numbers for step in steps if rank in times[step]]
    yield Column("ranks", "rank", columns.unsigned(rank for rank, _, _ in rows))
    yield Column("ranks", "step", columns.numbers(step for _, step, _ in rows))
    yield Column("ranks", "seconds", columns.numbers(seconds for _, _, seconds in rows))
