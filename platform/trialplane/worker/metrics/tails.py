"""Follow the files of a metric source as they grow, and find the metrics in their new parts.

`Tail` reads the new bytes of one file and passes them to a decoder: `events.TensorBoard` for event files, `_Text` for text.
`_Text` splits the bytes into lines, and finds their metrics by `_PrintedLines` or, in a table, `_TableRows`.
"""

from __future__ import annotations

import csv
import math
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from trialplane.job.program import MetricSource
from trialplane.worker.metrics import events, lines, objects, passages
from trialplane.worker.metrics.names import LineMetrics, Names
from trialplane.worker.metrics.numerals import number
from trialplane.worker.metrics.steps import Steps

CHUNK = 64 << 10  # bytes that are read at once
LAST = 4 << 20  # bytes at the end of a text that are read without a time limit
_BLOCK = 1 << 20  # bytes that the backward search reads at once
_SEARCH_SECONDS = 10.0  # time limit of the backward search
_LONGEST_ROW = 1 << 20  # bytes
_MAX_LINES = 200_000  # lines of a file whose hashes are stored, to recognize them if the file is rewritten
_LAST_BYTES = 64  # bytes before the offset that are stored, to recognize a rewritten file

_RANK = re.compile(r"\[rank (\d+)\] ")
_LINE_END = re.compile(rb"[\r\n]")
# The first line of an object, perhaps with the name of a file that `rich` writes at its end, and the further ones.
_OBJECT_BEGIN = re.compile(r"(?:^|[\s:=(])(\{)\s*(?:$|[\"']|\S+\.py:\d+\s*$)")
_OBJECT_LINE = re.compile(r"\s*(?:[\"'\d.{}\[\])(-]|(?:true|false|null|nan|inf|NaN|None|True|False)\b)")
_OBJECT_LIST = re.compile(r"\[\s*\{")
_QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")


class Source:
    """A source of metrics in the job: how to find its files and to read the metrics in them.

    Attributes:
        declaration: Source as the job declares it.
        names: Meanings of the names in it.
        parse: Function that finds the metrics of the next line of text.
        parse_object: Function that finds the metrics of an object in several lines.
        pattern: Glob pattern of its files in the program's folder; None if it has none, as the trial's output.
        left_out: Metric → the file with a second value of it at its last step, and that value, which is not read.
    """

    def __init__(self, declaration: MetricSource, requested: Collection[str], arguments: Collection[str] = ()) -> None:
        """Create a source that finds the `requested` metrics; for `arguments`, see `lines.LineParser`."""
        self.declaration = declaration
        self.names = Names(requested, declaration.step)
        self.left_out: dict[str, tuple[str, float]] = {}
        parser = lines.LineParser(declaration.pattern, self.names, arguments)
        self.parse, self.parse_object = parser.parse, parser.parse_object
        prefix = declaration.path.rstrip("/") + "/" if declaration.path else ""
        patterns = {"file": declaration.path, "wandb": declaration.path, "tensorboard": f"{prefix}**/*tfevents*"}
        self.pattern = patterns.get(declaration.source)


