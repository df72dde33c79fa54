"""W&B's calls in processes that a script or a command starts, and what a function returns to Hydra, as a trial's reports."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from tests.worker.test_capture import Trials

from trialplane.job.program import MetricSource, Program
from trialplane.wire.states import TrialState

CHILD = """
import wandb
from wandb.sdk import wandb_run  # a submodule, which does nothing

def fold(number, answers=None):
    run = wandb.init(group="folds", name=f"fold-{number}", config={"lr": 9.0})
    for epoch in range(3):
        run.log({"fold_score": run.config["lr"] + epoch, "step": -1})
    run.finish()
    if answers is not None:
        answers.put(run.config.lr + 2)
"""
# As in W&B's own example of a sweep with cross-validation.
FOLDS = """
import collections
import multiprocessing
import wandb
from child import fold

Score = collections.namedtuple("Score", "value")

def score_fold(number, scores):
    answers = multiprocessing.get_context("fork").SimpleQueue()
    fold(number, answers)
    scores.put(Score(answers.get()))  # of a class of the script

if __name__ == "__main__":
    sweep_run = wandb.init()
    context = multiprocessing.get_context("{start}")
    answers = context.Queue()
    workers = [context.Process(target=score_fold, args=(number, answers)) for number in range(2)]
    for worker in workers:
        worker.start()
    scores = [answers.get().value for _ in workers]
    for worker in workers:
        worker.join()
    sweep_run.log({{"score": sum(scores) / len(scores)}})
"""
STARTS = """
import subprocess, sys
for number in range(2):
    subprocess.run([sys.executable, "-c", f"from child import fold; fold({number})"], check=True)
"""


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        (FOLDS.format(start="spawn"), "score"),
        (FOLDS.format(start="fork"), "score"),
        (STARTS, "fold_score"),
    ],
    ids=["spawn", "fork", "subprocess"],
)
def test_processes_of_a_script_report_to_its_trial(tmp_path: Path, text: str, metric: str) -> None:
    program = Program(script="script.py", metrics=(MetricSource("mlflow"),), names=(metric,))
    with Trials(tmp_path, {"script": text, "child": CHILD}, program=program, capture=("wandb",)) as bench:
        reports, event = bench.trial("", metrics=(metric,), lr=0.5)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    folds = [(step, metrics["fold_score"]) for step, metrics in reports if "fold_score" in metrics]
    assert sorted(value for _, value in folds) == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5], "each once, by the trial's parameters"
    assert {step for step, _ in folds} >= {0, 1, 2}
    assert event.outcome.metrics[metric] == 2.5


def test_a_command_reports_by_wandb(tmp_path: Path) -> None:
    program = Program(command=("python", "script.py"), metrics=(MetricSource("mlflow"),), names=("fold_score",))
    with Trials(
        tmp_path, {"script": "from child import fold\nfold(0)\n", "child": CHILD}, program=program, capture=("wandb",)
    ) as bench:
        reports, event = bench.trial("", metrics=("fold_score",), lr=0.5)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    assert [metrics["fold_score"] for _, metrics in reports] == [0.5, 1.5, 2.5]


def test_without_its_capture_processes_find_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages"
    package.mkdir()
    (package / "wandb.py").write_text("print('the package')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]))
    text = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import wandb'], check=True)\nprint('score=1')\n"
    program = Program(script="script.py", metrics=(MetricSource("stdout"),), names=("score",))
    with Trials(tmp_path, {"script": text}, program=program, capture=()) as bench:
        _, event = bench.trial("")
        assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
        assert "the package" in next(bench.root.glob("trials/**/*.log")).read_text()


HYDRA = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    return {returned}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("returned", "metrics", "sweeper"),
    [
        ("config.lr", {"objective": 0.5}, "ax"),
        ("(config.lr, 2)", {"objective_0": 0.5, "objective_1": 2.0}, "nevergrad"),
        ("{'loss': config.lr, 'name': 'x'}", {"loss": 0.5}, "optuna, override hydra/sweeper/sampler: cmaes"),
    ],
)
def test_what_a_function_returns_to_hydra_is_reported(
    tmp_path: Path, returned: str, metrics: dict[str, float], sweeper: str
) -> None:
    """The packages of the sweepers are not installed here."""
    conf = tmp_path / "code" / "conf"
    conf.mkdir(parents=True)
    overrides = ", ".join(f"{{{override}}}" for override in f"override hydra/sweeper: {sweeper}".split(", "))
    text = f"""
        defaults: [_self_, {overrides}, {{override hydra/launcher: joblib}}]
        lr: 9.0
        hydra: {{sweeper: {{params: {{lr: 'interval(0, 1)'}}, ax_config: {{max_trials: 3}}, optim: {{budget: 3}}}}}}
    """
    (conf / "config.yaml").write_text(textwrap.dedent(text))
    program = Program(script="script.py", arguments=("lr={lr}",), metrics=(MetricSource("stdout"),), names=tuple(metrics))
    with Trials(tmp_path, {"script": HYDRA.format(returned=returned)}, program=program, capture=("hydra",)) as bench:
        reports, event = bench.trial("", metrics=tuple(metrics), lr=0.5)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    assert [reported for _, reported in reports] == [metrics] and event.outcome.metrics == metrics
