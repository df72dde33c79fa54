"""A study whose trials each train with another library: it is paused in the middle of one of them, goes on, and prunes one.

Not checked here: each library's pauses and reports in detail (tests/integrations).
"""

from __future__ import annotations

import shutil

import pytest
from tests.integrations.conftest import EXAMPLES, JOB
from tests.study.conftest import Study, wait_until

from trialplane.wire.states import RunState

POINTS = [
    {"library": "huggingface", "hold": 2, "learning_rate": 0.1},  # waits in its second report until it is to stop
    {"library": "huggingface", "hold": 0, "learning_rate": 1000.0},  # its loss is in the thousands
    *(
        {"library": name.removeprefix("with_"), "hold": 0, "learning_rate": 0.1}
        for name in EXAMPLES
        if name != "with_huggingface"
    ),
]
SPEC = f"""
kind: hpo
preload: [{", ".join(EXAMPLES)}]
space:
  library: {{type: categorical, choices: [{", ".join(name[5:] for name in EXAMPLES)}]}}
  hold: {{type: categorical, choices: [0, 2]}}
  learning_rate: {{type: categorical, choices: [0.1, 1000.0]}}
objectives: [{{metric: score, direction: minimize}}]
pruner: {{name: threshold, metric: eval_loss, direction: minimize, upper: 100.0}}
checkpoints: {{grace: 60}}
trials: {len(POINTS)}
parallel: 1
sampler: {{name: random}}
"""


@pytest.mark.slow
def test_each_library_is_a_trial_of_a_study_that_is_paused_and_goes_on(study: Study) -> None:
    shutil.copytree(JOB, study.job, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    study.write((JOB / "train.py").read_text(), SPEC)
    run = study.submit(enqueue=POINTS)
    log = study.files().trial_log(0, 1)
    wait_until(lambda: log.exists() and "waits for a stop" in log.read_text(), "the first trial waits for a stop")
    assert run.pause().state is RunState.PAUSED
    assert [(trial, failure) for _, _, trial, _, failure, _ in study.attempts()] == [(0, "stopped")]
    run.resume()
    assert run.wait(600).state is RunState.SUCCEEDED, run.status().reason
    final = {trial: state for _, state, trial, _, _, retried in study.attempts() if not retried}
    assert final == {**dict.fromkeys(range(len(POINTS)), "COMPLETE"), 1: "PRUNED"}

    recorded = [(one["tags"], one["history"]) for one in study.mlflow_runs()]
    history = {(int(tags["trialplane.trial"]), int(tags["trialplane.attempt"])): metrics for tags, metrics in recorded}
    # What an attempt reported last is recorded with its end once more, under the same step.
    steps = {
        trial: [sorted({step for step, _ in metrics.get(name, ())}) for name in ("loss", "eval_loss")]
        for trial, metrics in history.items()
    }
    assert steps[0, 1] == [[2, 4], [4]]
    assert steps[0, 2] == [[6, 8, 10, 12, 14, 16], [8, 12, 16]], "from step 5"
    assert steps[1, 1] == [[2, 4], [4]], "pruned at its first evaluation"
    by_library = {POINTS[trial]["library"]: metrics for (trial, _), metrics in history.items() if trial > 1}
    for library, metric, count in (
        ("accelerate", "valid_loss", 8),
        ("catboost", "validation-Logloss", 8),
        ("keras", "val_loss", 4),
        ("lightgbm", "valid_0-binary_logloss", 8),
        ("lightning", "val_loss", 4),
        ("sklearn", "accuracy", 8),
        ("xgboost", "valid-logloss", 8),
    ):
        assert len({step for step, _ in by_library[library][metric]}) == count, library
