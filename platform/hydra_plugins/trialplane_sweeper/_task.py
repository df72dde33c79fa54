"""The trials of a study whose parameters are a Hydra sweep: each trial calls the task function as a job of a multirun.

A job has the folder and the configuration that Hydra's own sweeper would give it. For that, this module uses internals of
Hydra, as Hydra's launchers do.
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

from hydra_plugins.trialplane_sweeper._space import override_text

if TYPE_CHECKING:
    from trialplane import Context

OBJECTIVE = "objective"
_MOST_BASES = 16  # configurations that are composed before the first trial, one for each combination of groups
# The start of an override that changes a value, such as `optimizer.lr=0.1`. `+key=…` adds one, `db@key=…` selects a group.
_CHANGES_VALUE = re.compile(r"[A-Za-z_][\w.]*=")


@dataclasses.dataclass(frozen=True)
class Task:
    """The part of a sweep that its trials need. It has plain values only, as it is written into a file of the job.

    Attributes:
        file: Path of the script with the task function.
        module: Name of the module with the function, to import it by; "" if the script is started as a file.
        function: Name of the decorated task function.
        job_name: Hydra's name of the job.
        config_name: Name of the primary configuration; None without one.
        config_sources: Provider and path of each source of configurations.
        folder: Working directory of the sweep.
        sweep_folder: Folder of the sweep's output.
        hydra_overrides: Overrides of Hydra's own configuration.
        fixed_overrides: Overrides of the task's configuration that are the same in every trial.
        keys: Name of a parameter → key of its override.
        choices: Name of a categorical parameter → its values.
        metrics: Names of the objectives, in the order in which the function returns them.
    """

    file: str
    module: str
    function: str
    job_name: str
    config_name: str | None
    config_sources: tuple[tuple[str, str], ...]
    folder: str
    sweep_folder: str
    hydra_overrides: tuple[str, ...]
    fixed_overrides: tuple[str, ...]
    keys: Mapping[str, str]
    choices: Mapping[str, tuple[Any, ...]]
    metrics: tuple[str, ...]


class Runner:
    """A runner of a sweep's trials. It is created once, before the first trial, and imports the script.

    Args:
        task: Part of the sweep that its trials need.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        os.chdir(task.folder)
        self._function = _import_function(task)
        Plugins.instance()  # loads Hydra's plugins, which can add sources of configurations
        search_path = ConfigSearchPathImpl()
        for provider, path in task.config_sources:
            search_path.append(provider, path)
        self._hydra = Hydra.create_main_hydra2(task.job_name, search_path)
        # One configuration for each combination of groups. To change its values takes a fifth of the time of composing it.
        self._bases = {overrides: self._compose(overrides) for overrides in self._group_overrides()}

    def run(self, ctx: Context) -> dict[str, float]:
        """Run the task function with a trial's parameters.

        Returns:
            The objectives, by name.

        Raises:
            Invalid: The function did not return one number for each objective.
            Pruned, Finished, Stopped: The trial ended early.
            Exception: The task function raised it.
        """
        from trialplane.worker import context  # imported here, as the sweeper imports this module when Hydra starts

        os.chdir(self._task.folder)
        config = self._trial_config(ctx.params, ctx.trial)
        early_ends: list[BaseException] = []

        def run_task(task_config: DictConfig) -> Any:
            """Call the task function; record an exception that ends the trial early in `early_ends`, and return None."""
            try:
                return self._function(task_config)
            # These are normal ends of a trial. `run_job` would catch them and print them as errors of the job.
            except (context.Pruned, context.Finished, context.Stopped) as error:
                early_ends.append(error)
                return None

        job_return = run_job(
            task_function=run_task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=HydraContext(config_loader=self._hydra.config_loader, callbacks=Callbacks(config)),
        )
        if early_ends:
            raise early_ends[0]
        returned = job_return.return_value
        values = returned if isinstance(returned, Sequence) else [returned]
        try:
            return dict(zip(self._task.metrics, map(float, values), strict=True))
        except (TypeError, ValueError):
            count = len(self._task.metrics)
            expected = "the number" if count == 1 else f"the {count} numbers"
            raise context.Invalid(
                f"{self._task.function} returned {repr(returned)[:100]}; it must return {expected} to optimize, see "
                "hydra.sweeper.direction"
            ) from None

    def _group_overrides(self) -> list[tuple[str, ...]]:
        """Return the overrides of each combination of the swept configuration groups; [] for more than `_MOST_BASES`."""
        groups = self._compose(()).hydra.runtime.choices
        group_params = [name for name in self._task.choices if self._task.keys[name] in groups]
        if math.prod(len(self._task.choices[name]) for name in group_params) > _MOST_BASES:
            return []
        overrides_of_params = [
            [override_text(self._task.keys[name], value) for value in self._task.choices[name]] for name in group_params
        ]
        return list(itertools.product(*overrides_of_params))

    def _compose(self, swept: Sequence[str]) -> DictConfig:
        """Return the configuration that Hydra composes with the overrides in `swept` and those of the sweep."""
        overrides = [*self._task.hydra_overrides, *self._task.fixed_overrides, *swept]
        return self._hydra.config_loader.load_configuration(self._task.config_name, overrides, RunMode.RUN)

    def _trial_config(self, params: Mapping[str, Any], number: int) -> DictConfig:
        """Return the configuration of the job with this number, and make it the one that `HydraConfig` returns."""
        swept = [override_text(self._task.keys[name], value) for name, value in params.items()]
        config = self._compose_from_base(swept) or self._compose(swept)
        with open_dict(config):
            config.hydra.sweep.dir = self._task.sweep_folder
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        return config

    def _compose_from_base(self, swept: Sequence[str]) -> DictConfig | None:
        """Return the configuration with the overrides in `swept`, made from a base with the same groups.

        None if there is no such base, or if another override does more than change an existing value.
        """
        group_overrides = next((overrides for overrides in self._bases if set(overrides) <= set(swept)), None)
        if group_overrides is None:
            return None
        value_overrides = [override for override in swept if override not in group_overrides]
        if not all(_CHANGES_VALUE.match(override) for override in value_overrides):
            return None
        # The base is changed in place. A trial runs in a fork of this process, so the other trials keep it as it was.
        config = self._bases.pop(group_overrides)
        parsed = OverridesParser.create().parse_overrides([*self._task.fixed_overrides, *swept])
        changes = [override for override in parsed if override.input_line in value_overrides]
        ConfigLoaderImpl._apply_overrides_to_config(changes, config)
        config.hydra.overrides.task = [override.input_line for override in parsed]
        dirname_options = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(
            overrides=parsed,
            kv_sep=dirname_options.kv_sep,
            item_sep=dirname_options.item_sep,
            exclude_keys=dirname_options.exclude_keys,
        )
        return config


