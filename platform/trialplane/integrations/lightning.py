"""The Trainer of Lightning in a trial: reports, pruning, clean stops, and resuming.

    trainer = Trainer(…, callbacks=[lightning.TrialCallback()])
    trainer.fit(model, data, ckpt_path=lightning.resume_from())

Metrics have the names given to `self.log`: `train_loss`, `val_loss`. Works with the packages `lightning` and
`pytorch_lightning`.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import trialplane
from trialplane.integrations.reports import Reports
from trialplane.integrations.saves import Saves

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

_FILE = "model.ckpt"


class TrialCallback(Callback):  # type: ignore[misc]  # its types are not fit for strict checking
    """Callback that reports what a module logs, and saves checkpoints after epochs.

    Metrics of validations and training epochs are reported with the number of optimizer steps done. A requested stop is
    checked after each batch, and all ranks stop at the same one: a checkpoint is saved, and the attempt ends. After the last
    batch of an epoch, the validation is finished first. A checkpoint is also saved at the last step of a trial with rungs,
    at which its study pauses it.

    Args:
        save_every: Number of epochs between two checkpoints.
    """

    def __init__(self, save_every: int = 1) -> None:
        super().__init__()
        self._save_every = save_every
        self._saves = Saves(_FILE)
        self._reports = Reports()
        self._last_metrics: dict[str, Any] = {}
        self._stop_handler: Any = None  # handler of SIGTERM that makes it a request to stop

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make SIGTERM a request to stop, before Lightning sets its own handler, and keep this handler."""
        ctx = trialplane.current()
        if ctx is not None and threading.current_thread() is threading.main_thread():
            _ = ctx.stopping  # the first read installs the handler
            self._stop_handler = signal.getsignal(signal.SIGTERM)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the handler of SIGTERM."""
        self._restore_handler()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the handler of SIGTERM if there was no sanity check, and check the optimizers of a state."""
        self._restore_handler()
        if (ctx := trialplane.current()) is not None:
            ctx.check_optimizer(group for optimizer in trainer.optimizers for group in optimizer.param_groups)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save a checkpoint and end the attempt, if a stop is requested."""
        # After the last batch of an epoch, `on_train_epoch_end` does it. After the last step, there is nothing to stop.
        if not trainer.is_last_batch and trainer.global_step != trainer.max_steps and self._is_stop_requested(trainer):
            self._stop(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Collect the metrics of a validation during the training. Report them now if it is not at the end of an epoch."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._reports.add(trainer.global_step, self._new_metrics(trainer))
        if trainer.is_last_batch:
            return  # reported with the metrics of the epoch
        self._reports.send()
        if trainer.global_step != trainer.max_steps and self._is_stop_requested(trainer):
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the epoch, and save a checkpoint if it is due."""
        self._reports.add(trainer.global_step, self._new_metrics(trainer))
        self._reports.send()
        epochs_done = trainer.current_epoch + 1
        is_at_limit = epochs_done == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if trainer.should_stop or is_at_limit:
            # The training is done. Continued from a checkpoint saved here, fit would return no metrics.
            if (ctx := trialplane.current()) is not None and ctx.is_last(trainer.global_step):
                self._save(trainer)
            return
        if self._is_stop_requested(trainer):
            self._stop(trainer)
        if epochs_done % self._save_every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the remaining metrics."""
        self._reports.send()

    def _restore_handler(self) -> None:
        """Replace Lightning's handler of SIGTERM, which would end the training between batches without a checkpoint.

        When the training ends, Lightning restores the handler from before, which is this one.
        """
        if self._stop_handler is not None:
            signal.signal(signal.SIGTERM, self._stop_handler)

    def _new_metrics(self, trainer: Any) -> dict[str, Any]:
        """Return the metrics that were logged since the last call.

        Lightning keeps the metrics of earlier epochs too. A tensor that is the same object as before was not logged again.
        """
        metrics = dict(trainer.callback_metrics)
        new = {name: value for name, value in metrics.items() if self._last_metrics.get(name) is not value}
        self._last_metrics = metrics
        return new

    def _is_stop_requested(self, trainer: Any) -> bool:
        """Return whether a stop is requested in any rank. All ranks call this at the same time."""
        ctx = trialplane.current()
        if ctx is None:
            return False
        if ctx.world_size == 1:
            return ctx.stopping
        return bool(trainer.strategy.reduce_boolean_decision(ctx.stopping, all=False))

    def _stop(self, trainer: Any) -> None:
        """Save a checkpoint, and raise the exception that ends the attempt."""
        ctx = trialplane.current()
        assert ctx is not None, "a stop is requested in a trial"
        self._save(trainer)
        raise ctx.stopped(trainer.global_step)

    def _save(self, trainer: Any) -> None:
        """Save a checkpoint. All ranks call this, and rank 0 writes."""
        if trialplane.current() is None:
            return
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            file = Path(folder) / _FILE
            trainer.save_checkpoint(file)
            self._saves.add_file(trainer.global_step, file)


def resume_from() -> str | None:
    """Return the newest intact checkpoint, for `Trainer.fit(ckpt_path=…)`.

    Returns:
        Path of the checkpoint: of the trial, or else of the run that `--resume` names. None without a checkpoint, and
        outside of a trial.

    Raises:
        CheckpointDamaged: All checkpoints are damaged.
        CheckpointError: The run that `--resume` names has no checkpoint.
    """
    checkpoint = Saves(_FILE).newest()
    return None if checkpoint is None else str(checkpoint.file)
