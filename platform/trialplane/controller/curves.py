"""Selects the reports of running attempts that the ledger keeps, and divides the unwritten ones into batches. Pure.

Each report has a mark: its position among the reports of the run, in the order in which they arrived.

A batch that was sent may have been committed although no answer came. So it does not change until it is written, and reports
that arrive meanwhile belong to a later batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from trialplane.wire import system_metrics
from trialplane.wire.extremes import Extremes
from trialplane.wire.ledger import MAX_BATCH
from trialplane.wire.records import ReportRow, TrialReport, TrialRequest

MOST = 5000  # largest number of reports of an attempt that the ledger keeps
MOST_BYTES = 4 << 20  # largest number of bytes of their metrics
_BATCH_BYTES = 1 << 20  # largest number of bytes of the metrics in a batch; the last report may exceed it
GAP = 1 << 20  # marks that are skipped after a restart, so that none is used twice
_VALUE_BYTES = 24  # bytes of a value without its name; an estimate


@dataclasses.dataclass(frozen=True)
class Batch:
    """The content of one transaction: reports to write, and marks of earlier reports to delete."""

    reports: tuple[ReportRow, ...]
    deleted: tuple[int, ...]


class Curve:
    """Selection of the reports of one attempt that the ledger keeps.

    At first all reports are kept. Whenever they exceed `MOST` reports or `MOST_BYTES` bytes, `stride` doubles, and only the
    reports whose number is a multiple of `stride` stay. The last report is always kept, and so are the first minimum and the
    first maximum of each metric that the job names.

    Args:
        names: Names of the metrics that the job names.

    Attributes:
        step: Largest step reported; 0 before the first report.
        stride: Distance of the reports that are kept; 1 while all are kept.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.step = 0
        self.stride = 1
        self._count = 0
        self._selected: dict[int, tuple[int, int]] = {}  # number of a report that is kept → its mark and size in bytes
        self._bytes = 0
        self._extremes = Extremes(names)

    def add(self, mark: int, report: TrialReport) -> list[int]:
        """Add the next report, with its mark; return the marks of the reports that are no longer kept."""
        number, size = self._count, _byte_count(report.metrics)
        self._count += 1
        self.step = max(self.step, report.step)
        self._selected[number] = mark, size
        self._bytes += size
        former_extremes = self._extremes.add(number, report.metrics) or []
        # Report `number - 1` is no longer the last one, and former extremes are no longer minima or maxima.
        dropped_marks = self._drop_unneeded({number - 1, *former_extremes})
        # With a stride above `number`, only the first report is a multiple of it, and a larger stride drops nothing more.
        while (len(self._selected) > MOST or self._bytes > MOST_BYTES) and self.stride <= number:
            self.stride *= 2
            dropped_marks += self._drop_unneeded(set(self._selected))
        return dropped_marks

    def _drop_unneeded(self, numbers: set[int]) -> list[int]:
        """Drop those of the reports with these numbers that the selection does not need; return their marks."""
        candidates = {number for number in numbers if number in self._selected and number % self.stride != 0}
        if not candidates:  # so it is mostly; finding the extremes would take time
            return []
        dropped_marks: list[int] = []
        for number in sorted(candidates - self._extremes.numbers - {self._count - 1}):
            mark, size = self._selected.pop(number)
            self._bytes -= size
            dropped_marks.append(mark)
        return dropped_marks


class Curves:
    """The curves of the running attempts, and their reports that are not written yet.

    Args:
        names: Names of the metrics that the job names.

    Attributes:
        mark: Mark of the newest report of the run.
        remark: Remark for the user if a curve was reduced to a sample; otherwise "".
    """

    def __init__(self, names: Collection[str]) -> None:
        self.mark = 0
        self.remark = ""
        self._names = names
        self._curves: dict[int, Curve] = {}  # number of the attempt → its curve
        self._system_curves: dict[int, Curve] = {}  # the same for its samples of system metrics, whose steps are their own
        self._unsent: dict[int, ReportRow] = {}  # mark → report
        self._to_delete: list[int] = []  # marks of reports that were sent and are no longer kept
        self._in_flight: Batch | None = None  # the batch that may have been sent, and is not written yet

    def add(self, request: TrialRequest, report: TrialReport) -> None:
        """Add a report of a running attempt."""
        is_system_sample = system_metrics.is_sample(report.metrics)
        curves = self._system_curves if is_system_sample else self._curves
        curve = curves.setdefault(request.number, Curve(self._names))
        self.mark += 1
        self._unsent[self.mark] = ReportRow(
            self.mark, request.trial, request.attempt, request.number, report.step, report.metrics, report.time
        )
        for mark in curve.add(self.mark, report):
            if self._unsent.pop(mark, None) is None:  # it was sent already
                self._to_delete.append(mark)
        is_thinned_out = curve.stride > 1 and not is_system_sample
        if is_thinned_out and not self.remark:
            self.remark = (
                f"trial {request.trial} reports more than the ledger keeps of an attempt ({MOST:,} reports of "
                f"{MOST_BYTES >> 20} MiB in all): of its curve, and of others as long, it keeps an even sample"
            )
            if self._names:
                self.remark += f", with the minimum and maximum of {', '.join(sorted(self._names))}"

    def end(self, number: int) -> int:
        """Record the end of an attempt; return the largest step that it has reported, 0 without reports."""
        self._system_curves.pop(number, None)
        curve = self._curves.pop(number, None)
        return 0 if curve is None else curve.step

    def next_batch(self) -> Batch | None:
        """Return the batch to write next; None if nothing is left to write.

        The same batch is returned until `record_written` or `record_refused` is called.
        """
        if self._in_flight is None and (self._unsent or self._to_delete):
            rows: list[ReportRow] = []
            size = 0
            for row in self._unsent.values():
                if len(rows) == MAX_BATCH or size > _BATCH_BYTES:
                    break
                rows.append(row)
                size += _byte_count(row.metrics)
            for row in rows:
                del self._unsent[row.mark]
            self._in_flight = Batch(reports=tuple(rows), deleted=tuple(self._to_delete[:MAX_BATCH]))
            self._to_delete = self._to_delete[MAX_BATCH:]
        return self._in_flight

    def record_written(self) -> None:
        """Record that the batch of `next_batch` was written."""
        self._in_flight = None

    def record_refused(self) -> None:
        """Drop the reports of the batch of `next_batch`, which the ledger has refused.

        Its deletions become the next batch. If that is refused too, it is dropped.
        """
        batch = self._in_flight
        assert batch is not None
        self._in_flight = Batch(reports=(), deleted=batch.deleted) if batch.reports and batch.deleted else None

    def resume(self, mark: int) -> None:
        """Continue after the last mark in the ledger, with a gap of `GAP` marks.

        An earlier controller may have used the next marks, for reports that it deleted later. A reader that has seen one of
        these reports asks only for higher marks, and would miss a new report with the same mark.

        Args:
            mark: Last mark in the ledger; 0 if the ledger has no reports.
        """
        self.mark = mark + GAP if mark else 0


def _byte_count(metrics: Collection[str]) -> int:
    """Return the approximate number of bytes of metrics with these names."""
    return sum(len(name) + _VALUE_BYTES for name in metrics)
