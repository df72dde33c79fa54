"""A real run whose trials continue earlier ones: their metrics are those of trials that were never interrupted, to the last
bit, and no step is trained twice, also if trials and controller are killed. A study that is repeated trains no step.

Not checked here: which checkpoints are selected (tests/client/test_earlier_runs.py, tests/plan/test_earlier.py).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.study.conftest import Study, kill, wait_until
from tests.study.test_promotion import segments

from trialplane import errors
from trialplane.wire.states import RunState

HELD = 2  # step before which trials wait forever if there is a FIFO, HOLD
CODE = """
import os
import random
import time

import numpy  # so that its generator, which is saved too, is seeded


def run(ctx):
    walk = list(state["walk"]) if (state := ctx.restored) else []
    for epoch in range(len(walk), ctx.params["epochs"]):
        if epoch == HELD and os.path.exists("HOLD"):
            open("HOLD").read()
        with open("LINES", "a") as file:
            file.write(f"{ctx.trial} {epoch}\\n")
        walk.append(random.random() + float(numpy.random.rand()) + ctx.params["x"])
        time.sleep(ctx.params["pause"])
        pass_gate()
        ctx.report(epoch, loss=sum(walk))
        ctx.save(epoch, {"walk": walk}, every=0)
    return {"loss": sum(walk), "seed": ctx.seed}
""".replace("HELD", str(HELD))
SPEC = """
kind: hpo
params: {epochs: 8, pause: 0.1}
space:
  x: {type: float, low: 0.0, high: 1.0}
objective: {metric: loss, direction: minimize}
sampler: random
trials: 4
seed: 3
parallel: 2
retries: {crashed: 9, lost: 9}
"""
TRIALS, SHORT, WHOLE = 4, 3, 8
GONE = 2  # trial whose checkpoint is removed


def undisturbed_run(study: Study, **fields: Any) -> tuple[Path, dict, dict]:
    """The path of HOLD, and the curves and objective values of a run of all steps, which is deleted."""
    hold = study.job.parent / "HOLD"
    study.write_with_gate(CODE.replace("HOLD", str(hold)).replace("LINES", str(hold.with_name("lines"))), SPEC)
    run = study.submit("whole", **fields)
    assert run.wait(600).state is RunState.SUCCEEDED
    curves, values = study.curves("whole"), {row.trial: row.values for row in run.rows()}
    run.delete()  # or it would answer
    return hold, curves, values


def release(hold: Path) -> None:
    """Let trials go on that wait at HOLD; later ones do not wait."""
    writer = os.open(hold, os.O_RDWR)
    regular_file = hold.with_name("regular")
    regular_file.touch()
    regular_file.replace(hold)  # a trial may have seen that there is a HOLD, and open it only now
    os.close(writer)


@pytest.mark.services
def test_an_answered_trial_names_its_origin_in_mlflow(study: Study) -> None:
    for name, reuse in (("first", False), ("second", True)):
        status = study.submit(name, trials=2, reuse=reuse).wait(600)
        assert (status.state, status.complete) == (RunState.SUCCEEDED, 2), status.reason
        assert status.progress.answered == (2 if reuse else 0)
    tags = [one["tags"] for one in study.mlflow_runs("second")]
    answers = {one["trialplane.trial"]: one["trialplane.answered_by"] for one in tags}
    assert answers == {"0": "first:0", "1": "first:1"}
    assert not any("trialplane.answered_by" in one["tags"] for one in study.mlflow_runs("first"))


@pytest.mark.slow
def test_trials_continue_shorter_ones(study: Study) -> None:
    _, undisturbed, losses = undisturbed_run(study)
    short = study.submit("short", **{"params.epochs": SHORT})
    assert short.wait(600).state is RunState.SUCCEEDED
    seeds = {row.trial: row.metrics["seed"] for row in short.rows()}
    shutil.rmtree(study.files("short").checkpoints / "short" / f"trial-{GONE}")

    run = study.submit("long", reuse={"steps": "epochs"}, trials=TRIALS + 1)
    with pytest.raises(errors.InputError, match="long may still start trials from checkpoints of short"):
        short.delete()
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    curves, new_trial = study.curves("long"), TRIALS
    expected = {key: values for key, values in undisturbed.items() if key[1] >= SHORT or key[0] == GONE}
    assert {key: values for key, values in curves.items() if key[0] != new_trial} == expected, "to the last bit"
    assert [step for trial, step in sorted(curves) if trial == new_trial] == list(range(WHOLE))
    assert {row.trial: row.values for row in run.rows() if row.trial != new_trial} == losses
    assert {row.trial: row.metrics["seed"] for row in run.rows() if row.trial != new_trial} == seeds
    assert (status.progress.begun, status.progress.spared_steps) == (TRIALS - 1, (TRIALS - 1) * SHORT)
    messages = {row.trial: row.message for row in run.rows()}
    assert messages[1] == f"continued from step {SHORT - 1} of trial 1 of short"
    assert messages[new_trial] == ""
    missing = f"the checkpoint of trial {GONE} of short is missing or was changed, so trial {GONE} has begun at step 0"
    assert messages[GONE] == missing
    assert missing in status.warnings
    tags = {one["tags"]["trialplane.trial"]: one["tags"] for one in study.mlflow_runs("long")}
    assert (tags["1"]["trialplane.begun_from"], tags["1"]["trialplane.spared_steps"]) == ("short:1", str(SHORT))
    assert "trialplane.begun_from" not in tags[str(GONE)]
    short.delete()  # the other run has ended


@pytest.mark.slow
def test_kills_change_neither_beginnings_nor_metrics(study: Study) -> None:
    hold, undisturbed, losses = undisturbed_run(study)
    lines = hold.with_name("lines")
    lines.unlink()
    os.mkfifo(hold)
    stopped = study.submit("stopped", parallel=TRIALS)
    saved = f"stopped/trial-*/step-{HELD - 1:010}/COMPLETE"
    wait_until(lambda: len(list(study.files("stopped").checkpoints.glob(saved))) == TRIALS, "all trials have saved a step")
    stopped.cancel()
    trained = study.curves("stopped")

    run = study.submit_at_gate("killed", reuse=True)
    wait_until(lambda: any(kill(trial.pid) for trial in study.trials("killed")), "a trial before the FIFO is killed")
    release(hold)
    victims = ["trials", "controller", "trials", "slot_workers", "controller"]
    study.kill_between_reports(run, victims, range(2, 5))
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.retried >= 1 + len(victims)
    curves = study.curves("killed")
    assert curves == {key: undisturbed[key] for key in curves}, "to the last bit"
    steps = [line for line in lines.read_text().splitlines() if int(line.split()[1]) < HELD]
    assert sorted(steps) == sorted(f"{trial} {step}" for trial, step in trained), "none is trained twice"
    assert {row.trial: row.values for row in run.rows()} == losses


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
def test_paused_trials_of_a_stopped_study_are_continued(study: Study, is_gone: bool) -> None:
    lines = study.job.parent / "lines"
    fields = {
        "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
        "trials": 8,
        "parallel": 1,
    }
    hold, undisturbed, values = undisturbed_run(study, **fields)
    trained = lines.read_text().splitlines()
    lines.unlink()

    os.mkfifo(hold)
    first = study.submit("first", **fields)
    saved = f"first/trial-*/step-{HELD - 1:010}/COMPLETE"
    wait_until(lambda: list(study.files("first").checkpoints.glob(saved)), "a promoted trial is between two rungs")
    first.cancel()
    hold.unlink()
    [checkpoint] = study.files("first").checkpoints.glob(saved)
    if is_gone:
        shutil.rmtree(checkpoint.parents[1])

    second = study.submit("second", reuse=True, **fields)
    status = second.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert study.curves("second") == undisturbed, "to the last bit"
    assert {row.trial: row.values for row in second.rows()} == values
    promoted = int(checkpoint.parents[1].name.removeprefix("trial-"))
    again = [f"{promoted} {step}" for step in range(HELD)] if is_gone else []
    assert sorted(lines.read_text().splitlines()) == sorted([*trained, *again]), "no other step is trained twice"
    missing = (
        f"the checkpoint of trial {promoted} of first is missing or was changed, so trial {promoted} has begun at step 0"
    )
    assert (missing in status.warnings) == is_gone


COUNTED = """
def run(ctx):
    done = ctx.restored["done"] if ctx.restored else 0
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        with open("LINES", "a") as file:
            file.write("one step\\n")
        ctx.report(epoch, loss=ctx.params["x"] + 1 / epoch)
        ctx.save(epoch, {"done": epoch}, every=0)
    return {"loss": ctx.params["x"]}
