"""A YAML file as plain data, with the line of every field.

Scalars are read as in YAML 1.2: `1e-5` is a number, `on`, `no` and dates are strings. Keys given twice are
refused, because the second would silently win.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import math
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from trialplane import errors
from trialplane.errors import Issue, Place, SpecError

# Aliases of aliases make a small file endlessly large.
_MOST_NODES = 100_000
_TOO_LARGE = f"has more than {_MOST_NODES:,} values, aliases counted each time; put large lists into a file beside job.yaml"
# Parsers recurse for each level, in C until the stack overflows; no job is nested that deeply.
MAX_DEPTH = 50
_OPEN = (("/", "dev"), ("/", "proc"))  # `--params <(platform best)` is an open pipe
_MOST_BYTES = 16 * 2**20
_LONGEST_NUMBER = 300  # digits; a float holds 308, and no field takes one of 20
# The C parser is ten times faster, but a PyYAML built without libyaml lacks it.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Parser):  # type: ignore[misc]
    """A safe loader with the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(f"(?:{_NULL.pattern})$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"(?:{_BOOL.pattern})$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"(?:{_INT.pattern})$"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"(?:{_FLOAT.pattern})$"), list("-+0123456789."))
_MERGE = "tag:yaml.org,2002:merge"
_Loader.add_implicit_resolver(_MERGE, re.compile("<<$"), ["<"])


@dataclasses.dataclass(frozen=True)
class Document:
    """The content of a file.

    Attributes:
        data: mappings, lists and scalars.
        lines: 1-based line of each field, by its path.
        source: how messages name the file.
    """

    data: Any
    lines: dict[Place, int]
    source: str


def read(path: Path, source: str = "", empty: str = "is empty; it must hold `name: value` lines") -> Document:
    """The document in a file, which must hold a mapping.

    Args:
        path: of the file.
        source: how messages name it, its path when "".
        empty: what is said of an empty one.

    Raises:
        SpecError: it cannot be read, is not YAML, is empty, is not a mapping, or has a key twice.
    """
    source = source or str(path)
    try:
        text = content(path).decode("utf-8")
    except FileNotFoundError:
        raise SpecError([Issue(("file",), "does not exist", source)]) from None
    except UnicodeDecodeError as error:
        raise SpecError([Issue(("file",), f"is not UTF-8 text (byte {error.start})", source)]) from None
    except OSError as error:
        raise SpecError([Issue(("file",), f"cannot be read: {error.strerror}", source)]) from error
    document = parse(text, source)
    if document.data is None:
        raise SpecError([Issue(("file",), empty, source)])
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise SpecError([Issue(("file",), f"holds {kind}; it must hold `field: value` lines", source, 1)])
    return document


def content(path: Path) -> bytes:
    """The bytes of a file or of an open pipe; anything that may block forever is refused.

    Raises:
        OSError: it cannot be read, is another pipe, or is larger than any job file.
    """
    if stat.S_ISFIFO(path.stat().st_mode) and path.parts[:2] not in _OPEN:  # opening it may block forever
        raise OSError(errno.EINVAL, "it is a pipe, and not a file", str(path))
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES // 2**20} MiB", str(path))
    return data


def decoded(data: bytes, name: str) -> str:
    """The text of a file: UTF-8, with a byte order mark or without, and of a Python file whatever encoding it names.

    Raises:
        ValueError: it is none, or there is no such encoding.
    """
    try:
        return importlib.util.decode_source(data) if name.endswith(".py") else data.decode("utf-8-sig")
    except SyntaxError as error:
        raise ValueError(str(error)) from error


def parse(text: str, source: str) -> Document:
    """The document in a text.

    Raises:
        SpecError: it is not YAML, is nested too deeply, or has a key twice.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # an argument or a variable that is not text
        raise SpecError([Issue(("file",), "is not UTF-8 text", source)]) from None
    try:
        _bound(text, source)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (column {mark.column + 1})" if mark else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else 0
        if "nesting depth" in problem:  # a bound of libyaml's own, which reads ahead: PyYAML 6.0.4 has one of 1,000
            raise _too_deep(source, line) from None
        raise SpecError([Issue(("file",), f"is not YAML: {problem}{where}", source, line)]) from None
    except yaml.YAMLError as error:
        raise SpecError([Issue(("file",), f"is not YAML: {error}", source)]) from None
    builder = _Builder(source)
    data = None if node is None else builder.build(node, ())
    if builder.issues:
        raise SpecError(builder.issues)
    return Document(data, builder.lines, source)


def _too_deep(source: str, line: int) -> SpecError:
    return SpecError([Issue(("file",), f"is nested more than {MAX_DEPTH} levels deep", source, line)])


def _bound(text: str, source: str) -> None:
    """Refuse what would crash the process or take minutes to build; reading events needs neither stack nor memory."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Parser)):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if count > 2 * _MOST_NODES:  # a collection has two
            raise SpecError([Issue(("file",), _TOO_LARGE, source, line)])
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _too_deep(source, line)


