"""A function trainable of Ray Tune as a trial's function: the trial answers its calls of Ray; Ray never starts.

The public functions of `ray.tune`, `ray.train` and `ray.air.session` that a trainable calls are replaced as these modules
are imported; `Checkpoint`, the domains and all else are Ray's own. Imports no Ray: the job does.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from typing import Any, cast

from trialplane.integrations import saves
from trialplane.job import program
from trialplane.training import imports
from trialplane.worker import context
from trialplane.worker.shims import capture

Trainable = Callable[[dict[str, Any]], Any]
_FOLDER, _METRICS = "checkpoint", "metrics.json"  # in the archive of a checkpoint
_ONE_PROCESS = {
    "get_world_size": 1,
    "get_world_rank": 0,
    "get_local_rank": 0,
    "get_local_world_size": 1,
    "get_node_rank": 0,
}


class _Begun(BaseException):
    """The module has reached the search that it starts by itself; the definitions that the trial needs are before it."""


class Session:
    """One trial, as Ray's functions show it to the trainable.

    Attributes:
        newest: the newest value of each reported metric, with those of the checkpoint that it continues from.
    """

    def __init__(self, ctx: context.Context) -> None:
        self.ctx = ctx
        self.newest: dict[str, float] = {}
        self._saves = saves.Saves("checkpoint.tar")
        self._iteration = 0  # Ray's training_iteration: 1 with the first report

    def report(self, metrics: Mapping[str, Any] | None = None, *, checkpoint: Any = None, **named: Any) -> None:
        """Save the checkpoint and report the numbers, those of nested dicts under names like `eval/loss`.

        Args:
            metrics: by name; or, as older versions of Ray had it, each as an argument.
            checkpoint: Ray's `Checkpoint`, of a folder, which is copied.
            **named: see `metrics`; and arguments of newer versions.

        Raises:
            TypeError: the metrics are no dict, or the checkpoint is not Ray's.
            Pruned, Finished: as of `Context.report`.
        """
        values = named if metrics is None else metrics
        if not isinstance(values, Mapping):
            raise TypeError(f"report({values!r:.60}): give the metrics as a dict, by name")
        self._iteration += 1
        numbers = dict(capture.numbers(_flat(values)))
        self.newest |= numbers
        if checkpoint is not None:
            self._save(checkpoint)
        if numbers:
            self.ctx.note("", self._iteration, numbers, waits=True)

    def get_checkpoint(self) -> Any:
        """The newest checkpoint as Ray's `Checkpoint`, or None: of this trial, or else of the run that `--resume` names.

        Raises:
            CheckpointError: there are checkpoints, and none can be read.
        """
        checkpoint = self._saves.newest()
        if checkpoint is None:
            return None
        folder = self.ctx.workdir / f"restored-{checkpoint.step}"
        with tarfile.open(checkpoint.file) as archive:
            archive.extractall(folder, filter="data")
        checkpoint.file.unlink()
        if self._iteration == 0:  # a trainable that never calls this starts from scratch, and counts from 1
            self._iteration = checkpoint.step
            self.newest = json.loads((folder / _METRICS).read_text())
        return importlib.import_module("ray.tune").Checkpoint.from_directory(str(folder / _FOLDER))

    def _save(self, checkpoint: Any) -> None:
        if not hasattr(checkpoint, "as_directory"):
            remedy = "give Checkpoint.from_directory(folder), from ray.tune"
            raise TypeError(f"report(…, checkpoint={checkpoint!r:.60}): this is no checkpoint of Ray; {remedy}")
        with (
            checkpoint.as_directory() as folder,
            tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self.ctx.workdir) as scratch,
        ):
            metrics, file = Path(scratch, _METRICS), Path(scratch, "checkpoint.tar")
            metrics.write_text(json.dumps(self.newest))
            with tarfile.open(file, "w") as archive:
                archive.add(folder, _FOLDER)
                archive.add(metrics, _METRICS)
            self._saves.add(self._iteration, file)

    def result(self, returned: Any) -> context.Result:
        """Return the trial's result: the function's return value, and its other reports."""
        if returned is None:
            return self.newest or None  # type: ignore[return-value]  # `outcomes.complete` checks it
        if isinstance(returned, Mapping):
            return {**self.newest, **_flat(returned)}
        return returned  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class TrialContext:
    """The result of `get_context()` in a trial.

    Attributes:
        ctx: of the trial.
    """

    ctx: context.Context

    def get_experiment_name(self) -> str:
        """The run's name."""
        return self.ctx.run

    def get_trial_name(self) -> str:
        """The run's name and the trial's number."""
        return f"{self.ctx.run}_{self.ctx.trial:05d}"

    def get_trial_id(self) -> str:
        """The trial's number, the same in each attempt."""
        return f"{self.ctx.trial:05d}"

    def get_trial_dir(self) -> str:
        """The trial's scratch folder; `keep.files` of the job keeps files of it."""
        return str(self.ctx.workdir)

    def get_trial_resources(self) -> Any:
        """Cores and GPUs of the trial, as Ray's `PlacementGroupFactory`."""
        bundle = {"CPU": float(self.ctx.cpus), **({"GPU": float(self.ctx.gpus)} if self.ctx.gpus else {})}
        return importlib.import_module("ray.tune").PlacementGroupFactory([bundle])

    def __getattr__(self, name: str) -> Any:
        if name in _ONE_PROCESS:
            return lambda: _ONE_PROCESS[name]
        raise AttributeError(
            f"get_context().{name} does not exist: the trial is not in a session of Ray. It has get_experiment_name, "
            f"get_trial_name, get_trial_id, get_trial_dir, get_trial_resources, {', '.join(_ONE_PROCESS)}"
        )


