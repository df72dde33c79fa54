"""The values of a program's settings file, YAML or JSON, and its text with some of them replaced.

Comments and everything else in the text stay as they are. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

SUFFIXES = (".yaml", ".yml", ".json")
_ANCHOR = re.compile(r"&\S+\s+")
_MERGE = "tag:yaml.org,2002:merge"


def spans(text: str) -> dict[str, tuple[int, int]]:
    """Return the position of each value that is not a mapping, by its dotted name: `model.lr`.

    Raises:
        ValueError: the text is not one document of YAML, or is nested too deeply.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        return dict(_values(node, "", text, set())) if isinstance(node, yaml.MappingNode) else {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def replaced(text: str, params: Mapping[str, Any]) -> str:
    """Return the text with other values. Parameters that the text does not have are left out.

    Raises:
        ValueError: as `spans`.
    """
    positions = sorted(((span, name) for name, span in spans(text).items() if name in params), reverse=True)
    for (start, end), name in positions:
        space = " " if text[:start].endswith(":") else ""
        text = f"{text[:start]}{space}{_text(params[name])}{text[end:]}"
    return text


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
