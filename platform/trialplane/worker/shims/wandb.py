"""The module `wandb` of a trial: W&B's calls without its package, a server or an account.

`wandb.log` and numbers in the summary are reports of the trial. `wandb.config` has the trial's parameters and the script's
other values. `wandb.agent` runs its function once, as the trial. Everything else can be called and does nothing, for which
the trial's log has one line for each name. Outside of a trial, as in a template, nothing is reported.

Reference of the calls: https://docs.wandb.ai/ref/python
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import secrets
import string
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from trialplane.wire import env
from trialplane.worker import context
from trialplane.worker.shims import capture, wandb_files

__version__ = "0.20.0"  # version of W&B's package with these calls, as libraries compare it

_SILENT = ("Settings", "login", "setup", "termlog", "termwarn", "termerror", "require", "define_metric")
_CAPTURED_TEXT = "only the numbers in wandb.log and in the summary are kept"


class Error(Exception):
    """The base of W&B's errors; raised by calls without a meaningful result here."""


@functools.cache  # logs each line once
def _log_once(subject: str, message: str) -> None:
    """Write a line to the trial's log, unless the log has it already."""
    sys.stderr.write(f"trialplane: {subject} {message}\n")


class Nothing:
    """The result of a call that does nothing here, and of all of its methods and attributes."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        """Do nothing."""
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Nothing:
        return self

    def __setitem__(self, _: Any, __: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...


def __getattr__(name: str) -> Any:
    """Return a stand-in for any other name of W&B's modules."""
    if name.startswith("__"):
        raise AttributeError(name)
    return generate_id if name == "generate_id" else _stand_in(name)


def generate_id(length: int = 8) -> str:
    """Return a random name of `length` letters and digits, independent of the trial's seed."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


@functools.cache  # so that a name is always the same class
def _stand_in(name: str) -> Any:
    """Return a stand-in by the form of the name: `Error` for an error, a class for a capital letter, otherwise a function.

    The class and the function do nothing, and log that once.
    """
    if name.endswith("Error"):
        return Error
    if name[:1].isupper():
        return type(name, (Nothing,), {"__init__": lambda *_, **__: _log_no_effect(name)})
    return _Call(name)


class _Call:
    """A function that does nothing here, or a module with such functions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        """Log once that the call does nothing."""
        _log_no_effect(self._name)
        return Nothing()

    def __getattr__(self, name: str) -> Any:
        return __getattr__(name)


def _log_no_effect(name: str) -> None:
    """Log once that a call does nothing, except for calls without consequences."""
    if name not in _SILENT:
        _log_once(f"wandb.{name}", f"does nothing in a trial: {_CAPTURED_TEXT}")


