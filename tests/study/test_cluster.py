"""A study on a Ray cluster whose workers share no folder with the head, with its ledger behind a gateway: exact,
whatever is killed, and everything that trials write arrives.

Not checked here: pods, nodes and manifests (tests/e2e); the same study on one machine (test_crashes).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from tests.contracts.conftest import Postgres, gateways, postgres
from tests.contracts.gateway_process import NAMESPACE, TOKEN, Gateways
from tests.study.ray_cluster import Cluster, make_plan, wait_until

from trialplane import errors
from trialplane.wire import labels, ledger, records
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["gateways", "postgres"]  # fixtures

TRIALS = 12
STAGE = 4  # trials that begin when the test lets them

CODE = f"""
import time
from pathlib import Path

import mlflow
import numpy as np

def run(ctx):
    print("hello from", ctx.trial)
    while ctx.params["stages"] and not Path(ctx.params["stages"], str(ctx.trial // {STAGE})).exists():
        time.sleep(0.01)
    for step in range(3):
        time.sleep(ctx.params["pause"])
        ctx.report(step, score=ctx.params["x"] * (step + 1))
    mlflow.log_metric("from_the_job", ctx.params["x"])
    return {{"score": ctx.params["x"], "curve": np.arange(5.0) + ctx.trial}}
"""

# Logs nothing to MLflow, which a slot would import for seconds.
QUIET = """
import time

def run(ctx):
    time.sleep(ctx.params["pause"])
    return {"score": ctx.params["x"]}
"""

# Waits until there is a file "go-" with its number.
SHARING = """
import os
import time
from pathlib import Path

def run(ctx):
    while not Path(ctx.params["stages"], f"go-{ctx.trial}").exists():
        time.sleep(0.01)
    seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF")}
    return {"score": ctx.params["x"], "seen": seen, "gpus": ctx.gpus}
"""

SPEC: dict[str, Any] = {
    "entrypoint": "train:run",
    "preload": ["mlflow", "numpy"],
    "params": {"pause": 0.1, "stages": ""},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "objectives": [{"metric": "score", "direction": "maximize"}],
    "sampler": "random",
    "trials": TRIALS,
    "parallel": 2,
    "seed": 3,
    "retries": {"crashed": 5, "lost": 9},
}


class Study:
    """A cluster, and what is left of its study in the database and in MLflow."""

    def __init__(self, root: Path, server: Postgres, gateways: Gateways) -> None:
        self._server = server
        self._url = server.new_database()
        self.gateway = gateways.door(self._url)
        self.gateway.admit("toy", ["maximize"])
        token = root / "token"
        token.write_text(TOKEN)
        self.cluster = Cluster(
            root,
            f"http://127.0.0.1:{self.gateway.port}{ledger.namespace_path(NAMESPACE)}",
            f"sqlite:///{root}/mlflow.db",
            token,
        )

    def attribute(self, key: str) -> Any:
        found = self._server.execute(f"SELECT {key} FROM runs", self._url)
        return json.loads(found[0][0]) if found and found[0][0] else None

    def wish(self, **wish: Any) -> None:
        """What the gateway writes."""
        self._server.execute(f"UPDATE runs SET {labels.LEDGER_DESIRED} = '{json.dumps(wish)}'", self._url)

    def attempts(self) -> list[tuple[TrialRequest, TrialOutcome | None]]:
        query = "SELECT request, outcome FROM attempts ORDER BY number"
        return [
            (records.from_json(TrialRequest, asked), None if told is None else records.from_json(TrialOutcome, told))
            for asked, told in self._server.execute(query, self._url)
        ]

    def ended(self) -> int:
        return len([outcome for _, outcome in self.attempts() if outcome is not None and not outcome.retried])

    def status(self) -> RunStatus:
        return records.from_dict(RunStatus, self.attribute(labels.LEDGER_STATUS))

    def runs(self, kind: str = "trial") -> list[Any]:
        """What MLflow has."""
        client = MlflowClient(self.cluster.mlflow)
        (experiment,) = [found for found in client.search_experiments() if found.name == "toy"]
        return list(client.search_runs([experiment.experiment_id], f"tags.`trialplane.kind` = '{kind}'"))

    def is_whole(self, run: Any) -> bool:
        """Whether MLflow has all of a trial that completed, and each part once."""
        client = MlflowClient(self.cluster.mlflow)
        steps = sorted(point.step for point in client.get_metric_history(run.info.run_id, "score"))
        assert len(steps) <= 4, steps
        logged = client.get_metric_history(run.info.run_id, "from_the_job")
        files = {item.path for folder in ("logs", "arrays") for item in client.list_artifacts(run.info.run_id, folder)}
        attempt = run.data.tags["trialplane.attempt"]
        return (
            steps == [0, 1, 2, 2]  # three reports and the result
            and [point.value for point in logged] == [pytest.approx(float(run.data.params["x"]))]
            and files == {f"logs/attempt-{attempt}.log", "arrays/result.npz"}
        )

    def whole(self) -> set[int]:
        """The trials of which MLflow has all."""
        complete = [run for run in self.runs() if run.data.tags.get("trialplane.state") == "COMPLETE"]
        return {int(run.data.tags["trialplane.trial"]) for run in complete if self.is_whole(run)}

    def check_exact(self, trials: int = TRIALS) -> None:
        """Every trial ended once, in the database and in MLflow."""
        final = [(request, outcome) for request, outcome in self.attempts() if outcome is not None and not outcome.retried]
        assert sorted(request.trial for request, _ in final) == list(range(trials))
        assert all(outcome is not None for _, outcome in self.attempts())
        (parent,) = self.runs("study")
        assert parent.data.tags["trialplane.state"] == "SUCCEEDED"
        children = self.runs()
        assert sorted(int(run.data.tags["trialplane.number"]) for run in children) == [r.number for r, _ in self.attempts()]
        complete = [run for run in children if run.data.tags["trialplane.state"] == "COMPLETE"]
        assert sorted(int(run.data.tags["trialplane.trial"]) for run in complete) == list(range(trials))


@pytest.fixture
def study(tmp_path: Path, postgres: Postgres, gateways: Gateways, mlflow_tables: Path) -> Iterator[Study]:
    shutil.copy(mlflow_tables, tmp_path / "mlflow.db")
    made = Study(tmp_path, postgres, gateways)
    yield made
    made.cluster.close()
    made.gateway.close()


def plan(root: Path, code: str = CODE, **changes: Any) -> Any:
    return make_plan(root / "jobs" / "toy", {**SPEC, **changes}, code)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_study_survives_the_loss_of_a_worker_and_of_heads_with_and_without_their_disk(
    study: Study, tmp_path: Path
) -> None:
    """With the head's disk (a claim) nothing at all is lost; without it what MLflow had not got yet, but no result."""
    cluster = study.cluster
    stages = tmp_path / "stages"
    stages.mkdir()
    cluster.submit(plan(tmp_path, params={**SPEC["params"], "stages": str(stages)}))

    def next_is_held(stage: int) -> bool:
        return any(request.trial >= stage * STAGE and outcome is None for request, outcome in study.attempts())

    cluster.keeps_disk = True
    cluster.start_head()
    cluster.start_controller()  # no worker yet: its slots wait
    for name in ("worker-1", "worker-2"):
        cluster.start_worker(name)
    (stages / "0").touch()
    wait_until(lambda: study.ended() >= 2, "two trials have ended")
    cluster.kill_worker("worker-1")
    cluster.start_worker("worker-3", wait=False)
    wait_until(lambda: study.ended() >= STAGE and next_is_held(1), "the study goes on without it")
    kept = cluster.run
    cluster.kill_head()

    (stages / "1").touch()
    cluster.start_head(controller=True)
    cluster.start_worker("worker-4")
    study.gateway.kill()
    study.gateway.start()
    wait_until(lambda: study.ended() >= 2 * STAGE and next_is_held(2), "the study goes on with a new head")
    wait_until(lambda: study.whole() == set(range(2 * STAGE)), "MLflow has everything, also of the head before")
    cluster.kill_head()

    cluster.keeps_disk = False
    (stages / "2").touch()
    cluster.start_head()
    cluster.start_controller()
    cluster.start_worker("worker-5")
    assert cluster.wait() == errors.EXIT_OK, cluster.said()
    study.check_exact()
    assert study.whole() == set(range(TRIALS))
    lost = [outcome for _, outcome in study.attempts() if outcome is not None and outcome.failure is FailureClass.LOST]
    assert lost
    assert all(outcome.retried for outcome in lost)

    status = study.status()
    assert (status.state, status.complete) == (RunState.SUCCEEDED, TRIALS)
    logs = [study_log for run in (kept, cluster.run) for study_log in run.root.glob("trials/*/attempt-*.log")]
    assert {log.parent.name for log in logs} == {f"{trial:04d}" for trial in range(TRIALS)}
    assert "hello from" in logs[-1].read_text()
    assert not list(tmp_path.glob("worker-5/runs/toy/trials/*/*.log")), "what was sent is removed"
    assert "SUCCEEDED" in cluster.said()
    assert "SUCCEEDED" in cluster.run.controller_log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_desired_states_are_applied_and_an_outage_of_postgresql_costs_nothing(
    study: Study, tmp_path: Path, postgres: Postgres
) -> None:
    cluster = study.cluster
    cluster.submit(plan(tmp_path, QUIET, trials=400, parallel=1, preload=[], params={"pause": 0.2}))
    cluster.start_head()
    cluster.start_worker("worker", slots=2)
    cluster.start_controller()
    wait_until(lambda: study.ended() >= 1, "a trial has ended")
    study.wish(state="RUNNING", parallel=2)
    wait_until(lambda: "slot 1 is warm" in cluster.said(), "a second slot is there")
    before = study.ended()
    postgres.stop()
    time.sleep(3)  # the outage itself
    postgres.start()
    wait_until(lambda: study.ended() >= before + 4, "the study goes on")
    study.wish(state="RUNNING", parallel=1)
    wait_until(lambda: "resizing from 2 to 1 slots" in cluster.said(), "the desired state is applied")
    before = study.ended()
    wait_until(lambda: study.ended() >= before + 3, "the study goes on with one slot")
    assert {outcome.failure for _, outcome in study.attempts() if outcome is not None} == {None}, "nothing was lost"
    study.wish(state="PAUSED", parallel=1)
    assert cluster.wait() == errors.EXIT_INTERRUPTED, cluster.said()
    status = study.status()
    assert (status.state, status.parallel) == (RunState.PAUSED, 1)
    assert all(outcome is not None for _, outcome in study.attempts()), "nothing is left running"
    assert "platform resume toy" in status.reason

    study.wish(state="CANCELLED")
    attempts = len(study.attempts())
    cluster.start_controller()
    assert cluster.wait() == errors.EXIT_CANCELLED
    assert study.status().state is RunState.CANCELLED
    assert len(study.attempts()) == attempts, "no trial was started"


@pytest.mark.slow
def test_two_trials_share_a_gpu_and_a_third_waits(study: Study, tmp_path: Path) -> None:
    """The GPU is only in Ray's books. The cap of memory is what torch reads; on a GPU, tests/worker/test_environment.py."""
    fields = {"preload": [], "trials": 4, "parallel": 3, "resources": {"gpus": 0.5}, "params": {"stages": str(tmp_path)}}
    study.cluster.submit(make_plan(tmp_path / "jobs" / "toy", {**SPEC, **fields}, SHARING))
    study.cluster.start_head()
    study.cluster.start_worker("a", slots=3, gpus=1)
    study.cluster.start_controller()

    def running() -> set[int]:
        return {request.trial for request, outcome in study.attempts() if outcome is None}

    wait_until(lambda: running() == {0, 1}, "two trials run")
    assert study.status().slots_ready <= 2
    for ends, begins in ((0, 2), (2, 3)):
        (tmp_path / f"go-{ends}").touch()
        wait_until(lambda begins=begins: running() == {1, begins}, f"trial {begins} has the share of trial {ends}")
    for trial in (1, 3):
        (tmp_path / f"go-{trial}").touch()
    assert study.cluster.wait() == 0, study.cluster.said()
    assert study.status().slots_ready <= 2
    outcomes = [outcome for _, outcome in study.attempts() if outcome is not None]
    assert [outcome.state for outcome in outcomes] == [TrialState.COMPLETE] * 4
    seen = {"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.475"}
    assert [outcome.returned["seen"] for outcome in outcomes] == [seen] * 4
    assert [outcome.metrics["gpus"] for outcome in outcomes] == [1.0] * 4
    assert len({outcome.slot for outcome in outcomes}) == 2
