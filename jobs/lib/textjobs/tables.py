"""Labelled rows for jobs, from CSV, TSV or JSON Lines, checked as they are read.

The meaning of the columns is up to the jobs. Standard library only.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a file: of a `.csv` or `.tsv` file, in which all values are strings, or else of JSON lines.

    Raises:
        InputError: The file cannot be read, has no rows or another format, or a row lacks one of `columns`.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _DELIMITERS.get(path.suffix.lower())
            rows = list(csv.DictReader(file, delimiter=delimiter)) if delimiter else _json_lines(file, path)
    except OSError as error:
        raise errors.InputError(f"data file {path}: {error.strerror}; params.data names it") from error
    except UnicodeDecodeError as error:
        raise errors.InputError(f"data file {path}: not UTF-8 ({error})") from error
    if not rows:
        raise errors.InputError(f"data file {path}: holds no rows")
    for number, row in enumerate(rows, start=1):
        missing = [column for column in columns if row.get(column) is None]
        if missing:
            column_names = ", ".join(str(name) for name in row)
            raise errors.InputError(f"data file {path}: row {number} has no {', '.join(missing)}; it has: {column_names}")
    return rows


def is_validation(key: str, folds: int, fold: int) -> bool:
    """Return whether the row with this key is held out.

    It depends only on the key. So every trial of a study is scored on the same rows, whatever its seed, and rows with the
    same key, such as those of one post with several criteria, are on the same side.
    """
    return zlib.crc32(key.encode()) % folds == fold


def integer(row: dict[str, Any], column: str, path: Path, limit: int) -> int:
    """Return the value of a column as an integer in [0, limit).

    Raises:
        InputError: The value is not such an integer.
    """
    try:
        value = int(row[column])
    except (TypeError, ValueError):
        value = -1
    if not 0 <= value < limit:
        raise errors.InputError(
            f"data file {path}: {column} is {row[column]!r}; it must be an integer from 0 to {limit - 1}"
        )
    return value


def _json_lines(lines: Iterable[str], path: Path) -> list[dict[str, Any]]:
    """Return the objects in JSON lines.

    Raises:
        InputError: A line is not a JSON object.
    """
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise errors.InputError(f"data file {path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise errors.InputError(f"data file {path}: line {number} is not a JSON object")
        rows.append(row)
    return rows
