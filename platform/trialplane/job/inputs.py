"""Checks that the data files that a job names exist and hold what it needs, reading as little of them as possible.

Of a table that is its first record. Of plain text it is the lines that all ranks need for one batch each.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job.kinds import Input, Job

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_RECORDS = (".jsonl", ".ndjson", ".json")
# A first line longer than this is not a record: the file is of another kind.
_LONGEST_LINE = 16 * 2**20
_PARQUET = ".parquet"
_PARQUET_MARK = b"PAR1"
_LONGEST_FOOTER = 2**28
_GZIP = b"\x1f\x8b"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PIECE = 2**20


def check_inputs(job: Job, folder: Path, elsewhere: str = "", *, away: bool = False) -> list[Issue]:
    """Issues of the files in `job.inputs`.

    Args:
        job: names the files in its params; relative paths start at the job's folder.
        folder: the job's folder, which travels with the run.
        elsewhere: a folder that only the trials have; what is named below it and is not here is not looked at.
        away: whether the trials are on another machine, which has no file of this one but the job's folder.
    """
    found: list[Issue] = []
    for name, input_ in job.inputs.items():
        field, value = f"params.{name}", job.params.get(name)
        if value is None:
            if not (input_.optional or name in job.search.names or job.search.is_code):
                found.append(Issue((field,), f"is null, and must name {_kind(input_)}"))
            continue
        files: list[Path] = []
        before = len(found)
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, str) or not path:
                found.append(Issue((field,), f"must be the path of a data file, not {path!r}"))
                continue
            try:
                file = Path(path).expanduser()
            except RuntimeError:
                found.append(Issue((field,), f"begins with an unknown user: {path}"))
                continue
            below = Path(os.path.normpath(folder.absolute() / file))
            file = file if file.is_absolute() else folder / file
            if elsewhere and file.is_relative_to(elsewhere) and not os.path.lexists(file):
                break  # nor can the lines of all of them be counted
            files.append(file)
            message = _look(file, input_, _columns(job, input_)) or _unreachable(
                path, below, folder.absolute(), elsewhere, away
            )
            if message:
                found.append(Issue((field,), message, str(file)))
        else:
            if input_.format == "lines" and len(found) == before:
                found += [Issue((field,), text, str(files[0]) if files else "") for text in _too_few(job, input_, files)]
    return found


def _kind(input_: Input) -> str:
    tables = "a .csv, .tsv, .jsonl or .parquet file" if input_.format == "dataset" else "a .csv, .tsv or .jsonl file"
    return "a text file" if input_.format == "lines" else tables


def _columns(job: Job, input_: Input) -> list[str]:
    """The columns that a table must have; a parameter that is null or searched names none."""
    named = [job.params.get(name) for name in input_.columns_of]
    return list(dict.fromkeys([*input_.columns, *(name for name in named if isinstance(name, str))]))


def _unreachable(path: str, file: Path, folder: Path, elsewhere: str, away: bool) -> str:
    """Why trials would not find a local file, or "": they get a copy of the job's folder.

    Args:
        path: as the user wrote it.
        file: the same, absolute and without `..`.
        folder: the job's, absolute.
        elsewhere: a folder that only the trials have.
        away: whether the trials are on another machine.
    """
    inside = file.is_relative_to(folder)
    if not Path(path).expanduser().is_absolute():
        if inside or away:
            return "" if inside else f"is outside of the job's folder, which alone is sent to the cluster; {_way(elsewhere)}"
        return f"is outside of the job's folder, of which a run has a copy; write {file}"
    if not away or (elsewhere and file.is_relative_to(elsewhere)):
        return ""
    if inside:
        return f"is a path of this machine, and the trials are on a cluster; write {file.relative_to(folder)}"
    return f"is on this machine only, and the trials are on a cluster; {_way(elsewhere)}"


def _way(elsewhere: str) -> str:
    return f"put it on the chart's data volume and write {elsewhere}/…, or, a small one, into the job's folder"


def _look(file: Path, input_: Input, columns: Sequence[str]) -> str:
    """What is wrong with one file, or ""."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"does not exist; {errors.nearest(file.name, _beside(file))}".rstrip("; ")
    except (OSError, ValueError) as error:  # a circle of links, a closed folder, a name too long or with a zero byte
        return f"cannot be read: {getattr(error, 'strerror', error)}"
    if stat.S_ISDIR(mode):
        return f"is a folder; name {_kind(input_)}"
    if not stat.S_ISREG(mode):  # reading it may block forever
        return f"is a device or a pipe, and not a file; name {_kind(input_)}"
    return _look_at_text(file) if input_.format == "lines" else _look_at_table(file, input_, columns)


def _beside(file: Path) -> list[str]:
    """Names of the files in the same folder."""
    try:
        return [path.name for path in file.parent.iterdir() if path.is_file()]
    except OSError:
        return []


