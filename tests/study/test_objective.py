"""A whole run of an objective of Optuna whose space depends on what was drawn: trials and the controller are killed in it.

Not checked here: what each request draws (tests/controller/test_suggesting.py), and the trial's side (tests/worker).
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.study.conftest import Study, alive, kill, wait_until

from trialplane.wire.states import RunState

OBJECTIVE = """
import json
import os
import signal
import time
from pathlib import Path

import optuna


def objective(trial):
    here = Path(os.environ["WITNESS"])
    model = trial.suggest_categorical("model", ["svm", "forest"])
    with open(here / f"{trial.number}", "a") as drawn:
        drawn.write(json.dumps(trial.params) + chr(10))
    if trial.number == 2 and not (here / "killed").exists():
        (here / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if trial.number == 4:
        while not (here / "goes on").exists():
            time.sleep(0.01)
    if model == "svm":
        loss = trial.suggest_float("c", 1e-3, 1e3, log=True)
    else:
        loss = trial.suggest_int("depth", 2, 32) / 8
    with open(here / f"{trial.number}", "a") as drawn:
        drawn.write(json.dumps(trial.params) + chr(10))
    for step in range(3):
        trial.report(loss if trial.number < 3 else 1e6 + loss, step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    trial.set_user_attr("model", model)
    return loss


if __name__ == "__main__":
    optuna.create_study().optimize(objective, n_trials=10)
"""
SPEC = """
kind: hpo
entrypoint: optuna:train:objective
objective: {metric: loss, direction: minimize}
pruner: {name: median, n_startup_trials: 3}
trials: 8
"""


def params(study: Study) -> dict[int, list[dict[str, Any]]]:
    """Of each trial what its attempts have drawn, by the ledger."""
    connection = sqlite3.connect(f"file:{study.files().ledger}?mode=ro", uri=True)
    found: dict[int, list[dict[str, Any]]] = {}
    for trial, request in connection.execute("select trial, request from attempts order by number"):
        found.setdefault(trial, []).append(dict(json.loads(request)["params"]))
    connection.close()
    return found


@pytest.mark.slow
def test_an_objective_is_given_the_same_whatever_is_killed(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness"
    witness.mkdir()
    monkeypatch.setenv("WITNESS", str(witness))
    study.write(OBJECTIVE, SPEC)
    run = study.submit()
    wait_until(
        lambda: (witness / "4").exists() and (witness / "4").read_text().endswith("\n"), "trial 4 has drawn its model"
    )
    everyone = study.pids()
    kill(study.controller() or 0)
    wait_until(lambda: not any(alive(pid) for pid in everyone), "everything below the controller is gone too")
    assert set(params(study)[4][0]) == {"model"}, "the second parameter is not drawn yet"
    (witness / "goes on").touch()
    run.resume()
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert (status.complete + status.pruned, status.failed) == (8, 0)
    assert status.pruned > 0

    drawn = params(study)
    assert [len(drawn[trial]) for trial in range(8)] == [1, 1, 2, 1, 2, 1, 1, 1], "attempts"
    for trial in (2, 4):  # one killed itself, the other went down with its controller
        lines = [json.loads(line) for line in (witness / str(trial)).read_text().splitlines()]
        assert lines[0] == lines[1], "the retry was given what the first attempt was"
        assert lines[2] == drawn[trial][1]

    url = f"sqlite:///{tmp_path / 'study.db'}"
    run.export(url)
    exported = optuna.load_study(study_name="toy", storage=url)
    last = {one.user_attrs["trial"]: one for one in exported.trials}
    for number, one in last.items():
        assert one.params == drawn[number][-1]
        assert set(one.distributions) == {"model", "c" if one.params["model"] == "svm" else "depth"}
    complete = [one for one in exported.trials if one.state is optuna.trial.TrialState.COMPLETE]
    assert all(one.user_attrs["model"] == one.params["model"] for one in complete)
    assert any(one.state is optuna.trial.TrialState.PRUNED for one in exported.trials)

    recorded = {int(one["tags"]["trialplane.number"]): one["params"] for one in study.mlflow_runs()}
    for number, one in enumerate(exported.trials):
        if one.state is not optuna.trial.TrialState.FAIL:
            assert recorded[number].keys() == one.params.keys()
