"""A run with a ledger, and an MLflow store of its own that its exporter fills: a SQLite file, or a server over it."""

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from tests.controller.conftest import Server, outcome, request

from trialplane.controller import exporter_process
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.job import kinds
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.study import Storage
from trialplane.training.process import die_with_parent
from trialplane.wire import labels, paths
from trialplane.wire.exports import End, Order
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Parent, ReportRow, Segment, TrialOutcome, TrialRequest
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # MLflow, which takes seconds to import
    from mlflow.tracking import MlflowClient

    from trialplane.exporter.exporter import Exporter

JOB: dict[str, Any] = {
    "name": "toy",
    "kind": "hpo",
    "entrypoint": "train:run",
    "space": {"x": {"type": "float", "low": 0.0, "high": 9.0}},
    "objectives": [{"metric": "score", "direction": "maximize"}],
    "trials": 24,
    "seed": 7,
}
PROMOTION: dict[str, Any] = {
    "params": {"epochs": 16},
    "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
}
POPULATION: dict[str, Any] = {"params": {"epochs": 12}, "population": {"interval": 4, "steps": "epochs"}}
DONE = End(RunState.SUCCEEDED, "all trials ended", 3000.0)

FORK_SERVER = '''
"""Forks exporters that need not import MLflow: an order has arguments and environment, and comes with the streams."""

import contextlib, json, os, socket, sys

from trialplane.exporter import __main__ as exporter

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
        code = 1
        try:
            code = exporter.main()
        finally:
            sys.stdout.flush()
            os._exit(code)
    for stream in order[1]:
        os.close(stream)
    orders.send(b"%d" % child)
    orders.recv(1)  # until then it stays at least a zombie, so its pid is nobody else's
    with contextlib.suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
'''


def segment(number: int, trial: int, before: TrialRequest | None = None) -> TrialRequest:
    """The first segment of a trial with `PROMOTION`, or the one that continues another."""
    if before is None:
        return request(number, trial=trial, segment=Segment(1, ("score",)))
    assert before.segment is not None
    done = before.segment.rung
    rung = 4 * done if done < 4 else 0
    after = Segment(rung, ("score",), done, 1, Parent(trial, done - 1), before.series)
    return request(number, trial=trial, attempt=before.attempt + 1, retry_of=before.number, segment=after)


class Forked:
    """An exporter that was forked, with what `ExporterProcess` uses of a `Popen`."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.process = os.pidfd_open(pid)
        self._ended = False

    def poll(self) -> int | None:
        if not self._ended and select.select([self.process], [], [], 0)[0]:
            os.close(self.process)
            self._ended = True
        return 0 if self._ended else None

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None and not select.select([self.process], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked exporter", timeout or 0)
        self.poll()
        return 0

    def kill(self) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self.process, signal.SIGKILL)


class ForkServer:
    """A process that has imported MLflow, which takes seconds, and forks exporters."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ends = functools.partial(die_with_parent, os.getpid())
            self.process = subprocess.Popen([sys.executable, "-c", FORK_SERVER], stdin=theirs, preexec_fn=ends)

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: BinaryIO,
        env: Mapping[str, str],
        bufsize: int,
        preexec_fn: Any,
    ) -> Forked:
        """As `Popen`, which `ExporterProcess` takes it for."""
        assert list(command[1:4]) == ["-P", "-m", "trialplane.exporter"]
        assert (stdin, stdout, bufsize) == (subprocess.PIPE, subprocess.PIPE, 0)
        assert preexec_fn
        order = json.dumps({"arguments": command[3:], "environment": dict(env)}).encode()
        (reads, to_it), (from_it, writes) = os.pipe(), os.pipe()
        socket.send_fds(self._orders, [order], [reads, writes, stderr.fileno()])
        os.close(reads)
        os.close(writes)
        pid = int(self._orders.recv(20))
        forked = Forked(pid, os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0))
        self._orders.send(b".")
        return forked

    def close(self) -> None:
        self._orders.close()
        self.process.wait()


