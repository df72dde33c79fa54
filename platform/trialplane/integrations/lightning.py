"""Lightning's Trainer in a trial: it reports, is pruned, stops when it is requested to and goes on where it was.

    trainer = Trainer(…, callbacks=[lightning.TrialCallback()])
    trainer.fit(model, data, ckpt_path=lightning.resume_from())

Metrics have the names that `self.log` gets: `train_loss`, `val_loss`. Works with the packages `lightning` and
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
    """Reports what a module logs, and saves the training after epochs.

    Metrics of a validation and of a training epoch are reported with the optimizer steps done, those of one step together.
    A stop is noticed after each batch, by all ranks in the same one: the training is saved there, and the attempt ends.
    After the last batch of an epoch its validation is waited for.

    Args:
        save_every: epochs from one checkpoint to the next.
    """

    def __init__(self, save_every: int = 1) -> None:
        super().__init__()
        self._every = save_every
        self._saves = Saves(_FILE)
        self._reports = Reports()
        self._known: dict[str, Any] = {}
        self._handler: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Makes SIGTERM a request, before Lightning has a handler of its own."""
        ctx = trialplane.current()
        if ctx is not None and threading.current_thread() is threading.main_thread():
            _ = ctx.stopping
            self._handler = signal.getsignal(signal.SIGTERM)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes SIGTERM back."""
        self._take_back()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes SIGTERM back, where there was no sanity check."""
        self._take_back()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Reports a validation within an epoch."""
        self._reports.send()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Saves, and ends the attempt, when a stop is requested."""
        if not trainer.is_last_batch and trainer.global_step != trainer.max_steps and self._is_requested(trainer):
            self._stop(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes the metrics of a validation within the training."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._reports.add(trainer.global_step, self._new(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports the epoch, and saves when it is time."""
        self._reports.add(trainer.global_step, self._new(trainer))
        self._reports.send()
        done = trainer.current_epoch + 1
        if trainer.should_stop or done == trainer.max_epochs or trainer.global_step == trainer.max_steps:
            return  # nothing is left to do: from a checkpoint of here, fit would have no metrics to give
        if self._is_requested(trainer):
            self._stop(trainer)
        if done % self._every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports what is left."""
        self._reports.send()

    def _take_back(self) -> None:
        """Lightning's handler, set after `setup`, would end the training between two batches, with nothing saved.

        When the training ends, Lightning restores the one that it found, which is the same.
        """
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)

    def _new(self, trainer: Any) -> dict[str, Any]:
        """The metrics that were logged since the last look.

        Lightning keeps all of them, also those of a validation some epochs ago: what is the same tensor as before was not
        logged again.
        """
        metrics = dict(trainer.callback_metrics)
        new = {name: value for name, value in metrics.items() if self._known.get(name) is not value}
        self._known = metrics
        return new

    def _is_requested(self, trainer: Any) -> bool:
        """Whether a stop of any rank is requested; all ranks call it at the same moments."""
        ctx = trialplane.current()
        if ctx is None:
            return False
        if ctx.world_size == 1:
            return ctx.stopping
        return bool(trainer.strategy.reduce_boolean_decision(ctx.stopping, all=False))

    def _stop(self, trainer: Any) -> None:
        ctx = trialplane.current()
        assert ctx is not None, "a stop is requested in a trial"
        self._save(trainer)
        raise ctx.stopped(trainer.global_step)

    def _save(self, trainer: Any) -> None:
        """All ranks call it, and rank 0 writes."""
        if trialplane.current() is None:
            return
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            file = Path(folder) / _FILE
            trainer.save_checkpoint(file)
            self._saves.add(trainer.global_step, file)


def resume_from() -> str | None:
    """What to give `Trainer.fit` as `ckpt_path`: the newest whole checkpoint of the trial.

    Returns:
        a file; of the run that `--resume` names while the trial has none; None when there is none at all, and outside of a
        trial.

    Raises:
        CheckpointDamaged: there are checkpoints, and none is whole.
        CheckpointError: the run that `--resume` names has none.
    """
    found = Saves(_FILE).newest()
    return None if found is None else str(found.file)
