"""A Hydra configuration with a sweep in `hydra.sweeper`: of the basic sweeper, Optuna's, Ax's or Nevergrad's.

Its grammar is https://hydra.cc/docs/advanced/override_grammar/extended/. The other keys belong to the script, which reads
the file itself, so the job's folder gets the file too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trialplane.errors import FieldPath, SpecError
from trialplane.importing import search
from trialplane.importing.source import ImportResult, Source
from trialplane.job import arguments, document

_SWEEPER = ("hydra", "sweeper")
_AX = (*_SWEEPER, "ax_config")
_NEVERGRAD = (*_SWEEPER, "optim")
# Sweeper → field of its seed.
_SEEDS: Mapping[str, FieldPath] = {
    "ax": (*_AX, "client", "random_seed"),
    "nevergrad": (*_NEVERGRAD, "seed"),
    "optuna": (*_SWEEPER, "sampler", "seed"),
}
# Fields with the parameters, of all sweepers.
_PARAMETERS: tuple[FieldPath, ...] = (
    (*_SWEEPER, "params"),
    (*_SWEEPER, "search_space"),
    (*_SWEEPER, "parametrization"),
    (*_AX, "params"),
)
_Sweeper = Literal["basic", "optuna", "ax", "nevergrad"]  # basic is Hydra's own
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)  # range(1, 9)
# A separator, a quoted text, a bracket, or a text without these: the seven of `choice('a,b',2)` end with `2` and `)`.
_TOKENS = re.compile(r"""[,=]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[()\[\]{}]|[^,='"()\[\]{}]+""", re.DOTALL)
# Errors of `parse_value` for a text that is not in the grammar.
NOT_UNDERSTOOD = (SpecError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError)
OBJECTIVE = "objective"  # metric of the returned number, as in `capture: hydra`
# Options of Optuna's samplers that a job has under the same name.
_SAMPLER_OPTIONS = (
    *("n_startup_trials", "n_ei_candidates", "multivariate", "group", "constant_liar"),
    *("sigma0", "population_size"),
)
_REASONS = {
    "sweeper.study_name": "is given when the job is submitted: --name",
    "sweeper.storage": "a run has its own ledger; `platform export` writes it as an Optuna study",
    "sweeper.max_batch_size": "trials start one by one, and `parallel` of them run at a time",
    "sweeper.max_failure_rate": "budget.max_failed is a number of trials, not a share",
    "sweeper.custom_search_space": "a function that defines a space for Optuna can be the job's `space: module:function`",
    "ax_config.early_stop": "a study ends with its `trials`, or by a `budget`: time, target, max_failed",
    "experiment.parameter_constraints": "a space has no constraints between parameters; use `constraints` on metrics",
    "experiment.outcome_constraints": "write them as `constraints`",
    "optim.max_failure_rate": "budget.max_failed is a number of trials, not a share",
    "optim.noisy": "a sampler takes each value as it is",
    "hydra.launcher": "trials are started by the platform, `parallel` at a time",
    "hydra.sweep": "a trial has a folder of its own",
    "hydra.mode": "a trial is a run, so its mode is RUN",
    "hydra.run": "is the script's own: it applies in a trial too",
    "hydra": "is the script's own: it applies in a trial too",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of a sweep.

    Args:
        text: Text of the file.
        name: Name of the file in messages.
        scripts: Texts of the Python files in the same folder and, with `../` before the name, in its parent, by name.

    Raises:
        SpecError: The file has no sweep, or one whose values are of the wrong kind.
    """
    source = Source(document.parse(text, name))
    if not isinstance(source.look(*_SWEEPER), dict):
        source.fail("has no sweep: it needs `hydra.sweeper` with params")
    for key in source.look():
        if key != "hydra":
            source.mark_read(key)  # the script reads it
    sweeper = _sweeper(source)
    parameters = search.Parameters()
    for field in _PARAMETERS:
        for key in source.keys(*field):
            _add_parameter(source, (*field, key), sweeper, parameters)
    if not parameters.space:
        source.refuse("has no parameters to search", *_SWEEPER, "params")
    # With MULTIRUN in the file, the script would start the sweep itself.
    mode = ["hydra.mode=RUN"] if source.look("hydra", "mode") else []
    other_arguments = [*mode, *parameters.arguments]
    sampler = _sampler(source, sweeper)
    script_path = _script(source, scripts)
    script, is_in_parent = script_path.removeprefix("../"), script_path.startswith("../")
    source.note("what the function returns is reported as the objective (`capture: hydra`)", *_SWEEPER)
    job = {
        "kind": "hpo",
        "script": script,
        "arguments": [*other_arguments, f"{{{arguments.HYDRA}}}"] if other_arguments else arguments.HYDRA,
        "capture": "hydra",
        "params": parameters.params,
        "space": parameters.space,
        "objectives": _objectives(source, sweeper),
        "sampler": search.short_form(sampler),
        "trials": search.trials(_trials(source), sampler, parameters.space),
        "parallel": source.integer(*_SWEEPER, "n_jobs") or source.integer(*_NEVERGRAD, "num_workers"),
        "seed": source.integer(*_SEEDS[sweeper]) if sweeper in _SEEDS else None,
    }
    # A script in the parent needs the file's folder too, and the job has both folders then; see `ImportResult`.
    copies = [script] if is_in_parent else [script, re.split(r"[/\\]", name)[-1]]
    return source.result(job, _REASONS, copies=copies, is_in_parent=is_in_parent)


def has_sweep(text: str, name: str) -> bool:
    """Return whether a configuration has parameters to sweep.

    Raises:
        SpecError: The file is not YAML.
    """
    source = Source(document.parse(text, name))
    return any(isinstance(source.look(*field), dict) and source.look(*field) for field in _PARAMETERS)


def _sweeper(source: Source) -> _Sweeper:
    """Return the kind of the sweeper."""
    class_name = source.text(*_SWEEPER, "_target_")  # hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper
    names = f"{class_name} {_defaults(source)}".lower()
    if "nevergrad" in names or source.look(*_NEVERGRAD) is not None:
        return "nevergrad"
    if "sweeper: ax" in names or "ax_sweeper" in names or source.look(*_AX) is not None:
        return "ax"
    if "optuna" in names or source.look(*_SWEEPER, "n_trials") is not None:
        return "optuna"
    return "basic"


def _defaults(source: Source) -> str:
    """Return the text of the list of defaults without quotes: `[_self_, {override hydra/sweeper: optuna}]`."""
    return re.sub("['\"]", "", str(source.look("defaults")))


def _script(source: Source, scripts: Mapping[str, str]) -> str:
    """Return the script that Hydra starts, with `../` before the name if it is in the parent of the file's folder.

    If not exactly one script uses Hydra, add a note; the script is then the first of them, or `train.py`.
    """
    candidates = [name for name, text in scripts.items() if "hydra" in text and re.search(r"@(?:hydra\.)?main\(", text)]
    if len(candidates) != 1:
        problem = f"{', '.join(candidates)} use Hydra" if candidates else "no script beside it uses Hydra"
        source.note(f"the file does not name its script, and {problem}: write it into job.yaml", "hydra")
    return candidates[0] if candidates else "train.py"


def _objectives(source: Source, sweeper: _Sweeper) -> list[dict[str, str]]:
    """Return the objectives of a sweep. Their metrics have the names that `capture: hydra` gives to returned numbers."""
    if sweeper == "ax":
        minimize = source.take(*_AX, "experiment", "minimize")
        source.skip("what the function returns is called objective", *_AX, "experiment", "objective_name")
        return [{"metric": OBJECTIVE, "direction": "maximize" if minimize is False else "minimize"}]
    if sweeper == "nevergrad":
        maximize = source.take(*_NEVERGRAD, "maximize")
        return [{"metric": OBJECTIVE, "direction": "maximize" if maximize is True else "minimize"}]
    field = (*_SWEEPER, "direction")
    fields = [(*field, index) for index in source.indices(*field)] if isinstance(source.look(*field), list) else [field]
    directions = [search.direction(source, *field) for field in fields]
    names = [OBJECTIVE] if len(directions) == 1 else [f"{OBJECTIVE}_{index}" for index in range(len(directions))]
    return [{"metric": name, "direction": direction} for name, direction in zip(names, directions, strict=True)]


def _trials(source: Source) -> int | None:
    """Return the number of trials; None if it is not in the file."""
    fields = ((*_SWEEPER, "n_trials"), (*_AX, "max_trials"), (*_NEVERGRAD, "budget"))
    return next((count for field in fields if (count := source.integer(*field)) is not None), None)


def _sampler(source: Source, sweeper: _Sweeper) -> dict[str, Any]:
    """Return the fields of the sampler in the job."""
    if sweeper == "basic":
        return {"name": "grid"}
    if sweeper == "ax":
        return {"name": "tpe"}
    if sweeper == "nevergrad":
        return {"name": _nevergrad_sampler(source)}
    field = (*_SWEEPER, "sampler")
    default = re.search(r"hydra/sweeper/sampler: ([\w.-]+)", _defaults(source))  # {override hydra/sweeper/sampler: random}
    class_name = source.text(*field, "_target_").rpartition(".")[2] or (default[1] if default else "tpe")
    sampler = search.sampler(class_name)
    if sampler is None:
        source.note(f"{class_name!r} has no counterpart; tpe is used", *field, "_target_")
        sampler = {"name": "tpe"}
    for key in source.keys(*field):
        if key in _SAMPLER_OPTIONS and source.look(*field, key) is not None:
            sampler[key] = source.take(*field, key)
    return sampler


def _nevergrad_sampler(source: Source) -> str:
    """Return the name of the sampler that is closest to Nevergrad's optimizer; tpe without one. Add a note on the choice."""
    optimizer = source.text(*_NEVERGRAD, "optimizer")
    if "cma" in optimizer.lower():
        name = "cmaes"
    elif "random" in optimizer.lower():
        name = "random"
    else:
        name = "tpe"
    if optimizer:
        source.note(f"{optimizer} becomes the sampler {name}", *_NEVERGRAD, "optimizer")
    return name


def _add_parameter(source: Source, field: FieldPath, sweeper: _Sweeper, parameters: search.Parameters) -> None:
    """Read a parameter of the sweep, and add it to the parameters of the job. Add an issue if it cannot be read.

    Args:
        source: The file.
        field: Path of the parameter in the file. It ends with the parameter's name there.
        sweeper: Kind of the sweeper, which has its own syntax for parameters.
        parameters: Parameters of the job.
    """
    key = str(field[-1])
    name = source.name(key, *field)
    if name != key:
        parameters.arguments.append(f"{arguments.escaped(key)}={{{name}}}")
    value = source.look(*field)
    if isinstance(value, dict):
        parameter = _MAPPING_READERS.get(sweeper, _optuna_parameter)(source, field)
    elif isinstance(value, list) and sweeper == "nevergrad":
        parameter = search.categorical(source.elements(*field))
    else:
        parameter = _parameter_of_text(source, field, sweeper)
    if parameter is not None:  # otherwise the function that reads it has added an issue
        parameters.add(name, parameter)


def _parameter_of_text(source: Source, field: FieldPath, sweeper: _Sweeper) -> dict[str, Any] | None:
    """Return a parameter that is a text in Hydra's grammar, or `{"value": …}` for one value. None after an issue."""
    value = source.take(*field)
    try:
        text = value if isinstance(value, str) else document.scalar(str(value))
        # For the plugins, a range is a distribution with both ends. The basic sweeper lists its values, as Python does.
        return parse_value(text, includes_end=sweeper != "basic")
    except NOT_UNDERSTOOD:
        source.refuse(f"{str(value)[:60]!r} is not understood: choice, range, interval and lists are", *field)
        return None


def _optuna_parameter(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return a parameter of Optuna's `search_space` that is a mapping. None after an issue."""
    kind = source.text(*field, "type")
    if kind == "categorical":
        return search.categorical(source.elements(*field, "choices"))
    low, high = source.number(*field, "low"), source.number(*field, "high")
    if kind not in ("int", "float") or low is None or high is None:
        source.refuse("needs type int or float with low and high, or categorical with choices", *field)
        return None
    log = source.take(*field, "log") is True
    if log and source.look(*field, "step") is not None:
        source.skip("a logarithmic range has no step here, so it is left out", *field, "step")
    return search.span("int" if kind == "int" else "float", low, high, log=log, step=source.number(*field, "step"))


def _ax_parameter(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return a parameter of Ax, or `{"value": …}` for a fixed one. None after an issue. See https://ax.dev/api/service.html."""
    kind = source.text(*field, "type")
    source.mark_read(*field, "is_ordered")
    value_type = source.text(*field, "value_type")
    if kind == "fixed" or "value" in source.keys(*field):
        return {"value": source.take(*field, "value")}
    if kind == "choice":
        return search.categorical(source.elements(*field, "values"))
    bounds = source.look(*field, "bounds")
    low, high = source.number(*field, "bounds", 0), source.number(*field, "bounds", 1)
    if kind != "range" or not isinstance(bounds, list) or low is None or high is None:
        source.refuse("needs type range with bounds, choice with values, or fixed with a value", *field)
        return None
    is_int = value_type == "int" or (not value_type and all(isinstance(bound, int) for bound in bounds))
    return search.span("int" if is_int else "float", low, high, log=source.take(*field, "log_scale") is True)


def _nevergrad_parameter(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return a scalar parameter of Nevergrad. None after an issue."""
    is_log, is_integer = source.take(*field, "log") is True, source.take(*field, "integer") is True
    low, high = source.number(*field, "lower"), source.number(*field, "upper")
    if low is None or high is None:
        return _nevergrad_normal(source, field, is_log=is_log, is_integer=is_integer)
    if source.number(*field, "step") is not None:
        source.note("is a width to start with, and a sampler has its own", *field, "step")
    source.mark_read(*field, "init")
    return search.span("int" if is_integer else "float", low, high, log=is_log)


def _nevergrad_normal(source: Source, field: FieldPath, *, is_log: bool, is_integer: bool) -> dict[str, Any] | None:
    """Return a parameter without two bounds: a normal distribution around `init`. None after an issue.

    Nevergrad's optimizers start with `init`, and `step` is the width; with `log`, they multiply by it.
    """
    start, step = source.number(*field, "init"), source.number(*field, "step")
    if start is None or (is_log and min(start, 1 if step is None else step) <= 0):
        source.refuse("needs lower and upper, or init (above 0 with log)", *field)
        return None
    for bound in ("lower", "upper"):
        source.skip("is left out: a range here has two bounds", *field, bound)
    source.note("has no two bounds, and becomes a normal distribution around init", *field)
    mean, deviation = (math.log(start), abs(math.log(step or 2.0))) if is_log else (start, step or 1.0)
    parameter = search.normal(mean, deviation or 1.0, log=is_log, step=1.0 if is_integer else None)
    if parameter is None:
        source.refuse("init and step give values that are too large", *field)
    elif is_integer:  # with a step, `normal` returns a range of floats
        low, high = (max(1 if is_log else -math.inf, int(parameter[bound])) for bound in ("low", "high"))
        return search.span("int", low, high, log=is_log)
    return parameter


_MAPPING_READERS = {"ax": _ax_parameter, "nevergrad": _nevergrad_parameter}


def parse_value(value: Any, *, includes_end: bool) -> dict[str, Any]:
    """Return a value in Hydra's grammar as a parameter of a job, or `{"value": …}` if it is a single value.

    Examples are `1,2,3`, `choice(adam, sgd)`, `range(1, 9, step=2)`, and `tag(log, interval(0.001, 0.1))`.

    Args:
        value: The value. One that is not a text is a single value.
        includes_end: Whether the end of a range is one of its values.

    Raises:
        SpecError, ValueError, TypeError, ArithmeticError, LookupError: The text is not in the grammar, or not supported.
    """
    if not isinstance(value, str):
        return {"value": value}
    call = _CALL.fullmatch(value)
    if call is None:
        values = [document.scalar(part) for part in _split(value)]
        return search.categorical(values) if len(values) > 1 else {"value": values[0] if values else ""}
    function, parts = call[1], _split(call[2])
    named = [part for part in parts if re.match(r"\w+\s*=", part)]  # step=2
    positional = [part for part in parts if part not in named]
    match function:
        case "tag" | "int" | "float":
            parameter = parse_value(positional[-1], includes_end=includes_end)
            return _changed(parameter, function, tags=positional[:-1])
        case "shuffle" | "sort":  # of a list or a call; the order has no effect on what is drawn
            return parse_value(",".join(positional), includes_end=includes_end)
        case "choice":
            return search.categorical([document.scalar(part) for part in positional])
        case "interval":
            return search.span("float", *(document.scalar(part) for part in positional))
        case "range":
            texts = dict(zip(("start", "stop", "step"), positional, strict=False))
            for part in named:
                name, _, text = part.partition("=")
                texts[name.strip()] = text
            return _range({name: document.scalar(text) for name, text in texts.items()}, includes_end=includes_end)
    raise ValueError(f"{function} is not known")


def _changed(parameter: dict[str, Any], function: str, tags: Sequence[str]) -> dict[str, Any]:
    """Return a parameter after `tag(log, …)`, which makes its range logarithmic, or `int(…)`, which makes it an integer.

    Other tags, and `float(…)`, change nothing.
    """
    if function == "tag" and "log" in tags:
        return parameter | {"log": True}
    if function == "int" and parameter.get("type") == "float":
        return search.span("int", parameter["low"], parameter["high"], log=parameter.get("log", False))
    return parameter


def _range(limits: Mapping[str, Any], *, includes_end: bool) -> dict[str, Any]:
    """Return the parameter for the `range` of Hydra's grammar.

    Args:
        limits: Its arguments by name: start, stop and step. As in Python, a single number is the end.
        includes_end: Whether `stop` is one of its values.

    Raises:
        TypeError, ArithmeticError, LookupError: The limits are not numbers, the step is 0, or there is no limit.
    """
    start, stop = (limits["start"], limits["stop"]) if "stop" in limits else (0, limits["start"])
    step = limits.get("step", 1)
    is_int = all(isinstance(number, int) for number in (start, stop, step))
    steps_below_stop = ((stop - start) / step - 1e-9) // 1  # 1e-9 makes up for rounding errors
    high = stop if includes_end else start + steps_below_stop * step
    return search.span("int" if is_int else "float", low=start, high=high, step=step)


def _split(text: str) -> list[str]:
    """Return the parts of a text between the commas outside of quotes and brackets: `a` and `f(b,c)` of `a,f(b,c)`."""
    parts, depth = [""], 0
    for token in _TOKENS.findall(text):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts if part.strip()]
