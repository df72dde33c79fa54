"""The file of another tool, as a `Source` that records which values were read, and the result of its import.

Each value that an importer has not read gets a note, so that nothing is lost silently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError
from trialplane.job import values
from trialplane.job.document import Document

_NON_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity")  # texts that `float` reads
CALL = "()"  # key of the function's name in a mapping that stands for a call in code


@dataclasses.dataclass(frozen=True)
class Note:
    """A note on a value of the source that the job does not have, or has in another form.

    Attributes:
        field: Path of the value in the source.
        reason: Reason, and advice.
        line: 1-based line in the source; 0 if unknown.
    """

    field: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.field}{f' (line {self.line})' if self.line else ''}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class ImportResult:
    """The result of an importer.

    Attributes:
        job: Fields of job.yaml.
        notes: Notes on values of the source, in their order.
        files: Texts of generated files of the job's folder, by name.
        copies: Names of files beside the source that the job's folder needs, if they exist.
        is_in_parent: Whether these files are in the parent of the source's folder, so that the job needs both folders.
    """

    job: Mapping[str, Any]
    notes: tuple[Note, ...]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: tuple[str, ...] = ()
    is_in_parent: bool = False


class Source:
    """The data of a file. It records which values were read, and collects notes and issues.

    A path is the keys and indices that lead to a value from the top of the data.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._read: set[FieldPath] = set()  # paths of values; all below them counts as read, too
        self._notes: list[Note] = []
        self._issues: list[Issue] = []
        self._names: dict[str, str] = {}  # name of a parameter in the source → its name in the job

    def look(self, *path: str | int) -> Any:
        """Return the value at a path, without recording that it was read. None if there is none."""
        value = self._document.data
        for step in path:
            has_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
            has_key = isinstance(value, dict) and step in value
            if not has_index and not has_key:
                return None
            value = value[step]
        return value

    def take(self, *path: str | int) -> Any:
        """Return the value at a path, and record that it and everything below it was read. None if there is none."""
        self.mark_read(*path)
        return self.look(*path)

    def mark_read(self, *path: str | int) -> None:
        """Record that the value at a path and everything below it was read, so that there is no note on it."""
        self._read.add(path)

    def keys(self, *path: str | int) -> list[str]:
        """Return the keys of the mapping at a path. Empty if there is none. Add an issue for another value."""
        value = self.look(*path)
        if value is not None and not isinstance(value, dict):
            self.refuse("must be a mapping", *path)
        return list(value) if isinstance(value, dict) else []

    def indices(self, *path: str | int) -> range:
        """Return the indices of the list at a path. Empty if there is none. Add an issue for another value."""
        value = self.look(*path)
        if value is not None and not isinstance(value, list):
            self.refuse("must be a list", *path)
        return range(len(value) if isinstance(value, list) else 0)

    def _take_known(self, *path: str | int) -> Any:
        """Return the value at a path as `take` does. None, with a note, if it is a call in code."""
        value = self.take(*path)
        if isinstance(value, dict) and CALL in value:
            self.note(f"only running the file would show what {call_text(value)} is", *path)
            return None
        return value

    def text(self, *path: str | int) -> str:
        """Read a scalar as a string. "" if there is none. Add an issue for another value, and a note for code."""
        value = self._take_known(*path)
        if isinstance(value, (dict, list)):
            self.refuse("must be one value", *path)
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None else str(value)

    def number(self, *path: str | int) -> float | None:
        """Read a finite number, or a string with one, as `text` does. None if there is none."""
        value = self._take_known(*path)
        if value is None:
            return None
        number = math.nan  # stands for a value that is not a finite number
        if not isinstance(value, (bool, dict, list)) and str(value).lower() not in _NON_FINITE:
            with contextlib.suppress(ValueError, OverflowError):  # a text without a number; an integer over 1.8e308
                number = float(value)
        if not math.isfinite(number):
            self.refuse(f"must be a number, not {errors.shortened(repr(value), 60)}", *path)
            return None
        return number

    def integer(self, *path: str | int) -> int | None:
        """Read an integer, or a string with one, as `text` does. None if there is none."""
        value = self.number(*path)
        if value is not None and value != int(value):
            self.refuse(f"must be a whole number, not {value:g}", *path)
            return None
        return None if value is None else int(value)

    def texts(self, *path: str | int) -> list[str]:
        """Read the scalars of a list as strings."""
        return [self.text(*path, index) for index in self.indices(*path)]

    def elements(self, *path: str | int) -> list[Any]:
        """Read the values of a list."""
        return [self.take(*path, index) for index in self.indices(*path)]

    def skip(self, reason: str, *path: str | int) -> None:
        """Add a note on the value at a path, and record that it was read. Do nothing if there is none."""
        if self.look(*path) is not None:
            self.mark_read(*path)
            self.note(reason, *path)

    def note(self, reason: str, *path: str | int) -> None:
        """Add a note on the value at a path."""
        line = self._document.nearest_line(path)
        self._notes.append(Note(field=_dotted_path(path), reason=" ".join(reason.split()), line=line))

    def refuse(self, message: str, *path: str | int) -> None:
        """Add an issue on the value at a path. `result` raises an error with all issues."""
        line = self._document.nearest_line(path)
        self._issues.append(Issue(path or ("file",), message, source=self._document.source, line=line))

    def fail(self, message: str, *path: str | int) -> NoReturn:
        """Raise an error with all issues so far, and one on the value at a path.

        Raises:
            SpecError: Always.
        """
        self.refuse(message, *path)
        raise SpecError(self._issues)

    def name(self, key: str, *path: str | int) -> str:
        """Return a valid name for a parameter. Add a note if it differs from the name in the source.

        The same key always gets the same name, and different keys get different names.
        """
        if key in self._names:
            return self._names[key]
        name = values.parameter_name(key, self._names.values())
        if name != key:
            self.note(
                f"becomes the parameter {name}: names in a space have letters, digits, _ and -, with . and / between them",
                *path,
            )
        self._names[key] = name
        return name

    def result(
        self,
        job: Mapping[str, Any],
        reasons: Mapping[str, str],
        *,
        files: Mapping[str, str] | None = None,
        copies: Sequence[str] = (),
        is_in_parent: bool = False,
    ) -> ImportResult:
        """Return the job without empty fields, and the notes. Add a note on each value that was not read.

        Args:
            job: Fields of job.yaml. Limits of `budget` that are None are left out, too.
            reasons: Reasons for such notes, by a part of the value's dotted path; see `_reason`.
            files: Texts of generated files of the job's folder, by name.
            copies: Names of files beside the source that the job's folder needs.
            is_in_parent: Whether these files are in the parent of the source's folder.

        Raises:
            SpecError: There are issues, or nothing to search.
        """
        if not self._issues and not job.get("space"):
            self.refuse("has nothing to search that can be read: a study needs a parameter with a range, or with choices")
        if self._issues:
            raise SpecError(self._issues)
        self._note_unread((), reasons)
        notes = sorted(dict.fromkeys(self._notes), key=lambda note: note.line)
        budget = {name: limit for name, limit in job.get("budget", {}).items() if limit is not None}
        fields = {field: value for field, value in {**job, "budget": budget}.items() if value not in (None, "", [], {})}
        return ImportResult(
            job=fields, notes=tuple(notes), files=files or {}, copies=tuple(copies), is_in_parent=is_in_parent
        )

    def _note_unread(self, path: FieldPath, reasons: Mapping[str, str]) -> None:
        """Add a note on each value below a path that was not read. A mapping or list of such values gets one note."""
        value = self.look(*path)
        if path in self._read or value in ({}, []):
            return
        contains_read_value = any(read_path[: len(path)] == path for read_path in self._read)
        if path and not contains_read_value:
            self.note(_reason(path, reasons), *path)
        elif isinstance(value, dict):
            for key in value:
                self._note_unread((*path, key), reasons)
        elif isinstance(value, list):
            for index in range(len(value)):
                self._note_unread((*path, index), reasons)


def call_text(call: Mapping[str, Any]) -> str:
    """Return the text of a call in code, shortened for a message."""
    return errors.shortened(str(call.get("text") or f"{call[CALL]}(…)"), 60)


def _reason(path: FieldPath, reasons: Mapping[str, str]) -> str:
    """Return the reason for the part of a path that ends last, or of several such parts for the longest one.

    Of reasons for `hydra` and `hydra.launcher`, the path `hydra.launcher.n_jobs` has the second one.
    """
    steps = [str(step) for step in path if step != CALL]
    for end in range(len(steps), 0, -1):
        for start in range(end):  # the longest part first
            part = ".".join(steps[start:end])
            if part in reasons:
                return reasons[part]
    return "a job has no field for it"


def _dotted_path(path: FieldPath) -> str:
    """Return a path as dotted text, for messages; "file" for the whole file."""
    return ".".join(str(step) for step in path if step != CALL) or "file"
