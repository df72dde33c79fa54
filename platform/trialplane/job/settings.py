"""The values of a program's settings file, YAML, JSON, TOML or INI, and its text with some of them replaced.

Comments and everything else in the text stay as they are. Pure.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_LINES = (".toml", ".ini", ".cfg")  # formats with sections in brackets and a value in a line
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
        if name.endswith(_LINES):
            data = tomllib.loads(text) if name.endswith(".toml") else None
            positions = dict(_values_of_lines(text))
            # A line inside of a longer text is no value.
            return positions if data is None else {key: at for key, at in positions.items() if _has(data, key)}
        node = yaml.compose(text, yaml.SafeLoader)
        return dict(_values(node, "", text, set())) if isinstance(node, yaml.MappingNode) else {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def values(text: str, name: str) -> dict[str, Any]:
    """Return the plain values of a file by dotted name; arguments and errors as of `spans`."""
    read: dict[str, Any] = {}
    for key, (start, end) in spans(text, name).items():
        try:
            value = yaml.safe_load(text[start:end])
        except yaml.YAMLError:  # text of INI
            value = text[start:end]
        # 1e-3, which YAML 1.1 takes for a text
        read[key] = float(value) if isinstance(value, str) and _EXPONENT.fullmatch(text[start:end]) else value
    return read


def replaced(text: str, params: Mapping[str, Any], name: str) -> str:
    """Return the text with other values. Parameters that the text does not have are left out.

    Raises:
        ValueError: as `spans`.
    """
    write = _line_text if name.endswith((".ini", ".cfg")) else _toml_text if name.endswith(".toml") else _text
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
