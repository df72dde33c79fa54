"""What libraries log as reports of trials of a real slot: by W&B's calls, TensorBoard, MLflow and transformers, each once.

Not checked here: how the field is read (tests/job/test_program.py), and what it prints beside (metrics/test_reader.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, Event

from trialplane.job.program import MetricSource, Program
from trialplane.wire import env
from trialplane.wire.states import TrialState
from trialplane.worker.shims import wandb as stand_in

pytestmark = pytest.mark.services

JOB = """
import argparse, os
import mlflow
import numpy as np
import torch
import wandb
from torch.utils.tensorboard import SummaryWriter

from trialplane.integrations import huggingface

def sweep(ctx):
    def train():
        with wandb.init(project="p", config={"lr": 9.0, "epochs": 2}) as run:
            wandb.watch(object())
            assert wandb.run is run and dict(run.config)["lr"] == wandb.config["lr"] == 0.5
            for epoch in range(wandb.config.epochs):
                wandb.log({"score": wandb.config.lr + epoch, "of": {"a": np.float32(epoch)}, "image": wandb.Image([[0]])})
            run.summary["best"] = 1.5
            wandb.summary["score"] = 1.5
    wandb.agent(wandb.sweep({"method": "bayes"}), function=train, count=20)

def steps(ctx):
    wandb.init(config=argparse.Namespace(depth=3))
    wandb.log({"a": 1.0}, commit=False)
    wandb.log({"score": 1.0})
    wandb.log({"score": 2.0}, step=7)
    wandb.log({"b": 3.0}, step=7)
    wandb.log({"score": 4.0}, step=3)
    wandb.finish()
    wandb.init(reinit=True).log({"score": 5.0})
    wandb.config.lr = 3
    wandb.config.update(None)
    assert (wandb.config.lr, wandb.config.depth, "depth" in wandb.config) == (0.5, 3, True)
    assert "__doc__" not in wandb.config
    for values in (wandb.config, wandb.summary):
        try:
            values.other
        except AttributeError as error:
            print(error)
    try:
        wandb.Api().run("x")
    except wandb.errors.CommError as error:
        ctx.report(score=6.0)

def facts(ctx):
    import re, time
    from wandb.sdk.lib.runid import generate_id
    run = wandb.init(project="p", resume="allow", id=wandb.util.generate_id(), job_type="train")
    assert (run.resumed, run.offline, run.disabled, run.sweep_id, run.url) == (False, True, False, None, None)
    assert isinstance(run.start_time, float) and 0 <= time.time() - run.start_time < 3600
    assert (run.job_type, run.path) == ("train", f"p/{run.id}")
    names = {wandb.util.generate_id(), generate_id()}
    assert len(names) == 2 and all(re.fullmatch("[a-z0-9]{8}", name) for name in names), names
    assert len(generate_id(12)) == 12
    ctx.report(score=1.0)

def pruned(ctx):
    for epoch in range(9):
        wandb.log({"score": epoch})
    raise AssertionError("not reached")

def board(ctx):
    writer = SummaryWriter("elsewhere")
    for step in range(1, 3):
        writer.add_scalar("SCORE", torch.tensor(step / 2), step)
        writer.add_scalar("train/loss", 0.5, step)
    writer.add_scalar("SCORE", 2.0)
    writer.add_scalars("both", {"a": 1.0}, 1)
    assert os.listdir("elsewhere")

def x(ctx):
    import tensorboardX
    tensorboardX.SummaryWriter("x").add_scalar("score", 1.0, 3)

def flow(ctx):
    mlflow.log_metric("score", 1.0, step=1)
    mlflow.log_metrics({"score": 2.0, "loss": 0.5}, step=2)

def all_of_them(ctx):
    writer = SummaryWriter("x")
    for step in range(1, 4):
        mlflow.log_metric("score", step / 4, step=step)
        wandb.log({"score": step / 4})
        writer.add_scalar("score", step / 4, step)
        ctx.report(step, score=step / 4)

