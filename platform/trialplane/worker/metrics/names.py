"""Meanings of the names in a program's output: a metric, or a step."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from trialplane.job import mlflow_names
from trialplane.worker.metrics.bars import Bar
from trialplane.worker.metrics.headings import DATA_SET

TRAINING_SETS = ("train", "training")
_TEST_SETS = ("test", "testing")
# Names of steps, from the finest to the coarsest. If a line has several, the first of these is the step.
STEPS = ("global_step", "step", "iteration", "iter", "round", "epoch")
EPOCH = STEPS[-1]
_LARGEST_STEP = 2**53
_MAX_NAMES = 10_000  # names in the cache
has_data_set = re.compile(rf"{DATA_SET}[_/ ]").match
# Usual words of names in their shortest form.
_SHORT_WORDS = {"validation": "val", "valid": "val", "training": "train", "testing": "test", "accuracy": "acc"}
_SHORT_WORDS |= {"evaluation": "eval", "development": "dev", "validate": "val", "validating": "val"}
_SHORT_WORDS |= {"evaluate": "eval", "evaluating": "eval"}
_AVERAGES = ("macro", "micro", "weighted", "samples")
_LONGEST_BEGINNING = 100  # characters of a name before its last words
_MOST_AMBIGUOUS = 20  # names of a metric in nested objects


class LineMetrics(NamedTuple):
    """The metrics of one line.

    Attributes:
        step: Step that the line names; None if it names no step.
        metrics: Values by name.
        epoch: Epoch that the line names beside the step; None if it names no epoch, or if the epoch is the step.
        steps: Number of steps in that epoch, as 600 in `[100/600]`; None if the line does not name it.
        bar: State of a progress bar that has the metrics; None if they are not in one.
        is_epoch: Whether the step is an epoch.
    """

    step: int | None
    metrics: dict[str, float]
    epoch: float | None = None
    steps: int | None = None
    bar: Bar | None = None
    is_epoch: bool = False


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
        requested: Metrics that the job names, matched in any case; of two that differ only in case, the exact one.
        step: Name of the step; "" for the usual ones.

    Attributes:
        ambiguous: Metric that the job names → its names in nested objects if there are several; the first one counts.
        mixed: Metric that the job names and that lines of several kinds have → its name on the held-out data that counts; ""
            if those of whole epochs do.
        held_out: Metric that a line has below the heading of held-out data, in lower case → its name with that set.
    """

    def __init__(self, requested: Collection[str], step: str = "") -> None:
        # `Test accuracy` is found as `test_accuracy` too.
        self.requested = {key: name for name in requested for key in (name.lower(), name.lower().replace(" ", "_"))}
        self._exact = frozenset(requested)
        self.ambiguous: dict[str, tuple[str, ...]] = {}
        self.mixed: dict[str, str] = {}
        self.held_out: dict[str, str] = {}
        # Of each name of several words: the name, its words, and the expression that finds it at the end of a text.
        self._long_names = [
            (name, tuple(map(str.lower, words)), re.compile(rf"(?<!\w){spelling(name)}$", re.IGNORECASE))
            for name in requested
            if len(words := words_of(name)) > 1
        ]
        self._nested: dict[str, str] = {}  # metric that the job names → its name in nested objects
        self._validated: set[str] = set()  # metrics that the job names and that a heading of validation data has had
        self._steps = [step.lower()] if step else [name for name in STEPS if name not in self.requested]
        self._epoch_rank = self._steps.index(EPOCH) if EPOCH in self._steps else -1
        self.has_own_step = bool(step)
        self._cache: dict[str, Meaning] = {}

    def lookup(self, name: str) -> Meaning:
        """Return the meaning of a name: the metric that it stands for, and its place among the names of steps."""
        if (cached := self._cache.get(name)) is not None:
            return cached
        lower_name = name.lower()
        step_name = lower_name.replace(" ", "_")
        step_rank = self._steps.index(step_name) if step_name in self._steps else -1
        metric = mlflow_names.metric(name)
        requested = self._requested(name) or self._requested(metric)
        meaning = Meaning(requested or metric, step_rank)
        if len(self._cache) < _MAX_NAMES:
            self._cache[name] = meaning
        return meaning

    def _requested(self, name: str) -> str | None:
        """Return the metric that the job names so, or else in another case; None without one."""
        return name if name in self._exact else self.requested.get(name.lower())

    def whole_name(self, line: str, begin: int, end: int) -> str:
        """Return the metric that the job names whose last words are a part of a line; "" if there is none.

        It is `balanced_accuracy` for the second word of `Balanced accuracy: 0.9`, and the longest of several.
        """
        last_words = line[begin:end].lower()
        begins: dict[int, str] = {}  # position in the line → the name that begins there
        for name, words, pattern in self._long_names:
            if last_words.endswith(words):  # as for few parts, so the slower search is skipped
                match = pattern.search(line, max(0, begin - _LONGEST_BEGINNING), end)
                if match is not None and match.start() < begin:
                    begins[match.start()] = name
        return begins[min(begins)] if begins else ""

    def in_data_set(self, name: str, data_set: str) -> str:
        """Return the full name of a metric below the heading of a set of data, as `train_loss`.

        It is the name itself if there is no heading ("" as the set), if the name has a set of its own, as in `End of
        training | test loss 0.2`, or if the job names `loss` and not `test_loss`: then `loss` is that of held-out data, of
        a test only until one of validation data is read.
        """
        if not data_set or has_data_set(name):
            return name
        full_name = self.of_data_set(name, data_set)
        is_held_out = data_set not in TRAINING_SETS
        names_plain_only = name.lower() in self.requested and full_name.lower() not in self.requested
        if not (is_held_out and names_plain_only):
            return full_name
        if data_set not in _TEST_SETS:
            self._validated.add(name.lower())
        elif name.lower() in self._validated:
            return full_name
        self.held_out[name.lower()] = full_name
        return name

    def of_data_set(self, name: str, data_set: str) -> str:
        """Return the name of a metric with its set of data, which has the job's word for the set: `val` for `valid`."""
        short = _SHORT_WORDS.get(data_set, data_set)
        for word in (data_set, short, *(long for long, of_long in _SHORT_WORDS.items() if of_long == short)):
            if requested := self._requested(f"{word}_{name}"):
                return requested
        return f"{data_set}_{name}"

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
        named_steps: dict[int, float] = {}  # by rank
        for name, value in values.items():
            metric, rank = self.lookup(name)
            if rank >= 0:
                named_steps.setdefault(rank, value)
            elif metric:
                metrics.setdefault(metric, value)
        # NaN, which stands for no step, is not valid. A step that the job names may be a fraction, and is rounded down.
        rank = min(named_steps) if named_steps else -1
        step = named_steps.get(rank, math.nan)
        is_valid_step = 0 <= step < _LARGEST_STEP and (step == int(step) or self.has_own_step)
        is_epoch = rank >= 0 and rank == self._epoch_rank
        epoch = None if is_epoch else named_steps.get(self._epoch_rank)
        return LineMetrics(int(step) if is_valid_step else None, metrics, epoch, is_epoch=is_epoch)


