"""Whether the data files that a job names are there and hold what it needs, told from as little of them as can be.

Of a table that is its first record. Of plain text it is as many lines as all ranks need for one batch each.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from trialplane import errors
from trialplane.errors import Complaint
from trialplane.spec.job import Input, Job

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_RECORDS = (".jsonl", ".ndjson", ".json")
# A first line longer than this is no record but a file of another kind.
_LONGEST_LINE = 16 * 2**20
_GZIP = b"\x1f\x8b"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PIECE = 2**20


def check_inputs(job: Job, folder: Path, elsewhere: str = "") -> list[Complaint]:
    """What is wrong with the files in `job.inputs`.

    Args:
        job: names the files in its params; relative paths start at the job's folder.
        folder: the job's folder.
        elsewhere: a folder that only the trials have; what is named below it and is not here is not looked at.
    """
    found: list[Complaint] = []
    for name, wanted in job.inputs.items():
        field, value = f"params.{name}", job.params.get(name)
        if value is None:
            continue  # searched, or left empty by the user, which is the job's to judge
        files: list[Path] = []
        before = len(found)
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, str) or not path:
                found.append(Complaint(field, f"must be the path of a data file, not {path!r}"))
                continue
            file = Path(path).expanduser()
            file = file if file.is_absolute() else folder / file
            if elsewhere and file.is_relative_to(elsewhere) and not file.exists():
                break  # nor can the lines of all of them be counted
            files.append(file)
            message = _look(file, wanted)
            if message:
                found.append(Complaint(field, message, str(file)))
        else:
            if wanted.format == "lines" and len(found) == before:
                found += [Complaint(field, text, str(files[0]) if files else "") for text in _too_few(job, wanted, files)]
    return found


def _look(file: Path, wanted: Input) -> str:
    """What is wrong with one file, or nothing."""
    if file.is_dir():
        kinds = "a text file" if wanted.format == "lines" else "a .csv, .tsv or .jsonl file"
        return f"is a folder; name {kinds}"
    if not file.exists():
        there = [path.name for path in file.parent.iterdir() if path.is_file()] if file.parent.is_dir() else []
        return f"does not exist; {errors.nearest(file.name, there)}".rstrip("; ")
    return _look_at_text(file) if wanted.format == "lines" else _look_at_table(file, wanted.columns)


def _look_at_table(file: Path, columns: Sequence[str]) -> str:
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


def _look_at_text(file: Path) -> str:
    """Looks at the first piece only; a byte that is wrong further on is named by who reads it."""
    try:
        with file.open("rb") as raw:
            head = raw.read(_PIECE)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if head.startswith(_GZIP):
        cure = f"unpack it: gunzip < {file.name} > {_plain(file)}"
        return f"is compressed, and lines are read where they lie in the file; {cure}"
    if head.startswith(_WIDE):
        return f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name} > NEW.txt"
    if b"\0" in head:
        return "is not text: it holds zero bytes; name a file of UTF-8 text, a sample in each line"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the piece may end within a character
    except UnicodeDecodeError as error:
        line = head.count(bytes([10]), 0, error.start) + 1
        cure = f"for example iconv -f GB18030 -t UTF-8 {file.name} > NEW.txt"
        return f"is not UTF-8 text (line {line}); convert it, {cure}"
    if not head.strip() and len(head) < _PIECE:
        return "is empty; it must hold a sample in each line"
    return ""


def _plain(file: Path) -> str:
    """A name for what is unpacked: gunzip by itself takes a file only when its name ends in .gz."""
    return file.stem if file.suffix == ".gz" else "NEW.txt"


def _too_few(job: Job, wanted: Input, files: Sequence[Path]) -> list[str]:
    """Says so when there are fewer lines, blank ones aside, than a batch of all ranks needs."""
    return [text for field, given in wanted.amounts.items() if (text := _lacks(job, field == "per_rank", given, files))][:1]


def _lacks(job: Job, per_rank: bool, given: int | str, files: Sequence[Path]) -> str:
    named = isinstance(given, str)
    each, times = int(job.params[given] if isinstance(given, str) else given), job.world_size if per_rank else 1
    have = _count(files, each * times)
    if have >= each * times:
        return ""
    what = f"{given} {each}" if named else f"{each}"
    why = f"{errors.counted(times, 'rank')} with {what} each need {each * times}" if times > 1 else f"it needs {what}"
    cure = f", or --set params.{given}={have // times}" if named and have >= times else ""
    return f"has {errors.counted(have, 'line')} of text, and {why}; give more text{cure}"


def _count(files: Sequence[Path], enough: int) -> int:
    """Lines that are not blank, until there are enough."""
    have = 0
    for file in files:
        with file.open("rb") as raw:
            for line in raw:
                have += not line.isspace()
                if have >= enough:
                    return have
    return have


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
