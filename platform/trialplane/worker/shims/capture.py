"""Report the metrics that a job logs with other libraries, as its `capture` says.

`wandb.py` replaces W&B's package. In the other libraries a few functions are replaced in the trial's process, when the job
imports them or at once if the template has. If a metric comes in several ways, `context.MetricSources` decides which counts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trialplane.training import imports, mlflow_runs
from trialplane.wire import records
from trialplane.worker import context
from trialplane.worker.metrics.names import Names
from trialplane.worker.shims import hydra, wandb_files

_STAND_IN = "trialplane.worker.shims.wandb"
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

# Converts names that libraries log to names of metrics; set by `begin` for the trial of this process.
_names = Names(requested=(), step="")


def prepare(config: records.SlotConfig) -> None:
    """Make `import wandb` find the stand-in, if the job captures W&B. Call it before the job's code is imported."""
    if captures_wandb(config):
        replace_wandb()


def captures_wandb(config: records.SlotConfig) -> bool:
    """Return whether `import wandb` finds the stand-in in the trials of a slot: by default, if W&B is not installed."""
    if config.capture is None:
        return importlib.util.find_spec("wandb") is None
    return "wandb" in config.capture


def replace_wandb() -> None:
    """Make `import wandb` find the stand-in in this process, and forget W&B's package if it was imported."""
    if not is_wandb_replaced():
        for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Finder())


def is_wandb_replaced() -> bool:
    """Return whether `import wandb` finds the stand-in in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def enter_wandb(folder: Path) -> None:
    """Make the interpreters that this process starts find the stand-in, which logs to files in `folder` for the slot."""
    os.environ |= wandb_files.variables(folder)
    sys.path.insert(0, str(wandb_files.INTERPRETERS))  # multiprocessing passes sys.path on to its processes


def begin(config: records.SlotConfig, request: records.TrialRequest) -> None:
    """Capture the logs of the job's libraries from now on, in the process of a trial or of one of its ranks."""
    global _names
    prepare(config)
    _names = Names(requested=request.metrics, step="")
    captured = config.capture or ()
    if "mlflow" in captured:
        mlflow_runs.report_to(functools.partial(context.note, "mlflow"))
    if "tensorboard" in captured:
        for name in _WRITERS:
            imports.on_import(name, _replace_writer)
    if "hydra" in captured:
        hydra.install(lambda values: context.note("hydra", 0, dict(numeric_metrics(values))))
    if "hf" in captured:
        imports.on_import("transformers.trainer", _replace_trainer)


def numeric_metrics(values: object, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a dict, also those of numpy, torch and nested dicts, with the metrics that their names stand for.

    Other values are left out. Nothing is yielded for anything but a dict.
    """
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numeric_metrics(value, f"{prefix}{name}.")
            continue
        number = _number(value)
        metric = _names.lookup(f"{prefix}{name}").metric  # "" for the name of something else, such as an epoch
        if number is not None and metric:
            yield metric, number


def _number(value: Any) -> float | None:
    """Return a number, or an array with a single number, as a float. None for any other value, even a text of digits."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several
        return None


def _replace_writer(module: ModuleType) -> None:
    """Make `SummaryWriter.add_scalar` also report to the trial."""
    add_scalar = module.SummaryWriter.add_scalar
    next_steps: dict[str, int] = {}  # tag → step of its next call, if that has none

    @functools.wraps(add_scalar)
    def add_and_report(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write a scalar as `add_scalar`, and report it; calls without a step are counted."""
        written = add_scalar(writer, tag, scalar_value, global_step, *args, **kwargs)
        step = next_steps.get(tag, 0) if global_step is None else int(global_step)
        next_steps[tag] = step + 1
        context.note("tensorboard", step, dict(numeric_metrics({tag: scalar_value})))
        return written

    module.SummaryWriter.add_scalar = add_and_report


def _replace_trainer(module: ModuleType) -> None:
    """Make each new Trainer in a trial add a `TrialCallback` to its callbacks, unless it has one."""
    init: Callable[..., None] = module.Trainer.__init__

    @functools.wraps(init)
    def with_callback(trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Create the Trainer, and add the callback in a trial."""
        init(trainer, *args, **kwargs)
        from trialplane.integrations import huggingface  # imports torch and transformers, which are loaded by then

        callbacks = trainer.callback_handler.callbacks
        has_callback = any(isinstance(callback, huggingface.TrialCallback) for callback in callbacks)
        if context.current() is not None and not has_callback:
            trainer.add_callback(huggingface.TrialCallback())

    module.Trainer.__init__ = with_callback


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of the stand-in for `wandb`, and of its submodules, whose functions do nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of `wandb` or of one of its submodules; None for other modules."""
        if fullname.partition(".")[0] != "wandb":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the stand-in, or for a submodule an empty module that gets its names from the stand-in."""
        stand_in = importlib.import_module(_STAND_IN)
        if spec.name == "wandb":
            return stand_in
        module = ModuleType(spec.name)
        module.__getattr__ = stand_in.__getattr__  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because `create_module` returns a complete module."""
