"""A resume without changes leaves a job of any form as it is; what it may change is checked where runs are resumed."""

from __future__ import annotations

from typing import Any

import pytest

from trialplane import errors
from trialplane.job import kinds
from trialplane.plan import changes

STUDY: dict[str, Any] = {
    "name": "toy",
    "kind": "hpo",
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}},
    "trials": 3,
}
TRAINING: dict[str, Any] = {"name": "toy", "kind": "train", "objectives": STUDY["objectives"]}


@pytest.mark.parametrize(
    "fields",
    [
        STUDY,
        STUDY | {"script": "train.py", "arguments": "flags", "metrics": ["stdout"], "capture": ["hf"]},
        STUDY | {"command": ["./train.sh", "{lr}"]},
        STUDY | {"keep": {"best": 2}, "requirements": "requirements.txt", "stop": [{"metric": "loss", "below": 0.1}]},
        STUDY | {"space": {"+a.b": {"type": "categorical", "choices": [[1], {"x": 2}]}}, "params": {"c/d": 1}},
        STUDY | {"space": {"lr": {"type": "normal", "mean": 0.0, "std": 1.0}}},
        {**STUDY, "space": {}, "entrypoint": "optuna:study:objective"},
        TRAINING,
        TRAINING | {"script": "train.py", "ranks": 2},
        TRAINING | {"command": ["accelerate", "launch", "train.py"]},
        {"name": "toy", "kind": "collect", "collect": {"learner": "train:learn", "units": 4, "workers": 2, "iterations": 3}},
    ],
)
def test_a_resume_without_changes_leaves_a_job_as_it_is(fields: dict[str, Any]) -> None:
    job = kinds.read(fields)
    stored = kinds.read(job.model_dump_json())
    assert changes.apply_changes(stored, {}, (), 0) == job


TWO = {**STUDY["space"], "n": {"type": "int", "low": 1, "high": 9}}
MEMBERS = {"interval": 4, "steps": 16}
PROMOTE = {"name": "asha", "promote": True, "max_resource": 16}


@pytest.mark.parametrize(
    ("fields", "sets"),
    [
        ({}, ["space.lr.high=2.0"]),
        ({}, ["space.n={type: int, low: 1, high: 9}"]),
        ({}, ["sampler=gp", "pruner=median"]),
        ({"pruner": "median"}, ["pruner.n_warmup_steps=3"]),
        ({"sampler": "cmaes"}, ["space.lr.high=2.0", "sampler=tpe"]),
    ],
    ids=str,
)
def test_a_study_goes_on_with_another_search(fields: dict[str, Any], sets: list[str]) -> None:
    job = kinds.read({**STUDY, **fields})
    assert changes.apply_changes(job, {}, sets, 2) != job


@pytest.mark.parametrize(
    ("fields", "sets", "message"),
    [
        ({"pruner": PROMOTE}, ["pruner.reduction_factor=2"], "has other rungs than those at which trials are paused"),
        ({"pruner": PROMOTE}, ["pruner=median"], "has other rungs"),
        ({"population": MEMBERS}, ["population.share=0.5"], "population.share: cannot change when a run is resumed"),
        ({"population": MEMBERS}, ["trials=9"], "trials: is the size of the population"),
        ({}, ["pruner={name: asha, promote: true, max_resource: 4}"], "has other rungs"),
        ({"space": "space:define"}, ["space={lr: {type: float, low: 0, high: 1}}"], "is code, and does not change"),
        ({"space": TWO, "sampler": "bruteforce"}, ["sampler=tpe"], "changes the points that bruteforce counts"),
        ({"sampler": "cmaes"}, ["space.lr.high=2.0"], "changes the scales of cmaes"),
        ({}, ["objectives.0.metric=acc"], "cannot change when a run is resumed"),
        ({}, ["seed=3"], "cannot change when a run is resumed"),
    ],
    ids=str,
)
def test_what_a_study_cannot_go_on_with(fields: dict[str, Any], sets: list[str], message: str) -> None:
    if fields.get("sampler") == "bruteforce":
        lr = {"type": "float", "low": 0.1, "high": 1.0, "step": 0.1}
        fields = {**fields, "space": {**TWO, "lr": lr}}
    with pytest.raises(errors.SpecError, match=message):
        changes.apply_changes(kinds.read({**STUDY, **fields}), {}, sets, 2)


def test_another_interval_is_an_issue_of_the_population_alone() -> None:
    old = kinds.read(STUDY | {"population": MEMBERS})
    new = kinds.read(STUDY | {"population": {**MEMBERS, "interval": 8}})
    assert [issue.field_path for issue in changes.resume_issues(old, new)] == [("population", "interval")]


def test_differences_are_sorted_by_when_they_can_take_effect() -> None:
    old = kinds.read(STUDY | {"pruner": PROMOTE})
    new = {"parallel": 4, "trials": 9, "seed": 1, "entrypoint": "other:run", "pruner": {**PROMOTE, "max_resource": 64}}
    groups = changes.changes_by_time(old, kinds.read({**STUDY, **new}))
    assert {when: [line.partition(":")[0] for line in lines] for when, lines in groups.items()} == {
        "while it runs": ["parallel"],
        "when it is resumed": ["trials"],
        "in a new run": ["entrypoint", "seed", "pruner.max_resource"],
    }
    assert not any(changes.changes_by_time(old, old).values())


def test_another_kind_is_an_issue_of_a_resume() -> None:
    assert "kind" in [issue.field for issue in changes.resume_issues(kinds.read(TRAINING), kinds.read(STUDY))]
