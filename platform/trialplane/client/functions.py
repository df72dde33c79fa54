"""A Python function as a job: its source, with all that it uses of its module, as a folder that travels like any other.

Nothing is pickled: what a trial runs is text that can be read in the run's folder. `submitted.py` holds the function, the
imports, constants, functions and classes that it uses, and `train.py` calls it. What cannot be written as source is refused.
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

CONTEXT = "ctx"  # the argument that gets the trial's context
TRIAL = "trial"  # the argument of a function that is an objective of Optuna, which has no other
METRIC = "value"  # what a function's result is called unless `objective` says otherwise
_MODULE = "submitted"


@dataclasses.dataclass(frozen=True)
class FunctionJob:
    """A function that can be submitted.

    Attributes:
        name: of the job.
        arguments: the function's, without `ctx`.
        needed: those without a default.
        is_open: whether it can read any parameter: it has `**`, or `ctx`.
        origin: folder of the file that defines it; the working directory for a notebook.
        files: of the job's folder, by name.
    """

    name: str
    arguments: tuple[str, ...]
    needed: tuple[str, ...]
    is_open: bool
    origin: Path
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the job's files into a folder, which is made."""
        folder.mkdir(parents=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def check(self, space: Mapping[str, Any], params: Collection[str]) -> Iterator[Issue]:
        """Parameters that do not fit the function's arguments.

        Args:
            space: those that are searched.
            params: names of those that are fixed.
        """
        for field, names in (("space", space), ("params", params)):
            for name in names:
                if not self.is_open and name not in self.arguments:
                    hint = errors.nearest(name, self.arguments) or "it has no arguments"
                    yield Issue((field, name), f"the function has no such argument; {hint}", f"submit({field}=…)")
        for name in self.needed:
            default = f"write a default for it: {name}=…"
            searched = space.get(name)
            if isinstance(searched, Mapping) and searched.get("when"):
                reason = f"has no value where its condition does not hold; {default}"
                yield Issue(("space", name, "when"), reason, "submit(space=…)")
            if name not in space and name not in params:
                advice = f"put it into space or params, or {default}"
                if name == TRIAL:
                    advice = "an objective of Optuna has it alone; read the others in its body, from trialplane.params()"
                yield Issue((name,), f"this argument has no value; {advice}", "submit(…)")


def job_of(function: Function, params: Collection[str]) -> FunctionJob:
    """Return a function as a job.

    Args:
        function: its arguments are parameters, one called `ctx` gets the trial's `Context`, and its result is the trial's.
            With `trial` as its only argument it is an objective of Optuna, which defines the parameters itself.
        params: names of the parameters that will be fixed.

    Raises:
        SpecError: it cannot be written as source, with every reason and its fix.
    """
    reason = _unfit(function)
    if reason:
        raise SpecError([Issue(("job",), f"{reason}; see `platform docs notebooks`", "submit(…)")])
    plain = inspect.unwrap(function)
    module = source.module_of(plain)
    arguments = {name: argument for name, argument in inspect.signature(function).parameters.items() if name != CONTEXT}
    open_ended = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    named = {
        name: argument
        for name, argument in arguments.items()
        if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
    }
    takes_ctx = CONTEXT in inspect.signature(function).parameters
    name = planning.slug(plain.__name__)
    if list(inspect.signature(function).parameters) == [TRIAL]:
        objective = {
            "kind": "hpo",
            "entrypoint": f"optuna:{_MODULE}:{plain.__name__}",
            "params": dict.fromkeys(params),
            "objectives": [{"metric": METRIC, "direction": "minimize"}],
        }
        files = {load.FILE: json.dumps(objective, indent=2), f"{_MODULE}.py": module}
        return FunctionJob(name, (), (), is_open=True, origin=_origin(plain), files=files)
    defaults = {key: argument.default for key, argument in named.items() if _is_json(argument.default)}
    job = {
        "kind": "hpo",
        "entrypoint": "train:run",
        "params": {**defaults, **dict.fromkeys(params)},  # the values come as those of a flag would, and are checked so
        "objectives": [{"metric": METRIC, "direction": "minimize"}],
    }
    chosen = f"{{name: ctx.params[name] for name in {list(named)!r} if name in ctx.params}}"
    chosen = "dict(ctx.params)" if open_ended else chosen
    train = f'''"""One trial of the function {plain.__name__}, which is in {_MODULE}.py."""

import {_MODULE}


def run(ctx):
    """Calls it with the trial's parameters; its own defaults stand for those that are not drawn."""
    given = {chosen}
    return {_MODULE}.{plain.__name__}({"ctx=ctx, " if takes_ctx else ""}**given)
'''
    return FunctionJob(
        name=name,
        arguments=tuple(named),
        needed=tuple(key for key, argument in named.items() if argument.default is argument.empty),
        is_open=open_ended or takes_ctx,
        origin=_origin(plain),
        files={load.FILE: json.dumps(job, indent=2), "train.py": train, f"{_MODULE}.py": module},
    )


def _unfit(function: Function) -> str:
    """Return why a function's source cannot be sent, and what to do, or ""."""
    plain = inspect.unwrap(function)
    name = getattr(plain, "__qualname__", type(plain).__name__)
    if inspect.isclass(plain):
        return f"{name} is a class; submit a function that uses it"
    if inspect.ismethod(plain):
        return f"{name} is a method, whose object would have to travel; write a function that makes the object"
    if not inspect.isfunction(plain):
        description = "compiled, and has no source" if inspect.isbuiltin(plain) else f"a {type(plain).__name__}"
        return f"{name} is {description}; write a function that calls it: def objective(lr): return …"
    if plain.__name__ == "<lambda>":
        return "a lambda has no source of its own; write it as def objective(lr): return …"
    if name.rpartition(".")[0] and not name.rpartition(".")[0].endswith("<locals>"):
        return f"{name} is a method, whose object would have to travel; write a function that makes the object"
    if inspect.iscoroutinefunction(plain) or inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        return f"{name} returns no result when it is called (async or yield); write a plain function"
    kinds = {argument.kind for argument in inspect.signature(function).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        return f"{name} has arguments without a name (* or /), and parameters have one; name each argument"
    return ""


def _is_json(value: Any) -> bool:
    """Whether a default comes out of job.yaml as it is; others stay in the source alone."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _origin(function: types.FunctionType) -> Path:
    """The folder of a function's file; of a notebook's cell there is none."""
    file = Path(function.__code__.co_filename)
    return file.parent if file.is_file() else Path.cwd()
