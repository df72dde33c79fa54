"""Find metrics and steps in lines of text: `name=0.93`, `name: 0.93`, JSON, tables, or by a job's own patterns.

Pure: text in, numbers out. Without a pattern of the job, these are metrics:

- pairs of a name and a number with = or : between, the name perhaps in quotes: `loss=0.3`, `'eval_loss': 0.3`, `acc: 93.1%`;
- the numbers of a JSON object or a dict, in one line or over several; numbers of nested objects have dotted names:
  `overall.f1`. A job that names `f1` gets the outermost of them, and of several the first that is not one of training;
- a metric that the job names, in any spelling: `val_loss` also in `val loss 2.1` and `Val Loss = 2.1`, `accuracy` in
  `0.98 accuracy` and `Accuracy on the 100 images: 54 %`;
- a fraction, as its value: `accuracy: 9870/10000`;
- a row of a table whose header has a metric that the job names: `epoch  train_loss  valid_acc`, and below it numbers; with
  a rule below the header, as `-----  ----------`, names may have spaces, and cells may be empty;
- the averages in scikit-learn's classification report, under the names of its scorers: `f1_macro`, `recall_weighted`.

`Test accuracy: 0.9` is the metric `test_accuracy`, not `accuracy`, because the value belongs to another set of data. The
name of the set may also stand before several metrics: `Train Epoch: 1 Loss: 0.3` is `train_Loss`, and `Test set: loss: 0.2`
is `test_loss`, so no curve mixes the two. If the job names a metric `loss`, this is the one of `Test set: loss: 0.2`.

A number with the name `global_step`, `step`, `iteration`, `epoch` or `round` is the step, as in `Epoch [3/10]`. So is a
number in brackets at the beginning of a line, as in XGBoost's `[12]` and in `[3/10]`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from trialplane.worker.metrics.passages import is_argument_word

LONGEST_LINE = 16 << 10  # characters; of a longer line only the end is read, where a progress bar has its postfix
_LONGEST_NAME = 250  # characters that MLflow stores

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)"
# The end of a number, so that 3fa9, 1.2.3, 10:31, 2024-01-02, 11/s and 1,234 have none.
_NUMBER_END = r"(?![\w:]|[.-]\d|/\s*+[^\W\d]|,\d{3})"
# A set of data before the name of a metric makes it another metric.
_DATA_SET = r"(?i:train|training|val|valid|validation|test|eval|evaluation)"
TRAINING_SETS = ("train", "training")
_CALL_PREFIX = r"(?:(?:tensor|[aA]rray|np\.\w+)\()?"
_PAIR = re.compile(
    rf"(?<![\w./@-])(?:({_DATA_SET})[ _])?([^\W\d][\w./@-]*+)([\"']?)\s*+([=:])(\s*+)[\"']?{_CALL_PREFIX}({_NUMBER})"
    rf"(?:\s*+/\s*+(\d{{1,15}}))?{_NUMBER_END}"
)
_NO_NAMES = frozenset({"is", "are", "was", "of", "to", "at"})  # `the error of the prediction is: 0.5`
_BAR = re.compile(r"%\|[\s\d#█▉▊▋▌▍▎▏]*\|")  # of a progress bar, whose label is before its percentage: `Map: 100%|███|`
_DATA_SET_BEFORE = re.compile(rf"(?<!\w){_DATA_SET}[\s_-]*$")
# A number after such words and a name is where the metric begins or a bound: `Start training from score 0.5`.
_BOUND_BEFORE = re.compile(
    r"(?<!\w)(?:from|than|until|below|above|under)\s+(?:(?:the|best|last|previous)\s+)*$", re.IGNORECASE
)
_ANY_DATA_SET = re.compile(r"train|val|test", re.IGNORECASE)  # also in valid and eval
# A set of data to which the metrics after it belong: `Test set:`, `Train Epoch: 3`, `[VAL]`, `valid |`, `'test': {`, or
# `valid (NDCG: 0.1, HR: 0.2)`.
_HEADING = re.compile(
    rf"(?<![\w./@-])({_DATA_SET})(?:[\])]|[\"']?\s?[:|>](?!\s?[-+]?[\d.])|\s-\s|\s?\((?=[^\W\d][\w@.-]*\s?[:=])|[ _]"
    r"(?i:set|data|dataset|split|phase|results?|stats|metrics|epoch|step|iter|iteration|batch|round)(?!\w))"
)
_SET_OF_LINE = re.compile(rf"\W*({_DATA_SET})[ _](?=[^\W\d])")  # before the first of several: `Train loss: 0.3, acc: 0.9`
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AVERAGES = re.compile(r"\s*+(micro|macro|weighted|samples) avg\s++([\d.]++)\s++([\d.]++)\s++([\d.]++)\s++\d++\s*+$")
# Names of steps, from the finest to the coarsest. If a line has several, the first of these is the step.
STEPS = ("global_step", "step", "iteration", "iter", "round", "epoch")
_EPOCH = STEPS[-1]
_SPELLINGS = {"global_step": ("global step", "global_step"), **{name: (name,) for name in STEPS[1:]}}
# The number of a step after its name, and the number of steps after that.
_COUNT = re.compile(r"[\"']?\s*+(?:[:=#]\s*+)?(?:[\[(]\s*+)?(\d{1,15}(?:\.\d{1,15})?)(?!\w|\.\d)")
_TOTAL = re.compile(r"\s*+/\s*+(\d{1,15})")
_BRACKETS = re.compile(r"\s*+\[(\d{1,15})(?:/\d{1,15})?\]")
_LARGEST_STEP = 2**53
_COLUMNS = re.compile(r"[\s|│┃]+")
_COUNTER = "#"  # name of a column
_COLUMN_NAME = re.compile(rf"{_COUNTER}|[^\W\d][\w./@%-]*")
_PROSE = re.compile(r"\w \w")
_RULE = re.compile(r"[\s=+|:\u2500-\u257f-]*")  # also of the characters for boxes, as ┡━━╇━━┩
_RULE_PART = re.compile(r"[-=:─━═]+")  # below one column
_PIPES = "|│┃"  # between two columns
_NUMERIC = re.compile(r"\d|[nN][aA][nN]|[iI][nN][fF]")
_MAX_NAMES = 10_000  # names in the cache
_MOST_AMBIGUOUS = 20  # names of a metric in nested objects
_DIGITS = re.compile(r"\d")
# The beginning of an object inside another one.
_NESTED = re.compile(r"\{[^{}]*[\"']\s*:\s*\{")
# A part of an object: a key with an object, a list or a number, a text, or a bracket.
_OBJECT_PART = re.compile(
    rf"(?:([\"'])((?:(?!\1).)+)\1|(?<![\w.])(\d+))\s*:\s*(?:([{{\[])|[\"']?{_CALL_PREFIX}({_NUMBER}){_NUMBER_END}[\"']?)"
    r"|\"[^\"\n]*\"|'[^'\n]*'|([{}\[\]])"
)
_SWITCH = re.compile(r"[:=] ?(?:[Tt]rue|[Ff]alse|None|null)\b")
# Usual names of arguments, which are seldom results.
_ARGUMENTS = frozenset(
    {"batch_size", "epochs", "num_epochs", "max_epochs", "num_train_epochs", "max_steps", "warmup_steps", "seed", "workers"}
    | {"num_workers", "lr", "momentum", "weight_decay", "dropout", "eps", "crop_pct", "hidden_size"}
)


class LineMetrics(NamedTuple):
    """The metrics of one line.

    Attributes:
        step: Step that the line names; None if it names no step.
        metrics: Values by name.
        epoch: Epoch that the line names beside the step; None if it names no epoch, or if the epoch is the step.
        steps: Number of steps in that epoch, as 600 in `[100/600]`; None if the line does not name it.
    """

    step: int | None
    metrics: dict[str, float]
    epoch: float | None = None
    steps: int | None = None


class Meaning(NamedTuple):
    """The meaning of a name in a program's output.

    Attributes:
        metric: Metric that it stands for; "" if it has no character that a metric's name may have.
        step_rank: Its place among the names of steps, the finest first; -1 if it is not the name of a step.
    """

    metric: str
    step_rank: int


class Names:
    """The meanings of names in a program's output: a metric or a step.

    Args:
        requested: Metrics that the job names, matched in any case.
        step: Name of the step; "" for the usual ones.

    Attributes:
        ambiguous: Metric that the job names → its names in nested objects if there are several; the first one counts.
    """

    def __init__(self, requested: Collection[str], step: str = "") -> None:
        self.requested = {name.lower(): name for name in requested}
        self.ambiguous: dict[str, tuple[str, ...]] = {}
        self._nested: dict[str, str] = {}  # metric that the job names → its name in nested objects
        self._steps = [step.lower()] if step else [name for name in STEPS if name not in self.requested]
        self.has_own_step = bool(step)
        self._cache: dict[str, Meaning] = {}

    def lookup(self, name: str) -> Meaning:
        """Return the meaning of a name: the metric that it stands for, and its place among the names of steps."""
        if (cached := self._cache.get(name)) is not None:
            return cached
        lower_name = name.lower()
        step_name = lower_name.replace(" ", "_")
        step_rank = self._steps.index(step_name) if step_name in self._steps else -1
        meaning = Meaning(self.requested.get(lower_name) or _stored_name(name), step_rank)
        if len(self._cache) < _MAX_NAMES:
            self._cache[name] = meaning
        return meaning

    def in_data_set(self, name: str, data_set: str) -> str:
        """Return the full name of a metric below the heading of a set of data, as `train_loss`.

        It is the name itself if there is no heading ("" as the set), or if the job names `loss` and not `test_loss`: then
        `loss` is that of held-out data.
        """
        if not data_set:
            return name
        full_name = f"{data_set}_{name}"
        is_held_out = data_set not in TRAINING_SETS
        names_plain_only = name.lower() in self.requested and full_name.lower() not in self.requested
        return name if is_held_out and names_plain_only else full_name

    def add_nested(self, metrics: dict[str, float]) -> None:
        """Add the metrics that the job names and that a record has only in nested objects: `f1` for `overall.f1`.

        The outermost value counts; of several the first one that is not of training. From later records, only the value
        under the same full name is added.
        """
        for lower_name, name in self.requested.items():
            if name in metrics:
                continue
            full_names = [key for key in metrics if key.lower().endswith(f".{lower_name}")]
            if not full_names:
                continue
            full_names.sort(key=lambda key: (key.count("."), _is_of_training(key)))
            chosen = self._nested.setdefault(name, full_names[0])  # the name in the first record that had one
            if chosen in metrics:
                metrics[name] = metrics[chosen]
            known_names = self.ambiguous.get(name, (chosen,))
            new_names = [key for key in full_names if key not in known_names]
            if new_names and len(known_names) < _MOST_AMBIGUOUS:
                self.ambiguous[name] = (*known_names, *new_names)

    def keep_requested(self, line: LineMetrics) -> LineMetrics:
        """Return a line with its step, and only the metrics that the job names."""
        metrics = {name: line.metrics[name] for name in self.requested.values() if name in line.metrics}
        return line._replace(metrics=metrics)

    def split_record(self, values: Mapping[str, float]) -> LineMetrics:
        """Split the numbers of a record into metrics and the step.

        Of several steps the finest counts. It must be a whole number unless the job names it.
        """
        metrics: dict[str, float] = {}
        step, best_rank, epoch = math.nan, len(STEPS), None
        for name, value in values.items():
            metric, rank = self.lookup(name)
            if rank >= 0:
                if self._steps[rank] == _EPOCH:
                    epoch = value
                if rank < best_rank:
                    step, best_rank = value, rank
            elif metric:
                metrics.setdefault(metric, value)
        # NaN, which stands for no step, is not valid. A step that the job names may be a fraction, and is rounded down.
        is_valid_step = 0 <= step < _LARGEST_STEP and (step == int(step) or self.has_own_step)
        is_epoch_the_step = best_rank < len(self._steps) and self._steps[best_rank] == _EPOCH
        return LineMetrics(int(step) if is_valid_step else None, metrics, None if is_epoch_the_step else epoch)


class Epochs:
    """A count of steps through all epochs, for programs whose steps begin anew in each epoch.

    If an epoch has 600 steps, `Epoch [2/5], Step [100/600]` is step 700. If lines do not name the number of steps, it is the
    last step that the epoch has named.
    """

    def __init__(self) -> None:
        self._newest = LineMetrics(None, {})  # the newest line that names an epoch and a step
        self._before = 0  # steps in the epochs before the current one

    def step(self, line: LineMetrics) -> int | None:
        """Return the step of a line, counted from the first epoch on; None if the line names no step."""
        if line.step is None:
            return None
        if line.epoch is None:
            return self._before + line.step
        previous, self._newest = self._newest, line
        if previous.epoch is not None and previous.step is not None:
            steps_began_anew = line.epoch > previous.epoch and line.step <= previous.step
            if steps_began_anew and previous.steps:  # epochs between the two lines have as many, and may print nothing
                self._before += (int(line.epoch) - int(previous.epoch)) * previous.steps
            elif steps_began_anew:
                self._before += previous.step
        return self._before + line.step


class LineParser:
    """Finds the metrics of a program's output, line by line.

    With expressions of the job, only these count. Otherwise the first of these forms that a line has counts: a row of a
    table, a JSON object, averages of scikit-learn's report, and pairs of names and numbers, with the metrics that the job
    names in any spelling.

    Args:
        patterns: Job's own regular expressions; empty to find the forms above.
        names: Meanings of the names.
        arguments: Names of the program's arguments. In a line that has mostly arguments and no step, only the metrics that
            the job names count.
    """

    def __init__(self, patterns: Sequence[str], names: Names, arguments: Collection[str] = ()) -> None:
        self._names = names
        self._arguments = _ARGUMENTS | {name.lower() for name in arguments}  # in lower case
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._spellings = {} if patterns else {name: _spellings(name) for name in names.requested.values()}
        self._names_by_column = {_column_key(name): name for name in names.requested.values()}
        self._header: list[str] = []  # columns of the table to which the next line may belong; empty outside a table
        self._spans: Sequence[tuple[int, int]] = ()  # positions of the columns; empty if no rule below the header shows them
        self._counter: int | None = None  # index of the column "#", which is the step
        self._line_above = ""  # line that is a header if the next line is a rule

    def parse(self, line: str) -> LineMetrics:
        """Return the metrics and the step of the next line of the output."""
        names = self._names
        if len(line) > LONGEST_LINE:  # the cut may be inside a name, so no number near it is read
            cut = len(line) - LONGEST_LINE
            line = _DIGITS.sub("x", line[cut : cut + _LONGEST_NAME]) + line[cut + _LONGEST_NAME :]
        if "\x1b" in line:
            line = _COLOR.sub("", line)
        has_pairs = "=" in line and not _RULE.fullmatch(line)  # a rule may consist of =
        may_be_table = bool(names.requested) and not self._patterns and not has_pairs
        if may_be_table and (row := self._table_metrics(line)) is not None:
            return row
        if not _NUMERIC.search(line):
            return LineMetrics(None, {})
        if self._patterns:
            return names.split_record(dict(_pattern_pairs(self._patterns, line)))
        if line.lstrip().startswith("{") and (record := _json_numbers(line)) is not None:
            return self._record_metrics(record, line)
        if (averages := _AVERAGES.match(line)) is not None:
            return names.split_record(dict(_report_averages(averages)))
        nested = _NESTED.search(line)
        if nested is not None and not headings_of(line):
            record = {**_pairs(line[: nested.start()], names, []), **object_numbers(line[nested.start() :])}
            line_metrics = self._record_metrics(record, line)
        else:
            line_metrics = self._named_metrics(line)
        if line_metrics.step is None and not names.has_own_step:
            line_metrics = _add_named_step(line_metrics, line)
        return self._without_arguments(line_metrics, line)

    def parse_object(self, text: str) -> LineMetrics:
        """Return the metrics and the step of an object in several lines."""
        return self._record_metrics(object_numbers(text), text)

    def _record_metrics(self, record: Mapping[str, float], text: str) -> LineMetrics:
        """Return the metrics and the step of an object, by the numbers in its text."""
        line_metrics = self._names.split_record(record)
        self._names.add_nested(line_metrics.metrics)
        return self._without_arguments(line_metrics, text)

    def _table_metrics(self, line: str) -> LineMetrics | None:
        """Return the metrics of a row of a table; None if the line is not in a table.

        For a header, which is recorded for the rows below it, return a line without metrics.
        """
        line_above, self._line_above = self._line_above, ""
        if (self._header or line_above) and _RULE.fullmatch(line):
            self._begin_table_above_rule(line_above, line)
            return None  # a rule inside a table does not end it
        if not self._header:  # only a header can begin a table; most lines cannot be one, so they end here
            lower_line = _column_key(line)
            if not any(key in lower_line for key in self._names_by_column):
                return None
        self._line_above = line
        words = [word for word in _COLUMNS.split(line) if word]
        has_only_names = len(words) > 1 and all(map(_COLUMN_NAME.fullmatch, words)) and not _PROSE.search(line)
        if has_only_names:
            self._header = []
            # scikit-learn's report has a column "support". Its averages are read by `_report_averages`.
            is_header = "support" not in words and self._begin_table(words)
            return LineMetrics(None, {}) if is_header else None
        if self._header and (values := self._row_values(line, words)):
            return self._names.split_record(values)
        self._header = []
        return None

    def _begin_table_above_rule(self, line_above: str, rule: str) -> None:
        """Begin a table if the line above a rule is its header, with the positions of the columns by the rule's parts."""
        spans = [match.span() for match in _RULE_PART.finditer(rule)]
        columns = _cells(line_above, spans) if len(spans) > 1 else None
        # A row of values above a rule between rows is not a header.
        if columns is not None and all(number(column.rstrip(" %")) is None for column in columns):
            self._begin_table(columns, spans)

    def _begin_table(self, columns: Sequence[str], spans: Sequence[tuple[int, int]] = ()) -> bool:
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
        self._header = [names.get(key, column) for key, column in zip(keys, columns, strict=True)]
        self._spans = spans
        self._counter = columns.index(_COUNTER) if _COUNTER in columns else None
        return True

    def _row_values(self, line: str, words: Sequence[str]) -> dict[str, float]:
        """Return the numbers of a line in a table by their columns; empty if it is not a row.

        Args:
            line: The line.
            words: Its words, which are the cells if the positions of the columns are not known.
        """
        column_count = len(self._header)
        cells: Sequence[str] = []
        if self._spans:
            cells = _cells(line, self._spans) or []
        filled_count = sum(cell != "" for cell in cells)
        if 2 * filled_count <= column_count:  # the text is not in these columns, or is hardly a row
            # A row of pandas begins with an index, which has no name in the header.
            is_row = len(words) == column_count or (len(words) == column_count + 1 and not self._spans)
            cells = words[-column_count:] if is_row else []
        # A line below `# Accuracy`, which is perhaps no header, is a row only if it has the number.
        if not cells or (self._counter is not None and number(cells[self._counter]) is None):
            return {}
        values = ((name, number(text.rstrip(" %"))) for name, text in zip(self._header, cells, strict=True))
        return {name: value for name, value in values if name and value is not None}

    def _named_metrics(self, line: str) -> LineMetrics:
        """Return the numbers of a line by the names beside them, and the metrics that the job names in any spelling."""
        names = self._names
        headings = headings_of(line) if _ANY_DATA_SET.search(line) else []
        line_metrics = names.split_record(_pairs(line, names, headings))
        for name, name_spellings in self._spellings.items():
            if name in line_metrics.metrics:
                continue
            for spelled_name, patterns in name_spellings:
                if (value := _spelled_value(name, spelled_name, patterns, line, headings, names)) is not None:
                    line_metrics.metrics.setdefault(name, value)
        return line_metrics

    def _without_arguments(self, line_metrics: LineMetrics, line: str) -> LineMetrics:
        """Return a line's metrics; only those that the job names if the line seems to list the program's arguments."""
        count = len(line_metrics.metrics)
        if line_metrics.step is not None or count < 2:
            return line_metrics
        argument_count = sum(name.lower() in self._arguments for name in line_metrics.metrics)
        lists_arguments = argument_count > 1 and (2 * argument_count > count or _SWITCH.search(line) is not None)
        return self._names.keep_requested(line_metrics) if lists_arguments else line_metrics


