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
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TextIO

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import values
from trialplane.job.kinds import Input, Job

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_RECORD_SUFFIXES = (".jsonl", ".ndjson", ".json")
_GZIP_MARK = b"\x1f\x8b"
_HEAD_BYTES = 2**20  # number of bytes that are read at a time
# Bytes or characters of a line that are read at a time, because a file without line ends may be larger than the memory.
_LONGEST_LINE = 16 * 2**20


def check_inputs(job: Job, folder: Path, pod_folder: str = "", *, is_remote: bool = False) -> list[Issue]:
    """Return issues of the files in `job.inputs`, and of the targets of `job.links`.

    Args:
        job: The job, with the files in its params; paths are relative to the job's folder.
        folder: The job's folder, which is uploaded with the run.
        pod_folder: Folder that may exist only in trial pods; missing files in it are not checked. "" if there is none.
        is_remote: Whether trials run on another machine, which only gets the job's folder.
    """
    place = _Place(folder, pod_folder, is_remote)
    issues: list[Issue] = []
    for name, input_ in job.inputs.items():
        issues += _input_issues(job, name, input_, place)
    for link, target in job.links.items():
        issues += _link_issues(job, link, Path(target), place)
    return issues


class _Place(NamedTuple):
    """The place where trials read files. The attributes are arguments of `check_inputs`."""

    folder: Path
    pod_folder: str
    is_remote: bool

    def is_in_pods(self, file: Path) -> bool:
        """Whether a file is in the folder that may exist only in trial pods."""
        return bool(self.pod_folder) and file.is_relative_to(self.pod_folder)


def _link_issues(job: Job, link: str, target: Path, place: _Place) -> Iterator[Issue]:
    """Yield issues of a link that hides files of the job, or whose target trials would not find."""
    field = ("links", link)
    trial_program = job.roles()[0].program
    own_files = [] if trial_program is None else [*trial_program.files, trial_program.script]
    for file in own_files:
        if file and PurePath(file).is_relative_to(link):
            yield Issue(field, f"has {file}, of which each trial needs its own copy; link to other paths in it")
    if link in {PurePath(package).name for package in job.packages}:
        yield Issue(field, "is also the name of a package; drop one of the two")
    if place.is_in_pods(target):
        return
    if place.is_remote:
        volume = f"put it on the chart's data volume and write links: {{{link}: {place.pod_folder}/…}}"
        advice = volume if place.pod_folder else "drop it"
        yield Issue(field, f"{target} is on this machine only, and the trials are on a cluster; {advice}")
    elif not target.exists():
        yield Issue(field, f"{target} does not exist")


def _input_issues(job: Job, name: str, input_: Input, place: _Place) -> Iterator[Issue]:
    """Yield issues of the files that a parameter names."""
    field, value = (f"params.{name}",), job.params.get(name)
    if value is None:
        may_be_null = input_.optional or name in job.search.names or job.search.is_code  # a trial gets a searched value
        if not may_be_null:
            yield Issue(field, f"is null, and must name {_expected_file(input_)}")
        return
    paths = value if isinstance(value, list) else [value]
    files: list[Path] = []  # those without an issue
    for path in paths:
        if not isinstance(path, str) or not path:
            yield Issue(field, f"must be the path of a data file, not {path!r}")
            continue
        file = place.folder / values.expand_user(path)  # an absolute path replaces the folder
        if place.is_in_pods(file) and not os.path.lexists(file):
            return  # this file is checked in the pod; without it, the lines of all files cannot be counted
        if message := _file_problem(file, input_, _columns(job, input_)) or _availability_problem(path, place):
            yield Issue(field, message, source=str(file))
        else:
            files.append(file)
    is_valid = len(files) == len(paths)
    if input_.format == "lines" and is_valid and (message := _line_count_problem(job, input_.terms, files)):
        yield Issue(field, message, source=str(files[0]) if files else "")


def _expected_file(input_: Input) -> str:
    """Return a description of the files that an input accepts."""
    tables = "a .csv, .tsv, .jsonl or .parquet file" if input_.format == "dataset" else "a .csv, .tsv or .jsonl file"
    return "a text file" if input_.format == "lines" else tables


def _columns(job: Job, input_: Input) -> list[str]:
    """Return the required columns of a table: those in `columns`, and the values of the parameters in `columns_of`."""
    named_by_params = [job.params.get(name) for name in input_.columns_of]  # null, or missing if it is searched
    return list(dict.fromkeys([*input_.columns, *(column for column in named_by_params if isinstance(column, str))]))


def _availability_problem(path: str, place: _Place) -> str:
    """Return the reason why trials, which run in a copy of the job's folder, would not find a file. "" if they would.

    Args:
        path: Path of the file as the job has it.
        place: Place of the trials.
    """
    folder = place.folder.absolute()
    file = Path(os.path.normpath(folder / values.expand_user(path)))
    upload = f"put it on the chart's data volume and write {place.pod_folder}/…, or, a small one, into the job's folder"
    is_absolute, is_inside = values.expand_user(path).is_absolute(), file.is_relative_to(folder)
    if is_inside and not is_absolute:
        return ""
    if not is_absolute and place.is_remote:
        return f"is outside of the job's folder, which alone is sent to the cluster; {upload}"
    if not is_absolute:
        return f"is outside of the job's folder, and a run has a copy of that folder; write {file}"
    if not place.is_remote or place.is_in_pods(file):
        return ""
    if is_inside:
        return f"is a path of this machine, and the trials are on a cluster; write {file.relative_to(folder)}"
    return f"is on this machine only, and the trials are on a cluster; {upload}"


