"""Trainings of many ranks on this machine, whatever is killed: they end with the result of an undisturbed one, and no step
that a checkpoint holds is done again.

The job is a small one with real collectives (gloo); `nodes: 2` is two slots of one machine. Not checked here: ranks and
checkpoints by themselves (tests/runtime), the jobs of this repository (tests/jobs), pods (tests/e2e).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.study.conftest import Process, Study, alive, kill, wait_until

from trialplane.client.run import RunHandle
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

STEPS = 12

# Saves each step, and writes down each step that a rank has done, with its attempt and its pid.
JOB = """
import os
import threading
import time
from pathlib import Path

import torch
from torch import distributed


def newest(folder):
    found = [float(line) for line in folder.joinpath("state").read_text().split()] if (folder / "state").exists() else None
    return (int(found[0]), found[1]) if found else (0, 0.0)


def run(ctx):
    distributed.init_process_group("gloo")
    assert (distributed.get_rank(), distributed.get_world_size()) == (ctx.rank, ctx.world_size)
    folder = Path(ctx.checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    begin, total = newest(folder)
    if begin == 0 and ctx.resume_from is not None:
        begin, total = newest(Path(ctx.resume_from))
    print(f"rank {ctx.rank} of {ctx.world_size} begins with step {begin}", flush=True)
    print(f"rank {ctx.rank} sees GPUs {os.environ['CUDA_VISIBLE_DEVICES']!r}", flush=True)
    for step in range(begin, ctx.params["steps"]):
        if (step, ctx.attempt, ctx.rank) == (6, 1, ctx.params["hold"]):
            threading.Event().wait()  # to be killed while the others wait for it in a collective
        value = torch.tensor([float((ctx.rank + 1) * (step + 1)), 0.0])
        distributed.all_reduce(value)
        total += value[0].item()
        time.sleep(ctx.params["pause"])
        stopping = torch.tensor([float(ctx.stopping)])
        distributed.all_reduce(stopping, op=distributed.ReduceOp.MAX)
        with open(folder / f"rank-{ctx.rank}.done", "a") as done:
            done.write(f"{step} {ctx.attempt} {os.getpid()}\\n")
        if ctx.is_main:
            (folder / "partial").write_text(f"{step + 1} {total}")
            (folder / "partial").rename(folder / "state")
        distributed.barrier()
        if stopping.item():
            raise ctx.stopped(step + 1)
        ctx.report(step + 1, loss=total, total_steps=ctx.params["steps"])
    distributed.destroy_process_group()
    return {"loss": total}
"""

SPEC = f"""
kind: train
preload: [torch]
params: {{steps: {STEPS}, pause: 0.05, hold: -1}}
ranks: 2
retries: {{lost: 2}}
checkpoints: {{grace: 20}}
"""


def loss(world_size: int, steps: int = STEPS) -> float:
    """What an undisturbed training returns."""
    return float(sum(rank * step for rank in range(1, world_size + 1) for step in range(1, steps + 1)))


class Training(Study):
    """A study that is a training."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write(JOB, SPEC)

    def done(self, rank: int, name: str = "toy") -> list[tuple[int, int, int]]:
        """Each step that a rank has done: step, attempt, pid."""
        file = self.files(name).checkpoints / name / "trial-0" / f"rank-{rank}.done"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(step), int(attempt), int(pid)) for step, attempt, pid in map(str.split, lines)]

    def ranks(self, name: str = "toy") -> list[Process]:
        """The processes of ranks, which are children of the supervisors, which are the trials."""
        supervisors = {process.pid for process in self.trials(name)}
        return [process for process in self.processes(name) if process.parent in supervisors]

    def at_step(self, step: int, rank: int = 0, name: str = "toy") -> int:
        """Waits until a rank has done that step; gives its pid."""
        found = wait_until(
            lambda: next((pid for at, _, pid in reversed(self.done(rank, name)) if at >= step), None), f"step {step} is done"
        )
        return int(found)

    def check(self, status: RunStatus, world_size: int, name: str = "toy") -> None:
        """It succeeded with the right loss, and each rank has done each step; none of a step before the newest saved one."""
        assert status.state is RunState.SUCCEEDED, status.reason
        assert status.best is not None
        assert status.best.values == (loss(world_size),)
        for rank in range(world_size):
            steps = [step for step, _, _ in self.done(rank, name)]
            assert sorted(set(steps)) == list(range(STEPS))
            again = len(steps) - STEPS
            assert again <= len(self.attempts(name)) - 1, "at most the step that was going on when something was killed"

    def failures(self, name: str = "toy") -> list[tuple[int, str | None, bool]]:
        """Of each attempt: the trial, its failure's class, and whether it is tried again."""
        return [(trial, failure, retried) for _, _, trial, _, failure, retried in self.attempts(name)]


@pytest.fixture
def training(study: Study, tmp_path: Path) -> Training:
    made = Training(tmp_path)
    made.handles = study.handles  # so that the fixture ends them
    return made


def log_of(training: Training, attempt: int = 1) -> str:
    return training.files().trial_log(0, attempt).read_text()


