"""Scikit-learn's `partial_fit` in a trial: a loop over epochs that reports each, and goes on where it was.

model = sklearn.fit_epochs(
    SGDClassifier(alpha=ctx.params["alpha"]),
    epochs=20,
    fit=lambda model: model.partial_fit(x, y, classes=[0, 1]),
    score=lambda model: {"accuracy": model.score(test_x, test_y)},
)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import joblib

import trialplane
from trialplane.integrations.reports import numbers
from trialplane.integrations.saves import Saves

Model = TypeVar("Model")


def fit_epochs(
    model: Model,
    *,
    epochs: int,
    fit: Callable[[Model], object],
    score: Callable[[Model], Mapping[str, Any]],
) -> Model:
    """Fits a model for so many epochs; reports its scores, and saves it, after each.

    A checkpoint is the model as joblib writes it, so loading one runs code: that of the trial that has written it, or of
    the run that `--resume` names.

    Args:
        model: with `partial_fit`; not fitted yet.
        epochs: in all, those of former attempts among them.
        fit: one epoch: calls `partial_fit` of the model once, or for each batch.
        score: the metrics to report, by name.

    Returns:
        the fitted model: another object than `model` when the trial was resumed.

    Raises:
        Pruned: the pruner ends this trial. Let it pass.
        Stopped: the attempt ends here, and the trial goes on in another one. Let it pass.
        CheckpointError: a checkpoint could not be written, or none is whole.
    """
    ctx = trialplane.current()
    saves = Saves("model.joblib")
    found = saves.newest()
    done = 0
    if found is not None:
        model, done = joblib.load(found.file), found.step
    while done < epochs:
        if ctx is not None and ctx.stopping:  # read before the first epoch too: from then on SIGTERM is a request
            raise ctx.stopped(done or None)
        fit(model)
        done += 1
        trialplane.report(done, **numbers(score(model)))
        saves.save(done, lambda file: joblib.dump(model, file))
    return model
