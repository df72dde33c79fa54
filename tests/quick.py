"""Plugin of `python -m tests --quick`: tests that need neither Ray, MLflow, PostgreSQL nor a cluster, and are not slow.

It leaves out modules that import Ray or MLflow, directly or indirectly, and tests that are marked `services` or `slow` or
use the fixture `services`. A quick test fails if it or one of its processes imports Ray or MLflow.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLOW = {"e2e", "integrations", "jobs"}  # folders: most of their modules import torch and transformers
MARKED = re.compile(r"^pytestmark = .*\bmark\.(slow|services)\b", re.MULTILINE)  # all tests of a module
SELECTED = "tests/quick"  # key in pytest's cache, for `tests.rest`
STUB = """
import os, sys
if "PYTEST_CURRENT_TEST" not in os.environ and "pytest" in sys.modules:
    import pytest
    pytest.skip("needs Ray or MLflow", allow_module_level=True)
with open({log!r}, "a") as log:
    log.write("{name} in " + os.environ.get("PYTEST_CURRENT_TEST", "an earlier test") + chr(10))
raise ImportError("a quick test needs {name}")
"""
_folder = tempfile.TemporaryDirectory(prefix="quick-")
_log = Path(_folder.name, "imported")


def pytest_configure() -> None:
    """Put modules that report their import before those of Ray and MLflow, here and in every process of a test."""
    for name in ("ray", "mlflow"):
        Path(_folder.name, f"{name}.py").write_text(STUB.format(name=name, log=str(_log)))
    sys.path.insert(0, _folder.name)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_folder.name, os.environ.get("PYTHONPATH")]))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the slow folders, and modules that are marked as a whole, without importing them: many import torch."""
    if collection_path.suffix == ".py":
        return True if MARKED.search(collection_path.read_text(encoding="utf-8")) else None
    return True if collection_path.parent == TESTS and collection_path.name in SLOW else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests and those that need services."""
    others = [item for item in items if item.get_closest_marker("services") or item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=others)
    paths_with_others = {item.path for item in others}
    items[:] = [item for item in items if item not in set(others)]
    worker = getattr(config, "workerinput", {"workerid": "gw0"})["workerid"]  # of pytest-xdist; all collect the same tests
    if worker == "gw0" and getattr(config, "cache", None) is not None:
        modules = sorted({str(item.path) for item in items if item.path not in paths_with_others})
        config.cache.set(SELECTED, {"tests": [item.nodeid for item in items], "modules": modules})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> object:
    """Fail the test during which a service was imported."""
    result = yield
    if _log.exists():
        imported = _log.read_text()
        _log.unlink()
        pytest.fail(f"a test without the mark or the fixture `services` imported one:\n{imported}", pytrace=False)
    return result