class Decoder(Protocol):
    """A decoder of the metrics in a file."""

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the metrics in new bytes: of complete lines or records; of the rest too if the program has ended."""


class Tail:
    """A reader of the new parts of one file.

    Args:
        file: Path of the file.
        source: Source that the file belongs to.
        offset: Bytes at its beginning that are not read.
        original: Its content before the trial. Lines at its beginning that are still the same are not read.

    Attributes:
        file: Path of the file.
        source: Source that the file belongs to.
        steps: Collects its metrics into reports.
        skipped: Bytes that were not read for lack of time.
    """

    def __init__(self, file: Path, source: Source, offset: int, original: bytes = b"") -> None:
        self.file = file
        self.source = source
        self.steps = Steps(source.names.requested.values())
        self.skipped = 0
        self._offset = offset
        self._last_bytes = b""  # the last bytes that were read
        # Hashes of the lines that were read. A program may rewrite its file at each step, and only new lines count then.
        self._line_hashes = [hash(line) for line in original.split(b"\n")[:_MAX_LINES]]
        self._line = 0  # number of the next line
        self._decoder = self._new_decoder()

    def _new_decoder(self) -> Decoder:
        """Return a decoder for the beginning of the file, by the kind of the source and the file's suffix."""
        if self.source.declaration.source == "tensorboard":
            return events.TensorBoard(self.source.names)
        if not self.source.declaration.pattern and (delimiter := {".csv": ",", ".tsv": "\t"}.get(self.file.suffix)):
            return _Text(_TableRows(delimiter, self.source, self.file), self._recognize_next, _LONGEST_ROW)
        return _Text(_PrintedLines(self.source), self._recognize_next, CHUNK)

    def read(self, ended: bool, deadline: float, size: int | None = None) -> Iterator[LineMetrics]:
        """Yield the metrics of each new line or record, until the deadline.

        Args:
            ended: Whether the program has ended, so that this is the last read. What the deadline left unread of a text is
                then read from its end: the last `LAST` bytes, and before them the last values of the metrics that the job
                names.
            deadline: End of the read, by the monotonic clock.
            size: Bytes at the beginning of the file that are the program's, without what follows; None for the whole file.
        """
        try:
            # The program may have replaced the file by a link to a file that only the slot may read, or by a named pipe, at
            # which an ordinary `open` would wait for a writer.
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # it was removed, or is not readable
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
            yield from self._decoder.read(b"", ended=True)

    def _read_to(self, size: int, file: IO[bytes], deadline: float) -> Iterator[LineMetrics]:
        """Yield the metrics from the offset to a size, or to the deadline, and advance the offset."""
        file.seek(self._offset)
        while time.monotonic() < deadline and (data := file.read(max(0, min(CHUNK, size - self._offset)))):
            self._offset += len(data)
            self._last_bytes = (self._last_bytes + data)[-_LAST_BYTES:]
            yield from self._decoder.read(data, ended=False)

    def _read_end(self, size: int, file: IO[bytes]) -> Iterator[LineMetrics]:
        """Read the last `LAST` bytes of a file that was not read in time, skip the bytes before them, and yield the metrics.

        Of a metric that the job names and the last bytes lack, the last line in the skipped bytes is yielded before. A file
        that is not a text is skipped to its end, because a record cannot be found from the middle of the file.
        """
        if not isinstance(self._decoder, _Text):
            self.skipped += size - self._offset
            return
        unread_begin = self._offset - self._decoder.drop()
        self._offset = max(self._offset, size - LAST)
        # Start at the beginning of a line: the rest of a cut name would count as another name.
        file.seek(self._offset)
        while self._offset < size and (data := file.read(CHUNK)):
            if match := _LINE_END.search(data):
                self._offset += match.end()
                break
            self._offset += len(data)
        unread_end = self._offset
        self._line_hashes, self._line = [], _MAX_LINES  # lines are no longer compared by number
        last = list(self._read_to(size, file, math.inf))
        missing = set(self.source.names.requested.values()).difference(*(line_metrics.metrics for line_metrics in last))
        earlier = list(self._search_backward(file, unread_begin, unread_end, missing))
        self.skipped += unread_end - unread_begin
        yield from reversed(earlier)
        yield from last

    def _search_backward(self, file: IO[bytes], begin: int, end: int, names: set[str]) -> Iterator[LineMetrics]:
        """Yield the last line with each of these metrics in a part of the file, the last line of all first.

        The search ends after `_SEARCH_SECONDS`. A name is removed from `names` when it is found.
        """
        assert isinstance(self._decoder, _Text)
        finder = self._decoder.finder
        deadline = time.monotonic() + _SEARCH_SECONDS
        # Only a line with the longest word of a metric's name can have the metric. The word is b"" if lines lack names.
        words = dict.fromkeys(names, b"")
        if finder.has_names:
            words = {name: max(re.split(r"[\W_]+", name.lower()), key=len).encode() for name in names}
        for line in _lines_backward(file, begin, end):
            if not names:
                return
            lower = line.lower()
            if not any(words[name] in lower for name in names):
                continue
            if time.monotonic() > deadline:
                return
            result = finder.find(line)
            if result is not None and (matched := names & result.metrics.keys()):
                names -= matched
                yield result._replace(metrics={name: result.metrics[name] for name in matched})

    def _was_rewritten(self, descriptor: int, size: int) -> bool:
        """Return whether the file was rewritten since the last read: it is shorter, or its last bytes read differ."""
        if size < self._offset:
            return True
        return os.pread(descriptor, len(self._last_bytes), self._offset - len(self._last_bytes)) != self._last_bytes

    def _recognize_next(self, line: bytes) -> bool:
        """Count the next whole line, and return whether it was read before the file was rewritten.

        The line with the same number must have been the same, and each line before it too.
        """
        if self.source.declaration.source == "stdout" or self._line >= _MAX_LINES:
            return False
        number, line_hash = self._line, hash(line)
        self._line += 1
        if number < len(self._line_hashes):
            if self._line_hashes[number] == line_hash:
                return True
            del self._line_hashes[number:]
        self._line_hashes.append(line_hash)
        return False


