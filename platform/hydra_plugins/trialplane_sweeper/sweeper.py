"""Hydra's sweeper `trialplane`: it runs a sweep as a study on this machine, whose trials are the jobs of a multirun.

This module lacks `from __future__ import annotations`: Hydra executes it before it is in `sys.modules`, where `dataclass`
would look for the names in such annotations.
"""

import asyncio
import dataclasses
import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.errors import CompactHydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.trialplane_sweeper import _space as space
from hydra_plugins.trialplane_sweeper import _task as task

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.wire.records import RunStatus, TrialRow

log = logging.getLogger(__name__)

_MODULE = "hydra_sweep"
RUN = '''"""The jobs of a sweep of Hydra, whose script stays where it is."""

from pathlib import Path

from hydra_plugins.trialplane_sweeper import _task as task
from trialplane.wire import records

_RUNNER = task.Runner(records.from_json(task.Task, Path(__file__).with_name("sweep.json").read_text()))


def run(ctx):
    return _RUNNER.run(ctx)
'''
_DEFAULT_TRIALS = 20
_DIRECTIONS = ("minimize", "maximize")


@dataclasses.dataclass
class SweeperConf:
    """The defaults of `hydra.sweeper`.

    Attributes:
        params: Overrides to sweep. One for the same key on the command line replaces them.
        direction: Direction of the number that the task function returns, minimize or maximize; a list of directions if it
            returns several numbers.
        n_trials: Number of trials. Default: all points of a finite space, otherwise 20.
        n_jobs: Number of trials at the same time.
        sampler: Sampler, as in job.yaml. Default: grid for a finite space, otherwise tpe.
        pruner: Pruner, as in job.yaml. It compares the values of `objective` that trials give to `trialplane.report`.
        job: Other fields of job.yaml: `{resources.cpus: 2, budget.max_failed: 3, seed: 1}`.
    """

    _target_: str = "hydra_plugins.trialplane_sweeper.sweeper.TrialplaneSweeper"
    params: dict[str, Any] | None = None
    direction: Any = "minimize"
    n_trials: int | None = None
    n_jobs: int = 2
    sampler: Any = None
    pruner: Any = None
    job: dict[str, Any] = dataclasses.field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="trialplane", node=SweeperConf, provider="trialplane")


