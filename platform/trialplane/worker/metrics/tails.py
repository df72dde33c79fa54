"""Follow the files of a metric source as they grow, and find the metrics in their new parts."""

from __future__ import annotations

import csv
import math
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Protocol

from trialplane.job.program import MetricSource
from trialplane.worker.metrics import events, lines, passages
from trialplane.worker.metrics.lines import LineMetrics
from trialplane.worker.metrics.steps import Steps

CHUNK = 64 << 10  # bytes that are read at once
LAST = 4 << 20  # bytes at the end of a text that are read whatever time that takes
_BLOCK = 1 << 20  # bytes that are searched at once, backward
_SEARCH = 10.0  # seconds for that
_LONGEST_ROW = 1 << 20  # bytes
_MOST_LINES = 200_000  # of a file that are remembered, by which one that is written anew is recognized
_BEFORE = 64  # bytes before the offset in a file, by which the same file is recognized

_RANK = re.compile(r"\[rank (\d+)\] ")
_LINE_END = re.compile(rb"[\r\n]")


class Source:
    """A source of the job: how its files are found and read.

    Attributes:
        of: as the job has it.
        names: what the names in it stand for.
        parse: finds the metrics of a line of text.
        pattern: of its files; None for the trial's output.
    """

    def __init__(self, of: MetricSource, requested: Collection[str], arguments: Collection[str] = ()) -> None:
        """Create a source.

        Args:
            of: the source as the job has it.
            requested: metrics that the job names.
            arguments: of the program.
        """
        self.of = of
        self.names = lines.Names(requested, of.step)
        self.parse = lines.parser(of.pattern, self.names, arguments)
        prefix = of.path.rstrip("/") + "/" if of.path else ""
        patterns = {"file": of.path, "wandb": of.path, "tensorboard": f"{prefix}**/*tfevents*"}
        self.pattern = patterns.get(of.source)