def trainer(ctx):
    from transformers import Trainer, TrainingArguments
    class Model(torch.nn.Linear):
        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(super().forward(x), labels)}
    row = {"x": torch.ones(1), "labels": torch.ones(1)}
    arguments = TrainingArguments("out", max_steps=4, logging_steps=1, report_to=["mlflow", "tensorboard", "wandb"],
        use_cpu=True, disable_tqdm=True, save_strategy="no", per_device_train_batch_size=1)
    own = [huggingface.TrialCallback()] if ctx.params.get("own") else []
    Trainer(Model(1, 1), arguments, train_dataset=[row] * 4, callbacks=own).train()
    ctx.report(100, score=1.0)

def run(ctx):
    globals()[ctx.params["what"]](ctx)
"""


class Trials(Bench):
    """A slot for trials of the job above; all of their reports are kept."""

    def trial(
        self, what: str, *, prune: bool = False, metrics: tuple[str, ...] = ("score",), **params: Any
    ) -> tuple[list[tuple[int, dict[str, float]]], Event]:
        """The reports of a trial, and its last event."""
        request = dataclasses.replace(self.request(what, timeout=600.0, prunable=prune, **params), metrics=metrics)
        reports: list[tuple[int, dict[str, float]]] = []
        event = self.slot.run(request)
        while True:
            reports += [(report.step, dict(report.metrics)) for report in event.reports]
            if event.outcome is not None:
                return reports, event
            event = self.slot.answer(reports[-1][0] if prune and len(reports) == 2 else None)

    def log(self, event: Event) -> str:
        assert event.outcome is not None
        return (self.root / event.outcome.log).read_text()


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    root = tmp_path_factory.mktemp("captured")
    store = {env.MLFLOW_TRACKING_URI: f"sqlite:///{root}/mlflow.db", "MLFLOW_EXPERIMENT_NAME": "captured"}
    preload = ("transformers",)
    captured = ("wandb", "mlflow", "tensorboard", "hf")
    with Trials(root, {"train": JOB}, capture=captured, preload=preload, env=store) as bench:
        yield bench


def test_a_sweeps_script_runs_as_it_is(trials: Trials) -> None:
    reports, event = trials.trial("sweep", lr=0.5)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    assert reports == [(0, {"score": 0.5, "of.a": 0.0}), (1, {"score": 1.5, "of.a": 1.0}), (1, {"best": 1.5})]
    log = trials.log(event)
    for said in (
        "wandb.watch does nothing",
        "wandb.Image does nothing",
        "wandb.sweep is not started",
        "runs its function once",
    ):
        assert log.count(said) == 1, log


def test_steps_of_wandb_are_the_trials(trials: Trials) -> None:
    reports, event = trials.trial("steps", lr=0.5)
    assert reports == [
        (0, {"a": 1.0, "score": 1.0}),
        (7, {"score": 2.0}),
        (7, {"b": 3.0}),
        (8, {"score": 5.0}),
        (0, {"score": 6.0}),
    ], "a step before is left out; a second run goes on; the job's own report takes the metric over"
    assert event.outcome is not None and event.outcome.metrics["score"] == 6.0, event.outcome
    assert "wandb.config.lr = 3 is ignored: the trial's parameter lr is 0.5" in trials.log(event)
    assert "wandb.config has no 'other'; it has " in trials.log(event)
    assert "wandb.summary has no 'other'; it has " in trials.log(event)


def test_what_a_run_says_of_itself_is_what_wandb_documents(trials: Trials) -> None:
    """Scripts branch on it: on `resumed` to look for a checkpoint, on `sweep_id` to read another configuration."""
    _, event = trials.trial("facts")
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome.message


def test_frameworks_find_the_options_of_wandb_in_its_signature() -> None:
    """LightningCLI refuses those of `WandbLogger` that it does not find there."""
    import wandb

    options = inspect.signature(wandb.init).parameters.keys()
    assert options <= inspect.signature(stand_in.init).parameters.keys()


def test_a_pruned_trial_ends_in_wandb_log(trials: Trials) -> None:
    reports, event = trials.trial("pruned", prune=True)
    assert [step for step, _ in reports] == [0, 1]
    assert event.outcome is not None
    assert (event.outcome.state, event.outcome.message) == (TrialState.PRUNED, "pruned at step 1")


def test_tensorboard_reports_and_writes(trials: Trials) -> None:
    reports, event = trials.trial("board")
    scores = [
        (1, {"score": 0.5}),
        (1, {"train/loss": 0.5}),
        (2, {"score": 1.0}),
        (2, {"train/loss": 0.5}),
        (3, {"score": 2.0}),
    ]
    assert reports == scores, event.outcome
    assert trials.trial("x")[0] == [(3, {"score": 1.0})]


def test_mlflows_calls_of_a_function_are_reports(trials: Trials) -> None:
    reports, event = trials.trial("flow")
    assert reports == [(1, {"score": 1.0}), (2, {"score": 2.0, "loss": 0.5})], event.outcome


def test_no_point_comes_twice(trials: Trials) -> None:
    """The first point has come by MLflow when the job's own report takes the metric over."""
    reports, event = trials.trial("all_of_them")
    assert reports == [(step, {"score": step / 4}) for step in (1, 2, 3)], event.outcome


