"""The numbers of objects in text: JSON, or a dict as Python prints it. Numbers of nested objects have dotted names."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping

from trialplane.worker.metrics import numerals
from trialplane.worker.metrics.passages import is_argument_word

# The beginning of an object inside another one.
NESTED = re.compile(r"\{[^{}]*[\"']\s*:\s*\{")
# A part of an object: a key with an object, a list or a number, a text, or a bracket.
_OBJECT_PART = re.compile(
    rf"(?:([\"'])((?:(?!\1).)+)\1|(?<![\w.])(\d+))\s*:\s*(?:([{{\[])|[\"']?{numerals.CALL_PREFIX}({numerals.NUMBER}){numerals.NUMBER_END}[\"']?)"
    r"|\"[^\"\n]*\"|'[^'\n]*'|([{}\[\]])"
)


def json_numbers(line: str) -> dict[str, float] | None:
    """Return the numbers of a JSON object, except those in its settings, as `args`; None if the line is not an object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    results = {name: value for name, value in record.items() if not (isinstance(value, dict) and is_argument_word(name))}
    return dict(_numbers(results))


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


def _numbers(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of nested objects, by dotted names. True and false are not numbers."""
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            yield from _numbers(nested, f"{prefix}{name}.")
        elif isinstance(nested, (int, float)) and not isinstance(nested, bool):
            with contextlib.suppress(OverflowError):  # a whole number that no float can hold
                yield prefix + str(name), float(nested)
