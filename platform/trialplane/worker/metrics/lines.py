"""Find metrics in lines of text: `name=0.93`, `name: 0.93`, JSON, a progress bar's postfix, or by a job's own patterns.

Pure: text in, numbers out. In a line without a declared pattern these are metrics:

- pairs of a name and a number with = or : between, the name perhaps in quotes: `loss=0.3`, `'eval_loss': 0.3`, `acc: 93.1%`;
- a line that is a JSON object: its numbers, those of nested objects under dotted names;
- a metric that the job names, however it is written: `val_loss` also in `val loss 2.1` and `Val Loss = 2.1`, `accuracy` in
  `0.98 accuracy` and `Accuracy on the 100 images: 54 %`;
- `accuracy: 9870/10000`, a fraction, as its value;
- a row of a table whose header has a metric that the job names: `epoch  train_loss  valid_acc`, and below it numbers;
- the averages in scikit-learn's classification report, under the names of its scorers: `f1_macro`, `recall_weighted`.

`Test accuracy: 0.9` is a metric `test_accuracy`: a value of another set of data is not that of `accuracy`.

The step is such a number with the name `global_step`, `step`, `iteration`, `epoch` or `round`, as in `Epoch [3/10]`,
or a number in brackets at the beginning of a line, as in XGBoost's `[12]` and in `[3/10]`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from trialplane.worker.metrics.passages import is_argument_word

LONGEST_LINE = 16 << 10  # characters; of a longer line only the end is read, where a progress bar has its postfix
_LONGEST_NAME = 250  # characters that MLflow stores

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)"
# What may not follow a number: 3fa9, 1.2.3, 10:31, 2024-01-02, 11/s, 1,234 have none.
_NUMBER_END = r"(?![\w:]|[.-]\d|/\s*+[^\W\d]|,\d{3})"
# A set of data before the name of a metric makes it another metric.
_DATA_SET = r"(?i:train|training|val|valid|validation|test|eval|evaluation)"
_CALL_PREFIX = r"(?:(?:tensor|[aA]rray|np\.\w+)\()?"
_PAIR = re.compile(
    rf"(?<![\w./@-])(?:({_DATA_SET})[ _])?([^\W\d][\w./@-]*+)([\"']?)\s*+([=:])(\s*+)[\"']?{_CALL_PREFIX}({_NUMBER})"
    rf"(?:\s*+/\s*+(\d{{1,15}}))?{_NUMBER_END}"
)
_DATA_SET_BEFORE = re.compile(rf"(?<!\w){_DATA_SET}[\s_-]*$")
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AVERAGES = re.compile(r"\s*+(micro|macro|weighted|samples) avg\s++([\d.]++)\s++([\d.]++)\s++([\d.]++)\s++\d++\s*+$")
# Names of steps, from the finest to the coarsest. If a line has several, the first of these is the step.
STEPS = ("global_step", "step", "iteration", "iter", "round", "epoch")
_WORDS = {"global_step": ("global step", "global_step"), **{name: (name,) for name in STEPS[1:]}}
# The number of a step after its name, and the number of steps after that.
_COUNT = re.compile(r"[\"']?\s*+(?:[:=#]\s*+)?(?:[\[(]\s*+)?(\d{1,15}(?:\.\d{1,15})?)(?!\w|\.\d)")
_TOTAL = re.compile(r"\s*+/\s*+(\d{1,15})")
_BRACKETS = re.compile(r"\s*+\[(\d{1,15})(?:/\d{1,15})?\]")
_LARGEST_STEP = 2**53
_COLUMNS = re.compile(r"[\s|│┃]+")
_COLUMN_NAME = re.compile(r"[^\W\d][\w./@%-]*")
_PROSE = re.compile(r"\w \w")
_RULE = frozenset(" \t-=+|│┃─━┼╇┡╪:")
_NUMERIC = re.compile(r"\d|[nN][aA][nN]|[iI][nN][fF]")
_MAX_NAMES = 10_000  # names in the cache
_DIGITS = re.compile(r"\d")
_SWITCH = re.compile(r"[:=] ?(?:[Tt]rue|[Ff]alse|None|null)\b")
# Usual names of arguments, which are seldom results.
_ARGUMENTS = frozenset(
    {"batch_size", "epochs", "num_epochs", "max_epochs", "num_train_epochs", "max_steps", "warmup_steps", "seed", "workers"}
    | {"num_workers", "lr", "momentum", "weight_decay", "dropout", "eps", "crop_pct", "hidden_size"}
)


class LineMetrics(NamedTuple):
    """The metrics of one line.

    Attributes:
        step: Step that the line names, or None.
        metrics: Values by name.
        epoch: Epoch of a step that counts within an epoch.
        steps: Number of steps in that epoch, as in `[100/600]`.
    """

    step: int | None
    metrics: dict[str, float]
    epoch: float | None = None
    steps: int | None = None


class Names:
    """The meanings of names in a program's output: a metric or a step.

    Args:
        requested: Metrics that the job names, matched in any case.
        step: Name of the step; "" for the usual ones.
    """

    def __init__(self, requested: Collection[str], step: str = "") -> None:
        self.requested = {name.lower(): name for name in requested}
        self._steps = [step.lower()] if step else [name for name in STEPS if name not in self.requested]
        self.has_own_step = bool(step)
        self._cache: dict[str, tuple[str, int]] = {}

    def lookup(self, name: str) -> tuple[str, int]:
        """Return the metric that a name stands for, or "", and its rank among the names of steps, or -1."""
        if (cached := self._cache.get(name)) is not None:
            return cached
        lower = name.lower()
        spelling = lower.replace(" ", "_")
        result = (
            self.requested.get(lower) or _stored_name(name),
            self._steps.index(spelling) if spelling in self._steps else -1,
        )
        if len(self._cache) < _MAX_NAMES:
            self._cache[name] = result
        return result

    def keep_requested(self, line: LineMetrics) -> LineMetrics:
        """Return a line with its step, and only the metrics that the job names."""
        metrics = {name: line.metrics[name] for name in self.requested.values() if name in line.metrics}
        return line._replace(metrics=metrics)

    def split_record(self, values: Mapping[str, float]) -> LineMetrics:
        """Split the numbers of a record into metrics and the step."""
        metrics: dict[str, float] = {}
        step, best_rank, epoch = math.nan, len(STEPS), None
        for name, value in values.items():
            metric, rank = self.lookup(name)
            if rank >= 0:
                if self._steps[rank] == STEPS[-1]:
                    epoch = value
                if rank < best_rank:
                    step, best_rank = value, rank
            elif metric:
                metrics.setdefault(metric, value)
        is_step = 0 <= step < _LARGEST_STEP and (step == int(step) or self.has_own_step)
        is_epoch = best_rank < len(self._steps) and self._steps[best_rank] == STEPS[-1]
        return LineMetrics(int(step) if is_step else None, metrics, None if is_epoch else epoch)


class Epochs:
    """A count of steps through all epochs, for lines that name both and steps that begin anew in each epoch.

    `Epoch [2/5], Step [100/600]` is step 700. If lines do not name the number of steps, an epoch has as many as the last
    step that was named in it.
    """

    def __init__(self) -> None:
        self._newest = LineMetrics(None, {})  # the newest line with both
        self._before = 0  # steps in the epochs before the current one

    def step(self, line: LineMetrics) -> int | None:
        """Return the step of a line, counted from the first epoch on; None if the line names no step."""
        if line.step is None:
            return None
        if line.epoch is not None:
            last, self._newest = self._newest, line
            if last.epoch is not None and last.step is not None and line.epoch > last.epoch and line.step <= last.step:
                # Epochs between them may have printed nothing.
                epochs = int(line.epoch) - int(last.epoch) if last.steps else 1
                self._before += epochs * (last.steps or last.step)
        return self._before + line.step


Parse = Callable[[str], LineMetrics]


def parser(patterns: Sequence[str], names: Names, arguments: Collection[str] = ()) -> Parse:
    """Return a function that finds the metrics of one line.

    Args:
        patterns: Job's own regular expressions; the usual forms when there are none.
        names: What the names stand for; those that the job names are found with spaces for underscores, too.
        arguments: Names of the program's arguments. In a line with mostly these and no step, only metrics that the job names
            count.
    """
    arguments_lower = _ARGUMENTS | {name.lower() for name in arguments}
    compiled = [re.compile(pattern) for pattern in patterns]
    spellings = {} if compiled else {name: _spelling_patterns(name) for name in names.requested.values()}
    keys_to_names = {_key(name): name for name in names.requested.values()}
    keys = keys_to_names.keys()
    header: list[str] = []  # of the table to which the next line may belong

    def table_row(line: str) -> LineMetrics | None:
        """Return the metrics of a line of a table, none of a header; None if it is no part of a table."""
        lower = "" if header else _key(line)
        if not header and not any(key in lower for key in keys):
            return None
        columns = [column for column in _COLUMNS.split(line) if column]
        if len(columns) > 1 and all(map(_COLUMN_NAME.fullmatch, columns)) and not _PROSE.search(line):
            is_table = not keys.isdisjoint(map(_key, columns)) and "support" not in columns  # scikit-learn's has averages
            header[:] = columns if is_table else []
            return LineMetrics(None, {}) if header else None
        if header and len(columns) in (len(header), len(header) + 1):
            cells = zip(header, columns[-len(header) :], strict=True)  # the index of a row of pandas has no name
            values = {
                keys_to_names.get(_key(name), name): value for name, text in cells if (value := number(text)) is not None
            }
            if values:
                return names.split_record(values)
        if not _RULE.issuperset(line):
            header.clear()
        return None

    def parse(line: str) -> LineMetrics:
        if len(line) > LONGEST_LINE:  # the first number is dropped, as its name may be cut
            cut = len(line) - LONGEST_LINE
            line = _DIGITS.sub("x", line[cut : cut + _LONGEST_NAME]) + line[cut + _LONGEST_NAME :]
        if names.requested and not compiled and "=" not in line and (row := table_row(line)) is not None:
            return row
        if not _NUMERIC.search(line):
            return LineMetrics(None, {})
        if "\x1b" in line:
            line = _COLOR.sub("", line)
        if compiled:
            return names.split_record(dict(_pattern_pairs(compiled, line)))
        if line.lstrip().startswith("{") and (numbers := _json_numbers(line)) is not None:
            return without_arguments(names.split_record(numbers), line)
        if (averages := _AVERAGES.match(line)) is not None:
            return names.split_record(dict(_report_averages(averages)))
        result = names.split_record(_pairs(line, names))
        for name, name_patterns in spellings.items():
            if name not in result.metrics and (value := _spelled_value(name_patterns, line)) is not None:
                result.metrics[name] = value
        return (
            result
            if result.step is not None or names.has_own_step
            else without_arguments(_add_named_step(result, line), line)
        )

    def without_arguments(result: LineMetrics, line: str) -> LineMetrics:
        if result.step is not None or len(result.metrics) < 2:
            return result
        count = sum(name.lower() in arguments_lower for name in result.metrics)
        is_dump = count > 1 and (2 * count > len(result.metrics) or _SWITCH.search(line) is not None)
        return names.keep_requested(result) if is_dump else result

    return parse


def _key(name: str) -> str:
    return name.lower().replace("-", "_")


def number(text: str) -> float | None:
    """Return a number as programs print it, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def numbers(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of nested objects, by dotted names; without true and false."""
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            yield from numbers(nested, f"{prefix}{name}.")
        elif isinstance(nested, (int, float)) and not isinstance(nested, bool):
            with contextlib.suppress(OverflowError):  # a whole number that no float can hold
                yield prefix + str(name), float(nested)


def _stored_name(name: str) -> str:
    """Return a name as MLflow stores it."""
    cleaned = re.sub(r"[^\w./ -]", "_", name).strip("/. ")
    return re.sub(r"/+", "/", cleaned)[:_LONGEST_NAME]


def _pattern_pairs(patterns: Sequence[re.Pattern[str]], line: str) -> Iterator[tuple[str, float]]:
    for pattern in patterns:
        for match in pattern.finditer(line):
            for name, value in _name_value_pairs(match):
                if name and value and (read := number(value.strip("\"' %"))) is not None:
                    yield name.strip(), read


def _name_value_pairs(match: re.Match[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield names and values of a match, by its groups.

    These are the groups `name` and `value`, or groups that have the names of metrics, or the first two groups.
    """
    groups = match.groupdict()
    if {"name", "value"} <= groups.keys():
        yield groups["name"], groups["value"]
    elif groups:
        yield from groups.items()
    else:
        yield match[1], match[2]


def _json_numbers(line: str) -> dict[str, float] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return dict(
        numbers(
            {name: number for name, number in value.items() if not (isinstance(number, dict) and is_argument_word(name))}
        )
    )


def _pairs(line: str, names: Names) -> dict[str, float]:
    """Return the pairs of a name and a number in a line; a fraction as its value."""
    pairs: dict[str, float] = {}
    for data_set, name, quote, sign, space, text, total in _PAIR.findall(line):
        if data_set and names.lookup(name)[1] < 0:
            name = f"{data_set.lower()}_{name}"
        if sign == ":" and not (space or quote or "." in text or "e" in text or name.lower() in names.requested):
            continue  # localhost:8080
        value = float(text)
        if total and int(total) and names.lookup(name)[1] < 0:
            value /= int(total)
        pairs.setdefault(name, value)
    return pairs


def _report_averages(row: re.Match[str]) -> Iterator[tuple[str, float]]:
    """Yield the averages in a row of scikit-learn's classification report."""
    for name, text in zip(("precision", "recall", "f1"), row.groups()[1:], strict=True):
        if (value := number(text)) is not None:
            yield f"{name}_{row[1]}", value


def _spelling_patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Return expressions that find a metric in any spelling, the first one before its value, the second one after it."""
    words = [re.escape(word) for word in re.split(r"[\W_]+", name) if word]
    if not words:
        return ()
    text = r"(?:['’]s\b)?[\s_./@'’-]*".join(words)
    between = r"(?:[^\d:=|│┃,;\n]{0,40}?[:=|│┃]|\s+(?:on|of|over)\s[^:=|,;\n]{0,60}?[:=]|\s*+is\b|\s*+->)?"
    after = rf"(?<!\w){text}(?!\w)[\"']?{between}\s*+{_CALL_PREFIX}({_NUMBER}){_NUMBER_END}"
    before = rf"(?:^|[:=|,;(]) *+(\d*\.\d+|\d+(?:\.\d+)?(?= ?%)) ?%? ++{text}(?!\w)"
    return re.compile(after, re.IGNORECASE), re.compile(before, re.IGNORECASE)


def _spelled_value(name_patterns: Sequence[re.Pattern[str]], line: str) -> float | None:
    """Return the value of a metric in any spelling, except for another set of data, as in `train accuracy`; or None."""
    for match in itertools.chain.from_iterable(form.finditer(line) for form in name_patterns):
        if not _DATA_SET_BEFORE.search(line[max(0, match.start() - 20) : match.start()]):
            return float(match[1])
    return None


def _add_named_step(result: LineMetrics, line: str) -> LineMetrics:
    """Add the step that a line names in words or brackets: `Epoch [3/10]`, `iter 100`, `[12] train-rmse:0.3`."""
    lower = line.lower()
    for name in STEPS:
        if _WORDS[name][-1][-4:] not in lower or (match := _step_match(name, lower)) is None:
            continue
        value = float(match[1])
        if value != int(value):
            return result
        epoch = None if name == STEPS[-1] else _step_match(STEPS[-1], lower)
        steps = None if epoch is None else _TOTAL.match(lower, match.end())
        return LineMetrics(
            int(value), result.metrics, None if epoch is None else float(epoch[1]), None if steps is None else int(steps[1])
        )
    match = _BRACKETS.match(line)
    return result if match is None else LineMetrics(int(match[1]), result.metrics)


def _step_match(name: str, line: str) -> re.Match[str] | None:
    """Return the match of a step with this name in a line, or None."""
    for word in _WORDS[name]:
        at = line.find(word)
        while at >= 0:
            match = _COUNT.match(line, at + len(word))
            if match and not (at and (line[at - 1].isalnum() or line[at - 1] == "_")):
                return match
            at = line.find(word, at + 1)
    return None
