"""Find metrics in lines of text: `name=0.93`, `name: 0.93`, JSON, a progress bar's postfix, or by a job's own patterns.

Pure: text in, numbers out. Of a line without a declared pattern these count:

- pairs of a name and a number with = or : between, the name perhaps in quotes: `loss=0.3`, `'eval_loss': 0.3`, `acc: 93.1%`;
- a line that is a JSON object: its numbers, those of nested objects under dotted names;
- a metric that the job names, however it is written: `val_loss` also in `val loss 2.1` and `Val Loss = 2.1`, `accuracy` in
  `0.98 accuracy` and `Accuracy on the 100 images: 54 %`;
- `accuracy: 9870/10000`, a fraction, as its value;
- the averages in scikit-learn's classification report, under the names of its scorers: `f1_macro`, `recall_weighted`.

`Test accuracy: 0.9` is a metric `test_accuracy`: a value of another set of data is not that of `accuracy`.

The step is a number of that kind with the name `global_step`, `step`, `iteration`, `epoch` or `round`, as in `Epoch [3/10]`,
or the first thing in a line in brackets, as in XGBoost's `[12]` and in `[3/10]`.
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

LONGEST_LINE = 16 << 10  # characters; of a longer one the end counts, where a progress bar has its postfix
_LONGEST_NAME = 250  # characters that MLflow keeps

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)"
# Not a number after all: 3fa9, 1.2.3, 10:31, 2024-01-02, 11/s, 1,234.
_NO_MORE = r"(?![\w:]|[.-]\d|/\s*+[^\W\d]|,\d{3})"
_SET = r"(?i:train|training|val|valid|validation|test|eval|evaluation)"  # before a name: another metric than the name alone
_CALL = r"(?:(?:tensor|[aA]rray|np\.\w+)\()?"
_PAIR = re.compile(
    rf"(?<![\w./@-])(?:({_SET})[ _])?([^\W\d][\w./@-]*+)([\"']?)\s*+([=:])(\s*+)[\"']?{_CALL}({_NUMBER})"
    rf"(?:\s*+/\s*+(\d{{1,15}}))?{_NO_MORE}"
)
_SET_BEFORE = re.compile(rf"(?<!\w){_SET}[\s_-]*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AVERAGES = re.compile(r"\s*+(micro|macro|weighted|samples) avg\s++([\d.]++)\s++([\d.]++)\s++([\d.]++)\s++\d++\s*+$")
# From the finest to the coarsest: of several in a line the first of these is the step.
STEPS = ("global_step", "step", "iteration", "iter", "round", "epoch")
_WORDS = {"global_step": ("global step", "global_step"), **{name: (name,) for name in STEPS[1:]}}
_COUNT = re.compile(r"[\"']?\s*+(?:[:=#]\s*+)?(?:[\[(]\s*+)?(\d{1,15}(?:\.\d{1,15})?)(?!\w|\.\d)")  # after such a word
_OF = re.compile(r"\s*+/\s*+(\d{1,15})")  # after such a number
_BRACKETS = re.compile(r"\s*+\[(\d{1,15})(?:/\d{1,15})?\]")
_LARGEST_STEP = 2**53
_NUMERIC = re.compile(r"\d|[nN][aA][nN]|[iI][nN][fF]")
_MOST_NAMES = 10_000  # that are remembered
_DIGITS = re.compile(r"\d")
_SWITCH = re.compile(r"[:=] ?(?:[Tt]rue|[Ff]alse|None|null)\b")
# Arguments of programs, which are seldom results.
_ARGUMENTS = frozenset(
    {"batch_size", "epochs", "num_epochs", "max_epochs", "num_train_epochs", "max_steps", "warmup_steps", "seed", "workers"}
    | {"num_workers", "lr", "momentum", "weight_decay", "dropout", "eps", "crop_pct", "hidden_size"}
)


class LineMetrics(NamedTuple):
    """Metrics of one line by name, and its step, or None.

    Beside a step that counts within an epoch: that epoch, and its number of steps, as in `[100/600]`.
    """

    step: int | None
    metrics: dict[str, float]
    epoch: float | None = None
    steps: int | None = None


class Names:
    """Meanings of the names in a program's output: a metric or a step.

    Args:
        requested: metrics that the job names, matched in any case.
        step: name of the step; "" for the usual ones.
    """

    def __init__(self, requested: Collection[str], step: str = "") -> None:
        self.requested = {name.lower(): name for name in requested}
        self._steps = [step.lower()] if step else [name for name in STEPS if name not in self.requested]
        self.has_own_step = bool(step)
        self._cache: dict[str, tuple[str, int]] = {}

    def of(self, name: str) -> tuple[str, int]:
        """Return the name of the metric, "" for none, and its rank among the names of steps, -1 for none."""
        if (cached := self._cache.get(name)) is not None:
            return cached
        lower = name.lower()
        spelling = lower.replace(" ", "_")
        result = self.requested.get(lower) or _clean(name), self._steps.index(spelling) if spelling in self._steps else -1
        if len(self._cache) < _MOST_NAMES:
            self._cache[name] = result
        return result

    def named(self, line: LineMetrics) -> LineMetrics:
        """Keep the step and the metrics that the job names."""
        metrics = {name: line.metrics[name] for name in self.requested.values() if name in line.metrics}
        return line._replace(metrics=metrics)

    def read(self, values: Mapping[str, float]) -> LineMetrics:
        """Split the numbers of a record into metrics and the step."""
        metrics: dict[str, float] = {}
        step, best_rank, epoch = math.nan, len(STEPS), None
        for name, value in values.items():
            metric, rank = self.of(name)
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
    """Count steps through all epochs where lines name both and the steps begin anew in each.

    `Epoch [2/5], Step [100/600]` is step 700 then. Where a line does not name how many steps an epoch has, it has as many as
    the last that was named.
    """

    def __init__(self) -> None:
        self._newest = LineMetrics(None, {})  # the newest line with both
        self._before = 0  # steps in the epochs before its own

    def step(self, line: LineMetrics) -> int | None:
        """Return the step of a line, counted from the first epoch on; None if it names no step."""
        if line.step is None:
            return None
        if line.epoch is not None:
            last, self._newest = self._newest, line
            if last.epoch is not None and last.step is not None and line.epoch > last.epoch and line.step <= last.step:
                epochs = int(line.epoch) - int(last.epoch) if last.steps else 1  # some may have printed nothing
                self._before += epochs * (last.steps or last.step)
        return self._before + line.step


Parse = Callable[[str], LineMetrics]


def parser(patterns: Sequence[str], names: Names, arguments: Collection[str] = ()) -> Parse:
    """Return a function that finds the metrics of one line.

    Args:
        patterns: the job's own regular expressions; the usual forms when there are none.
        names: what the names stand for; those that the job names are found with spaces for underscores, too.
        arguments: of the program. Of a line that has mostly these, and no step, only metrics that the job names count.
    """
    arguments_lower = _ARGUMENTS | {name.lower() for name in arguments}
    compiled = [re.compile(pattern) for pattern in patterns]
    spelt = {} if compiled else {name: _spelt(name) for name in names.requested.values()}

    def parse(line: str) -> LineMetrics:
        if len(line) > LONGEST_LINE:  # a name that is cut in two is another name: the first digits are dropped
            cut = len(line) - LONGEST_LINE
            line = _DIGITS.sub("x", line[cut : cut + _LONGEST_NAME]) + line[cut + _LONGEST_NAME :]
        if not _NUMERIC.search(line):
            return LineMetrics(None, {})
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        if compiled:
            return names.read(dict(_by_patterns(compiled, line)))
        if line.lstrip().startswith("{") and (numbers := _of_json(line)) is not None:
            return without_arguments(names.read(numbers), line)
        if (averages := _AVERAGES.match(line)) is not None:
            return names.read(dict(_of_report(averages)))
        result = names.read(_pairs(line, names))
        for name, forms in spelt.items():
            if name not in result.metrics and (value := _of_forms(forms, line)) is not None:
                result.metrics[name] = value
        return result if result.step is not None or names.has_own_step else without_arguments(_with_step(result, line), line)

    def without_arguments(result: LineMetrics, line: str) -> LineMetrics:
        if result.step is not None or len(result.metrics) < 2:
            return result
        count = sum(name.lower() in arguments_lower for name in result.metrics)
        is_dump = count > 1 and (2 * count > len(result.metrics) or _SWITCH.search(line) is not None)
        return names.named(result) if is_dump else result

    return parse


def number(text: str) -> float | None:
    """Return a number as programs print it, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def numbers(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of nested objects, by dotted names; true and false are no numbers."""
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            yield from numbers(nested, f"{above}{name}.")
        elif isinstance(nested, (int, float)) and not isinstance(nested, bool):
            with contextlib.suppress(OverflowError):  # a whole number that no float can hold
                yield above + str(name), float(nested)


def _clean(name: str) -> str:
    """Return a name as MLflow stores it."""
    cleaned = re.sub(r"[^\w./ -]", "_", name).strip("/. ")
    return re.sub(r"/+", "/", cleaned)[:_LONGEST_NAME]


def _by_patterns(patterns: Sequence[re.Pattern[str]], line: str) -> Iterator[tuple[str, float]]:
    for pattern in patterns:
        for match in pattern.finditer(line):
            for name, value in _named(match):
                if name and value and (read := number(value.strip("\"' %"))) is not None:
                    yield name.strip(), read


def _named(match: re.Match[str]) -> Iterator[tuple[str | None, str | None]]:
    """Name and values: of the groups of those names, of groups named like metrics, or of the first two groups."""
    groups = match.groupdict()
    if {"name", "value"} <= groups.keys():
        yield groups["name"], groups["value"]
    elif groups:
        yield from groups.items()
    else:
        yield match[1], match[2]


def _of_json(line: str) -> dict[str, float] | None:
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
    pairs: dict[str, float] = {}
    for of_set, name, quote, sign, space, text, of in _PAIR.findall(line):
        if of_set and names.of(name)[1] < 0:
            name = f"{of_set.lower()}_{name}"
        if sign == ":" and not (space or quote or "." in text or "e" in text or name.lower() in names.requested):
            continue  # localhost:8080
        value = float(text)
        if of and int(of) and names.of(name)[1] < 0:
            value /= int(of)
        pairs.setdefault(name, value)
    return pairs


def _of_report(row: re.Match[str]) -> Iterator[tuple[str, float]]:
    """A row of averages: precision, recall, F1."""
    for name, text in zip(("precision", "recall", "f1"), row.groups()[1:], strict=True):
        if (value := number(text)) is not None:
            yield f"{name}_{row[1]}", value


def _spelt(name: str) -> tuple[re.Pattern[str], ...]:
    """Return the expressions that find a metric in any spelling: before its value, or else behind it."""
    words = [re.escape(word) for word in re.split(r"[\W_]+", name) if word]
    if not words:
        return ()
    text = r"(?:['’]s\b)?[\s_./@'’-]*".join(words)
    between = r"(?:[^\d:=|,;\n]{0,40}?[:=|]|\s+(?:on|of|over)\s[^:=|,;\n]{0,60}?[:=]|\s*+is\b|\s*+->)?"
    after = rf"(?<!\w){text}(?!\w)[\"']?{between}\s*+{_CALL}({_NUMBER}){_NO_MORE}"
    before = rf"(?:^|[:=|,;(]) *+(\d*\.\d+|\d+(?:\.\d+)?(?= ?%)) ?%? ++{text}(?!\w)"
    return re.compile(after, re.IGNORECASE), re.compile(before, re.IGNORECASE)


def _of_forms(forms: Sequence[re.Pattern[str]], line: str) -> float | None:
    """The value of a metric in any spelling; not that of another set of data, as `train accuracy` for `accuracy`."""
    for match in itertools.chain.from_iterable(form.finditer(line) for form in forms):
        if not _SET_BEFORE.search(line[max(0, match.start() - 20) : match.start()]):
            return float(match[1])
    return None


def _with_step(result: LineMetrics, line: str) -> LineMetrics:
    """With the step that a line names in words: `Epoch [3/10]`, `iter 100`, `[12] train-rmse:0.3`."""
    lower = line.lower()
    for name in STEPS:
        if _WORDS[name][-1][-4:] not in lower or (match := _counted(name, lower)) is None:
            continue
        value = float(match[1])
        if value != int(value):
            return result
        epoch = None if name == STEPS[-1] else _counted(STEPS[-1], lower)
        steps = None if epoch is None else _OF.match(lower, match.end())
        return LineMetrics(
            int(value), result.metrics, None if epoch is None else float(epoch[1]), None if steps is None else int(steps[1])
        )
    match = _BRACKETS.match(line)
    return result if match is None else LineMetrics(int(match[1]), result.metrics)


def _counted(name: str, line: str) -> re.Match[str] | None:
    """Return the match of a step of that kind in a line."""
    for word in _WORDS[name]:
        at = line.find(word)
        while at >= 0:
            match = _COUNT.match(line, at + len(word))
            if match and not (at and (line[at - 1].isalnum() or line[at - 1] == "_")):
                return match
            at = line.find(word, at + 1)
    return None
