"""Parameter names with dots, slashes or Hydra's + in front, wherever a name stands: space, --set, conditions, arguments.

Not checked here: that Hydra takes the overrides and MLflow the names (tests/docs, tests/controller/test_batch.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tests.job.conftest import found

from trialplane import errors
from trialplane.job import arguments, load, short_forms
from trialplane.job.kinds import Study
from trialplane.job.load import Flag

JOB = """\
kind: hpo
script: train.py
arguments: hydra
params: {data.path: a.csv, +trainer.max_epochs: 3, model: resnet}
environment: {RATE: space.model.lr.high, EPOCHS: params.+trainer.max_epochs}
space:
  model.lr: {type: float, low: 1.0e-5, high: 1.0e-2, log: true}
  optimizer/name: {type: categorical, choices: [sgd, adam]}
  optimizer.momentum: {type: float, low: 0.0, high: 0.9, when: {optimizer/name: sgd}}
objective: {metric: f1, direction: maximize}
enqueue: [{model.lr: 0.001}]
"""


@pytest.fixture
def dotted(folder: Path) -> Path:
    (folder / "job.yaml").write_text(JOB)
    return folder


def loaded(folder: Path, **layers: object) -> Study:
    job = load.load_job(folder, **layers)  # type: ignore[arg-type]
    assert isinstance(job, Study)
    return job


def test_a_name_may_have_dots_slashes_and_a_plus(dotted: Path) -> None:
    job = loaded(dotted)
    assert list(job.space) == ["model.lr", "optimizer/name", "optimizer.momentum"]
    assert list(job.params) == ["data.path", "+trainer.max_epochs", "model"]


def test_fields_of_such_a_parameter_are_set_from_outside(dotted: Path) -> None:
    sets = ("space.model.lr.high=0.5", "params.data.path=b.csv", "enqueue.0.model.lr=0.25")
    job = loaded(dotted, sets=sets, environ={"RATE": "0.7", "EPOCHS": "5"})
    assert job.space["model.lr"].high == 0.5, "--set wins over the environment"
    assert job.params == {"data.path": "b.csv", "+trainer.max_epochs": 5, "model": "resnet"}
    assert job.enqueue[0] == {"model.lr": 0.25}
    assert loaded(dotted, environ={"RATE": "0.7"}).space["model.lr"].high == 0.7


def test_a_new_one_is_added_by_a_flag(dotted: Path) -> None:
    name, fields = short_forms.parameter("++head.size=1..4", "--space")
    job = loaded(dotted, overrides={f'space."{name}"': Flag(fields, "--space ++head.size=1..4")})
    assert job.space["++head.size"].high == 4


def test_a_fixed_one_leaves_the_space_with_what_depends_on_it(dotted: Path) -> None:
    job = loaded(dotted, params={"optimizer/name": "adam"})
    assert list(job.space) == ["model.lr"] and job.params["optimizer/name"] == "adam"


@pytest.mark.parametrize("name", [".lr", "lr.", "a..b", "+", "+++a", "a b", "1.a", "a+b", "db@app"])
def test_other_names_are_refused(dotted: Path, name: str) -> None:
    (dotted / "job.yaml").write_text(JOB.replace("  model.lr:", f'  "{name}":').replace("environment:", "#"))
    assert any("name is letters" in message for *_, message in found(dotted))


def test_one_parameter_under_two_names_is_refused(dotted: Path) -> None:
    (dotted / "job.yaml").write_text(JOB.replace("model: resnet", "+model.lr: 1"))
    assert [(field, message[:12]) for field, _, _, message in found(dotted)] == [("params.model.lr", "is '+model.l")]


def test_a_misspelt_one_is_named_with_the_nearest(dotted: Path) -> None:
    ((field, _, _, message),) = found(dotted, sets=("params.data.paht=b.csv",))
    assert field == "params.data" and "data.path" in message


def test_a_plus_is_for_hydra(dotted: Path) -> None:
    (dotted / "job.yaml").write_text(JOB.replace("arguments: hydra", "arguments: flags"))
    ((field, _, line, message),) = found(dotted)
    assert (field, line) == ("params.+trainer.max_epochs", 4) and "arguments: hydra" in message


def test_they_are_arguments() -> None:
    params = {"model.lr": 0.1, "optimizer/name": "sgd", "+trainer.max_epochs": 3}
    overrides = arguments.build(["{hydra}"], params, {})
    assert overrides == ["model.lr=0.1", "optimizer/name=sgd", "+trainer.max_epochs=3"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert [one.key_or_group for one in parsed] == ["model.lr", "optimizer/name", "trainer.max_epochs"]
    assert parsed[2].is_add() and parsed[2].value() == 3
    assert arguments.build(["--lr", "{model.lr}", "n={+trainer.max_epochs}"], params, {}) == ["--lr", "0.1", "n=3"]
    assert arguments.build(["{flags}"], {"model.lr": 0.1}, {}) == ["--model.lr=0.1"]


def test_a_name_that_is_not_there_is_told(dotted: Path) -> None:
    with pytest.raises(errors.SpecError, match=r"\{model\.rl\} is not a parameter.*model\.lr"):
        (dotted / "job.yaml").write_text(JOB.replace("arguments: hydra", 'arguments: ["{model.rl}", "{hydra}"]'))
        load.load_job(dotted)