def _lines_backward(file: IO[bytes], begin: int, end: int) -> Iterator[bytes]:
    """Yield the lines in a part of a file, the last one first. Of a line longer than a block, the rest may be cut."""
    line_rest = b""  # the rest of the line that begins before the blocks that were read
    while end > begin:
        block_begin = max(begin, end - _BLOCK)
        file.seek(block_begin)
        first, *others = (file.read(end - block_begin) + line_rest).split(b"\n")
        is_first_whole = block_begin == begin
        yield from reversed([first, *others] if is_first_whole else others)
        end, line_rest = block_begin, first[:CHUNK]


class _LineFinder(Protocol):
    """A finder of the metrics in the lines of a text.

    Attributes:
        has_names: Whether each line has the names of its metrics.
    """

    has_names: bool

    def find_next(self, line: bytes, *, is_whole: bool, was_read: bool) -> list[LineMetrics]:
        """Return the metrics of the next line, and of lines before it that waited for it. Call it for the lines in order.

        Args:
            line: Line without its end.
            is_whole: Whether the line is complete. An incomplete one, of a progress bar, is passed again later.
            was_read: Whether the line was read before its file was rewritten. It has no metrics then.
        """

    def flush(self) -> list[LineMetrics]:
        """Return the metrics of the lines that wait for further ones."""

    def find(self, line: bytes) -> LineMetrics | None:
        """Return the metrics of a whole line, whatever lines are before it; None if it has none."""


