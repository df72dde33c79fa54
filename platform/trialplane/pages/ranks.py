"""The ranks of a training: the time per step of each, and those that held the others up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from trialplane.pages import columns, curves
from trialplane.pages.columns import Column
from trialplane.wire import ranks
from trialplane.wire.records import ReportRow

_MAX_STEPS = 400  # of the times of all ranks


@dataclasses.dataclass
class Straggler:
    """A rank that held the others up.

    Attributes:
        rank: Number of the rank.
        reports: Number of reports that name it.
        first, last: Steps of the first and the last of them.
        factor: Its own time per step, as the largest multiple of that of the others.
    """

    rank: int
    reports: int
    first: int
    last: int
    factor: float


def stragglers(reports: Sequence[ReportRow]) -> list[Straggler]:
    """Return the ranks that reports name as the slowest, the one that is named most often first."""
    named: dict[int, Straggler] = {}
    for report in reports:
        rank, factor = report.metrics.get(ranks.SLOWEST_RANK), report.metrics.get(ranks.SLOWEST_RANK_FACTOR, 0.0)
        if rank is None:
            continue
        straggler = named.setdefault(int(rank), Straggler(int(rank), 0, report.step, report.step, factor))
        straggler.reports += 1
        straggler.first, straggler.last = min(straggler.first, report.step), max(straggler.last, report.step)
        straggler.factor = max(straggler.factor, factor)
    return sorted(named.values(), key=lambda straggler: -straggler.reports)


def time_columns(reports: Sequence[ReportRow]) -> Iterator[Column]:
    """Yield the columns of the table `ranks`: own seconds per step of each rank at the reported steps, rank by rank.

    A step that was trained again, after a restart, has its newest times. Ranks of many steps have the times of at most
    `_MAX_STEPS` of them.
    """
    times: dict[int, dict[int, float]] = {}  # step → rank → seconds
    for report in reports:
        if seconds := ranks.seconds(report.metrics):
            times[report.step] = {**times.get(report.step, {}), **seconds}
    steps = [step for step, _ in curves.thin([(step, 0.0) for step in sorted(times)], _MAX_STEPS)]
    numbers = sorted({rank for step in steps for rank in times[step]})
    rows = [(rank, step, times[step][rank]) for rank in numbers for step in steps if rank in times[step]]
    yield Column("ranks", "rank", "", columns.counts(rank for rank, _, _ in rows))
    yield Column("ranks", "step", "", columns.numbers(step for _, step, _ in rows))
    yield Column("ranks", "seconds", "", columns.numbers(seconds for _, _, seconds in rows))
