"""A folder with one job that uses most of what a job file can hold, and the issues about what it is changed to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialplane import errors
from trialplane.job import load

GOOD = """\
kind: hpo
params: {epochs: 3, data: data.csv, model: small}
environment: {HPO_EPOCHS: params.epochs, HPO_MODEL_CHOICES: space.model.choices}
space:
  lr: {type: float, low: 1e-5, high: 1e-2, log: true}
  layers: {type: int, low: 1, high: 4}
  model: {type: categorical, choices: [bert, roberta]}
  heads: {type: int, low: 2, high: 8, step: 2, when: {model: bert}}
objective: {metric: f1, direction: maximize}
sampler: {name: tpe, n_startup_trials: 8}
pruner: median
budget: {time: 1h30m, timeout: 90}
enqueue:
  - {lr: 0.001, model: bert}
trials: 24
profiles:
  max: {trials: 800, sampler: {n_startup_trials: 40}, space: {lr: {high: 0.1}, layers: null}}
  other: {sampler: random, space: {lr: {type: int, low: 1, high: 2}}, enqueue: []}
"""
TRAIN = "import os\n\ndef run(ctx):\n    return {}\n\ndef define(trial):\n    return {}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "jobs" / "demo"
    made.mkdir(parents=True)
    (made / "train.py").write_text(TRAIN)
    (made / "job.yaml").write_text(GOOD)
    return made


def found(folder: Path, **layers: Any) -> list[tuple[str, str, int, str]]:
    """The issues as (field, source, line, message)."""
    with pytest.raises(errors.SpecError) as caught:
        load.load_job(folder, **layers)
    return [(one.field, one.source, one.line, one.message) for one in caught.value.issues]
