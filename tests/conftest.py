"""The environment of every test of this project, without the user's own settings of the platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The same commit gives the same result each time. `pytest --hypothesis-profile=default` looks for new examples.
# How long an example takes is the machine's matter: a busy one makes none of them wrong.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")
# Ray reads it when it is imported, and would otherwise ask for a token in the home folder.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# A user's own stores and limits are none of the tests' business; which cluster the tests may use is.
for _name in [name for name in os.environ if name.startswith(("TRIALPLANE_", "MLFLOW_"))]:
    if not _name.startswith("TRIALPLANE_E2E_"):
        del os.environ[_name]
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests with the fixture `services`, and puts whole runs first.

    What takes a minute is not to be begun last, when the other processes have nothing left.
    """
    for item in items:
        if "services" in getattr(item, "fixturenames", ()):
            item.add_marker("services")
    runs = Path(__file__).parent / "study"
    items.sort(key=lambda item: runs not in item.path.parents)


@pytest.fixture(autouse=True)
def _no_store_of_another_test() -> Iterator[None]:
    """MLflow keeps where it logs to for the whole process, and in its environment."""
    yield
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None:
        mlflow.set_tracking_uri(None)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _no_artifacts_here() -> Iterator[None]:
    """Artifacts go beside the store they belong to; without a location MLflow puts them into the current folder."""
    folder = Path.cwd() / "mlruns"
    existed = folder.exists()
    yield
    assert existed or not folder.exists(), f"a test has logged artifacts to {folder}"


@pytest.fixture(scope="session")
def services() -> None:
    """Requested where Ray, MLflow, PostgreSQL or a cluster is used; `python -m tests --quick` leaves those tests out."""


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory, services: None) -> Path:
    """An empty MLflow store to be copied; making one takes seconds."""
    from mlflow.tracking import MlflowClient  # most tests need none of it

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file