# The session of the trial that this process runs. State of the module, as Ray's own is.
_sessions: list[Session] = []


def load(entrypoint: str) -> context.Run:
    """Import a trainable, with its module up to the search that the module may start.

    Returns:
        The function of a trial.

    Raises:
        Invalid: it is no function of one configuration, or the module's search comes before it.
        whatever the module raises at import; AttributeError when it lacks the function.
    """
    for name, replace in _REPLACED.items():
        imports.on_import(name, replace)
    module, _, function = entrypoint.partition(":")
    loaded, has_begun = _imported(module)
    if has_begun and not hasattr(loaded, function):
        remedy = "put it under `if __name__ == '__main__':`"
        raise context.Invalid(f"ray:{entrypoint}: the search of {module} comes before {function}; {remedy}")
    trainable = getattr(loaded, function)
    if inspect.isclass(trainable) or not callable(trainable):
        kind = "a class" if inspect.isclass(trainable) else f"a {type(trainable).__name__}"
        remedy = f"write a function {function}(config) that makes it, runs its loop, and calls tune.report"
        raise context.Invalid(f"ray:{entrypoint} is {kind}, and a trial calls a function; {remedy}")

    def run(ctx: context.Context) -> context.Result:
        session = Session(ctx)
        _sessions.append(session)
        try:
            returned = trainable(program.nested(ctx.params))
            if not inspect.isgenerator(returned):
                return session.result(returned)
            for output in cast("Iterable[dict[str, Any] | None]", returned):
                if output is not None:
                    session.report(output)
            return session.result(None)
        finally:
            _sessions.pop()

    return run


def _imported(name: str) -> tuple[ModuleType, bool]:
    """A module, and whether it starts a search when it is imported: then it is run up to there."""
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return importlib.import_module(name), False  # or raises ModuleNotFoundError
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    has_begun = False
    try:
        spec.loader.exec_module(module)
    except _Begun:
        has_begun = True
        print("trialplane: the module's own search is not started; trials call its function")  # noqa: T201  the slot's log
    except BaseException:
        del sys.modules[name]
        raise
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)  # as an import does
    return module, has_begun


def _flat(values: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested dicts, with / between the names, as Ray does."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}/") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def _current() -> Session | None:
    """The session of the trial of this process; None elsewhere, as in a process that the trainable has forked."""
    return _sessions[-1] if _sessions and context.current() is _sessions[-1].ctx else None


def _report(metrics: Mapping[str, Any] | None = None, checkpoint: Any = None, **named: Any) -> None:
    if (session := _current()) is not None:
        session.report(metrics, checkpoint=checkpoint, **named)


def _get_checkpoint() -> Any:
    session = _current()
    return None if session is None else session.get_checkpoint()


def _get_context() -> TrialContext:
    session = _current()
    if session is None:
        raise RuntimeError("get_context() is called outside of a trial: call it in the function that the trial runs")
    return TrialContext(session.ctx)


def _no_init(*_: object, **__: object) -> contextlib.AbstractContextManager[None]:
    print("trialplane: ray.init() does nothing here: a trial's process is not connected to Ray")  # noqa: T201  its log
    return contextlib.nullcontext()


def _begin(*_: object, **__: object) -> None:
    raise _Begun


def _replace_ray(module: ModuleType) -> None:
    module.init = _no_init  # type: ignore[attr-defined]


def _replace_functions(module: ModuleType) -> None:
    module.report, module.get_checkpoint, module.get_context = _report, _get_checkpoint, _get_context  # type: ignore[attr-defined]


def _replace_tune(module: ModuleType) -> None:
    _replace_functions(module)
    module.run = module.run_experiments = _begin  # type: ignore[attr-defined]

    def __init__(self: object, *_: object, **__: object) -> None:
        """Nothing: Ray's would make the folder of its results."""

    module.Tuner.__init__, module.Tuner.fit, module.Tuner.restore = __init__, _begin, _begin


def _replace_session(module: ModuleType) -> None:
    """Older spellings: `session.report`, `session.get_trial_id` and their like."""
    _replace_functions(module)
    for name in _context_names():
        if hasattr(module, name):
            setattr(module, name, lambda name=name: getattr(_get_context(), name)())


def _context_names() -> Iterator[str]:
    yield from (name for name in vars(TrialContext) if name.startswith("get_"))
    yield from _ONE_PROCESS


_REPLACED: Mapping[str, imports.Replace] = {
    "ray": _replace_ray,
    "ray.tune": _replace_tune,
    "ray.train": _replace_functions,
    "ray.air.session": _replace_session,
}
