"""Promotion in a job file: the rungs that follow from it, and what is refused, with the line.

Not checked here: the rule (tests/controller/test_promotion.py).
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.job import document, kinds, load, schema
from trialplane.job.search import Ladder

HEAD = """\
kind: hpo
params: {epochs: 64, name: x}
space: {a: {type: int, low: 1, high: 2}}
trials: 2
"""
ONE = "objective: {metric: f1, direction: maximize}\n"
SEVERAL = "objectives: [{metric: f1, direction: maximize}, {metric: loss, direction: minimize}]\n"
SAVES_NOTHING = "def run(ctx):\n    ctx.report(1, f1=1.0)\n"
SAVES = "def run(ctx):\n    state = ctx.restored\n"


@pytest.mark.parametrize("objectives", [ONE, SEVERAL], ids=["one objective", "several"])
@pytest.mark.parametrize(
    ("options", "ladder", "rungs"),
    [
        ("max_resource: epochs", Ladder(1, 4, 64), (1, 4, 16)),
        ("max_resource: 65", Ladder(1, 4, 65), (1, 4, 16, 64)),
        ("max_resource: 30, min_resource: 2, reduction_factor: 3, brackets: 2", Ladder(2, 3, 30, 2), (2, 6, 18)),
        ("max_resource: 1", Ladder(1, 4, 1), ()),
        ("max_resource: 64, max: null", Ladder(1, 4, 64), (1, 4, 16)),
    ],
)
def test_rungs(folder: Path, objectives: str, options: str, ladder: Ladder, rungs: tuple[int, ...]) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text(HEAD + objectives + f"pruner: {{name: asha, promote: true, {options}}}\n")
    job = load.load_job(folder)
    assert isinstance(job, kinds.Study)
    assert job.search.ladder == ladder
    assert ladder.rungs() == rungs
    assert job.keeps_checkpoints
    assert kinds.read(job.model_dump_json()) == job
    assert jsonschema.Draft202012Validator(schema.json_schema()).is_valid(document.read(folder / "job.yaml").data)


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("pruner: {name: asha, promote: true}", "pruner.max_resource", "is missing: the number of steps of a whole trial"),
        ("pruner: {name: asha, max_resource: 9}", "pruner.max_resource", "is for promote: true"),
        ("pruner: {name: asha, brackets: 2}", "pruner.brackets", "is for promote: true"),
        ("pruner: {name: asha, max: auto}", "pruner.max", "is for promote: true"),
        ("pruner: {name: asha, promote: true, max_resource: 9, max: 4}", "pruner.max", "4 is not one of auto"),
        ("pruner: {name: asha, promote: true, max_resource: 9, max: auto, brackets: 2}", "pruner.max", "of one bracket"),
        ("pruner: {name: asha, promote: true, max_resource: epoch}", "pruner.max_resource", "did you mean epochs"),
        ("pruner: {name: asha, promote: true, max_resource: a}", "pruner.max_resource", "a is searched"),
        ("pruner: {name: asha, promote: true, max_resource: name}", "params.name", "must be a whole number over 0, not 'x'"),
        ("pruner: {name: patient, patience: 1, wrapped_pruner: asha}", "pruner.wrapped_pruner", "asha cannot be wrapped"),
        (
            "pruner: {name: asha, promote: true, max_resource: 9}\nstart: {run: monday, trial: 2}",
            "start",
            "begins after step 0, from which pruner: {promote: true} counts",
        ),
        ("budget: {steps: 100}", "budget.steps", "is for pruner: {name: asha, promote: true"),
        (
            "pruner: {name: asha, promote: true, max_resource: epochs}\nbudget: {steps: 63}",
            "budget.steps",
            "63 is not enough for one whole trial of 64 steps",
        ),
    ],
)
def test_what_is_refused(folder: Path, text: str, field: str, part: str) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text(HEAD + ONE + text + "\n")
    ((place, *_, message),) = found(folder)
    assert (place, part in message) == (field, True), message


def test_the_top_rung_is_raised_by_one_value_only(folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    auto = "pruner: {name: asha, promote: true, max_resource: epochs, max: auto}\n"
    (folder / "job.yaml").write_text(HEAD + ONE + auto)
    assert load.load_job(folder).search.ladder == Ladder(1, 4, 64, is_auto=True)
    (folder / "job.yaml").write_text(HEAD + SEVERAL + auto)
    ((place, *_, message),) = found(folder)
    assert (place, "there are several objectives" in message) == ("pruner.max", True), message


@pytest.mark.parametrize(
    ("code", "text", "refused"),
    [
        (SAVES_NOTHING, "", True),
        (f"# checkpoints are for later\n{SAVES_NOTHING}", "", True),
        (f"{SAVES_NOTHING}    'restored from a checkpoint'\n    ctx.model(gradient_checkpointing=True)\n", "", True),
        (SAVES, "", False),
        (f"{SAVES_NOTHING}    save(f'{{ctx.trial}}/model.ckpt')\n", "", False),
        (f"{SAVES_NOTHING}    Trainer(save_checkpoint=True)\n", "", False),
        ("from trialplane.integrations import xgboost\ndef run(ctx): ...\n", "", False),
        ("print('f1: 1')\n", "script: train.py\n", True),
        ("print('f1: 1')\n", "script: train.py\narguments: [--out, '{checkpoints}']\n", False),
        ("print('f1: 1')\n", "command: [python, train.py]\narguments: flags\n", False),
    ],
)
def test_code_that_saves_no_checkpoints_is_refused(folder: Path, code: str, text: str, refused: bool) -> None:
    (folder / "train.py").write_text(code)
    (folder / "job.yaml").write_text(HEAD + ONE + text + "pruner: {name: asha, promote: true, max_resource: epochs}\n")
    issues = [message for place, *_, message in found(folder) if place == "pruner.promote"] if refused else []
    assert bool(issues) is refused
    if refused:
        assert "needs checkpoints to continue trials from" in issues[0]
    else:
        assert load.load_job(folder).search.ladder is not None


def test_asha_alone_needs_no_checkpoints(folder: Path) -> None:
    (folder / "train.py").write_text("def run(ctx): ...\n")
    (folder / "job.yaml").write_text(HEAD + ONE + "pruner: asha\n")
    job = load.load_job(folder)
    assert job.search.ladder is None
    assert not job.keeps_checkpoints
