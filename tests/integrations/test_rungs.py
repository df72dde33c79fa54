"""Callbacks save a checkpoint at a rung by themselves, and the next segment continues from it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trialplane.integrations import sklearn, xgboost
from trialplane.wire.records import Segment
from trialplane.worker import context
from trialplane.worker.pausing import Pause


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Puts back what happens at SIGTERM, which callbacks take as a request."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def trial(folder: Path, segment: Segment | None) -> tuple[context.Context, list[int]]:
    """A trial, and the steps that it reports."""
    steps: list[int] = []

    def report(step: int, metrics: object, *, waits: bool = True) -> bool:
        steps.append(step)
        return False

    work = folder / "work"
    work.mkdir(exist_ok=True)
    given = {"code": folder, "cache": folder, "workdir": work, "checkpoints": str(folder / "checkpoints")}
    ctx = context.Context({}, 0, "toy", 0, 1, 1, 0, **given, _reporter=report, _pause=Pause(segment))
    return ctx, steps


def test_fit_epochs(tmp_path: Path) -> None:
    def fit(model: list[int]) -> None:
        model.append(len(model))

    def train(segment: Segment | None) -> tuple[list[int], list[int]]:
        ctx, steps = trial(tmp_path, segment)
        with context.activate(ctx):
            return sklearn.fit_epochs([], epochs=5, fit=fit, score=lambda model: {"loss": len(model)}), steps

    with pytest.raises(context.Paused, match="after step 2"):
        train(Segment(2, ("loss",)))
    model, steps = train(Segment(0, ("loss",), 2, 0))
    assert (model, steps) == ([0, 1, 2, 3, 4], [3, 4, 5])


def test_boosting(tmp_path: Path) -> None:
    xgb = pytest.importorskip("xgboost")
    x = np.random.default_rng(0).random((50, 3))
    data = xgb.DMatrix(x, label=x.sum(axis=1))

    def train(segment: Segment | None) -> tuple[int, list[int]]:
        ctx, steps = trial(tmp_path, segment)
        with context.activate(ctx):
            callback = xgboost.TrialCallback()
            booster = xgb.train(
                {"nthread": 1},
                data,
                callback.rounds(6),
                evals=[(data, "train")],
                xgb_model=callback.model,
                callbacks=[callback],
                verbose_eval=False,
            )
        return booster.num_boosted_rounds(), steps

    with pytest.raises(context.Paused, match="after step 3"):
        train(Segment(3, ("train-rmse",)))
    assert train(Segment(0, ("train-rmse",), 3, 0)) == (6, [4, 5, 6])
