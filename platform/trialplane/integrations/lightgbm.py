"""LightGBM in a trial: reports after each round, pruning, clean stops, and resuming.

    callback = lightgbm.TrialCallback()
    booster = lgb.train(
        params, train, callback.rounds(200), valid_sets=[valid], init_model=callback.model, callbacks=[callback]
    )

    model = LGBMClassifier(n_estimators=callback.rounds(200))
    model.fit(x, y, eval_X=valid_x, eval_y=valid_y, init_model=callback.model, callbacks=[callback])

Metrics are named after the data and the metric, `valid_0-auc`: LightGBM prints `valid_0's auc`.
"""

from __future__ import annotations

from typing import Any

import lightgbm

import trialplane
from trialplane.integrations.reports import numeric_metrics
from trialplane.integrations.saves import Saves


class TrialCallback:
    """Callback that reports the evaluations of each round, with the number of rounds done, and saves the model.

    Args:
        save_every: Number of rounds between two checkpoints. One more is saved if a stop is requested, and after the last
            round of a trial with rungs, at which its study pauses it.

    Attributes:
        model: Model to continue from, for `init_model=…`. None without a checkpoint, and outside of a trial.
    """

    order = 25  # LightGBM's own: after record_evaluation, and before early_stopping, which may raise

    def __init__(self, save_every: int = 50) -> None:
        self._save_every = save_every
        self._saves = Saves("model.txt")
        checkpoint = self._saves.newest()
        self.model: Any = None if checkpoint is None else lightgbm.Booster(model_file=str(checkpoint.file))
        self._done = 0 if checkpoint is None else checkpoint.step  # rounds of earlier attempts
        self._total: int | None = None  # rounds of the trial; None if `rounds` is not used
        if (ctx := trialplane.current()) is not None:
            _ = ctx.stopping  # the first read makes SIGTERM a request to stop

    def rounds(self, total: int) -> int:
        """Return the number of remaining rounds, at least 1. `total` then counts as the last round.

        Args:
            total: Total number of rounds of the trial.
        """
        self._total = total
        return max(1, total - self._done)

    def __call__(self, env: Any) -> None:
        """Report the round, and save a checkpoint if it is due. LightGBM calls this after each round.

        Args:
            env: CallbackEnv of LightGBM.
        """
        done = self._done + env.iteration - env.begin_iteration + 1
        # A result has more elements: whether higher is better and, in lgb.cv, the standard deviation.
        newest = {f"{data}-{name}": value for data, name, value, *_ in env.evaluation_result_list or ()}
        if newest:
            trialplane.report(done, **numeric_metrics(newest))
        ctx = trialplane.current()
        if ctx is None:
            return
        is_end = done == self._total  # then there is nothing to stop, and nothing to continue from a checkpoint
        must_stop = ctx.stopping and not is_end
        is_due = done % self._save_every == 0 and not is_end
        is_booster = isinstance(env.model, lightgbm.Booster)  # lgb.cv has one for each fold, from which nothing continues
        if is_booster and (must_stop or is_due or ctx.is_last(done)):
            self._saves.save(done, lambda file: env.model.save_model(file, num_iteration=-1))
        if must_stop:
            raise ctx.stopped(done if is_booster else None)
