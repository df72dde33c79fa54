"""Run a trainable of Ray Tune, a function or a class, as a trial's function, without starting Ray.

The public functions of `ray.tune`, `ray.train` and `ray.air.session` that a trainable calls are replaced when the job
imports these modules, and the trial's `Session` answers them. `Checkpoint`, the domains and everything else are Ray's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from trialplane.integrations import saves
from trialplane.job import program
from trialplane.training import imports
from trialplane.worker import context
from trialplane.worker.shims import capture

Trainable = Callable[[dict[str, Any]], Any]
_FOLDER, _METRICS = "checkpoint", "metrics.json"  # in the archive of a checkpoint
_NO_METRICS = ("config", "pid", "timestamp", "done")  # in the results of a class trainable
_SINGLE_PROCESS = {
    "get_world_size": 1,
    "get_world_rank": 0,
    "get_local_rank": 0,
    "get_local_world_size": 1,
    "get_node_rank": 0,
}


class _SearchStarted(BaseException):
    """Raised when a module starts its own search, to end the import there."""


class Session:
    """The answers to a trainable's calls of Ray in one trial.

    Attributes:
        newest: Newest value of each reported metric, also from before the checkpoint that the trial continues from.
    """

    def __init__(self, ctx: context.Context) -> None:
        self.ctx = ctx
        self.newest: dict[str, float] = {}
        self._saves = saves.Saves("checkpoint.tar")
        self._iteration = 0  # Ray's training_iteration: 1 with the first report

    def report(self, metrics: Mapping[str, Any] | None = None, *, checkpoint: Any = None, **named: Any) -> None:
        """Save the checkpoint and report the numbers, those of nested dicts under names like `eval/loss`.

        Args:
            metrics: By name; or, as older versions of Ray had it, each as an argument.
            checkpoint: Ray's `Checkpoint`, of a folder, which is copied.
            **named: See `metrics`; and arguments of newer versions.

        Raises:
            TypeError: The metrics are not a dict, or the checkpoint is not Ray's.
            Pruned, Finished: As in `Context.report`.
        """
        values = named if metrics is None else metrics
        if not isinstance(values, Mapping):
            raise TypeError(f"report({values!r:.60}): give the metrics as a dict, by name")
        self._iteration += 1
        numbers = dict(capture.numeric_metrics(_flatten(values)))
        self.newest |= numbers
        if checkpoint is not None:
            self._save(checkpoint)
        if numbers:
            self.ctx.note("", self._iteration, numbers, waits=True)

    def get_checkpoint(self) -> Any:
        """Return the newest checkpoint of this trial, or else of the run that `--resume` names; None if there is neither.

        It is unpacked into a folder, and returned as Ray's `Checkpoint`.

        Raises:
            CheckpointError: There are checkpoints, and none can be read.
        """
        checkpoint = self._saves.newest()
        if checkpoint is None:
            return None
        folder = self.ctx.workdir / f"restored-{checkpoint.step}"
        with tarfile.open(checkpoint.file) as archive:
            archive.extractall(folder, filter="data")
        checkpoint.file.unlink()
        # A trainable that never calls this function starts from scratch, so its iterations are counted on only here.
        if self._iteration == 0:
            self._iteration = checkpoint.step
            self.newest = json.loads((folder / _METRICS).read_text())
        return importlib.import_module("ray.tune").Checkpoint.from_directory(str(folder / _FOLDER))

    def _save(self, checkpoint: Any) -> None:
        """Save a checkpoint of Ray, with the newest metrics, as one archive.

        Raises:
            TypeError: It is not a checkpoint of Ray.
        """
        if not hasattr(checkpoint, "as_directory"):
            remedy = "give Checkpoint.from_directory(folder), from ray.tune"
            raise TypeError(f"report(…, checkpoint={checkpoint!r:.60}): this is not a checkpoint of Ray; {remedy}")
        with (
            checkpoint.as_directory() as folder,
            tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self.ctx.workdir) as scratch,
        ):
            metrics, file = Path(scratch, _METRICS), Path(scratch, "checkpoint.tar")
            metrics.write_text(json.dumps(self.newest))
            with tarfile.open(file, "w") as archive:
                archive.add(folder, _FOLDER)
                archive.add(metrics, _METRICS)
            self._saves.add_file(self._iteration, file)

    def result(self, returned: Any) -> context.Result:
        """Return the trial's result: the metrics that the function returned, before the newest ones that it reported.

        Anything but a dict or None is returned unchanged, for `outcomes.outcome_of_result` to check.
        """
        if returned is None:
            return self.newest or None  # type: ignore[return-value]  # `outcomes.outcome_of_result` checks it
        if isinstance(returned, Mapping):
            return {**self.newest, **_flatten(returned)}
        return returned  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class TrialContext:
    """The object that `get_context()` returns in a trial.

    Attributes:
        ctx: Context of the trial.
    """

    ctx: context.Context

    def get_experiment_name(self) -> str:
        """Return the run's name."""
        return self.ctx.run

    def get_trial_name(self) -> str:
        """Return the run's name and the trial's number."""
        return f"{self.ctx.run}_{self.ctx.trial:05d}"

    def get_trial_id(self) -> str:
        """Return the trial's number, the same in each attempt."""
        return f"{self.ctx.trial:05d}"

    def get_trial_dir(self) -> str:
        """Return the trial's scratch folder, from which the job's `keep.files` are copied."""
        return str(self.ctx.workdir)

    def get_trial_resources(self) -> Any:
        """Return cores and GPUs of the trial, as Ray's `PlacementGroupFactory`."""
        bundle = {"CPU": float(self.ctx.cpus), **({"GPU": float(self.ctx.gpus)} if self.ctx.gpus else {})}
        return importlib.import_module("ray.tune").PlacementGroupFactory([bundle])

    def __getattr__(self, name: str) -> Any:
        """Return a function with the constant answer for a trial of one process: rank 0 of 1.

        Raises:
            AttributeError: There is no such function. The message lists all.
        """
        if name in _SINGLE_PROCESS:
            return lambda: _SINGLE_PROCESS[name]
        raise AttributeError(
            f"get_context().{name} does not exist: the trial is not in a session of Ray. It has get_experiment_name, "
            f"get_trial_name, get_trial_id, get_trial_dir, get_trial_resources, {', '.join(_SINGLE_PROCESS)}"
        )


