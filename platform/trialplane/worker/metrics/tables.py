"""Find metrics in tables that a program prints: a header with the names of columns, and rows of numbers below it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trialplane.worker.metrics.names import LineMetrics, Names, synonyms
from trialplane.worker.metrics.numerals import number

_COLUMNS = re.compile(r"[\s|│┃]+")
_COUNTER = "#"  # name of a column
_COLUMN_NAME = re.compile(rf"{_COUNTER}|[^\W\d][\w./@%-]*")
_PROSE = re.compile(r"\w \w")
_WIDE_GAP = re.compile(r"\s{2,}+")  # between columns whose names have spaces: `Iter   Train Loss   Remaining Time`
RULE = re.compile(r"[\s=+|:\u2500-\u257f-]*")  # also of the characters for boxes, as ┡━━╇━━┩
_RULE_PART = re.compile(r"[-=:─━═]+")  # below one column
_PIPES = "|│┃"  # between two columns
_PART_COLUMNS = frozenset({"class", "category", "label"})  # of a table with a row for each part of the data
# The rows of all parts.
_WHOLE = frozenset({"all", "mean", "average", "avg", "overall", "total", "micro", "macro", "weighted"})
# What Ultralytics prints behind a header, `mAP50): 100%|███| 2/2` or `100% ━━━ 2/2`, and around a group of its columns:
# `Box(P   R   mAP50)`.
_BEHIND_HEADER = re.compile(r":\s\s?\d+%(?:\||\s[━╸─])")
_GROUP = re.compile(r"(?<!\w)[^\W\d]\w*\(([^()]*\s[^()]*)\)")


class Table:
    """A reader of the tables in a text, line by line. A table begins if one of its columns is a metric that the job names.

    Args:
        names: Meanings of names.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._names_by_column = {_column_key(name): name for name in names.requested.values()}
        for key, name in list(self._names_by_column.items()):
            for column in synonyms(key):
                self._names_by_column.setdefault(column, name)
        self._header: list[str] = []  # columns of the table to which the next line may belong; empty outside a table
        self._spans: Sequence[tuple[int, int]] = ()  # positions of the columns; empty if no rule below the header shows them
        self._counter: int | None = None  # index of the column "#", which is the step, or of another that has numbers
        self._part: int | None = None  # index of the column with the parts of the data, of which only the whole counts
        self._has_gaps = False  # whether wide gaps separate the columns, whose names have spaces
        self._line_above = ""  # line that is a header if the next line is a rule

    def read(self, line: str) -> LineMetrics | None:
        """Return the metrics of the next line as a row of a table; None if the line is not in a table.

        For a header, which is recorded for the rows below it, return a line without metrics.
        """
        line_above, self._line_above = self._line_above, ""
        if (self._header or line_above) and RULE.fullmatch(line):
            self._begin_above_rule(line_above, line)
            return None  # a rule inside a table does not end it
        may_be_header = self._may_be_header(line)
        if not self._header and not may_be_header:
            return None
        if may_be_header and (bar := _BEHIND_HEADER.search(line)):
            line = _GROUP.sub(r"\1", line[: bar.start()])
        self._line_above = line
        words = [word for word in _COLUMNS.split(line) if word]
        if len(words) > 1 and all(map(_COLUMN_NAME.fullmatch, words)):
            self._header = []
            if _PROSE.search(line) and len(words := _WIDE_GAP.split(line.strip())) < 3:
                return None
            # scikit-learn's report has a column "support". Its averages are read by `lines`.
            is_header = "support" not in words and self._begin(words)
            return LineMetrics(step=None, metrics={}) if is_header else None
        if self._header and (values := self._row_values(line, words)) is not None:
            return self._names.split_record(values)
        self._header = []
        return None

    def _may_be_header(self, line: str) -> bool:
        """Return whether a line has the name of a column. Most lines have none, so the other checks are skipped."""
        key = _column_key(line)
        return any(column in key for column in self._names_by_column)

    def _begin_above_rule(self, line_above: str, rule: str) -> None:
        """Begin a table if the line above a rule is its header, with the positions of the columns by the rule's parts."""
        spans = [match.span() for match in _RULE_PART.finditer(rule)]
        columns = _cells(line_above, spans) if len(spans) > 1 else None
        # A row of values above a rule between rows is not a header.
        if columns is not None and all(number(column.rstrip(" %")) is None for column in columns):
            self._begin(columns, spans)

    def _begin(self, columns: Sequence[str], spans: Sequence[tuple[int, int]] = ()) -> bool:
        """Begin a table if one of its columns is a metric that the job names; return whether it begins.

        Args:
            columns: Texts in its header.
            spans: Positions of the columns; empty if no rule shows them.
        """
        keys = [_column_key(column) for column in columns]
        if self._names_by_column.keys().isdisjoint(keys):
            return False
        names = dict(self._names_by_column)
        if not self._names.has_own_step:  # otherwise the job names the column of the step
            names.setdefault(_COUNTER, "step")
        header = [names.get(key, column) for key, column in zip(keys, columns, strict=True)]
        # Below a line with groups of columns, names occur twice: a metric is the first column of its name.
        self._header = ["" if name in header[:index] else name for index, name in enumerate(header)]
        self._spans = spans
        self._has_gaps = not spans and any(" " in column for column in columns)
        self._part = next((index for index, key in enumerate(keys) if key in _PART_COLUMNS), None)
        self._counter = columns.index(_COUNTER) if _COUNTER in columns else 0 if self._has_gaps else None
        return True

    def _row_values(self, line: str, words: Sequence[str]) -> dict[str, float] | None:
        """Return the numbers of a line in a table by their columns; None if it is not a row; see `_row_cells`.

        The row of one part of the data has none.
        """
        cells = self._row_cells(line, words)
        # A line below `# Accuracy` or `Saved  val loss  now`, perhaps no header, is a row only if it has the number.
        if not cells or (self._counter is not None and number(cells[self._counter]) is None):
            return None
        if self._part is not None and cells[self._part].lower() not in _WHOLE:
            return {}
        values = ((name, number(text.rstrip(" %"))) for name, text in zip(self._header, cells, strict=True))
        return {name: value for name, value in values if name and value is not None} or None

    def _row_cells(self, line: str, words: Sequence[str]) -> Sequence[str]:
        """Return the cells of a row, one for each column; empty if the line is not a row.

        Args:
            line: The line.
            words: Its words, which are the cells if the positions of the columns are not known.
        """
        column_count = len(self._header)
        if self._spans:
            cells = _cells(line, self._spans) or []
            filled_count = sum(cell != "" for cell in cells)
            if 2 * filled_count > column_count:  # otherwise the text is not in these columns, or is hardly a row
                return cells
        cells_by_gaps = _WIDE_GAP.split(line.strip()) if self._has_gaps else ()  # the last of `1   0.5   90 %` has two words
        if len(cells_by_gaps) == column_count:
            return cells_by_gaps
        if len(words) == column_count:
            return words
        begins_with_index = len(words) == column_count + 1 and not self._spans  # of pandas; the header has no name for it
        if self._has_gaps and number(words[-1]) is None:  # a mark behind the row, as in `1   0.5   0.6   *`
            return ()
        return words[1:] if begins_with_index else ()


def _column_key(name: str) -> str:
    """Return a name in the spelling by which columns and metrics are compared."""
    return name.lower().replace("-", "_").replace(" ", "_")


def _cells(line: str, spans: Sequence[tuple[int, int]]) -> list[str] | None:
    """Return the texts of a line at the positions of columns; None if there is also text between or across columns."""
    cells: list[str] = []
    end, border = 0, f" \t{_PIPES}"
    for start, stop in spans:
        cell = " ".join(line[start:stop].split())
        if line[end:start].strip(border) or any(pipe in cell for pipe in _PIPES):
            return None
        cells.append(cell)
        end = stop
    return None if line[end:].strip(border) else cells
