"""Keras with torch as its backend: the example, with 4 batches of 16 points an epoch."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras as k3
from data import TRAIN, VALID

from trialplane.integrations import keras


class Interrupt(k3.callbacks.Callback):
    """Requests a stop in a batch of an epoch, where nothing is reported and so no test can."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


def run(ctx):
    k3.utils.set_random_seed(ctx.seed)
    model = k3.Sequential([k3.Input((2,)), k3.layers.Dense(4, activation="tanh"), k3.layers.Dense(2)])
    loss = k3.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = k3.optimizers.Adam(ctx.params.get("learning_rate", 0.05))
    if ctx.params.get("scales"):  # as with mixed precision
        optimizer = k3.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    callback = keras.TrialCallback()
    if ctx.params.get("unbuilt"):  # as TensorFlow's optimizers are when the training begins
        callback.set_model(model)
        callback.on_train_begin()
        return {"score": float(model.optimizer.iterations)}
    history = model.fit(
        *TRAIN,
        batch_size=16,
        epochs=ctx.params.get("epochs", 4),
        shuffle=False,
        validation_data=VALID,
        initial_epoch=callback.initial_epoch if ctx.params.get("told", True) else 0,
        callbacks=[
            callback,
            *([Interrupt(ctx.params.get("batch", 1))] if ctx.params.get("interrupt") == ctx.attempt else []),
        ],
        verbose=0,
    )
    return {"score": history.history["val_loss"][-1]}