class _Text:
    """A decoder of text, line by line.

    Args:
        finder: Finder of the metrics of a line.
        recognize_next: Counts the next whole line, and returns whether it was read before its file was rewritten.
        longest: Bytes at the end of an incomplete line that are stored.

    Attributes:
        finder: Finder of the metrics of a line.
    """

    def __init__(self, finder: _LineFinder, recognize_next: Callable[[bytes], bool], longest: int) -> None:
        self.finder, self._recognize_next, self._longest = finder, recognize_next, longest
        self._rest = b""  # the line that is not complete yet
        self._names_steps = False  # whether any line has named a step

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the metrics of each new line, and of the current state of a progress bar; see `Decoder`."""
        *whole_lines, self._rest = (self._rest + data).split(b"\n")
        bar_state: bytes | None = None  # the last complete state of a progress bar, which ends each state with \r
        if ended and self._rest:
            whole_lines.append(self._rest)
            self._rest = b""
        elif len(self._rest) > self._longest:  # one byte more than allowed marks the line as cut
            self._rest = self._rest[-self._longest - 1 :]
        elif b"\r" in self._rest and not ended:
            bar_state, _, self._rest = self._rest.rpartition(b"\r")
        for line in whole_lines:
            was_read = self._recognize_next(line)
            yield from self._with_content(self.finder.find_next(line, is_whole=True, was_read=was_read))
        if ended:
            yield from self._with_content(self.finder.flush())
        if bar_state is not None:
            yield from self._bar_results(bar_state)

    def _bar_results(self, state: bytes) -> Iterator[LineMetrics]:
        """Yield the metrics of a state of a progress bar, unless it lacks a step and other lines have named one.

        How many states are read depends on time. So a state without a step could become a step that the program does not
        have.
        """
        for result in self.finder.find_next(state, is_whole=False, was_read=False):
            if result.step is not None or (result.metrics and not self._names_steps):
                self._names_steps |= result.step is not None
                yield result if result.bar is None else result._replace(bar=result.bar._replace(is_last=False))

    def _with_content(self, results: Iterable[LineMetrics]) -> Iterator[LineMetrics]:
        """Yield the results that have metrics or a step."""
        for result in results:
            if result.metrics or result.step is not None:
                self._names_steps |= result.step is not None
                yield result

    def drop(self) -> int:
        """Drop the line that is not complete yet; return its size in bytes."""
        size, self._rest = len(self._rest), b""
        return size


class _PrintedLines:
    """A finder of metrics in lines as programs print them. The lines of an object wait for its end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.has_names = not source.declaration.pattern  # a line that the job's own expressions match may have no name
        self._passages = passages.Passages(has_dumps=not source.declaration.pattern)
        self._object = ""  # text of an object that is not closed yet
        self._depth = 0  # its open brackets
        self._waiting: list[tuple[passages.ResultPart, bool]] = []  # the lines of that object, and whether they were read

    def find_next(self, line: bytes, *, is_whole: bool, was_read: bool) -> list[LineMetrics]:
        """Return the metrics of the next line outside of passages like tracebacks; see `_LineFinder`."""
        text = _line_text(line)
        if text is None:
            return []
        if not is_whole:
            return self._parse(passages.ResultPart(text), was_read)
        part = self._passages.result_part(text)
        results: list[LineMetrics] = []
        continues_object = _OBJECT_LINE.match(text) is not None and len(self._object) < CHUNK
        if self._object and not continues_object:
            results = self.flush()
        object_text = text if self._object else self._object_beginning(part)
        if not object_text:
            return [*results, *self._parse(part, was_read)]
        self._object += f"{object_text}\n"
        self._depth += passages.open_brackets(_QUOTED.sub("", object_text))
        self._waiting.append((part, was_read))
        return results if self._depth > 0 else [*results, *self._end_object()]

    def _object_beginning(self, part: passages.ResultPart) -> str:
        """Return the text of a line from the bracket on that begins an object; "" if no object begins in it."""
        may_begin_object = self.has_names and not part.is_named_only
        opening = _OBJECT_BEGIN.search(part.text) if may_begin_object else None
        return "" if opening is None else part.text[opening.start(1) :]

    def flush(self) -> list[LineMetrics]:
        """Return the metrics of the lines of an object that was not closed, line by line; see `_LineFinder`."""
        waiting, self._waiting, self._object, self._depth = self._waiting, [], "", 0
        return [result for part, was_read in waiting for result in self._parse(part, was_read)]

    def _end_object(self) -> list[LineMetrics]:
        """Return the metrics of the object that the last line has closed.

        An object in a single line is read as any line. Of an object with a list of objects, a history, each line is.
        """
        if len(self._waiting) == 1 or _OBJECT_LIST.search(self._object):
            return self.flush()
        text, was_read = self._object, all(line_was_read for _, line_was_read in self._waiting)
        self._waiting, self._object, self._depth = [], "", 0
        return [] if was_read else self._history(text) or [self._source.parse_object(text)]

    def _history(self, text: str) -> list[LineMetrics]:
        """Return the metrics of each step in a history; [] if a text is none, or in an output, whose lines had them."""
        is_file = self._source.declaration.source == "file" and self.has_names
        return [self._source.parse(row) for row in objects.history_rows(text)] if is_file else []

    def _parse(self, part: passages.ResultPart, was_read: bool) -> list[LineMetrics]:
        """Return the metrics of one line, or of each step in it; an empty list if it was read before or has no results."""
        if was_read or not part.text:
            return []
        if history := self._history(part.text):
            return history
        result = self._source.parse(part.text)
        return [self._source.names.keep_requested(result) if part.is_named_only else result]

    def find(self, line: bytes) -> LineMetrics | None:
        """Return the metrics of any whole line; see `_LineFinder`."""
        text = _line_text(line)
        return None if text is None else self._source.parse(text)


def _line_text(line: bytes) -> str | None:
    """Return the text that a line shows, without the prefix of rank 0; None for a line of another rank.

    A progress bar writes each state over the one before it, after a carriage return, so its last state is the text.
    """
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    rank = _RANK.match(text)
    if rank is None:
        return text
    return text[rank.end() :] if rank[1] == "0" else None


