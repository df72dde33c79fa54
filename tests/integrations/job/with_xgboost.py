"""XGBoost: the example, and a cross-validation."""

from __future__ import annotations

import xgboost as xgb
from data import TRAIN, VALID

from trialplane.integrations import xgboost

PARAMS = {"objective": "binary:logistic", "max_depth": 2, "eta": 0.3, "nthread": 1}


def run(ctx):
    train, valid = xgb.DMatrix(*TRAIN), xgb.DMatrix(*VALID)
    callback = xgboost.TrialCallback(save_every=4)
    if ctx.params.get("cv"):
        found = xgb.cv(PARAMS, train, 3, nfold=2, callbacks=[callback], as_pandas=False)
        return {"score": found["test-logloss-mean"][-1]}
    booster = xgb.train(
        PARAMS,
        train,
        callback.rounds(ctx.params.get("epochs", 8)),
        evals=[(train, "train"), (valid, "valid")],
        xgb_model=callback.model,
        callbacks=[callback],
        verbose_eval=False,
    )
    return {"score": float(booster.eval(valid, "valid").rpartition(":")[2]), "rounds": booster.num_boosted_rounds()}