@pytest.mark.slow
def test_two_ranks_train_together(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    run = training.submit()
    status = run.wait(100)
    training.check(status, 2)
    assert training.failures() == [(0, None, False)]
    log = log_of(training)
    assert "\nrank 0 of 2 begins" in f"\n{log}"
    assert "[rank 1] rank 1 of 2 begins" in log
    assert log.count("sees GPUs ''") == 2, "ranks without GPUs are not to take those of the machine"
    assert status.progress["step"] == STEPS
    assert status.progress["loss"] == loss(2)
    (recorded,) = training.mlflow_runs()
    steps = [step for step, _ in recorded["history"]["loss"]]
    assert sorted(set(steps)) == list(range(1, STEPS + 1)), "each step is a point of the curve"


@pytest.mark.slow
def test_a_killed_rank_ends_the_attempt_and_the_next_goes_on(training: Training) -> None:
    run = training.submit(**{"params.hold": 1})
    victim = training.at_step(4, rank=1)
    first = training.ranks()
    kill(victim)
    training.check(run.wait(100), 2)
    assert training.failures() == [(0, "crashed", True), (0, None, False)]
    assert not any(alive(process.pid) for process in first), "one rank dies, all end"
    assert "rank 0 of 2 begins with step 0" not in log_of(training, 2)


@pytest.mark.slow
def test_two_nodes_train_together(training: Training) -> None:
    run = training.submit(nodes=2)
    training.check(run.wait(150), 4)
    log = log_of(training)
    assert all(f"rank {rank} of 4 begins with step 0" in log for rank in range(4))
    pids = {pid for rank in range(4) for _, _, pid in training.done(rank)}
    assert len(pids) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "victims"), [(3, "rank"), (0, "rank"), (2, "slot")])
def test_what_is_killed_on_one_node_ends_the_attempt_on_all(training: Training, rank: int, victims: str) -> None:
    run = training.submit(nodes=2, **{"params.hold": rank})
    pid = training.at_step(3, rank=rank)
    everyone = training.processes()
    ranks = training.ranks()
    if victims == "slot":  # the actor above the template above the supervisor above the rank
        parent = {process.pid: process.parent for process in everyone}
        pid = parent[parent[parent[pid]]]
        assert pid in {process.pid for process in training.slot_workers()}
    kill(pid)
    training.check(run.wait(200), 4)
    assert len(ranks) == 4
    assert not any(alive(process.pid) for process in ranks)
    assert training.failures() == [(0, "crashed" if victims == "rank" else "lost", True), (0, None, False)]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_paused_training_goes_on_where_it_was(training: Training, nodes: int) -> None:
    run = training.submit(nodes=nodes, **{"params.pause": 0.2})
    for step in (2, 5):
        training.at_step(step)
        everyone = training.pids()
        run.stop()
        status = run.wait(60)
        assert status.state is RunState.PAUSED, status.reason
        wait_until(lambda pids=everyone: not any(alive(pid) for pid in pids), "nothing of the run is left", timeout=30)
        run.resume()
    training.check(run.wait(100), 2 * nodes)
    assert training.failures() == [(0, "stopped", True), (0, "stopped", True), (0, None, False)]
    for rank in range(2 * nodes):
        assert [step for step, _, _ in training.done(rank)] == list(range(STEPS)), "each step once: a pause saves it"
    assert "with a checkpoint" in training.files().controller_log.read_text()


@pytest.mark.slow
def test_a_killed_controller_takes_its_ranks_with_it_and_a_resumed_one_goes_on(training: Training) -> None:
    run = training.submit(**{"params.hold": 0})
    training.at_step(4)
    everyone = training.pids()
    pid = training.controller()
    assert pid
    kill(pid)
    wait_until(lambda: not any(alive(each) for each in everyone), "everything below the controller is gone too")
    assert run.status().state is RunState.PAUSED
    run.resume()
    training.check(run.wait(100), 2)
    assert training.failures() == [(0, "lost", True), (0, None, False)]


@pytest.mark.slow
def test_a_training_starts_from_the_checkpoint_of_another(training: Training) -> None:
    first: RunHandle = training.submit("first", **{"params.steps": 5})
    assert first.wait(100).state is RunState.SUCCEEDED
    second = training.submit("second", resume="first")
    status = second.wait(100)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert [step for step, _, _ in training.done(0, "second")] == list(range(5, STEPS))
    assert status.best is not None
    assert status.best.values == (loss(2),)


@pytest.mark.slow
def test_the_traceback_of_the_rank_that_failed_is_the_trainings(training: Training) -> None:
    broken = JOB.replace(
        "    for step in range", "    if ctx.rank == 1:\n        raise ValueError('bad shard')\n    for step in range"
    )
    training.write(broken, SPEC)
    status = training.submit().wait(100)
    assert status.state is RunState.FAILED
    assert "rank 1: ValueError: bad shard (train.py:" in status.reason
    assert training.failures() == [(0, "error", False)]
    assert "ValueError: bad shard" in log_of(training)


@pytest.mark.slow
def test_a_training_that_failed_goes_on_from_its_checkpoint_when_it_is_resumed(training: Training) -> None:
    flaw = "        if (step, ctx.attempt) == (5, 1):\n            raise ConnectionError('the store is away')\n"
    training.write(JOB.replace("        value = torch", f"{flaw}        value = torch"), SPEC)
    run = training.submit()
    status = run.wait(100)
    assert (status.state, status.failures) == (RunState.FAILED, {"error": 1}), status.reason
    run.resume()
    status = run.wait(100)
    training.check(status, 2)
    assert training.failures() == [(0, "error", False), (0, None, False)]
    assert [step for step, _, _ in training.done(0)] == list(range(STEPS)), "each step once"
    assert (status.failed, status.failures, status.retried, run.status().retried) == (0, {}, 1, 1)
    assert sorted(one["status"] for one in training.mlflow_runs()) == ["FAILED", "FINISHED"]
