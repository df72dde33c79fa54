"""Replace parts of a library as soon as a job imports it, before other code can have a reference to them.

Nothing here imports the library, which most jobs do not use and which may take seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Replace = Callable[[ModuleType], None]

# Functions that change each module at its import. State of the process, as are the modules.
_replacements: dict[str, list[Replace]] = {}


def on_import(name: str, replace: Replace) -> None:
    """Change a module when it is imported, or now if it is loaded. A second call with the same function does nothing.

    Args:
        name: of the module, with dots.
        replace: changes it.
    """
    if replace in _replacements.setdefault(name, []):
        return
    _replacements[name].append(replace)
    if name in sys.modules:
        replace(sys.modules[name])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of modules to be changed, which gives them a loader that changes them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec; None for every other module."""
        if fullname not in _replacements:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader that runs a module's code and changes the module before other code uses it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        super().exec_module(module)
        for replace in _replacements[module.__name__]:
            replace(module)
