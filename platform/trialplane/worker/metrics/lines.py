"""Find metrics and steps in lines of text: `name=0.93`, `name: 0.93`, JSON, tables, or by a job's own patterns.

Pure: text in, numbers out. Without a pattern of the job, these are metrics:

- pairs of a name and a number with = or : between, the name perhaps in quotes: `loss=0.3`, `'eval_loss': 0.3`, `acc: 93.1%`;
- the numbers of a JSON object or a dict, in one line or over several; numbers of nested objects have dotted names:
  `overall.f1`. A job that names `f1` gets the outermost of them, and of several the first that is not one of training;
- a metric that the job names, in any spelling: `val_loss` also in `val loss 2.1` and `Val Loss = 2.1`, `accuracy` in
  `0.98 accuracy` and `Accuracy on the 100 images: 54 %`;
- a value after its step: `Cost after iteration 100: 0.7`;
- the average behind the value of a batch: 2.1 of `Test: [10/50] loss 2.2 (2.1)`;
- a fraction, as its value: `accuracy: 9870/10000`; a list of one fraction: `accuracy: [0.9]`;
- a row of a table whose header has a metric that the job names: `epoch  train_loss  valid_acc`, and below it numbers; with
  a rule below the header, as `-----  ----------`, names may have spaces, and cells may be empty. Of a table with a row for
  each class, the row `all` or `mean` counts;
- the averages in scikit-learn's classification report, under the names of its scorers: `f1_macro`, `recall_weighted`;
- a row below a section, as `rollout/ep_rew_mean` in a box below `| rollout/ |  |`, or below sets of data: `loss  0.5  0.6`
  below `train  val`;
- COCO's summary: `AP`, `AP50`, `APs`, `AR`, `AR10`.

`Test accuracy: 0.9` is the metric `test_accuracy`, not `accuracy`, because the value belongs to another set of data. The
name of the set may also stand before several metrics: `Train Epoch: 1 Loss: 0.3` is `train_Loss`, and `Test set: loss: 0.2`
is `test_loss`, so no curve mixes the two. Before it may be the prefix of a log: time, level and logger. The metric may stand
before several sets: `acc train: 0.9 test: 0.8` is `train_acc` and `test_acc`, also without colons. If the job names a metric
`loss`, this is the one of `Test set: loss: 0.2`; once a program has printed several such lines, `epoch 3 loss: 0.3` is none.

A number with the name `global_step`, `step`, `iteration`, `epoch` or `round` is the step, as in `Epoch [3/10]`. So is a
number in brackets at the beginning of a line, as in XGBoost's `[12]` and in `[3/10]`. The position of a progress bar is
one only for `steps.Steps`, as it must be counted through all bars.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from trialplane.job import mlflow_names
from trialplane.worker.metrics import bars, objects, pairs
from trialplane.worker.metrics.headings import headings_of
from trialplane.worker.metrics.names import EPOCH, STEPS, LineMetrics, Names, has_data_set
from trialplane.worker.metrics.numerals import NUMBER, number
from trialplane.worker.metrics.rows import Rows
from trialplane.worker.metrics.tables import RULE, Table

LONGEST_LINE = 16 << 10  # characters; of a longer line only the end is read, where a progress bar has its postfix
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AVERAGES = re.compile(r"\s*+(micro|macro|weighted|samples) avg\s++([\d.]++)\s++([\d.]++)\s++([\d.]++)\s++\d++\s*+$")
# A line of COCO's summary: ` Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.420`
_COCO = re.compile(
    r"Average (?:Precision|Recall) +\((A[PR])\) @\[ IoU=(\S+) +\| area= *+(\w+) \| maxDets= *+(\d+)[^\]]*\] = ([\d.-]+)"
)
_STEP_SPELLINGS = {"global_step": ("global step", "global_step"), **{name: (name,) for name in STEPS[1:]}}
# The number of a step after its name, and the number of steps after that.
_COUNT = re.compile(r"[\"']?\s*+(?:[:=#]\s*+)?(?:[\[(]\s*+)?(\d{1,15}(?:\.\d{1,15})?)(?!\w|\.\d)")
_TOTAL = re.compile(r"\s*+/\s*+(\d{1,15})")
_BRACKETS = re.compile(r"\s*+\[(\d{1,15})(?:/\d{1,15})?\]")
_DECIMAL = r"(?:[-+]?\d*\.\d|nan\b|[-+]?inf\b)"
# A step between a metric's name and its decimal value: `Cost after iteration 100: 0.7`, `training loss in 20 epochs: 1.4`,
# `loss 11 0.7`, `Validation loss 11: 0.7`, not `loss 5 12.3 ms`. In `loss 1: 0.7`, it may be the number of the loss.
_STEP_BEFORE_VALUE = re.compile(
    rf"\s(?:(?:at|after|in|on|for)\s+(?:({'|'.join(STEPS)})\s+(\d{{1,15}})|(\d{{1,15}})\s+({'|'.join(STEPS)})s?)"
    rf"\s*(?=[:=]\s*{_DECIMAL})|(?<=loss\s)(?:\s*+(\d{{1,15}})(?=\s+(?!\d*\.\d++\s?(?:ms|s|sec|min)\b){_DECIMAL})"
    rf"|(?:(?<=train loss\s)|(?<=val loss\s)|(?<=validation loss\s)|(?<=test loss\s))(\d{{1,15}})(?=:\s*{_DECIMAL})))",
    re.IGNORECASE,
)
_POSITION = re.compile(r"\[ *+\d{1,9}/\d")  # this search is fast
# The position of a batch: `Train: [1][10/50]`, `Epoch: 3 [10/50]`, `Test: [ 10/50]`, `Train: 0 [ 10/50 ( 20%)]`. In `Epoch
# [3/10]`, `Fold [3/10]` and `Test [3/10]: `, where a deviation may be in parentheses, is none.
_BATCH = re.compile(
    r"(?:\[\d{1,9}(?:/\d{1,9})?\]|(?<!\w)(?:epoch:? ?\d{1,9}|(?:batch|iter|step)[a-z]{0,9}:?(?: \d{1,9})?"
    r"|(?:train|val|test|eval)[a-z]{0,9}(?:: ?\d{1,9}|:| \d{1,9})))\s*+\[ *+\d{1,9}/\d{1,9}(?: *+\( *+\d{1,3}%\))?\](?!:)",
    re.IGNORECASE,
)
# 2.2 ( 2.1), and not 2.2 (12)
_VALUE_AND_AVERAGE = re.compile(rf"(?<![^\s:=]){NUMBER}(%?)\s?\((?= *+[-+]?(?:\d*\.|nan|inf)) *+({NUMBER}\1) *+\)")
_NUMERIC = re.compile(r"\d|[nN][aA][nN]|[iI][nN][fF]")
_DIGITS = re.compile(r"\d")
_SWITCH = re.compile(r"[:=] ?(?:[Tt]rue|[Ff]alse|None|null)\b")
_MOST_RUNS = 4  # if a run has more lines than so many times the longest before it, no lines between runs come any more
# Usual names of arguments, which are seldom results.
_ARGUMENTS = frozenset(
    {"batch_size", "epochs", "num_epochs", "max_epochs", "num_train_epochs", "max_steps", "warmup_steps", "seed", "workers"}
    | {"num_workers", "lr", "momentum", "weight_decay", "dropout", "eps", "crop_pct", "hidden_size"}
)


class _Kind(enum.IntEnum):
    """Kinds of lines with the same metric, the best first."""

    HELD_OUT = 0  # below the heading of a set of data
    EPOCH = 1  # with one step
    BATCH = 2  # with a step in an epoch, or a progress bar


@dataclasses.dataclass
class _Runs:
    """Runs of lines with a metric between those of some kind or a better one.

    Attributes:
        lines: Lines in the newest run.
        longest: Lines in the longest run that has ended.
        ended: Number of runs that have ended.
    """

    lines: int = 0
    longest: int = 0
    ended: int = 0

    def end(self) -> None:
        """End the newest run."""
        if self.lines:
            self.lines, self.longest, self.ended = 0, max(self.longest, self.lines), self.ended + 1

    def is_left_out(self) -> bool:
        """Return whether the lines of the newest run are left out: if those between are no exceptions, and still come."""
        return self.ended > 1 and self.lines <= _MOST_RUNS * self.longest


class LineParser:
    """Finds the metrics of a program's output, line by line.

    With expressions of the job, only these count. Otherwise the first of these forms that a line has counts: a row of a
    table, a JSON object, averages of scikit-learn's report, COCO's summary, and pairs of names and numbers, with the metrics
    that the job names in any spelling.

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
        self._spellings = {} if patterns else {name: pairs.spellings_of(name) for name in names.requested.values()}
        self._rows = Rows()
        self._runs = collections.defaultdict[tuple[str, _Kind], _Runs](_Runs)  # by metric, and kind of the lines between
        self._held_out_names: dict[str, str] = {}  # metric → its name in the last line of held-out data
        self._table = Table(names) if names.requested and not patterns else None

    def parse(self, line: str) -> LineMetrics:
        """Return the metrics and the step of the next line of the output."""
        line = _shortened(line)
        bar = None if self._patterns or self._names.has_own_step else bars.bar_of(line)
        if "\x1b" in line:
            line = _COLOR.sub("", line)
        line = self._rows.completed(line)
        has_pairs = "=" in line and not RULE.fullmatch(line)  # a rule may consist of =
        if self._table is not None and not has_pairs and (row := self._table.read(line)) is not None:
            return row
        if not _NUMERIC.search(line):
            return LineMetrics(step=None, metrics={})
        if self._patterns:
            return self._names.split_record(dict(_pattern_pairs(self._patterns, line)))
        if line.lstrip().startswith("{") and (record := objects.json_numbers(line)) is not None:
            return self._record_metrics(record, line)
        line = pairs.with_pairs(_with_averages(_with_step_last(line)))
        if (averages := _AVERAGES.match(line)) is not None:
            return self._names.split_record(dict(_report_averages(averages)))
        if "Average " in line and (coco := _COCO.search(line)) is not None:
            return self._names.split_record(_coco_value(coco))
        self._names.held_out.clear()
        line_metrics = self._text_metrics(line)
        if line_metrics.step is None and not self._names.has_own_step:
            line_metrics = _add_named_step(line_metrics, line)
        return self._without_other_kinds(self._without_arguments(line_metrics._replace(bar=bar), line))

    def parse_object(self, text: str) -> LineMetrics:
        """Return the metrics and the step of an object in several lines."""
        return self._record_metrics(objects.object_numbers(text), text)

    def _record_metrics(self, record: Mapping[str, float], text: str) -> LineMetrics:
        """Return the metrics and the step of an object, by the numbers in its text."""
        line_metrics = self._names.split_record(record)
        self._names.add_nested(line_metrics.metrics)
        return self._without_arguments(line_metrics, text)

    def _text_metrics(self, line: str) -> LineMetrics:
        """Return the numbers of a line with pairs, and perhaps with a nested object after them."""
        nested = objects.NESTED.search(line)
        if nested is None or headings_of(line):
            return self._named_metrics(line)
        pairs_before = pairs.pairs_of(line[: nested.start()], self._names, [])
        return self._record_metrics({**pairs_before, **objects.object_numbers(line[nested.start() :])}, line)

    def _named_metrics(self, line: str) -> LineMetrics:
        """Return the numbers of a line by the names beside them, and the metrics that the job names in any spelling."""
        headings = headings_of(line)
        line_metrics = self._names.split_record(pairs.pairs_of(line, self._names, headings))
        for name, spellings in self._spellings.items():
            if name in line_metrics.metrics:
                continue
            for spelling in spellings:
                pair = spelling.pair(line, headings, self._names)
                if pair is not None and pair[0].lower() not in map(str.lower, line_metrics.metrics):
                    line_metrics.metrics[pair[0]] = pair[1]
        return line_metrics

    def _without_arguments(self, line_metrics: LineMetrics, line: str) -> LineMetrics:
        """Return a line's metrics; only those that the job names if the line seems to list the program's arguments."""
        count = len(line_metrics.metrics)
        if line_metrics.step is not None or count < 2:
            return line_metrics
        argument_count = sum(name.lower() in self._arguments for name in line_metrics.metrics)
        lists_arguments = argument_count > 1 and (2 * argument_count > count or _SWITCH.search(line) is not None)
        return self._names.keep_requested(line_metrics) if lists_arguments else line_metrics

    def _without_other_kinds(self, line_metrics: LineMetrics) -> LineMetrics:
        """Return a line without the metrics that lines of a better kind have, too: those of held-out data come first.

        The `ppl` of `epoch 1 | 50/92 batches | ppl 7.05` is none if there are lines as `eval checkpoint 1 | ppl 1.86`, or as
        `epoch 1 | ppl 1.93`, among them. A line without a set of data and without a step may be the result of the program.
        """
        names = [name for name in self._spellings if name in line_metrics.metrics and not has_data_set(name)]
        left_out = {name for name in names if self._is_left_out(name, line_metrics)}
        if not left_out:
            return line_metrics
        self._names.mixed |= {name: self._held_out_names.get(name, "") for name in left_out}
        metrics = {name: value for name, value in line_metrics.metrics.items() if name not in left_out}
        return line_metrics._replace(metrics=metrics)

    def _is_left_out(self, name: str, line: LineMetrics) -> bool:
        """Record the kind of a line with a metric; return whether it is left out, as lines of a better kind have it."""
        if held_out_name := self._names.held_out.get(name.lower()):
            kind = _Kind.HELD_OUT
            self._held_out_names[name] = held_out_name
        elif line.bar is not None or line.epoch is not None:
            kind = _Kind.BATCH
        elif line.step is not None:
            kind = _Kind.EPOCH
        else:
            return False
        is_left_out = False
        for better_kind in (_Kind.HELD_OUT, _Kind.EPOCH):
            runs = self._runs[name, better_kind]
            if kind <= better_kind:
                runs.end()
            else:
                runs.lines = max(runs.lines, 1) if line.bar else runs.lines + 1  # how often a bar is read depends on time
                is_left_out = is_left_out or runs.is_left_out()
        return is_left_out


