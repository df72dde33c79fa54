"""Transformers' Trainer in a trial: it reports, is pruned, stops when it is requested to and goes on where it was.

    arguments = TrainingArguments(output_dir=huggingface.output_dir("out"), save_strategy="epoch", …)
    trainer = Trainer(model, arguments, …, callbacks=[huggingface.TrialCallback()])
    trainer.train(resume_from_checkpoint=huggingface.resume_from())

Metrics have the names that the Trainer logs: `loss`, `eval_loss`, `eval_accuracy`. What is reported is in MLflow too: in a
trial transformers' own callback for MLflow leaves the metrics out, and what those for W&B and TensorBoard write is not
captured as well. A job with `capture: hf` needs none of these lines but for the checkpoints.

There is no backend for `Trainer.hyperparameter_search`: it would get a Trainer that holds the model and the data in this
process, and cannot be sent to trials; and in a trial there is nothing left to search. What `hp_space` returned becomes the
`space` of job.yaml.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
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
    """Reports what a Trainer logs, and ends the training when the trial is pruned or requested to stop.

    The metrics of a step are reported once, when the next step begins. An evaluation after the training has no step of its
    own, and is reported with the last one. When a stop is requested, all ranks learn it in the same step; the Trainer
    saves a checkpoint, without an evaluation that is due there, and the attempt ends. If `output_dir` is not in the trial's
    folder (see `output_dir`), nothing is saved for the next attempt, and this one ends at once.
    """

    is_used: ClassVar[bool] = False  # in this process

    def __init__(self) -> None:
        TrialCallback.is_used = True
        self._reports = Reports()
        self._training = False
        self._stops = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Makes SIGTERM a request."""
        self._training, self._stops = True, False
        _is_requested(args)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reports the step before, which is over now."""
        self._reports.send()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Has the Trainer save itself when a stop is requested; a training whose last step this was ends by itself."""
        ctx = trialplane.current()
        if state.global_step >= state.max_steps or ctx is None or not _is_requested(args):
            return control
        if not _is_kept(args, ctx.checkpoints):
            self._reports.send()
            raise ctx.stopped()
        self._stops = True
        control.should_evaluate = False  # it may take longer than there is time for
        control.should_save = control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Takes what is logged."""
        self._add(state, logs)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Takes what a Trainer with a `log` of its own may not have logged."""
        self._add(state, metrics)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ends the attempt once the checkpoint is there, if that is why it was made."""
        ctx = trialplane.current()
        if self._stops and ctx is not None:
            self._reports.send()
            raise ctx.stopped(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reports the last step."""
        self._training = False
        self._reports.send()

    def _add(self, state: TrainerState, metrics: Mapping[str, Any] | None) -> None:
        self._reports.add(state.global_step, metrics or {})
        if not self._training:
            self._reports.send()


def _report_once(logger: type[TrainerCallback]) -> None:
    """Has no metric that ours reports come by another of transformers' callbacks."""
    log = logger.on_log

    @functools.wraps(log)
    def on_log(self: TrainerCallback, args: TrainingArguments, state: TrainerState, *given: Any, **named: Any) -> None:
        ctx = trialplane.current()
        if ctx is None or not TrialCallback.is_used:
            log(self, args, state, *given, **named)
        elif logger is not integration_utils.MLflowCallback:
            with ctx.uncaptured():
                log(self, args, state, *given, **named)

    logger.on_log = on_log


for _logger in (integration_utils.MLflowCallback, integration_utils.TensorBoardCallback, integration_utils.WandbCallback):
    _report_once(_logger)


def output_dir(otherwise: str) -> str:
    """What to give TrainingArguments as `output_dir`: the folder of the trial's checkpoints.

    Args:
        otherwise: the folder outside of a trial.

    Raises:
        InputError: the run's checkpoints lie at a URL, and the Trainer writes to folders alone.
    """
    ctx = trialplane.current()
    return otherwise if ctx is None else str(saves.folder(ctx.checkpoints, "transformers' Trainer"))


def resume_from() -> str | None:
    """What to give `Trainer.train` as `resume_from_checkpoint`: the newest complete checkpoint of the trial.

    Returns:
        its folder; one of the run that `--resume` names while the trial has none; None when there is none at all, and
        outside of a trial.

    Raises:
        InputError: the run's checkpoints lie at a URL.
        CheckpointError: the run that `--resume` names has none.
    """
    ctx = trialplane.current()
    if ctx is None:
        return None
    other = ctx.resume_from
    found = _newest(saves.folder(ctx.checkpoints, "transformers' Trainer"))
    if found is None and other is not None:
        found = _newest(saves.folder(other, "transformers' Trainer"))
        if found is None:
            raise errors.CheckpointError(saves.none_at(other))
    return found


def _newest(folder: Path) -> str | None:
    """The Trainer writes its state last, so a checkpoint with a state that can be read is complete."""
    steps = {
        int(number): path
        for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (number := path.name.rpartition("-")[2]).isdigit()
    }
    for step in sorted(steps, reverse=True):
        try:
            state = json.loads((steps[step] / TRAINER_STATE_NAME).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):  # killed while it was being saved
            continue
        if state["global_step"] == step:
            return str(steps[step])
    return None


def _is_requested(args: TrainingArguments) -> bool:
    """Whether a stop of any rank is requested; all ranks call it at the same steps."""
    ctx = trialplane.current()
    if ctx is None:
        return False
    if ctx.world_size == 1 or not torch.distributed.is_initialized():
        return ctx.stopping
    flag = torch.tensor(ctx.stopping, dtype=torch.int32, device=args.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


def _is_kept(args: TrainingArguments, checkpoints: str) -> bool:
    """Whether what the Trainer saves is there for the next attempt."""
    return Path(args.output_dir).absolute().is_relative_to(Path(checkpoints.removeprefix("file://")).absolute())
