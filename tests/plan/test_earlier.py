"""Trials of an earlier study in the space of a new one, and what makes two jobs train alike. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.plan import datasets, earlier
from trialplane.wire import earlier as wire
from trialplane.wire.earlier import Earlier, EarlierTrial
from trialplane.wire.records import TrialRow
from trialplane.wire.states import FailureClass, TrialState

UNIT = {"type": "float", "low": 0.0, "high": 1.0}


def job(**fields: Any) -> Job:
    objectives = [{"metric": "loss", "direction": "minimize"}]
    return kinds.read({"name": "toy", "kind": "hpo", "objectives": objectives, "space": {"lr": UNIT}, **fields})


def row(trial: int, **fields: Any) -> TrialRow:
    values: dict[str, Any] = {"params": {"lr": 0.5}, "values": (1.0,), "metrics": {"loss": 1.0}, "step": 3}
    return TrialRow(trial, **{"state": TrialState.COMPLETE, "attempt": 1, "number": trial, **values, **fields})


def mapped(new: Job, *rows: TrialRow, old: Job | None = None) -> earlier.HistoryMapper:
    return earlier.HistoryMapper("first", old or job(), new, rows)


def test_complete_pruned_and_bad_trials_count_and_others_do_not() -> None:
    failed = {"state": TrialState.FAILED, "values": (), "metrics": {}}
    trials = mapped(
        job(),
        row(0),
        row(1, state=TrialState.PRUNED, values=()),
        row(2, failure=FailureClass.OOM, **failed),
        row(3, failure=FailureClass.LOST, **failed),
        row(4, state=TrialState.RUNNING, values=()),
    ).trials
    assert [(trial.trial, trial.values, trial.pruned) for trial in trials] == [
        (0, (1.0,), False),
        (1, (), True),
        (2, (), False),
    ]


def test_values_outside_of_the_space_are_left_out_and_reported() -> None:
    new = job(space={"lr": {"type": "float", "low": 0.4, "high": 0.6}})
    result = mapped(new, row(0), row(1, params={"lr": 0.9}))
    assert [trial.trial for trial in result.trials] == [0]
    assert list(result.notes()) == [
        "history: 1 trial of first, with lr",
        "history: 1 trial of first left out: its lr is outside of the space",
    ]


def test_a_parameter_that_was_fixed_counts_with_its_value() -> None:
    old = job(params={"width": 8})
    new = job(space={"lr": UNIT, "width": {"type": "int", "low": 1, "high": 9}}, sampler="gp")
    assert [trial.params for trial in mapped(new, row(0), old=old).trials] == [{"lr": 0.5, "width": 8}]


def test_what_is_no_longer_searched_is_ignored_and_reported() -> None:
    result = mapped(job(), row(0, params={"lr": 0.5, "depth": 2}))
    assert [trial.params for trial in result.trials] == [{"lr": 0.5}]
    assert list(result.notes()) == ["history: 1 trial of first, with lr; not in the space, and so ignored: depth"]


def test_conditions_are_the_new_ones() -> None:
    space = {"kind": {"type": "categorical", "choices": ["a", "b"]}, "lr": {**UNIT, "when": {"kind": "b"}}}
    trials = mapped(
        job(space=space), row(0, params={"kind": "a", "lr": 0.5}), row(1, params={"kind": "b", "lr": 0.5})
    ).trials
    assert [trial.params for trial in trials] == [{"kind": "a"}, {"kind": "b", "lr": 0.5}]


def test_a_constraint_needs_its_metric() -> None:
    new = job(constraints=[{"metric": "size", "max": 1}])
    result = mapped(new, row(0), row(1, metrics={"loss": 1.0, "size": 2.0}))
    assert [trial.metrics for trial in result.trials] == [{"loss": 1.0, "size": 2.0}]
    assert "it has no size, which is constrained here" in list(result.notes())[1]


def test_other_objectives_are_refused() -> None:
    other = job(objectives=[{"metric": "loss", "direction": "maximize"}])
    assert earlier.refusal(other, job()) == "has other objectives: maximize loss, and this job has minimize loss"
    training = kinds.read({"name": "toy", "kind": "train"})
    assert earlier.refusal(training, job()) == "is a training, and the sampler of a study learns from studies"
    assert earlier.refusal(job(), job(sampler="gp")) == ""


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({"trials": 99, "parallel": 4, "sampler": "gp", "pruner": "median", "space": {"lr": UNIT, "x": UNIT}}, True),
        ({"reuse": True, "enqueue": [{"lr": 0.1}], "budget": {"time": "1h"}, "retries": {"lost": 1}}, True),
        ({"cluster": {"node_selector": {"gpu": "h100"}}}, True),
        ({"cluster": {"image": "train:2"}}, False),
        ({"requirements": "requirements.txt"}, False),
        ({"install": True}, False),
        ({"seed": 1}, False),
        ({"entrypoint": "other:run"}, False),
        ({"resources": {"cpus": 4}}, False),
        ({"stop": [{"step": 3}]}, False),
    ],
    ids=str,
)
def test_what_makes_jobs_train_alike(fields: dict[str, Any], alike: bool) -> None:
    assert (earlier.training_digest(job(**fields)) == earlier.training_digest(job())) == alike


def test_every_field_is_either_of_the_search_or_of_the_training() -> None:
    """A new field counts as one of the training until somebody says otherwise."""
    assert set(kinds.CLASSES["hpo"].model_fields) >= earlier.IGNORED_FIELDS


def test_it_is_the_same_after_a_journey(tmp_path: Path) -> None:
    content = Earlier((EarlierTrial("a", 3, {"lr": 0.1}, (1.0,), {"loss": 1.0}, 2),))
    (tmp_path / wire.FILE).write_bytes(content.pack())
    assert wire.read(tmp_path) == content
    assert wire.read(tmp_path / "none") == Earlier()
    assert Earlier().pack() == b""


def test_equal_parameters_have_one_key() -> None:
    assert wire.params_key({"a": 1, "b": [1, "x"]}) == wire.params_key({"b": [1, "x"], "a": 1.0})
    assert wire.params_key({"a": True}) != wire.params_key({"a": 1})


def test_data_has_a_digest_of_its_content(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1")
    of = job(params={"data": str(file), "name": "a.csv", "missing": str(tmp_path / "none"), "number": 3})
    before = datasets.digests(of)
    assert list(before) == ["data"]
    file.write_text("2")
    assert datasets.digests(of) != before
    (tmp_path / "b").mkdir()
    folder = job(params={"data": str(tmp_path / "b")})
    empty = datasets.digests(folder)
    (tmp_path / "b" / "part").write_text("x")
    assert datasets.digests(folder) != empty


@pytest.mark.parametrize(
    ("name", "value", "is_named"),
    [
        ("url", "https://example.org/a.csv", True),
        ("source", ["s3://bucket/a", "s3://bucket/b"], True),
        ("file", "/nowhere/a.csv", True),
        ("file", "../a.csv", True),
        ("dataset", "imdb", True),
        ("train_data_path", "lists/train", True),
        ("model", "google/bert", True),
        ("model", "lstm", False),
        ("data_format", "nchw", False),
        ("metadata", "none", False),
        ("metric", "val/loss", False),
        ("data", "rows.csv", False),  # in the job's folder
        ("data", "parts", False),
        ("data", "", False),
        ("data", None, False),
        ("data", 3, False),
    ],
)
def test_what_seems_to_be_data_without_a_digest_is_named(name: str, value: Any, is_named: bool) -> None:
    found = datasets.uncompared(job(params={name: value}), {}, ("parts/1.csv", "rows.csv", "train.py"))
    assert found == ({name: value[0] if isinstance(value, list) else value} if is_named else {})


def test_choices_and_data_with_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1")
    space = {"lr": UNIT, "table": {"type": "categorical", "choices": [1, str(file)]}}
    of = job(params={"data": str(file)}, space=space)
    assert datasets.uncompared(of, datasets.digests(of), ()) == {"table": str(file)}


def test_data_elsewhere_has_none(tmp_path: Path) -> None:
    of = job(params={"data": "/data/nowhere.csv"}, inputs={"data": {}})
    assert datasets.digests(of) == {"data": datasets.UNREADABLE}
