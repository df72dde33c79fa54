"""Keras 3 in a trial, with any backend: reports after each epoch, pruning, gentle stops, and epochs that go on.

    callback = keras.TrialCallback()
    model.fit(x, y, epochs=20, validation_data=…, initial_epoch=callback.initial_epoch, callbacks=[callback])

Metrics have Keras's names: `loss`, `accuracy`, `val_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

import trialplane
from trialplane.integrations.reports import numbers
from trialplane.integrations.saves import Saves


class TrialCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Reports each epoch's metrics under the number of epochs done, and saves weights and optimizer.

    A stop is noticed after each batch: the epoch is given up, and the next attempt begins it anew. After its last batch the
    epoch is done, and saved whatever `save_every` is.

    Args:
        save_every: epochs from one checkpoint to the next.

    Attributes:
        initial_epoch: of `fit`; 0 when the trial begins, and outside of a trial.
    """

    def __init__(self, save_every: int = 1) -> None:
        super().__init__()
        self._every = save_every
        self._saves = Saves("model.weights.h5")
        self._found = self._saves.newest()
        self.initial_epoch = 0 if self._found is None else self._found.step
        self._saved = None if self._found is None else self._found.step

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Loads the checkpoint, if there is one."""
        if (ctx := trialplane.current()) is not None:
            _ = ctx.stopping  # from here on SIGTERM is a request
        if self._found is not None:
            if self.model.optimizer is not None and not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)  # TensorFlow's may not be
            self.model.load_weights(str(self._found.file))

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Checks that the epochs go on where the checkpoint is.

        Raises:
            ValueError: `fit` was not given `initial_epoch`.
        """
        if epoch < self.initial_epoch:
            raise ValueError(
                f"the checkpoint of this trial is of epoch {self.initial_epoch}, and fit begins with epoch {epoch}: call "
                "fit(…, initial_epoch=callback.initial_epoch)"
            )

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Ends the attempt when a stop is requested, unless the epoch is done with this batch."""
        ctx = trialplane.current()
        if ctx is not None and ctx.stopping and batch + 1 != self.params.get("steps"):
            raise ctx.stopped(self._saved)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports, and saves when it is time."""
        done = epoch + 1
        trialplane.report(done, **numbers(logs or {}))
        ctx = trialplane.current()
        if ctx is None or done == self.params["epochs"]:  # fit has no history to give when no epoch is left to do
            return
        stops = ctx.stopping
        if stops or done % self._every == 0:
            self._saves.save(done, lambda file: self.model.save_weights(str(file)))
            self._saved = done
        if stops:
            raise ctx.stopped(done)
