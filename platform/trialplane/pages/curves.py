"""The learning curves of a run for its page, with as many points as a browser can draw, and the quantiles of all curves."""

from __future__ import annotations

import array
import bisect
import math
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from trialplane.pages import columns
from trialplane.pages.columns import Column
from trialplane.wire import ranks
from trialplane.wire.records import ReportRow

MAX_POINTS = 1000  # limit of the points of one curve
MAX_METRICS = 12  # limit of the metrics that the page draws
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MAX_TOTAL_POINTS = 400_000  # limit of the points of all curves; each curve has an equal share
_MIN_POINTS = 8  # number of points that a curve may have even if they exceed its share
_MIN_CURVES = 20  # smallest number of curves with quantiles; the page draws fewer curves one by one
_MAX_STEPS = 200  # limit of the steps with quantiles
# Metrics of `training/progress.py` that repeat others or change by one each step, and those of `ranks.stragglers`.
_NOT_DRAWN = (
    "total_steps",
    "seconds_left",
    "samples_per_second_and_rank",
    "tokens_per_second_and_rank",
    ranks.SLOWEST_RANK,
    ranks.SLOWEST_RANK_FACTOR,
)

Series = list[tuple[int, float]]  # step and value of each point
Point = TypeVar("Point")


def metrics(reports: Sequence[ReportRow], job_metrics: Collection[str]) -> list[str]:
    """Return the names of at most `MAX_METRICS` reported metrics to draw. Those in `job_metrics` come first."""
    names = dict.fromkeys(name for report in reports for name in report.metrics)
    first = [name for name in names if name in job_metrics]
    others = [name for name in names if name not in (*first, *_NOT_DRAWN) and not ranks.is_seconds(name)]
    return [*first, *others][:MAX_METRICS]


def series_by_attempt(reports: Sequence[ReportRow], metric: str) -> dict[int, Series]:
    """Return the points of a metric in the order of their steps, by the attempt's number. A step's last report counts."""
    series: dict[int, dict[int, float]] = {}
    for report in reports:
        value = report.metrics.get(metric)
        if value is not None:
            series.setdefault(report.number, {})[report.step] = value
    return {number: sorted(points.items()) for number, points in series.items()}


def thin(points: Sequence[Point], max_points: int) -> Sequence[Point]:
    """Return at most `max_points` evenly spaced points of a sequence. The first and the last point are among them."""
    if len(points) <= max_points:
        return points
    last = len(points) - 1
    return [points[round(index * last / (max_points - 1))] for index in range(max_points)]


def curve_columns(reports: Sequence[ReportRow], names: Sequence[str], full_curves: Collection[int]) -> Iterator[Column]:
    """Yield the columns of the tables `curves`, `points N` of each metric, and `bands`, the quantiles at each step.

    Args:
        reports: All reports of the run.
        names: Names of the metrics to draw.
        full_curves: Numbers of the attempts whose curves have up to `MAX_POINTS` points.
    """
    # Rows of the tables, in which a metric is its index in `names`. A curve is a part of its metric's table of points.
    curve_fields = ("metric", "number", "start", "count")
    curve_rows: list[tuple[int, int, int, int]] = []
    band_fields = ("metric", "step", *(f"q{round(100 * share)}" for share in QUANTILES))
    band_rows: list[tuple[float, ...]] = []
    for index, metric in enumerate(names):
        series = series_by_attempt(reports, metric)
        max_points = _points_per_curve(len(series) * len(names))
        steps, values = array.array("d"), array.array("d")
        for number, points in series.items():
            drawn_points = thin(points, MAX_POINTS if number in full_curves else max_points)
            curve_rows.append((index, number, len(steps), len(drawn_points)))
            steps.extend(step for step, _ in drawn_points)
            values.extend(value for _, value in drawn_points)
        yield Column(f"points {index}", "step", columns.numbers(steps))
        yield Column(f"points {index}", "value", columns.numbers(values))
        band_rows += [(index, *quantile_row) for quantile_row in _quantile_rows(list(series.values()))]
    for position, name in enumerate(curve_fields):
        yield Column("curves", name, columns.unsigned(row[position] for row in curve_rows))
    for position, name in enumerate(band_fields):
        yield Column("bands", name, columns.numbers(row[position] for row in band_rows))


def _points_per_curve(curve_count: int) -> int:
    """Return the limit of the points of each curve, from `_MIN_POINTS` to `MAX_POINTS`, so that all together can be drawn.

    It is a power of two, so that the points of old curves seldom change when a curve is added.
    """
    share = _MAX_TOTAL_POINTS // max(1, curve_count)
    power_of_two = 1 << share.bit_length() >> 1  # the largest one up to `share`; 0 for 0
    return max(_MIN_POINTS, min(MAX_POINTS, power_of_two))


def _quantile_rows(series: Sequence[Series]) -> Iterator[tuple[float, ...]]:
    """Yield at most `_MAX_STEPS` rows of quantiles; nothing if there are fewer than `_MIN_CURVES` curves.

    The steps are divided into intervals. A row has the first step of an interval, and the `QUANTILES` of all values in it.

    Args:
        series: Points of each curve.
    """
    if len(series) < _MIN_CURVES:
        return
    first_steps = sorted({step for points in series for step, _ in points})  # each step is an interval
    if len(first_steps) > _MAX_STEPS:  # each interval has several steps
        first_steps = [first_steps[index * len(first_steps) // _MAX_STEPS] for index in range(_MAX_STEPS)]
    values_of_intervals: list[list[float]] = [[] for _ in first_steps]
    for points in series:
        for step, value in points:
            if math.isfinite(value):
                interval = bisect.bisect_right(first_steps, step) - 1  # the last one that begins at or before the step
                values_of_intervals[interval].append(value)
    for first_step, values in zip(first_steps, values_of_intervals, strict=True):
        if values:
            values.sort()
            yield (first_step, *(values[round(share * (len(values) - 1))] for share in QUANTILES))
