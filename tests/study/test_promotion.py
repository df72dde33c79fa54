"""Promotion in a real run whose trials, slots and controller are killed: the same rungs, the same promotions, and metrics
that are equal to the last bit to those of trials that were never paused.

Not checked here: the rule by itself (tests/controller/test_promotion.py), the process of a paused trial
(tests/worker/test_saving.py).
"""

from __future__ import annotations

import json

import pytest
from tests.controller.test_promotion import play
from tests.study.conftest import Study

from trialplane.job.search import Ladder
from trialplane.wire import records
from trialplane.wire.progress import StudyProgress
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import RunState, TrialState

TOP = 16
LADDER = Ladder(1, 4, TOP)
CODE = """
import time

import torch
from torch import nn


def run(ctx):
    torch.set_num_threads(1)
    torch.manual_seed(ctx.seed)
    torch.distributed.init_process_group("gloo")
    x = torch.rand(64, 4)
    y = x.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=ctx.params["lr"])
    torch.manual_seed(ctx.seed + ctx.rank)  # for batches and dropout, which differ between ranks
    done = 0
    if state := ctx.restored:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        for batch in torch.randperm(64).split(16):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            loss.backward()
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
            optimizer.step()
        time.sleep(ctx.params["pause"])
        pass_gate()
        torch.distributed.all_reduce(loss.detach())
        ctx.report(epoch, loss=float(loss))
        ctx.save(epoch, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, every=0.1)
    return {"loss": float(loss)}
"""
WALKING = """
import random
import time

import numpy as np


def run(ctx):
    done, walk = 0, ctx.params["lr"]
    if state := ctx.restored:
        done, walk = state["step"], state["walk"]
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        walk += random.random() + np.random.rand()
        time.sleep(ctx.params["pause"])
        pass_gate()
        ctx.report(epoch, loss=walk)
        ctx.save(epoch, {"walk": walk}, every=0.1)
    return {"loss": walk}
"""
SPEC = f"""
kind: hpo
params: {{epochs: {TOP}, pause: 0.0}}
space:
  lr: {{type: float, low: 1.0e-4, high: 1.0e-1, log: true}}
objective: {{metric: loss, direction: minimize}}
sampler: random
seed: 3
retries: {{crashed: 9, lost: 9}}
"""


def segments(study: Study, name: str) -> list[tuple[int, int, int]]:
    """The trial, the rung, and the steps done before of each segment, in the order in which they began."""
    begun = []
    for request, before in study.rows(
        name,
        """
        select one.request, other.outcome from attempts as one left join attempts as other
        on other.run_id = one.run_id and other.number = json_extract(one.request, '$.retry_of') order by one.number
        """,
    ):
        if before is None or not json.loads(before)["retried"]:
            fields = json.loads(request)
            begun.append((fields["trial"], fields["segment"]["rung"], fields["segment"]["done"]))
    return begun


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "trials"), [(1, 16), (2, 6)])
def test_kills_change_neither_promotions_nor_metrics(study: Study, ranks: int, trials: int) -> None:
    """With ranks, a rank that is killed ends the trial's others, and all of them continue from the same step.

    Only these use torch, which every new template imports for seconds.
    """
    study.write_with_gate(CODE if ranks > 1 else WALKING, SPEC)
    preload = ["torch", "torch._dynamo"] if ranks > 1 else ["numpy"]  # optimizers import the second
    fields = {"trials": trials, "ranks": ranks, "resources": {"cpus": ranks}, "preload": preload}
    whole = study.submit("whole", parallel=3 - ranks, **fields)
    assert whole.wait(600).state is RunState.SUCCEEDED
    undisturbed = study.curves("whole")
    assert len(undisturbed) == trials * TOP
    assert all(len(values) == 1 for values in undisturbed.values())

    pruner = {"name": "asha", "promote": True, "max_resource": "epochs"}
    run = study.submit_at_gate("killed", pruner=pruner, parallel=1, **{"params.pause": 0.1}, **fields)
    victims = (
        ["trials", "controller", "slot_workers", "trials", "controller"] if ranks == 1 else ["controller", "trials", "rank"]
    )
    study.kill_between_reports(run, victims, range(2, 6))
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.retried >= len(victims)

    rule, history, _ = play(LADDER, trials, lambda trial, done: min(undisturbed[trial, done]))
    assert segments(study, "killed") == [(stretch.trial, stretch.rung, stretch.done) for stretch in history]
    paused = study.curves("killed")
    assert len(paused) == rule.used_steps, "no step was left out, and none was trained beyond"
    assert paused == {key: undisturbed[key] for key in paused}, "to the last bit"
    assert status.complete >= 1
    assert status.ended_trials == trials
    series = {
        records.from_json(TrialRequest, text).series for (text,) in study.rows("killed", "select request from attempts")
    }
    recorded = study.mlflow_runs("killed")
    assert sorted(int(one["tags"]["trialplane.number"]) for one in recorded) == sorted(series), "one run for each series"
    ends = [one["tags"]["trialplane.state"] for one in recorded]
    assert (ends.count("COMPLETE"), ends.count("PRUNED")) == (status.complete, status.pruned)
    assert set(ends) <= {"COMPLETE", "PRUNED", "LOST"}
    left = {place.name for place in (study.files("killed").checkpoints / "killed").iterdir()}
    complete = {f"trial-{row.trial}" for row in run.rows() if row.state.value == "COMPLETE"}
    assert left == complete, "the checkpoints of the others are gone"


