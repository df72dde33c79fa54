"""Helpers for tests of several packages: requests and outcomes of attempts, and an MLflow server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState

DEADLINE = 180.0


def wait_until(condition: Callable[[], Any], description: str) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {description}"
        time.sleep(0.01)
    return value


class Server:
    """`mlflow server` on loopback, over a SQLite file.

    Args:
        store: the file, as a URL.
        folder: for its log and artifacts.
        python: that runs it.
        options: more of them.
        environ: more variables.

    Attributes:
        store: the file, as a URL.
        artifacts: folder of its artifacts.
        uri: its address.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        python: str = sys.executable,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        self.artifacts = folder / "server-artifacts"
        self._folder = folder
        self._python, self._options, self._environ = python, options, environ or {}
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", self.store, "--artifacts-destination", str(self.artifacts)]
        command += ["--workers", "1", *self._options]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment |= self._environ
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_until(self._answers, f"MLflow answers at {self.uri}")

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have failed to start
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


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Ledgers over one study's file."""
    from tests.controller.trainings import Opened  # which imports this module

    made = Opened(tmp_path)
    yield made
    made.close()
