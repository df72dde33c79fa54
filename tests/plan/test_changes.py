"""A resume without changes leaves a job of any form as it is; what it may change is checked where runs are resumed."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert changes.changed(stored, {}, (), 0) == job
