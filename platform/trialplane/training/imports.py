"""Replaces parts of a library as soon as a job imports it, before anybody can have another reference to them.

Nothing here imports the library, which most jobs do not use, and which takes its time.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Replace = Callable[[ModuleType], None]

# Of the process, as are the modules: what is done to each of them at its import, and what has been done already.
_wanted: dict[str, list[Replace]] = {}


def on_import(name: str, replace: Replace) -> None:
    """Has a module changed at its import; at once if it is there. A second call with the same function does nothing.

    Args:
        name: of the module, with dots.
        replace: changes it.
    """
    if replace in _wanted.setdefault(name, []):
        return
    _wanted[name].append(replace)
    if name in sys.modules:
        replace(sys.modules[name])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in which something is replaced as Python does, with a loader that replaces it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec; None for every other module."""
        if fullname not in _wanted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module's code and replaces some of its functions, before anybody else sees them."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        super().exec_module(module)
        for replace in _wanted[module.__name__]:
            replace(module)
