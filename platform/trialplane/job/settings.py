"""The values of a program's settings file and its text with some of them replaced.

YAML, JSON, TOML, INI and gin; a Python module with the values at its top; and a shell script with values in assignments and
in the options of its commands. Comments and everything else in the text stay as they are. Pure.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from trialplane.job import arguments, notebook

SHELLS = (".sh", ".bash")
_PYTHON = ".py"
_LINES = (".toml", ".ini", ".cfg", ".conf", ".gin")  # formats with sections in brackets and a value in a line
SUFFIXES = (".yaml", ".yml", ".json", *_LINES, _PYTHON, *SHELLS)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# LR=0.1 at the beginning of a line, and --lr 0.1, --lr=0.1, -l 0.1, train.lr=0.1, SOLVER.LR 0.1 anywhere.
_WORD = re.compile(
    rf"""(?:^[ \t]*(?:export[ \t]+)?(?P<variable>[A-Za-z_]\w*)=["']?"""
    rf"""|(?<!\S)(?:--?(?P<flag>[A-Za-z][\w.-]*)[ \t=]+|(?P<key>[A-Za-z_][\w./]*)=|"""
    rf"""(?P<dotted>[A-Za-z_]\w*(?:\.\w+)+)[ \t]+))"""
    rf"""(?P<value>{NUMBER})(?=["']?(?:[\s;]|$))""",
    re.MULTILINE,
)
_ANCHOR = re.compile(r"&\S+\s+")
_MERGE = "tag:yaml.org,2002:merge"
_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
_LINE = re.compile(
    r"^[ \t]*(?:(?P<array>\[\[).*|\[(?P<section>[^\[\]\n]+)\].*|(?P<name>[\w.\"'-][^=:#;\n\[]*?)[ \t]*[=:][ \t]*"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|\[[^\[\]\n]*\]|[^\s#;\[{\"'](?:[^#;\n]*[^#;\s])?)[ \t]*(?:[#;].*)?)$",
    re.MULTILINE,
)


def spans(text: str, name: str) -> dict[str, tuple[int, int]]:
    """Return the position of each value that is not a mapping, by its dotted name: `model.lr`.

    Args:
        text: of the file.
        name: of the file; the suffix says what the text is.

    Raises:
        ValueError: the text is not one document of its format, or is nested too deeply.
    """
    try:
        if name.endswith(_PYTHON):
            return dict(_values_of_python(text))
        if name.endswith(SHELLS):
            return dict(reversed(list(words(text))))
        if name.endswith(_LINES):
            data = tomllib.loads(text) if name.endswith(".toml") else None
            positions = dict(_values_of_lines(text))
            # A line inside of a longer text is no value.
            return positions if data is None else {key: at for key, at in positions.items() if _has(data, key)}
        node = yaml.compose(text, yaml.SafeLoader)
        return dict(_values(node, "", text, set())) if isinstance(node, yaml.MappingNode) else {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except SyntaxError as error:
        raise ValueError(f"it is not Python: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def words(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the numbers of a command line or a shell script by the names of their options or variables."""
    for match in _WORD.finditer(text):
        name = match["variable"] or match["flag"] or match["key"] or match["dotted"]
        if not text[: match.start("value")].rpartition("\n")[2].lstrip().startswith("#"):
            yield name, match.span("value")


def values(text: str, name: str) -> dict[str, Any]:
    """Return the plain values of a file by dotted name; arguments and errors as of `spans`."""
    read: dict[str, Any] = {}
    for key, (start, end) in spans(text, name).items():
        try:
            value = ast.literal_eval(text[start:end]) if name.endswith(_PYTHON) else yaml.safe_load(text[start:end])
        except (yaml.YAMLError, ValueError):  # text of INI
            value = text[start:end]
        # 1e-3, which YAML 1.1 takes for a text
        read[key] = float(value) if isinstance(value, str) and _EXPONENT.fullmatch(text[start:end]) else value
    return read


def replaced(text: str, params: Mapping[str, Any], name: str) -> str:
    """Return the text with other values. Parameters that the text does not have are left out.

    Raises:
        ValueError: as `spans`.
    """
    write = _WRITERS.get(name[name.rfind(".") :], _text)
    positions = sorted(((span, key) for key, span in spans(text, name).items() if key in params), reverse=True)
    for (start, end), key in positions:
        space = " " if text[:start].endswith(":") else ""
        text = f"{text[:start]}{space}{write(params[key])}{text[end:]}"
    return text


def _has(data: Any, key: str) -> bool:
    first, _, rest = key.partition(".")
    return isinstance(data, dict) and first in data and (not rest or _has(data[first], rest))


def _values_of_lines(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    section: str | None = ""
    for match in _LINE.finditer(text):
        if match["name"] is None:
            section = None if match["array"] else f"{match['section'].strip()}."
        elif section is not None:
            yield section + match["name"].strip("\"'"), match.span("value")


def _values_of_python(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]

    def position(line: int, column: int) -> int:  # the column counts bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for name, spot in arguments.spots(notebook.parse(text)).items():
        node = spot.value
        is_plain = isinstance(node, (ast.Constant, ast.UnaryOp, ast.List, ast.Tuple)) and not spot.others
        if is_plain and node is not None and node.end_lineno and node.end_col_offset:
            yield name, (position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset))


def _values(node: yaml.MappingNode, prefix: str, text: str, visited: set[int]) -> Iterator[tuple[str, tuple[int, int]]]:
    for key, value in node.value:
        if (
            not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE or id(value) in visited
        ):  # an alias has no text of its own
            continue
        visited.add(id(value))
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, f"{name}.", text, visited)
            continue
        start, end = value.start_mark.index, value.end_mark.index
        if isinstance(value, yaml.SequenceNode) and not value.flow_style:
            start = text.index(":", key.end_mark.index) + 1  # its first line may have the indentation of its key
        elif (anchor := _ANCHOR.match(text, start)) is not None:
            start = anchor.end()
        yield name, (start, start + len(text[start:end].rstrip()))


def _text(value: Any) -> str:
    """Return a value as YAML 1.1 and JSON read it."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(name))}: {_text(item)}' for name, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _toml_text(value: Any) -> str:
    """Return a value as TOML reads it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_text, value))}]"
    return _text(value).replace(".inf", "inf").replace(".nan", "nan") if isinstance(value, float) else _text(value)


def _line_text(value: Any) -> str:
    """Return a value as configparser reads it."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    ".toml": _toml_text,
    ".py": repr,
    ".gin": repr,
    **dict.fromkeys((".ini", ".cfg", ".conf", *SHELLS), _line_text),
}
