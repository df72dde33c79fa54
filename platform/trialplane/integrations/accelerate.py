"""Accelerate in a trial: reports, pruning, and checkpoints with `save_state`.

    accelerator = Accelerator(log_with=accelerate.TrialTracker())
    accelerator.init_trackers("mine")
    … = accelerator.prepare(…)
    for step in range(accelerate.resume(accelerator), total):
        …
        accelerator.log({"loss": loss}, step=step + 1)
        accelerate.stop(accelerator, step + 1)

Metrics keep the names they are logged with. The loop itself must skip the batches that are done, for example with
`skip_first_batches`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

import trialplane
from trialplane import errors
from trialplane.integrations import saves
from trialplane.integrations.reports import Reports, numeric_metrics
from trialplane.training.steps import record


class TrialTracker(GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Tracker that reports the metrics of `accelerator.log`: `Accelerator(log_with=TrialTracker())`.

    Without a step, reports are counted. A metric that is logged twice for a step is reported once. In a pruned trial,
    `accelerator.log` raises `Pruned`.
    """

    name = "trialplane"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self._reports = Reports()

    @property
    def tracker(self) -> trialplane.Context | None:
        """Current trial. None outside of a trial."""
        return trialplane.current()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Do nothing: the trial's parameters are already recorded."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Report metrics.

        Args:
            values: Metrics by name. Values that are not numbers are ignored.
            step: Optimizer steps or epochs done. Default: one more than in the report before.

        Raises:
            Pruned: The pruner ends the trial. Do not catch it.
        """
        if step is None:
            trialplane.report(None, **numeric_metrics(values))
        else:
            self._reports.add(step, values)
            self._reports.send()


def save(accelerator: Accelerator, step: int) -> None:
    """Save a checkpoint of the trial with `accelerator.save_state`. Call it in every rank.

    The two newest checkpoints are kept. Outside of a trial, this does nothing.

    Args:
        accelerator: Accelerator with all objects to save, prepared or registered for checkpointing.
        step: Optimizer steps or epochs done.

    Raises:
        InputError: The run saves checkpoints at a URL, and `save_state` only writes to folders.
    """
    ctx = trialplane.current()
    if ctx is None:
        return
    folder = _folder(ctx.checkpoints)
    incomplete = folder / f".step-{step:010d}.saving"
    if accelerator.is_main_process and incomplete.exists():
        shutil.rmtree(incomplete)  # left by a process that was killed while it saved this step
    accelerator.wait_for_everyone()  # no rank may write before the old folder is deleted
    accelerator.save_state(str(incomplete))
    accelerator.wait_for_everyone()  # the checkpoint is complete when all ranks have written
    # `ctx.saved` is not called: with it, the next report could end a trial at its rung in one rank alone. `stop` ends it in
    # all ranks together.
    if accelerator.is_main_process:
        older = _complete_checkpoints(folder)
        incomplete.rename(folder / record.unused_name(step, [path.name for path in older]))
        # The new checkpoint always stays, even if an unusable one of a higher step exists. So one older less stays.
        for outdated in older[: -(saves.KEEP - 1)]:
            shutil.rmtree(outdated)


def stop(accelerator: Accelerator, step: int) -> None:
    """Save a checkpoint and end the attempt, if a stop is requested in any rank. Call it in every rank after each step.

    At the last step of a trial with rungs (steps at which its study pauses it), a checkpoint is saved too.

    Args:
        accelerator: Accelerator with all objects to save.
        step: Optimizer steps or epochs done.

    Raises:
        Stopped: The attempt ends, and the trial continues in another one. Do not catch it.
        InputError: The run saves checkpoints at a URL, and `save_state` only writes to folders.
    """
    ctx = trialplane.current()
    if ctx is None:
        return
    is_requested, is_last = ctx.stopping, ctx.is_last(step)
    if ctx.world_size > 1:
        flags = torch.tensor([int(is_requested), int(is_last)], device=accelerator.device)
        sums = accelerator.reduce(flags, "sum")  # not 0 if a flag is set in any rank
        is_requested, is_last = bool(sums[0]), bool(sums[1])
    if is_requested or is_last:
        save(accelerator, step)
    if is_requested:
        raise ctx.stopped(step)


def resume(accelerator: Accelerator) -> int:
    """Load the newest checkpoint of the trial, or else of the run that `--resume` names. Call it in every rank.

    Args:
        accelerator: Accelerator with all objects to load, prepared or registered for checkpointing.

    Returns:
        Number of steps done. 0 without a checkpoint, and outside of a trial.

    Raises:
        InputError: The run saves checkpoints at a URL, and `save_state` only writes to folders.
        CheckpointError: The run that `--resume` names has no checkpoint.
    """
    ctx = trialplane.current()
    if ctx is None:
        return 0
    resumed_location = ctx.resume_from
    own_checkpoints = _complete_checkpoints(_folder(ctx.checkpoints))
    checkpoints = [path for path in own_checkpoints if ctx.is_usable(record.step_of(path.name))]
    if not checkpoints and resumed_location is not None:
        checkpoints = _complete_checkpoints(_folder(resumed_location))
        if not checkpoints:
            raise errors.CheckpointError(saves.no_checkpoint_message(ctx, resumed_location))
    if not checkpoints:
        return 0
    accelerator.load_state(str(checkpoints[-1]))
    # Accelerate has no public name for the optimizers that it was given.
    ctx.check_optimizer(group for optimizer in accelerator._optimizers for group in optimizer.param_groups)
    return record.step_of(checkpoints[-1].name)


def _folder(location: str) -> Path:
    """Return the folder at a location of checkpoints; raise InputError for a URL."""
    return saves.local_folder(location, "accelerator.save_state")


def _complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first. A checkpoint gets its final name when it is complete."""
    checkpoints = [path for path in folder.iterdir() if record.is_name(path.name)] if folder.is_dir() else []
    return sorted(checkpoints, key=lambda path: record.sort_key(path.name))
