"""CatBoost: the example."""

from __future__ import annotations

import contextlib

from catboost import CatBoostClassifier
from data import TRAIN, VALID

from trialplane.integrations import catboost


def run(ctx):
    model = CatBoostClassifier(
        iterations=ctx.params.get("epochs", 8), depth=2, thread_count=1, random_seed=ctx.seed, verbose=False
    )
    callback = catboost.TrialCallback()
    with contextlib.nullcontext() if ctx.params.get("bare") else callback:
        model.fit(*TRAIN, eval_set=VALID, callbacks=[callback], **callback.snapshot)
    return {"score": model.evals_result_["validation"]["Logloss"][-1], "rounds": model.tree_count_}
