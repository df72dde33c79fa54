"""Columns of numbers as bytes, because a page of 50,000 trials would load slowly as JSON.

A column is an array of numbers. A text is the number of its entry in the column's dictionary, counted from 1; 0 stands for
no text. All columns are in one block of little-endian bytes, each at a multiple of eight. The page reads them as typed
arrays, without a copy.
"""

from __future__ import annotations

import array
import base64
import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_EXACT = 1 << 24  # whole numbers up to this are exact in 32 bits
_MAX_TEXT = 500  # characters of a text
_ALIGNMENT = 8  # bytes
TYPES = {"f": "f4", "d": "f8", "B": "u1", "H": "u2", "I": "u4"}  # codes of `array`, and of the page


class Texts:
    """A dictionary that gives each text a code, counted from 1."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str | None) -> int:
        """Return the code of a text, which is added if it is new. The code of None is 0."""
        return 0 if text is None else self._codes.setdefault(text[:_MAX_TEXT], len(self._codes) + 1)

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of their codes."""
        return list(self._codes)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        table: Name of the table.
        name: Name of the column.
        role: "param" or "metric" for the values of a job; "" for a column that every page has.
        numbers: Values, or the codes of texts.
        texts: Dictionary of the texts; None for a column of numbers.
        log: Whether the page shows the column on a logarithmic scale.
    """

    table: str
    name: str
    role: str
    numbers: array.array[Any]
    texts: Sequence[str] | None = None
    log: bool = False


def numbers(values: Iterable[Any]) -> array.array[Any]:
    """Return numbers as 32-bit floats, or as 64-bit ones if a whole number needs them; None is NaN."""
    doubles = array.array("d", (_number(value) for value in values))
    needs_doubles = any(abs(value) > _MAX_EXACT and value == int(value) for value in doubles if math.isfinite(value))
    return doubles if needs_doubles else array.array("f", (_narrow(value) for value in doubles))


def counts(values: Iterable[int]) -> array.array[Any]:
    """Return whole numbers, none below 0, in 8, 16 or 32 bits, as the largest one needs."""
    longs = array.array("I", values)
    largest = max(longs, default=0)
    return longs if largest >= 1 << 16 else array.array("H" if largest >= 1 << 8 else "B", longs)


def offsets(times: Iterable[float | None], start_time: float) -> array.array[Any]:
    """Return times as seconds since `start_time`; None is NaN."""
    return array.array("f", (math.nan if time is None else _narrow(time - start_time) for time in times))


def from_values(table: str, name: str, role: str, values: Sequence[Any], *, log: bool = False) -> Column:
    """Return parameters or metrics as a column: of numbers if all values are numbers or None, otherwise of texts."""
    if all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values):
        return Column(table, name, role, numbers(values), log=log)
    texts = Texts()
    codes = counts(texts.code(None if value is None else text(value)) for value in values)
    return Column(table, name, role, codes, texts.texts)


def text(value: Any) -> str:
    """Return a parameter's value as the text that the page shows, such as true, adam or [1, 2]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def pack(columns: Iterable[Column]) -> tuple[list[dict[str, Any]], str]:
    """Return the directory of columns, with the type and position of each, and the bytes of all columns as base64."""
    directory: list[dict[str, Any]] = []
    block = bytearray()
    for column in columns:
        block += bytes(-len(block) % _ALIGNMENT)
        entry: dict[str, Any] = {
            "table": column.table,
            "name": column.name,
            "role": column.role,
            "type": TYPES[column.numbers.typecode],
            "offset": len(block),
            "length": len(column.numbers),
        }
        if column.texts is not None:
            entry["texts"] = list(column.texts)
        if column.log:
            entry["log"] = True
        directory.append(entry)
        data = column.numbers
        if sys.byteorder == "big":
            data = array.array(data.typecode, data)
            data.byteswap()
        block += data.tobytes()
    return directory, base64.b64encode(block).decode()


def _number(value: Any) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _narrow(value: float) -> float:
    """Return a number, or infinity if `array` would refuse it as too large for 32 bits."""
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > 3.4e38 else value