def words_of(name: str) -> list[str]:
    """Return the words of a name."""
    return [word for word in re.split(r"[\W_]+", name) if word]


def spelling(name: str) -> str:
    """Return an expression that matches a name with any signs between its words: `acc1` also as `Acc@1`, `r2` as `R^2`.

    The kind of an average stands before the other words or behind them: `f1_macro` is also `macro avg F1`.
    """
    words = [re.sub(r"(?<=[^\W\d])(?=\d)", "[@^]?", word) for word in words_of(name)]
    averages = [word for word in words if word.lower() in _AVERAGES]
    others = [word for word in words if word.lower() not in (*_AVERAGES, "avg", "average", "averaged")]
    between = r"(?:['’]s\b)?[\s_./@'’-]*"
    if len(averages) != 1 or not others:
        return between.join(words)
    average = rf"{averages[0]}(?:{between}av(?:g|eraged?)\b)?"
    orders = (words, [average, *others], [*others, average])
    return rf"(?:{'|'.join(between.join(order) for order in orders)})"


def synonyms(name: str) -> Iterator[str]:
    """Yield the names with the same words in their usual forms, as `valid_accuracy` for `val_acc`."""
    forms = []
    for word in name.split("_"):
        short = _SHORT_WORDS.get(word, word)
        forms.append([short, *(long for long, of_long in _SHORT_WORDS.items() if of_long == short)])
    yield from map("_".join, itertools.product(*forms))


def same_words(name: str, metrics: Iterable[str]) -> str:
    """Return the metric with the words of a name, as `Loss/Val` for `validation_loss`; "" if there is none, or several."""
    matches = {metric for metric in metrics if _words(metric) == _words(name)}
    return matches.pop() if len(matches) == 1 else ""


def similar_name(name: str, metrics: Collection[str]) -> str:
    """Return the metric with the words of a name, or else the one that has the name behind a slash or a set; "" without one.

    It is `metrics/mAP_0.5` for `mAP_0.5`, and `test-auc` for `auc`, but none of training data.
    """
    longer = longer_names(name, metrics)
    return same_words(name, metrics) or (longer[0] if len(longer) == 1 else "")


def longer_names(name: str, metrics: Iterable[str]) -> list[str]:
    """Return the metrics that have a name behind a slash or a set of data, but none of training data."""
    longer_name = re.compile(rf"(?:.*/|{DATA_SET}(?:_\d{{1,3}})?[-_])(?i:{re.escape(name)})")
    return [metric for metric in metrics if longer_name.fullmatch(metric) and _words(metric).isdisjoint(TRAINING_SETS)]


def _words(name: str) -> frozenset[str]:
    """Return the words and numbers of a metric's name in lower case, each in its shortest usual form."""
    return frozenset(_SHORT_WORDS.get(word, word) for word in re.findall(r"[^\W\d_]+|\d+", name.lower()))


def _is_of_training(name: str) -> bool:
    """Return whether a part of a dotted name is a set of training data, as in `train.f1`."""
    return not set(TRAINING_SETS).isdisjoint(name.lower().split("."))
