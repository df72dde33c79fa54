"""A sweep's task function as the trials of a study: one job of a multirun each, with the folder that Hydra gives it.

Hydra's internals are used as its own launchers use them.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, open_dict

from hydra_plugins.trialplane_sweeper import _space as space

if TYPE_CHECKING:
    from trialplane import Context

OBJECTIVE = "objective"
_MOST_BASES = 16  # configurations that are made ahead, one for each combination of groups
_VALUE = re.compile(r"[A-Za-z_][\w.]*=")  # changes a value that is there; + adds one, and @ is of a group


@dataclasses.dataclass(frozen=True)
class Task:
    """The part of a sweep that its trials need. Plain values: it is a file of the job.

    Attributes:
        file: the script with the task function.
        module: its name, where it was started by `python -m`, or is not the script itself; else "".
        function: the name of the decorated function in it.
        job: Hydra's name of the job.
        config: the name of the primary configuration, or None.
        search: provider and path of each source of configurations.
        folder: the working directory of the sweep.
        sweep: the folder of the sweep.
        overrides: of Hydra's own configuration.
        fixed: of the task, the same in every trial.
        keys: parameter → the key of its override.
        choices: parameter → its values, of those that have few.
        metrics: the objectives, in the order in which the task returns them.
    """

    file: str
    module: str
    function: str
    job: str
    config: str | None
    search: tuple[tuple[str, str], ...]
    folder: str
    sweep: str
    overrides: tuple[str, ...]
    fixed: tuple[str, ...]
    keys: Mapping[str, str]
    choices: Mapping[str, tuple[Any, ...]]
    metrics: tuple[str, ...]


class Runner:
    """The trials of a sweep. Created once, before the first: it imports the script and reads the configuration's files.

    Args:
        task: of the sweep.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        os.chdir(task.folder)
        self._function = _load(task)
        Plugins.instance()  # which add sources of configurations
        search = ConfigSearchPathImpl()
        for provider, path in task.search:
            search.append(provider, path)
        self._hydra = Hydra.create_main_hydra2(task.job, search)
        # A trial of the same groups changes values only, which takes a fifth of the time that composing takes.
        self._bases = {swept: self._load(swept) for swept in self._groups()}

    def run(self, ctx: Context) -> dict[str, float]:
        """Run the task function with a trial's parameters.

        Returns:
            The objectives by name.

        Raises:
            Invalid: the function has returned something else than numbers.
            whatever the function raises.
        """
        from trialplane.worker import context  # Hydra imports this module at each start, where it must cost nothing

        os.chdir(self._task.folder)
        config = self._compose(ctx.params, ctx.trial)
        endings: list[BaseException] = []

        def function(task_config: DictConfig) -> Any:
            try:
                return self._function(task_config)
            except (context.Pruned, context.Finished, context.Stopped) as error:  # no errors, as Hydra would print them
                endings.append(error)
                return None

        job_return = run_job(
            task_function=function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=HydraContext(config_loader=self._hydra.config_loader, callbacks=Callbacks(config)),
        )
        if endings:
            raise endings[0]
        values = job_return.return_value if isinstance(job_return.return_value, Sequence) else [job_return.return_value]
        try:
            return dict(zip(self._task.metrics, map(float, values), strict=True))
        except (TypeError, ValueError):
            count = len(self._task.metrics)
            expected = "the number" if count == 1 else f"the {count} numbers"
            returned = repr(job_return.return_value)[:100]
            raise context.Invalid(
                f"{self._task.function} returned {returned}; it must return {expected} to optimize, see "
                "hydra.sweeper.direction"
            ) from None

    def _groups(self) -> list[tuple[str, ...]]:
        """The overrides of each combination of configuration groups that the sweep draws, if there are few."""
        groups = self._load(()).hydra.runtime.choices
        swept = [name for name in self._task.choices if self._task.keys[name] in groups]
        if math.prod(len(self._task.choices[name]) for name in swept) > _MOST_BASES:
            return []
        lines = [[space.text(self._task.keys[name], value) for value in self._task.choices[name]] for name in swept]
        return list(itertools.product(*lines))

    def _load(self, swept: Sequence[str]) -> DictConfig:
        """A configuration, composed by Hydra."""
        overrides = [*self._task.overrides, *self._task.fixed, *swept]
        return self._hydra.config_loader.load_configuration(self._task.config, overrides, RunMode.RUN)

    def _compose(self, params: Mapping[str, Any], number: int) -> DictConfig:
        """The configuration of a job."""
        swept = [space.text(self._task.keys[name], value) for name, value in params.items()]
        config = self._changed(swept) or self._load(swept)
        with open_dict(config):
            config.hydra.sweep.dir = self._task.sweep
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        return config

    def _changed(self, swept: Sequence[str]) -> DictConfig | None:
        """The configuration of the same groups with the other values, as Hydra sets them; None where there is none."""
        base = next((override for override in self._bases if set(override) <= set(swept)), None)
        values = [line for line in swept if line not in (base or ())]
        if base is None or any(not _VALUE.match(line) for line in values):
            return None
        config = self._bases.pop(base)  # it becomes this trial's; in a fork nobody else sees that
        parsed = OverridesParser.create().parse_overrides([*self._task.fixed, *swept])
        changes = [override for override in parsed if override.input_line in values]
        ConfigLoaderImpl._apply_overrides_to_config(changes, config)
        config.hydra.overrides.task = [override.input_line for override in parsed]
        words = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(
            overrides=parsed, kv_sep=words.kv_sep, item_sep=words.item_sep, exclude_keys=words.exclude_keys
        )
        return config


def find(function: TaskFunction) -> tuple[str, str]:
    """File and module name of a task function, which a trial can import again.

    Raises:
        ValueError: it cannot, as the function is not at the top of its module.
    """
    name, module = function.__name__, sys.modules.get(function.__module__)
    if module is None or inspect.unwrap(getattr(module, name, None) or _nothing) is not inspect.unwrap(function):
        raise ValueError(f"{name} must be a function at the top of its module, so that trials can import it")
    started_as = getattr(getattr(module, "__spec__", None), "name", "") if module.__name__ == "__main__" else module.__name__
    return str(Path(inspect.getfile(inspect.unwrap(function))).absolute()), started_as


def _nothing() -> None:
    """No task function."""


def _load(task: Task) -> TaskFunction:
    """The task function, without Hydra's decorator."""
    if task.module:
        sys.path.insert(0, task.folder)
        module = importlib.import_module(task.module)
    else:
        sys.path.insert(0, str(Path(task.file).parent))
        name = Path(task.file).stem
        spec = importlib.util.spec_from_file_location(name, task.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{task.file} is no Python script")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # so that what it defines can be pickled, for its workers
        spec.loader.exec_module(module)
    function: TaskFunction = inspect.unwrap(getattr(module, task.function))
    return function
