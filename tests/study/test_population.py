"""A population in a real run whose trials, slots and controller are killed: the same lineage, the same parameters, and
metrics that are equal to the last bit to those of a run that was left alone.

Not checked here: the rule by itself (tests/controller/test_population.py), the process of a member
(tests/worker/test_population.py).
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from tests.study.conftest import Study, wait_until

from trialplane.pages import lineage
from trialplane.training.steps import record
from trialplane.wire.states import RunState

CODE = """
import random
import time

import numpy  # so that its generator, which is saved too, is seeded


def run(ctx):
    done, weights, walk, momentum = 0, [ctx.params["x"]], 0.0, 0.0
    if state := ctx.restored:
        done, weights, walk = state["step"], list(state["weights"]), state["walk"]
        if not ctx.is_restart:
            momentum = state["momentum"]
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        momentum = 0.5 * momentum + random.random()
        walk += momentum
        weights.append(ctx.params["x"])
        time.sleep(ctx.params["pause"])
        pass_gate()
        loss = sum((x - 0.3) ** 2 for x in weights) + walk / 100
        ctx.report(epoch, loss=loss)
        ctx.save(epoch, {"weights": weights, "walk": walk, "momentum": momentum}, every=ctx.params["every"])
    return {"loss": loss, "weights": weights}
"""
SPEC = """
kind: hpo
params: {epochs: 8, pause: 0.0, every: 1000}
space:
  x: {type: float, low: 0.0, high: 1.0}
objective: {metric: loss, direction: minimize}
population: {interval: 2, steps: epochs, exploit: tournament, growth: 2, patience: 1}
sampler: random
trials: 6
seed: 3
retries: {crashed: 9, lost: 9}
"""


def segments(study: Study, name: str) -> dict[tuple[int, int], tuple[Any, float, bool]]:
    """By trial and steps done before: what a segment continues from, its parameter, and whether it is a restart."""
    found: dict[tuple[int, int], tuple[Any, float, bool]] = {}
    for (text,) in study.rows(name, "select request from attempts order by number"):
        fields = json.loads(text)
        parent = fields["segment"]["parent"]
        source = None if parent is None else (parent["trial"], parent["folder"])
        what = source, fields["params"]["x"], fields["segment"]["restart"]
        key = fields["trial"], fields["segment"]["done"]
        assert found.setdefault(key, what) == what, "a retry changes nothing"
    return found


@pytest.mark.slow
def test_kills_change_neither_lineage_nor_metrics(study: Study) -> None:
    study.write_with_gate(CODE, SPEC)
    alone = study.submit("alone", parallel=2)
    assert alone.wait(600).state is RunState.SUCCEEDED
    run = study.submit_at_gate("killed", parallel=2, **{"params.pause": 0.1, "params.every": 0.1})
    victims = ["trials", "controller", "trials", "slot_workers", "controller"]
    study.kill_between_reports(run, victims, range(3, 7))
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.retried >= len(victims)
    assert (status.complete, status.ended_trials) == (6, 6)

    lineages = segments(study, "alone")
    assert segments(study, "killed") == lineages
    assert len(lineages) == 6 * 4
    assert any(parent is not None and parent[0] != trial for (trial, _), (parent, _, _) in lineages.items())
    restarts = [done for (_, done), (_, _, is_restart) in lineages.items() if is_restart]
    assert restarts == [4] * 5, "losses rise with each step, so the second comparison is no better than the first"
    killed, undisturbed = study.curves("killed"), study.curves("alone")
    assert all(len(values) == 1 for values in undisturbed.values())
    assert {(trial, step) for trial in range(6) for step in (2, 4, 6, 8)} <= killed.keys(), "written with the ends"
    assert killed == {key: undisturbed[key] for key in killed}, "to the last bit"
    results = [{row.trial: (row.metrics, row.returned, row.params) for row in each.rows()} for each in (alone, run)]
    assert results[0] == results[1]
    best = run.front()[0]
    schedule = {done: segment.params["x"] for segment in lineage.schedule(run.attempts(), best) for done in [segment.done]}
    steps = [max(done for done in schedule if done < epoch) if epoch else 0 for epoch in range(9)]
    assert best.returned["weights"] == [schedule[done] for done in steps], "the schedule is what its state was trained with"

    for name in ("alone", "killed"):
        folders = {folder.name: folder for folder in (study.files(name).checkpoints / name).iterdir()}
        assert folders.keys() == {f"trial-{trial}" for trial in range(6)}, "the checkpoints of the intervals are gone"
        newest = [max(record.sort_key(path.name) for path in folder.glob("step-*"))[0] for folder in folders.values()]
        assert newest == [8] * 6, "those of the last step stay"
    taken = [one["tags"] for one in study.mlflow_runs("killed") if "trialplane.parent_trial" in one["tags"]]
    assert taken
    numbers = {one["tags"]["trialplane.number"] for one in study.mlflow_runs("killed")}
    assert {tags["trialplane.parent"] for tags in taken} <= numbers

    best = alone.front()[0]
    entries = [
        {"step": segment.done, "trial": segment.trial, "params": dict(segment.params), "restart": segment.restart}
        for segment in lineage.schedule(alone.attempts(), best)
    ]
    changes = {"schedule": entries, "exploit": "truncation", "growth": 1, "patience": 3}
    fields = {f"population.{name}": value for name, value in changes.items()}
    replay = study.submit("replay", trials=1, parallel=1, **fields)
    assert replay.wait(600).state is RunState.SUCCEEDED
    (row,) = replay.rows()
    assert (row.metrics, row.returned) == (best.metrics, best.returned)
    assert last_parent(study, "replay", row.number)["digest"] == last_parent(study, "alone", best.number)["digest"]
    assert last_checkpoint(study, "replay", row.number) == last_checkpoint(study, "alone", best.number), "the same end state"
    assert len({last_checkpoint(study, "alone", row.number) for row in alone.rows()}) == 6, "each member has another one"


DONATING = """
import time
from pathlib import Path


