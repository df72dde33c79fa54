"""Columns of numbers as bytes: what a page of 50,000 trials can load, which it could not as JSON.

A column is an array of numbers; texts are codes of a dictionary, from 1 on, and 0 is no text. All columns are in one block
of bytes, little-endian, each at a multiple of eight. The page reads them as typed arrays, without a copy.
"""

from __future__ import annotations

import array
import base64
import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_EXACT = 1 << 24  # whole numbers up to this are exact in 32 bits
_LONGEST = 500  # characters of a text
_ALIGNED = 8  # bytes
TYPES = {"f": "f4", "d": "f8", "B": "u1", "H": "u2", "I": "u4"}  # codes of `array`, and of the page


class Texts:
    """A dictionary of texts that only grows, so that the codes of an earlier block stay valid."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str | None) -> int:
        """Return the code of a text, and add it to the dictionary."""
        return 0 if text is None else self._codes.setdefault(text[:_LONGEST], len(self._codes) + 1)

    @property
    def texts(self) -> list[str]:
        """The texts, by code - 1."""
        return list(self._codes)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        table: name of the table.
        name: name of the column.
        role: use of the column: "param", "metric" or "" for a fixed one.
        numbers: values, or codes.
        texts: the dictionary; None for numbers.
        log: whether to show it on a logarithmic scale.
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
    wide = any(abs(value) > _EXACT and value == int(value) for value in doubles if math.isfinite(value))
    return doubles if wide else array.array("f", (_narrow(value) for value in doubles))


def counts(values: Iterable[int]) -> array.array[Any]:
    """Return whole numbers from 0 on, in as few bits as they need."""
    wide = array.array("I", values)
    most = max(wide, default=0)
    return wide if most >= 1 << 16 else array.array("H" if most >= 1 << 8 else "B", wide)


def offsets(values: Iterable[float | None], begun: float) -> array.array[Any]:
    """Return times as seconds since `begun`; None is NaN."""
    return array.array("f", (math.nan if value is None else _narrow(value - begun) for value in values))


def of_values(table: str, name: str, role: str, values: Sequence[Any], *, log: bool = False) -> Column:
    """Return values of a job as a column: numbers if all of them are, else texts."""
    if all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values):
        return Column(table, name, role, numbers(values), log=log)
    texts = Texts()
    codes = counts(texts.code(None if value is None else text(value)) for value in values)
    return Column(table, name, role, codes, texts.texts)


def text(value: Any) -> str:
    """Return a value of a job as the text that stands for it: true, adam, [1, 2]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def packed(columns: Iterable[Column]) -> tuple[list[dict[str, Any]], str]:
    """Return a directory of columns, and their bytes as base64."""
    directory: list[dict[str, Any]] = []
    block = bytearray()
    for column in columns:
        block += bytes(-len(block) % _ALIGNED)
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
    """Return a number in the range of 32-bit floats, which `array` refuses to leave."""
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > 3.4e38 else value
