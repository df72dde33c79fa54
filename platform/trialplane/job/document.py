"""A YAML file as plain data, with the line of every field.

Scalars are read as in YAML 1.2: `1e-5` is a number, `on`, `no` and dates are strings. A key that occurs twice is refused,
because the second value would silently replace the first.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError

# Limit of the values in a file. Aliases of aliases could expand a small file without limit.
_MOST_NODES = 100_000
_TOO_LARGE = f"has more than {_MOST_NODES:,} values, aliases counted each time; put large lists into a file beside job.yaml"
# Parsers recurse for each level, and would overflow the stack of C. No job is nested this deeply.
MAX_DEPTH = 50
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"
_MOST_BYTES = 16 * 2**20
_LONGEST_NUMBER = 250  # characters: in any base fewer digits than the 308 of a float; no field needs 20
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
        data: Mappings, lists and scalars.
        lines: 1-based line of each field, by its path.
        source: Name of the file in messages.
    """

    data: Any
    lines: dict[FieldPath, int]
    source: str

    def nearest_line(self, path: FieldPath) -> int:
        """Return the line of a value, or of the nearest mapping or list around it that has one. 0 if none has one."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.lines:
                return self.lines[path[:size]]
        return 0


def read(path: Path, source: str = "", empty: str = "is empty; it must hold `name: value` lines") -> Document:
    """Return the document in a file, which must contain a mapping.

    Args:
        path: Path of the file.
        source: Name of the file in messages; "" for its path.
        empty: Message for an empty file.

    Raises:
        SpecError: The file cannot be read, is not YAML, is empty, is not a mapping, or has a key twice.
    """
    source = source or str(path)
    try:
        text = content(path).decode("utf-8")
    except FileNotFoundError:
        raise _error("does not exist", source) from None
    except UnicodeDecodeError as error:
        raise _error(f"is not UTF-8 text (byte {error.start})", source) from None
    except OSError as error:
        raise _error(f"cannot be read: {error.strerror}", source) from error
    document = parse(text, source)
    if document.data is None:
        raise _error(empty, source)
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise _error(f"holds {kind}; it must hold `field: value` lines", source, line=1)
    return document


def content(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: The file cannot be read, or is too large.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES // 2**20} MiB", str(path))
    return data


def decode(data: bytes, name: str) -> str:
    """Return the text of a file.

    Args:
        data: Content of the file: UTF-8 with or without a byte order mark, or Python in its declared encoding.
        name: Name of the file, whose suffix says whether it is Python.

    Raises:
        ValueError: The content is not text, or its encoding is unknown.
    """
    try:
        return importlib.util.decode_source(data) if name.endswith(".py") else data.decode("utf-8-sig")
    except SyntaxError as error:
        raise ValueError(str(error)) from error


def parse(text: str, source: str) -> Document:
    """Return the document in a text.

    Raises:
        SpecError: The text is not YAML, is too large, is nested too deeply, or has a key twice.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # an argument or a variable that is not text
        raise _error("is not UTF-8 text", source) from None
    try:
        _check_size(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        column = f" (column {mark.column + 1})" if mark else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else 0
        if "nesting depth" in problem:  # libyaml has its own limit: 1,000 in PyYAML 6.0.4
            raise _error(_TOO_DEEP, source, line) from None
        raise _error(f"is not YAML: {problem}{column}", source, line) from None
    except yaml.YAMLError as error:
        raise _error(f"is not YAML: {error}", source) from None
    builder = _Builder(source)
    data = None if node is None else builder.build(node, ())
    if builder.issues:
        raise SpecError(builder.issues)
    return Document(data, builder.lines, source)


def _error(message: str, source: str, line: int = 0) -> SpecError:
    """Return the error for a whole document. `line` is 1-based, and 0 if it is unknown."""
    return SpecError([Issue(("file",), message, source=source, line=line)])


def _check_size(text: str, source: str) -> None:
    """Check that a text has not too many values, and is not nested too deeply.

    This must be known before the parser builds the values, which could crash the process or take minutes. Reading the
    parser's events needs little stack and memory.

    Raises:
        SpecError: The text has too many values, or is nested too deeply.
    """
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Parser)):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if count > 2 * _MOST_NODES:  # a mapping or a list has two events, its start and its end
            raise _error(_TOO_LARGE, source, line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _error(_TOO_DEEP, source, line)


def scalar(text: str, source: str = "") -> Any:
    """Return the value that a text has in a job file: 0.1, [1, 2], bert.

    Args:
        text: Text in YAML.
        source: Name of the text in messages.

    Raises:
        SpecError: The text is not YAML.
    """
    return parse(text, source).data


class Assignment(NamedTuple):
    """An assignment of `--set`.

    Attributes:
        field: Dotted field.
        value: The value.
        source: Name of the assignment in messages.
    """

    field: str
    value: Any
    source: str


def assignment(text: str) -> Assignment:
    """Return an assignment `field=value` of `--set`.

    Raises:
        SpecError: The text is malformed, or the value is not YAML.
    """
    field, equals, value_text = text.partition("=")
    may_have_password = field.strip().split(".")[0] == "notify"
    source = f"--set {field}=…" if may_have_password else f"--set {text}"
    if not equals or not all(field.strip().split(".")):
        raise SpecError([Issue(("--set",), "write field=value: --set budget.time=2h", source=source)])
    try:
        scalar(field, source)  # only to check that the field is UTF-8 text
        return Assignment(field.strip(), scalar(value_text, source), source)
    except SpecError as error:
        raise SpecError([Issue((field,), issue.message, source=source) for issue in error.issues]) from None


class _Builder:
    """Builder of the data of a YAML document, which records the line of each field, and issues.

    Attributes:
        source: Name of the document in messages.
        lines: 1-based line of each field, by its path.
        issues: Issues of the document.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[FieldPath, int] = {}
        self.issues: list[Issue] = []
        self._ancestors: set[int] = set()  # ids of the nodes that contain the current one
        self._count = 0  # of the nodes that were built; an alias builds its node again

    def build(self, node: Any, field_path: FieldPath) -> Any:
        """Return the data of a node, with None for invalid parts. Record lines and issues by their paths."""
        line = node.start_mark.line + 1
        self.lines.setdefault(field_path, line)
        self._count += 1
        is_circular = id(node) in self._ancestors
        if is_circular or self._count > _MOST_NODES:
            if not self.issues:  # there may be thousands of the same
                message = "an alias stands for something that contains it" if is_circular else _TOO_LARGE
                self._add_issue(field_path, message, line)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, field_path)
        self._ancestors.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*field_path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, field_path)
        finally:
            self._ancestors.discard(id(node))

    def _mapping(self, node: Any, field_path: FieldPath) -> dict[Any, Any]:
        """Return the data of a mapping. Its own fields replace those that `<<` merges."""
        merged_nodes = [value_node for key_node, value_node in node.value if key_node.tag == _MERGE]
        data = self._merge(merged_nodes, field_path)
        first_lines: dict[str, int] = {}  # key → its line
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._add_issue(field_path, "a key must be a single word", line)
                continue
            # A key is its source text: `on: 1` and `1: x` have the keys "on" and "1".
            key = key_node.value
            if key in first_lines:
                message = f"is given twice, in lines {first_lines[key]} and {line}; keep one"
                self._add_issue((*field_path, key), message, line)
                continue
            if key in data:  # merged by `<<`
                self._remove_lines((*field_path, key))
            first_lines[key] = line
            data[key] = self.build(value_node, (*field_path, key))
            self.lines[(*field_path, key)] = line
        return data

    def _merge(self, nodes: list[Any], field_path: FieldPath) -> dict[str, Any]:
        """Return the fields of the mappings that `<<` merges. If several have the same field, the first of them wins.

        Args:
            nodes: Nodes of the values of `<<`, each a mapping or a list of mappings.
            field_path: Path of the mapping that contains the `<<`.
        """
        data: dict[str, Any] = {}
        mapping_nodes = [item for node in nodes for item in (node.value if node.id == "sequence" else [node])]
        for mapping_node in reversed(mapping_nodes):  # the first one is last, and so overwrites the others
            mapping = self.build(mapping_node, field_path)
            if isinstance(mapping, dict):
                data.update(mapping)
            else:
                self._add_issue(field_path, "`<<` needs a mapping", mapping_node.start_mark.line + 1)
        return data

    def _remove_lines(self, field_path: FieldPath) -> None:
        """Remove the lines of a field and of everything below it."""
        for obsolete_path in [path for path in self.lines if path[: len(field_path)] == field_path]:
            del self.lines[obsolete_path]

    def _scalar(self, node: Any, field_path: FieldPath) -> Any:
        """Return the value of a scalar. None after an issue."""
        text, tag = node.value, node.tag.removeprefix("tag:yaml.org,2002:")
        if tag == "str":
            return text
        if tag == "null" and _NULL.fullmatch(text):
            return None
        if tag == "bool" and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if tag == "int" and _INT.fullmatch(text):
            if len(text) > _LONGEST_NUMBER:
                self._add_issue(field_path, f"is a number of {len(text)} digits; put it in quotes", node.start_mark.line + 1)
                return None
            # Base 0 reads the prefixes 0o and 0x, but refuses the leading zeros of 007, which is 7.
            return int(text, base=10 if text.lstrip("+-").isdigit() else 0)
        if tag == "float" and _FLOAT.fullmatch(text):
            number_text = text.lower().replace(".inf", "inf").replace(".nan", "nan")
            value = float(number_text)
            return math.nan if math.isnan(value) else value  # one object for all NaNs, so that lists with NaN are equal
        self._add_issue(
            field_path,
            f"{errors.shortened(repr(text), longest=60)} with the tag {node.tag} cannot be read",
            node.start_mark.line + 1,
        )
        return None

    def _add_issue(self, field_path: FieldPath, message: str, line: int) -> None:
        self.issues.append(Issue(field_path or ("file",), message, source=self.source, line=line))
