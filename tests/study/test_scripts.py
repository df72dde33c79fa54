"""A script that knows nothing of the platform as a study on this machine: pruned, and recorded in MLflow.

Not checked here: everything about one trial (tests/worker/test_programs.py).
"""

from __future__ import annotations

import pytest
from tests.study.conftest import Study

from trialplane.client import cloning
from trialplane.errors import RunExists
from trialplane.wire.states import TrialState

SPEC = """
kind: hpo
script: train.py
space:
  lr: {type: float, low: 0.0, high: 1.0}
enqueue: [{lr: 0.1}, {lr: 0.2}, {lr: 0.9}, {lr: 0.8}]
objective: {metric: accuracy, direction: maximize}
pruner: {name: median, n_startup_trials: 2, n_warmup_steps: 3}
trials: 4
"""
SCRIPT = """
import argparse
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
lr = parser.parse_args().lr
for epoch in range(1, 100):
    print(f"epoch {epoch}: loss={lr} accuracy={1 - lr}")
    time.sleep(0.05 if lr > 0.5 else 0)  # the good ones are quick, the others have the time to be pruned
"""


LOGS = """
import argparse
import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
with mlflow.start_run(run_name="mine"):
    mlflow.log_param("note", "kept")
    for epoch in range(3):
        print(f"epoch {epoch} accuracy={epoch}")  # what is reported is not read again
        mlflow.log_metric("accuracy", epoch, step=epoch)
        mlflow.log_metrics({"loss": 1 / (epoch + 1)}, step=epoch)
"""


def test_what_a_script_logs_by_mlflow_is_its_metrics_once(study: Study) -> None:
    study.write(LOGS, SPEC.replace("trials: 4", "trials: 2").replace("pruner:", "budget: {time: 1h} #"))
    status = study.submit().wait(timeout=600)
    assert status.complete == 2, status.reason
    for run in study.mlflow_runs():
        accuracy = [(0, 0.0), (1, 1.0), (2, 2.0)]
        assert run["history"]["accuracy"][:3] == accuracy and run["history"]["loss"][:2] == [(0, 1.0), (1, 0.5)]
        assert len(run["history"]["accuracy"]) == 4, "three reports and the result, each once"
        assert run["params"]["note"] == "kept"


@pytest.mark.services
def test_values_of_a_module_that_a_script_imports_reach_it(study: Study) -> None:
    (study.job / "nets").mkdir()
    (study.job / "nets" / "trees.py").write_text("SIZES = {'depth': 3}\n")
    script = study.job / "fit.py"
    script.write_text("from nets import trees\nsize = 2\nprint(f'loss={trees.SIZES[\"depth\"] + 10 * size}')\n")
    space = {"depth": "4..9", "size": "3..8"}
    run = study.platform.submit(script, name="toy", space=space, objective="loss", trials=3)
    study.handles.append(run)
    assert run.wait().complete == 3, "\n".join(run.logs())
    values = [(trial.params["depth"], trial.params["size"], trial.metrics["loss"]) for trial in run.rows()]
    assert all(depth + 10 * size == loss and min(depth, size) > 2 for depth, size, loss in values), values


SAME_POINTS = """
kind: hpo
space:
  x: {type: float, low: 0.0, high: 1.0}
objective: {metric: loss, direction: minimize}
sampler: random
pruner: {name: successive_halving, min_resource: 1, reduction_factor: 2}
trials: 24
"""
CURVE = "import random\ndef curve(x):\n    draw = random.Random(x)\n    return [draw.random() for _ in range(20)]\n"
FUNCTION = (
    CURVE
    + """
def run(ctx):
    for step, loss in enumerate(curve(ctx.params["x"])):
        ctx.report(step, loss=loss)
    return {"loss": loss}
"""
)
PRINTS = (
    CURVE
    + """
import sys
for step, loss in enumerate(curve(float(sys.argv[2]))):
    print(f"step={step} loss={loss!r}")
"""
)


def test_the_same_trials_are_pruned_at_the_same_steps_as_a_script_and_as_a_function(study: Study) -> None:
    ends = []
    script = "script: train.py\narguments: [--x, '{x}']"
    for name, code, line in (("function", FUNCTION, "entrypoint: train:run"), ("script", PRINTS, script)):
        study.write(code, f"{SAME_POINTS}{line}\n")
        handle = study.submit(name)
        status = handle.wait(timeout=600)
        assert status.complete + status.pruned == 24, status.reason
        ends.append([(row.params["x"], row.state, row.message, row.metrics["loss"]) for row in handle.rows()])
    assert ends[0] == ends[1]
    assert sum(state is TrialState.PRUNED for _, state, _, _ in ends[0]) > 10


def test_a_script_is_a_study(study: Study) -> None:
    study.write(SCRIPT, SPEC)
    handle = study.submit()
    status = handle.wait(timeout=600)
    assert (status.complete, status.pruned) == (2, 2), status.reason
    runs = {float(run["params"]["lr"]): run for run in study.mlflow_runs()}
    assert set(runs) == {0.1, 0.2, 0.9, 0.8}
    accuracy = runs[0.1]["history"]["accuracy"]
    assert accuracy[:99] == [(step, 0.9) for step in range(1, 100)], "each line once"
    assert runs[0.9]["tags"]["trialplane.state"] == "PRUNED" and len(runs[0.9]["history"]["loss"]) < 99
    assert {row.params["lr"]: row.metrics["accuracy"] for row in handle.rows()}[0.2] == 0.8


READS = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
rate = parser.parse_args().lr
Path("own").write_text("x")  # the script has a copy of the folder, beside the linked data
print(f"accuracy={float(Path('data/scale.txt').read_text()) * rate}")
"""


def test_a_script_reads_data_beside_it_by_a_link(study: Study) -> None:
    study.write(READS, SPEC.replace("pruner:", "links: [data]\nbudget: {time: 1h} #"))
    (study.job / "data").mkdir()
    (study.job / "data" / "scale.txt").write_text("10")
    handle = study.submit(trials=2)
    assert handle.wait(timeout=600).complete == 2
    assert sorted(row.values[0] for row in handle.rows()) == [1.0, 2.0]
    assert [path.name for path in study.job.iterdir() if path.name == "own"] == []
    # The links are not part of the code, whose comparison with the folder would fail at them.
    assert study.submit(trials=2).name == handle.name
    with pytest.raises(RunExists, match="trials: 2 → 3"):
        study.submit(trials=3)
    with cloning.job_folder(study.platform.target, handle.name, {"enqueue": [{"lr": 0.4}]}) as folder:
        clone = study.platform.submit(folder, name="clone", overrides={"trials": 1})
        study.handles.append(clone)
        assert clone.wait(timeout=600).complete == 1
    assert clone.rows()[0].values[0] == 4.0
    handle.delete()
    assert (study.job / "data" / "scale.txt").read_text() == "10"