def import_location(function: TaskFunction) -> tuple[str, str]:
    """Return the file and the module from which a trial can import a task function.

    The name of the module is "" if the function is in a script that was started as a file.

    Raises:
        ValueError: No trial can import the function, because it is not at the top level of its module.
    """
    name, module = function.__name__, sys.modules.get(function.__module__)
    top_level_function = getattr(module, name, None)
    if module is None or top_level_function is None or inspect.unwrap(top_level_function) is not inspect.unwrap(function):
        raise ValueError(f"{name} must be a function at the top of its module, so that trials can import it")
    module_name = module.__name__
    if module_name == "__main__":  # with `python -m`, the specification has the real name
        module_name = getattr(getattr(module, "__spec__", None), "name", "")
    return str(Path(inspect.getfile(inspect.unwrap(function))).absolute()), module_name


def _import_function(task: Task) -> TaskFunction:
    """Import the script or module of a sweep, and return its task function without Hydra's decorator."""
    if task.module:
        sys.path.insert(0, task.folder)
        module = importlib.import_module(task.module)
    else:
        sys.path.insert(0, str(Path(task.file).parent))
        name = Path(task.file).stem
        spec = importlib.util.spec_from_file_location(name, task.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{task.file} is not a Python script")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # pickle looks here for the functions that the script sends to processes of its own
        spec.loader.exec_module(module)
    function: TaskFunction = inspect.unwrap(getattr(module, task.function))
    return function
