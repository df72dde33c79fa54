"""Plugin of `python -m tests`: the tests that the run with `tests.quick` before it has left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import quick


def _selected(config: pytest.Config) -> dict[str, list[str]]:
    assert config.cache is not None
    return config.cache.get(quick.SELECTED, {"tests": [], "modules": []})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a module whose tests are all quick."""
    return True if str(collection_path) in _selected(config)["modules"] else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the quick tests of the other modules."""
    selected = set(_selected(config)["tests"])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in selected])
    items[:] = [item for item in items if item.nodeid not in selected]