def run(ctx):
    done = ctx.restored["step"] if ctx.restored else 0
    gate = Path(ctx.params["gate"])
    while ctx.trial == 1 and done == 2 and not gate.exists():
        gate.with_name("waits").touch()
        time.sleep(0.01)
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        loss = ctx.trial + 1 / epoch
        ctx.report(epoch, loss=loss)
        ctx.save(epoch, {"step": epoch})
    return {"loss": loss}
"""


@pytest.mark.slow
def test_a_member_whose_donor_has_lost_its_checkpoint_fails_and_the_others_go_on(study: Study) -> None:
    """The worst member, 3, is to take over the state of the best one, 0, which has trained on by then."""
    gate = study.job.parent / "gate"
    spec = SPEC.replace("every: 1000}", f"gate: {gate}}}").replace(", exploit: tournament, growth: 2, patience: 1", "")
    study.write(DONATING, spec)
    run = study.submit("donating", parallel=1, trials=4, retries={"lost": 1}, **{"params.epochs": 6})
    wait_until((gate.parent / "waits").exists, "member 0 has trained on, and member 1 waits")
    run.pause(now=True)
    folder = study.files("donating").checkpoints / "donating" / "trial-0-step-2"
    shutil.rmtree(folder)
    gate.touch()
    run.resume()
    status = run.wait(600)
    assert (status.state, status.complete, dict(status.failures)) == (RunState.SUCCEEDED, 3, {"lost": 1}), status.reason
    (row,) = (row for row in run.rows() if row.failure)
    text = f"trial 3 was to continue after step 2, and trial 0's checkpoint at {folder} is missing"
    assert (row.trial, text in row.message) == (3, True), row.message
    steps = {trial: max(step for other, step in study.curves("donating") if other == trial) for trial in range(4)}
    assert steps == {0: 6, 1: 6, 2: 6, 3: 2}, "it has not trained on from its own state"


def last_parent(study: Study, name: str, number: int) -> dict[str, Any]:
    """The checkpoint that an attempt continued from."""
    ((text,),) = study.rows(name, f"select request from attempts where number = {number}")
    parent: dict[str, Any] = json.loads(text)["segment"]["parent"]
    return parent


def last_checkpoint(study: Study, name: str, number: int) -> str:
    """The digest of the checkpoints that an attempt has left at its end."""
    ((text,),) = study.rows(name, f"select outcome from attempts where number = {number}")
    digest: str = json.loads(text)["checkpoints"]["digest"]
    assert digest
    return digest
