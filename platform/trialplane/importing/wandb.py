"""A sweep of Weights & Biases: https://docs.wandb.ai/guides/sweeps/sweep-config-keys/. Its program is the trial's script."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import Place
from trialplane.importing import guess, search
from trialplane.importing.script import ARGUMENTS
from trialplane.importing.source import Imported, Source
from trialplane.job import arguments, document

_MACRO = re.compile(r"\$\{([^{}]*)\}")
_DEFAULT = ("${env}", "${interpreter}", "${program}", "${args}")
_REASONS = {
    "project": "runs are recorded in MLflow, in an experiment named after the job",
    "entity": "runs are recorded in MLflow, which has no entities",
    "name": "is given when the job is submitted: --name",
    "prior_runs": "trials of another search are not taken over; list points to try first in the job's `enqueue`",
    "probabilities": "choices cannot be weighted; all are equally likely at first",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> Imported:
    """The job of a sweep.

    Args:
        text: of the file, YAML or JSON.
        name: of the file, for messages.
        scripts: Python files beside it, name → text.

    Raises:
        SpecError: it is no sweep, or has values of the wrong kind.
    """
    given = Source(document.parse(text, name))
    if not isinstance(given.look("parameters"), dict) or not given.look("parameters"):
        given.refuse("is not a sweep: it needs a mapping called `parameters`")
        return given.imported({}, {})
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    flags: list[str] = []
    _parameters(given, ("parameters",), "", space, params, flags)
    program = _program(given, flags, {**params, **space})
    sampler = _sampler(given)
    cap = given.whole("run_cap")
    metric = given.text("metric", "name")
    direction = given.text("metric", "goal") or "minimize"
    if direction not in ("minimize", "maximize"):
        given.refuse(f"{direction!r} is not minimize or maximize", "metric", "goal")
    trials = search.trials(cap, sampler, space)
    if cap is None and sampler["name"] != "grid":
        given.note(f"is missing, but a study must end: trials is set to {trials}", "run_cap")
    file = program.get("script") or given.text("program").removeprefix("./")
    given.note("what it logs to W&B is reported (`capture: wandb`), and W&B gets nothing", "program")
    if not metric:
        metric, direction = _logged(given, scripts.get(file, ""), direction)
    if "wandb.config" in scripts.get(file, "") and not ARGUMENTS.search(scripts[file]):
        program["arguments"] = "none"  # `wandb.config` has the trial's parameters
    job = {
        "kind": "hpo",
        "description": given.text("description"),
        **program,
        "capture": "wandb",
        "params": params,
        "space": space,
        "objective": {"metric": metric, "direction": direction} if metric else None,
        "sampler": search.short(sampler),
        "pruner": _pruner(given),
        "trials": trials,
        "budget": {} if (target := given.number("metric", "target")) is None else {"target": target},
    }
    return given.imported(job, _REASONS, copies=[file] if file.endswith(".py") else [])


def _logged(source: Source, text: str, direction: str) -> tuple[str, str]:
    """Return the metric that a program logs and its direction. "" unless only one can be meant."""
    names = logged(text)
    measures = [name for name in names if guess.objective({name: 0.0})]
    held_out = [name for name in measures if guess.is_held_out(name)]
    meant = held_out if len(held_out) == 1 else measures if len(measures) == 1 else names if len(names) == 1 else []
    if meant:
        [metric] = meant
        if source.look("metric", "goal") is None:
            direction = guess.direction(metric)
        source.note(f"is missing: {metric} is what the program logs, and is set to {direction}; check both", "metric")
        return metric, direction
    several = f"it logs {', '.join(names[:20])}" if names else "no name can be read from its wandb.log calls"
    source.note(
        f"is missing, and {several}: write `objective: {{metric: NAME, direction: {direction}}}` into job.yaml", "metric"
    )
    return "", direction


def logged(text: str) -> list[str]:
    """Return the names of the metrics that a program gives to `wandb.log` or `run.log` in dicts, in their order."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    runs = {"wandb"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("wandb.init("):
            runs |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.withitem) and ast.unparse(node.context_expr).startswith("wandb.init("):
            runs.add(ast.unparse(node.optional_vars) if node.optional_vars else "wandb")
    keys: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=run, attr="log"), args=[ast.Dict(keys=names), *_]) if (
                ast.unparse(run) in runs
            ):
                keys += names
    return list(dict.fromkeys(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)))


