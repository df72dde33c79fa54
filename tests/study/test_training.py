"""Trainings of many ranks on this machine, whatever is killed: they end with the result of an undisturbed one, and no step
that a checkpoint holds is done again.

The job is a small one with real collectives (gloo); `nodes: 2` is two slots of one machine. Not checked here: ranks and
checkpoints by themselves (tests/worker), the jobs of this repository (tests/jobs), pods (tests/e2e).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.study.conftest import Process, Study, alive, kill, wait_until

from trialplane.client.run import RunHandle
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

STEPS = 12

# Saves each step, and writes down each step that a rank has done, with its attempt and its pid. `holds` has the attempts,
# steps and ranks at which a rank is to be killed, `waits` the attempts and steps at which all wait until they are to stop.
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
        if [ctx.attempt, step, ctx.rank] in ctx.params["holds"]:
            threading.Event().wait()  # to be killed while the others wait for it in a collective
        while [ctx.attempt, step] in ctx.params["waits"] and not ctx.stopping:
            time.sleep(0.01)
        value = torch.tensor([float((ctx.rank + 1) * (step + 1)), 0.0])
        distributed.all_reduce(value)
        total += value[0].item()
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
params: {{steps: {STEPS}, holds: [], waits: []}}
ranks: 2
retries: {{lost: 2}}
checkpoints: {{grace: 120}}
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

    def before(self, step: int, attempt: int, world_size: int) -> dict[int, int]:
        """Waits until all ranks of an attempt are at a step that none gets through; gives their pids by rank.

        Each has written down by then what it has done, and that is saved: who kills a rank between the one and the other
        has a step done twice, or never.
        """
        state = self.files().checkpoints / "toy" / "trial-0" / "state"
        pids = {}
        for rank in range(world_size):
            wait_until(
                lambda rank=rank: (step - 1, attempt) in {done[:2] for done in self.done(rank)}, f"rank {rank} is there"
            )
            pids[rank] = self.done(rank)[-1][2]
        wait_until(lambda: state.read_text().startswith(f"{step} "), f"step {step - 1} is saved")
        return pids

    def pause(self, run: RunHandle) -> None:
        """Has the run save itself and end, and waits for that."""
        everyone = self.pids()
        run.stop()
        status = run.wait(600)
        assert status.state is RunState.PAUSED, status.reason
        wait_until(lambda: not any(alive(pid) for pid in everyone), "nothing of the run is left")
        assert "with a checkpoint" in self.files().controller_log.read_text()

    def check(self, status: RunStatus, world_size: int) -> None:
        """It succeeded with the right loss, and each rank has done each step once."""
        assert status.state is RunState.SUCCEEDED, status.reason
        assert status.best is not None
        assert status.best.values == (loss(world_size),)
        for rank in range(world_size):
            assert [step for step, _, _ in self.done(rank)] == list(range(STEPS))

    def failures(self) -> list[tuple[str | None, bool]]:
        """Of each attempt: its failure's class, and whether it is tried again."""
        return [(failure, retried) for *_, failure, retried in self.attempts()]


@pytest.fixture
def training(study: Study, tmp_path: Path) -> Training:
    made = Training(tmp_path)
    made.handles = study.handles  # so that the fixture ends them
    return made


def log_of(training: Training, attempt: int = 1) -> str:
    return training.files().trial_log(0, attempt).read_text()


