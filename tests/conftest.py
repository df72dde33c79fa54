"""The environment of every test of this project, without the user's own settings of the platform."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The same commit gives the same result each time. `pytest --hypothesis-profile=default` looks for new examples.
# There is no limit of an example's time, because it depends on how busy the machine is.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")
# Ray reads it when it is imported, and would otherwise ask for a token in the home folder.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# The tests use none of the user's own stores and limits, but the cluster that the user names for them.
for _name in [name for name in os.environ if name.startswith(("TRIALPLANE_", "MLFLOW_"))]:
    if not _name.startswith("TRIALPLANE_E2E_"):
        del os.environ[_name]
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

FORKED = {"cli", "client", "docs", "hydra_sweeper", "study"}  # folders of tests that start whole runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fixture `services`, and put whole runs first.

    A test of a minute must not begin last, when the other processes have nothing left to do.
    """
    for item in items:
        if "services" in getattr(item, "fixturenames", ()):
            item.add_marker("services")
    runs = Path(__file__).parent / "study"
    items.sort(key=lambda item: runs not in item.path.parents)


@pytest.fixture(autouse=True)
def _no_store_of_another_test() -> Iterator[None]:
    """Reset MLflow's tracking URI after each test: MLflow keeps it for the whole process, and in its environment."""
    yield
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None:
        mlflow.set_tracking_uri(None)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _no_artifacts_here() -> Iterator[None]:
    """Check that a test has stored no artifacts in the current folder, where MLflow puts those without a location."""
    folder = Path.cwd() / "mlruns"
    existed = folder.exists()
    yield
    assert existed or not folder.exists(), f"a test has logged artifacts to {folder}"


@pytest.fixture(scope="session")
def services() -> None:
    """Mark a test that uses Ray, MLflow, PostgreSQL or a cluster; `python -m tests --quick` leaves it out."""


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory, services: None) -> Path:
    """Return the file of an empty MLflow store, to be copied, because its creation takes seconds."""
    from mlflow.tracking import MlflowClient  # imported here, because most tests do not need it

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def _fork_server(tmp_path_factory: pytest.TempPathFactory, services: None) -> Iterator[Path]:
    """Return the socket of a process that runs exporters in forks."""
    file = tmp_path_factory.mktemp("forked") / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(file))
        listener.listen()
        command = [sys.executable, "-m", "tests.forked.server", str(os.getpid())]
        server = subprocess.Popen(command, stdin=listener, cwd=Path(__file__).parent.parent)
    yield file
    server.kill()
    server.wait()


@pytest.fixture
def forked_exporters(_fork_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the exporters of this test's runs be forks of a process that has imported MLflow, which takes seconds.

    It is for tests of other things than the exporter's process.
    """
    monkeypatch.setenv("FORK_SERVER", str(_fork_server))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "forked"), prepend=os.pathsep)


@pytest.fixture(autouse=True)
def _forked_exporters(request: pytest.FixtureRequest) -> None:
    """Use `forked_exporters` in the folders of whole runs, but where the exporter's own process is a subject."""
    is_about_exporters = request.path.name in ("test_crashes.py", "test_mlflow.py", "test_mlflow_exports.py")
    if request.node.get_closest_marker("services") and request.path.parent.name in FORKED and not is_about_exporters:
        request.getfixturevalue("forked_exporters")
