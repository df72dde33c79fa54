"""A script that calls LightningCLI, unchanged, as trials: its arguments in the style `--trainer.max_epochs=2`, its metrics.

Not checked here: the callback itself (test_libraries.py, test_lightning.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, Event

from trialplane import errors
from trialplane.job.program import Program
from trialplane.wire.states import FailureClass, TrialState

SCRIPT = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI


class Module(LightningModule):
    def __init__(self, lr: float = 0.1, bias: bool = True):
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(2, 2, bias=bias)
        print(f"lr is {lr}, bias is {bias}")

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 16, mark: str = ""):
        super().__init__()
        self.batch_size = batch_size
        if mark:
            open(mark, "a").close()

    def train_dataloader(self):
        points = torch.randn(64, 2)
        rows = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
        return torch.utils.data.DataLoader(rows, self.batch_size)

    val_dataloader = train_dataloader


if __name__ == "__main__":
    LightningCLI(Module, Data)
"""
PARAMS = {
    "model.lr": 0.01,
    "model.bias": False,
    "data.batch_size": 32,
    "trainer.max_epochs": 2,
    "trainer.accelerator": "cpu",
    "trainer.logger": False,
    "trainer.enable_checkpointing": False,
}
PROGRAM = Program(
    script="train.py",
    arguments=("fit", "--trainer.callbacks+=trialplane.integrations.lightning.TrialCallback", "{flags}"),
    booleans="value",
    names=("val_loss",),
    sample=PARAMS,
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A slot whose trials are the script; what the script imports is there before, and nothing behind its arguments runs."""
    folder = tmp_path_factory.mktemp("cli")
    program = dataclasses.replace(PROGRAM, sample={**PARAMS, "data.mark": str(folder / "mark")})
    with Bench(folder, {"train": SCRIPT}, program=program, grace=60.0) as made:
        assert not (folder / "mark").exists()
        yield made


def attempt(bench: Bench, prune_at: int = 0, **changes: Any) -> tuple[list[int], Event]:
    """Runs a trial; the steps that it reports, and its last event."""
    request = bench.request("", prunable=True, timeout=600.0)
    request = dataclasses.replace(request, metrics=("val_loss",), params={**PARAMS, **changes})
    steps: list[int] = []

    def prune(event: Event) -> int | None:
        steps.extend(report.step for report in event.reports)
        return steps[-1] if event.waiting and len(steps) == prune_at else None

    event = bench.slot.play(request, prune)[-1]
    return [*steps, *(report.step for report in event.reports)], event


def test_its_arguments_arrive_and_its_metrics_are_reported(bench: Bench) -> None:
    steps, event = attempt(bench)
    outcome = event.outcome
    assert outcome is not None and outcome.state is TrialState.COMPLETE, outcome
    assert steps == [2, 4], "two epochs of two batches"
    assert {"train_loss", "val_loss"} <= set(outcome.metrics)
    log = Path(bench.root, outcome.log).read_text()
    assert "lr is 0.01, bias is False" in log


def test_it_is_pruned_at_a_report(bench: Bench) -> None:
    steps, event = attempt(bench, prune_at=1)
    assert event.outcome is not None and event.outcome.state is TrialState.PRUNED, event.outcome
    assert steps == [2]


def test_an_argument_that_it_does_not_know_is_told(bench: Bench) -> None:
    _, event = attempt(bench, **{"model.depth": 3})
    outcome = event.outcome
    assert outcome is not None and outcome.failure is FailureClass.INVALID, outcome
    assert "train.py does not take its arguments" in outcome.message and "depth" in outcome.message


def test_arguments_that_it_refuses_end_the_run_before_its_first_trial(tmp_path: Path) -> None:
    wrong = dataclasses.replace(PROGRAM, sample={**PARAMS, "model.lr": "fast"})
    with pytest.raises(errors.EntrypointError, match=r"train\.py does not take its arguments"):
        Bench(tmp_path, {"train": SCRIPT}, program=wrong)
