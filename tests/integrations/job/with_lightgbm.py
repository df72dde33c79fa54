"""LightGBM: the example, and a cross-validation."""

from __future__ import annotations

import lightgbm as lgb
from data import TRAIN, VALID
from sklearn.metrics import log_loss

from trialplane.integrations import lightgbm

PARAMS = {"objective": "binary", "num_leaves": 4, "min_data_in_leaf": 2, "num_threads": 1, "verbosity": -1}


def run(ctx):
    train = lgb.Dataset(*TRAIN)
    callback = lightgbm.TrialCallback(save_every=4)
    if ctx.params.get("cv"):
        found = lgb.cv(PARAMS, train, 3, nfold=2, callbacks=[callback])
        return {"score": found["valid binary_logloss-mean"][-1]}
    valid = lgb.Dataset(*VALID, reference=train)
    booster = lgb.train(
        PARAMS,
        train,
        callback.rounds(ctx.params.get("epochs", 8)),
        valid_sets=[valid],
        init_model=callback.model,
        callbacks=[callback],
    )
    return {"score": log_loss(VALID[1], booster.predict(VALID[0])), "rounds": booster.num_trees()}
