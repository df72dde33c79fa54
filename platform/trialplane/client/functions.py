"""A Python function as a job: the files of a job's folder, with the source of the function and of all that it uses.

Nothing is pickled, so the code of a trial can be read in the run's folder: `submitted.py` has the function with the imports,
constants, functions and classes that it uses, and `train.py` calls it. A value that cannot be written as source is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.client import source
from trialplane.errors import Issue, SpecError
from trialplane.job import load
from trialplane.plan import plan as planning

Function = Callable[..., Any]

CONTEXT = "ctx"  # name of the argument that gets the trial's context
TRIAL = "trial"  # name of the only argument of an objective of Optuna
METRIC = "value"  # default name of the metric that a function returns
_MODULE = "submitted"


@dataclasses.dataclass(frozen=True)
class FunctionJob:
    """A function that can be submitted.

    Attributes:
        name: Name of the job.
        arguments: Names of the function's arguments, without `ctx`.
        required: Names of the arguments without a default.
        is_open: Whether the function can read any parameter, because it has an argument `**name` or `ctx`.
        origin: Folder of the file that defines the function; the working directory for a notebook.
        files: Text of each file of the job's folder, by name.
    """

    name: str
    arguments: tuple[str, ...]
    required: tuple[str, ...]
    is_open: bool
    origin: Path
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Create a folder with the job's files."""
        folder.mkdir(parents=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def check(self, space: Mapping[str, Any], params: Collection[str]) -> Iterator[Issue]:
        """Yield issues of parameters that do not fit the function's arguments.

        Args:
            space: Searched parameters, by name.
            params: Names of fixed parameters.
        """
        for field, name in [*(("space", name) for name in space), *(("params", name) for name in params)]:
            if not self.is_open and name not in self.arguments:
                hint = errors.nearest(name, self.arguments) or "it has no arguments"
                yield Issue((field, name), f"the function has no such argument; {hint}", f"submit({field}=…)")
        for name in self.required:
            if name in space:
                yield from self._condition_issues(name, space[name])
            elif name not in params:
                advice = f"put it into space or params, or write a default for it: {name}=…"
                if name == TRIAL:
                    advice = "an objective of Optuna has it alone; read the others in its body, from trialplane.params()"
                yield Issue((name,), f"this argument has no value; {advice}", "submit(…)")

    def _condition_issues(self, name: str, parameter: Any) -> Iterator[Issue]:
        """Yield an issue if an argument without a default is a searched parameter that has a condition."""
        if isinstance(parameter, Mapping) and parameter.get("when"):
            reason = f"has no value where its condition does not hold; write a default for it: {name}=…"
            yield Issue(("space", name, "when"), reason, "submit(space=…)")


def function_job(function: Function, params: Collection[str]) -> FunctionJob:
    """Return a function as a job.

    Args:
        function: Function that returns a trial's result. Its arguments are parameters; one named `ctx` gets the trial's
            `Context`. A function whose only argument is named `trial` is an objective of Optuna, which defines the
            parameters itself.
        params: Names of the parameters that will be fixed.

    Raises:
        SpecError: The function cannot be written as source. The issues have every reason, with its fix.
    """
    reason = _refusal_reason(function)
    if reason:
        raise SpecError([Issue(("job",), f"{reason}; see `platform docs notebooks`", "submit(…)")])
    inner = inspect.unwrap(function)
    module_text = source.module_of(inner)
    all_arguments = inspect.signature(function).parameters
    if list(all_arguments) == [TRIAL]:
        return _optuna_job(inner, module_text, params)
    takes_context = CONTEXT in all_arguments
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in all_arguments.values())  # `**name`
    arguments = {
        name: argument
        for name, argument in all_arguments.items()
        if name != CONTEXT and argument.kind is not argument.VAR_KEYWORD
    }
    defaults = {name: argument.default for name, argument in arguments.items() if _is_json(argument.default)}
    # A parameter of `params` is declared without a value. Its value arrives like that of a flag, and is checked like it.
    job = _job_text("train:run", {**defaults, **dict.fromkeys(params)})
    train = _train_module(inner.__name__, None if takes_any else list(arguments), takes_context=takes_context)
    return FunctionJob(
        name=planning.slug(inner.__name__),
        arguments=tuple(arguments),
        required=tuple(name for name, argument in arguments.items() if argument.default is argument.empty),
        is_open=takes_any or takes_context,
        origin=_origin(inner),
        files={load.FILE: job, "train.py": train, f"{_MODULE}.py": module_text},
    )