def _is_of_training(name: str) -> bool:
    """Return whether a part of a dotted name is a set of training data, as in `train.f1`."""
    return not set(TRAINING_SETS).isdisjoint(name.lower().split("."))


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


def number(text: str) -> float | None:
    """Return the number that a text is; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def numbers(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of nested objects, by dotted names. True and false are not numbers."""
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            yield from numbers(nested, f"{prefix}{name}.")
        elif isinstance(nested, (int, float)) and not isinstance(nested, bool):
            with contextlib.suppress(OverflowError):  # a whole number that no float can hold
                yield prefix + str(name), float(nested)


def _stored_name(name: str) -> str:
    """Return the name under which MLflow accepts a metric; "" if no character of it is allowed."""
    cleaned = re.sub(r"[^\w./ -]", "_", name).strip("/. ")
    return re.sub(r"/+", "/", cleaned)[:_LONGEST_NAME]


def _pattern_pairs(patterns: Sequence[re.Pattern[str]], line: str) -> Iterator[tuple[str, float]]:
    """Yield the name and the number of each match of a job's own expressions; skip matches without a number."""
    for pattern in patterns:
        for match in pattern.finditer(line):
            for name, text in _name_text_pairs(match):
                value = number(text.strip("\"' %")) if text else None
                if name and value is not None:
                    yield name.strip(), value


