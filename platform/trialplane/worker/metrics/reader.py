"""Follow the output of a program while it runs, and make reports of it, as `ctx.report` would.

The slot reads, not the trial: the program is not slowed down, and its output is read as data only. Each read is
bounded, so that endless output does not block the slot.
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

MOST_NAMES = 500  # metrics that the job does not name; of more the later ones are dropped
MOST_FILES = 50  # that match a path
INTERVAL = 0.1  # seconds between two reads
LOOK_INTERVAL = 1.0  # seconds between two looks for new files
HOLD = 1.0  # seconds in which a new metric may still arrive from a source that counts before
LIVE = 0.05  # seconds that a read takes while the program runs, or little more
END = 10.0  # seconds that the last read takes, or little more
_CAME_WITH = 64 << 20  # bytes of a file that came with the code
_MOST_SHOWN = 10  # metrics in a message


class Reader:
    """The metrics of one trial.

    A metric counts by the source that brings it first; of those that bring it within a moment, by the one that the job lists
    first.

    Args:
        program: of the slot.
        log: file of the trial's output.
        folder: in which the program runs.
        now: seconds since the epoch when the trial began: files that were there before are not its own.
        code: the folder that `folder` is a copy of, if it is one; its files are not the trial's.
        stop: rules that end the trial.

    Attributes:
        log: as given.
        remarks: messages for the user about files that could not be read.
        newest: the newest value of each metric.
        finite: the newest one that is finite.
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
        self._owners: dict[str, Source] = {}  # metric → the source by which it counts
        self._folder, self._code = folder, code if program.cwd == "code" else None
        self._began = now
        self._held: collections.deque[tuple[float, Source, Report]] = collections.deque()  # with when each is due
        self._young: dict[str, float] = {}  # metric → until when its reports are held
        self._sources = [Source(source, program.names, program.sample or ()) for source in program.metrics]
        read = [source for source in self._sources if source.of.source != "mlflow"]
        # A command's own process cannot report.
        self._hold = HOLD if program.script or len(read) > 1 else 0.0
        self._tails: list[Tail] = []
        for source in self._sources:
            if source.of.source == "stdout":
                self._tails.append(Tail(log, source, log.stat().st_size if log.exists() else 0))
        self._look_at = -math.inf

    def read(self, now: float, *, ended: bool = False, printed: int | None = None) -> list[Report]:
        """Return the reports since the last read; steps of one file never decrease.

        Args:
            now: seconds, of the monotonic clock.
            ended: whether the program has ended, and nothing more will come.
            printed: bytes of its output that are its own, where that is known.
        """
        if ended or now >= self._look_at:
            began = time.monotonic()
            self._look()
            self._look_at = now + max(LOOK_INTERVAL, 20 * (time.monotonic() - began))
        burst = Burst[Source](self._names, lambda report: bool(stopping.early(self._stop, *report)))
        deadline = time.monotonic() + (END if ended else LIVE)
        for tail in list(self._tails):
            is_idle = True
            try:
                for line_metrics in tail.read(ended, deadline, printed if tail.source.pattern is None else None):
                    is_idle = False
                    self._take(tail.source, line_metrics, now)
                    for report in tail.steps.add(line_metrics):
                        burst.add(tail.source, report)
            except Exception as error:  # noqa: BLE001  whatever a program writes, it must not end the slot
                self._tails.remove(tail)
                self.remarks.append(f"{tail.file.name} was not read further: {type(error).__name__}: {error}"[:300])
            for report in tail.steps.flush() if ended else tail.steps.rest() if is_idle else ():
                burst.add(tail.source, report)
            if ended and tail.skipped:
                self.remarks.append(self._unread(tail))
        return self._due(burst, now, ended)

    def leave_out(self, metrics: Iterable[str]) -> None:
        """Stop reading these metrics, and drop their newest values: the program reports them itself."""
        self._reported.update(metrics)

    def _due(self, burst: Burst[Source], now: float, ended: bool) -> list[Report]:
        """Return the reports that are due, in order, without the metrics that count by another source."""
        for source, (step, metrics) in burst.reports():
            until = max((self._young.setdefault(name, now + self._hold) for name in metrics), default=now)
            self._held.append((until, source, (step, metrics)))
        due: list[Report] = []
        while self._held and (ended or self._held[0][0] <= now):
            _, source, (step, metrics) = self._held.popleft()
            if counted := {name: value for name, value in metrics.items() if self._counts(name, source)}:
                due.append((step, counted))
        return due

    def _counts(self, name: str, source: Source) -> bool:
        return name not in self._reported and self._owners.get(name) is source

    def _take(self, source: Source, line_metrics: LineMetrics, now: float) -> None:
        """Take the metrics of a line that count by this source, and drop the others from it."""
        for name in list(line_metrics.metrics):
            owner = self._owners.get(name)
            if owner is source and not self._reported:  # as nearly always
                continue
            if owner is None and (name in self._names or len(self._owners) < MOST_NAMES):
                self._owners[name] = source
            elif owner is not None and owner is not source and now < self._young.get(name, math.inf):
                self._owners[name] = min(owner, source, key=self._sources.index)
            if not self._counts(name, source):
                del line_metrics.metrics[name]
        self.newest.update(line_metrics.metrics)
        self.finite.update((name, value) for name, value in line_metrics.metrics.items() if math.isfinite(value))

    def missing(self, names: Iterable[str], metrics: Mapping[str, float]) -> str:
        """Return a message for the user about metrics without a finite value in the trial."""
        absent = [name for name in names if name not in metrics]
        sentences = [self._undefined(name, metrics[name]) for name in names if name in metrics]
        if absent:
            where = " or ".join(dict.fromkeys(_WHERE[source.of.source].format(source.of.path) for source in self._sources))
            sentences.append(f"no {' or '.join(absent)} in {where or 'its reports'}")
            files_read = {tail.file for tail in self._tails}
            sentences += elsewhere.advice(
                self._folder, absent, lambda file: file not in files_read and self._is_own(file), self._came_with
            )
            sentences += [self._listing(metrics), "see `platform docs scripts`"]
        return "; ".join([*sentences, *self.remarks])

    def _undefined(self, name: str, value: float) -> str:
        kind = "NaN" if math.isnan(value) else "infinite"
        text = f"{name} is {kind} at the end, and must be a finite number"
        return text + (f"; before it was {self.finite[name]:g}" if name in self.finite else "")

    def _listing(self, reported: Mapping[str, float]) -> str:
        newest = {**{name: value for name, value in reported.items() if math.isfinite(value)}, **self.newest}
        shown = ", ".join(f"{name} ({value:g})" for name, value in list(newest.items())[:_MOST_SHOWN])
        if not shown:
            return "no metrics were found" + (" in what was read" if self.remarks else "")
        more = len(newest) - _MOST_SHOWN
        shown += f" and {more} more" if more > 0 else ""
        return f"found were {shown}: name one of these, or write metrics.pattern"

    def _unread(self, tail: Tail) -> str:
        """Return a message for the user about a file that was not read whole."""
        name = "its output" if tail.source.pattern is None else tail.file.name
        exception = f" but for the last {' and '.join(self._names)}" if self._names else ""
        return (
            f"{tail.skipped / 2**20:,.1f} MiB of {name} were not searched for metrics{exception}, as there was more than "
            f"{END:g} s can read; print less, or report the metrics with trialplane.report"
        )

    def _look(self) -> None:
        """Find new files of the sources."""
        files_read = {tail.file for tail in self._tails}
        for source in self._sources:
            pattern = source.pattern
            if pattern is None or len(self._tails) >= MOST_FILES:
                continue
            for file in sorted(self._folder.glob(pattern))[:MOST_FILES]:
                # A link could lead anywhere, also to what only the slot may read.
                if file not in files_read and file.is_file() and self._is_own(file):
                    self._tails.append(Tail(file, source, 0, self._came_with(file)))
        self._tails.sort(key=lambda tail: self._sources.index(tail.source))

    def _came_with(self, file: Path) -> bytes:
        """Return the content of a file as it came with the code."""
        with contextlib.suppress(OSError):
            if self._code is not None:
                with (self._code / file.relative_to(self._folder)).open("rb") as stream:
                    return stream.read(_CAME_WITH)
        return b""

    def _is_own(self, file: Path) -> bool:
        with contextlib.suppress(OSError, RuntimeError):  # it is gone, or a link to nothing or to itself
            return file.resolve().is_relative_to(self._folder.resolve()) and file.stat().st_mtime >= self._began - 1
        return False


_WHERE: Mapping[str, str] = {
    "stdout": "its output",
    "mlflow": "its MLflow calls",
    "file": "{}",
    "tensorboard": "its TensorBoard files",
    "wandb": "its W&B calls",
}