# The session of the trial that this process runs; empty outside of a trial. Ray's functions have no argument for it.
_sessions: list[Session] = []


def load(entrypoint: str) -> context.JobFunction:
    """Import a trainable, MODULE:FUNCTION; return the function that runs it as one trial.

    If its module starts a search of its own, the import ends there.

    Raises:
        Invalid: The entrypoint is not a function, or the module starts its search before it defines the function.
        AttributeError: The module has no such function.
        Any exception of the module at import.
    """
    trainable = _import_trainable(entrypoint)

    def run(ctx: context.Context) -> context.Result:
        """Call the trainable, report what it yields if it is a generator, and return the result."""
        session = Session(ctx)
        _sessions.append(session)
        try:
            returned = trainable(program.nested_config(ctx.params))
            if not inspect.isgenerator(returned):
                return session.result(returned)
            for output in cast("Iterable[dict[str, Any] | None]", returned):
                if output is not None:
                    session.report(output)
            return session.result(None)
        finally:
            _sessions.pop()

    return run


def _import_trainable(entrypoint: str) -> Trainable:
    """Import a trainable; return it as a function of the parameters. A class becomes a generator of its results.

    Raises:
        Invalid, AttributeError, any exception of the module: As in `load`.
    """
    for name, replace in _REPLACERS.items():
        imports.on_import(name, replace)
    module_name, _, function = entrypoint.partition(":")
    module, starts_search = _import_up_to_search(module_name)
    if starts_search and not hasattr(module, function):
        remedy = "put it under `if __name__ == '__main__':`"
        raise context.Invalid(f"ray:{entrypoint}: the search of {module_name} comes before {function}; {remedy}")
    trainable = getattr(module, function)
    if inspect.isclass(trainable) and hasattr(trainable, "train"):
        trainable = functools.partial(_class_results, trainable)
    if inspect.isclass(trainable) or not callable(trainable):
        kind = "a class without a method train" if inspect.isclass(trainable) else f"a {type(trainable).__name__}"
        remedy = f"write a function {function}(config) that calls tune.report, or a class {function}(tune.Trainable)"
        raise context.Invalid(f"ray:{entrypoint} is {kind}; {remedy}")
    return trainable  # type: ignore[no-any-return]


