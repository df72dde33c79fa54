"""Replacement of parts of a library when a job imports it, before other code can have a reference to them.

This never imports the library itself, because most jobs do not use it and the import may take seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Replace = Callable[[ModuleType], None]  # changes a module in place

# Functions to call after the import of each module, by its name. Global, because modules are global too.
_replacements: dict[str, list[Replace]] = {}


def on_import(name: str, replace: Replace) -> None:
    """Call a function that changes a module when the module is imported, or now if it is loaded.

    A second call with the same function does nothing.

    Args:
        name: Full name of the module.
        replace: Function that changes the module.
    """
    if replace in _replacements.setdefault(name, []):
        return
    _replacements[name].append(replace)
    if name in sys.modules:
        replace(sys.modules[name])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):  # one serves all modules
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder for the modules that are changed. It gives each of them a loader that calls the functions after the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module to change; None for every other module."""
        if fullname not in _replacements:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        # A module that is not a file with source text stays unchanged.
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that changes a module before other code uses it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then change the module."""
        super().exec_module(module)
        for replace in _replacements[module.__name__]:
            replace(module)
