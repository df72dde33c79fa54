"""Options from the values that a launcher or a command writes: 0.1 of `LR=0.1`, or of `default: 1e-1`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

import yaml

from trialplane.wire.declared import Option

_NUMBER_TYPES = ("float", "int")  # types of an MLproject that are also kinds of an option


def option_of(name: str, default: Any, *, required: bool = False, declared_type: str = "") -> Option:
    """Return an option whose kind is that of its default, "str" without one.

    Args:
        name: Name of the option.
        default: Default in a launcher, see `value_of`.
        required: Whether the option needs a value.
        declared_type: Type that an MLproject declares for it; "" if it declares none.
    """
    value = value_of(default)
    if isinstance(value, int) and declared_type == "float":
        value = float(value)
    kind = "str" if value is None else type(value).__name__  # int, float or str
    if declared_type in _NUMBER_TYPES:
        kind = declared_type
    return Option(name, default=value, kind=kind, required=required)


def with_default(option: Option, text: str) -> Option:
    """Return an option whose default is the value that a text in a command stands for, and which is not required.

    It keeps its kind if both the kind and the value are numbers. Otherwise it gets the kind of the value, see `option_of`.
    """
    typed = option_of(option.name, text)
    are_numbers = option.kind in _NUMBER_TYPES and typed.kind in _NUMBER_TYPES
    kind = option.kind if are_numbers else typed.kind
    return dataclasses.replace(option, default=typed.default, kind=kind, required=False)


def value_of(written_value: Any) -> Any:
    """Return the number or text that a value in a launcher stands for; None for a boolean, list or mapping."""
    value = written_value
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value.strip("\"'"))
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # such as 1e-3, which is a text in YAML 1.1
    return value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None


def first_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the first value of each name."""
    value_by_name: dict[str, str] = {}
    for name, value in pairs:
        value_by_name.setdefault(name, value)
    return value_by_name
