"""The Trainer of transformers in a trial: reports, pruning, clean stops, and resuming.

    arguments = TrainingArguments(output_dir=huggingface.output_dir("out"), save_strategy="epoch", …)
    trainer = Trainer(model, arguments, …, callbacks=[huggingface.TrialCallback()])
    trainer.train(resume_from_checkpoint=huggingface.resume_from())

Metrics have the names that the Trainer logs: `loss`, `eval_loss`, `eval_accuracy`. Reports are recorded in MLflow too, so
transformers' own callback for MLflow logs no metrics in a trial, and those for W&B and TensorBoard are not captured. A job
with `capture: hf` needs these lines only for checkpoints.

There is no backend for `Trainer.hyperparameter_search`. Write what `hp_space` returns as the `space` of job.yaml instead.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import integration_utils
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import trialplane
from trialplane import errors
from trialplane.integrations import saves
from trialplane.integrations.reports import Reports


class TrialCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Callback that reports what a Trainer logs, and ends the training if the trial is pruned or must stop.

    The metrics of a step are reported once, when the next step starts. An evaluation after the training is reported with the
    last step. If a stop is requested, all ranks stop at the same step: the Trainer saves a checkpoint without an evaluation,
    and the attempt ends. In a trial with rungs, it also saves one at a rung, where the trial is paused, and after the last
    step, regardless of `save_strategy`. If `output_dir` is not in the trial's folder (see `output_dir`), the attempt ends
    without a checkpoint.
    """

    is_used: ClassVar[bool] = False  # whether this process has one; then the library's own logger needs no capture

    def __init__(self) -> None:
        TrialCallback.is_used = True
        self._reports = Reports()
        self._is_training = False
        self._is_stopping = False  # whether the Trainer now saves the last checkpoint before the attempt ends
        self._is_pausing = False  # whether the Trainer now saves a checkpoint at a rung

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, optimizer: Any = None, **_: Any
    ) -> None:
        """Make SIGTERM a request to stop, and check the optimizer of a state that was restored."""
        self._is_training, self._is_stopping = True, False
        _is_stop_requested(args)  # the first read of `Context.stopping` makes SIGTERM a request
        ctx = trialplane.current()
        if ctx is not None and optimizer is not None:
            ctx.check_optimizer(optimizer.param_groups)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the previous step."""
        self._reports.send()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Request a checkpoint at a rung, at the last step of a trial with rungs, and if a stop is requested before that."""
        ctx = trialplane.current()
        if ctx is None:
            return control
        is_done = state.global_step >= state.max_steps
        if not is_done and _is_stop_requested(args):
            return self._stop_training(ctx, args, control)
        self._save_for_rung(ctx, args, state, control)
        # With the strategy "epoch", the Trainer saves the last step by itself. Elsewhere, a checkpoint would be lost.
        if ctx.is_last(state.global_step) and args.save_strategy != "epoch" and _saves_to_trial(args, ctx):
            control.should_save = True
        return control

    def _stop_training(self, ctx: trialplane.Context, args: TrainingArguments, control: TrainerControl) -> TrainerControl:
        """Make the Trainer save a checkpoint and end; `on_save` then ends the attempt.

        Raises:
            Stopped: A checkpoint would be useless, because it would not be in the trial's folder.
        """
        if not _saves_to_trial(args, ctx):
            self._reports.send()
            raise ctx.stopped()
        self._is_stopping = True
        control.should_evaluate = False  # it may take too long
        control.should_save = control.should_training_stop = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Request a checkpoint at a rung whose metrics are those of the evaluation at the end of the epoch."""
        ctx = trialplane.current()
        if ctx is not None and not self._is_stopping:
            self._save_for_rung(ctx, args, state, control)
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Collect the logged metrics."""
        self._add(state, logs)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Collect the metrics of an evaluation."""
        self._add(state, metrics)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the attempt if a stop is requested, or if the trial is paused at a rung."""
        ctx = trialplane.current()
        if ctx is None:
            return
        if _saves_to_trial(args, ctx):
            ctx.saved(state.global_step)  # the trial can now be paused at this step
        if self._is_stopping or self._is_pausing:
            self._is_pausing = False
            self._reports.send()  # at a rung, this ends the attempt
        if self._is_stopping:
            raise ctx.stopped(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the last step."""
        self._is_training = False
        self._reports.send()

    def _save_for_rung(
        self, ctx: trialplane.Context, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> None:
        """Request a checkpoint if the trial will be paused by the metrics that the Trainer logs next."""
        rung_metrics = ctx.rung_metrics(state.global_step)  # compared at the rung; empty without one here
        needs_evaluation = any(name.startswith("eval_") for name in rung_metrics)
        is_logged_next = control.should_evaluate if needs_evaluation else control.should_log
        self._is_pausing = bool(rung_metrics) and is_logged_next and _saves_to_trial(args, ctx)
        control.should_save = control.should_save or self._is_pausing

    def _add(self, state: TrainerState, metrics: Mapping[str, Any] | None) -> None:
        """Collect metrics of the current step. Outside of a training, report them at once."""
        self._reports.add(state.global_step, metrics or {})
        if not self._is_training:
            self._reports.send()


def _mute_in_trials(logger: type[TrainerCallback]) -> None:
    """Change a callback of transformers so that in a trial whose Trainer has a `TrialCallback` no metric counts twice.

    The callback for MLflow logs no metrics there, because reports are recorded in MLflow too. Those for other trackers log,
    but `capture` does not report what they log.
    """
    log = logger.on_log

    @functools.wraps(log)
    def on_log(
        self: TrainerCallback, args: TrainingArguments, state: TrainerState, *positional: Any, **keywords: Any
    ) -> None:
        """Log as the callback does. In such a trial, log without being captured, or for MLflow not at all."""
        ctx = trialplane.current()
        if ctx is None or not TrialCallback.is_used:
            log(self, args, state, *positional, **keywords)
        elif logger is not integration_utils.MLflowCallback:
            with ctx.uncaptured():
                log(self, args, state, *positional, **keywords)

    logger.on_log = on_log


for _logger in (integration_utils.MLflowCallback, integration_utils.TensorBoardCallback, integration_utils.WandbCallback):
    _mute_in_trials(_logger)


def output_dir(otherwise: str) -> str:
    """Return the folder of the trial's checkpoints, for `TrainingArguments(output_dir=…)`.

    Args:
        otherwise: Folder to return outside of a trial.

    Raises:
        InputError: The run saves checkpoints at a URL, and the Trainer only writes to folders.
    """
    ctx = trialplane.current()
    return otherwise if ctx is None else str(saves.local_folder(ctx.checkpoints, "transformers' Trainer"))


def resume_from() -> str | None:
    """Return the newest complete checkpoint, for `Trainer.train(resume_from_checkpoint=…)`.

    Returns:
        Folder of the checkpoint: of the trial, or else of the run or trial from which it starts. None without a
        checkpoint, and outside of a trial.

    Raises:
        InputError: The run saves checkpoints at a URL, and the Trainer only writes to folders.
        CheckpointDamaged: The newest checkpoint of another trial in a population is incomplete.
        CheckpointError: The run or trial from which it starts has no checkpoint.
    """
    ctx = trialplane.current()
    if ctx is None:
        return None
    resumed_location = ctx.resume_from
    checkpoint = _newest(saves.local_folder(ctx.checkpoints, "transformers' Trainer"), ctx.is_usable)
    if checkpoint is None and resumed_location is not None:
        folder = saves.local_folder(resumed_location, "transformers' Trainer")
        checkpoint = _newest(folder, only_newest=ctx.needs_newest)
        if checkpoint is None:
            raise errors.CheckpointError(saves.no_checkpoint_message(ctx, resumed_location))
    return checkpoint


def _newest(folder: Path, is_usable: Callable[[int], bool] = lambda step: True, *, only_newest: bool = False) -> str | None:
    """Return the newest complete checkpoint: one with a readable state, which the Trainer writes last.

    Args:
        folder: Folder of the checkpoints.
        is_usable: Function that returns whether a checkpoint of a step can be used. Others are skipped.
        only_newest: Whether an incomplete checkpoint is an error, instead of one that is skipped.

    Raises:
        CheckpointDamaged: The newest checkpoint is incomplete, with `only_newest`.
    """
    path_by_step: dict[int, Path] = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        _, _, number = path.name.rpartition("-")
        if number.isdigit():
            path_by_step[int(number)] = path
    for step in sorted(filter(is_usable, path_by_step), reverse=True):
        path = path_by_step[step]
        if _is_complete(path, step):
            return str(path)
        if only_newest:
            raise errors.CheckpointDamaged(f"{path / TRAINER_STATE_NAME} is missing or damaged")
    return None


def _is_complete(checkpoint: Path, step: int) -> bool:
    """Return whether a checkpoint has a readable state of its step. A process that is killed while it saves leaves none."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return bool(state["global_step"] == step)


def _is_stop_requested(args: TrainingArguments) -> bool:
    """Return whether a stop is requested in any rank. All ranks call this at the same step."""
    ctx = trialplane.current()
    if ctx is None:
        return False
    if ctx.world_size == 1 or not torch.distributed.is_initialized():
        return ctx.stopping
    flag = torch.tensor(ctx.stopping, dtype=torch.int32, device=args.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


def _saves_to_trial(args: TrainingArguments, ctx: trialplane.Context) -> bool:
    """Return whether the Trainer's checkpoints are in the trial's folder, where the next attempt finds them."""
    folder = Path(ctx.checkpoints.removeprefix("file://")).absolute()
    return Path(args.output_dir).absolute().is_relative_to(folder)