def _sampler(given: Source) -> dict[str, Any]:
    method = given.text("method")
    sampler = search.sampler(method)
    if sampler is None:
        given.note(f"{method!r} has no counterpart; tpe is used", "method")
    return sampler or {"name": "tpe"}


def _pruner(given: Source) -> Any:
    place = ("early_terminate",)
    if given.look(*place) is None:
        return None
    kind = given.text(*place, "type")
    if kind != "hyperband":
        given.note(f"{kind!r} has no counterpart; trials run to their end", *place, "type")
        return None
    eta = given.whole(*place, "eta") or 3
    least, most, brackets = (given.whole(*place, key) for key in ("min_iter", "max_iter", "s"))
    if brackets is not None and brackets < 1:
        given.refuse(f"must be 1 or more, not {brackets}", *place, "s")
        return None
    if least is None and most is not None:
        least = max(1, most // max(2, eta) ** min(brackets or 1, 30))
    made = {"name": "hyperband", "min_resource": least or 1, "reduction_factor": max(2, eta)}
    return made | ({"max_resource": most} if most else {})


def _parameters(
    given: Source, place: Place, above: str, space: dict[str, Any], params: dict[str, Any], flags: list[str]
) -> None:
    """Sort parameters into those that are searched and those that are fixed, nested ones under dotted names."""
    for key in given.keys(*place):
        at, whole = (*place, key), f"{above}{key}"
        if not isinstance(given.look(*at), dict):
            given.refuse("must be a mapping with value, values, or min and max", *at)
            continue
        if given.look(*at, "parameters") is not None:
            given.note("is a single dict for the script there; here each of its parameters is an argument of its own", *at)
            _parameters(given, (*at, "parameters"), f"{whole}.", space, params, flags)
            continue
        name = given.name(whole, *at)
        if name != whole:
            flags.append(f"--{whole}={{{name}}}")
        found = _parameter(given, at)
        if found is None:
            continue
        if "value" in found:
            params[name] = found["value"]
        else:
            space[name] = found


def _parameter(given: Source, place: Place) -> dict[str, Any] | None:
    """A parameter of the space, `{"value": …}` for a constant, or None after an issue."""
    shape = given.text(*place, "distribution")
    if given.look(*place, "values") is not None or shape.startswith("categorical"):
        return search.categorical(_choices(given, (*place, "values")))
    if "value" in given.keys(*place):
        return {"value": given.take(*place, "value")}
    raw = given.look(*place, "min"), given.look(*place, "max")
    low, high = given.number(*place, "min"), given.number(*place, "max")
    mean, deviation, step = (given.number(*place, key) for key in ("mu", "sigma", "q"))
    kind = shape or ("int_uniform" if all(isinstance(one, int) for one in raw) else "uniform")
    step = (step or 1.0) if kind.startswith("q_") else None
    if kind.endswith("normal"):
        centre, spread = 0.0 if mean is None else mean, 1.0 if deviation is None else deviation
        if step is not None:
            given.note(
                f"{kind} becomes a range of {search.SIGMAS} sigma on both sides, drawn uniformly", *place, "distribution"
            )
        made = search.normal(centre, spread, log="log" in kind, step=step)
        if made is None:
            given.refuse("mu and sigma give values that are too large", *place)
        return made
    if low is None or high is None:
        given.refuse("needs value, values, or min and max", *place)
        return None
    if kind in ("log_uniform", "q_log_uniform", "inv_log_uniform"):  # the bounds are exponents there
        if max(abs(low), abs(high)) > math.log(1e300):
            given.refuse(
                "exp(min) or exp(max) is over 1e300; if min and max are the values themselves, write log_uniform_values",
                *place,
            )
            return None
        low, high = math.exp(low), math.exp(high)
    elif kind not in ("uniform", "q_uniform", "int_uniform", "log_uniform_values", "q_log_uniform_values"):
        given.note(f"{kind!r} has no counterpart; values are drawn evenly", *place, "distribution")
    if kind.startswith("inv_"):
        given.note("is drawn on a plain logarithmic scale here, not on an inverted one", *place, "distribution")
    if step is not None and "log" not in kind:
        given_bounds = low, high
        low, high = search.multiples(low, high, step)
        if (low, high) != given_bounds:
            given.note(f"values are multiples of {step:g}, so the range is {low:g} to {high:g}", *place, "q")
    elif step is not None:
        given.note(
            "a logarithmic range has no step here, so it is left out",
            *place,
            "q" if given.look(*place, "q") is not None else "distribution",
        )
    return search.span("int" if kind == "int_uniform" else "float", low, high, log="log" in kind, step=step)


def _choices(given: Source, place: Place) -> list[Any]:
    """The values of a list; one that is a list or a mapping becomes JSON."""
    made: list[Any] = []
    for index in given.indices(*place):
        value = given.take(*place, index)
        if isinstance(value, (list, dict)):
            given.note("is passed to the script as JSON text", *place, index)
            value = json.dumps(value)
        if not any(type(value) is type(one) and value == one for one in made):
            made.append(value)
    return made


def _program(given: Source, flags: list[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`script` or `command`, and the arguments."""
    program = given.text("program").removeprefix("./")
    items = given.texts("command") or list(_DEFAULT)
    head: list[str] = []
    rest: list[str] = []
    booleans = "value"
    seen = False
    for index, item in enumerate(items):
        macro = _MACRO.fullmatch(item)
        place: Place = ("command", index)
        if macro is None:
            if _MACRO.search(item):
                given.note("a macro inside an argument is not filled in here; it stays as text", *place)
            (rest if seen else head).append(item.replace("{", "{{").replace("}", "}}"))
        elif macro[1] == "program":
            seen = True
            head.append(program)
        elif macro[1] == "interpreter":
            head.append("python")
        elif macro[1] in ("args", "args_no_boolean_flags"):
            booleans = "value" if macro[1] == "args" else "switch"
            rest += [*flags, f"{{{arguments.FLAGS}}}"]
        elif macro[1] == "args_no_hyphens":
            rest += [*(flag.removeprefix("--") for flag in flags), f"{{{arguments.HYDRA}}}"]
        elif macro[1] == "args_json":
            rest.append(_json(given, parameters, place))
        elif macro[1] != "env":
            given.note(f"{item} has no counterpart; write the argument into job.yaml", *place)
    if not program:
        given.note("is missing: write the script into job.yaml", "program")
    made: Any = {"items": rest, "booleans": booleans, "lists": "literal"} if rest else "none"
    if [item for item in head if item != "python"] == [program] and program.endswith(".py") and head[-1] == program:
        return {"script": program, "arguments": made}
    return {"command": head or ["python", "train.py"], "arguments": made}


def _json(given: Source, parameters: Mapping[str, Any], place: Place) -> str:
    """All parameters as one JSON text with placeholders."""
    parts = []
    for name, parameter in parameters.items():
        values = parameter.get("choices", [0]) if isinstance(parameter, dict) else [parameter]
        if not all(type(one) in (int, float) for one in values) and not all(isinstance(one, str) for one in values):
            given.note(f"{name} is neither a number nor a string, and is written as Python prints it", *place)
        quote = '"' if all(isinstance(one, str) for one in values) else ""
        parts.append(f"{json.dumps(name)}: {quote}{{{name}}}{quote}")
    return "{{" + ", ".join(parts) + "}}"
