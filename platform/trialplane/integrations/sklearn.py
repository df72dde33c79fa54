"""Scikit-learn's `partial_fit` in a trial: a loop over epochs with reports, pruning, clean stops, and resuming.

    model = sklearn.fit_epochs(
        SGDClassifier(alpha=ctx.params["alpha"]),
        epochs=20,
        fit=lambda model: model.partial_fit(x, y, classes=[0, 1]),
        score=lambda model: {"accuracy": model.score(test_x, test_y)},
    )

Metrics have the names that `score` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import joblib

import trialplane
from trialplane.integrations.reports import numeric_metrics
from trialplane.integrations.saves import Saves

Model = TypeVar("Model")


def fit_epochs(
    model: Model,
    *,
    epochs: int,
    fit: Callable[[Model], object],
    score: Callable[[Model], Mapping[str, Any]],
) -> Model:
    """Fit a model epoch by epoch. After each epoch, report its scores and save a checkpoint.

    A checkpoint is the model, written by joblib. Loading it can run code, of this trial or of the run that `--resume` names.

    Args:
        model: Model with `partial_fit`, not fitted yet.
        epochs: Total number of epochs, including those of earlier attempts.
        fit: Function that fits the model for one epoch, with one or more calls of `partial_fit`.
        score: Function that returns the metrics to report, by name.

    Returns:
        The fitted model. In a resumed trial, this is another object than `model`.

    Raises:
        Pruned: The pruner ends the trial. Do not catch it.
        Stopped: The attempt ends, and the trial continues in another one. Do not catch it.
        CheckpointError: A checkpoint could not be written, or all checkpoints are damaged.
    """
    ctx = trialplane.current()
    saves = Saves("model.joblib")
    checkpoint = saves.newest()
    done = 0
    if checkpoint is not None:
        model, done = joblib.load(checkpoint.file), checkpoint.step
    while done < epochs:
        if ctx is not None and ctx.stopping:  # the first read makes SIGTERM a request to stop
            raise ctx.stopped(done or None)
        fit(model)
        done += 1
        trialplane.report(done, **numeric_metrics(score(model)))
        saves.save(done, lambda file: joblib.dump(model, file))
    return model
