"""A home of its own, a folder with one job, and runs whose ledgers the real controller's code has written."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.archive_double import ArchiveDouble
from tests.client.kuberay_double import SITE, NamespaceDouble
from tests.kube.cluster_double import OPERATOR, ClusterDouble

from trialplane.client import folder, process, remote_log
from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.local import LocalTarget
from trialplane.client.run import RunHandle, submit
from trialplane.client.target import Target
from trialplane.controller.ledger import Ledger
from trialplane.errors import InputError, TargetError
from trialplane.job import load
from trialplane.kube import objects
from trialplane.kube.cluster import Cluster
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.site import Site
from trialplane.reconciler.reconciler import Reconciler
from trialplane.wire import env, records
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

JOB = """\
kind: hpo
space:
  lr: {type: float, low: 0.0, high: 1.0}
  name: {type: categorical, choices: ["1e-5", "on", plain]}
objectives: [{metric: loss, direction: minimize}]
sampler: random
trials: 6
resources: {memory: 1Mi}
"""
TRAIN = "def run(ctx):\n    return {'loss': ctx.params['lr']}\n"
ORIGIN = Provenance(job_folder="/jobs/demo", user="ann", version="1")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """TRIALPLANE_HOME, which does not exist yet."""
    chosen = tmp_path / "home"
    monkeypatch.setenv(env.HOME, str(chosen))
    monkeypatch.delenv(env.LEDGER, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))  # the user's clusters are none of the tests' business
    return chosen


@pytest.fixture
def workplace(tmp_path, home, monkeypatch) -> Path:
    """The working directory, with the job demo."""
    place = tmp_path / "work"
    (place / "jobs" / "demo").mkdir(parents=True)
    (place / "jobs" / "demo" / "job.yaml").write_text(JOB)
    (place / "jobs" / "demo" / "train.py").write_text(TRAIN)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def closed(tmp_path, monkeypatch) -> Path:
    """A folder that this user may not look into; root may look into all, so the system's refusal is made here."""
    folder = tmp_path / "closed"
    folder.mkdir()
    stat = Path.stat

    def refused(self, **options):
        if folder in self.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setenv(env.HOME, str(folder / "home"))
    return folder


Tell = Callable[[TrialRequest], TrialOutcome | None]


def complete(request: TrialRequest) -> TrialOutcome:
    """The outcome of a trial that does what TRAIN says."""
    return TrialOutcome(
        request.number,
        TrialState.COMPLETE,
        metrics={"loss": request.params["lr"]},
        started=10.0,
        ended=12.0,
        log=f"trials/{request.trial:04d}/attempt-{request.attempt}.log",
    )