@pytest.mark.slow
def test_kills_change_nothing_in_the_steps_of_a_budget(study: Study) -> None:
    study.write_with_gate(WALKING, SPEC)
    pruner = {"name": "asha", "promote": True, "max_resource": "epochs", "min_resource": 4}
    fields = {"pruner": pruner, "budget": {"steps": 80}, "params.pause": 0.1}
    run = study.submit_at_gate("budget", trials=200, parallel=2, preload=["numpy"], **fields)
    victims = ["trials", "controller", "slot_workers", "trials"]
    study.kill_between_reports(run, victims, range(2, 6))
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert "the budget of 80 steps is used" in status.reason
    assert status.retried >= len(victims)
    progress = status.progress
    assert isinstance(progress, StudyProgress)
    assert len(study.curves("budget")) == progress.steps, "each step is trained once, or again after a loss"
    assert 80 - TOP < progress.steps <= 80
    assert status.complete >= 1


@pytest.mark.slow
def test_a_study_that_saves_no_checkpoints_fails_with_its_first_trial_at_a_rung(study: Study) -> None:
    """Its code only names them, so that it is not refused before."""
    code = """
def run(ctx):
    print(ctx.checkpoints)
    for epoch in range(1, ctx.params["epochs"] + 1):
        ctx.report(epoch, loss=ctx.params["lr"])
    return {"loss": ctx.params["lr"]}
"""
    study.write(code, SPEC)
    pruner = {"name": "asha", "promote": True, "max_resource": "epochs", "min_resource": 3}
    run = study.submit("unsaved", pruner=pruner, trials=50, parallel=2)
    status = run.wait(600)
    assert (status.state, run.exit_code) == (RunState.FAILED, RunState.FAILED.exit_code)
    assert "call ctx.save(step, state) after each ctx.report" in status.reason
    assert len(study.curves("unsaved")) <= 2 * (3 + 1), "a trial for each slot"


FAILING = """
from pathlib import Path


def run(ctx):
    done = ctx.restored["done"] if ctx.restored else 0
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        if epoch == 3 and not Path("MENDED").exists():
            raise OSError("no space left")
        with open("LINES", "a") as file:
            file.write(f"{ctx.trial} {epoch}\\n")
        ctx.report(epoch, loss=ctx.params["lr"] + 1 / epoch)
        ctx.save(epoch, {"done": epoch}, every=0)
    return {"loss": ctx.params["lr"]}
"""


@pytest.mark.slow
def test_a_promoted_trial_that_failed_can_be_tried_again(study: Study) -> None:
    """Its checkpoints were removed when it failed."""
    lines, mended = study.job.parent / "lines", study.job.parent / "mended"
    study.write(FAILING.replace("LINES", str(lines)).replace("MENDED", str(mended)), SPEC)
    pruner = {"name": "asha", "promote": True, "max_resource": "epochs"}
    run = study.submit("failing", pruner=pruner, trials=8, parallel=1, **{"budget.failed_alike": None})
    assert run.wait(600).failures == {"error": 2}
    failed = {row.trial for row in run.rows() if row.failure}
    lines.unlink()
    mended.touch()
    assert run.retry_failed() == 2
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert (status.complete, status.pruned, status.retried) == (1, 7, 2)
    (best,) = (row.trial for row in run.rows() if row.state is TrialState.COMPLETE)
    trained = [tuple(map(int, line.split())) for line in lines.read_text().splitlines()]
    whole = [(trial, epoch) for trial in failed for epoch in range(1, 5)] + [(best, epoch) for epoch in range(5, TOP + 1)]
    assert sorted(trained) == sorted(whole)