class Place:
    """A run, its ledger, and what MLflow has of it.

    Args:
        home: folder of the run and of MLflow's store.
        store: an empty store, which is copied.
        job: fields of the job.
    """

    def __init__(self, home: Path, store: Path, job: Mapping[str, Any] | None = None) -> None:
        self.home = home
        self.run = RunPaths.of(home, "toy-1")
        self.run.root.mkdir(parents=True)
        self.run.job.write_text(kinds.read({**JOB, **(job or {})}).model_dump_json())
        self.run.submission.write_text(json.dumps({"submitted": 1000.0, "git_revision": "abc", "code_hash": "def"}))
        shutil.copy(store, paths.mlflow_db(home))
        self.uri = paths.mlflow_uri(home)
        self.ledger = f"sqlite:///{self.run.ledger}"
        self.storage = Storage(self.ledger, "toy-1", ("maximize",), self.run.lock)
        self.processes: list[ExporterProcess] = []
        self._mark = 0

    # The ledger

    def begin(self, request: TrialRequest) -> None:
        """An attempt starts."""
        self.storage.write_start(Attempt(request), None)

    def report(self, number: int, step: int, moment: float = 0.0, **metrics: float) -> None:
        """An attempt reports."""
        self._mark += 1
        row = ReportRow(self._mark, number, 1, number, step, metrics, moment or 2000.0 + step)
        self.storage.write_reports([row], [])

    def end(self, request: TrialRequest, ended: TrialOutcome) -> None:
        """An attempt ends."""
        self.storage.write_end(Attempt(request, ended), None)

    def play(self, number: int, steps: int = 3) -> None:
        """One trial from its start to its end."""
        self.begin(request(number))
        for step in range(steps):
            self.report(number, step, score=step / 4, loss=1.0)
        self.end(request(number), outcome(number, metrics={"score": 0.5, "loss": 0.25}, step=steps - 1))

    # The exporter

    def exporter(self, uri: str = "", **options: Any) -> Exporter:
        """An exporter in this process."""
        from trialplane.exporter.exporter import Exporter
        from trialplane.ledger.study import Reader

        return Exporter(self.run, Reader(self.ledger, "toy-1"), uri or self.uri, **options)

    def export(self, end: End | None = None, **options: Any) -> Exporter:
        """One life of an exporter, in which it brings MLflow up to date."""
        exporter = self.exporter(**options)
        if end is not None:
            exporter.set_end(end)
        bring(exporter, closes=end is not None)
        return exporter

    def process(self, uri: str = "", *, keeps_folder: bool = True) -> ExporterProcess:
        """An exporter's process, as a controller has it; ended with the test if not before."""
        started = ExporterProcess(self.run, Order(self.ledger, keeps_folder=keeps_folder), uri or self.uri)
        self.processes.append(started)
        return started

    # MLflow

    @property
    def client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.uri)

    @property
    def experiment(self) -> str:
        """Id of the experiment, which is created if need be, where an exporter would."""
        experiment = self.client.get_experiment_by_name("toy")
        location = (paths.mlflow_artifacts(self.home) / "toy").as_uri()
        return str(
            experiment.experiment_id if experiment else self.client.create_experiment("toy", artifact_location=location)
        )

    def runs(self, kind: str = "trial") -> list[Any]:
        """The runs in MLflow that are not deleted."""
        return list(self.client.search_runs([self.experiment], f"tags.`trialplane.kind` = '{kind}'", max_results=5000))

    def everything(self) -> list[Any]:
        """All runs in MLflow that are not deleted."""
        return list(self.client.search_runs([self.experiment], max_results=5000))

    def trials_own(self, number: int, *, program: bool = False) -> str:
        """The id of a run that a trial's process creates before the exporter does, or a program that it has started."""
        own = {labels.NUMBER: str(number), labels.OWN: labels.NEW}
        tags = {labels.LOGGED_BY: str(number)} if program else own
        tags |= labels.identity("toy-1", {"submitted": 1000.0})
        return str(self.client.create_run(self.experiment, tags=tags).info.run_id)

    def trial(self, number: int) -> Any:
        (mlflow_run,) = [run for run in self.runs() if run.data.tags.get("trialplane.number") == str(number)]
        return mlflow_run

    def history(self, run: Any) -> dict[str, list[tuple[int, float]]]:
        """Metric → (step, value) in order."""
        return {
            name: sorted((m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }

    def close(self) -> None:
        self.storage.close()
        for process in self.processes:
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()
            for stream in (process.process.stdin, process.process.stdout):
                if stream is not None:
                    stream.close()


def bring(exporter: Exporter, *, closes: bool) -> None:
    """Bring MLflow up to date, and with `closes` write the end of the run."""
    while True:
        while exporter.advance() or exporter.files.send():
            pass
        if not closes or exporter.close():
            return


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    started = ForkServer()
    yield started
    started.close()


@pytest.fixture
def place(tmp_path: Path, mlflow_tables: Path) -> Iterator[Place]:
    import mlflow

    opened = Place(tmp_path / "home", mlflow_tables)
    yield opened
    opened.close()
    mlflow.set_tracking_uri(None)  # which an exporter sets


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer) -> None:
    """The exporters' processes of this test are forks of one that has imported MLflow."""
    forked = SimpleNamespace(Popen=fork_server.start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(exporter_process, "subprocess", forked)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    started = Server(place.uri, place.home)
    started.start()
    yield started
    started.stop()