"""
PRUNERS = [
    {"name": "asha", "promote": True, "max_resource": "epochs"},
    {"name": "successive_halving", "min_resource": 1, "reduction_factor": 4},
]


@pytest.mark.slow
@pytest.mark.parametrize("pruner", PRUNERS, ids=["promotes", "stops"])
def test_a_repeated_study_trains_no_step(study: Study, pruner: dict) -> None:
    lines = study.job.parent / "lines"
    study.write(COUNTED.replace("LINES", str(lines)), SPEC)
    fields = {"pruner": pruner, "sampler": "tpe", "trials": 16}
    first = study.submit("first", **fields)
    assert first.wait(600).state is RunState.SUCCEEDED
    trained = lines.read_text()
    assert trained.count("step") == len(study.curves("first"))

    second = study.submit("second", reuse=True, **fields)
    status = second.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert lines.read_text() == trained
    assert status.progress.answered == 16
    assert study.curves("second") == study.curves("first")
    ends = [[(row.trial, row.params, row.state, row.values, row.step) for row in run.rows()] for run in (first, second)]
    assert ends[0] == ends[1]
    if pruner.get("promote"):
        assert segments(study, "second") == segments(study, "first")
    for name in ("first", "second"):
        recorded = {int(one["tags"]["trialplane.trial"]): one for one in study.mlflow_runs(name)}
        assert {trial: one["tags"]["trialplane.state"] for trial, one in recorded.items()} == {
            trial: state.value for trial, _, state, *_ in ends[0]
        }
        points = {(trial, step) for trial, one in recorded.items() for step, _ in one["history"]["loss"]}
        assert points == study.curves("first").keys()
