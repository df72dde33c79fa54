"""The places on which the contract of a target is checked: this machine, a namespace's double, and a real namespace.

Each makes the same three things its own way: a run that goes on until it is told to stop, one that has succeeded, and one
that cannot start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.client.conftest import ORIGIN, Runs, complete
from tests.client.kuberay_double import NamespaceDouble

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle, submit
from trialplane.client.target import Target
from trialplane.errors import InputError, RunNotFound
from trialplane.job import load
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan
from trialplane.wire import rows
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState

PATIENCE = float(os.environ.get("TRIALPLANE_E2E_PATIENCE", "300"))
TRIALS = 3
_QUICK = 'def run(ctx):\n    print(f"trial {ctx.trial}")\n    return {"loss": ctx.params["lr"]}\n'
_SLOW = "import time\n\n\ndef run(ctx):\n    time.sleep(600)\n"


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first value of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s"
        time.sleep(0.02)
    return value


class TargetName:
    """A place, with the job demo beside it.

    Args:
        target: under test.
        jobs: the folder with the job.
    """

    prefix = ""

    def __init__(self, target: Target, jobs: Path) -> None:
        self.target = target
        self.jobs = jobs

    def name(self, word: str) -> str:
        """A run's name that nobody else uses here."""
        return f"{self.prefix}{word}"

    def plan(self, name: str, **overrides: Any) -> Plan:
        """A plan of the job as it is now; overrides are dotted fields with _ for the dot."""
        source = self.jobs / "demo"
        fields = {"trials": TRIALS, **{key.replace("__", "."): value for key, value in overrides.items()}}
        return planning.plan(load.load_job(source, overrides=fields), source, name, ORIGIN)

    def running(self, name: str, **overrides: Any) -> RunHandle:
        """A run that goes on until it is told to stop."""
        submit(self.target, self.plan(name, **overrides))
        self.settle(name)
        handle = RunHandle(name, self.target)
        until(lambda: handle.status().state is RunState.RUNNING)
        return handle

    def done(self, name: str) -> RunHandle:
        """A run that has succeeded with all trials."""
        raise NotImplementedError

    def settle(self, name: str) -> None:
        """Waits until the controller listens."""

    def close(self) -> None:
        """Ends what still runs."""


class ThisMachine(TargetName):
    """`LocalTarget`, with the double of the controller."""

    def __init__(self, runs: Runs, double: Callable[[RunPaths], None]) -> None:
        super().__init__(runs.target, runs.jobs)
        self._runs = runs
        self._double = double

    def done(self, name: str) -> RunHandle:
        run = self._runs.make(name, tell=complete, trials=TRIALS)
        run.controller_log.write_text("the controller is here\n")
        for trial in range(TRIALS):
            file = run.trial_log(trial, 1)
            file.parent.mkdir(parents=True)
            file.write_text(f"trial {trial}\n")
        self._runs.say(run, RunState.SUCCEEDED, complete=TRIALS, started=1.0, ended=2.0)
        return RunHandle(name, self.target)

    def settle(self, name: str) -> None:
        self._double(RunPaths.of(self._runs.home, name))
        (RunPaths.of(self._runs.home, name).root / "ready").unlink()


class Double(TargetName):
    """`KubernetesTarget` on doubles of the API server, KubeRay, the controller and the gateway."""

    def __init__(self, target: KubernetesTarget, jobs: Path, namespace: NamespaceDouble) -> None:
        super().__init__(target, jobs)
        self.namespace = namespace

    def done(self, name: str) -> RunHandle:
        handle = self.running(name)
        job = handle.job
        runs = []
        for trial in range(TRIALS):
            request = TrialRequest(name, trial, 1, trial, {"lr": 0.1 * trial}, 0, job.required_metrics)
            outcome = TrialOutcome(trial, TrialState.COMPLETE, metrics={"loss": 0.1 * trial}, started=1.0, ended=2.0)
            runs.append(rows.row(job, request, request.params, outcome))
        self.namespace.tell(name, runs)
        self.namespace.end(name, RunState.SUCCEEDED)
        return handle


class RealCluster(TargetName):
    """`KubernetesTarget` on a cluster with KubeRay and the chart; its trials are real and its waits are long.

    Others may use the namespace too: runs have names of their own, and only those are taken away again.
    """

    def __init__(self, target: KubernetesTarget, jobs: Path) -> None:
        super().__init__(target, jobs)
        self.prefix = f"contract-{secrets.token_hex(3)}-"
        self._planned: set[str] = set()

    def plan(self, name: str, **overrides: Any) -> Plan:
        self._planned.add(name)
        return super().plan(name, **overrides)

    def running(self, name: str, **overrides: Any) -> RunHandle:
        (self.jobs / "demo" / "train.py").write_text(_SLOW)  # and stays so: the same submission again has the same code
        return super().running(name, **overrides)

    def done(self, name: str) -> RunHandle:
        (self.jobs / "demo" / "train.py").write_text(_QUICK)
        submit(self.target, self.plan(name))
        handle = RunHandle(name, self.target)
        assert handle.wait(PATIENCE).state is RunState.SUCCEEDED
        return handle

    def close(self) -> None:
        for name in self._planned:
            assert name.startswith(self.prefix), f"{name} may be somebody else's"
            with contextlib.suppress(RunNotFound):
                with contextlib.suppress(InputError):  # it has ended
                    RunHandle(name, self.target).cancel(now=True)
                until(lambda name=name: not self.target.is_active(name))
                self.target.remove(name, forget=True)