def _look_at_table(file: Path, input_: Input, columns: Sequence[str]) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if packed else suffixes)[-1:] or [""]
    if input_.format == "dataset" and suffixes[-1:] == [_PARQUET]:
        return _look_at_parquet(file, columns)
    if kind[0] not in _SEPARATORS and kind[0] not in _RECORDS:
        cure = _kind(input_).removesuffix(" file").removeprefix("a ")
        return f"is of a kind that cannot be read ({kind[0] or 'no suffix'}); give {cure}, plain or .gz"
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
    except (OSError, EOFError, zlib.error) as error:  # a damaged .gz is one of them
        return f"cannot be read: {error}"
    missing = [column for column in columns if column not in present]
    if not missing:
        return ""
    hints = [hint for hint in (errors.nearest(column, present) for column in missing) if hint.startswith("did")]
    plural = "columns" if len(missing) > 1 else "column"
    return "; ".join([f"lacks the {plural} {', '.join(missing)}", f"it has {', '.join(present)}", *hints[:1]])


def _look_at_parquet(file: Path, columns: Sequence[str]) -> str:
    """Search the footer for the names, which are stored as plain text; the footer is not parsed."""
    try:
        with file.open("rb") as raw:
            begin, size = raw.read(4), raw.seek(0, os.SEEK_END)
            raw.seek(max(0, size - 8))
            length, end = int.from_bytes(raw.read(4), "little"), raw.read(4)
            if begin != _PARQUET_MARK or end != _PARQUET_MARK or length + 12 > size or length > _LONGEST_FOOTER:
                return "is not Parquet, or is truncated"
            raw.seek(size - 8 - length)
            footer = raw.read(length)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    missing = [column for column in columns if column.encode() not in footer]
    return f"lacks the {'columns' if len(missing) > 1 else 'column'} {', '.join(missing)}" if missing else ""


def _look_at_text(file: Path) -> str:
    """Check the first piece only; an invalid byte further on is reported when it is read."""
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


def _too_few(job: Job, input_: Input, files: Sequence[Path]) -> list[str]:
    """A message if there are fewer non-blank lines than a batch of all ranks needs."""
    return [text for field, terms in input_.amounts.items() if (text := _lacks(job, field == "per_rank", terms, files))][:1]


def _lacks(job: Job, per_rank: bool, terms: Sequence[int | str], files: Sequence[Path]) -> str:
    values = [int(job.params[term] if isinstance(term, str) else term) for term in terms]
    each, times = sum(values), job.world_size if per_rank else 1
    have = _count(files, each * times)
    if have >= each * times:
        return ""
    shown = [f"{term} {value}" if isinstance(term, str) else f"{value}" for term, value in zip(terms, values, strict=True)]
    what = " + ".join(shown)
    if times > 1:
        why = f"{errors.counted(times, 'rank')} with {what} each need {each * times}"
    else:
        why = f"it needs {what}" + (f", which is {each}" if len(terms) > 1 else "")
    return f"has {errors.counted(have, 'line')} of text, and {why}; give more text{_smaller(terms, values, have // times)}"


def _smaller(terms: Sequence[int | str], values: Sequence[int], room: int) -> str:
    """What else would do: the one parameter that could be as small as there are lines for; of several they are named."""
    named = [term for term in terms if isinstance(term, str)]
    rest = sum(value for term, value in zip(terms, values, strict=True) if not isinstance(term, str))
    if len(named) == 1:
        return f", or --set params.{named[0]}={room - rest}" if room > rest else ""
    return f", or lower {' or '.join(f'params.{name}' for name in named)}" if named else ""


def _count(files: Sequence[Path], enough: int) -> int:
    """Lines that are not blank, until there are enough."""
    have = 0
    for file in files:
        with file.open("rb") as raw:
            blank = True
            while piece := raw.readline(_PIECE):  # a line may be as long as the file
                blank = blank and piece.isspace()
                if piece.endswith(b"\n"):
                    have, blank = have + (not blank), True
                if have >= enough:
                    return have
            have += not blank
    return have


class _BadFile(Exception):
    """The file has no first record."""


def _header(text: TextIO, kind: str) -> list[str]:
    if kind in _SEPARATORS:
        rows = csv.reader(iter(lambda: text.readline(_LONGEST_LINE), ""), delimiter=_SEPARATORS[kind])
        try:
            header = next(rows, None)
            first = next((row for row in rows if row), None)
        except csv.Error as error:
            raise _BadFile(f"is no {kind[1:].upper()}: {error}") from error
        if not header:
            raise _BadFile("is empty; its first line must name the columns")
        if first is None:
            raise _BadFile("has a header but no rows")
        return [column.strip() for column in header]
    line = text.readline(_LONGEST_LINE)
    while line and not line.strip():
        line = text.readline(_LONGEST_LINE)
    if not line:
        raise _BadFile("is empty; it must hold one JSON object per line")
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise _BadFile(f"must hold one JSON object per line; it begins with {line.strip()[:40]!r}")
    return list(record)
