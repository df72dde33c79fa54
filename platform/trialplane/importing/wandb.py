"""A sweep of Weights & Biases: https://docs.wandb.ai/guides/sweeps/sweep-config-keys/. Its program is the trial's script."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from trialplane.errors import FieldPath
from trialplane.importing import guess, search
from trialplane.importing.script import ARGUMENTS
from trialplane.importing.source import ImportResult, Source
from trialplane.job import arguments, document, notebook

_MACRO = re.compile(r"\$\{([^{}]*)\}")  # ${program}
_DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_REASONS = {
    "project": "runs are recorded in MLflow, in an experiment named after the job",
    "entity": "runs are recorded in MLflow, which has no entities",
    "name": "is given when the job is submitted: --name",
    "prior_runs": "trials of another search are not taken over; list points to try first in the job's `enqueue`",
    "probabilities": "choices cannot be weighted; all are equally likely at first",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of a sweep.

    Args:
        text: Text of the file, YAML or JSON.
        name: Name of the file in messages.
        scripts: Texts of the Python files in the same folder, by name.

    Raises:
        SpecError: The file is not a sweep, or has values of the wrong kind.
    """
    source = Source(document.parse(text, name))
    if not isinstance(source.look("parameters"), dict) or not source.look("parameters"):
        source.fail("is not a sweep: it needs a mapping called `parameters`")
    parameters = search.Parameters()
    _add_parameters(source, ("parameters",), parameters, prefix="")
    # The number of trials.
    sampler = search.sampler_or_tpe(source, source.text("method"), "method")
    cap = source.integer("run_cap")
    trials = search.trials(cap, sampler, parameters.space)
    if cap is None and sampler["name"] != "grid":
        source.note(f"is missing, but a study must end: trials is set to {trials}", "run_cap")
    # The script.
    program = _program(source, parameters) | _only_program(source, scripts)
    file = program.get("script") or source.text("program").removeprefix("./")
    script_text = scripts.get(file, "")
    source.note("what it logs to W&B is reported (`capture: wandb`), and W&B gets nothing", "program")
    if "wandb.config" in script_text and not ARGUMENTS.search(script_text):
        program["arguments"] = "none"  # `wandb.config` has the trial's parameters
    # The objective.
    metric = source.text("metric", "name")
    direction = search.direction(source, "metric", "goal")
    if not metric:
        metric, direction = _guess_objective(source, script_text, direction)
    job = {
        "kind": "hpo",
        "description": source.text("description"),
        **program,
        "capture": "wandb",
        "params": parameters.params,
        "space": parameters.space,
        "objective": {"metric": metric, "direction": direction} if metric else None,
        "sampler": search.short_form(sampler),
        "pruner": _pruner(source),
        "trials": trials,
        "budget": {"target": source.number("metric", "target")},
    }
    return source.result(job, _REASONS, copies=[file] if file.endswith(".py") else [])


