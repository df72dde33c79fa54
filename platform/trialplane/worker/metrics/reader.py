"""Follows what a program writes while it runs, and makes reports of it, as `ctx.report` would.

The slot reads, not the trial: the program is not slowed down, and what it writes is taken as data only. Each read is
bounded, so that a program that writes without an end holds nothing up.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import math
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from trialplane.spec.program import MetricSource, Program
from trialplane.wire import records
from trialplane.worker.metrics import events, lines
from trialplane.worker.metrics.lines import Found

CHUNK = 64 << 10  # bytes that are read at once
MOST = 2_000  # reports of one read; of more, these are spread evenly, the last one among them
MOST_NAMES = 500  # metrics with different names; of more the later ones are dropped
_LONGEST_ROW = 1 << 20  # bytes
MOST_FILES = 50  # that match a path
INTERVAL = 0.1  # seconds between two reads
LOOK_INTERVAL = 1.0  # seconds between two looks for new files
HOLD = 1.0  # seconds for a script to report by itself a metric that it has just printed for the first time
LIVE = 0.05  # seconds that a read takes while the program runs, or little more
_LAST = 4 << 20  # bytes of text that are read after the end of the program; of more, the end
_LAST_OF_LOGGERS = 64 << 20  # the same of a logger's file, whose records cannot be told apart from the middle
_MOST_LINES = 200_000  # of a file that are remembered, by which one that is written anew is recognized
_BEFORE = 64  # bytes before the place in a file that tell the same

_OTHER_RANK = re.compile(r"\[rank [1-9]\d*\] ")
Report = tuple[int, dict[str, float]]


class Reader:
    """The metrics of one trial.

    Args:
        program: of the slot.
        log: file of the trial's output.
        folder: in which the program runs.
        now: seconds since the epoch when the trial began: files that were there before are not its own.
        code: what `folder` is a copy of, if the program runs in one; what came with it is not the trial's.

    Attributes:
        remarks: what could not be read, for the user.
        newest: the newest value of each metric.
        finite: the newest one that is finite.
    """

    def __init__(self, program: Program, log: Path, folder: Path, now: float, code: Path | None = None) -> None:
        self.newest: dict[str, float] = {}
        self.finite: dict[str, float] = {}
        self.remarks: list[str] = []
        self._reported: set[str] = set()
        self._folder, self._code = folder, code if program.cwd == "code" else None
        self._began = now
        self._held: collections.deque[tuple[float, Report]] = collections.deque()  # with when each is due
        self._young: dict[str, float] = {}  # metric → until when its reports are held
        self._hold = HOLD if program.script else 0.0  # a command's own process cannot report
        self._sources = [_Source(source, program.names) for source in program.metrics]
        self._tails: list[_Tail] = []
        for source in self._sources:
            if source.of.source == "stdout":
                self._tails.append(_Tail(log, source, log.stat().st_size if log.exists() else 0))
        self._steps = _Steps(program.names)
        self._look_at = -math.inf

    def read(self, now: float, *, ended: bool = False) -> list[Report]:
        """The reports since the last read, with steps that do not fall.

        Args:
            now: seconds, of the monotonic clock.
            ended: whether the program has ended, and nothing more will come.
        """
        if ended or now >= self._look_at:
            began = time.monotonic()
            self._look()
            self._look_at = now + max(LOOK_INTERVAL, 20 * (time.monotonic() - began))
        made: list[Report] = []
        is_idle = True
        deadline = math.inf if ended else time.monotonic() + LIVE
        for tail in list(self._tails):
            try:
                for found in tail.read(ended, deadline):
                    is_idle = False
                    for name in self._reported & found.metrics.keys():
                        del found.metrics[name]
                    self._take(found)
                    made += self._steps.add(found)
            except Exception as error:  # noqa: BLE001  whatever a program writes, it must not end the slot
                self._tails.remove(tail)
                self.remarks.append(f"{tail.file.name} was not read further: {type(error).__name__}: {error}"[:300])
        if ended:
            made += self._steps.flush()
        elif is_idle:
            made += self._steps.rest()
        if len(made) > MOST:
            made = [made[len(made) * (index + 1) // MOST - 1] for index in range(MOST)]
        return self._due(made, now, ended)

    def leave_out(self, metrics: Iterable[str]) -> None:
        """Reads these metrics no more, and drops what was just read of them: the program reports them itself."""
        self._reported.update(metrics)

    def _due(self, made: list[Report], now: float, ended: bool) -> list[Report]:
        """The reports that are due, in order, without the metrics that the program has come to report itself."""
        for step, metrics in made:
            until = max((self._young.setdefault(name, now + self._hold) for name in metrics), default=now)
            self._held.append((until, (step, metrics)))
        due: list[Report] = []
        while self._held and (ended or self._held[0][0] <= now):
            step, metrics = self._held.popleft()[1]
            if counted := {name: value for name, value in metrics.items() if name not in self._reported}:
                due.append((step, counted))
        return due

    def missing(self, names: tuple[str, ...]) -> str:
        """What to tell the user when metrics of these names are missing."""
        where = " or ".join(dict.fromkeys(_WHERE[source.of.source].format(source.of.path) for source in self._sources))
        shown = ", ".join(f"{name} ({value:g})" for name, value in list(self.newest.items())[:20])
        found = f"found were {shown}: name one of these, or write metrics.pattern" if shown else "no metrics were found"
        return "; ".join([f"no {' or '.join(names)} in {where or 'its reports'}", found, *self.remarks])

    def _take(self, found: Found) -> None:
        for name in [name for name in found.metrics if name not in self.newest]:
            if len(self.newest) >= MOST_NAMES:
                del found.metrics[name]
        self.newest.update(found.metrics)
        self.finite.update((name, value) for name, value in found.metrics.items() if math.isfinite(value))

    def _look(self) -> None:
        """Finds the files of sources that have appeared."""
        known = {tail.file for tail in self._tails}
        for source in self._sources:
            pattern = source.pattern
            if pattern is None or len(self._tails) >= MOST_FILES:
                continue
            for file in sorted(self._folder.glob(pattern))[:MOST_FILES]:
                # A link could lead anywhere, also to what only the slot may read.
                if file not in known and file.is_file() and self._is_own(file):
                    self._tails.append(_Tail(file, source, 0, self._came_with(file)))

    def _came_with(self, file: Path) -> bytes:
        """What a file held when it came with the code."""
        with contextlib.suppress(OSError):
            if self._code is not None:
                with (self._code / file.relative_to(self._folder)).open("rb") as stream:
                    return stream.read(_LAST_OF_LOGGERS)
        return b""

    def _is_own(self, file: Path) -> bool:
        resolved = file.resolve()
        return resolved.is_relative_to(self._folder.resolve()) and file.stat().st_mtime >= self._began - 1


_WHERE: Mapping[str, str] = {
    "stdout": "its output",
    "mlflow": "its MLflow calls",
    "file": "{}",
    "tensorboard": "its TensorBoard files",
    "wandb": "its W&B files",
}


class _Source:
    """A source of the job, with how its files are found and read."""

    def __init__(self, of: MetricSource, names: tuple[str, ...]) -> None:
        self.of = of
        self.names = lines.Names(names, of.step)
        self.parse = lines.parser(of.pattern, self.names)
        self.pattern: str | None = None
        if of.source == "file":
            self.pattern = of.path
        elif of.source == "tensorboard":
            self.pattern = f"{of.path.rstrip('/') + '/' if of.path else ''}**/*tfevents*"
        elif of.source == "wandb":
            self.pattern = f"{of.path.rstrip('/') + '/' if of.path else ''}**/*.wandb"


class _Tail:
    """The new parts of one file.

    Args:
        file: to be read.
        source: of the job.
        offset: bytes of it that are not read.
        before: what it held before the trial; lines with which it begins still are left out.
    """

    def __init__(self, file: Path, source: _Source, offset: int, before: bytes = b"") -> None:
        self.file = file
        self._source = source
        self._offset = offset
        self._before = b""  # the last bytes that were read
        self._rest = b""
        # Of a file that a program writes anew at each step, the lines that were read already; for text alone.
        self._seen = [hash(line) for line in before.split(b"\n")[:_MOST_LINES]]
        self._line = 0  # the number of the next line
        self._names_steps = False  # whether any line has named one
        self._decode = self._decoder()

    def _decoder(self) -> Callable[[bytes, bool], Iterator[Found]]:
        source, suffix = self._source, self.file.suffix
        if source.of.source == "tensorboard":
            return events.TensorBoard(source.names).read
        if source.of.source == "wandb":
            return events.Wandb(source.names).read
        if suffix in (".csv", ".tsv") and not source.of.pattern:
            return _Table("\t" if suffix == ".tsv" else ",", source, self.is_read).read
        return self._of_text

    def read(self, ended: bool, deadline: float) -> Iterator[Found]:
        """What the next part of it holds; the rest once the program has ended.

        Args:
            ended: whether it has.
            deadline: by the monotonic clock, after which no more is read.
        """
        try:
            # Opened as it is now: it may have been replaced by a link, or by a pipe that nobody writes to.
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # gone, or closed to us
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            if self._is_new(descriptor, status.st_size):
                self._offset, self._before, self._rest, self._line, self._decode = 0, b"", b"", 0, self._decoder()
            most = _LAST if self._source.of.source in ("stdout", "file") else _LAST_OF_LOGGERS
            if ended and status.st_size - self._offset > most:
                self._offset, self._rest, self._seen, self._line = status.st_size - most, b"", [], _MOST_LINES
            file.seek(self._offset)
            while time.monotonic() < deadline and (data := file.read(CHUNK)):
                self._offset += len(data)
                self._before = (self._before + data)[-_BEFORE:]
                yield from self._decode(data, False)
        if ended:
            yield from self._decode(b"", True)

    def _is_new(self, descriptor: int, size: int) -> bool:
        """Whether the file was written anew since the last read."""
        if size < self._offset:
            return True
        return os.pread(descriptor, len(self._before), self._offset - len(self._before)) != self._before

    def is_read(self, line: bytes) -> bool:
        """Whether the next line was read before the file was written anew; every whole line of a text is asked for once."""
        if self._source.of.source == "stdout" or self._line >= _MOST_LINES:
            return False
        number, key = self._line, hash(line)
        self._line += 1
        if number < len(self._seen):
            if self._seen[number] == key:
                return True
            del self._seen[number:]
        self._seen.append(key)
        return False

    def _of_text(self, data: bytes, ended: bool) -> Iterator[Found]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        unfinished = len(whole)  # index of a line that is still drawn
        if ended and self._rest:
            whole.append(self._rest)
            self._rest = b""
        elif len(self._rest) > CHUNK:
            self._rest = self._rest[-lines.LONGEST_LINE :]
        elif b"\r" in self._rest and not ended:
            # A progress bar: what it shows now counts, once for each read.
            shown, _, self._rest = self._rest.rpartition(b"\r")
            whole.append(shown)
        for index, line in enumerate(whole):
            if self.is_read(line):
                continue
            # Of a bar that was drawn over and over the last state counts.
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            if _OTHER_RANK.match(text):  # reports are those of rank 0
                continue
            found = self._source.parse(text)
            # Below `Epoch 1/3` its end is what belongs to the step: how often it is read before is a matter of time.
            if index == unfinished and not ended and found.step is None and self._names_steps:
                continue
            self._names_steps |= found.step is not None
            if found.metrics or found.step is not None:
                yield found


class _Table:
    """The rows of a file with a header, as loggers write it."""

    def __init__(self, delimiter: str, source: _Source, is_read: Callable[[bytes], bool]) -> None:
        self._is_read = is_read
        self._delimiter = delimiter
        self._source = source
        self._header: list[str] = []
        self._rest = b""

    def read(self, data: bytes, ended: bool) -> Iterator[Found]:
        """The rows that have become whole."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if ended and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        elif len(self._rest) > _LONGEST_ROW:
            self._rest = b""
        for line in whole:
            is_read = self._is_read(line)
            try:
                row = next(csv.reader([line.decode(errors="replace").rstrip("\r")], delimiter=self._delimiter), [])
            except csv.Error:  # a field that is too long, or not one row
                continue
            if not row:
                continue
            if not self._header:
                self._header = row
                continue
            if is_read:
                continue
            read = ((name, lines.number(value)) for name, value in zip(self._header, row, strict=False))
            values = {name: value for name, value in read if value is not None}
            yield self._source.names.found(values)


