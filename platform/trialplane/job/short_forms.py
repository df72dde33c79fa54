"""Short forms of parameters and objectives: `lr=1e-5..1e-2:log`, `opt=adam,sgd`, `epochs=5`, `accuracy:max:best`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import Issue, SpecError
from trialplane.job import document, values

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# LOW..HIGH with suffixes such as :log or :STEP. There must be exactly two dots.
_RANGE = re.compile(rf"({_NUMBER})(?<!\.)\.\.(?!\.)({_NUMBER})((?::(?:log|{_NUMBER}))*)")
_IN_YAML = re.compile(r"""(?:^|,)\s*[\[{"']""")  # a choice that is a list, a mapping or a quoted text
_TUPLE = re.compile(r""""[^"]*"|'[^']*'|(?<![\w)])\((?:[^()]|\([^()]*\))*\)""")  # (1, 1); or a quoted text, also "(1)"
_NO_CHOICE = re.compile(rf"|.*\.\..*|{_NUMBER}:{_NUMBER}.*")  # a text that is empty, or a malformed range
_INTEGER = re.compile(r"[-+]?\d+")
_DIRECTIONS = {"max": "maximize", "maximize": "maximize", "min": "minimize", "minimize": "minimize"}
# METRIC:DIRECTION and METRIC:DIRECTION:OF. The metric may have colons, too.
_WITH_DIRECTION = re.compile(rf"(.+):({'|'.join(_DIRECTIONS)})(?::([^:]*))?")


def parameter(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a parameter in its short form.

    Args:
        text: NAME=LOW..HIGH, NAME=LOW..HIGH:log, NAME=LOW..HIGH:STEP or NAME=A,B,C. If all numbers of a range are integers,
            the parameter is one too. Choices may be lists or quoted texts: NAME=[A,B],[A,B,C]. A single list is that of the
            choices. Choices in parentheses are texts: NAME=(1, 1),(1, 2).
        source: Name of the text in messages.

    Raises:
        SpecError: The text has another form.
    """
    name, _, definition = text.partition("=")
    name, definition = name.strip(), definition.strip()
    choices = [choice.strip() for choice in _split_choices(definition)]
    if re.fullmatch(values.NAME, name):
        if _IN_YAML.search(definition):  # [A,B],[A,B,C]
            return name, {"type": "categorical", "choices": _yaml_choices(name, definition, source)}
        if range_match := _RANGE.fullmatch(definition):
            return name, _range_fields(*range_match.groups())
        if not any(_NO_CHOICE.fullmatch(choice) for choice in choices):
            return name, {"type": "categorical", "choices": [document.scalar(choice, source) for choice in choices]}
    usage = "write NAME=LOW..HIGH, NAME=LOW..HIGH:log, NAME=LOW..HIGH:STEP or NAME=A,B,C"
    raise SpecError([Issue(("space",), f"{text!r} is not a parameter; {usage}", source=source)])


def _split_choices(definition: str) -> list[str]:
    """Return the parts of a text between its commas, except commas in brackets or quotation marks: `a` and `(1, 2)`.

    If a bracket or a quotation mark is not closed, all commas separate.
    """
    parts, depth, quote = [""], 0, ""  # depth of brackets, and the open quotation mark
    for character in definition:
        is_apostrophe = parts[-1][-1:].isalnum()  # in a word such as don't
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and not is_apostrophe:
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return definition.split(",") if depth or quote else parts


def _with_quoted_tuples(definition: str) -> str:
    """Return a text in YAML with quotation marks around tuples, which YAML does not have: `[a, "(1, 1)"]`."""
    return _TUPLE.sub(lambda match: json.dumps(match[0]) if match[0].startswith("(") else match[0], definition)


def _range_fields(low: str, high: str, suffixes: str) -> dict[str, Any]:
    """Return the fields of a parameter that is a range: of integers if all of its numbers are integers.

    Args:
        low: Minimum.
        high: Maximum.
        suffixes: ":log" for a logarithmic scale, ":STEP" for steps, both, or "".
    """
    options = suffixes.split(":")[1:]  # without what is before the first colon, nothing
    steps = [option for option in options if option != "log"]
    is_integer = all(_INTEGER.fullmatch(number) for number in (low, high, *steps))
    convert = int if is_integer else float
    fields: dict[str, Any] = {
        "type": "int" if is_integer else "float",
        "low": convert(low),
        "high": convert(high),
        "log": "log" in options,
    }
    if steps:
        fields["step"] = convert(steps[-1])
    return fields


def with_float_range(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a parameter, with a range of floats in place of one of integers, such as 0..1."""
    if fields["type"] != "int":
        return dict(fields)
    numbers = {key: float(fields[key]) for key in ("low", "high", "step") if key in fields}
    return {**fields, "type": "float", **numbers}


def _yaml_choices(name: str, definition: str, source: str) -> list[Any]:
    """Return the choices in a text with lists, mappings or quoted texts.

    Args:
        name: Name of the parameter.
        definition: Choices, separated by commas, each in YAML.
        source: Name of the text in messages.

    Raises:
        SpecError: The text is not YAML, or has a range.
    """
    choices = None
    if ".." not in definition:
        with contextlib.suppress(SpecError):  # which would not say how to write choices
            choices = document.scalar(f"[{_with_quoted_tuples(definition)}]", source)
    if not isinstance(choices, list):
        usage = f"write lists as in --space '{name}=[A,B],[A,B,C]', or a range as in --space {name}=LOW..HIGH"
        raise SpecError([Issue(("space", name), f"{definition!r} is not a list of choices; {usage}", source=source)])
    return choices[0] if len(choices) == 1 and isinstance(choices[0], list) else choices


def value(text: str, source: str) -> tuple[str, Any]:
    """Return the name and the value of a fixed parameter.

    Args:
        text: NAME=VALUE, with a value in YAML.
        source: Name of the text in messages.

    Raises:
        SpecError: The text has another form.
    """
    name, equals, value_text = text.partition("=")
    if not equals or not re.fullmatch(values.NAME, name.strip()):
        raise SpecError([Issue(("params",), f"{text!r} is not a parameter; write NAME=VALUE", source=source)])
    return name.strip(), document.scalar(value_text, source)


def space(short_space: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a space with its short forms expanded: each parameter has its fields.

    Args:
        short_space: Parameters by name, each as a text such as "1e-5..1e-2:log", or as in a job file.
        source: Name of the space in messages.

    Raises:
        SpecError: A text is neither a range nor choices.
    """
    parameters: dict[str, Any] = {}
    for name, definition in short_space.items():
        if isinstance(definition, str):
            _, parameters[name] = parameter(f"{name}={definition}", source)
        else:
            parameters[name] = definition
    return parameters


def objective(text: str, source: str) -> dict[str, str]:
    """Return the fields of an objective in its short form.

    Args:
        text: METRIC:max or METRIC:min, with `:best` or `:last` behind it to set the field `of`.
        source: Name of the text in messages.

    Raises:
        SpecError: The text has another form.
    """
    match = _WITH_DIRECTION.fullmatch(text)
    if match is not None and match[3] in (None, "best", "last"):
        fields = {"metric": match[1], "direction": _DIRECTIONS[match[2]]}
        return fields if match[3] is None else {**fields, "of": match[3]}
    of = next((of for of in (":best", ":last") if text.endswith(of)), "")
    metric, colon, last_part = text.removesuffix(of).rpartition(":")
    name = metric if colon else last_part
    if not name:
        problem = "names no metric; write METRIC:max, as in accuracy:max"
    elif match is not None:
        problem = f"does not end with best or last; write {name}:best or {name}:last"
    else:
        problem = f"does not name its direction; write {name}:max{of} or {name}:min{of}"
    raise SpecError([Issue(("objective",), f"{text!r} {problem}", source=source)])