class _Column:
    """The steps of a metric that the job names, in a table.

    Attributes:
        has_repeated_steps: Whether a step has had several values that all count.
    """

    def __init__(self) -> None:
        self._step: tuple[int, float | None] | None = None  # the last one, with its epoch
        self._others: dict[str, float] = {}  # metrics of its row that the job does not name
        self._step_count = 0
        self.has_repeated_steps = False

    def is_second_value(self, step: tuple[int, float | None], others: dict[str, float]) -> bool:
        """Return whether the next row has a second value at the last step, which does not count; see `_TableRows`.

        Args:
            step: Step of the row, with its epoch.
            others: Metrics of the row that the job does not name.
        """
        if step != self._step:
            self._step_count += 1
        else:
            repeats_row = bool(others) and others == self._others
            if repeats_row and self._step_count > 1 and not self.has_repeated_steps:
                return True
            self.has_repeated_steps = True
        self._step, self._others = step, others
        return False


class _TableRows:
    """A finder of metrics in the rows of a table, as loggers write it.

    The first line is the header. A table of one metric may have none, if the file is named after the metric, as those of
    torchrl's logger: its rows are a step and a value, or a value.

    Some programs end a table with a copy of its last row in which a value on the test data replaces that of a metric. If
    each step has one value of a metric that the job names, a second value in the last row is left out, provided that the
    row repeats the step before and all metrics that the job does not name.
    """

    def __init__(self, delimiter: str, source: Source, file: Path) -> None:
        self._columns = {name: _Column() for name in source.names.requested.values()}
        self._delimiter = delimiter
        self._source = source
        self._file = file
        self._header: list[str] = []
        self._held_row: LineMetrics | None = None  # a copy of the row before it, unless another row follows
        self._second_values: list[str] = []  # metrics of which it has a second value
        self.has_names = False

    def find_next(self, line: bytes, *, is_whole: bool, was_read: bool) -> list[LineMetrics]:
        """Return the metrics of the next row, and of one held before it; none for the header, which is recorded."""
        if not self._header:
            first_row = self._row(line)
            columns = self._columns_by_path(first_row)
            self._header = columns or first_row
            if not columns:
                return []
        if not is_whole:
            return []
        # The held row is not the last one, so its second values count.
        held_rows = [] if self._held_row is None else [self._held_row]
        for name in self._second_values:
            self._columns[name].has_repeated_steps = True
        row = self.find(line)
        others = {name: value for name, value in row.metrics.items() if name not in self._columns}
        self._second_values = [
            name
            for name, column in self._columns.items()
            if name in row.metrics and row.step is not None and column.is_second_value((row.step, row.epoch), others)
        ]
        if was_read:
            self._held_row = None
            return held_rows
        self._held_row = row if self._second_values else None
        return held_rows if self._second_values else [*held_rows, row]

    def flush(self) -> list[LineMetrics]:
        """Return the last row without its second values, if it is held."""
        row, self._held_row = self._held_row, None
        if row is None:
            return []
        for name in self._second_values:
            self._source.left_out[name] = (self._file.name, row.metrics.pop(name))
        return [row]

    def _columns_by_path(self, first_row: Sequence[str]) -> list[str]:
        """Return the columns of a table of one metric whose first row has values; an empty list if it is a header.

        The metric has the file's name. If the job names one that ends the path, it has that name: `eval/reward`.
        """
        if first_row == [str(index) for index in range(len(first_row))]:  # the columns of a table of pandas
            return []
        values = [number(cell) for cell in first_row]
        *steps, metric = values or [None]
        if metric is None or len(steps) > 1 or not all(step is not None and step.is_integer() for step in steps):
            return []
        path = f"/{self._file.with_suffix('').as_posix()}"
        named = (name for name in self._source.names.requested.values() if path.endswith(f"/{name}"))
        return [*([self._source.declaration.step or "step"] if steps else []), next(named, self._file.stem)]

    def find(self, line: bytes) -> LineMetrics:
        """Return the metrics of any row; see `_LineFinder`."""
        cells = ((name, number(value)) for name, value in zip(self._header, self._row(line), strict=False))
        return self._source.names.split_record({name: value for name, value in cells if value is not None})

    def _row(self, line: bytes) -> list[str]:
        """Return the fields of a line; none if the line or a field is too long. A line that is too long may be cut."""
        if len(line) > _LONGEST_ROW:
            return []
        encoding = "utf-8" if self._header else "utf-8-sig"  # the first line, the header, may begin with a byte order mark
        try:
            text = line.decode(encoding, errors="replace")
            return next(csv.reader([text.rstrip("\r")], delimiter=self._delimiter), [])
        except csv.Error:
            return []