def _class_results(cls: Any, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of a class trainable's steps, until one has `done`, or a stop rule of the job ends the trial."""
    trainable = cls(config=config)  # calls its `setup`
    try:
        is_done = False
        while not is_done:
            result = trainable.train()  # calls its `step`, and adds facts of Ray's
            is_done = bool(result.get("done"))
            yield {name: value for name, value in result.items() if name not in _NO_METRICS}
    finally:
        trainable.cleanup()


class _ImportedModule(NamedTuple):
    """A module, and whether it starts a search of its own when it is imported."""

    module: ModuleType
    starts_search: bool


def _import_up_to_search(name: str) -> _ImportedModule:
    """Import a module up to the search that it may start.

    An ordinary import would remove the module again when the search ends it.
    """
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        # It is imported already, or the import raises the usual error.
        return _ImportedModule(importlib.import_module(name), starts_search=False)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    starts_search = False
    try:
        spec.loader.exec_module(module)
    except _SearchStarted:
        starts_search = True
        print("trialplane: the module's own search is not started; trials call its function")  # noqa: T201  the slot's log
    except BaseException:
        del sys.modules[name]
        raise
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)  # as an import does
    return _ImportedModule(module, starts_search)


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return a flat dict of nested dicts, with / between the names, as Ray has it."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _current() -> Session | None:
    """Return the session of the trial of this process; None outside of a trial, and in a process that the job has forked."""
    return _sessions[-1] if _sessions and context.current() is _sessions[-1].ctx else None


def _report(metrics: Mapping[str, Any] | None = None, checkpoint: Any = None, **named: Any) -> None:
    """Report as `Session.report`, in place of Ray's function. Does nothing outside of a trial."""
    if (session := _current()) is not None:
        session.report(metrics, checkpoint=checkpoint, **named)


def _get_checkpoint() -> Any:
    """Return the checkpoint as `Session.get_checkpoint`, in place of Ray's function. None outside of a trial."""
    session = _current()
    return None if session is None else session.get_checkpoint()


def _get_context() -> TrialContext:
    """Return the trial's context, in place of Ray's function.

    Raises:
        RuntimeError: This process runs no trial.
    """
    session = _current()
    if session is None:
        raise RuntimeError("get_context() is called outside of a trial: call it in the function that the trial runs")
    return TrialContext(session.ctx)


def _ignore_init(*_: object, **__: object) -> contextlib.AbstractContextManager[None]:
    """Print that Ray is not started, in place of `ray.init`."""
    print("trialplane: ray.init() does nothing here: a trial's process is not connected to Ray")  # noqa: T201  its log
    return contextlib.nullcontext()


def _stop_at_search(*_: object, **__: object) -> None:
    """End the import of the module, in place of Ray's functions that start a search."""
    raise _SearchStarted


def _replace_ray(module: ModuleType) -> None:
    """Replace `ray.init`."""
    module.init = _ignore_init  # type: ignore[attr-defined]


def _replace_functions(module: ModuleType) -> None:
    """Replace the functions that a trainable calls."""
    module.report, module.get_checkpoint, module.get_context = _report, _get_checkpoint, _get_context  # type: ignore[attr-defined]


def _replace_tune(module: ModuleType) -> None:
    """Replace the functions that a trainable calls, and those that start a search."""
    _replace_functions(module)
    module.run = module.run_experiments = _stop_at_search  # type: ignore[attr-defined]

    def __init__(self: object, *_: object, **__: object) -> None:
        """Do nothing, because Ray's own function would create a folder for results."""

    module.Tuner.__init__, module.Tuner.fit, module.Tuner.restore = __init__, _stop_at_search, _stop_at_search


def _replace_session(module: ModuleType) -> None:
    """Replace the functions of `ray.air.session`, which older versions of Ray have: `report`, `get_trial_id` and others."""
    _replace_functions(module)
    for name in _context_names():
        if hasattr(module, name):
            setattr(module, name, lambda name=name: getattr(_get_context(), name)())


def _context_names() -> Iterator[str]:
    """Yield the names of the functions of `get_context()`."""
    yield from (name for name in vars(TrialContext) if name.startswith("get_"))
    yield from _SINGLE_PROCESS


_REPLACERS: Mapping[str, imports.Replace] = {
    "ray": _replace_ray,
    "ray.tune": _replace_tune,
    "ray.train": _replace_functions,
    "ray.air.session": _replace_session,
}
