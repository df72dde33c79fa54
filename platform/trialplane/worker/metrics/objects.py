"""The numbers of objects in text: JSON, or a dict as Python prints it. Numbers of nested objects have dotted names."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.job.numeric import is_number
from trialplane.worker.metrics import numerals
from trialplane.worker.metrics.headings import DATA_SET
from trialplane.worker.metrics.names import STEPS
from trialplane.worker.metrics.passages import is_argument_word

# The beginning of an object inside another one.
NESTED = re.compile(r"\{[^{}]*[\"']\s*:\s*\{")
# A part of an object: a key with an object, a list or a number, a text, or a bracket.
_OBJECT_PART = re.compile(
    rf"(?:([\"'])((?:(?!\1).)+)\1|(?<![\w.])(\d+))\s*:\s*(?:([{{\[])|[\"']?{numerals.CALL_PREFIX}({numerals.NUMBER}){numerals.NUMBER_END}[\"']?)"
    r"|\"[^\"\n]*\"|'[^'\n]*'|([{}\[\]])"
)
# The name of a list with a number per step: `loss`, `val_losses`, `epoch`. Others alone may be lists of classes.
_is_of_steps = re.compile(rf"(?:{DATA_SET}[_ ])?(?i:loss(?:es)?)|(?i:{'|'.join(STEPS)})s?").fullmatch


def json_numbers(line: str) -> dict[str, float] | None:
    """Return the numbers of a JSON object, except those in its settings, as `args`; None if the line is not an object."""
    if (record := _json_object(line)) is None:
        return None
    results = {name: value for name, value in record.items() if not (isinstance(value, dict) and is_argument_word(name))}
    return dict(_numbers(results))


def history_rows(text: str) -> list[str]:
    """Return the JSON objects, one for each step, that the history of a training stands for; [] if a text is none.

    A history is an object of lists, as `{"loss": [0.9, 0.7], "acc": [0.5, 0.6]}`. Its numbers are those of the last step.
    An object with a step of its own is none: its lists may be those of batches.
    """
    if "[" not in text or not text.lstrip().startswith("{") or (record := _json_object(text)) is None:
        return []
    lists = {name: value for name, value in record.items() if isinstance(value, list) and all(map(is_number, value))}
    count = next((len(values) for name, values in lists.items() if _is_of_steps(name)), 0)
    if not count or any(is_number(record.get(name)) for name in STEPS):
        return []
    columns = {name: values for name, values in lists.items() if len(values) == count}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    others = {name: value for name, value in record.items() if name not in columns}  # those of objects, too
    return [json.dumps(row) for row in (*rows[:-1], others | rows[-1])]


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


def _json_object(text: str) -> dict[str, Any] | None:
    """Return the object of JSON that a text is; None if it is not an object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _numbers(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of nested objects, by dotted names. True and false are not numbers."""
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            yield from _numbers(nested, f"{prefix}{name}.")
        elif isinstance(nested, (int, float)) and not isinstance(nested, bool):
            with contextlib.suppress(OverflowError):  # a whole number that no float can hold
                yield prefix + str(name), float(nested)