def _shortened(line: str) -> str:
    """Return the end of a line that is too long. The cut may be inside a name, so no number near it counts."""
    if len(line) <= LONGEST_LINE:
        return line
    end = line[-LONGEST_LINE:]
    return _DIGITS.sub("x", end[: mlflow_names.LONGEST]) + end[mlflow_names.LONGEST :]


def _with_step_last(line: str) -> str:
    """Return `Cost: 0.7 (iteration 100)` for `Cost after iteration 100: 0.7`; other lines and those with an object as is."""
    match = None if "{" in line else _STEP_BEFORE_VALUE.search(line)
    if match is None:
        return line
    name, number_after, number_before, name_after, *numbers = match.groups(default="")
    step = number_after or number_before or "".join(numbers)
    return f"{_STEP_BEFORE_VALUE.sub('', line)} ({name or name_after or 'step'} {step})"


def _with_averages(line: str) -> str:
    """Return `Test: [10/50] Loss 1.1` for `Test: [10/50] Loss 1.2 (1.1)`, with the value of one batch; other lines as is."""
    return _VALUE_AND_AVERAGE.sub(r"\2", line) if "(" in line and _POSITION.search(line) and _BATCH.search(line) else line


def _pattern_pairs(patterns: Sequence[re.Pattern[str]], line: str) -> Iterator[tuple[str, float]]:
    """Yield the name and the number of each match of a job's own expressions; skip matches without a number.

    An expression has the groups `name` and `value`, or groups with the names of metrics, or two groups without names.
    """
    for match in itertools.chain.from_iterable(pattern.finditer(line) for pattern in patterns):
        groups = match.groupdict()
        has_name = {"name", "value"} <= groups.keys()
        texts = {groups["name"]: groups["value"]} if has_name else groups or {match[1]: match[2]}
        for name, text in texts.items():
            value = number(text.strip("\"' %")) if text else None
            if name and value is not None:
                yield name.strip(), value


