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
LAST = 4 << 20  # bytes at the end of a text that are read without a time limit
_BLOCK = 1 << 20  # bytes that are searched at once, backward
_SEARCH_SECONDS = 10.0  # seconds for the search backward
_LONGEST_ROW = 1 << 20  # bytes
_MAX_LINES = 200_000  # lines of a file whose hashes are kept, to recognize them if the file is rewritten
_LAST_BYTES = 64  # bytes before the offset that are kept, to recognize a rewritten file

_RANK = re.compile(r"\[rank (\d+)\] ")
_LINE_END = re.compile(rb"[\r\n]")


class Source:
    """A source of metrics, with the ways to find and read its files.

    Attributes:
        declaration: Source as the job declares it.
        names: Meanings of the names in it.
        parse: Finds the metrics of a line of text.
        pattern: Pattern of its files; None for the trial's output.
    """

    def __init__(self, declaration: MetricSource, requested: Collection[str], arguments: Collection[str] = ()) -> None:
        """Create a source.

        Args:
            declaration: Source as the job has it.
            requested: Metrics that the job names.
            arguments: Names of the program's arguments.
        """
        self.declaration = declaration
        self.names = lines.Names(requested, declaration.step)
        self.parse = lines.parser(declaration.pattern, self.names, arguments)
        prefix = declaration.path.rstrip("/") + "/" if declaration.path else ""
        patterns = {"file": declaration.path, "wandb": declaration.path, "tensorboard": f"{prefix}**/*tfevents*"}
        self.pattern = patterns.get(declaration.source)