class _Steps:
    """Puts what is found into reports, whose steps do not fall.

    What follows a line with a step belongs to that step, and so does what stands in lines after each other, until a metric
    comes again. Steps that begin anew in each epoch go on behind those before (`lines.Epochs`); others that do not grow are
    counted on. Where many lines name one step, as those of the batches of an epoch, the last
    counts for metrics that the job does not name: otherwise what is printed at the end of the epoch would have as its step
    the number of lines. Whether lines do that is known once the first step is over; its report waits for that.

    Args:
        wanted: metrics that the job names.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = frozenset(wanted)
        self._repeats = False  # whether lines that name one step have repeated a metric
        self._metrics: dict[str, float] = {}  # of the report that is being collected
        self._named: int | None = None  # its step, as the program names it, those of former epochs added
        self._is_first = True  # whether no second step has been named yet
        self._epochs = lines.Epochs()
        self._last = -1  # the step of the newest report
        self._last_named: int | None = None
        self._at_last: set[str] = set()  # names of the metrics that were reported for that step

    def add(self, found: Found) -> list[Report]:
        """Takes what a line holds; returns the report that is complete by it, if one is."""
        step = self._epochs.step(found)
        is_next = step is not None and step != self._named
        self._is_first = self._is_first and not (is_next and self._named is not None)
        if step is not None and not is_next:
            self._repeats |= not found.metrics.keys().isdisjoint(self._metrics.keys() | self._at_last)
        again = self._metrics.keys() & found.metrics.keys()
        if step is not None and again.isdisjoint(self._wanted):
            again = set()
        made = self.flush() if is_next or again else []
        if step is not None:
            self._named = step
        self._metrics.update(found.metrics)
        return made

    def rest(self) -> list[Report]:
        """The report that was being collected, where nothing more is there now, unless lines of its step may replace it."""
        is_wanted = not self._metrics.keys().isdisjoint(self._wanted)
        may_repeat = self._named is not None and (self._repeats or self._is_first)
        return self.flush() if is_wanted or not may_repeat else []

    def flush(self) -> list[Report]:
        """The report that was being collected."""
        if not self._metrics:
            return []
        metrics, self._metrics = self._metrics, {}
        if self._repeats and self._named == self._last:  # reported before it was known that the step's lines repeat them
            known = self._at_last - self._wanted
            metrics = {name: value for name, value in metrics.items() if name not in known}
            if not metrics:
                return []
        if self._named is not None and self._named > self._last:
            step = self._named
        elif self._last >= 0 and self._named in (self._last_named, self._last) and self._at_last.isdisjoint(metrics):
            step = self._last  # more of the same
        else:
            step = self._last + 1
        step = min(step, records.STEPS - 1)
        self._at_last = {*(self._at_last if step == self._last else ()), *metrics}
        self._last, self._last_named = step, self._named
        return [(step, metrics)]