def failed(request: TrialRequest, failure: FailureClass = FailureClass.ERROR, message: str = "went wrong") -> TrialOutcome:
    """The outcome of a trial that failed."""
    return TrialOutcome(request.number, TrialState.FAILED, failure=failure, message=message, started=10.0, ended=11.0)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Makes runs below a home."""

    home: Path
    jobs: Path

    @property
    def target(self) -> LocalTarget:
        return LocalTarget(self.home)

    def make(self, name: str, *, tell: Tell | None = None, asks: int | None = None, **overrides: Any) -> RunPaths:
        """A run as submitted; with `tell` also a ledger in which `asks` attempts (all, when None) have that outcome.

        An attempt for which `tell` gives None stays running.
        """
        source = self.jobs / "demo"
        plan = planning.plan(load.load_job(source, overrides=overrides), source, name, ORIGIN)
        run = RunPaths.of(self.home, name)
        folder.create(run, plan)
        if tell is not None:
            self.drive(run, tell, asks)
        return run

    def report(self, run: RunPaths, steps: int) -> None:
        """Start the next attempt of a run; it reports steps and stays running."""
        with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), run.root.name, run.code, run.lock) as ledger:
            request = ledger.ask()
            assert request is not None
            for step in range(steps):
                ledger.report(TrialReport(request.number, step, {"loss": 1.0 / (step + 1), "lr": 0.5}, 100.0 + step))
            ledger.write_reports()

    def drive(self, run: RunPaths, tell: Tell, asks: int | None = None) -> None:
        """Works on the ledger of a run as a controller would, and goes away."""
        job = folder.load_job(run)
        with Ledger(f"sqlite:///{run.ledger}", job, run.root.name, run.code, run.lock) as ledger:
            count = 0
            while asks is None or count < asks:
                request = ledger.ask()
                if request is None:
                    break
                count += 1
                outcome = tell(request)
                if outcome is not None:
                    ledger.tell(outcome)

    def say(self, run: RunPaths, state: RunState, **fields: Any) -> RunStatus:
        """Writes a status.json as a controller would."""
        job = folder.load_job(run)
        fields = {"state": state, "reason": "", **fields}
        status = dataclasses.replace(planning.pending_status(run.root.name, job, 1.0), **fields)
        run.status.write_text(records.to_json(status))
        return status


@pytest.fixture
def runs(workplace, home) -> Runs:
    """Makes runs of the job demo."""
    return Runs(home, workplace / "jobs")


@pytest.fixture
def namespace(tmp_path, monkeypatch) -> Iterator[NamespaceDouble]:
    """A namespace with the chart on the double of a cluster, to which the kubeconfig's current context leads."""
    cluster = ClusterDouble()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
    double = NamespaceDouble(cluster)
    reconciler = Reconciler(Cluster(OPERATOR), ArchiveDouble(double), Site.read(json.dumps(SITE), cluster.namespace))
    one_at_a_time = threading.Lock()

    def operate() -> None:
        """Do the operator's work of a second."""
        with one_at_a_time:
            run_names = {*cluster.objects.get("runs", {}), *reconciler.runs_to_remove()}
            for run in [] if double.unattended else run_names:
                with contextlib.suppress(TargetError, InputError):  # it is in the Run's status, and tried again
                    reconciler.reconcile(run)

    cluster.operate = operate
    monkeypatch.setattr(KubernetesTarget, "poll", 0.02)
    monkeypatch.setattr(objects, "PAUSE", 0.02)
    monkeypatch.setattr(remote_log, "PAUSE", 0.02)
    yield double
    cluster.close()


@pytest.fixture
def target(workplace, namespace) -> KubernetesTarget:
    """The target of that namespace."""
    return KubernetesTarget()


@pytest.fixture
def planned(workplace) -> Callable[..., Plan]:
    """Plans the job demo."""

    def make(name: str = "a", **overrides):
        source = workplace / "jobs" / "demo"
        return planning.plan(load.load_job(source, overrides=overrides), source, name, ORIGIN)

    return make


def submitted(target: Target, plan: Plan) -> RunHandle:
    """A run of that plan whose controller works."""
    submit(target, plan)
    handle = RunHandle(plan.run, target)
    assert handle.status().state is RunState.RUNNING
    return handle


def scaled(target: Target, parallel: int, *, run: str = "a", now: bool = False) -> bool:
    """Whether a run is as wide as that after one try."""
    return next(RunHandle(run, target).scale(parallel, now=now), None) is None


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """Holds the lock of a run, as its controller does, in the name of this process or of another."""
    handles = []

    def hold(run: RunPaths, holder: Holder | None = None) -> None:
        handle = run.lock.open("a+")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        handle.seek(0)
        handle.truncate()
        handle.write(f"{records.to_json(holder or Holder.of_this_process())}\n")
        handle.flush()
        handles.append(handle)

    yield hold
    for handle in handles:
        handle.close()


@pytest.fixture
def started(monkeypatch) -> list[process.Controller]:
    """The controllers that the test starts, also when the target that did is gone."""
    children: list[process.Controller] = []
    start = process.start

    def kept(run: RunPaths) -> process.Controller:
        children.append(start(run))
        return children[-1]

    monkeypatch.setattr(process, "start", kept)
    return children


@pytest.fixture
def double(monkeypatch, started) -> Iterator[Callable[[RunPaths], None]]:
    """Controllers are doubles that work on nothing; the value waits until the one of a run listens."""
    monkeypatch.setattr(process, "PROGRAM", (str(Path(__file__).with_name("controller_double.py")),))

    def ready(run: RunPaths) -> None:
        deadline = time.monotonic() + 300
        while not (run.root / "ready").exists():
            assert time.monotonic() < deadline, run.controller_log.read_text()
            time.sleep(0.02)

    yield ready
    for child in started:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
