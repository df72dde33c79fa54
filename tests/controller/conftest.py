"""A run's folder with an MLflow store of its own: a SQLite file, or a server over it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from trialplane.controller.recorder import Recorder
from trialplane.wire import paths
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import TrialState

DEADLINE = 180.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return value


class Server:
    """`mlflow server` on loopback, over a SQLite file."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", self._store, "--artifacts-destination", str(self._folder / "server-artifacts")]
        command += ["--workers", "1"]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_until(self._answers, f"MLflow answers at {self.uri}")

    def stop(self) -> None:
        import signal

        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with its worker
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "server.log").read_text()[-3000:]
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(100)
        except OSError:
            return False


class Place:
    """A run and what MLflow holds of it."""

    def __init__(self, home: Path, store: Path) -> None:
        self.home = home
        self.run = RunPaths.of(home, "toy-1")
        self.run.root.mkdir(parents=True)
        self.run.job.write_text(json.dumps({"name": "toy"}))
        self.run.submission.write_text(json.dumps({"submitted": 1000.0, "git_revision": "abc", "code_hash": "def"}))
        shutil.copy(store, paths.mlflow_db(home))
        self.uri = paths.mlflow_uri(home)
        self.recorders: list[Recorder] = []

    def recorder(self, uri: str | None = None, spares: int = 1) -> Recorder:
        """A recorder, closed at the end of the test if not before."""
        made = Recorder(self.run, uri or self.uri, spares)
        self.recorders.append(made)
        return made

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)

    def runs(self, kind: str = "trial") -> list[Any]:
        """The runs in MLflow that are not deleted."""
        experiment = self.client.get_experiment_by_name("toy")
        if experiment is None:
            return []
        return list(
            self.client.search_runs([experiment.experiment_id], f"tags.`trialplane.kind` = '{kind}'", max_results=5000)
        )

    def trial(self, number: int) -> Any:
        (found,) = [run for run in self.runs() if run.data.tags.get("trialplane.number") == str(number)]
        return found

    def history(self, run: Any) -> dict[str, list[tuple[int, float]]]:
        """Metric → (step, value) in order."""
        return {
            name: sorted((m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store; making one takes seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def place(tmp_path: Path, mlflow_tables: Path) -> Iterator[Place]:
    made = Place(tmp_path / "home", mlflow_tables)
    yield made
    for recorder in made.recorders:
        if recorder._writer.poll() is None:
            recorder._writer.kill()
            recorder._writer.wait()
        for stream in (recorder._writer.stdin, recorder._writer.stdout, recorder._spool):
            if stream is not None:
                stream.close()


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    made = Server(place.uri, place.home)
    made.start()
    yield made
    made.stop()


FACTS = {"tags": {"trialplane.job": "toy", "trialplane.seed": 7}, "params": {"trials": 24, "sampler": "tpe"}}


def request(number: int, **changes: Any) -> TrialRequest:
    values: dict[str, Any] = {
        "run": "toy-1",
        "trial": number,
        "attempt": 1,
        "number": number,
        "params": {"x": number / 8, "kind": "a"},
        "seed": 5,
        "metrics": ("score",),
    }
    return TrialRequest(**{**values, **changes})


def outcome(number: int, **changes: Any) -> TrialOutcome:
    values: dict[str, Any] = {"state": TrialState.COMPLETE, "metrics": {"score": 0.5}, "started": 2000.0, "ended": 2003.0}
    return TrialOutcome(number, **{**values, **changes})


def play(recorder: Recorder, number: int, steps: int = 3) -> str | None:
    """One trial from its start to its end; gives the id of its MLflow run if there was one."""
    run_id = recorder.run_id()
    recorder.started(request(number), run_id)
    for step in range(steps):
        recorder.reported([TrialReport(number, step, {"score": step / 4, "loss": 1.0}, 2000.0 + step)])
    recorder.ended(request(number), outcome(number, metrics={"score": 0.5, "loss": 0.25}))
    return run_id
