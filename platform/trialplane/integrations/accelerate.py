"""Accelerate in a trial: `accelerator.log` reports, and a loop of one's own stops and goes on with `save_state`.

    accelerator = Accelerator(log_with=accelerate.TrialTracker())
    accelerator.init_trackers("mine")
    … = accelerator.prepare(…)
    for step in range(accelerate.resume(accelerator), total):
        …
        accelerator.log({"loss": loss}, step=step + 1)
        accelerate.stop(accelerator, step + 1)

Metrics have the names that are logged. The loop brings the batches to where it goes on, by `skip_first_batches` for example.
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
from trialplane.integrations.reports import Reports, numbers
from trialplane.training.steps import record

_KEEP = 2  # with two, one that cannot be read has one before it


class TrialTracker(GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Reports what `accelerator.log` gets, with its step; without a step, ctx.report counts.

    A metric that is logged twice for a step is reported once. In a pruned trial `accelerator.log` raises `Pruned`.
    """

    name = "trialplane"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self._reports = Reports()

    @property
    def tracker(self) -> trialplane.Context | None:
        """The trial; None outside of one."""
        return trialplane.current()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Does nothing: the trial's parameters are recorded already."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Reports at once, so that a trial is pruned where it logs."""
        if step is None:
            trialplane.report(None, **numbers(values))
        else:
            self._reports.add(step, values)
            self._reports.send()


def save(accelerator: Accelerator, step: int) -> None:
    """Makes a checkpoint of the trial by `accelerator.save_state`; every rank calls it. Does nothing outside of a trial.

    Args:
        accelerator: with all that is to be saved prepared, or registered for checkpointing.
        step: optimizer steps or epochs done.

    Raises:
        InputError: the run's checkpoints lie at a URL, and `save_state` writes to folders alone.
    """
    ctx = trialplane.current()
    if ctx is None:
        return
    folder = _folder(ctx.checkpoints)
    draft = folder / f".step-{step:010d}.saving"
    if accelerator.is_main_process and draft.exists():  # killed while it was being saved
        shutil.rmtree(draft)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(draft))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        taken = _complete(folder)
        draft.rename(folder / record.name_of(step, [path.name for path in taken]))
        for older in taken[: len(taken) + 1 - _KEEP]:
            shutil.rmtree(older)


def stop(accelerator: Accelerator, step: int) -> None:
    """Ends the attempt with a checkpoint if a stop of any rank is requested; every rank calls it, after each step.

    Args:
        accelerator: as of `save`.
        step: optimizer steps or epochs done.

    Raises:
        Stopped: the attempt ends here, and the trial goes on in another one. Let it pass.
        InputError: as of `save`.
    """
    ctx = trialplane.current()
    if ctx is None:
        return
    requested = ctx.stopping
    if ctx.world_size > 1:
        flag = torch.tensor(int(requested), device=accelerator.device)
        requested = bool(accelerator.reduce(flag, "sum"))
    if requested:
        save(accelerator, step)
        raise ctx.stopped(step)


def resume(accelerator: Accelerator) -> int:
    """Loads the newest checkpoint of the trial, or of the run that `--resume` names; every rank calls it.

    Returns:
        the steps done; 0 when there is no checkpoint, and outside of a trial.

    Raises:
        InputError: as of `save`.
        CheckpointError: the run that `--resume` names has none.
    """
    ctx = trialplane.current()
    if ctx is None:
        return 0
    other = ctx.resume_from
    found = _complete(_folder(ctx.checkpoints))
    if not found and other is not None:
        found = _complete(_folder(other))
        if not found:
            raise errors.CheckpointError(saves.none_at(other))
    if not found:
        return 0
    accelerator.load_state(str(found[-1]))
    return record.order(found[-1].name)[0]


def _folder(place: str) -> Path:
    return saves.folder(place, "accelerator.save_state")


def _complete(folder: Path) -> list[Path]:
    """The checkpoints, the oldest first: they have their names once they are complete."""
    found = [path for path in folder.iterdir() if record.is_name(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: record.order(path.name))
