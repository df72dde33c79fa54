"""Scikit-learn's partial_fit: the example."""

from __future__ import annotations

from data import TRAIN, VALID
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from trialplane.integrations import sklearn


def run(ctx):
    model = sklearn.fit_epochs(
        SGDClassifier(loss="log_loss", random_state=ctx.seed, shuffle=False),
        epochs=ctx.params.get("epochs", 8),
        fit=lambda model: model.partial_fit(*TRAIN, classes=[0, 1]),
        score=lambda model: {"accuracy": model.score(*VALID), "log_loss": log_loss(VALID[1], model.predict_proba(VALID[0]))},
    )
    return {"score": log_loss(VALID[1], model.predict_proba(VALID[0]))}