class Decoder(Protocol):
    """Find metrics in the new bytes of a file."""

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the metrics of complete lines or records; of the rest as well once the program has ended."""


class Tail:
    """The new parts of one file.

    Args:
        file: to be read.
        source: of the job.
        offset: bytes of it that are not read.
        before: its content before the trial; lines at its beginning that are still the same are left out.

    Attributes:
        steps: makes reports of what it holds.
        skipped: bytes that were not read, as the program wrote more than could be.
    """

    def __init__(self, file: Path, source: Source, offset: int, before: bytes = b"") -> None:
        self.file = file
        self.source = source
        self.steps = Steps(source.names.requested.values())
        self.skipped = 0
        self._offset = offset
        self._before = b""  # the last bytes that were read
        # Of a file that a program writes anew at each step, the lines that were read already; for text alone.
        self._line_hashes = [hash(line) for line in before.split(b"\n")[:_MOST_LINES]]
        self._line = 0  # the number of the next line
        self._decoder = self._new_decoder()

    def _new_decoder(self) -> Decoder:
        if self.source.of.source == "tensorboard":
            return events.TensorBoard(self.source.names)
        if not self.source.of.pattern and (delimiter := {".csv": ",", ".tsv": "\t"}.get(self.file.suffix)):
            return _Text(_Table(delimiter, self.source), self._is_read, _LONGEST_ROW)
        return _Text(_Lines(self.source), self._is_read, CHUNK)

    def read(self, ended: bool, deadline: float, size: int | None = None) -> Iterator[LineMetrics]:
        """Yield the metrics of its next part; of the rest once the program has ended.

        Args:
            ended: whether it has.
            deadline: by the monotonic clock. A program that has ended gets no other read: then the end of a text is read as
                well, and before that what the job names is searched for.
            size: of the file, where what stands behind that is not the program's.
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
                self._offset, self._before, self._line, self._decoder = 0, b"", 0, self._new_decoder()
            size = status.st_size if size is None else min(size, status.st_size)
            yield from self._up_to(size, file, deadline)
            if ended and self._offset < size:
                yield from self._end(size, file)
        if ended:
            yield from self._decoder.read(b"", True)

    def _up_to(self, size: int, file: IO[bytes], deadline: float) -> Iterator[LineMetrics]:
        file.seek(self._offset)
        while time.monotonic() < deadline and (data := file.read(max(0, min(CHUNK, size - self._offset)))):
            self._offset += len(data)
            self._before = (self._before + data)[-_BEFORE:]
            yield from self._decoder.read(data, False)

    def _end(self, size: int, file: IO[bytes]) -> Iterator[LineMetrics]:
        """Yield the metrics of the end of an unread part, and those before it that the job names and the end lacks."""
        if not isinstance(self._decoder, _Text):  # its records cannot be told apart from the middle
            self.skipped += size - self._offset
            return
        begin, self._offset = self._offset - self._decoder.drop(), max(self._offset, size - LAST)
        file.seek(self._offset)
        while self._offset < size and (data := file.read(CHUNK)):  # to the end of a line, as half a name is another one
            if match := _LINE_END.search(data):
                self._offset += match.end()
                break
            self._offset += len(data)
        end, self._line_hashes, self._line = self._offset, [], _MOST_LINES
        last = list(self._up_to(size, file, math.inf))
        missing = set(self.source.names.requested.values()).difference(*(line_metrics.metrics for line_metrics in last))
        earlier = list(self._backward(file, begin, end, missing))
        self.skipped += end - begin
        yield from reversed(earlier)
        yield from last

    def _backward(self, file: IO[bytes], begin: int, end: int, names: set[str]) -> Iterator[LineMetrics]:
        """Yield the last lines of a part of the file that hold these metrics, from its end."""
        assert isinstance(self._decoder, _Text)
        deadline = time.monotonic() + _SEARCH
        words = dict.fromkeys(names, b"")
        if self._decoder.has_names:  # each line that has the metric has its longest word
            words = {name: max(re.split(r"[\W_]+", name.lower()), key=len).encode() for name in names}
        rest = b""
        while names and end > begin:
            start = max(begin, end - _BLOCK)
            file.seek(start)
            first, *whole = (file.read(end - start) + rest).split(b"\n")
            end, rest = start, first[:CHUNK]
            for line in reversed(whole if start > begin else [first, *whole]):
                lower = line.lower()
                if not any(words[name] in lower for name in names):
                    continue
                if time.monotonic() > deadline:
                    return
                result = self._decoder.parse(line)
                if result is not None and (matched := names & result.metrics.keys()):
                    names -= matched
                    yield result._replace(metrics={name: result.metrics[name] for name in matched})

    def _is_new(self, descriptor: int, size: int) -> bool:
        """Whether the file was written anew since the last read."""
        if size < self._offset:
            return True
        return os.pread(descriptor, len(self._before), self._offset - len(self._before)) != self._before

    def _is_read(self, line: bytes) -> bool:
        """Whether the next line was read before the file was written anew; every whole line of a text is asked for once."""
        if self.source.of.source == "stdout" or self._line >= _MOST_LINES:
            return False
        number, key = self._line, hash(line)
        self._line += 1
        if number < len(self._line_hashes):
            if self._line_hashes[number] == key:
                return True
            del self._line_hashes[number:]
        self._line_hashes.append(key)
        return False


class _Line(Protocol):
    """Find the metrics of one line of a text.

    Attributes:
        has_names: whether a line has the names of its metrics.
    """

    has_names: bool

    def next(self, line: bytes, *, whole: bool, is_read: bool) -> LineMetrics | None:
        """Return the metrics of the next line; a line that is not whole comes again.

        Args:
            line: without its end.
            whole: whether it is.
            is_read: whether it was read before its file was written anew.
        """

    def parse(self, line: bytes) -> LineMetrics | None:
        """Return the metrics of any line."""


