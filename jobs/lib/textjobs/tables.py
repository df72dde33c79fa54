"""Labelled rows for jobs, from CSV, TSV or JSON Lines, checked as they are read.

Knows nothing of what the columns mean. Standard library only.
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
    """The rows of a `.csv` or `.tsv` file (values are strings), or of JSON lines under any other name.

    Raises:
        InputError: no such file, no rows, not the format its name says, or a column of `columns` is missing.
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
    """Whether the row with this key is held out.

    Depends on the key alone, so every trial of a study is scored on the same rows whatever its seed, and rows that share
    a key (one post asked about several criteria) never end up on both sides.
    """
    return zlib.crc32(key.encode()) % folds == fold


def integer(row: dict[str, Any], column: str, path: Path, limit: int) -> int:
    """The value of `column` as an integer in [0, limit).

    Raises:
        InputError: it is none.
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