def _file_problem(file: Path, input_: Input, columns: Sequence[str]) -> str:
    """Return the reason why a file cannot be used as the input. "" if it can."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"does not exist; {errors.nearest(file.name, _sibling_names(file))}".rstrip("; ")
    except OSError as error:  # a circular link, or a folder without access
        return f"cannot be read: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"is a folder; name {_expected_file(input_)}"
    return _text_problem(file) if input_.format == "lines" else _table_problem(file, input_, columns)


def _sibling_names(file: Path) -> list[str]:
    """Return the names of the files in the same folder. Empty if the folder cannot be read."""
    try:
        return [path.name for path in file.parent.iterdir() if path.is_file()]
    except OSError:
        return []


def _table_problem(file: Path, input_: Input, columns: Sequence[str]) -> str:
    """Return the reason why a file is not a table with these columns. "" if it is."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if input_.format == "dataset" and suffixes[-1:] == [".parquet"]:
        return ""  # only trials have a library that reads it
    is_compressed = suffixes[-1:] == [".gz"]
    if is_compressed:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _SEPARATORS and suffix not in _RECORD_SUFFIXES:
        expected = _expected_file(input_).removesuffix(" file").removeprefix("a ")
        return f"is of a kind that cannot be read ({suffix or 'no suffix'}); give {expected}, plain or .gz"
    try:
        with (
            gzip.open(file, "rb") if is_compressed else file.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text,
        ):
            present = _column_names(text, suffix)
    except _BadFile as error:
        return str(error)
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    except (OSError, EOFError, zlib.error) as error:  # a damaged .gz raises one of these
        return f"cannot be read: {error}"
    return _missing_columns_problem([column for column in columns if column not in present], present)


def _missing_columns_problem(missing: Sequence[str], present: Sequence[str]) -> str:
    """Return the message for columns that a table lacks, with the columns that it has. "" if none is missing."""
    if not missing:
        return ""
    hints = [errors.nearest(column, present) for column in missing]
    # Without a similar name, `nearest` lists all columns, which the message does anyway.
    hints = [hint for hint in hints if hint.startswith("did you mean")]
    plural = "columns" if len(missing) > 1 else "column"
    return "; ".join([f"lacks the {plural} {', '.join(missing)}", f"it has {', '.join(present)}", *hints[:1]])


def _text_problem(file: Path) -> str:
    """Return the reason why the beginning of a file is not UTF-8 text. "" if it is. Only trials read the rest."""
    try:
        with file.open("rb") as raw:
            head = raw.read(_HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if head.startswith(_GZIP_MARK):
        return "is compressed, and lines are read directly from the file; decompress it with gunzip"
    try:
        # An incremental decoder accepts that the bytes end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        command = f"iconv -f GB18030 -t UTF-8 {file.name} > NEW.txt"
        return f"is not UTF-8 text (line {line}); convert it, for example {command}"
    if not head.strip() and len(head) < _HEAD_BYTES:
        return "is empty; it must hold a sample in each line"
    return ""


def _line_count_problem(job: Job, terms: Sequence[int | str], files: Sequence[Path]) -> str:
    """Return a message if files have fewer non-blank lines than the sum `at_least` requires, else "".

    Args:
        job: The job.
        terms: Terms of the sum: numbers, and names of parameters.
        files: The files.
    """
    numbers = {term: int(job.params[term] if isinstance(term, str) else term) for term in terms}
    required = sum(numbers[term] for term in terms)
    available = _count_lines(files, required)
    if available >= required:
        return ""
    needed = " + ".join(f"{term} {numbers[term]}" if isinstance(term, str) else f"{term}" for term in terms)
    lower = " or ".join(f"params.{term}" for term in terms if isinstance(term, str))
    advice = "give more text" + (f", or lower {lower}" if lower else "")
    return f"has {errors.counted(available, 'line')} of text, and it needs {needed}; {advice}"


def _count_lines(files: Sequence[Path], most: int) -> int:
    """Return the number of non-blank lines in files. Stop counting at `most`."""
    count = 0
    for file in files:
        with file.open("rb") as raw:
            begins_line = True  # whether the next piece does: a line longer than `_LONGEST_LINE` is read in pieces
            while piece := raw.readline(_LONGEST_LINE):
                if begins_line and not piece.isspace():
                    count += 1
                begins_line = piece.endswith(b"\n")
                if count >= most:
                    return count
    return count


class _BadFile(Exception):
    """Error of a table without a first record. The text is the message for the user."""


def _column_names(text: TextIO, suffix: str) -> list[str]:
    """Return the names of a table's columns: the cells of its first line, or the keys of its first record.

    Args:
        text: Text of the table.
        suffix: Suffix of the file's name before .gz: ".csv".

    Raises:
        _BadFile: The table has no header or no first record.
    """
    lines = iter(lambda: text.readline(_LONGEST_LINE), "")
    if suffix in _SEPARATORS:
        rows = csv.reader(lines, delimiter=_SEPARATORS[suffix])
        try:
            header = next(rows, None)
            first_row = next((row for row in rows if row), None)
        except csv.Error as error:
            raise _BadFile(f"is no {suffix[1:].upper()}: {error}") from error
        if not header:
            raise _BadFile("is empty; its first line must name the columns")
        if first_row is None:
            raise _BadFile("has a header but no rows")
        return [column.strip() for column in header]
    line = next((line for line in lines if line.strip()), "")
    if not line:
        raise _BadFile("is empty; it must hold one JSON object per line")
    try:
        record: Any = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _BadFile(f"must hold one JSON object per line; it begins with {line.strip()[:40]!r}")
    return list(record)
