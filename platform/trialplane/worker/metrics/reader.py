"""Follow the output of a program while it runs, and make reports of its metrics.

The slot reads, not the trial, so the program is not slowed down, and its output is read as data only. Each read is bounded,
so that endless output does not block the slot.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from trialplane.job.program import Program
from trialplane.wire.records import StopRule
from trialplane.worker import stopping
from trialplane.worker.metrics import elsewhere
from trialplane.worker.metrics.burst import Burst
from trialplane.worker.metrics.lines import LineMetrics
from trialplane.worker.metrics.steps import Report
from trialplane.worker.metrics.tails import Source, Tail

MOST_NAMES = 500  # metrics that the job does not name; later ones are dropped
MOST_FILES = 50  # files that match a path
INTERVAL = 0.1  # seconds between two reads
LOOK_INTERVAL = 1.0  # seconds between two searches for new files
HOLD = 1.0  # seconds in which a new metric may arrive from a source with precedence
LIVE = 0.05  # seconds for a read while the program runs, which may take little more
END = 10.0  # seconds for the last read, which may take little more
_MAX_ORIGINAL = 64 << 20  # bytes of a file of the job's code
_MAX_SHOWN = 10  # metrics in a message


class Reader:
    """A reader of the metrics of one trial.

    A metric counts from the source in which it appears first. If several have it within `HOLD`, the source that the job
    lists first counts.

    Args:
        program: Program of the slot.
        log: File of the trial's output.
        folder: Folder in which the program runs.
        now: Start of the trial in seconds since the epoch; older files are not read.
        code: Folder that `folder` is a copy of, if it is one; its files are not the trial's.
        stop: Rules that end the trial.

    Attributes:
        log: File of the trial's output.
        remarks: Messages for the user about files that could not be read.
        newest: Newest value of each metric.
        finite: Newest finite value of each metric.
    """

    def __init__(
        self,
        program: Program,
        log: Path,
        folder: Path,
        now: float,
        code: Path | None = None,
        stop: Iterable[StopRule] = (),
    ) -> None:
        self.log = log
        self.newest: dict[str, float] = {}
        self.finite: dict[str, float] = {}
        self.remarks: list[str] = []
        self._names, self._stop = program.names, tuple(stop)
        self._reported: set[str] = set()
        self._owners: dict[str, Source] = {}  # metric → the source from which it counts
        self._folder, self._code = folder, code if program.cwd == "code" else None
        self._began = now
        # Reports with the times at which they are due.
        self._held_reports: collections.deque[tuple[float, Source, Report]] = collections.deque()
        self._held_until: dict[str, float] = {}  # metric → time until which its reports are held
        self._sources = [Source(source, program.names, program.sample or ()) for source in program.metrics]
        read = [source for source in self._sources if source.declaration.source != "mlflow"]
        # Of a command, only the sources can have a metric; a script's process may report it as well.
        self._hold = HOLD if program.script or len(read) > 1 else 0.0
        self._tails: list[Tail] = []
        for source in self._sources:
            if source.declaration.source == "stdout":
                self._tails.append(Tail(log, source, log.stat().st_size if log.exists() else 0))
        self._next_look = -math.inf

    def read(self, now: float, *, ended: bool = False, printed: int | None = None) -> list[Report]:
        """Return the reports since the last read; steps of one file never decrease.

        Args:
            now: Time by the monotonic clock.
            ended: Whether the program has ended, so that this is the last read.
            printed: Size of the program's own output in bytes, if it is known.
        """
        if ended or now >= self._next_look:
            began = time.monotonic()
            self._find_files()
            self._next_look = now + max(LOOK_INTERVAL, 20 * (time.monotonic() - began))
        burst = Burst[Source](self._names, lambda report: bool(stopping.met_rule(self._stop, *report)))
        deadline = time.monotonic() + (END if ended else LIVE)
        for tail in list(self._tails):
            is_idle = True
            try:
                for line_metrics in tail.read(ended, deadline, printed if tail.source.pattern is None else None):
                    is_idle = False
                    self._count_metrics(tail.source, line_metrics, now)
                    for report in tail.steps.add(line_metrics):
                        burst.add(tail.source, report)
            except Exception as error:  # noqa: BLE001  whatever a program writes, it must not end the slot
                self._tails.remove(tail)
                self.remarks.append(f"{tail.file.name} was not read further: {type(error).__name__}: {error}"[:300])
            for report in tail.steps.flush() if ended else tail.steps.flush_idle() if is_idle else ():
                burst.add(tail.source, report)
            if ended and tail.skipped:
                self.remarks.append(self._unread_message(tail))
        return self._due_reports(burst, now, ended)

    def leave_out(self, metrics: Iterable[str]) -> None:
        """Stop reading metrics, as the program reports them itself."""
        self._reported.update(metrics)

    def _due_reports(self, burst: Burst[Source], now: float, ended: bool) -> list[Report]:
        """Return the reports that are due, in order, without metrics that count from another source."""
        for source, (step, metrics) in burst.reports():
            until = max((self._held_until.setdefault(name, now + self._hold) for name in metrics), default=now)
            self._held_reports.append((until, source, (step, metrics)))
        due: list[Report] = []
        while self._held_reports and (ended or self._held_reports[0][0] <= now):
            _, source, (step, metrics) = self._held_reports.popleft()
            if counted := {name: value for name, value in metrics.items() if self._is_counted(name, source)}:
                due.append((step, counted))
        return due

    def _is_counted(self, name: str, source: Source) -> bool:
        """Return whether a metric counts from a source."""
        return name not in self._reported and self._owners.get(name) is source

    def _count_metrics(self, source: Source, line_metrics: LineMetrics, now: float) -> None:
        """Record the metrics of a line that count from this source, and remove the others from the line."""
        for name in list(line_metrics.metrics):
            owner = self._owners.get(name)
            if owner is source and not self._reported:  # the usual case
                continue
            if owner is None and (name in self._names or len(self._owners) < MOST_NAMES):
                self._owners[name] = source
            elif owner is not None and owner is not source and now < self._held_until.get(name, math.inf):
                self._owners[name] = min(owner, source, key=self._sources.index)
            if not self._is_counted(name, source):
                del line_metrics.metrics[name]
        self.newest.update(line_metrics.metrics)
        self.finite.update((name, value) for name, value in line_metrics.metrics.items() if math.isfinite(value))

    def missing_message(self, names: Iterable[str], metrics: Mapping[str, float]) -> str:
        """Return a message for the user about metrics without a finite value in the trial."""
        absent = [name for name in names if name not in metrics]
        sentences = [self._not_finite_message(name, metrics[name]) for name in names if name in metrics]
        if absent:
            where = " or ".join(
                dict.fromkeys(
                    _SOURCE_NAMES[source.declaration.source].format(source.declaration.path) for source in self._sources
                )
            )
            sentences.append(f"no {' or '.join(absent)} in {where or 'its reports'}")
            files_read = {tail.file for tail in self._tails}
            sentences += elsewhere.advice(
                self._folder, absent, lambda file: file not in files_read and self._is_own(file), self._original_content
            )
            sentences += [self._listing(metrics), "see `platform docs scripts`"]
        return "; ".join([*sentences, *self.remarks])

    def _not_finite_message(self, name: str, value: float) -> str:
        """Return a message for the user about a metric whose last value is not finite."""
        kind = "NaN" if math.isnan(value) else "infinite"
        text = f"{name} is {kind} at the end, and must be a finite number"
        return text + (f"; before it was {self.finite[name]:g}" if name in self.finite else "")

    def _listing(self, reported: Mapping[str, float]) -> str:
        """Return a message for the user with the metrics that were found."""
        newest = {**{name: value for name, value in reported.items() if math.isfinite(value)}, **self.newest}
        shown = ", ".join(f"{name} ({value:g})" for name, value in list(newest.items())[:_MAX_SHOWN])
        if not shown:
            return "no metrics were found" + (" in what was read" if self.remarks else "")
        more = len(newest) - _MAX_SHOWN
        shown += f" and {more} more" if more > 0 else ""
        return f"found were {shown}: name one of these, or write metrics.pattern"

    def _unread_message(self, tail: Tail) -> str:
        """Return a message for the user about a file of which a part was not read."""
        name = "its output" if tail.source.pattern is None else tail.file.name
        exception = f" but for the last {' and '.join(self._names)}" if self._names else ""
        return (
            f"{tail.skipped / 2**20:,.1f} MiB of {name} were not searched for metrics{exception}, as there was more than "
            f"{END:g} s can read; print less, or report the metrics with trialplane.report"
        )

    def _find_files(self) -> None:
        """Find new files of the sources, and begin to read them."""
        files_read = {tail.file for tail in self._tails}
        for source in self._sources:
            pattern = source.pattern
            if pattern is None or len(self._tails) >= MOST_FILES:
                continue
            for file in sorted(self._folder.glob(pattern))[:MOST_FILES]:
                # A link could lead to a file that only the slot may read.
                if file not in files_read and file.is_file() and self._is_own(file):
                    self._tails.append(Tail(file, source, 0, self._original_content(file)))
        self._tails.sort(key=lambda tail: self._sources.index(tail.source))

    def _original_content(self, file: Path) -> bytes:
        """Return the content that a file had in the job's code, or b""."""
        with contextlib.suppress(OSError):
            if self._code is not None:
                with (self._code / file.relative_to(self._folder)).open("rb") as stream:
                    return stream.read(_MAX_ORIGINAL)
        return b""

    def _is_own(self, file: Path) -> bool:
        """Return whether the trial has written a file in its folder."""
        with contextlib.suppress(OSError, RuntimeError):  # the file is gone, or a broken link
            return file.resolve().is_relative_to(self._folder.resolve()) and file.stat().st_mtime >= self._began - 1
        return False


_SOURCE_NAMES: Mapping[str, str] = {
    "stdout": "its output",
    "mlflow": "its MLflow calls",
    "file": "{}",
    "tensorboard": "its TensorBoard files",
    "wandb": "its W&B calls",
}