def scalar(text: str, source: str) -> Any:
    """The value that `text` would have in a job file: `0.1`, `[1, 2]`, `bert`.

    Raises:
        SpecError: it is not YAML.
    """
    return parse(text, source).data


def assignment(given: str) -> tuple[str, Any, str]:
    """The field and the value of a `--set field=value`, and how messages name it.

    Raises:
        SpecError: it is malformed, or the value is not YAML.
    """
    field, equals, text = given.partition("=")
    source = f"--set {given}"
    if not equals or not all(field.strip().split(".")):
        raise SpecError([Issue(("--set",), "write field=value: --set budget.time=2h", source)])
    try:
        scalar(field, source)  # that it is text
        return field.strip(), scalar(text, source), source
    except SpecError as error:
        raise SpecError([Issue((field,), issue.message, source) for issue in error.issues]) from None


class _Builder:
    """Turns nodes into data and records lines and issues."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Place, int] = {}
        self.issues: list[Issue] = []
        self._above: set[int] = set()
        self._count = 0

    def build(self, node: Any, place: Place) -> Any:
        """The data of a node; issues are recorded and None replaces invalid parts."""
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._count += 1
        if id(node) in self._above or self._count > _MOST_NODES:
            why = "an alias stands for something that contains it" if id(node) in self._above else _TOO_LARGE
            if not self.issues:
                self._add_issue(place, why, line)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        self._above.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*place, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, place)
        finally:
            self._above.discard(id(node))

    def _mapping(self, node: Any, place: Place) -> dict[Any, Any]:
        pairs = [pair for pair in node.value if pair[0].tag != _MERGE]
        data = self._merged([pair[1] for pair in node.value if pair[0].tag == _MERGE], place)
        first: dict[str, int] = {}
        for key_node, value_node in pairs:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._add_issue(place, "a key must be a single word", line)
                continue
            # A key is its source text: `on: 1` and `1: x` have the keys "on" and "1".
            key = key_node.value
            if key in first:
                self._add_issue((*place, key), f"is given twice, in lines {first[key]} and {line}; keep one", line)
                continue
            if key in data:
                self._forget((*place, key))
            first[key] = line
            data[key] = self.build(value_node, (*place, key))
            self.lines[(*place, key)] = line
        return data

    def _merged(self, values: list[Any], place: Place) -> dict[str, Any]:
        """The fields that `<<` merges; of several mappings the first wins."""
        data: dict[str, Any] = {}
        sources = [item for value in values for item in (value.value if value.id == "sequence" else [value])]
        for source in reversed(sources):
            below = self.build(source, place)
            if isinstance(below, dict):
                data.update(below)
            else:
                self._add_issue(place, "`<<` needs a mapping", source.start_mark.line + 1)
        return data

    def _forget(self, place: Place) -> None:
        for below in [spot for spot in self.lines if spot[: len(place)] == place]:
            del self.lines[below]

    def _scalar(self, node: Any, place: Place) -> Any:
        text, tag = node.value, node.tag.removeprefix("tag:yaml.org,2002:")
        if tag == "str":
            return text
        if tag == "null" and _NULL.fullmatch(text):
            return None
        if tag == "bool" and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if tag == "int" and _INT.fullmatch(text):
            # As text first: Python takes no decimal number of more than 4,300 digits.
            number = int(text, 10 if text.lstrip("+-").isdigit() else 0) if len(text) <= 2 * _LONGEST_NUMBER else None
            if number is not None and abs(number) < 10**_LONGEST_NUMBER:
                return number
            self._add_issue(place, f"is a number of {len(text)} digits; put it in quotes", node.start_mark.line + 1)
            return None
        if tag == "float" and _FLOAT.fullmatch(text):
            plain = text.lower().replace(".inf", "inf").replace(".nan", "nan")
            return float(plain) if not math.isnan(float(plain)) else math.nan
        self._add_issue(
            place, f"{errors.shortened(repr(text), 60)} with the tag {node.tag} cannot be read", node.start_mark.line + 1
        )
        return None

    def _add_issue(self, place: Place, message: str, line: int) -> None:
        self.issues.append(Issue(place or ("file",), message, self.source, line))
