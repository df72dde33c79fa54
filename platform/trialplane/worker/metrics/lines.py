"""Finds metrics in lines of text: `name=0.93`, `name: 0.93`, JSON, a progress bar's postfix, or by a job's own patterns.

Pure: text in, numbers out. Of a line without a declared pattern these count:

- pairs of a name and a number with = or : between, the name perhaps in quotes: `loss=0.3`, `'eval_loss': 0.3`, `acc: 93.1%`;
- a line that is a JSON object: its numbers, those of nested objects under dotted names;
- a metric that the job names, however it is written: `val_loss` also in `val loss 2.1` and `Val Loss = 2.1`;
- `accuracy: 9870/10000`, a fraction, as its value.

The step is a number of that kind with the name `global_step`, `step`, `iteration`, `epoch` or `round`, as in `Epoch [3/10]`,
or the first thing in a line in brackets, as in XGBoost's `[12]`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

LONGEST_LINE = 16 << 10  # characters; of a longer one the end counts, where a progress bar has its postfix
_LONGEST_NAME = 250  # characters that MLflow keeps

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_NO_MORE = r"(?![\w:]|[.-]\d|/\s*[^\W\d])"  # what is no number after all: 3fa9, 1.2.3, 10:31, 2024-01-02, 11/s
_OF = r"(?:\s*/\s*(?P<of>\d+))?"
_PAIR = re.compile(
    rf"(?P<quote>[\"']?)(?P<name>[^\W\d][\w./@-]*)(?P=quote)\s*(?P<sign>=\s*|:\s*)[\"']?(?P<value>{_NUMBER}){_OF}{_NO_MORE}",
    re.IGNORECASE,
)
# From the finest to the coarsest: of several in a line the first of these is the step.
STEPS = ("global_step", "step", "iteration", "iter", "round", "epoch")
_STEP = re.compile(
    r"(?<![^\W_])(?P<name>global[ _]step|step|iteration|iter|round|epoch)s?[\"']?\s*[:=#]?\s*[\[(]?\s*"
    r"(?P<value>\d+(?:\.\d+)?)(?![\w]|\.\d)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\s*\[(\d+)\]")
_DIGIT = re.compile(r"\d|nan|inf", re.IGNORECASE)


class Found(NamedTuple):
    """What one line holds: the step, or None, and metrics by name."""

    step: int | None
    metrics: dict[str, float]


Parse = Callable[[str], Found]


def parser(patterns: Sequence[str], names: Collection[str], step: str | None = None) -> Parse:
    """A function that finds the metrics of one line.

    Args:
        patterns: the job's own regular expressions; the usual forms when there are none.
        names: metrics that the job names, found in any case and with spaces for underscores.
        step: name of the step among the numbers.
    """
    known = {name.lower(): name for name in names}
    made = [re.compile(pattern) for pattern in patterns]
    groups = {f"m{index}": name for index, name in enumerate(names)}
    spelt = None if made else _spelt(groups)

    def parse(line: str) -> Found:
        if len(line) > LONGEST_LINE:
            line = line[-LONGEST_LINE:]
        if not _DIGIT.search(line):
            return Found(None, {})
        if made:
            return stepped(dict(_by_patterns(made, line)), step, known)
        if line.lstrip().startswith("{") and (found := _of_json(line)) is not None:
            return stepped(found, step, known)
        metrics = _pairs(line, known)
        if spelt is not None:
            there = {name.lower() for name in metrics}
            for match in spelt.finditer(line):
                name = groups[match.lastgroup or ""]
                if name.lower() not in there:
                    metrics.setdefault(name, _value(match[match.lastindex or 0], None))
        pairs = stepped(metrics, step, known)
        return pairs if pairs.step is not None or step else Found(_step_of(line), pairs.metrics)

    return parse


def number(text: str) -> float | None:
    """A number as programs print it, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def numbers(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of an object and of those in it, by dotted names; true and false are none."""
    for name, below in value.items():
        if isinstance(below, Mapping):
            yield from numbers(below, f"{above}{name}.")
        elif isinstance(below, (int, float)) and not isinstance(below, bool):
            yield above + str(name), float(below)


def clean(name: str) -> str:
    """A name as MLflow keeps it."""
    kept = re.sub(r"[^\w./ -]", "_", name).strip("/. ")
    return re.sub(r"/+", "/", kept)[:_LONGEST_NAME]


def stepped(values: Mapping[str, float], step: str | None, known: Mapping[str, str]) -> Found:
    """The numbers of a record as metrics, and the step among them.

    Args:
        values: by name.
        step: name of the step; None for the usual ones.
        known: names of metrics that the job names, by their lower-case form.
    """
    lower = {name.lower().replace(" ", "_"): name for name in values}
    names = (step.lower(),) if step else STEPS
    found = next((lower[name] for name in names if name in lower and lower[name] not in known.values()), None)
    at = values.get(found, math.nan) if found else math.nan
    metrics = {known.get(name.lower(), clean(name)): value for name, value in values.items() if name != found}
    metrics.pop("", None)
    return Found(int(at) if math.isfinite(at) and at >= 0 and (at == int(at) or step) else None, metrics)


def _by_patterns(patterns: Sequence[re.Pattern[str]], line: str) -> Iterator[tuple[str, float]]:
    for pattern in patterns:
        for match in pattern.finditer(line):
            for name, value in _named(match):
                if name and value and (read := number(value.strip("\"' %"))) is not None:
                    yield name.strip(), read


def _named(match: re.Match[str]) -> Iterator[tuple[str | None, str | None]]:
    """Names and values: of the groups of those names, of groups named like metrics, or of the first two groups."""
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
    return dict(numbers(value))


def _pairs(line: str, known: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for match in _PAIR.finditer(line):
        name, text = match["name"].rstrip("."), match["value"]
        spaced = match["sign"] != ":" or match["quote"] or name.lower() in known
        if not spaced and not any(mark in text for mark in ".eE"):
            continue  # localhost:8080
        of = match["of"] if name.lower() not in STEPS else None
        found.setdefault(name, _value(text, of))
    return found


def _value(text: str, of: str | None) -> float:
    value = float(text)
    return value / int(of) if of and int(of) else value


def _spelt(groups: Mapping[str, str]) -> re.Pattern[str] | None:
    """Finds metrics in any spelling, each in a group of its own; from groups to names."""
    forms = []
    for group, name in groups.items():
        words = [re.escape(word) for word in re.split(r"[\W_]+", name) if word]
        if words:
            text = r"[\s_./-]*".join(words)
            forms.append(rf"(?<![^\W_]){text}[\"']?\s*(?:[=:]|is\b)?\s*(?P<{group}>{_NUMBER}){_NO_MORE}")
    return re.compile("|".join(forms), re.IGNORECASE) if forms else None


def _step_of(line: str) -> int | None:
    """The step that a line names in words: `Epoch [3/10]`, `iter 100`, `[12] train-rmse:0.3`."""
    found = {match["name"].lower().replace(" ", "_"): match["value"] for match in reversed(list(_STEP.finditer(line)))}
    for name in STEPS:
        if name in found:
            value = float(found[name])
            return int(value) if value == int(value) else None
    match = _BRACKETS.match(line)
    return int(match[1]) if match else None
