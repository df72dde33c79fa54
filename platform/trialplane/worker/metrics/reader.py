"""Follow the output and the files of a program while it runs, and make reports of its metrics.

The slot's process reads, not the trial's. So the program is not slowed down, and its output is read as data only. Each read
has a time limit, so endless output does not block the slot. `tails` finds metrics in new parts of each file, `steps` makes
reports of them, and `burst` limits the reports of one read.
"""

from __future__ import annotations

import collections
import contextlib
import math
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane.job import mlflow_names
from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import StopRule
from trialplane.worker import stopping
from trialplane.worker.metrics import elsewhere
from trialplane.worker.metrics.burst import Burst
from trialplane.worker.metrics.names import TRAINING_SETS, LineMetrics, has_data_set, longer_names, same_words
from trialplane.worker.metrics.steps import Report
from trialplane.worker.metrics.tails import CHUNK, Source, Tail

MOST_NAMES = 500  # metrics that the job does not name; later ones are dropped
MOST_FILES = 50  # files that match a path
INTERVAL = 0.1  # seconds between two reads
LOOK_INTERVAL = 1.0  # seconds between two searches for new files
HOLD = 1.0  # seconds for which a new metric waits, because a source with precedence may have it too
LIVE = 0.05  # seconds for a read while the program runs, which may take little more
END = 10.0  # seconds for the last read, which may take little more
_SEARCH_SHARE = 1 / 20  # part of the time that may be spent on searches for new files
_MAX_ORIGINAL = 64 << 20  # bytes of a file of the job's code
_MAX_SHOWN = 10  # metrics in a message


class _HeldReport(NamedTuple):
    """A report that is held, because another source may still turn out to have one of its metrics.

    Attributes:
        until: Time until which it is held, by the monotonic clock.
        source: Source in which it was found.
        step: Step.
        metrics: Metrics by name.
    """

    until: float
    source: Source
    step: int
    metrics: dict[str, float]


