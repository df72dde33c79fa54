"""A real study on this machine: submitted through the SDK, with its controller, slots, templates and trials as processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trialplane.client.run import RunHandle
from trialplane.client.sdk import Platform
from trialplane.wire import env, paths
from trialplane.wire.paths import RunPaths

STAGE = 12

# Takes about a tenth of a second per trial. With a folder `stages` the first twelve trials wait until there is a file "0" in
# it, the next twelve for a file "1", and so on: no run is over before a test has done to it what it is about.
JOB = f"""
import time
from pathlib import Path

def run(ctx):
    while ctx.params["stages"] and not Path(ctx.params["stages"], str(ctx.trial // {STAGE})).exists():
        time.sleep(0.01)
    for step in range(3):
        time.sleep(ctx.params["pause"])
        ctx.report(step, score=ctx.params["x"] * (step + 1))
    if ctx.params["saves"]:
        Path(ctx.checkpoints).mkdir(parents=True)
        Path(ctx.checkpoints, "model").write_text(str(ctx.params["x"]))
    if ctx.params["logs"]:
        import mlflow
        mlflow.log_metric("from_the_job", ctx.params["x"])
    return {{"score": ctx.params["x"]}}
"""

SPEC = """
kind: hpo
preload: [mlflow]
params: {pause: 0.03, stages: "", logs: true, saves: false}
space:
  x: {type: float, low: 0.0, high: 1.0}
  kind: {type: categorical, choices: [a, b]}
  y: {type: int, low: 1, high: 4, when: {kind: b}}
objectives: [{metric: score, direction: maximize}]
trials: 24
parallel: 2
seed: 3
retries: {crashed: 5, lost: 9}
"""


# For the code of a job that calls `pass_gate` in each step: its trials wait there when `Study.kill_between_reports` is to
# kill something, so that no run is over before that. The size of one file is the number of steps so far, that of the other
# the number at which the gate is closed. What waits has a file with its pid as its name.
GATE = """
import os
import time


def pass_gate(folder="FOLDER"):
    if not os.path.exists(f"{folder}/limit"):
        return
    with open(f"{folder}/steps", "ab") as steps:
        steps.write(b".")
    while os.path.getsize(f"{folder}/steps") >= os.path.getsize(f"{folder}/limit"):
        open(f"{folder}/{os.getpid()}", "w").close()
        time.sleep(0.01)
    if os.path.exists(f"{folder}/{os.getpid()}"):
        os.remove(f"{folder}/{os.getpid()}")
"""


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of a run."""

    pid: int
    parent: int
    command: str


class Study:
    """A job in a folder and what becomes of it.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.job = root / "jobs" / "toy"
        self.write(JOB, SPEC)
        self.stages = root / "stages"
        self.gate = root / "gate"
        self.gate.mkdir(exist_ok=True)  # some fixtures make another kind of study at the same root
        self.platform = Platform()
        self.handles: list[RunHandle] = []

    def write(self, code: str, spec: str) -> None:
        self.job.mkdir(parents=True, exist_ok=True)
        (self.job / "train.py").write_text(code)
        (self.job / "job.yaml").write_text(spec)

    def submit(self, name: str = "toy", **overrides: Any) -> RunHandle:
        handle = self.platform.submit(self.job, name=name, overrides=overrides)
        self.handles.append(handle)
        return handle

    def submit_in_stages(self, **overrides: Any) -> RunHandle:
        """Submits it; its trials begin stage by stage, as `let_begin` says."""
        self.stages.mkdir()
        return self.submit(**{**overrides, "params.stages": str(self.stages)})

    def let_begin(self, stage: int) -> None:
        """Lets the next `STAGE` trials begin."""
        (self.stages / str(stage)).touch()

    def write_with_gate(self, code: str, spec: str) -> None:
        """Writes a job whose code calls `pass_gate` in each step."""
        self.write(GATE.replace("FOLDER", str(self.gate)) + code, spec)

    def submit_at_gate(self, name: str, **overrides: Any) -> RunHandle:
        """Submits it; its trials wait in their first steps, for `kill_between_reports`."""
        (self.gate / "limit").touch()
        return self.submit(name, **overrides)

    def files(self, name: str = "toy") -> RunPaths:
        return RunPaths.of(self.home, name)

    def ended(self, name: str = "toy") -> int:
        """Logical trials ended, by the status file."""
        return self.platform.get(name).status().ended_trials

    def attempts(self, name: str = "toy") -> list[tuple[int, str, int, int, str | None, bool]]:
        """Each attempt in the ledger: number, recorded state, trial, attempt, failure class, retried."""
        connection = sqlite3.connect(f"file:{self.files(name).ledger}?mode=ro", uri=True)
        rows = connection.execute(
            """
            select number, coalesce(json_extract(outcome, '$.state'), 'RUNNING'), trial, json_extract(request, '$.attempt'),
                json_extract(outcome, '$.failure'), coalesce(json_extract(outcome, '$.retried'), 0)
            from attempts order by number
            """
        ).fetchall()
        connection.close()
        return [
            (number, state, trial, attempt, failure, bool(retried))
            for number, state, trial, attempt, failure, retried in rows
        ]

    def mlflow_runs(self, name: str = "toy") -> list[dict[str, Any]]:
        """The trials' runs in MLflow, as tags with params, metrics and status."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(os.environ.get(env.MLFLOW_TRACKING_URI) or paths.mlflow_uri(self.home))
        experiment = client.get_experiment_by_name("toy")
        assert experiment is not None
        runs = client.search_runs(
            [experiment.experiment_id],
            f"tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = '{name}'",
            max_results=1000,
        )
        return [
            {
                "tags": run.data.tags,
                "params": run.data.params,
                "metrics": run.data.metrics,
                "status": run.info.status,
                "history": {
                    m: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, m)] for m in run.data.metrics
                },
            }
            for run in runs
        ]

    def check_exact(self, trials: int, name: str = "toy", *, logged: bool = True) -> None:
        """As many logical trials ended as were asked for, none twice, in the ledger and in MLflow alike.

        Args:
            trials: how many.
            name: the run's.
            logged: whether the job has logged to MLflow by itself.
        """
        attempts = self.attempts(name)
        final = [(trial, number) for number, _, trial, _, _, retried in attempts if not retried]
        assert sorted(trial for trial, _ in final) == list(range(trials))
        assert all(state != "RUNNING" for _, state, *_ in attempts)
        by_trial: dict[int, list[int]] = {}
        for _, _, trial, attempt, _, _ in attempts:
            by_trial.setdefault(trial, []).append(attempt)
        assert all(seen == list(range(1, len(seen) + 1)) for seen in by_trial.values()), by_trial

        runs = self.mlflow_runs(name)
        recorded = sorted((int(r["tags"]["trialplane.number"]), r["tags"]["trialplane.state"]) for r in runs)
        assert recorded == sorted(
            (number, ("PAUSED" if failure == "stopped" else "LOST") if retried else state)
            for number, state, _, _, failure, retried in attempts
        )
        for run in runs:
            if run["tags"]["trialplane.state"] == "COMPLETE":
                steps = [step for step, _ in run["history"]["score"]]
                assert steps == [0, 1, 2, 2], "three reports and the result, each once"
                expected = [(0, pytest.approx(float(run["params"]["x"])))] if logged else None
                assert run["history"].get("from_the_job") == expected

    def processes(self, name: str = "toy") -> list[Process]:
        """The controller and everything below it."""
        pid = self.controller(name)
        children: dict[int, list[int]] = {}
        for child, parent in _parents().items():
            children.setdefault(parent, []).append(child)
        pids = [pid] if pid else []
        for each in pids:
            pids += children.get(each, [])
        processes = [_process(each) for each in pids]
        return [process for process in processes if process is not None]

    def pids(self, name: str = "toy") -> list[int]:
        """Pids of `processes` but Ray's agents, which outlive a killed Ray by a minute."""
        return [p.pid for p in self.processes(name) if "Agent" not in p.command]

    def controller(self, name: str = "toy") -> int | None:
        from trialplane.client import process

        controller = process.active_controller(self.files(name))
        return None if controller is None else controller.pid

    def templates(self, name: str = "toy") -> list[Process]:
        everyone = self.processes(name)
        templates = [p for p in everyone if "trialplane.worker.template" in p.command]
        return [p for p in templates if p.parent not in {t.pid for t in templates}]

    def trials(self, name: str = "toy") -> list[Process]:
        everyone = self.processes(name)
        templates = {p.pid for p in self.templates(name)}
        return [p for p in everyone if p.parent in templates]

    def working_templates(self, name: str = "toy") -> list[Process]:
        """Those that have forked a trial, and so are no longer starting."""
        parents = {p.parent for p in self.trials(name)}
        return [p for p in self.templates(name) if p.pid in parents]

    def slot_workers(self, name: str = "toy") -> list[Process]:
        parents = {p.parent for p in self.templates(name)}
        return [p for p in self.processes(name) if p.pid in parents]

    def rows(self, name: str, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in the ledger; nothing before it has tables."""
        if not self.files(name).ledger.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{self.files(name).ledger}?mode=ro", uri=True)) as connection:
            if not connection.execute("select name from sqlite_master where name = 'reports'").fetchall():
                return []
            found: list[tuple[Any, ...]] = connection.execute(query).fetchall()
        return found

    def curves(self, name: str) -> dict[tuple[int, int], set[float]]:
        """By trial and step the reported loss: more than one value if attempts differ."""
        found: dict[tuple[int, int], set[float]] = {}
        for trial, step, metrics in self.rows(name, "select trial, step, metrics from reports"):
            found.setdefault((trial, step), set()).add(json.loads(metrics)["loss"])
        return found

    def kill_between_reports(self, run: RunHandle, victims: Iterable[str], steps: Sequence[int]) -> None:
        """Kill one victim after the other while a trial waits at the gate, and resume a run whose controller was killed.

        Args:
            run: the run, submitted at the gate.
            victims: "rank" (the process at the gate), "controller", or the name of a method: the process at the gate or that
                one above it which is among those that the method returns.
            steps: numbers of steps before a kill, of which one is drawn.
        """
        generator = random.Random(5)
        limit, done = self.gate / "limit", self.gate / "steps"
        done.touch()
        for victim in victims:
            goal = done.stat().st_size + generator.choice(steps)
            os.truncate(limit, goal)
            wait_until(lambda goal=goal: done.stat().st_size >= goal, f"{goal} steps are done")
            waiting = wait_until(lambda: self._at_gate(run.name), "a trial waits at the gate")
            if victim == "controller":
                everyone = self.pids(run.name)
                kill(waiting[-1])
                wait_until(lambda pids=everyone: not any(alive(one) for one in pids), "everything below it is gone too")
                wait_until(lambda: not run.is_active(), "the end of the controller is seen")
                run.resume()
            else:
                found = {process.pid for process in getattr(self, victim)(run.name)} if victim != "rank" else {waiting[0]}
                assert kill(next(pid for pid in waiting if pid in found))
                wait_until(lambda pid=waiting[0]: not alive(pid), "the trial is gone too")
        os.truncate(limit, 1 << 30)

    def _at_gate(self, name: str) -> list[int]:
        """The pid of a process that waits at the gate, and of all above it up to the controller; empty if none waits."""
        parents = {process.pid: process.parent for process in self.processes(name)}
        pids = [next((pid for pid in parents if (self.gate / str(pid)).exists()), 0)]
        while pids[-1] in parents and pids[-1] != self.controller(name):
            pids.append(parents[pids[-1]])
        return pids if pids[0] else []

    def close(self) -> None:
        for handle in self.handles:
            pid = self.controller(handle.name)
            if pid is not None:
                everyone = [p.pid for p in self.processes(handle.name)]
                os.killpg(pid, signal.SIGKILL)
                wait_until(lambda pids=everyone: not any(alive(p) for p in pids), "the run's processes are gone")


def _parents() -> dict[int, int]:
    """The parent of each process, by pid."""
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - tests look often, and there are many processes
        if name.isdigit() and (state := _state(int(name))):
            parents[int(name)] = int(state[1])
    return parents


def _state(pid: int) -> list[str]:
    """What follows the name in a process's `stat`: its state, its parent, and more. Empty if it is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - as above
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return fields if fields[:1] not in ([], ["Z"]) else []


def _process(pid: int) -> Process | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    state = _state(pid)
    return Process(pid, int(state[1]), command) if state else None


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return bool(_state(pid))


def wait_until(condition: Callable[[], Any], description: str, timeout: float = 360.0) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain until {description}"
        time.sleep(0.05)  # a look at all processes takes some milliseconds of the run's own cores
    return value


def kill(pid: int) -> bool:
    """Kill a process and wait until it is gone; return False where it had just ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    wait_until(lambda: not alive(pid), "the victim is gone")
    return True


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_tables: Path) -> Iterator[Study]:
    (tmp_path / "home").mkdir()
    shutil.copy(mlflow_tables, paths.mlflow_db(tmp_path / "home"))
    monkeypatch.setenv(env.HOME, str(tmp_path / "home"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv(env.MLFLOW_TRACKING_URI, raising=False)
    started = Study(tmp_path)
    yield started
    started.close()
