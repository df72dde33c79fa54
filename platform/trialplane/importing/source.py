"""The file of another tool, which marks values as they are read, so that each unread one gets a note; and the import."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, Place, SpecError
from trialplane.job import values
from trialplane.job.document import Document

_NO_NUMBERS = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity")
CALL = "()"  # key of a function's name, where a source is a call in code
_UNREAD = "a job has no field for it"


@dataclasses.dataclass(frozen=True)
class Note:
    """Something of the source that the job does not hold as it was, and why.

    Attributes:
        field: its path in the source.
        reason: why, and what to do.
        line: 1-based line in the source, or 0.
    """

    field: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.field}{f' (line {self.line})' if self.line else ''}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Imported:
    """The result of an importer.

    Attributes:
        job: the fields of job.yaml.
        notes: parts of the source that are not in it, in the order of the source.
        files: generated files of the job's folder, name → text.
        copies: files beside the source that the job's folder needs, if they are there.
        above: whether these lie above the source's folder, which then is needed as well.
    """

    job: Mapping[str, Any]
    notes: tuple[Note, ...]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: tuple[str, ...] = ()
    above: bool = False


class Source:
    """The data of a file, whose values are marked as they are read; issues are collected for one complaint."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._read: set[Place] = set()
        self._notes: list[Note] = []
        self._issues: list[Issue] = []
        self._names: dict[str, str] = {}

    def look(self, *path: str | int) -> Any:
        """The value at a path, or None; it still counts as unread."""
        value = self._document.data
        for step in path:
            is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
            if not is_index and not (isinstance(value, dict) and step in value):
                return None
            value = value[step]
        return value

    def take(self, *path: str | int) -> Any:
        """The value at a path, or None; it is read with all below."""
        self._read.add(path)
        return self.look(*path)

    def keys(self, *path: str | int) -> list[str]:
        """The keys of the mapping at a path; none where there is nothing, an issue where there is another value."""
        value = self.look(*path)
        if value is not None and not isinstance(value, dict):
            self.refuse("must be a mapping", *path)
        return list(value) if isinstance(value, dict) else []

    def indices(self, *path: str | int) -> range:
        """The indices of the list at a path; none where there is nothing, an issue where there is another value."""
        value = self.look(*path)
        if value is not None and not isinstance(value, list):
            self.refuse("must be a list", *path)
        return range(len(value) if isinstance(value, list) else 0)

    def text(self, *path: str | int) -> str:
        """A string or another scalar as a string; "" where there is nothing."""
        value = self.take(*path)
        if isinstance(value, dict) and CALL in value:
            self.note(f"only running the file would show what {shown(value)} is", *path)
            return ""
        if isinstance(value, (dict, list)):
            self.refuse("must be one value", *path)
            return ""
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    def number(self, *path: str | int) -> float | None:
        """A finite number, or a string that is one; None where there is nothing."""
        value = self.take(*path)
        if value is None:
            return None
        if isinstance(value, dict) and CALL in value:
            self.note(f"only running the file would show what {shown(value)} is", *path)
            return None
        try:
            number = math.nan if isinstance(value, (bool, dict, list)) or str(value).lower() in _NO_NUMBERS else float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self.refuse(f"must be a number, not {errors.shortened(repr(value), 60)}", *path)
            return None
        return number

    def whole(self, *path: str | int) -> int | None:
        """A whole number, or a string that is one; None where there is nothing."""
        value = self.number(*path)
        if value is not None and value != int(value):
            self.refuse(f"must be a whole number, not {value:g}", *path)
            return None
        return None if value is None else int(value)

    def texts(self, *path: str | int) -> list[str]:
        """The scalars of a list as strings."""
        return [self.text(*path, index) for index in self.indices(*path)]

    def skip(self, reason: str, *path: str | int) -> None:
        """Mark a value as read that the job does not hold, with a note, where there is one."""
        if self.look(*path) is not None:
            self.take(*path)
            self.note(reason, *path)

    def note(self, reason: str, *path: str | int) -> None:
        """Add a note on a path of the source."""
        self._notes.append(Note(_field(path), " ".join(reason.split()), self._line(path)))

    def refuse(self, message: str, *path: str | int) -> None:
        """Add an issue, which makes `imported` fail."""
        self._issues.append(Issue(path or ("file",), message, self._document.source, self._line(path)))

    def name(self, key: str, *path: str | int) -> str:
        """The name of a parameter as a space has it, with a note where it is another one."""
        if key in self._names:
            return self._names[key]
        name = values.parameter(key, self._names.values())
        if name != key:
            self.note(
                f"becomes the parameter {name}: names in a space have letters, digits, _ and -, with . and / between them",
                *path,
            )
        self._names[key] = name
        return name

    def imported(
        self,
        job: Mapping[str, Any],
        reasons: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        copies: Sequence[str] = (),
        above: bool = False,
    ) -> Imported:
        """The job without empty fields, and the notes, those on what nothing has read among them.

        Args:
            job: fields of job.yaml.
            reasons: why a value is not read, by a part of its path; of several the one nearest to its end counts.
            files: generated files of the job's folder.
            copies: files beside the source that it needs.
            above: whether they lie above its folder.

        Raises:
            SpecError: there are issues, or there is nothing to search.
        """
        if not self._issues and not job.get("space"):
            self.refuse("has nothing to search that can be read: a study needs a parameter with a range, or with choices")
        if self._issues:
            raise SpecError(self._issues)
        self._leftover((), reasons)
        notes = sorted(dict.fromkeys(self._notes), key=lambda note: note.line)
        fields = {field: value for field, value in job.items() if value not in (None, "", [], {})}
        return Imported(fields, tuple(notes), files or {}, tuple(copies), above)

    def _leftover(self, path: Place, reasons: Mapping[str, str]) -> None:
        """Add a note on each value that nothing has read, on a mapping or list as a whole where nothing in it was."""
        value = self.look(*path)
        if path in self._read or value in ({}, []):
            return
        if path and not any(read[: len(path)] == path for read in self._read):
            dotted = f".{_field(path)}."
            matching = [part for part in reasons if f".{part}." in dotted]
            nearest = max(matching, key=lambda part: (dotted.rfind(f".{part}.") + len(part), len(part)), default="")
            self.note(reasons.get(nearest, _UNREAD), *path)
            return
        steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for step in steps:
            self._leftover((*path, step), reasons)

    def _line(self, path: Place) -> int:
        lines = self._document.lines
        return next((lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in lines), 0)


def shown(call: Mapping[str, Any]) -> str:
    """An expression of code, as far as a line has room for it."""
    return errors.shortened(str(call.get("text") or f"{call[CALL]}(…)"), 60)


def _field(path: Place) -> str:
    return ".".join(str(step) for step in path if step != CALL) or "file"
