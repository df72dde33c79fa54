"""Checks that a job's data files exist and have the required content, reading as little of them as possible.

They read the first record of a table, and enough lines of plain text for a batch of each rank.
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
    """Return issues of the files in `job.inputs`.

    Args:
        job: the job, with the files in its params; paths are relative to the job's folder.
        folder: the job's folder, which is uploaded with the run.
        elsewhere: folder that may exist only in trial pods; missing files in it are not checked.
        away: whether trials run on another machine, which only gets the job's folder.
    """
    issues: list[Issue] = []
    for name, input_ in job.inputs.items():
        field, value = f"params.{name}", job.params.get(name)
        if value is None:
            if not (input_.optional or name in job.search.names or job.search.is_code):
                issues.append(Issue((field,), f"is null, and must name {_kind(input_)}"))
            continue
        files: list[Path] = []
        before = len(issues)
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, str) or not path:
                issues.append(Issue((field,), f"must be the path of a data file, not {path!r}"))
                continue
            try:
                file = Path(path).expanduser()
            except RuntimeError:
                issues.append(Issue((field,), f"begins with an unknown user: {path}"))
                continue
            normalized = Path(os.path.normpath(folder.absolute() / file))
            file = file if file.is_absolute() else folder / file
            if elsewhere and file.is_relative_to(elsewhere) and not os.path.lexists(file):
                break  # then lines cannot be counted either
            files.append(file)
            message = _look(file, input_, _columns(job, input_)) or _unreachable(
                path, normalized, folder.absolute(), elsewhere, away
            )
            if message:
                issues.append(Issue((field,), message, str(file)))
        else:
            if input_.format == "lines" and len(issues) == before:
                issues += [Issue((field,), text, str(files[0]) if files else "") for text in _too_few(job, input_, files)]
    return issues


def _kind(input_: Input) -> str:
    tables = "a .csv, .tsv, .jsonl or .parquet file" if input_.format == "dataset" else "a .csv, .tsv or .jsonl file"
    return "a text file" if input_.format == "lines" else tables


def _columns(job: Job, input_: Input) -> list[str]:
    """Return the required columns of a table. Parameters that are null or searched name none."""
    named = [job.params.get(name) for name in input_.columns_of]
    return list(dict.fromkeys([*input_.columns, *(name for name in named if isinstance(name, str))]))


def _unreachable(path: str, file: Path, folder: Path, elsewhere: str, away: bool) -> str:
    """Return why trials would not find a local file, or "". They get a copy of the job's folder.

    Args:
        path: path in the job.
        file: normalized absolute path.
        folder: absolute path of the job's folder.
        elsewhere: folder that may exist only in trial pods.
        away: whether trials run on another machine.
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
    """Return the problem of a file, or ""."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"does not exist; {errors.nearest(file.name, _beside(file))}".rstrip("; ")
    except (OSError, ValueError) as error:  # a circle of links, a closed folder, a name too long or with a zero byte
        return f"cannot be read: {getattr(error, 'strerror', error)}"
    if stat.S_ISDIR(mode):
        return f"is a folder; name {_kind(input_)}"
    if not stat.S_ISREG(mode):  # reading it may block
        return f"is a device or a pipe, and not a file; name {_kind(input_)}"
    return _look_at_text(file) if input_.format == "lines" else _look_at_table(file, input_, columns)


def _beside(file: Path) -> list[str]:
    """Return the names of the files in the same folder."""
    try:
        return [path.name for path in file.parent.iterdir() if path.is_file()]
    except OSError:
        return []


def _look_at_table(file: Path, input_: Input, columns: Sequence[str]) -> str:
    """Return the problem of a table without one of `columns`, or that cannot be read; "" without a problem."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if input_.format == "dataset" and suffixes[-1:] == [_PARQUET]:
        return _look_at_parquet(file, columns)
    is_compressed = suffixes[-1:] == [".gz"]
    if is_compressed:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in _SEPARATORS and kind not in _RECORDS:
        expected = _kind(input_).removesuffix(" file").removeprefix("a ")
        return f"is of a kind that cannot be read ({kind or 'no suffix'}); give {expected}, plain or .gz"
    try:
        with (
            gzip.open(file, "rb") if is_compressed else file.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text,
        ):
            present = _header(text, kind)
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
    """Return the problem of a Parquet file. Names are searched in the footer, where they are plain text."""
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
    """Return the problem of the first piece of a text file. Later invalid bytes are reported when they are read."""
    try:
        with file.open("rb") as raw:
            head = raw.read(_PIECE)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if head.startswith(_GZIP):
        return f"is compressed, and lines are read directly from the file; run gunzip < {file.name} > {_plain(file)}"
    if head.startswith(_WIDE):
        return f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name} > NEW.txt"
    if b"\0" in head:
        return "is not text: it holds zero bytes; name a file of UTF-8 text, a sample in each line"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the piece may end within a character
    except UnicodeDecodeError as error:
        line = head.count(bytes([10]), 0, error.start) + 1
        command = f"iconv -f GB18030 -t UTF-8 {file.name} > NEW.txt"
        return f"is not UTF-8 text (line {line}); convert it, for example {command}"
    if not head.strip() and len(head) < _PIECE:
        return "is empty; it must hold a sample in each line"
    return ""


def _plain(file: Path) -> str:
    """Return a name for the decompressed file. gunzip itself only accepts names that end in .gz."""
    return file.stem if file.suffix == ".gz" else "NEW.txt"


def _too_few(job: Job, input_: Input, files: Sequence[Path]) -> list[str]:
    """Return a message if there are fewer non-blank lines than a batch of all ranks needs."""
    return [text for field, terms in input_.amounts.items() if (text := _lacks(job, field == "per_rank", terms, files))][:1]


def _lacks(job: Job, per_rank: bool, terms: Sequence[int | str], files: Sequence[Path]) -> str:
    values = [int(job.params[term] if isinstance(term, str) else term) for term in terms]
    per_rank_lines, ranks = sum(values), job.world_size if per_rank else 1
    available = _count(files, per_rank_lines * ranks)
    if available >= per_rank_lines * ranks:
        return ""
    shown = [f"{term} {value}" if isinstance(term, str) else f"{value}" for term, value in zip(terms, values, strict=True)]
    needed = " + ".join(shown)
    if ranks > 1:
        reason = f"{errors.counted(ranks, 'rank')} with {needed} each need {per_rank_lines * ranks}"
    else:
        reason = f"it needs {needed}" + (f", which is {per_rank_lines}" if len(terms) > 1 else "")
    advice = _smaller(terms, values, available // ranks)
    return f"has {errors.counted(available, 'line')} of text, and {reason}; give more text{advice}"


def _smaller(terms: Sequence[int | str], values: Sequence[int], room: int) -> str:
    """Return advice on parameters to lower: a value for a single parameter, or the names of several."""
    named = [term for term in terms if isinstance(term, str)]
    rest = sum(value for term, value in zip(terms, values, strict=True) if not isinstance(term, str))
    if len(named) == 1:
        return f", or --set params.{named[0]}={room - rest}" if room > rest else ""
    return f", or lower {' or '.join(f'params.{name}' for name in named)}" if named else ""


def _count(files: Sequence[Path], enough: int) -> int:
    """Return the number of non-blank lines, counted up to `enough`."""
    count = 0
    for file in files:
        with file.open("rb") as raw:
            blank = True
            while piece := raw.readline(_PIECE):  # a line may be as long as the file
                blank = blank and piece.isspace()
                if piece.endswith(b"\n"):
                    count, blank = count + (not blank), True
                if count >= enough:
                    return count
            count += not blank
    return count


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
