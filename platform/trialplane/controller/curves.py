"""Reports of running attempts on their way into the ledger: selects those that it keeps, and batches those not yet written.

The ledger gets them in batches. A batch that was sent stays as it is until it is written, as it may have been committed
without an answer; what comes meanwhile is for the next one. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from trialplane.wire.extremes import Extremes
from trialplane.wire.ledger import MAX_BATCH
from trialplane.wire.records import ReportRow, TrialReport, TrialRequest

MOST = 5000  # reports of an attempt that the ledger keeps
MOST_BYTES = 4 << 20  # of their metrics
_BATCH_BYTES = 1 << 20
GAP = 1 << 20  # marks that are left out after a restart, so that none is used twice
_VALUE = 24  # bytes of a value beside its name


@dataclasses.dataclass(frozen=True)
class Batch:
    """A transaction: reports to write, and the marks of earlier ones to delete."""

    reports: tuple[ReportRow, ...]
    deleted: tuple[int, ...]


class Curve:
    """Chooses which reports of one attempt the ledger keeps, as they come.

    Of more than `MOST` reports, or `MOST_BYTES`, an even sample: each `stride`th, and `stride` doubles whenever they are too
    many. Besides, the first minimum and the first maximum of each metric that the job names, and the last report.

    Args:
        names: metrics that the job names.

    Attributes:
        step: the largest one reported, or 0.
        stride: see above; 1 while every report is kept.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.step = 0
        self.stride = 1
        self._count = 0
        self._reports: dict[int, tuple[int, int]] = {}  # number of a report → its mark, and its bytes
        self._bytes = 0
        self._extremes = Extremes(names)

    def add(self, mark: int, report: TrialReport) -> list[int]:
        """Take the next report; return the marks of those that are not kept any more."""
        number, size = self._count, _size(report.metrics)
        self._count += 1
        self.step = max(self.step, report.step)
        self._reports[number] = mark, size
        self._bytes += size
        dropped = self._drop([number - 1, *(self._extremes.add(number, report.metrics) or ())])
        while (len(self._reports) > MOST or self._bytes > MOST_BYTES) and self.stride <= number:
            self.stride *= 2
            dropped += self._drop(list(self._reports))
        return dropped

    def _drop(self, numbers: list[int]) -> list[int]:
        """Drop those of these reports that are not to be kept; return their marks."""
        spare = [number for number in dict.fromkeys(numbers) if number % self.stride and number in self._reports]
        if not spare:
            return []
        needed = self._extremes.numbers | {self._count - 1}
        marks = []
        for number in spare:
            if number not in needed:
                mark, size = self._reports.pop(number)
                self._bytes -= size
                marks.append(mark)
        return marks


class Curves:
    """The curves of the running attempts, and their reports that are not written yet.

    Args:
        names: metrics that the job names.

    Attributes:
        mark: of the newest report of the run.
        remark: for the user, once a curve was thinned out; otherwise "".
    """

    def __init__(self, names: Collection[str]) -> None:
        self.mark = 0
        self.remark = ""
        self._names = names
        self._curves: dict[int, Curve] = {}  # number of the attempt → its curve
        self._unsent: dict[int, ReportRow] = {}  # by mark
        self._deleted: list[int] = []
        self._in_flight: Batch | None = None

    def add(self, request: TrialRequest, report: TrialReport) -> None:
        """Take a report of a running attempt."""
        curve = self._curves.get(request.number)
        if curve is None:
            curve = self._curves[request.number] = Curve(self._names)
        self.mark += 1
        self._unsent[self.mark] = ReportRow(
            self.mark, request.trial, request.attempt, request.number, report.step, report.metrics, report.time
        )
        for mark in curve.add(self.mark, report):
            if self._unsent.pop(mark, None) is None:
                self._deleted.append(mark)
        if curve.stride > 1 and not self.remark:
            self.remark = (
                f"trial {request.trial} reports more than the ledger keeps of an attempt ({MOST:,} reports of "
                f"{MOST_BYTES >> 20} MiB in all): of its curve, and of others as long, it keeps an even sample"
            )
            if self._names:
                self.remark += f", with the minimum and maximum of {', '.join(sorted(self._names))}"

    def end(self, number: int) -> int:
        """Record the end of an attempt; return the largest step that it has reported, or 0."""
        curve = self._curves.pop(number, None)
        return 0 if curve is None else curve.step

    def batch(self) -> Batch | None:
        """The batch to write next, the same until it is written; None when nothing is left."""
        if self._in_flight is None and (self._unsent or self._deleted):
            rows: list[ReportRow] = []
            size = 0
            for row in self._unsent.values():
                if len(rows) == MAX_BATCH or size > _BATCH_BYTES:
                    break
                rows.append(row)
                size += _size(row.metrics)
            for row in rows:
                del self._unsent[row.mark]
            self._in_flight = Batch(tuple(rows), tuple(self._deleted[:MAX_BATCH]))
            del self._deleted[:MAX_BATCH]
        return self._in_flight

    def written(self) -> None:
        """Record that the batch was written."""
        self._in_flight = None

    def refused(self) -> None:
        """Drop the reports of the batch, which the ledger does not take; its deletions make room."""
        assert self._in_flight is not None
        self._in_flight = Batch((), self._in_flight.deleted) if self._in_flight.reports and self._in_flight.deleted else None

    def resume(self, mark: int) -> None:
        """Continue behind the reports of a former controller; some of its last marks may be of reports it had to drop."""
        self.mark = mark + GAP if mark else 0


def _size(metrics: Collection[str]) -> int:
    """Return about how many bytes metrics of these names take."""
    return sum(len(name) + _VALUE for name in metrics)
