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
COLLECTION: dict[str, Any] = {
    "name": "toy",
    "kind": "collect",
    "collect": {"learner": "train:learn", "units": 4, "workers": 2, "iterations": 3},
}


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
        COLLECTION,
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
        ({"pruner": PROMOTE}, ["pruner.reduction_factor=2"], "changes the rungs at which trials are paused"),
        ({"pruner": PROMOTE}, ["pruner=median"], "changes the rungs"),
        ({"population": MEMBERS}, ["population.share=0.5"], "population.share: cannot change when a run is resumed"),
        ({"population": MEMBERS}, ["trials=9"], "trials: is the size of the population"),
        ({}, ["pruner={name: asha, promote: true, max_resource: 4}"], "changes the rungs"),
        ({"space": "space:define"}, ["space={lr: {type: float, low: 0, high: 1}}"], "is or was code, and cannot change"),
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
    groups = changes.changes_by_time(old, kinds.read({**STUDY, **new}), 2)
    assert {when: [line.partition(":")[0] for line in lines] for when, lines in groups.items()} == {
        "while it runs": ["parallel"],
        "when it is resumed": ["trials"],
        "in a new run": ["entrypoint", "seed", "pruner.max_resource"],
    }
    assert not any(changes.changes_by_time(old, old, 3).values())


LIVE, RESUME, NEW, NEVER = "while it runs", "when it is resumed", "in a new run", None
CHANGES: dict[str, tuple[Any, str | None]] = {  # field of a study → another value, and the time at which it takes effect
    "parallel": (4, LIVE),
    "trials": (9, RESUME),
    "space": ({"lr": {"type": "float", "low": 0.1, "high": 2.0}}, RESUME),
    "sampler": ("gp", RESUME),
    "pruner": ("median", RESUME),
    "budget": ({"time": "1h"}, RESUME),
    "retries": ({"lost": 9}, RESUME),
    "cluster": ({"queue": "q"}, RESUME),
    "notify": ([{"url": "ntfy://topic", "on": ["ended"]}], RESUME),
    "description": ("other words", NEVER),
    "name": ("other", NEW),
    "kind": ("train", NEW),
    "entrypoint": ("other:run", NEW),
    "preload": (["json"], NEW),
    "requirements": ("requirements.txt", NEW),
    "install": (True, NEW),
    "packages": (["../mine"], NEW),
    "links": (["data"], NEW),
    "params": ({"epochs": 3}, NEW),
    "inputs": ({"data": {"columns": ["a"]}}, NEW),
    "environment": ({"EPOCHS": "params.epochs"}, NEW),
    "objectives": ([{"metric": "acc", "direction": "maximize"}], NEW),
    "capture": ("mlflow", NEW),
    "resources": ({"cpus": 2}, NEW),
    "checkpoints": ({"grace": "10s"}, NEW),
    "seed": (1, NEW),
    "system_metrics": (True, NEW),
    "divided": (["batch"], NEW),
    "ranks": (2, NEW),
    "nodes": (2, NEW),
    "stop": ({"metric": "loss", "below": 0.1}, NEW),
    "script": ("train.py", NEW),
    "command": (["./train.sh"], NEW),
    "arguments": ("hydra", NEW),
    "cwd": ("workdir", NEW),
    "metrics": (["stdout"], NEW),
    "constraints": ([{"metric": "size", "max": 1}], NEW),
    "population": (MEMBERS, NEW),
    "keep": ({"best": 2}, NEW),
    "start": ({"run": "monday", "trial": 2}, NEW),
    "enqueue": ([{"lr": 0.2}], NEW),
    "history": (["monday"], NEW),
    "reuse": ({"steps": "epochs"}, NEW),
    "duplicates": ("redraw", NEW),
    "avoid_oom": (["lr"], NEW),
}


KIND_CHANGES: dict[
    str, dict[str, tuple[Any, str | None]]
] = {  # of fields that the other kinds have in addition or differ in
    "hpo": {},
    "train": {"kind": ("hpo", NEW), "resume": ("monday", NEW)},
    "collect": {
        "kind": ("train", NEW),
        "resume": ("monday", NEW),
        "collect": ({**COLLECTION["collect"], "iterations": 9}, RESUME),
        "objectives": ([{"metric": "reward", "direction": "maximize"}], NEW),
    },
}
JOBS = {"hpo": STUDY, "train": TRAINING, "collect": COLLECTION}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in JOBS for field in kinds.CLASSES[kind].model_fields])
def test_each_field_is_listed_at_the_time_at_which_it_can_change(kind: str, field: str) -> None:
    value, expected = {**CHANGES, **KIND_CHANGES[kind]}[field]
    fields = {**JOBS[kind], "script": "main.py"} if field in ("arguments", "cwd", "metrics") else JOBS[kind]
    changed = JOBS[value] if field == "kind" else {**fields, field: value}
    old, new = kinds.read(fields), kinds.read(changed)
    groups = changes.changes_by_time(old, new, 3)
    lines = {line: moment for moment, group in groups.items() for line in group}
    own = {moment for line, moment in lines.items() if line.startswith((f"{field}: ", f"{field}."))}
    assert own == ({expected} - {None}), lines
    if own and field != "kind":
        resumable = not changes.resume_issues(old, new)
        assert resumable == (expected in (LIVE, RESUME)), "as the resume judges"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("workers", 3, LIVE),
        ("iterations", 9, RESUME),
        ("in_flight", 6, RESUME),
        ("timeout", "5m", RESUME),
        ("max_failed", 9, RESUME),
        ("units", 8, NEW),
        ("learner", "other:learn", NEW),
    ],
)
def test_each_field_of_a_collection_has_its_own_time(field: str, value: Any, expected: str) -> None:
    collect = {**COLLECTION["collect"], field: value}
    groups = changes.changes_by_time(kinds.read(COLLECTION), kinds.read({**COLLECTION, "collect": collect}), 0)
    lines = {line.partition(": ")[0]: moment for moment, group in groups.items() for line in group}
    assert next(moment for line, moment in lines.items() if line.startswith(f"collect.{field}")) == expected, lines


def test_fewer_trials_than_have_started_need_a_new_run() -> None:
    old, new = kinds.read({**STUDY, "trials": 20}), kinds.read({**STUDY, "trials": 16})
    assert changes.changes_by_time(old, new, 20)[NEW] == ["trials: 20 → 16"]
    assert changes.changes_by_time(old, new, 16)[RESUME] == ["trials: 20 → 16"]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"keep": {"best": 2}}, ["keep.best: (not set) → 2", "keep.files: (not set) → []"]),
        ({"enqueue": [{"lr": 0.2}]}, ["enqueue.0.lr: (not set) → 0.2"]),
        ({"space": "space:define"}, None),
    ],
    ids=str,
)
def test_a_section_that_was_not_set_is_no_line_beside_its_fields(fields: dict[str, Any], lines: list[str] | None) -> None:
    found = changes.changed_fields(kinds.read(STUDY), kinds.read({**STUDY, **fields}))
    back = changes.changed_fields(kinds.read({**STUDY, **fields}), kinds.read(STUDY))
    if lines is None:
        assert 'space: (not set) → "space:define"' in found
    else:
        assert found == lines
        assert len(back) == len(lines)


def test_a_study_that_was_retried_is_the_same_job() -> None:
    retried = kinds.read({**STUDY, "retries": {"failed_before": 6}})
    assert changes.changed_fields(retried, kinds.read(STUDY)) == []


def test_another_kind_is_an_issue_of_a_resume() -> None:
    assert "kind" in [issue.field for issue in changes.resume_issues(kinds.read(TRAINING), kinds.read(STUDY))]