class Decoder(Protocol):
    """A decoder of the metrics in a file."""

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the metrics in new bytes: of complete lines or records; of the rest too if the program has ended."""


class Tail:
    """A file whose new parts are read.

    Args:
        file: Path of the file.
        source: Source that the file belongs to.
        offset: Bytes at its beginning that are not read.
        original: Its content before the trial; lines at its beginning that are still the same are left out.

    Attributes:
        steps: Collects its metrics into reports.
        skipped: Bytes that were not read, as there was no time.
    """

    def __init__(self, file: Path, source: Source, offset: int, original: bytes = b"") -> None:
        self.file = file
        self.source = source
        self.steps = Steps(source.names.requested.values())
        self.skipped = 0
        self._offset = offset
        self._last_bytes = b""  # the last bytes that were read
        # The lines that were read already, for text files that a program rewrites at each step.
        self._line_hashes = [hash(line) for line in original.split(b"\n")[:_MAX_LINES]]
        self._line = 0  # the number of the next line
        self._decoder = self._new_decoder()

    def _new_decoder(self) -> Decoder:
        if self.source.declaration.source == "tensorboard":
            return events.TensorBoard(self.source.names)
        if not self.source.declaration.pattern and (delimiter := {".csv": ",", ".tsv": "\t"}.get(self.file.suffix)):
            return _Text(_Table(delimiter, self.source), self._is_read, _LONGEST_ROW)
        return _Text(_Lines(self.source), self._is_read, CHUNK)

    def read(self, ended: bool, deadline: float, size: int | None = None) -> Iterator[LineMetrics]:
        """Yield the metrics of the next part.

        Args:
            ended: Whether the program has ended, so that this is the last read. After the deadline the end of a text is read
                as well, and the part before it is searched for the metrics that the job names.
            deadline: End of the read, by the monotonic clock.
            size: Size of the program's part of the file. None for the whole file.
        """
        try:
            # The program may have replaced the file by a link, or by a pipe without a writer.
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # it is gone, or not readable
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            if self._was_rewritten(descriptor, status.st_size):
                self._offset, self._last_bytes, self._line, self._decoder = 0, b"", 0, self._new_decoder()
            size = status.st_size if size is None else min(size, status.st_size)
            yield from self._read_to(size, file, deadline)
            if ended and self._offset < size:
                yield from self._read_end(size, file)
        if ended:
            yield from self._decoder.read(b"", True)

    def _read_to(self, size: int, file: IO[bytes], deadline: float) -> Iterator[LineMetrics]:
        file.seek(self._offset)
        while time.monotonic() < deadline and (data := file.read(max(0, min(CHUNK, size - self._offset)))):
            self._offset += len(data)
            self._last_bytes = (self._last_bytes + data)[-_LAST_BYTES:]
            yield from self._decoder.read(data, False)

    def _read_end(self, size: int, file: IO[bytes]) -> Iterator[LineMetrics]:
        """Yield the metrics at the end of an unread part, and before them those that the job names and the end lacks."""
        if not isinstance(self._decoder, _Text):  # records cannot be found from the middle of the file
            self.skipped += size - self._offset
            return
        begin, self._offset = self._offset - self._decoder.drop(), max(self._offset, size - LAST)
        file.seek(self._offset)
        while self._offset < size and (
            data := file.read(CHUNK)
        ):  # to the end of a line, as a cut name would be another name
            if match := _LINE_END.search(data):
                self._offset += match.end()
                break
            self._offset += len(data)
        end, self._line_hashes, self._line = self._offset, [], _MAX_LINES
        last = list(self._read_to(size, file, math.inf))
        missing = set(self.source.names.requested.values()).difference(*(line_metrics.metrics for line_metrics in last))
        earlier = list(self._search_backward(file, begin, end, missing))
        self.skipped += end - begin
        yield from reversed(earlier)
        yield from last

    def _search_backward(self, file: IO[bytes], begin: int, end: int, names: set[str]) -> Iterator[LineMetrics]:
        """Yield the last lines with these metrics in a part of the file, from its end to its beginning."""
        assert isinstance(self._decoder, _Text)
        deadline = time.monotonic() + _SEARCH_SECONDS
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

    def _was_rewritten(self, descriptor: int, size: int) -> bool:
        """Return whether the file was rewritten since the last read."""
        if size < self._offset:
            return True
        return os.pread(descriptor, len(self._last_bytes), self._offset - len(self._last_bytes)) != self._last_bytes

    def _is_read(self, line: bytes) -> bool:
        """Return whether the next line was read before the file was rewritten. Call it once for each whole line."""
        if self.source.declaration.source == "stdout" or self._line >= _MAX_LINES:
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
    """A finder of the metrics in the lines of a text.

    Attributes:
        has_names: Whether each line has the names of its metrics.
    """

    has_names: bool

    def next(self, line: bytes, *, whole: bool, is_read: bool) -> LineMetrics | None:
        """Return the metrics of the next line, or None.

        Args:
            line: Line without its end.
            whole: Whether the line is complete. An incomplete one is passed again later.
            is_read: Whether the line was read before its file was rewritten.
        """

    def parse(self, line: bytes) -> LineMetrics | None:
        """Return the metrics of any line."""


class _Text:
    """A decoder of text, line by line."""

    def __init__(self, line: _Line, is_read: Callable[[bytes], bool], longest: int) -> None:
        """Create a decoder.

        Args:
            line: Finder of the metrics of a line.
            is_read: Returns whether a line was read before.
            longest: Number of bytes of an incomplete line that are kept.
        """
        self._of_line, self._is_read, self._longest = line, is_read, longest
        self.has_names = line.has_names
        self._rest = b""
        self._names_steps = False  # whether any line has named a step

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """See `Decoder`."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        drawn: list[bytes] = []
        if ended and self._rest:
            whole.append(self._rest)
            self._rest = b""
        elif len(self._rest) > self._longest:  # one byte more, so that the line is known to be cut
            self._rest = self._rest[-self._longest - 1 :]
        elif b"\r" in self._rest and not ended:
            # The current state of a progress bar counts, once for each read.
            shown, _, self._rest = self._rest.rpartition(b"\r")
            drawn.append(shown)
        for line in whole:
            result = self._of_line.next(line, whole=True, is_read=self._is_read(line))
            if result is not None and (result.metrics or result.step is not None):
                self._names_steps |= result.step is not None
                yield result
        for line in drawn:
            result = self._of_line.next(line, whole=False, is_read=False)
            # If lines name steps, only the end of a bar counts, as the number of earlier reads depends on time.
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
    """A finder of metrics in lines as programs print them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.has_names = not source.declaration.pattern  # the job's own expressions need not contain a name
        self._passages = passages.Passages(has_dumps=not source.declaration.pattern)

    def next(self, line: bytes, *, whole: bool, is_read: bool) -> LineMetrics | None:
        """See `_Line`."""
        text = _line_text(line)
        if text is None:
            return None
        part = self._passages.result_part(text) if whole else passages.ResultPart(text)
        if is_read or not part.text:
            return None
        result = self._source.parse(part.text)
        return self._source.names.keep_requested(result) if part.is_named_only else result

    def parse(self, line: bytes) -> LineMetrics | None:
        """See `_Line`."""
        text = _line_text(line)
        return None if text is None else self._source.parse(text)


def _line_text(line: bytes) -> str | None:
    """Return the text of a line; the last state of a progress bar; None for a line of a rank other than 0."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    rank = _RANK.match(text)
    return text if rank is None else text[rank.end() :] if rank[1] == "0" else None


class _Table:
    """A finder of metrics in the rows of a file with a header, as loggers write it."""

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
        return self._source.names.split_record({name: value for name, value in cells if value is not None})

    def _row(self, line: bytes) -> list[str]:
        """Return the fields of a line; none if the line, which may be cut, or a field is too long."""
        if len(line) > _LONGEST_ROW:
            return []
        try:
            text = line.decode("utf-8-sig" if not self._header else "utf-8", errors="replace")
            return next(csv.reader([text.rstrip("\r")], delimiter=self._delimiter), [])
        except csv.Error:
            return []
