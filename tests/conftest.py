"""The environment of every test of this project, without the user's own settings of the platform."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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

# Folder of tests that start whole runs → fixture that they use.
FORKED = {
    "client": "forked_exporters",  # its subject is also how a controller starts and ends
    "docs": "forked_commands",
    **dict.fromkeys(["cli", "hydra_sweeper", "study"], "forked_controllers"),
}


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


def _made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a file that the first process of pytest-xdist that needs it makes for all of them."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    file = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            make(file)
    return file


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory, services: None) -> Path:
    """Return the file of an empty MLflow store, to be copied, because its creation takes seconds."""

    def make(file: Path) -> None:
        from mlflow.tracking import MlflowClient  # imported here, because most tests do not need it

        MlflowClient(f"sqlite:///{file}").search_experiments()

    return _made_once(tmp_path_factory, "mlflow.db", make)


def start_fork_server(file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process that runs a program in forks until pytest ends; `file` is its socket, which has the program's name."""
    pytest_pid = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(file))
        listener.listen()
        command = [sys.executable, "-m", "tests.forked.server", str(pytest_pid), file.name, *arguments]
        return subprocess.Popen(command, stdin=listener, cwd=Path(__file__).parent.parent)


def use_forks(monkeypatch: pytest.MonkeyPatch, server: Path) -> None:
    """Let the processes that start as this server's program be its forks, too."""
    monkeypatch.setenv("FORK_SERVERS", str(server), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "forked"), prepend=os.pathsep)


def _fork_server(tmp_path_factory: pytest.TempPathFactory, program: str, *arguments: str) -> Path:
    """Return the socket of the one server for a program."""

    def start(file: Path) -> None:
        start_fork_server(file, *arguments).returncode = 0  # nobody waits for it

    return _made_once(tmp_path_factory, program, start)


@pytest.fixture(scope="session")
def _exporter_server(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    return _fork_server(tmp_path_factory, "trialplane.exporter", str(mlflow_tables))


@pytest.fixture(scope="session")
def _controller_server(tmp_path_factory: pytest.TempPathFactory, services: None) -> Path:
    return _fork_server(tmp_path_factory, "trialplane.controller")


@pytest.fixture(scope="session")
def _command_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _fork_server(tmp_path_factory, "platform")


@pytest.fixture
def forked_exporters(_exporter_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the exporters of this test's runs be forks of a process that has imported MLflow, which takes seconds.

    It is for tests of other things than the exporter's process.
    """
    use_forks(monkeypatch, _exporter_server)


@pytest.fixture
def forked_controllers(forked_exporters: None, _controller_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the controllers of this test's runs be forks too, of a process that has imported a controller.

    It is for tests of what a run does, and not of its processes.
    """
    use_forks(monkeypatch, _controller_server)


@pytest.fixture
def forked_commands(forked_controllers: None, _command_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands `platform …` be forks too, of a process that has imported all verbs.

    It is for tests of what many commands do, one after another.
    """
    use_forks(monkeypatch, _command_server)


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest) -> None:
    """Use a fixture of `FORKED`, but where the exporter's own process is a subject."""
    fixture = FORKED.get(request.path.parent.name)
    is_about_exporters = request.path.name in ("test_crashes.py", "test_mlflow.py", "test_mlflow_exports.py")
    if fixture and request.node.get_closest_marker("services") and not is_about_exporters:
        request.getfixturevalue(fixture)
