"""XGBoost in a trial: reports after each round, pruning, clean stops, and resuming.

    callback = xgboost.TrialCallback()
    booster = xgb.train(
        params, train, callback.rounds(200), evals=[(valid, "valid")], xgb_model=callback.model, callbacks=[callback]
    )

    model = XGBClassifier(n_estimators=callback.rounds(200), callbacks=[callback])
    model.fit(x, y, eval_set=[(valid_x, valid_y)], xgb_model=callback.model)

Metrics have the names that XGBoost prints: `valid-logloss`, `validation_0-logloss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xgboost

import trialplane
from trialplane.integrations.reports import numeric_metrics
from trialplane.integrations.saves import Saves


class TrialCallback(xgboost.callback.TrainingCallback):  # type: ignore[misc]  # its types are not fit for strict checking
    """Callback that reports the evaluations of each round, with the number of rounds done, and saves the model.

    Args:
        save_every: Number of rounds between two checkpoints. One more is saved if a stop is requested, and after the last
            round of a trial with rungs, at which its study pauses it.

    Attributes:
        model: Model to continue from, for `xgb_model=…`. None without a checkpoint, and outside of a trial.
    """

    def __init__(self, save_every: int = 50) -> None:
        super().__init__()
        self._save_every = save_every
        self._saves = Saves("model.ubj")
        checkpoint = self._saves.newest()
        self.model: Any = None if checkpoint is None else xgboost.Booster(model_file=str(checkpoint.file))
        self._done = 0 if checkpoint is None else checkpoint.step  # rounds of earlier attempts
        self._total: int | None = None  # rounds of the trial; None if `rounds` is not used

    def rounds(self, total: int) -> int:
        """Return the number of remaining rounds, at least 1.

        Args:
            total: Total number of rounds of the trial.
        """
        self._total = total
        return max(1, total - self._done)

    def before_training(self, model: Any) -> Any:
        """Make SIGTERM a request to stop."""
        if (ctx := trialplane.current()) is not None:
            _ = ctx.stopping  # the first read makes it one
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Report the round, and save a checkpoint if it is due. XGBoost calls this after each round.

        Returns:
            False: XGBoost would end the training for True.

        Raises:
            Pruned: The pruner ends the trial.
            Stopped: A stop is requested.
        """
        done = self._done + epoch + 1
        newest = {
            f"{data}-{name}": _mean(values[-1]) for data, metrics in evals_log.items() for name, values in metrics.items()
        }
        if newest:
            trialplane.report(done, **numeric_metrics(newest))
        ctx = trialplane.current()
        if ctx is None:
            return False
        is_end = done == self._total  # then there is nothing to stop, and nothing to continue from a checkpoint
        must_stop = ctx.stopping and not is_end
        is_due = done % self._save_every == 0 and not is_end
        is_booster = isinstance(model, xgboost.Booster)  # xgb.cv has one for each fold, from which nothing continues
        if is_booster and (must_stop or is_due or ctx.is_last(done)):
            self._saves.save(done, model.save_model)
        if must_stop:
            raise ctx.stopped(done if is_booster else None)
        return False


def _mean(value: Any) -> Any:
    """Return the mean of a result of xgb.cv, which is a pair of mean and standard deviation; other results unchanged."""
    return value[0] if isinstance(value, tuple) else value
