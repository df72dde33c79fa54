"""The learning curves of a run, as few points as a browser can draw: thinned curves, and quantiles over all of them."""

from __future__ import annotations

import array
import bisect
import math
from collections.abc import Collection, Iterator, Sequence

from trialplane.pages import columns
from trialplane.pages.columns import Column
from trialplane.wire.records import ReportRow

MOST_POINTS = 1000  # of a curve
MOST_METRICS = 12
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_ALL_POINTS = 400_000  # of all curves; each of the others gets an equal part
_FEWEST_POINTS = 8  # of a curve
_FEWEST_CURVES = 20  # fewer are drawn themselves, without quantiles
_STEPS = 200  # at which there are quantiles

Series = list[tuple[int, float]]  # step and value


def metrics(reports: Sequence[ReportRow], first: Collection[str]) -> list[str]:
    """Return the names of reported metrics, those in `first` before the others, at most `MOST_METRICS`."""
    names = dict.fromkeys(name for report in reports for name in report.metrics)
    return sorted(names, key=lambda name: name not in first)[:MOST_METRICS]


def of_metric(reports: Sequence[ReportRow], metric: str) -> dict[int, Series]:
    """Return the points of a metric, by the number of the attempt, in the order of the steps."""
    series: dict[int, dict[int, float]] = {}
    for report in reports:
        value = report.metrics.get(metric)
        if value is not None:
            series.setdefault(report.number, {})[report.step] = value
    return {number: sorted(points.items()) for number, points in series.items()}


def thinned(points: Series, most: int) -> Series:
    """Return evenly spaced points of a curve, with its first and last."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[round(index * last / (most - 1))] for index in range(most)]


def tables(reports: Sequence[ReportRow], names: Sequence[str], whole: Collection[int]) -> Iterator[Column]:
    """Yield the columns of the curves: `curves` has a row for each curve, `points` for each point, `bands` for each step.

    Args:
        reports: all reports.
        names: metrics.
        whole: numbers of attempts whose curves keep up to `MOST_POINTS` points.
    """
    curves: dict[str, list[int]] = {"metric": [], "number": [], "start": [], "count": []}
    steps, values = array.array("d"), array.array("d")
    bands: list[list[float]] = [[] for _ in range(2 + len(QUANTILES))]
    for index, metric in enumerate(names):
        series = of_metric(reports, metric)
        most = max(_FEWEST_POINTS, min(MOST_POINTS, _ALL_POINTS // max(1, len(series) * len(names))))
        for number, points in series.items():
            few = thinned(points, MOST_POINTS if number in whole else most)
            row = (index, number, len(steps), len(few))
            for column, value in zip(curves.values(), row, strict=True):
                column.append(value)
            steps.extend(step for step, _ in few)
            values.extend(value for _, value in few)
        for line in _bands(list(series.values())):
            for band, number_in_line in zip(bands, (index, *line), strict=True):
                band.append(number_in_line)
    for name, column in curves.items():
        yield Column("curves", name, "", columns.counts(column))
    yield Column("points", "step", "", columns.numbers(steps))
    yield Column("points", "value", "", columns.numbers(values))
    for name, band in zip(("metric", "step", *(f"q{round(100 * share)}" for share in QUANTILES)), bands, strict=True):
        yield Column("bands", name, "", columns.numbers(band))


def _bands(series: Sequence[Series]) -> Iterator[tuple[float, ...]]:
    """Yield a step and the quantiles there, at most at `_STEPS` steps."""
    if len(series) < _FEWEST_CURVES:
        return
    steps = sorted({step for points in series for step, _ in points})
    edges = steps if len(steps) <= _STEPS else [steps[(index * len(steps)) // _STEPS] for index in range(_STEPS)]
    at_edges: list[list[float]] = [[] for _ in edges]
    for points in series:
        for step, value in points:
            if math.isfinite(value):
                at_edges[bisect.bisect_right(edges, step) - 1].append(value)
    for edge, values in zip(edges, at_edges, strict=True):
        if values:
            values.sort()
            yield (edge, *(values[round(share * (len(values) - 1))] for share in QUANTILES))
