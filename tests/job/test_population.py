"""A population in a job file: the steps at which members are compared, and what is refused, with the line.

Not checked here: the rule (tests/controller/test_population.py).
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.job import document, kinds, load, schema
from trialplane.job.population import Intervals

HEAD = """\
kind: hpo
params: {epochs: 64, name: x}
space:
  lr: {type: float, low: 0.1, high: 2}
  layers: {type: int, low: 1, high: 2}
trials: 4
"""
ONE = "objective: {metric: f1, direction: maximize}\n"
SEVERAL = "objectives: [{metric: f1, direction: maximize}, {metric: loss, direction: minimize}]\n"
SAVES = "def run(ctx):\n    state = ctx.restored\n"


@pytest.mark.parametrize(
    ("fields", "rungs"),
    [
        ("interval: 20, steps: epochs", (20, 40, 60)),
        ("interval: 8, steps: 24, exploit: tournament, quorum: 0, resample: 0", (8, 16)),
        ("interval: 20, steps: epochs, growth: 2, patience: 1", (20, 40, 60)),
        ("interval: 32, steps: 33, share: 0.5, factors: [2], explore: {lr: {factors: [3]}}, fixed: [layers]", (32,)),
    ],
)
def test_members_are_paused_at_each_interval(folder: Path, fields: str, rungs: tuple[int, ...]) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text(HEAD + ONE + f"population: {{{fields}}}\n")
    job = load.load_job(folder)
    assert isinstance(job, kinds.Study)
    ladder = job.search.ladder
    assert isinstance(ladder, Intervals)
    assert ladder.rungs() == rungs
    for done in range(ladder.top):
        assert ladder.next_rung(done) == next((rung for rung in rungs if rung > done), 0)
    assert job.keeps_checkpoints
    assert kinds.read(job.model_dump_json()) == job
    assert jsonschema.Draft202012Validator(schema.json_schema()).is_valid(document.read(folder / "job.yaml").data)


def test_a_parameter_may_have_factors_of_its_own(folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    own = "explore: {lr: {factors: [3]}, layers: {resample: 1}}"
    (folder / "job.yaml").write_text(HEAD + ONE + f"population: {{interval: 8, steps: 64, {own}}}\n")
    job = load.load_job(folder)
    population = job.search.population
    assert population is not None
    assert population.exploration("lr") == ((3.0,), 0.25)
    assert population.exploration("layers") == ((0.8, 1.25), 1.0)


LATER = "step: 8, params: {lr: 1, layers: 1}"
REPLAY = "population: {{interval: 8, steps: epochs, schedule: [{{step: 0, params: {{lr: 1, layers: 1}}}}, {{{}}}], {}}}"
GOOD = "population: {interval: 8, steps: epochs}\n"


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("population: {steps: epochs}", "population.interval", "is missing"),
        ("population: {interval: 0, steps: epochs}", "population.interval", "0"),
        ("population: {interval: 8, steps: epoch}", "population.steps", "did you mean epochs"),
        ("population: {interval: 8, steps: lr}", "population.steps", "lr is searched"),
        ("population: {interval: 8, steps: name}", "params.name", "must be a whole number over 0, not 'x'"),
        ("population: {interval: 64, steps: epochs}", "population.interval", "must be under 64"),
        ("population: {interval: 1, steps: 5000}", "population.interval", "makes 4999 decisions of 5000 steps"),
        ("population: {interval: 8, steps: 64, quorum: 2}", "population.quorum", "1"),
        ("population: {interval: 8, steps: 64, growth: 0}", "population.growth", "0"),
        ("population: {interval: 8, steps: 64, growth: 1.5}", "population.growth", "1.5"),
        ("population: {interval: 8, steps: 64, growth: 2, quorum: 0.5}", "population.quorum", "must be 1 with growth"),
        ("population: {interval: 8, steps: 64, patience: 2}", "population.patience", "has no effect without restarts"),
        ("population: {interval: 8, steps: 64, share: 0.6}", "population.share", "0.5"),
        ("population: {interval: 8, steps: 64, factors: []}", "population.factors", "1"),
        ("population: {interval: 8, steps: 64, explore: {rl: {}}}", "population.explore.rl", "did you mean lr"),
        ("population: {interval: 8, steps: 64, fixed: [layer]}", "population.fixed.0", "did you mean layers"),
        (
            "population: {interval: 8, steps: 64, fixed: [lr], explore: {lr: {}}}",
            "population.explore.lr",
            "is among fixed as well",
        ),
        (
            "population: {interval: 8, steps: 64, schedule: [{step: 8, params: {lr: 1, layers: 1}}]}",
            "population.schedule.0.step",
            "must be 0",
        ),
        (
            "population: {interval: 8, steps: 64, schedule: [{step: 0, params: {lr: 1, layers: 1}}, "
            "{step: 9, params: {lr: 1, layers: 1}}]}",
            "population.schedule.1.step",
            "must be a multiple of interval (8)",
        ),
        (
            "population: {interval: 8, steps: 64, schedule: [{step: 0, params: {lr: 3, layers: 1}}]}",
            "population.schedule.0.params.lr",
            "3 is outside of the space",
        ),
        (
            "population: {interval: 8, steps: 64, schedule: [{step: 0, params: {lr: 1}}]}",
            "population.schedule.0.params",
            "lacks layers",
        ),
        (
            REPLAY.format("step: 64, params: {lr: 1, layers: 1}", ""),
            "population.schedule.1.step",
            "64 must be under 64, the steps of a trial",
        ),
        (REPLAY.format(LATER, "exploit: tournament"), "population.exploit", "has no effect beside schedule"),
        (REPLAY.format(LATER, "share: 0.5"), "population.share", "has no effect beside schedule"),
        (REPLAY.format(LATER, "factors: [2]"), "population.factors", "has no effect beside schedule"),
        (REPLAY.format(LATER, "resample: 0"), "population.resample", "has no effect beside schedule"),
        (REPLAY.format(LATER, "explore: {lr: {resample: 0}}"), "population.explore", "has no effect beside schedule"),
        (REPLAY.format(LATER, "fixed: [lr]"), "population.fixed", "has no effect beside schedule"),
        (REPLAY.format(LATER, "quorum: 0"), "population.quorum", "has no effect beside schedule"),
        (REPLAY.format(LATER, "growth: 2"), "population.growth", "has no effect beside schedule"),
        (REPLAY.format(LATER, "") + "\nenqueue: [{lr: 1}]", "enqueue", "stands beside population.schedule"),
        (GOOD + "constraints: [{metric: loss, max: 1}]", "constraints", "members are compared at every interval"),
        (GOOD + "pruner: median", "pruner", "drop it"),
        (GOOD + "pruner: {name: asha, promote: true, max_resource: 64}", "pruner", "drop it"),
        (GOOD + "budget: {steps: 100}", "budget.steps", "is for pruner: {name: asha, promote: true"),
        (GOOD + "start: {run: monday, trial: 2}", "start", "from which population counts"),
        (GOOD + "reuse: true", "reuse", "members change their parameters"),
        (GOOD + "duplicates: redraw", "duplicates", "members change their parameters"),
        (GOOD + "sampler: {tune: ray.tune.search.hyperopt:HyperOptSearch}", "sampler.tune", "use random"),
    ],
)
def test_what_is_refused(folder: Path, text: str, field: str, part: str) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text(HEAD + ONE + text + "\n")
    ((place, *_, message),) = found(folder)
    assert (place, part in message) == (field, True), message


def test_members_are_compared_by_one_objective_and_are_several(folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text(HEAD + SEVERAL + GOOD)
    ((place, *_, message),) = found(folder)
    assert (place, "compares members by one objective" in message) == ("population", True), message
    (folder / "job.yaml").write_text(HEAD.replace("trials: 4", "trials: 1") + ONE + GOOD)
    ((place, *_, message),) = found(folder)
    assert (place, "at least 2 members" in message) == ("trials", True), message


@pytest.mark.parametrize(
    ("code", "text", "part"),
    [
        ("def run(ctx):\n    ctx.report(1, f1=1.0)\n", "", "the job's code reads none"),
        (SAVES, "", ""),
        ("from trialplane.integrations import xgboost\ndef run(ctx): ...\n", "", ""),
        ("print('f1: 1')\n", "script: train.py\n", "the job's code reads none"),
        ("print('f1: 1')\n", "script: train.py\narguments: [--out, '{checkpoints}']\n", "of another trial"),
        ("import trialplane\ntrialplane.checkpoints()\n", "script: train.py\n", ""),
        ("print('f1: 1')\n", "command: [python, train.py]\n", "of another trial"),
    ],
)
def test_code_that_cannot_continue_from_a_checkpoint_is_refused(folder: Path, code: str, text: str, part: str) -> None:
    (folder / "train.py").write_text(code)
    (folder / "job.yaml").write_text(HEAD + ONE + text + GOOD)
    issues = [message for place, *_, message in found(folder) if place == "population"] if part else []
    assert bool(issues) == bool(part)
    assert all(part in message for message in issues)
    if not part:
        assert load.load_job(folder).search.population is not None
