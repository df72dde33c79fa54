"""The columns of a page's tables as one block of bytes, because the page of 50,000 trials would load slowly as JSON.

A column is an array of numbers. A text is represented by a code: its number in the column's list of texts, from 1; 0 means
no text. The block is little-endian, as are all machines that trialplane runs on, and each column begins at a multiple of
eight bytes. So the page reads the columns as typed arrays, without a copy.
"""

from __future__ import annotations

import array
import base64
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from trialplane.job.numeric import is_number

_MAX_EXACT = 1 << 24  # whole numbers up to this are exact as 32-bit floats
_MAX_FLOAT32 = 3.4e38  # larger numbers do not fit into 32-bit floats
_MAX_TEXT = 500  # limit of the characters of a text
_ALIGNMENT = 8  # bytes
TYPES = {"f": "f4", "d": "f8", "B": "u1", "H": "u2", "I": "u4"}  # type code of `array` → name of the type in the page


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        table: Name of the table.
        name: Name of the column.
        numbers: Values, or the codes of texts.
        texts: The texts, in the order of their codes. None for a column of numbers.
        category: "param" or "metric" for a parameter or a metric of the job, which may have any name; "" for a column that
            every page has.
        log: Whether the page shows the column on a logarithmic scale.
    """

    table: str
    name: str
    numbers: array.array[Any]
    texts: Sequence[str] | None = None
    category: str = ""
    log: bool = False


def numbers(values: Iterable[Any]) -> array.array[Any]:
    """Return numbers as an array of 32-bit floats, or of 64-bit floats if a whole number needs them. None becomes NaN."""
    doubles = array.array("d", (_as_float(value) for value in values))
    needs_doubles = any(abs(value) > _MAX_EXACT and value.is_integer() for value in doubles)
    return doubles if needs_doubles else array.array("f", (_narrow(value) for value in doubles))


def unsigned(values: Iterable[int]) -> array.array[Any]:
    """Return whole numbers from 0 as an array of 8, 16 or 32 bits each, the smallest size that fits all of them."""
    in_32_bits = array.array("I", values)
    largest = max(in_32_bits, default=0)
    if largest >= 1 << 16:
        return in_32_bits
    return array.array("H" if largest >= 1 << 8 else "B", in_32_bits)


def offsets(times: Iterable[float | None], start_time: float) -> array.array[Any]:
    """Return times as an array of seconds since `start_time`. None becomes NaN."""
    return array.array("f", (math.nan if time is None else _narrow(time - start_time) for time in times))


def from_texts(table: str, name: str, texts: Iterable[str | None], category: str = "") -> Column:
    """Return a column of texts. The text of a row without one is None. For the other arguments, see `Column`."""
    code_by_text: dict[str, int] = {}
    codes = [0 if text is None else code_by_text.setdefault(text[:_MAX_TEXT], len(code_by_text) + 1) for text in texts]
    return Column(table, name, unsigned(codes), list(code_by_text), category)


def from_values(table: str, name: str, category: str, values: Sequence[Any], *, log: bool = False) -> Column:
    """Return the column of a parameter or a metric: of numbers if all values are numbers or None, otherwise of texts.

    The value of a row without one is None. For the other arguments, see `Column`.
    """
    if all(value is None or is_number(value) for value in values):
        return Column(table, name, numbers(values), category=category, log=log)
    return from_texts(table, name, (None if value is None else text(value) for value in values), category)


def text(value: Any) -> str:
    """Return the value of a parameter as the text that the page shows: true, adam, [1, 2]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def pack(columns: Iterable[Column], old_columns: Iterable[Column] = ()) -> tuple[list[dict[str, Any]], str]:
    """Return columns in the form that the page reads.

    Args:
        columns: All columns.
        old_columns: Columns that the page has already. The first values of a column that are in them are left out.

    Returns:
        A directory with an entry for each column: its names, its type, and its position in the bytes; also the number of
        values and of texts to keep of the old column, if any. Then the bytes of all columns, as base64.
    """
    old_by_name = {(column.table, column.category, column.name): column for column in old_columns}
    directory: list[dict[str, Any]] = []
    block = bytearray()
    for column in columns:
        block += bytes(-len(block) % _ALIGNMENT)  # zeros up to the next multiple of eight
        old = old_by_name.get((column.table, column.category, column.name))
        kept_count = 0 if old is None else _common_length(old.numbers, column.numbers)
        entry: dict[str, Any] = {
            "table": column.table,
            "name": column.name,
            "category": column.category,
            "type": TYPES[column.numbers.typecode],
            "offset": len(block),
            "length": len(column.numbers) - kept_count,
        }
        if kept_count:
            entry["kept"] = kept_count
        if column.texts is not None:
            kept_texts = 0
            if old is not None and old.texts and column.texts[: len(old.texts)] == old.texts:
                entry["kept_texts"] = kept_texts = len(old.texts)
            entry["texts"] = list(column.texts[kept_texts:])
        if column.log:
            entry["log"] = True
        directory.append(entry)
        block += column.numbers[kept_count:].tobytes()
    return directory, base64.b64encode(block).decode()


def _common_length(old: array.array[Any], new: array.array[Any]) -> int:
    """Return the number of first values that two arrays have in common; 0 if their types differ."""
    if old.typecode != new.typecode:
        return 0
    old_bytes, new_bytes = (memoryview(values).cast("B") for values in (old, new))  # because NaN is not equal to NaN
    equal, end = 0, min(len(old), len(new))
    while equal < end:  # a binary search: the first `equal` values are equal, and one of the first `end + 1` is not
        middle = (equal + end + 1) // 2
        part = slice(equal * new.itemsize, middle * new.itemsize)
        if old_bytes[part] == new_bytes[part]:
            equal = middle
        else:
            end = middle - 1
    return equal


def _as_float(value: Any) -> float:
    """Return a number as a float. None becomes NaN, and a number that is too large becomes an infinity."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _narrow(value: float) -> float:
    """Return a number for a 32-bit float. One that is too large, which `array` would refuse, becomes infinite."""
    is_too_large = math.isfinite(value) and abs(value) > _MAX_FLOAT32
    return math.copysign(math.inf, value) if is_too_large else value
