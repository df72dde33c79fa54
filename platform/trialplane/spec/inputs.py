"""Whether the data files that a job names are there and hold the columns it needs, told from their first record."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from trialplane import errors
from trialplane.errors import Complaint
from trialplane.spec.job import Job

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_RECORDS = (".jsonl", ".ndjson", ".json")
# A first line longer than this is no record but a file of another kind.
_LONGEST_LINE = 16 * 2**20


def check_inputs(job: Job, folder: Path) -> list[Complaint]:
    """What is wrong with the files in `job.inputs`.

    Args:
        job: names the files in its params; relative paths start at the job's folder.
        folder: the job's folder.
    """
    found: list[Complaint] = []
    for name, wanted in job.inputs.items():
        field, value = f"params.{name}", job.params.get(name)
        if value is None:
            continue  # searched, or left empty by the user, which is the job's to judge
        paths = value if isinstance(value, list) else [value]
        for path in paths:
            if not isinstance(path, str) or not path:
                found.append(Complaint(field, f"must be the path of a data file, not {path!r}"))
                continue
            file = Path(path).expanduser()
            file = file if file.is_absolute() else folder / file
            message = _look(file, wanted.columns)
            if message:
                found.append(Complaint(field, message, str(file)))
    return found


def _look(file: Path, columns: Sequence[str]) -> str:
    """What is wrong with one file, or nothing."""
    if file.is_dir():
        return "is a folder; name a .csv, .tsv or .jsonl file"
    if not file.exists():
        there = [path.name for path in file.parent.iterdir() if path.is_file()] if file.parent.is_dir() else []
        return f"does not exist; {errors.nearest(file.name, there)}".rstrip("; ")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if packed else suffixes)[-1:] or [""]
    if kind[0] not in _SEPARATORS and kind[0] not in _RECORDS:
        return f"is of a kind that cannot be read ({kind[0] or 'no suffix'}); give .csv, .tsv or .jsonl, plain or .gz"
    try:
        with (
            gzip.open(file, "rb") if packed else file.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text,
        ):
            present = _header(text, kind[0])
    except _BadFile as error:
        return str(error)
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    except (OSError, EOFError) as error:  # a damaged .gz is one of both
        return f"cannot be read: {error}"
    missing = [column for column in columns if column not in present]
    if not missing:
        return ""
    hints = [hint for hint in (errors.nearest(column, present) for column in missing) if hint.startswith("did")]
    plural = "columns" if len(missing) > 1 else "column"
    return "; ".join([f"lacks the {plural} {', '.join(missing)}", f"it has {', '.join(present)}", *hints[:1]])


class _BadFile(Exception):
    """The file has no first record."""


def _header(text: TextIO, kind: str) -> list[str]:
    if kind in _SEPARATORS:
        try:
            header = next(csv.reader(text, delimiter=_SEPARATORS[kind]), None)
        except csv.Error as error:
            raise _BadFile(f"is no {kind[1:].upper()}: {error}") from error
        if not header:
            raise _BadFile("is empty; its first line must name the columns")
        return [column.strip() for column in header]
    line = text.readline(_LONGEST_LINE)
    while line and not line.strip():
        line = text.readline(_LONGEST_LINE)
    if not line:
        raise _BadFile("is empty; it must hold one JSON object per line")
    try:
        record: Any = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _BadFile(f"must hold one JSON object per line; it begins with {line.strip()[:40]!r}")
    return list(record)
