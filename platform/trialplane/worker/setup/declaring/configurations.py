"""The plain values of a script's configurations, and which modules, classes and files are the script's own."""

from __future__ import annotations

import itertools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

MOST_LEAVES = 1000  # of a configuration
_MOST_LEVELS = 5
_PLAIN_TYPES = (int, float, str, bool)


def leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, by names with dots after a prefix."""
    for name, value in data.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, dict):
            yield from leaves(value, key)
        else:
            yield key, value


def object_leaves(config: Any, prefix: str = "", parents: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the plain values of an object and of the objects and dicts in it, by names with dots.

    Args:
        config: Object of the script's own class, or a dict; another object has only its attributes.
        prefix: Beginning of each name.
        parents: Objects that contain this one. They are not entered again.
    """
    parents = (*parents, config)
    for name, value in itertools.islice(_values_by_name(config).items(), MOST_LEAVES):
        if str(name).startswith("_"):
            continue
        may_enter = len(parents) <= _MOST_LEVELS and not any(value is parent for parent in parents)
        if type(value) in (*_PLAIN_TYPES, list, tuple):
            yield f"{prefix}{name}", value
        elif may_enter and (isinstance(value, Mapping) or _is_own_class(type(value))):
            yield from object_leaves(value, f"{prefix}{name}.", parents)


def _values_by_name(config: Any) -> dict[str, Any]:
    """Return the values of a dict, or the attributes of an object and of its class if that is one of the script's."""
    if isinstance(config, Mapping):
        return dict(config)
    values: dict[str, Any] = {}
    if _is_own_class(type(config)):
        for class_ in reversed(type(config).__mro__[:-1]):  # without `object`
            values |= vars(class_)
    return {**values, **getattr(config, "__dict__", {})}


def _is_own_class(class_: type) -> bool:
    """Return whether a class is one of the script's, or a namespace."""
    file = getattr(sys.modules.get(class_.__module__), "__file__", None)
    return class_.__name__ == "SimpleNamespace" or (file is not None and is_own_file(Path(file)))


def yacs_values() -> list[tuple[str, Any]]:
    """Return names and values of the largest configuration of yacs in a module of the script; an empty list without one."""
    config_class = getattr(sys.modules.get("yacs.config"), "CfgNode", None)
    if config_class is None:
        return []
    nodes = [value for module in _own_modules() for value in list(vars(module).values()) if isinstance(value, config_class)]
    largest = max((list(leaves(node, "")) for node in nodes), key=len, default=[])
    return [(name, value) for name, value in largest if type(value) in _PLAIN_TYPES]


def merges_pairs() -> bool:
    """Return whether a module of the script calls `merge_from_list`, by which a configuration of yacs takes pairs."""
    texts = (Path(str(module.__file__)).read_text(encoding="utf-8", errors="replace") for module in _own_modules())
    return any("merge_from_list" in text for text in texts)


def _own_modules() -> list[ModuleType]:
    """Return the modules of the script: those from Python files that are neither installed nor part of this program."""
    own_modules = []
    for name, module in list(sys.modules.items()):
        file = Path(str(getattr(module, "__file__", None) or ""))
        if name.partition(".")[0] != "trialplane" and is_own_file(file):
            own_modules.append(module)
    return own_modules


def is_own_file(file: Path) -> bool:
    """Return whether a file is Python's, and not installed."""
    is_installed = "site-packages" in file.parts or file.is_relative_to(sysconfig.get_path("stdlib"))
    return file.suffix == ".py" and not is_installed and file.is_file()
