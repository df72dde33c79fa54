"""Keras 3 in a trial, with any backend: reports after each epoch, pruning, clean stops, and resuming.

    callback = keras.TrialCallback()
    model.fit(x, y, epochs=20, validation_data=…, initial_epoch=callback.initial_epoch, callbacks=[callback])

Metrics have Keras's names: `loss`, `accuracy`, `val_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

import trialplane
from trialplane.integrations.reports import numeric_metrics
from trialplane.integrations.saves import Saves

_SET_RATE = "set model.optimizer.learning_rate in on_train_begin of a callback behind TrialCallback"


class TrialCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Callback that reports the metrics of each epoch, with the number of epochs done, and saves weights and optimizer.

    A requested stop is checked after each batch. Within an epoch, the attempt ends at once, and the next attempt repeats the
    epoch. At the end of an epoch, a checkpoint is saved first, regardless of `save_every`. So is one after the last epoch of
    a trial with rungs, at which its study pauses it.

    Args:
        save_every: Number of epochs between two checkpoints.

    Attributes:
        initial_epoch: Value for `fit(initial_epoch=…)`. 0 without a checkpoint, and outside of a trial.
    """

    def __init__(self, save_every: int = 1) -> None:
        super().__init__()
        self._save_every = save_every
        self._saves = Saves("model.weights.h5")
        self._checkpoint = self._saves.newest()
        self.initial_epoch = 0 if self._checkpoint is None else self._checkpoint.step
        self._saved_epoch = None if self._checkpoint is None else self._checkpoint.step

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Load the checkpoint, if any, and check the learning rate in it."""
        ctx, optimizer = trialplane.current(), self.model.optimizer
        if ctx is not None:
            _ = ctx.stopping  # the first read makes SIGTERM a request to stop
        if self._checkpoint is not None:
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)  # TensorFlow's optimizer may not be built
            self.model.load_weights(str(self._checkpoint.file))
            if ctx is not None and optimizer is not None:
                self._check_learning_rate(ctx, optimizer)

    def _check_learning_rate(self, ctx: trialplane.Context, optimizer: Any) -> None:
        """Warn if the checkpoint has another learning rate than the trial. It has no other setting of the optimizer."""
        own_optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # mixed precision wraps it in another one
        rate = own_optimizer.get_config().get("learning_rate")
        if isinstance(rate, float):  # that of a schedule is a dict
            single_precision_rate = float(f"{rate:.6g}")
            ctx.check_optimizer([{"lr": single_precision_rate}], _SET_RATE)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Check that `fit` continues from the checkpoint.

        Raises:
            ValueError: `fit` was called without `initial_epoch`.
        """
        if epoch < self.initial_epoch:
            raise ValueError(
                f"the checkpoint of this trial is of epoch {self.initial_epoch}, and fit begins with epoch {epoch}: call "
                "fit(…, initial_epoch=callback.initial_epoch)"
            )

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """End the attempt if a stop is requested, unless this was the last batch of the epoch."""
        ctx = trialplane.current()
        if ctx is not None and ctx.stopping and batch + 1 != self.params.get("steps"):
            raise ctx.stopped(self._saved_epoch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the epoch, and save a checkpoint if it is due."""
        done = epoch + 1
        trialplane.report(done, **numeric_metrics(logs or {}))
        ctx = trialplane.current()
        if ctx is None:
            return
        # After the last epoch there is nothing to stop, and a retry from its checkpoint would have no epoch and no history.
        is_end = done == self.params["epochs"]
        must_stop = ctx.stopping and not is_end
        is_due = done % self._save_every == 0 and not is_end
        if must_stop or is_due or ctx.is_last(done):
            self._saves.save(done, lambda file: self.model.save_weights(str(file)))
            self._saved_epoch = done
        if must_stop:
            raise ctx.stopped(done)
