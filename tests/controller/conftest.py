"""A run's folder with an MLflow store of its own: a SQLite file, or a server over it."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from trialplane.controller import journal
from trialplane.controller import recorder as recording
from trialplane.controller.recorder import Recorder
from trialplane.training.process import die_with_parent
from trialplane.wire import labels, paths
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import TrialState

if TYPE_CHECKING:  # MLflow, which takes seconds to import, and which half of these tests do without
    from mlflow.tracking import MlflowClient

    from trialplane.controller.mlflow_writer import Writer

DEADLINE = 180.0

FORK_SERVER = '''
"""Forks writers that need not import MLflow: an order has the arguments and the environment, and comes with the streams."""

import contextlib, json, os, socket, sys

from trialplane.controller import mlflow_writer

mlflow_writer.NICENESS = 0  # the tests wait for it, and on a busy machine would do so for minutes
orders = socket.socket(fileno=0)
while (order := socket.recv_fds(orders, 1 << 20, 3))[0]:
    child = os.fork()
    if child == 0:
        given, streams = json.loads(order[0]), order[1]
        for number, stream in enumerate(streams):  # what is 0 now is the socket
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(given["environment"])
        sys.argv = given["arguments"]
        try:
            mlflow_writer.main()
        finally:
            sys.stdout.flush()
            os._exit(0)
    for stream in order[1]:
        os.close(stream)
    orders.send(b"%d" % child)
    orders.recv(1)  # until then it stays at least a zombie, so its pid is nobody else's
    with contextlib.suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
'''


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
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
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        python: str = sys.executable,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._python, self._options, self._environ = python, options, environ or {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", self._store, "--artifacts-destination", str(self._folder / "server-artifacts")]
        command += ["--workers", "1", *self._options]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment |= self._environ
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_until(self._answers, f"MLflow answers at {self.uri}")

    def stop(self) -> None:
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


class Forked:
    """A writer that was forked, with what the recorder uses of a `Popen`."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._process = os.pidfd_open(pid)
        self._ended = False

    def poll(self) -> int | None:
        if not self._ended and select.select([self._process], [], [], 0)[0]:
            os.close(self._process)
            self._ended = True
        return 0 if self._ended else None

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None and not select.select([self._process], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked writer", timeout or 0)
        self.poll()
        return 0

    def kill(self) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)


class ForkServer:
    """A process that has imported MLflow, which takes seconds, and forks writers."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ends = functools.partial(die_with_parent, os.getpid())
            self._process = subprocess.Popen([sys.executable, "-c", FORK_SERVER], stdin=theirs, preexec_fn=ends)

    def start(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: BinaryIO, env: Mapping[str, str], bufsize: int
    ) -> Forked:
        """As `Popen`, which the recorder takes it for."""
        assert list(command[1:4]) == ["-P", "-m", "trialplane.controller.mlflow_writer"]
        assert (stdin, stdout, bufsize) == (subprocess.PIPE, subprocess.PIPE, 0)
        order = json.dumps({"arguments": command[3:], "environment": dict(env)}).encode()
        (reads, to_it), (from_it, writes) = os.pipe(), os.pipe()
        socket.send_fds(self._orders, [order], [reads, writes, stderr.fileno()])
        os.close(reads)
        os.close(writes)
        pid = int(self._orders.recv(20))
        made = Forked(pid, os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0))
        self._orders.send(b".")
        return made

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


class Spooler(Recorder):
    """A recorder whose writer process only listens: what it spools is for a `Writer` in the test's process."""

    def _start_writer(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        self._writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        return self._writer


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
        self.writers: list[Writer] = []

    def spooler(self) -> Spooler:
        """A recorder without a writer process."""
        made = Spooler(self.run, self.uri)
        self.recorders.append(made)
        return made

    def writer(self, *, look: bool = False) -> Writer:
        """A writer in this process, which lets the journal go at the end of the test if not before."""
        from trialplane.controller.mlflow_writer import Writer

        made = Writer(self.run, self.uri, look)
        self.writers.append(made)
        return made

    def written(self, *, look: bool = False) -> Writer:
        """One life of a writer, in which it writes all that the spool holds."""
        writer = self.writer(look=look)
        while writer.write() or writer.artifacts.send():
            pass
        writer._journal._file.close()
        return writer

    def recorder(self, uri: str | None = None) -> Recorder:
        """A recorder, closed at the end of the test if not before."""
        made = Recorder(self.run, uri or self.uri)
        self.recorders.append(made)
        return made

    @property
    def client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.uri)

    def runs(self, kind: str = "trial") -> list[Any]:
        """The runs in MLflow that are not deleted."""
        experiment = self.client.get_experiment_by_name("toy")
        if experiment is None:
            return []
        return list(
            self.client.search_runs([experiment.experiment_id], f"tags.`trialplane.kind` = '{kind}'", max_results=5000)
        )

    def trials_own(self, number: int, *, program: bool = False) -> str:
        """The id of a run that a trial's process creates before the recorder does, or a program that it has started."""
        experiment = self.client.get_experiment_by_name("toy")
        where = experiment.experiment_id if experiment else self.client.create_experiment("toy")
        own = {labels.NUMBER: str(number), labels.STATE: labels.LOGGED}
        tags = {labels.LOGGED_BY: str(number)} if program else own
        tags |= journal.identity("toy-1", {"submitted": 1000.0})
        return str(self.client.create_run(where, tags=tags).info.run_id)

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
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path, mlflow_tables: Path, monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer) -> Iterator[Place]:
    """One whose writers are forks; a test of how the recorder starts them takes `started` as well."""
    forks = SimpleNamespace(Popen=fork_server.start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(recording, "subprocess", forks)
    made = Place(tmp_path / "home", mlflow_tables)
    yield made
    for writer in made.writers:
        writer._journal._file.close()
    for recorder in made.recorders:
        if recorder._writer.poll() is None:
            recorder._writer.kill()
            recorder._writer.wait()
        for stream in (recorder._writer.stdin, recorder._writer.stdout, recorder._spool):
            if stream is not None:
                stream.close()


@pytest.fixture
def started(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writers of this test's place are processes of their own, as the recorder starts them."""
    monkeypatch.setattr(recording, "subprocess", subprocess)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    made = Server(place.uri, place.home)
    made.start()
    yield made
    made.stop()


FACTS = {
    "tags": {"trialplane.job": "toy", "trialplane.seed": 7, "trialplane.state": "RUNNING"},
    "params": {"trials": 24, "sampler": "tpe"},
}


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


def play(recorder: Recorder, number: int, steps: int = 3) -> None:
    """One trial from its start to its end."""
    recorder.started(request(number), uses_mlflow=False)
    for step in range(steps):
        recorder.reported([TrialReport(number, step, {"score": step / 4, "loss": 1.0}, 2000.0 + step)])
    recorder.ended(request(number), outcome(number, metrics={"score": 0.5, "loss": 0.25}))
