"""Parameters and objectives in a word each: `lr=1e-5..1e-2:log`, `opt=adam,sgd`, `epochs=5`, `accuracy:max`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import Issue, SpecError
from trialplane.job import document, values

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})(?<!\.)\.\.(?!\.)({_NUMBER})((?::(?:log|{_NUMBER}))*)")
_NO_CHOICE = re.compile(rf"|.*\.\..*|{_NUMBER}:{_NUMBER}.*")
_WHOLE = re.compile(r"[-+]?\d+")
_DIRECTIONS = {"max": "maximize", "maximize": "maximize", "min": "minimize", "minimize": "minimize"}


def parameter(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """Name and fields of a parameter.

    Args:
        text: NAME=LOW..HIGH, with :log or :STEP behind, or NAME=A,B,C; a range of two whole numbers is of whole numbers.
        source: how messages name it.

    Raises:
        SpecError: it is neither.
    """
    name, _, given = text.partition("=")
    name, given = name.strip(), given.strip()
    match = _RANGE.fullmatch(given)
    choices = [one.strip() for one in given.split(",")]
    if not re.fullmatch(values.NAME, name) or (match is None and any(map(_NO_CHOICE.fullmatch, choices))):
        what = "write NAME=LOW..HIGH, NAME=LOW..HIGH:log, NAME=LOW..HIGH:STEP or NAME=A,B,C"
        raise SpecError([Issue(("space",), f"{text!r} is no parameter; {what}", source)])
    if match is None:
        return name, {"type": "categorical", "choices": [document.scalar(one, source) for one in choices]}
    low, high, more = match.groups()
    options = [one for one in more.split(":") if one]
    log, steps = "log" in options, [one for one in options if one != "log"]
    whole = all(_WHOLE.fullmatch(one) for one in (low, high, *steps))
    kind = int if whole else float
    made = {"type": "int" if whole else "float", "low": kind(low), "high": kind(high), "log": log}
    return name, {**made, "step": kind(steps[-1])} if steps else made


def value(text: str, source: str) -> tuple[str, Any]:
    """Name and value of a parameter that is fixed: NAME=VALUE, the value as in a job.yaml.

    Raises:
        SpecError: it is not that.
    """
    name, equals, given = text.partition("=")
    if not equals or not re.fullmatch(values.NAME, name.strip()):
        raise SpecError([Issue(("params",), f"{text!r} is no parameter; write NAME=VALUE", source)])
    return name.strip(), document.scalar(given, source)


def space(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A space whose parameters may be lists of choices, or texts like `1e-5..1e-2:log`.

    Raises:
        SpecError: a text is neither a range nor choices.
    """
    made: dict[str, Any] = {}
    for name, one in given.items():
        if isinstance(one, list):
            made[name] = {"type": "categorical", "choices": one}
        else:
            made[name] = parameter(f"{name}={one}", source)[1] if isinstance(one, str) else one
    return made


def objective(text: str, source: str) -> dict[str, str]:
    """The fields of an objective: METRIC:max or METRIC:min.

    Raises:
        SpecError: it has no metric or no direction.
    """
    metric, colon, direction = text.rpartition(":")
    if not metric or direction not in _DIRECTIONS:
        name = metric if colon else text
        what = f"does not name its direction; write {name}:max or {name}:min"
        if not name:
            what = "names no metric; write METRIC:max, as in accuracy:max"
        raise SpecError([Issue(("objective",), f"{text!r} {what}", source)])
    return {"metric": metric, "direction": _DIRECTIONS[direction]}