@pytest.mark.slow
def test_two_ranks_train_together_and_another_training_starts_from_their_checkpoint(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    status = training.submit().wait(600)
    training.check(status, 2)
    assert training.failures() == [(None, False)]
    log = log_of(training)
    assert "\nrank 0 of 2 begins" in f"\n{log}"
    assert "[rank 1] rank 1 of 2 begins" in log
    assert log.count("sees GPUs ''") == 2, "ranks without GPUs are not to take those of the machine"
    assert status.progress.step == STEPS
    assert status.progress.metrics["loss"] == loss(2)
    (recorded,) = training.mlflow_runs()
    steps = [step for step, _ in recorded["history"]["loss"]]
    assert sorted(set(steps)) == list(range(1, STEPS + 1)), "each step is a point of the curve"

    status = training.submit("longer", resume="toy", **{"params.steps": STEPS + 2}).wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert [step for step, _, _ in training.done(0, "longer")] == [STEPS, STEPS + 1]
    assert status.best is not None
    assert status.best.values == (loss(2, STEPS + 2),)


@pytest.mark.slow
def test_a_training_of_one_node_goes_on_whatever_is_killed_or_paused(training: Training) -> None:
    run = training.submit(**{"params.holds": [[1, 3, 1], [2, 6, 0]], "params.waits": [[3, 9]]})
    ranks = training.before(3, 1, 2)
    assert set(ranks.values()) == {process.pid for process in training.ranks()}
    kill(ranks[1])

    training.before(6, 2, 2)
    assert not any(alive(pid) for pid in ranks.values()), "one rank dies, all end"
    everyone = training.pids()
    controller = training.controller()
    assert controller
    kill(controller)
    wait_until(lambda: not any(alive(pid) for pid in everyone), "everything below the controller is gone too")
    assert run.status().state is RunState.PAUSED
    run.resume()

    training.before(9, 3, 2)
    training.pause(run)
    run.resume()

    training.check(run.wait(600), 2)
    assert training.failures() == [("crashed", True), ("lost", True), ("stopped", True), (None, False)]
    for attempt, step in {1: 0, 2: 3, 3: 6, 4: 10}.items():
        assert f"rank 0 of 2 begins with step {step}\n" in log_of(training, attempt), "a pause saves the step that goes on"


@pytest.mark.slow
def test_a_training_of_two_nodes_goes_on_whatever_is_killed_or_paused(training: Training) -> None:
    holds = [[1, 3, 3], [2, 5, 0], [3, 7, 2]]
    run = training.submit(nodes=2, **{"params.holds": holds, "params.waits": [[4, 9]]})
    former: set[int] = set()
    for attempt, step, rank in holds:
        ranks = training.before(step, attempt, 4)
        assert {process.pid for process in training.ranks()} == set(ranks.values())
        assert len(set(ranks.values())) == 4
        assert not any(alive(pid) for pid in former), "what is killed on one node ends the attempt on both"
        former = set(ranks.values())
        victim = ranks[rank]
        if attempt == 3:  # the actor above the template above the supervisor above the rank
            parent = {process.pid: process.parent for process in training.processes()}
            victim = parent[parent[parent[victim]]]
            assert victim in {process.pid for process in training.slot_workers()}
        kill(victim)

    training.before(9, 4, 4)
    training.pause(run)
    run.resume()

    training.check(run.wait(600), 4)
    classes = ["crashed", "crashed", "lost", "stopped"]
    assert training.failures() == [*((failure, True) for failure in classes), (None, False)]
    for attempt, step in {1: 0, 2: 3, 3: 5, 4: 7, 5: 10}.items():
        log = log_of(training, attempt)
        assert all(f"rank {rank} of 4 begins with step {step}\n" in log for rank in range(4))


@pytest.mark.slow
def test_a_training_that_failed_tells_of_the_rank_that_did_and_goes_on_when_it_is_resumed(training: Training) -> None:
    flaw = "        if [ctx.attempt, step, ctx.rank] == [1, 5, 1]:\n            raise ValueError('bad shard')\n"
    training.write(JOB.replace("        value = torch", f"{flaw}        value = torch"), SPEC)
    run = training.submit()
    status = run.wait(600)
    assert (status.state, status.failures) == (RunState.FAILED, {"error": 1}), status.reason
    assert "rank 1: ValueError: bad shard (train.py:" in status.reason
    assert "ValueError: bad shard" in log_of(training)
    run.resume()
    status = run.wait(600)
    training.check(status, 2)
    assert training.failures() == [("error", False), (None, False)]
    assert (status.failed, status.failures, status.retried, run.status().retried) == (0, {}, 1, 1)
    assert sorted(one["status"] for one in training.mlflow_runs()) == ["FAILED", "FINISHED"]
