"""Change Hydra in a trial: report the task function's return value, and make plugins for sweeps unnecessary.

A trial is one run of the application, without a sweep. But Hydra composes the configuration of the sweeper and the launcher
that the application names all the same, and fails if their packages are not installed. So empty configurations stand in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from trialplane.training import imports

OBJECTIVE = "objective"  # metric of a returned number; several numbers are objective_0, objective_1, …
_SAMPLERS = ("tpe", "random", "cmaes", "nsgaii", "nsgaiii", "motpe", "qmc", "grid")
# Group of Hydra's configuration → names that packages add to it, and the defaults list of each.
_PLUGINS: Mapping[str, Mapping[str, Sequence[Mapping[str, str]]]] = {
    "hydra/sweeper/sampler": dict.fromkeys(_SAMPLERS, ()),
    "hydra/sweeper": {"ax": (), "nevergrad": (), "orion": (), "wandb": (), "optuna": ({"sampler": "tpe"},)},
    "hydra/launcher": dict.fromkeys(("joblib", "ray", "ray_aws", "rq", "submitit_local", "submitit_slurm"), ()),
}


def install(report: Callable[[dict[str, Any]], None]) -> None:
    """Change Hydra in this process, now or when the job imports it; `report` gets the task function's return value."""
    imports.on_import("hydra.core.config_store", _add_plugins)
    imports.on_import("hydra._internal.hydra", functools.partial(_report_returned, report))


def _add_plugins(module: ModuleType) -> None:
    """Add an empty configuration for each plugin. An installed plugin replaces it later."""
    store = module.ConfigStore.instance()
    for group, names in _PLUGINS.items():
        for name, defaults in names.items():
            if not _is_stored(store.repo, group, name):
                store.store(group=group, name=name, node={"defaults": list(defaults)} if defaults else {})


def _is_stored(repository: Any, group: str, name: str) -> bool:
    """Return whether Hydra's store has a configuration of this name in a group."""
    for part in group.split("/"):
        repository = repository.get(part, {})
    return f"{name}.yaml" in repository


def _report_returned(report: Callable[[dict[str, Any]], None], module: ModuleType) -> None:
    """Make `Hydra.run`, which runs the application without a sweep, also report the task function's return value."""
    run = module.Hydra.run

    @functools.wraps(run)
    def run_and_report(*args: Any, **kwargs: Any) -> Any:
        job_return = run(*args, **kwargs)
        report(_metrics(job_return.return_value))
        return job_return

    module.Hydra.run = run_and_report


def _metrics(value: Any) -> dict[str, Any]:
    """Return a task function's return value as metrics, by name.

    A dict is returned unchanged. The items of a list are `objective_0` and so on, another value is `objective`, and None has
    no metrics.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return {f"{OBJECTIVE}_{index}": item for index, item in enumerate(value)}
    return {} if value is None else {OBJECTIVE: value}