class Reader:
    """A reader of the metrics of one trial.

    Each metric is read from one source: the first in which it appears. If it appears in several within `HOLD`, it is read
    from the one that the job lists first.

    Args:
        program: Program of the slot.
        log: File of the trial's output.
        folder: Folder in which the program runs.
        start_time: Start of the trial in seconds since the epoch; files that were last changed before it are not read.
        code: Folder of the job's code. `folder` is a copy of it if the program runs in its code. The content that a file
            has there is not read as the trial's.
        stop: Rules that end the trial.
        params: Parameters of the trial.

    Attributes:
        log: File of the trial's output.
        late_reports: Reports of the last read with metrics that are read only when the program has ended. They come too late
            for a pruner.
        remarks: Messages for the user about files that could not be read.
        newest: Newest value of each metric.
        finite: Newest finite value of each metric.
    """

    def __init__(
        self,
        program: Program,
        log: Path,
        folder: Path,
        start_time: float,
        code: Path | None = None,
        stop: Iterable[StopRule] = (),
        params: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.log = log
        self.newest: dict[str, float] = {}
        self.finite: dict[str, float] = {}
        self.late_reports: list[Report] = []
        self.remarks: list[str] = []
        self._names, self._stop, self._values = program.names, tuple(stop), tuple(params.values())
        self._reported: set[str] = set()  # metrics that the program reports itself, which are not read
        self._owners: dict[str, Source] = {}  # metric → the source from which it is read
        self._event_folders: dict[str, set[Path]] = {}  # metric of event files → the folders of these files
        self._folder, self._code = folder, code if program.cwd == "code" else None
        self._start_time = start_time
        self._held_reports: collections.deque[_HeldReport] = collections.deque()
        self._held_until: dict[str, float] = {}  # metric → time until which its first reports are held
        arguments = program.sample or ()
        self._sources = [Source(declaration, program.names, arguments) for declaration in program.metrics]
        self._late_sources = [Source(declaration, program.names, arguments) for declaration in program.late_metrics]
        file_sources = [source for source in self._sources if source.declaration.source != "mlflow"]
        # A metric can have several sources if the job declares several, or is a script, which may report it itself.
        self._hold = HOLD if program.script or len(file_sources) > 1 else 0.0
        earlier_bytes = log.stat().st_size if log.exists() else 0  # written before the program's start
        self._log_begin = earlier_bytes
        output_sources = [source for source in self._sources if source.declaration.source == "stdout"]
        self._tails = [Tail(file=log, source=source, offset=earlier_bytes) for source in output_sources]
        self._next_look = -math.inf
        self._last_step = 0

    def read(self, now: float, *, ended: bool = False, printed_bytes: int | None = None) -> list[Report]:
        """Read what is new in the log and the files, and return the reports that are no longer held, without `late_reports`.

        A report is held for up to `HOLD` after the first appearance of each of its metrics. The steps of one file never
        decrease.

        Args:
            now: Time by the monotonic clock.
            ended: Whether the program has ended, so that this is the last read and nothing is held.
            printed_bytes: Size of the program's own output; None to read the log to its end.
        """
        if ended or now >= self._next_look:
            began = time.monotonic()
            self._find_files()
            self._next_look = now + max(LOOK_INTERVAL, (time.monotonic() - began) / _SEARCH_SHARE)
        burst = Burst[Source](self._names, lambda report: bool(stopping.met_rule(self._stop, *report)))
        deadline = time.monotonic() + (END if ended else LIVE)
        for tail in self._tails_to_read(ended):
            is_log = tail.source.pattern is None
            size = printed_bytes if is_log else None
            for report in self._tail_reports(tail, now, deadline, ended=ended, size=size):
                burst.add(tail.source, report)
        if ended:
            self.remarks += self._remarks_on_values()
        self._hold_reports(burst, now)
        due = self._take_due_reports(now, ended)
        self._last_step = max([self._last_step, *(report.step for report in [*due, *self.late_reports])])
        if ended:
            self.late_reports += self._take_training_values()
        return due

    def _remarks_on_values(self) -> Iterator[str]:
        """Yield messages for the user about metrics with several values, of which only some count."""
        for name, (first, *others) in self.ambiguous.items():
            shown = f"{', '.join(others[: _MAX_SHOWN - 1])}{', …' if len(others) >= _MAX_SHOWN else ''}"
            yield f"{name} is {first}; to use another value write its whole name in the job: {shown}"
        for source in self._sources:
            for name, held_out_name in source.names.mixed.items():
                if self._is_read_from(name, source):
                    yield _mixed_message(name, held_out_name)
        for source in self._sources:
            for name, (file, value) in source.left_out.items():
                yield (
                    f"{name}: {value:g} at the end of {file} is not read, as its row repeats the last step, which has a "
                    "value already: it may be that of the test data"
                )
        for tail in self._tails:
            for name, restarts in tail.steps.restarts.items():
                if restarts.count and self._is_read_from(name, tail.source):
                    counts = "its last value is that of the last one, and its best report that of any of them"
                    yield f"{name}: {restarts.text}: {counts}"

    def _tails_to_read(self, ended: bool) -> Iterator[Tail]:
        """Yield the reader of each file; at the end also those of late sources, if the others lack a metric of the job."""
        yield from list(self._tails)
        if not ended:
            return
        self._leave_out_ambiguous()
        missing = [name for name in self._names if name not in self._reported and not self._has(name)]
        if not missing or not self._late_sources:
            return
        earlier_sources, earlier_tails = self._sources, list(self._tails)
        self._sources = [*self._sources, *self._late_sources]
        self._find_files()
        late_tails = [tail for tail in self._tails if tail not in earlier_tails]
        yield from late_tails
        self._leave_out_ambiguous()
        self._sources = [*earlier_sources, *dict.fromkeys(tail.source for tail in late_tails)]
        if late_names := [name for name in missing if self._has(name)]:
            reads = ", ".join(source.declaration.source for source in self._late_sources)
            field = elsewhere.with_others(reads, [source.declaration for source in earlier_sources])
            self.remarks.append(
                f"{', '.join(late_names)}: read from {reads} files at the end; write `metrics: {field}`, or submit with "
                f"`--set {shlex.quote(f'metrics={field}')}`, to read it while the trial runs"
            )

    def _leave_out_ambiguous(self) -> None:
        """Leave out the metrics that event files in several folders have: as `runs/train` and `runs/test` have a `loss`.

        The job does not say which of them it means.
        """
        ambiguous = {name: sorted(folders) for name, folders in self._event_folders.items() if len(folders) > 1}
        read_sources = [source.declaration for source in self._sources]
        for name, folders in ambiguous.items():
            for metrics in (self._owners, self.newest, self.finite):
                metrics.pop(name, None)
            del self._event_folders[name]
            if any(same_words(own_name, [name]) for own_name in self._names):
                first, *others = [folder.relative_to(self._folder).as_posix() for folder in folders[:_MAX_SHOWN]]
                field = elsewhere.with_others(f"{{from: tensorboard, path: {first}}}", read_sources)
                self.remarks.append(
                    f"{name} is in the event files of {first} and of {', '.join(others)}: to read one of them write "
                    f"`metrics: {field}`"
                )

    def _has(self, name: str) -> bool:
        """Return whether a metric that the job names has a value, also by another name or of training data."""
        return bool(name in self.newest or same_words(name, self.newest) or self._training_value(name) is not None)

    def _tail_reports(self, tail: Tail, now: float, deadline: float, *, ended: bool, size: int | None) -> Iterator[Report]:
        """Yield the reports that the new part of a file completes. A file with an error is not read again.

        Args:
            tail: Reader of the file.
            now: Time by the monotonic clock.
            deadline: End of the read, by the same clock.
            ended: Whether this is the last read, so that an incomplete report is yielded too.
            size: Bytes of the file that are the program's; None for all.
        """
        is_idle = True
        try:
            for line_metrics in tail.read(ended, deadline, size):
                is_idle = False
                self._assign_owners(tail.source, line_metrics, now)
                if tail.source.declaration.source == "tensorboard":
                    for name in list(line_metrics.metrics):
                        folders = self._event_folders.setdefault(name, set())
                        folders.add(tail.file.parent)
                        if len(folders) > 1:  # left out at the end, see `_leave_out_ambiguous`
                            del line_metrics.metrics[name]
                yield from tail.steps.add(line_metrics)
        except Exception as error:  # noqa: BLE001  whatever a program writes, it must not end the slot
            self._tails.remove(tail)
            self.remarks.append(f"{tail.file.name} was not read further: {type(error).__name__}: {error}"[:300])
        if ended:
            yield from tail.steps.flush()
        elif is_idle:
            yield from tail.steps.flush_idle()
        if ended and tail.skipped:
            self.remarks.append(self._unread_message(tail))

    @property
    def ambiguous(self) -> dict[str, tuple[str, ...]]:
        """Metrics that the job names → their names in nested objects if there are several, of which the first counts."""
        return {
            name: names
            for source in self._sources
            for name, names in source.names.ambiguous.items()
            if self._is_read_from(name, source)
        }

    def leave_out(self, metrics: Iterable[str]) -> None:
        """Stop reading metrics, because the program reports them itself."""
        self._reported.update(metrics)
        for name in metrics:
            self._event_folders.pop(name, None)

    def _take_training_values(self) -> list[Report]:
        """Record values of the training data for metrics that have no other value, and return one report of them, if any.

        `Train Epoch: 3 Loss: 0.5` is `train_loss`. If the job names `loss` and the program has printed no other loss, its
        newest finite `train_loss` counts. Call this only at the end of the program, as a loss of held-out data may follow.
        """
        values = {
            name: value
            for name in self._names
            if name not in self.newest and name not in self._reported and (value := self._training_value(name)) is not None
        }
        self.newest.update(values)
        self.finite.update(values)
        return [Report(self._last_step, values)] if values else []

    def _training_value(self, name: str) -> float | None:
        """Return the newest finite value of a metric of the job on training data; None without one.

        If the job names `train_loss` as well, it is a metric of its own, and not the `loss`. It is not the `loss` either if
        there are others, as `val_loss` and `test_loss`.
        """
        if any(map(has_data_set, longer_names(name, self.finite))):
            return None
        names = {f"{data_set}_{name}".lower() for data_set in TRAINING_SETS} - {name.lower() for name in self._names}
        values = [value for key, value in self.finite.items() if key.lower() in names]
        return values[-1] if values else None

    def _hold_reports(self, burst: Burst[Source], now: float) -> None:
        """Hold each new report until `HOLD` seconds after the first appearance of each of its metrics.

        Another source may still turn out to have the same metric until then.
        """
        for source, report in burst.reports():
            until = max((self._held_until.setdefault(name, now + self._hold) for name in report.metrics), default=now)
            self._held_reports.append(_HeldReport(until, source, report.step, report.metrics))

    def _take_due_reports(self, now: float, ended: bool) -> list[Report]:
        """Return the reports that need not be held any longer, in order, without metrics of other sources.

        Those of late sources are added to `late_reports` instead.
        """
        due: list[Report] = []
        while self._held_reports and (ended or self._held_reports[0].until <= now):
            held = self._held_reports.popleft()
            owned = {name: value for name, value in held.metrics.items() if self._is_read_from(name, held.source)}
            if owned:
                reports = self.late_reports if held.source in self._late_sources else due
                reports.append(Report(held.step, owned))
        return due

    def _is_read_from(self, name: str, source: Source) -> bool:
        """Return whether a metric is read from a source, not from another one or from the program's own reports."""
        return name not in self._reported and self._owners.get(name) is source

    def _assign_owners(self, source: Source, line_metrics: LineMetrics, now: float) -> None:
        """Choose the source from which each metric of a line is read, and record the line's values.

        Metrics that are read from another source than this one are removed from `line_metrics`.
        """
        for name in list(line_metrics.metrics):
            owner = self._owners.get(name)
            if owner is source and not self._reported:  # the usual case, which is fast
                continue
            if owner is None and (name in self._names or len(self._owners) < MOST_NAMES):
                self._owners[name] = source
            # While its first reports are held, a metric may still change to a source that the job lists earlier.
            elif owner is not None and owner is not source and now < self._held_until.get(name, math.inf):
                self._owners[name] = min(owner, source, key=self._sources.index)
                if self._owners[name] is source:
                    self._event_folders.pop(name, None)  # of the former owner's files
            if not self._is_read_from(name, source):
                del line_metrics.metrics[name]
        self.newest.update(line_metrics.metrics)
        self.finite.update((name, value) for name, value in line_metrics.metrics.items() if math.isfinite(value))

    def missing_message(self, names: Iterable[str], metrics: Mapping[str, float]) -> str:
        """Return a message for the user about metrics that have no finite value at the end of the trial.

        Args:
            names: Metrics that are missing or not finite.
            metrics: Last value of each metric of the trial, finite or not.
        """
        absent = [name for name in names if name not in metrics]
        sentences = [self._not_finite_message(name, metrics[name]) for name in names if name in metrics]
        if absent:
            declarations = [source.declaration for source in self._sources]
            # A dict as an ordered set: each source once.
            source_names = dict.fromkeys(_SOURCE_NAMES[source.source].format(source.path) for source in declarations)
            sentences.append(f"no {' or '.join(absent)} in {' or '.join(source_names) or 'its reports'}")
            files_read = {tail.file for tail in self._tails}
            sentences += elsewhere.advice(
                self._folder,
                absent,
                declarations,
                lambda file: file not in files_read and self._is_own(file),
                self._original_content,
                self._values,
            )
            sentences += [self._listing(metrics), "see `platform docs scripts`"]
        return "; ".join([*sentences, *self.remarks])

    def _not_finite_message(self, name: str, value: float) -> str:
        """Return a message for the user about a metric whose last value is not finite, with the last finite value."""
        kind = "NaN" if math.isnan(value) else "infinite"
        text = f"{name} is {kind} at the end, and must be a finite number"
        return text + (f"; before it was {self.finite[name]:g}" if name in self.finite else "")

    def _listing(self, metrics: Mapping[str, float]) -> str:
        """Return a message for the user that lists metrics of the trial, or says that there are none."""
        from trialplane.importing import guess

        newest = {**{name: value for name, value in metrics.items() if math.isfinite(value)}, **self.newest}
        newest = {**{name: value for name, value in self._measures().items() if not same_words(name, newest)}, **newest}
        newest = dict(sorted(newest.items(), key=lambda item: not guess.is_measure(item[0])))  # losses and scores first
        shown = ", ".join(f"{name} ({value:g})" for name, value in list(newest.items())[:_MAX_SHOWN])
        if not shown:
            return "no metrics were found" + (" in what was read" if self.remarks else "")
        more = len(newest) - _MAX_SHOWN
        shown += f" and {more} more" if more > 0 else ""
        return f"found were {shown}: name one of these, or write metrics.pattern"

    def _measures(self) -> dict[str, float]:
        """Return the last finite values of losses and scores at the end of the output in any spelling, as `loss 0.5`.

        Without a sign between them, lines are read only for metrics that the job names.
        """
        from trialplane.importing import guess

        source, values = MetricSource("stdout"), dict[str, float]()
        if all(tail.source.declaration != source for tail in self._tails):
            return {}
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            begin = file.seek(max(self._log_begin, self.log.stat().st_size - CHUNK))
            lines = file.read(CHUNK).decode(errors="replace").splitlines()
            candidates = (name for line in lines for name in guess.candidates(line))
            names = dict.fromkeys(name for name in candidates if len(name) <= mlflow_names.LONGEST)
            tail = Tail(self.log, Source(source, list(names)[:_MAX_SHOWN]), begin)
            for line_metrics in tail.read(ended=True, deadline=math.inf):
                values.update(line_metrics.metrics)
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _unread_message(self, tail: Tail) -> str:
        """Return a message for the user about a file that was read only in part."""
        name = "its output" if tail.source.pattern is None else tail.file.name
        except_for = f" but for the last {' and '.join(self._names)}" if self._names else ""
        return (
            f"{tail.skipped / 2**20:,.1f} MiB of {name} were not searched for metrics{except_for}, as there was more than "
            f"{END:g} s can read; print less, or report the metrics with trialplane.report"
        )

    def _find_files(self) -> None:
        """Find new files of the sources, and make a tail for each. Tails are sorted by the order of their sources."""
        files_read = {tail.file for tail in self._tails}
        for source in self._sources:
            pattern = source.pattern
            if pattern is None or len(self._tails) >= MOST_FILES:
                continue
            for file in sorted(self._folder.glob(pattern))[:MOST_FILES]:
                # A link could lead to a file that only the slot may read.
                if file not in files_read and file.is_file() and self._is_own(file):
                    self._tails.append(Tail(file, source, offset=0, original=self._original_content(file)))
        self._tails.sort(key=lambda tail: self._sources.index(tail.source))

    def _original_content(self, file: Path) -> bytes:
        """Return the content that a file has in the job's code; b"" if the job's code has no such file."""
        with contextlib.suppress(OSError):
            if self._code is not None:
                with (self._code / file.relative_to(self._folder)).open("rb") as stream:
                    return stream.read(_MAX_ORIGINAL)
        return b""

    def _is_own(self, file: Path) -> bool:
        """Return whether a file is in the trial's folder, also through links, and has changed since the trial's start."""
        with contextlib.suppress(OSError, RuntimeError):  # the file was removed, or is a broken link
            clock_tolerance = 1.0  # seconds by which the clock of a file system may be behind
            is_inside = file.resolve().is_relative_to(self._folder.resolve())
            return is_inside and file.stat().st_mtime >= self._start_time - clock_tolerance
        return False


_SOURCE_NAMES: Mapping[str, str] = {
    "stdout": "its output",
    "mlflow": "its MLflow calls",
    "file": "{}",
    "tensorboard": "its TensorBoard files",
    "wandb": "its W&B calls",
}


def _mixed_message(name: str, held_out_name: str) -> str:
    """Return a message for the user about a metric that lines of several kinds have; "" as the name for whole epochs."""
    if not held_out_name:
        return f"{name} is that of whole epochs, except perhaps its first values: lines of batches have it, too"
    return (
        f"{name} is {held_out_name}, except perhaps its first values, as other lines have it, too: name {held_out_name} in "
        "the job, which they lack"
    )