def _optuna_job(objective: types.FunctionType, module_text: str, params: Collection[str]) -> FunctionJob:
    """Return the job of an objective of Optuna, which is in a module with this text."""
    job = _job_text(f"optuna:{_MODULE}:{objective.__name__}", dict.fromkeys(params))
    name, files = planning.slug(objective.__name__), {load.FILE: job, f"{_MODULE}.py": module_text}
    return FunctionJob(name, arguments=(), required=(), is_open=True, origin=_origin(objective), files=files)


def _job_text(entrypoint: str, params: Mapping[str, Any]) -> str:
    """Return the text of a function's job.yaml."""
    objectives = [{"metric": METRIC, "direction": "minimize"}]
    return json.dumps({"kind": "hpo", "entrypoint": entrypoint, "params": params, "objectives": objectives}, indent=2)


def _train_module(function: str, names: list[str] | None, *, takes_context: bool) -> str:
    """Return the text of train.py.

    Args:
        function: Name of the function.
        names: Names of the parameters to pass; None for all.
        takes_context: Whether the function has an argument for the trial's context.
    """
    arguments = "dict(ctx.params)"
    if names is not None:
        arguments = f"{{name: ctx.params[name] for name in {names!r} if name in ctx.params}}"
    return f'''"""One trial of the function {function}, which is in {_MODULE}.py."""

import {_MODULE}


def run(ctx):
    """Call the function with the trial's parameters. Its defaults replace parameters that were not drawn."""
    arguments = {arguments}
    return {_MODULE}.{function}({"ctx=ctx, " if takes_context else ""}**arguments)
'''


def _refusal_reason(function: Function) -> str:
    """Return why a function's source cannot be sent, and what to do; "" if it can be sent."""
    inner = inspect.unwrap(function)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    if inspect.isclass(inner):
        return f"{name} is a class; submit a function that uses it"
    if inspect.ismethod(inner):
        return f"{name} is a method, whose object would have to be sent; write a function that creates the object"
    if not inspect.isfunction(inner):
        description = "compiled, and has no source" if inspect.isbuiltin(inner) else f"a {type(inner).__name__}"
        return f"{name} is {description}; write a function that calls it: def objective(lr): return …"
    if inner.__name__ == "<lambda>":
        return "a lambda has no source of its own; write it as def objective(lr): return …"
    owner = name.rpartition(".")[0]  # "Model" of the name Model.fit; "make.<locals>" of a function in a function
    if owner and not owner.endswith("<locals>"):  # a method that was taken from its class
        return f"{name} is a method, whose object would have to be sent; write a function that creates the object"
    if inspect.iscoroutinefunction(inner) or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return f"{name} returns no result when it is called (async or yield); write a plain function"
    kinds = {argument.kind for argument in inspect.signature(function).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        return f"{name} has arguments without a name (* or /), and parameters have one; name each argument"
    return ""


def _is_json(value: Any) -> bool:
    """Return whether JSON can represent a default exactly. Other defaults remain in the function's source only."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _origin(function: types.FunctionType) -> Path:
    """Return the folder of a function's file; the working directory for a notebook's cell, which has no file."""
    file = Path(function.__code__.co_filename)
    return file.parent if file.is_file() else Path.cwd()
