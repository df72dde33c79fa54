"""Leaves out parts of MLflow that processes which only write to it do not use: they would be almost half of the start."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Sequence

_OPTIONAL = ("pandas", "pyarrow", "scipy")  # MLflow does without these, as its package mlflow-skinny shows
_GENAI = "mlflow.genai"  # judges and scorers of language models; MLflow's stores import them for methods of their own


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds MLflow's GenAI modules as empty ones, from which any name can be imported as an empty class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of an empty package for a GenAI module; None for others, which Python finds itself."""
        is_genai = fullname == _GENAI or fullname.startswith(f"{_GENAI}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_genai else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module an empty class for any name but `__file__` and the like, which `inspect` reads of all modules."""

        def empty_class(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = empty_class  # type: ignore[method-assign]


def install() -> None:
    """Let this process import MLflow without those parts, and read the list of installed plugins once."""
    sys.modules.update(dict.fromkeys(_OPTIONAL))  # type: ignore[arg-type]
    sys.meta_path.insert(0, _EmptyModules())
    # MLflow asks for eight groups of plugins, and each time Python reads the entry points of every installed package.
    points = functools.cache(importlib.metadata.entry_points)
    importlib.metadata.entry_points = lambda **params: points().select(**params)  # type: ignore[assignment]