class _Text:
    """The lines of a text."""

    def __init__(self, line: _Line, is_read: Callable[[bytes], bool], longest: int) -> None:
        """Create a decoder.

        Args:
            line: finds the metrics of a line.
            is_read: whether a line was read before.
            longest: bytes of a line that are kept.
        """
        self._of_line, self._is_read, self._longest = line, is_read, longest
        self.has_names = line.has_names
        self._rest = b""
        self._names_steps = False  # whether any line has named one

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """See `Decoder`."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        drawn: list[bytes] = []
        if ended and self._rest:
            whole.append(self._rest)
            self._rest = b""
        elif len(self._rest) > self._longest:  # still longer than that, so that its beginning is known to be missing
            self._rest = self._rest[-self._longest - 1 :]
        elif b"\r" in self._rest and not ended:
            # A progress bar: what it shows now counts, once for each read.
            shown, _, self._rest = self._rest.rpartition(b"\r")
            drawn.append(shown)
        for line in whole:
            result = self._of_line.next(line, whole=True, is_read=self._is_read(line))
            if result is not None and (result.metrics or result.step is not None):
                self._names_steps |= result.step is not None
                yield result
        for line in drawn:
            result = self._of_line.next(line, whole=False, is_read=False)
            # Below `Epoch 1/3` its end is what belongs to the step: how often it is read before is a matter of time.
            if result is not None and (result.step is not None or (result.metrics and not self._names_steps)):
                self._names_steps |= result.step is not None
                yield result

    def parse(self, line: bytes) -> LineMetrics | None:
        """Return the metrics of any whole line."""
        return self._of_line.parse(line)

    def drop(self) -> int:
        """Drop the line that is not whole yet; return its size in bytes."""
        size, self._rest = len(self._rest), b""
        return size


class _Lines:
    """Lines as a program prints them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.has_names = not source.of.pattern  # an expression of the job's need not look for a name
        self._passages = passages.Passages(has_dumps=not source.of.pattern)

    def next(self, line: bytes, *, whole: bool, is_read: bool) -> LineMetrics | None:
        """See `_Line`."""
        text = _shown(line)
        if text is None:
            return None
        text, only_named = self._passages.of(text) if whole else (text, False)
        if is_read or not text:
            return None
        result = self._source.parse(text)
        return self._source.names.named(result) if only_named else result

    def parse(self, line: bytes) -> LineMetrics | None:
        """See `_Line`."""
        text = _shown(line)
        return None if text is None else self._source.parse(text)


def _shown(line: bytes) -> str | None:
    """The text of a line, of a bar that was drawn over and over its last state; None if another rank than 0 prints it."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    rank = _RANK.match(text)
    return text if rank is None else text[rank.end() :] if rank[1] == "0" else None


class _Table:
    """The rows of a file with a header, as loggers write it."""

    def __init__(self, delimiter: str, source: Source) -> None:
        self._delimiter = delimiter
        self._source = source
        self._header: list[str] = []
        self.has_names = False

    def next(self, line: bytes, *, whole: bool, is_read: bool) -> LineMetrics | None:
        """See `_Line`."""
        if not self._header:
            self._header = self._row(line)
            return None
        return None if is_read or not whole else self.parse(line)

    def parse(self, line: bytes) -> LineMetrics | None:
        """See `_Line`."""
        cells = ((name, lines.number(value)) for name, value in zip(self._header, self._row(line), strict=False))
        return self._source.names.read({name: value for name, value in cells if value is not None})

    def _row(self, line: bytes) -> list[str]:
        """The fields of a line; none of one that is too long, which may lack its beginning, or has a field that is."""
        if len(line) > _LONGEST_ROW:
            return []
        try:
            text = line.decode("utf-8-sig" if not self._header else "utf-8", errors="replace")
            return next(csv.reader([text.rstrip("\r")], delimiter=self._delimiter), [])
        except csv.Error:
            return []