@pytest.mark.parametrize("own", [False, True])
def test_a_trainer_reports_each_step_once(trials: Trials, own: bool) -> None:
    """With transformers' own callbacks for MLflow, TensorBoard and W&B beside ours, which is added where there is none."""
    reports, event = trials.trial("trainer", own=own)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    losses = [(step, name) for step, metrics in reports for name in metrics if name.endswith("loss")]
    assert losses == [*((step, "loss") for step in (1, 2, 3, 4)), (4, "train_loss")]


def test_a_library_that_is_not_captured_is_left_alone(tmp_path: Path) -> None:
    job = {"train": JOB.replace("import mlflow\n", "").replace("import wandb\n", "")}
    with Trials(tmp_path, job, capture=()) as bench:
        reports, event = bench.trial("board")
    assert reports == [] and event.outcome is not None and event.outcome.failure is not None


SCRIPT = """
import sys, wandb
wandb.init(config={"lr": 0.1})
for epoch in range(3):
    print(f"score={wandb.config.lr + epoch}")
    wandb.log({"score": wandb.config.lr + epoch})
    wandb.log({"loss": 1.0 / (epoch + 1)})
print(wandb.__version__, file=sys.stderr)
"""


def test_without_the_package_a_script_reports_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints as well is read once; the package is hidden from the slot's processes."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'wandb' else find(name, package)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")]))
    program = Program(script="script.py", metrics=(MetricSource("stdout"),), names=("score",), arguments=())
    with Trials(tmp_path, {"script": SCRIPT}, program=program, keep=("script.py",)) as bench:
        reports, event = bench.trial("", lr=0.5)
        assert [file.name for file in bench.root.glob("checkpoints/toy/trial-0/files/*")] == ["script.py"]
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    assert [(name, value) for _, metrics in reports for name, value in metrics.items() if name == "score"] == [
        ("score", 0.5),
        ("score", 1.5),
        ("score", 2.5),
    ]


def test_a_command_that_sets_the_path_of_modules_is_captured(tmp_path: Path) -> None:
    command = ("env", "PYTHONPATH=elsewhere", "python", "script.py")
    program = Program(command=command, metrics=(MetricSource("none"),), names=("score",), arguments=())
    with Trials(tmp_path, {"script": SCRIPT}, program=program, capture=("wandb",)) as bench:
        reports, event = bench.trial("x", lr=0.5)
    assert event.outcome is not None and event.outcome.state is TrialState.COMPLETE, event.outcome
    assert event.outcome.metrics["score"] == 2.5, reports