def _only_program(source: Source, scripts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields for the program of a sweep that names none: the only script beside it that calls `wandb.agent`.

    The agent calls a function of the script, which gets its parameters from `wandb.config`. {} if the sweep names a program.
    If not exactly one script calls it, the fields of the program are None, and there is a note.
    """
    if source.look("program") is not None or source.look("command") is not None:
        return {}
    programs = [name for name, text in scripts.items() if "wandb.agent(" in text and "/" not in name]
    if len(programs) != 1:
        remark = "is missing, and not exactly one script beside the file calls wandb.agent: write `script` into job.yaml"
        source.note(remark, "program")
        return {"command": None, "arguments": None}
    source.note(f"is missing: {programs[0]} is the only script beside the file that calls wandb.agent", "program")
    return {"script": programs[0], "command": None, "arguments": "none"}


def _guess_objective(source: Source, program_text: str, direction: str) -> tuple[str, str]:
    """Return the metric to optimize of those that a program logs, and its direction, and add a note on the choice.

    It is the only metric on held-out data, or else the only loss or score, or else the only metric. It is "" if
    there is none of these.
    """
    names = logged_metrics(program_text)
    measures = [name for name in names if guess.is_measure(name)]
    held_out = [name for name in measures if guess.is_held_out(name)]
    metric = next((group[0] for group in (held_out, measures, names) if len(group) == 1), "")
    if metric:
        if source.look("metric", "goal") is None:
            direction = guess.direction(metric)
        source.note(f"is missing: {metric} is what the program logs, and is set to {direction}; check both", "metric")
        return metric, direction
    problem = f"it logs {', '.join(names[:20])}" if names else "no name can be read from its wandb.log calls"
    source.note(
        f"is missing, and {problem}: write `objective: {{metric: NAME, direction: {direction}}}` into job.yaml", "metric"
    )
    return "", direction


def logged_metrics(text: str) -> list[str]:
    """Return the names of the metrics that a program gives to `wandb.log` or `run.log` in dicts, in their order."""
    tree = notebook.parse_or_empty(text)
    runs = _runs(tree)
    keys: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=run, attr="log"), args=[ast.Dict(keys=dict_keys), *_]):
                if ast.unparse(run) in runs:
                    keys += dict_keys
    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return list(dict.fromkeys(names))


def _runs(tree: ast.Module) -> set[str]:
    """Return the texts of the expressions that stand for a run: `wandb`, and `run` of `run = wandb.init()` or `with`."""
    runs = {"wandb"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            value, targets = node.value, node.targets
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            value, targets = node.context_expr, [node.optional_vars]
        else:
            continue
        if ast.unparse(value).startswith("wandb.init("):
            runs.update(map(ast.unparse, targets))
    return runs


def _pruner(source: Source) -> Any:
    """Return the pruner for `early_terminate`. None without one, or if it is invalid or has no counterpart."""
    field = ("early_terminate",)
    if source.look(*field) is None:
        return None
    kind = source.text(*field, "type")
    if kind != "hyperband":
        source.note(f"{kind!r} has no counterpart; trials run to their end", *field, "type")
        return None
    eta = max(2, source.integer(*field, "eta") or 3)  # 3 in W&B by default; the pruner needs 2 or more
    min_iter, max_iter, brackets = (source.integer(*field, key) for key in ("min_iter", "max_iter", "s"))
    if brackets is not None and brackets < 1:
        source.refuse(f"must be 1 or more, not {brackets}", *field, "s")
        return None
    if min_iter is None and max_iter is not None:
        min_iter = max(1, max_iter // eta ** (brackets or 1))  # the end of the first bracket in W&B
    pruner = {"name": "hyperband", "min_resource": min_iter or 1, "reduction_factor": eta}
    return pruner | ({"max_resource": max_iter} if max_iter else {})


def _add_parameters(source: Source, field: FieldPath, parameters: search.Parameters, *, prefix: str) -> None:
    """Add the parameters of a mapping in the file to those of the job. Nested ones have dotted names.

    Args:
        source: The file.
        field: Path of the mapping.
        parameters: Parameters of the job.
        prefix: Dotted name of the mapping, with a dot at its end; "" for the outermost one.
    """
    for key in source.keys(*field):
        key_field, dotted_name = (*field, key), f"{prefix}{key}"
        if not isinstance(source.look(*key_field), dict):
            source.refuse("must be a mapping with value, values, or min and max", *key_field)
            continue
        if source.look(*key_field, "parameters") is not None:
            source.note(
                "is a single dict for the script there; here each of its parameters is an argument of its own", *key_field
            )
            _add_parameters(source, (*key_field, "parameters"), parameters, prefix=f"{dotted_name}.")
            continue
        name = source.name(dotted_name, *key_field)
        if name != dotted_name:
            parameters.arguments.append(f"--{dotted_name}={{{name}}}")
        parameter = _parameter(source, key_field)
        if parameter is not None:
            parameters.add(name, parameter)


def _parameter(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return a parameter of the space, or `{"value": …}` for a constant. None after an issue."""
    distribution = source.text(*field, "distribution")
    if source.look(*field, "values") is not None or distribution.startswith("categorical"):
        return search.categorical(_choices(source, (*field, "values")))
    if "value" in source.keys(*field):
        return {"value": source.take(*field, "value")}
    if distribution.endswith("normal"):
        return _normal_parameter(source, field, distribution)
    return _range_parameter(source, field, distribution)


def _normal_parameter(source: Source, field: FieldPath, distribution: str) -> dict[str, Any] | None:
    """Return a parameter whose distribution is normal, log_normal, q_normal or q_log_normal. None after an issue."""
    mean, deviation = source.number(*field, "mu"), source.number(*field, "sigma")
    step = _step(source, field, distribution)
    if step is not None:
        reason = f"{distribution} becomes a range of {search.SIGMAS} sigma on both sides, drawn uniformly"
        source.note(reason, *field, "distribution")
    deviation = 1.0 if deviation is None else deviation
    parameter = search.normal(mean or 0.0, deviation, log="log" in distribution, step=step)
    if parameter is None:
        source.refuse("mu and sigma give values that are too large", *field)
    return parameter


def _range_parameter(source: Source, field: FieldPath, distribution: str) -> dict[str, Any] | None:
    """Return a parameter between `min` and `max`. None after an issue. W&B's default is int_uniform or uniform."""
    low, high = source.number(*field, "min"), source.number(*field, "max")
    if low is None or high is None:
        source.refuse("needs value, values, or min and max", *field)
        return None
    has_whole_bounds = all(isinstance(source.look(*field, key), int) for key in ("min", "max"))  # 1, and not 1.0
    kind = distribution or ("int_uniform" if has_whole_bounds else "uniform")
    scale = kind.removeprefix("q_").removeprefix("inv_")
    if scale == "log_uniform":  # the bounds of W&B are exponents
        if max(abs(low), abs(high)) > math.log(1e300):
            reason = "exp(min) or exp(max) is over 1e300; if min and max are the values themselves, write log_uniform_values"
            source.refuse(reason, *field)
            return None
        low, high = math.exp(low), math.exp(high)
    elif scale not in ("uniform", "int_uniform", "log_uniform_values"):
        source.note(f"{kind!r} has no counterpart; values are drawn evenly", *field, "distribution")
    if kind.startswith("inv_"):
        source.note("is drawn on a plain logarithmic scale here, not on an inverted one", *field, "distribution")
    step, written_step = _step(source, field, kind), source.look(*field, "q")
    has_whole_values = step is not None and has_whole_bounds and isinstance(written_step or 1, int)
    type_name: Literal["int", "float"] = "int" if kind == "int_uniform" or has_whole_values else "float"
    step_field = (*field, "distribution" if written_step is None else "q")
    return search.span_of_multiples(source, step_field, type_name, low, high, step=step, log="log" in kind)


def _step(source: Source, field: FieldPath, distribution: str) -> float | None:
    """Return the `q` of a parameter, of which all values are multiples; None if its distribution has none."""
    quantum = source.number(*field, "q")
    return (quantum or 1.0) if distribution.startswith("q_") else None  # W&B's default is 1


def _choices(source: Source, field: FieldPath) -> list[Any]:
    """Return the different values of the list at a path. Lists and mappings among them become JSON text."""
    choices: list[Any] = []
    for index in source.indices(*field):
        value = source.take(*field, index)
        if isinstance(value, (list, dict)):
            source.note("is passed to the script as JSON text", *field, index)
            value = json.dumps(value)
        is_repeated = any(type(value) is type(choice) and value == choice for choice in choices)  # 1 is not true
        if not is_repeated:
            choices.append(value)
    return choices


def _program(source: Source, parameters: search.Parameters) -> dict[str, Any]:
    """Return the fields of the job for the program: `script` or `command`, and `arguments`.

    The sweep's `command` is a list of words and of macros, such as `${program}` and `${args}`, which stands for all flags.
    """
    program = source.text("program").removeprefix("./")
    items = source.texts("command") or list(_DEFAULT_COMMAND)
    command: list[str] = []  # up to the program
    argument_items: list[str] = []  # after the program
    for index, item in enumerate(items):
        field: FieldPath = ("command", index)
        match item:
            case "${program}":
                command.append(program)
            case "${interpreter}":
                command.append("python")
            case "${env}":  # which a trial does not need: W&B's `env` starts the program
                pass
            case "${args}" | "${args_no_boolean_flags}":
                argument_items += [*parameters.arguments, f"{{{arguments.FLAGS}}}"]
            case "${args_no_hyphens}":
                argument_items += [flag.removeprefix("--") for flag in parameters.arguments]
                argument_items.append(f"{{{arguments.HYDRA}}}")
            case "${args_json}":
                argument_items.append(_json_argument(source, parameters, field))
            case _ if _MACRO.fullmatch(item):
                source.note(f"{item} has no counterpart; write the argument into job.yaml", *field)
            case _:
                if _MACRO.search(item):
                    source.note("a macro inside an argument is not filled in here; it stays as text", *field)
                (argument_items if "${program}" in items[:index] else command).append(arguments.escaped(item))
    program_arguments: Any = "none"
    if argument_items:
        booleans = "switch" if "${args_no_boolean_flags}" in items else "value"
        program_arguments = {"items": argument_items, "booleans": booleans, "lists": "literal"}
    # Otherwise words come between Python and the program, as in `python -u train.py`, or another program starts it.
    starts_with_python = command[-1:] == [program] and all(word == "python" for word in command[:-1])
    if program.endswith(".py") and starts_with_python:
        return {"script": program, "arguments": program_arguments}
    return {"command": command or ["python", "train.py"], "arguments": program_arguments}


def _json_argument(source: Source, parameters: search.Parameters, field: FieldPath) -> str:
    """Return the argument for `${args_json}`: a JSON object with a placeholder for each parameter."""
    # Values that show the type of each parameter: the fixed value, the choices, or 0 for a range of numbers.
    examples: dict[str, list[Any]] = {name: [value] for name, value in parameters.params.items()}
    examples |= {name: fields.get("choices", [0]) for name, fields in parameters.space.items()}
    parts = []
    for name, values in examples.items():
        is_number = all(type(value) in (int, float) for value in values)
        is_text = all(isinstance(value, str) for value in values)
        if not is_number and not is_text:
            source.note(f"{name} is neither a number nor a string, and is written as Python prints it", *field)
        quote = '"' if is_text else ""
        parts.append(f"{json.dumps(name)}: {quote}{{{name}}}{quote}")
    return "{{" + ", ".join(parts) + "}}"  # doubled braces are literal in an argument of a job