def _report_averages(row: re.Match[str]) -> Iterator[tuple[str, float]]:
    """Yield the averages in a row of scikit-learn's classification report."""
    average, *texts = row.groups()
    for score, text in zip(("precision", "recall", "f1"), texts, strict=True):
        if (value := number(text)) is not None:
            yield f"{score}_{average}", value


def _coco_value(line: re.Match[str]) -> dict[str, float]:
    """Return the value in a line of COCO's summary under its usual name: AP, AP50, APs, AR, or AR10 for ten detections.

    It is empty for -1, which stands for no value.
    """
    score, overlap, area, detections, text = line.groups()
    overlap_name = "" if ":" in overlap else overlap.removeprefix("0.")
    detections_name = detections if score == "AR" and detections not in ("20", "100") else ""  # 20 are those of keypoints
    area_name = "" if area == "all" else area[0]
    value = number(text)
    return {} if value is None or value < 0 else {f"{score}{overlap_name}{detections_name}{area_name}": value}


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
        epoch_match = None if name == EPOCH else _step_match(EPOCH, lower_line)
        if epoch_match is None:
            return LineMetrics(int(step), metrics, is_epoch=name == EPOCH)
        total_match = _TOTAL.match(lower_line, step_match.end())
        total = None if total_match is None else int(total_match[1])
        return LineMetrics(step=int(step), metrics=metrics, epoch=float(epoch_match[1]), steps=total)
    brackets = _BRACKETS.match(line)
    return line_metrics if brackets is None else LineMetrics(int(brackets[1]), metrics)


def _step_match(name: str, line: str) -> re.Match[str] | None:
    """Return the match of the number after a step's name in a line in lower case; None if the line lacks one."""
    for spelling in _STEP_SPELLINGS[name]:
        position = line.find(spelling)
        while position >= 0:
            match = _COUNT.match(line, position + len(spelling))
            is_word_start = position == 0 or not (line[position - 1].isalnum() or line[position - 1] == "_")
            if match and is_word_start:
                return match
            position = line.find(spelling, position + 1)
    return None