class _Values(MutableMapping[str, Any]):
    """A mapping whose values are attributes too."""

    def __getattr__(self, name: str) -> Any:
        """Return the value with this name, or raise an error that lists all names."""
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            which = "config" if isinstance(self, Config) else "summary"
            content = f"it has {', '.join(self)}" if self else "it is empty"
            raise AttributeError(f"wandb.{which} has no {name!r}; {content}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Config(_Values):
    """The configuration: values that the script sets, and the trial's parameters, which take precedence."""

    def __init__(self) -> None:
        self.__dict__["_script_values"] = {}

    def as_dict(self) -> dict[str, Any]:
        """Return all values."""
        return {**self._script_values, **context.params()}

    def update(self, values: Any = (), /, allow_val_change: bool | None = None, **named: Any) -> None:
        """Add values; the trial's parameters do not change.

        Args:
            values: Mapping, argparse's namespace, or pairs.
            allow_val_change: Without effect.
            **named: More values.
        """
        for name, value in {**_as_dict(values), **named}.items():
            self[name] = value

    def setdefaults(self, values: Any) -> None:
        """Set values of names that have none."""
        for name, value in _as_dict(values).items():
            self._script_values.setdefault(name, value)

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a value of the script, which has no effect if it is a parameter of the trial."""
        params = context.params()
        if name in params and params[name] != value:
            _log_once(f"wandb.config.{name} = {value!r}", f"is ignored: the trial's parameter {name} is {params[name]!r}")
        self._script_values[name] = value

    def __delitem__(self, name: str) -> None:
        self._script_values.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())


def _as_dict(values: Any) -> dict[str, Any]:
    """Return the values of a mapping, pairs or a namespace as a dict.

    It is empty for None, and for a file's name, as the file is not read.
    """
    if values is None:
        return {}
    if isinstance(values, str):
        _log_once(f"wandb.init(config={values!r})", "does not read the file: write its values into the job's params")
        return {}
    return dict(values if isinstance(values, (Mapping, list, tuple)) else vars(values))


class Summary(_Values):
    """The newest value of everything that was logged; a number that the script sets is reported."""

    def __init__(self, report: Callable[[Mapping[str, Any]], None]) -> None:
        self.__dict__.update(_values={}, _report=report)

    def keep(self, values: Mapping[str, Any]) -> None:
        """Add logged values."""
        self._values.update(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a value, and report it if it is another number than before."""
        metrics_before = dict(capture.numeric_metrics({name: self._values.get(name)}))
        self._values[name] = value
        if metrics_before != dict(capture.numeric_metrics({name: value})):
            self._report({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _report(step: int, values: Mapping[str, Any]) -> None:
    """Report the numbers among values, and wait for the answer.

    A process that the trial has started has no context. It writes them to a file, which the slot reads.
    """
    metrics = dict(capture.numeric_metrics(dict(values)))
    folder = os.environ.get(env.WANDB_FOLDER)
    if context.current() is not None or folder is None:
        context.note("wandb", step, metrics, waits=True)
    elif metrics:
        with Path(folder, wandb_files.FILES.format(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**metrics, wandb_files.STEP: step}) + "\n")


class Run:
    """The trial, as W&B's run.

    Args:
        first_step: Step of the trial at which the run begins: a script's second run continues after its first.
        **facts: Project, name, group and other values from the script.

    Attributes:
        summary: Newest values, as `Summary`.
        first_step: Step of the trial at which the run begins.
        step: W&B's step, from 0; increased by each call of `log` without a step.
        offline: True, as in W&B's offline mode: no server has the run, so it has no address either.
        disabled: False, for what is logged counts.
        resumed: False; `ctx.attempt` tells a retry.
        sweep_id: None; `ctx.run` names the search.
        start_time: Seconds since the epoch.
    """

    offline, disabled, resumed = True, False, False
    sweep_id = url = project_url = sweep_url = None

    def __init__(self, first_step: int, **facts: Any) -> None:
        ctx = context.current()
        self.first_step = first_step
        self.step = 0
        self.id = "trial" if ctx is None else f"{ctx.run}-trial-{ctx.trial}"
        self.name = facts.get("name") or self.id
        self.project, self.entity = facts.get("project") or "", facts.get("entity") or ""
        self.group, self.job_type = facts.get("group") or "", facts.get("job_type") or ""
        self.path = "/".join(filter(None, (self.entity, self.project, self.id)))
        self.tags, self.notes = tuple(facts.get("tags") or ()), facts.get("notes") or ""
        self.dir = str(Path.cwd() if ctx is None else ctx.workdir)
        self.start_time = time.time()
        self.summary = Summary(self._summarize)
        self._unreported: dict[str, Any] = {}  # values logged with commit=False, which the next call reports
        self._reported_step = 0  # of the last report

    @property
    def config(self) -> Config:
        """The trial's configuration."""
        return _config

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Report the numbers among values; other values are left out.

        Args:
            data: Values by name; values in nested dicts get names with dots.
            step: Step. As in W&B, a call with a step before `self.step`, the next one, is ignored. None for `self.step`.
            commit: Whether to report now. If it is False, the next call reports the values, with its step. None: report now,
                but with a `step`, later calls may add values to the same step.
            sync: Without effect.

        Raises:
            Pruned: The pruner ends this trial. Do not catch it.
        """
        if step is not None and step < self.step:
            _log_once(f"wandb.log(step={step})", f"is left out, as its step lies before {self.step}")
            return
        self.step = self.step if step is None else int(step)
        self.summary.keep(data)
        self._unreported.update(data)
        if commit is False:
            return
        values, self._unreported = self._unreported, {}
        self._reported_step = self.step
        if step is None or commit:
            self.step += 1
        for name, value in values.items():  # the stand-in for wandb.Image(…) and the like is left out, and a text silently
            if isinstance(value, Nothing):
                _log_once(f"wandb.log: {name}", "is left out: it is not a number")
        _report(self.first_step + self._reported_step, values)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Report the last values logged with commit=False."""
        global run
        if self._unreported:
            self.log({}, commit=True)
        if run is self:
            run = None

    def _summarize(self, values: Mapping[str, Any]) -> None:
        _report(self.first_step + self._reported_step, values)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return globals()[name] if name in ("use_artifact", "restore") else _stand_in(name)


run: Run | None = None
config = _config = Config()  # the second name is for functions with an argument `config`
_runs: list[Run] = []  # of this process, in order


def init(
    project: str | None = None,
    entity: str | None = None,
    config: Any = None,
    **facts: Any,
) -> Run:
    """Return the trial as a run. A second call returns the same run; after `finish`, a new run with later steps.

    Args:
        project: Attribute of the run.
        entity: Attribute of the run.
        config: Configuration of the script; the trial's parameters take precedence.
        **facts: Attributes of the run: name, group, tags, notes; others have no effect.
    """
    global run
    _config.update(config or {})
    if run is None or facts.get("reinit"):
        first_step = _runs[-1].first_step + _runs[-1].step + 1 if _runs else 0
        run = Run(first_step, project=project, entity=entity, **facts)
        _runs.append(run)
    return run


# LightningCLI accepts only the options in the signature that `WandbLogger` passes its own to.
_OPTIONS = (
    "project entity config dir id name notes tags config_exclude_keys config_include_keys allow_val_change group job_type "
    "mode force anonymous reinit resume resume_from fork_from save_code tensorboard sync_tensorboard monitor_gym settings"
)
init.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in _OPTIONS.split()]
)


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None) -> None:
    """Log as `Run.log` to the newest run, or to a new one."""
    (run or init()).log(data, step, commit, sync)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the newest run, as `Run.finish`."""
    if run is not None:
        run.finish(exit_code, quiet)


class _NewestSummary(_Values):
    """`wandb.summary`: the summary of the newest run."""

    def __getitem__(self, name: str) -> Any:
        return (run or init()).summary[name]

    def __setitem__(self, name: str, value: Any) -> None:
        (run or init()).summary[name] = value

    def __delitem__(self, name: str) -> None:
        del (run or init()).summary[name]

    def __iter__(self) -> Iterator[str]:
        return iter((run or init()).summary)

    def __len__(self) -> int:
        return len((run or init()).summary)


summary = _NewestSummary()


def sweep(sweep: Any = None, *_: Any, **__: Any) -> str:
    """Log that no sweep is started, because a trial does not search, and return a name for `agent`."""
    text = "is not started: the job's space is searched already. `platform import wandb sweep.yaml` makes a job of a sweep"
    _log_once("wandb.sweep", text)
    return "trialplane"


def agent(sweep_id: Any = None, function: Callable[[], Any] | None = None, *_: Any, **__: Any) -> None:
    """Run the function once, as the trial.

    Raises:
        Error: There is no function.
    """
    if function is None:
        raise Error("wandb.agent without a function runs a sweep's program: name that program as the job's script")
    _log_once("wandb.agent", "runs its function once in each trial; the job's `trials` is how many trials there are")
    function()


def _unavailable(name: str) -> Callable[..., Any]:
    """Return a function that raises Error, for a call that needs W&B's server."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Error(f"wandb.{name} reads from W&B's server, and a trial has none: leave wandb out of the job's capture")

    return refuse


Api, use_artifact, restore = _unavailable("Api"), _unavailable("use_artifact"), _unavailable("restore")