class TrialplaneSweeper(Sweeper):
    """Sweeper that runs the trials of a sweep with trialplane. `SweeperConf` describes its arguments."""

    def __init__(
        self,
        params: Mapping[str, Any] | None,
        direction: Any,
        n_trials: int | None,
        n_jobs: int,
        sampler: Any,
        pruner: Any,
        job: Mapping[str, Any],
    ) -> None:
        self.config: DictConfig | None = None
        self._params = dict(params or {})
        self._directions = [direction] if isinstance(direction, str) else list(direction)
        self._n_trials, self._n_jobs = n_trials, n_jobs
        fields = {"sampler": sampler, "pruner": pruner, **job}
        self._job_fields = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value for name, value in fields.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the objects that Hydra passes before it calls `sweep`."""
        self.hydra_context, self.config, self._function = hydra_context, config, task_function

    def sweep(self, arguments: list[str]) -> None:
        """Run the study, or resume the one of the same folder, and write the files of a multirun.

        Args:
            arguments: Overrides on the command line.

        Raises:
            CompactHydraException: The sweep is invalid, and nothing was started; or the study failed, or was paused.
        """
        from trialplane import Platform, errors  # imported here, as Hydra imports this module whenever it starts

        config, context = self.config, self.hydra_context
        if config is None or context is None:
            raise CompactHydraException("the sweeper was not set up")
        overrides = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        sweep_space = space.parse(overrides, context.config_loader)
        folder = Path(config.hydra.sweep.dir).absolute()
        sweep_task = self._sweep_task(config, sweep_space, folder)
        run = _run_name(config.hydra.job.name, folder)
        command_line = config.hydra.overrides  # of the sweep, which the run shows
        command = ["python", f"{config.hydra.job.name}.py", "-m", *command_line.hydra, *command_line.task]
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, folder / "multirun.yaml")
        try:
            with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
                job = Path(scratch, _job_name(config.hydra.job.name))
                self._write_job(job, sweep_task, sweep_space)
                platform = Platform()
                job_overrides = self._job_overrides(sweep_space)
                prepared = platform.prepare(str(job), name=run, overrides=job_overrides, command=command)
            for warning in prepared.warnings:
                log.warning(warning)
            handle, start_outcome = platform.start(prepared.plan)
            jobs = f"{prepared.plan.job.trials} jobs, {self._n_jobs} at a time"
            log.info(f"the run {run} is {start_outcome.value}: {jobs}, in {folder}")
            status = self._await_end(handle, sweep_task)
        except errors.RunExists as error:
            raise CompactHydraException(f"{error}; another hydra.sweep.dir makes another run") from error
        except errors.TrialplaneError as error:
            raise CompactHydraException(f"{error}") from error
        self._save_best(handle, sweep_task, folder)
        if status.state.exit_code:
            raise CompactHydraException(
                f"{run} {status.state}: {status.reason}; `platform logs {run}` and `platform results {run}`"
            )

    def _sweep_task(self, config: DictConfig, sweep_space: space.Space, folder: Path) -> task.Task:
        """Return the part of the sweep that its trials need. `folder` is the folder of the sweep's output.

        Raises:
            CompactHydraException: A direction is invalid, or trials could not import the task function.
        """
        invalid_directions = [direction for direction in self._directions if direction not in _DIRECTIONS]
        if invalid_directions or not self._directions:
            raise CompactHydraException(
                f"hydra.sweeper.direction: {invalid_directions or 'nothing'} is not minimize or maximize"
            )
        try:
            file, module = task.import_location(self._function)
        except ValueError as error:
            raise CompactHydraException(str(error)) from error
        has_several_objectives = len(self._directions) > 1
        return task.Task(
            file=file,
            module=module,
            function=self._function.__name__,
            job_name=config.hydra.job.name,
            config_name=config.hydra.job.config_name,
            config_sources=tuple(
                (source.provider, f"{source.schema}://{source.path}") for source in config.hydra.runtime.config_sources
            ),
            folder=config.hydra.runtime.cwd,
            sweep_folder=str(folder),
            hydra_overrides=tuple(config.hydra.overrides.hydra),
            fixed_overrides=tuple(sweep_space.fixed),
            keys=sweep_space.keys,
            choices={
                name: tuple(fields["choices"]) for name, fields in sweep_space.parameters.items() if "choices" in fields
            },
            metrics=tuple(
                f"{task.OBJECTIVE}_{index}" if has_several_objectives else task.OBJECTIVE
                for index in range(len(self._directions))
            ),
        )

    def _write_job(self, folder: Path, sweep_task: task.Task, sweep_space: space.Space) -> None:
        """Create the folder of the study's job: job.yaml, a module that runs a trial, and the data of that module."""
        from trialplane.wire import records

        metrics = zip(sweep_task.metrics, self._directions, strict=True)
        fields = {
            "kind": "hpo",
            "entrypoint": f"{_MODULE}:run",
            "space": sweep_space.parameters,
            "objectives": [{"metric": name, "direction": direction} for name, direction in metrics],
        }
        folder.mkdir()
        (folder / "job.yaml").write_text(json.dumps(fields, indent=2), encoding="utf-8")
        (folder / f"{_MODULE}.py").write_text(RUN, encoding="utf-8")
        (folder / "sweep.json").write_text(records.to_json(sweep_task), encoding="utf-8")

    def _job_overrides(self, sweep_space: space.Space) -> dict[str, Any]:
        """Return the fields of job.yaml that the sweeper's configuration sets, with its defaults."""
        fields = {name: value for name, value in self._job_fields.items() if value is not None}
        if not sweep_space.parameters:
            trials = 1
        elif sweep_space.is_finite and "sampler" not in fields:
            fields["sampler"] = "grid"
            trials = self._n_trials or _number_of_points(sweep_space)
        else:
            trials = self._n_trials or _DEFAULT_TRIALS
        return {**fields, "trials": trials, "parallel": self._n_jobs}

    def _await_end(self, handle: "RunHandle", sweep_task: task.Task) -> "RunStatus":
        """Log the end of each job until the run ends, and return the run's status. Ctrl-C pauses the run.

        Raises:
            CompactHydraException: The run was paused.
        """
        try:
            asyncio.run(_log_ended_trials(handle, sweep_task))
            return handle.status()
        except KeyboardInterrupt:
            log.info("pausing; what has ended is kept")
            handle.pause()
            command = f"the same command with hydra.sweep.dir={sweep_task.sweep_folder}"
            remedy = f"{command} goes on, or `platform resume {handle.name}`"
            raise CompactHydraException(f"{handle.name} was paused; {remedy}") from None

    def _save_best(self, handle: "RunHandle", sweep_task: task.Task, folder: Path) -> None:
        """Write the best parameters and values to optimization_results.yaml, which Optuna's sweeper also writes."""
        solutions = [(_params_by_key(row, sweep_task), list(row.values)) for row in handle.front()]
        best: dict[str, Any] = {"name": "trialplane", "run": handle.name}
        if len(sweep_task.metrics) > 1:
            best["solutions"] = [{"params": params, "values": values} for params, values in solutions]
        elif solutions:
            best |= {"best_evaluated_params": solutions[0][0], "best_value": solutions[0][1][0]}
            log.info(f"best: {best['best_evaluated_params']} with {best['best_value']:g}")
        OmegaConf.save(OmegaConf.create(best), folder / "optimization_results.yaml")


def _params_by_key(row: "TrialRow", sweep_task: task.Task) -> dict[str, Any]:
    """Return the parameters of a trial by their keys in the configuration."""
    return {sweep_task.keys[name].lstrip("+"): value for name, value in row.params.items() if name in sweep_task.keys}


async def _log_ended_trials(handle: "RunHandle", sweep_task: task.Task) -> None:
    """Log the parameters and the result of each trial as it ends, until the run ends."""
    from trialplane.client import events

    async for event in handle.events():
        if isinstance(event, events.TrialEnded):
            row = event.row
            overrides = " ".join(space.override_text(key, value) for key, value in _params_by_key(row, sweep_task).items())
            result = ", ".join(f"{value:g}" for value in row.values) or f"{row.state}: {row.message}"
            log.info(f"#{row.trial} : {overrides} : {result}")


def _number_of_points(sweep_space: space.Space) -> int:
    """Return the number of points of a finite space."""
    count = 1
    for fields in sweep_space.parameters.values():
        if "choices" in fields:
            count *= len(fields["choices"])
        else:
            count *= round((fields["high"] - fields["low"]) / fields["step"]) + 1
    return count


def _job_name(name: str) -> str:
    """Return Hydra's name of a job as a valid name of a job: at most 32 of a-z, 0-9 and hyphens; "sweep" if none is left."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:32].strip("-") or "sweep"


def _run_name(name: str, folder: Path) -> str:
    """Return the name of the run for a sweep's folder. It depends on nothing else, so a second start resumes the run."""
    job_name = _job_name(name)
    prefix = job_name if job_name[0].isalpha() else f"run-{job_name}"
    return f"{prefix}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
