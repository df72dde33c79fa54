"""Plugin of `python -m tests`: runs the tests that the step before, with `tests.quick`, has left out."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests import quick


@functools.cache  # it is asked for each file
def _selected(config: pytest.Config) -> dict[str, list[str]]:
    """Return the ids of the quick tests, and the paths of the modules that have no others, from pytest's cache."""
    assert config.cache is not None
    return config.cache.get(quick.SELECTED, {"tests": [], "modules": []})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a module whose tests are all quick without importing it."""
    return True if str(collection_path) in _selected(config)["modules"] else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the quick tests of the other modules."""
    selected = set(_selected(config)["tests"])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in selected])
    items[:] = [item for item in items if item.nodeid not in selected]
