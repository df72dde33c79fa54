"""Metrics about the use of the machine by a trial. MLflow shows metrics with these names as "System metrics".

The slot of a trial sends them as reports of their own: samples. The step of a sample is its number in the attempt, from
0, so a sample is neither compared with reports of the trial, nor is it a step of its training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trialplane.wire.records import ReportRow

PREFIX = "system/"


def is_sample(metrics: Collection[str]) -> bool:
    """Return whether a report is a sample, by the names of its metrics."""
    return bool(metrics) and all(name.startswith(PREFIX) for name in metrics)


def without_samples(reports: Iterable[ReportRow]) -> list[ReportRow]:
    """Return the reports that are not samples."""
    return [report for report in reports if not is_sample(report.metrics)]