def _name_text_pairs(match: re.Match[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield the names and the texts of the values of a match, each None if its group did not take part in the match.

    An expression has the groups `name` and `value`, or groups with the names of metrics, or two groups without names.
    """
    groups = match.groupdict()
    if {"name", "value"} <= groups.keys():
        yield groups["name"], groups["value"]
    elif groups:
        yield from groups.items()
    else:
        yield match[1], match[2]


def _json_numbers(line: str) -> dict[str, float] | None:
    """Return the numbers of a JSON object, except those in objects with a name like `args`; None if it is not an object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    results = {name: value for name, value in record.items() if not (isinstance(value, dict) and is_argument_word(name))}
    return dict(numbers(results))


def object_numbers(text: str) -> dict[str, float]:
    """Return the numbers of an object of JSON or Python, by dotted names, except those in lists and in objects like `args`.

    The object may have values that are neither JSON nor literals, as `tensor(0.3)`.
    """
    values: dict[str, float] = {}
    path: list[str] = []  # keys of the open objects, "" for the outermost one, and "[" for lists
    for match in _OBJECT_PART.finditer(text):
        _, quoted_key, integer_key, bracket_after_key, number_text, other_bracket = match.groups()
        key = quoted_key or integer_key or ""
        if other_bracket in ("}", "]"):
            path = path[:-1]
            if not path:
                break
        elif opening := bracket_after_key or other_bracket:
            path.append("[" if opening == "[" else key)
        elif number_text and "[" not in path and not any(map(is_argument_word, path)):
            values.setdefault(".".join([*filter(None, path), key]), float(number_text))
    return values


def headings_of(line: str) -> list[tuple[int, str]]:
    """Return the sets of data that a line names as headings, each with the position in the line from which it counts.

    If a line has no heading but begins with a set of data and names no other set, this one counts for the whole line.
    """
    if headings := [(match.end(), match[1].lower()) for match in _HEADING.finditer(line)]:
        return headings
    match = _SET_OF_LINE.match(line)
    return [(match.end(), match[1].lower())] if match and not _ANY_DATA_SET.search(line, match.end()) else []


def _data_set_at(position: int, headings: Sequence[tuple[int, str]]) -> str:
    """Return the set of data of a position in a line, by the last heading before it; "" without one."""
    return next((data_set for begin, data_set in reversed(headings) if begin <= position), "")


def _pairs(line: str, names: Names, headings: Sequence[tuple[int, str]]) -> dict[str, float]:
    """Return the numbers of a line by their names; a fraction as its value. Of a repeated name the first number counts."""
    pairs: dict[str, float] = {}
    for match in _PAIR.finditer(line):
        data_set, name, quote, sign, space, text, total = match.groups()
        if name.lower() in _NO_NAMES and name.lower() not in names.requested:
            continue
        is_step = names.lookup(name).step_rank >= 0  # the name of a step has no set of data
        if data_set and not is_step:  # directly before the name
            name = f"{data_set.lower()}_{name}"
        elif not is_step:
            full_name = names.in_data_set(name, _data_set_at(match.start(), headings))
            if full_name not in pairs:  # a second `acc` below the heading is not of its set
                name = full_name
        if _BAR.match(line, match.end()):
            continue
        is_written_as_port = sign == ":" and not (space or quote or "." in text or "e" in text)  # as in localhost:8080
        if is_written_as_port and name.lower() not in names.requested:
            continue
        value = float(text)
        is_fraction = total and int(total) and names.lookup(name).step_rank < 0  # in `step: 3/10`, the step is 3
        if is_fraction:
            value /= int(total)
        pairs.setdefault(name, value)
    return pairs


def _report_averages(row: re.Match[str]) -> Iterator[tuple[str, float]]:
    """Yield the averages in a row of scikit-learn's classification report."""
    average, *texts = row.groups()
    for score, text in zip(("precision", "recall", "f1"), texts, strict=True):
        if (value := number(text)) is not None:
            yield f"{score}_{average}", value


def _spelling_patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Return expressions that find a metric's value by its name in any spelling; none if the name has no letter or digit.

    The first one finds a value after the name, as `val loss 2.1`; the second one a value before it, as `0.98 accuracy`.
    """
    words = [re.escape(word) for word in re.split(r"[\W_]+", name) if word]
    if not words:
        return ()
    spelling = r"(?:['’]s\b)?[\s_./@'’-]*".join(words)
    # Between the name and its value: other words and a sign as `:`, or `on the 100 images:`, or `at step 20:`, or `is`, or
    # `AVG`, or `->`, or `has been updated to`, or `improved from 0.4 to`, or `decreased (0.4 -->`,
    # or nothing.
    between = (
        r"(?:[^\d:=|│┃,;\n]{0,40}?[:=|│┃]|\s+(?:on|of|over)\s[^:=|,;\n]{0,60}?[:=]"
        # Only before a decimal number: `loss average 10 batches` has none.
        rf"|\s+(?:at|after|in)\s+(?:{'|'.join(STEPS)})\s+\d{{1,15}}\s*+[:=](?=\s*+[-+]?\d*\.\d)"
        r"|\s+(?:avg|average|mean|score|value)\b(?=\s*+[-+]?\d*\.\d)|\s*+is\b|\s*+->"
        r"|(?:\s+(?:has|have|was|were|is|been)){0,2}\s+(?:updated|improved|increased|decreased|reduced|dropped|changed)"
        rf"(?:(?:\s+from\s+{_NUMBER}\s?%?)?\s+to(?=\s)|\s+\({_NUMBER}\s*+-+>))?"
    )
    value_after = rf"(?<!\w){spelling}(?!\w)[\"']?{between}\s*+{_CALL_PREFIX}({_NUMBER}){_NUMBER_END}"
    value_before = rf"(?:^|[:=|,;(]) *+(\d*\.\d+|\d+(?:\.\d+)?(?= ?%)) ?%? ++{spelling}(?!\w)"
    return re.compile(value_after, re.IGNORECASE), re.compile(value_before, re.IGNORECASE)


def _spellings(name: str) -> list[tuple[str, tuple[re.Pattern[str], ...]]]:
    """Return the names under which a metric appears in lines, with the expressions that find them.

    These are its name, and for `test_loss` also `loss`, which counts below a heading `Test` alone.
    """
    data_set = re.match(rf"{_DATA_SET}_", name)
    names = [name, name[data_set.end() :]] if data_set else [name]
    return [(spelled_name, _spelling_patterns(spelled_name)) for spelled_name in names]


def _spelled_value(
    name: str,
    spelled_name: str,
    patterns: Sequence[re.Pattern[str]],
    line: str,
    headings: Sequence[tuple[int, str]],
    names: Names,
) -> float | None:
    """Return the value of a metric in any spelling; None if the line has none.

    A value of another set of data does not count, as in `train accuracy`, and no bound, as in `better than accuracy 0.9`.
    Of pairs the words before them are not read: `better than accuracy: 0.9` is a value.

    Args:
        name: Metric that the job names.
        spelled_name: Its name in the line, perhaps without the set of data that a heading names.
        patterns: Expressions that find it in any spelling.
        line: The line.
        headings: Sets of data that the line names.
        names: Meanings of names.
    """
    follows_other_set = False  # in `train accuracy 0.1, accuracy 0.5`, the second value is not one of training
    for match in itertools.chain.from_iterable(pattern.finditer(line) for pattern in patterns):
        text_before = line[max(0, match.start() - 30) : match.start()]
        if _BAR.match(line, match.end()) or _BOUND_BEFORE.search(text_before):
            continue
        if _DATA_SET_BEFORE.search(text_before):
            follows_other_set = True
            continue
        data_set = "" if follows_other_set else _data_set_at(match.start(), headings)
        if names.in_data_set(spelled_name, data_set).lower() == name.lower():
            return float(match[1])
    return None


def _add_named_step(line_metrics: LineMetrics, line: str) -> LineMetrics:
    """Return the metrics of a line with the step that it names in words or brackets, if it names one.

    Such lines are `Epoch [3/10]`, `iter 100` and `[12] train-rmse:0.3`. A line whose step is not a whole number has none.
    """
    metrics, lower_line = line_metrics.metrics, line.lower()
    for name in STEPS:  # the finest first
        step_match = _step_match(name, lower_line)
        if step_match is None:
            continue
        step = float(step_match[1])
        if step != int(step):
            return line_metrics
        epoch_match = None if name == _EPOCH else _step_match(_EPOCH, lower_line)
        if epoch_match is None:
            return LineMetrics(int(step), metrics)
        total_match = _TOTAL.match(lower_line, step_match.end())
        total = None if total_match is None else int(total_match[1])
        return LineMetrics(int(step), metrics, float(epoch_match[1]), total)
    brackets = _BRACKETS.match(line)
    return line_metrics if brackets is None else LineMetrics(int(brackets[1]), metrics)


def _step_match(name: str, line: str) -> re.Match[str] | None:
    """Return the match of the number after a step's name in a line in lower case; None if the line lacks one."""
    for spelling in _SPELLINGS[name]:
        position = line.find(spelling)
        while position >= 0:
            match = _COUNT.match(line, position + len(spelling))
            is_word_start = position == 0 or not (line[position - 1].isalnum() or line[position - 1] == "_")
            if match and is_word_start:
                return match
            position = line.find(spelling, position + 1)
    return None
