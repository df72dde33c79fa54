"""A search of Ray Tune, from the Python file with `tune.Tuner(…)` or `tune.run(…)`, which is parsed and never run."""

from __future__ import annotations

import ast
import dataclasses
import keyword
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError
from trialplane.importing import folding, guess, naming, search, tune_call, tune_partial
from trialplane.importing.source import CALL, ImportResult, Source
from trialplane.job import arguments, notebook
from trialplane.job.document import Document


class _Pruner(NamedTuple):
    """The pruner of a job that replaces a scheduler of Ray.

    Attributes:
        name: Name of the pruner.
        options: Argument of the scheduler → option of the pruner.
    """

    name: str
    options: Mapping[str, str]


_ASHA = _Pruner("successive_halving", {"grace_period": "min_resource", "reduction_factor": "reduction_factor"})
_HYPERBAND = _Pruner("hyperband", {"max_t": "max_resource", "reduction_factor": "reduction_factor"})
# Scheduler of Ray → its pruner.
_PRUNERS: Mapping[str, _Pruner] = {
    "ASHAScheduler": _ASHA,
    "AsyncHyperBandScheduler": _ASHA,
    "HyperBandScheduler": _HYPERBAND,
    "HyperBandForBOHB": _HYPERBAND,
    "MedianStoppingRule": _Pruner("median", {"grace_period": "n_warmup_steps", "min_samples_required": "n_startup_trials"}),
}
# Module with a function and arguments that the search binds to it.
_TRAINABLE = '''"""The function that {name} passes to Ray Tune."""

from functools import partial

import {module} as {script}

trainable = {text}
'''.replace("{script}", tune_partial.SCRIPT)
_UNREADABLE = "only running the file would show what it is"
# Scheduler of Ray → its default of `max_t`.
_DEFAULT_MAX_T = {"ASHAScheduler": 100, "AsyncHyperBandScheduler": 100, "HyperBandScheduler": 81, "HyperBandForBOHB": 81}


class _Metric(NamedTuple):
    """A metric to optimize.

    Attributes:
        name: Name of the metric.
        mode: "min" or "max", as in Ray.
    """

    name: str
    mode: str


class _Paths(NamedTuple):
    """Paths of the parts of a search in the data of its call.

    Attributes:
        trainable: Function that a trial calls.
        space: Configuration with the values to search.
        settings: Arguments that configure the search.
        stop: Rules that end a trial.
    """

    trainable: FieldPath
    space: FieldPath
    settings: FieldPath
    stop: FieldPath


# Of tune.Tuner and of tune.run.
_TUNER = _Paths(trainable=("trainable",), space=("param_space",), settings=("tune_config",), stop=("run_config", "stop"))
_RUN = _Paths(trainable=("run_or_experiment",), space=("config",), settings=(), stop=("stop",))
_LONGEST_TRIAL = "1h"  # time limit of a trial whose end is not in the file
_ITERATIONS = "training_iteration"  # default unit of progress of each scheduler except MedianStoppingRule
_REASONS = {
    "run_config": "a run's name and target are set when the job is submitted; `budget` and `retries` limit failures",
    "name": "is given when the job is submitted: --name",
    "storage_path": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "local_dir": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "callbacks": "results are in MLflow",
    "verbose": "`platform status --watch` shows a run",
    "resume": "`platform resume` continues a run",
}


class _Searcher(NamedTuple):
    """The searcher of a search.

    Attributes:
        sampler: Sampler of the job.
        parallel: Number of trials at the same time. None if the searcher does not limit it.
        space_function: Name of the function that defines the space. "" if the searcher gets none.
    """

    sampler: dict[str, Any]
    parallel: int | None
    space_function: str


@dataclasses.dataclass(frozen=True)
class _Parameters(search.Parameters):
    """The parameters of a job.

    Attributes:
        grids: Paths of the parameters with a grid search, by name.
    """

    grids: dict[str, FieldPath] = dataclasses.field(default_factory=dict)


class _TrialLimits(NamedTuple):
    """The limits of a trial.

    Attributes:
        rules: Field `stop` of the job.
        timeout: Its field `budget.timeout`. None without one.
    """

    rules: list[dict[str, Any]]
    timeout: float | str | None


class _Trainable(NamedTuple):
    """The function or class that a trial calls.

    Attributes:
        name: Its name. "" if the file does not name it.
        partial_text: Text of a `partial` of it, for another module. "" if nothing is bound to it.
    """

    name: str
    partial_text: str = ""


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of a search.

    Args:
        text: Text of the Python file.
        name: Name of the file in messages.
        scripts: Ignored; other importers need the Python files in the same folder.

    Raises:
        SpecError: The file is not Python, has no search, or has values of the wrong kind.
    """
    tree = _parse(text, name)
    source, paths = _read_call(tree, name)
    defined_names = tune_call.module_names(tree)
    # What is searched, and how.
    searcher = _searcher(source, (*paths.settings, "search_alg"))
    parameters = _parameters(source, paths)
    sampler = _sampler(source, paths, searcher, parameters)
    objectives = _objectives(source, paths.settings, _other_metric(tree))
    trials = _trials(source, (*paths.settings, "num_samples"), parameters, sampler)
    space: Any = parameters.space
    module = _module_name(name)
    if not space and searcher.space_function in defined_names:
        space = f"{module}:{searcher.space_function}"
    # What a trial calls, and when it ends.
    resources = _resources(source, ("resources_per_trial",))
    trainable_field = paths.trainable
    if source.look(*trainable_field, CALL) == "with_resources":
        source.mark_read(*trainable_field, CALL)
        resources |= _resources(source, (*trainable_field, "resources"))
        trainable_field = (*trainable_field, "trainable")
    trainable = _trainable(source, trainable_field, tree, defined_names)
    limits = _trial_limits(source, (*paths.settings, "scheduler"), paths.stop)
    is_class = any(isinstance(node, ast.ClassDef) and node.name == trainable.name for node in tree.body)
    if is_class and not limits.rules and not limits.timeout:
        source.note(f"a class without `stop` trains until its step returns done, here for {_LONGEST_TRIAL} at most", CALL)
        limits = limits._replace(timeout=_LONGEST_TRIAL)
    saves_checkpoints = _saves_checkpoints(tree)
    if saves_checkpoints:
        remark = "with `checkpoints`, a paused, killed or lost trial continues from its newest one"
        source.note(f"saves checkpoints: {remark}", CALL)
    # The modules that a trial imports.
    file_name = PurePath(name).name
    entrypoint = f"ray:{module}:{trainable.name or 'FUNCTION'}"  # in place of FUNCTION, the user writes the name
    files = {} if f"{module}.py" == file_name else {f"{module}.py": text}  # a copy that Python can import
    if trainable.partial_text:
        entrypoint = f"ray:{module}_trainable:trainable"
        module_text = _TRAINABLE.format(name=file_name, module=module, text=trainable.partial_text)
        files[f"{module}_trainable.py"] = module_text
    job = {
        "kind": "hpo",
        "params": {name: value for name, value in parameters.params.items() if name not in parameters.space},
        "space": space,
        "objective": None if objectives[1:] else objectives[0],
        "objectives": objectives if objectives[1:] else None,
        "sampler": search.short_form(sampler),
        "pruner": _pruner(source, (*paths.settings, "scheduler")),
        "trials": trials,
        "parallel": source.integer(*paths.settings, "max_concurrent_trials") or searcher.parallel,
        "stop": limits.rules,
        "budget": {"timeout": limits.timeout, "time": source.number(*paths.settings, "time_budget_s")},
        "resources": resources,
        "ranks": 1 if resources.get("gpus", 0) > 1 else None,  # the function is called in one process
        "entrypoint": entrypoint,
        "checkpoints": {"grace": "30s"} if saves_checkpoints else None,
    }
    return source.result(job, _REASONS, files=files, copies=[file_name])


def _read_call(tree: ast.Module, name: str) -> tuple[Source, _Paths]:
    """Return the arguments of the first search in a file as a source, and the paths of its parts.

    Raises:
        SpecError: The file has no search.
    """
    calls = list(searches(tree))
    if not calls:
        raise SpecError([Issue(("file",), "has no tune.Tuner(…) and no tune.run(…)", source=name)])
    reader = tune_call.Reader(tree, name, calls[0], folding.fold(tree))
    source = Source(Document(data=reader.read(), lines=reader.lines, source=name))
    for field, remark in reader.remarks:
        source.note(remark, *field)
    for call in calls[1:]:
        source.note(f"only the first search in the file is taken; that of line {call.lineno} is not")
    paths = _TUNER if naming.last(calls[0].func) == "Tuner" else _RUN
    for call_field in ((), paths.settings, ("run_config",)):  # of tune.Tuner, tune.TuneConfig and tune.RunConfig
        source.mark_read(*call_field, CALL)
    return source, paths


def _parameters(source: Source, paths: _Paths) -> _Parameters:
    """Return the parameters of the job.

    The function of a trainer, such as `TorchTrainer`, gets only the `train_loop_config` of the trainer and of the
    space. A parameter that is fixed in the former and searched in the latter is in both `params` and `space` of the result.
    """
    parameters = _Parameters()
    space_field = paths.space
    if _is_trainer(source.look(*paths.trainable)):
        space_field = (*paths.space, "train_loop_config")
        trainer_config = (*paths.trainable, "train_loop_config")
        if source.look(*trainer_config) is not None:
            _add_parameters(source, trainer_config, parameters, keys=())
            parameters.grids.clear()  # a grid counts only in the space
    if source.look(*space_field) is not None:
        _add_parameters(source, space_field, parameters, keys=())
    return parameters


def _searches_on_import(tree: ast.Module) -> bool:
    """Return whether a file starts its search also when it is imported, and not only when it is run as a script."""
    import_statements = [
        node
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not arguments.is_main(node)
    ]
    return not set(searches(tree)).isdisjoint(naming.executed_nodes(tree, import_statements))


def _sampler(source: Source, paths: _Paths, searcher: _Searcher, parameters: _Parameters) -> Mapping[str, Any]:
    """Return the sampler of the job: grid for a search of grids only. Add a note on each grid beside other parameters."""
    grids = parameters.grids
    if grids and len(grids) == len(parameters.space) and source.look(*paths.settings, "search_alg") is None:
        return {"name": "grid"}
    for field in grids.values():
        source.note("every value is tried num_samples times there; here values are drawn", *field)
    return searcher.sampler


def _trials(source: Source, field: FieldPath, parameters: _Parameters, sampler: Mapping[str, Any]) -> int:
    """Return the number of trials of the job, from the number of Ray's samples: each tries all points of the grids.

    If that is unlimited, as -1, or not known, it is the default.
    """
    samples = source.integer(*field)
    is_unlimited = source.look(*field) is not None and (samples is None or samples < 1)
    points = math.prod(len(parameters.space[name]["choices"]) for name in parameters.grids)  # 1 without a grid
    is_default = is_unlimited and not parameters.grids
    requested = None if is_default else max(1, samples or 1) * points
    trials = search.trials(requested, sampler, parameters.space)
    if is_unlimited:
        source.note(f"is unlimited there, or not known, but a study must end: trials is {trials}", *field)
    return trials


def _module_name(name: str) -> str:
    """Return a name for a file under which Python can import it as a module."""
    stem = re.sub(r"\W", "_", PurePath(name).stem, flags=re.ASCII)
    return stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"search_{stem}"


def _saves_checkpoints(tree: ast.Module) -> bool:
    """Return whether a file reports checkpoints to Ray, or gets one from it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        naming.last(call.func) == "get_checkpoint"
        or (naming.last(call.func) == "report" and any(word.arg == "checkpoint" for word in call.keywords))
        for call in calls
    )


def is_search(text: str) -> bool:
    """Return whether a text is a script that may start a search of Ray Tune, as `starts_search` does."""
    tree = notebook.parse_or_empty(text)
    return starts_search(tree, tree.body)


def has_search(text: str) -> bool:
    """Return whether a text is Python code with a search of Ray Tune, also in a function that it does not use."""
    return any(True for _ in searches(notebook.parse_or_empty(text)))


def starts_search(tree: ast.Module, statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements may start a search of Ray Tune. One in a function that they do not use is ignored."""
    names = naming.imported(tree)
    called_names = (
        naming.full(node.func, names) for node in naming.executed_nodes(tree, statements) if isinstance(node, ast.Call)
    )
    return any(name.startswith("ray.") and _is_search(name) for name in called_names)


def _is_search(name: str) -> bool:
    """Return whether a dotted name is that of a function or class that starts a search."""
    return name in ("tune.run", "ray.tune.run") or name.rpartition(".")[2] == "Tuner"


def _parse(text: str, name: str) -> ast.Module:
    """Return the tree of a Python file.

    Raises:
        SpecError: The text is not Python.
    """
    try:
        return ast.parse(text)
    except SyntaxError as error:
        message = f"is not Python: {error.msg}"
        raise SpecError([Issue(("file",), message, source=name, line=error.lineno or 0)]) from None
    except (ValueError, RecursionError, MemoryError):
        message = "is not Python: it contains null bytes, or is nested too deeply"
        raise SpecError([Issue(("file",), message, source=name)]) from None


def searches(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of Tuner and of tune.run, in the order of the file."""
    names = naming.imported(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = naming.full(node.func, names)
        if _is_search(name) and (name.startswith("ray.") or name.partition(".")[0] in ("tune", "Tuner")):
            yield node


def _add_parameters(source: Source, field: FieldPath, parameters: _Parameters, *, keys: tuple[str, ...]) -> None:
    """Add the values of a trial's configuration to the parameters of the job.

    Args:
        source: The file.
        field: Path of the configuration, or of a dict in it.
        parameters: Parameters of the job.
        keys: Keys of that dict in the configuration; () for the configuration itself.
    """
    if not isinstance(source.look(*field), dict) or CALL in source.keys(*field):
        source.refuse("is not a dict that can be read: write out its keys and values in the file", *field)
        return
    for key in source.keys(*field):
        value_field, value_keys = (*field, key), (*keys, key)
        value = source.look(*value_field)
        if isinstance(value, dict) and CALL not in value:
            _add_parameters(source, value_field, parameters, keys=value_keys)
        else:
            _add_parameter(source, value_field, parameters, keys=value_keys)


def _add_parameter(source: Source, field: FieldPath, parameters: _Parameters, *, keys: tuple[str, ...]) -> None:
    """Add a value of a trial's configuration to the parameters of the job, see `_add_parameters`."""
    value = source.look(*field)
    name = source.name(".".join(keys), *field)
    if tuple(name.split(".")) != keys:
        reason = f"the function gets it as {_subscripts(name.split('.'))}, not as {_subscripts(keys)}; change that"
        source.note(reason, *field)
    if isinstance(value, list) and tune_call.has_call(value):
        source.skip("values are drawn in a list here; give each a key of its own, or a parameter in job.yaml", *field)
    elif not isinstance(value, dict):
        parameters.params[name] = source.take(*field)
    elif (parameter := _domain(source, field)) is not None:
        parameters.space[name] = parameter
        if value[CALL] == "grid_search":
            parameters.grids[name] = field


def _subscripts(keys: Sequence[str]) -> str:
    """Return the expression that reads a value of the configuration, such as `config['opt']['lr']`, for messages."""
    return "config" + "".join(f"[{key!r}]" for key in keys)


def _domain(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return the parameter that a function of `tune` draws. None after a note or an issue."""
    function = source.text(*field, CALL)
    match function.removeprefix("q"):  # the q of `quniform` stands for multiples of a step
        case "choice":
            return _choice(source, field, "categories")
        case "grid_search":
            return _choice(source, field, "values")
        case "randn":
            return _normal(source, field)
        case "uniform" | "loguniform" | "randint" | "lograndint":
            return _range(source, field, function)
        case "sample_from":
            reason = "a function of the other values cannot be read"
            source.skip(f"{reason}; compute it in the trainable, or write space: module:function", *field)
        case _:
            source.skip(f"{_UNREADABLE}; write the parameter into job.yaml", *field)
    return None


def _choice(source: Source, field: FieldPath, key: str) -> dict[str, Any] | None:
    """Return the parameter for a call with a list of choices under a key. None after an issue."""
    choices = source.look(*field, key)
    if not isinstance(choices, list) or tune_call.has_call(choices):
        source.refuse("needs a list of values that can be read: write them out in the file", *field)
        return None
    return search.categorical(source.take(*field, key))


def _normal(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return the parameter for a call of `randn`, or `qrandn` with a step. None if its values are too large."""
    mean, deviation, step = (source.number(*field, key) for key in ("mean", "sd", "q"))
    if step is not None:
        source.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *field)
    return search.normal(mean or 0.0, 1.0 if deviation is None else deviation, step=step)


def _range(source: Source, field: FieldPath, function: str) -> dict[str, Any] | None:
    """Return the parameter for a call of a function with two bounds, such as `qloguniform`. None after an issue."""
    step = source.number(*field, "q") if function.startswith("q") else None
    low, high = source.number(*field, "lower"), source.number(*field, "upper")
    if low is None or high is None:
        source.refuse("needs two bounds that can be read", *field)
        return None
    source.mark_read(*field, "base")  # the base of the logarithm has no effect on the values that are drawn
    is_integer = function.endswith("randint")
    if is_integer and step in (None, 1):  # in Ray, only a larger step includes the upper bound
        high -= 1
    type_name: Literal["int", "float"] = "int" if is_integer else "float"
    return search.span_of_multiples(source, field, type_name, low, high, step=step, log="log" in function, inward=True)


def _other_metric(tree: ast.Module) -> _Metric | None:
    """Return the metric that a file names outside of its search; None without one.

    It is that by which the file takes the best result, as `get_best_trial("loss", "min")` does, or else the best objective
    among the metrics that it reports.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        if naming.last(call.func).startswith("get_best_"):
            by_name = naming.arguments_by_name(call, "metric", "mode")
            match by_name.get("metric"), by_name.get("mode"):
                case ast.Constant(value=str(metric)), ast.Constant(value="min" | "max" as mode):
                    return _Metric(metric, mode)
    objective = guess.objective(dict.fromkeys(_reported_metrics(calls), 0.0))
    if objective is None:
        return None
    return _Metric(objective["metric"], mode="max" if objective["direction"] == "maximize" else "min")


def _reported_metrics(calls: Sequence[ast.Call]) -> Iterator[str]:
    """Yield the names of the metrics in calls of `report`."""
    for call in calls:
        if naming.last(call.func) != "report":
            continue
        by_name = naming.arguments_by_name(call, "metrics")
        match by_name.pop("metrics", None):
            case ast.Dict(keys=keys) if keys:  # report({"loss": loss})
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case _:  # report(loss=loss)
                yield from by_name


def _objectives(source: Source, settings: FieldPath, other_metric: _Metric | None) -> list[dict[str, str]]:
    """Return the objectives. Metric and mode may be settings of the search, its scheduler or its searcher.

    Without a metric, add a note; the objective is then that of other parts of the file, or a placeholder.
    """
    searcher = (*settings, "search_alg")
    fields = (settings, (*settings, "scheduler"), searcher, (*searcher, "searcher"))  # the last one in a ConcurrencyLimiter
    metrics = _first_texts(source, [(*field, "metric") for field in fields])
    modes = _first_texts(source, [(*field, "mode") for field in fields]) or ["min"]
    if not metrics and other_metric is not None:
        metrics, modes = [other_metric.name], [other_metric.mode]
        remark = f"names no metric: {metrics[0]}, {modes[0]}, is that of other parts of the file; check both"
        source.note(remark, *(settings or (CALL,)))
    elif not metrics:
        source.note("names no metric: write the objective into job.yaml", *(settings or (CALL,)))
        metrics = ["loss"]
    if len(modes) != len(metrics):  # one mode for several metrics
        modes = modes[:1] * len(metrics)
    return [
        {"metric": metric, "direction": "maximize" if mode == "max" else "minimize"}
        for metric, mode in zip(metrics, modes, strict=True)
    ]


def _first_texts(source: Source, fields: Sequence[FieldPath]) -> list[str]:
    """Read the text, or the list of texts, at each of several paths, and return the texts at the first path that has any."""
    texts: list[str] = []
    for field in fields:
        field_texts = source.texts(*field) if isinstance(source.look(*field), list) else [source.text(*field)]
        texts = texts or [text for text in field_texts if text]
    return texts


def _searcher(source: Source, field: FieldPath) -> _Searcher:
    """Return the searcher at a path, which may be in a ConcurrencyLimiter, or the name of its class."""
    parallel = None
    class_name = source.text(*field, CALL) if isinstance(source.look(*field), dict) else source.text(*field)
    if class_name == "ConcurrencyLimiter":
        parallel = source.integer(*field, "max_concurrent")
        field = (*field, "searcher")
        class_name = source.text(*field, CALL)
    sampler = search.sampler_or_tpe(source, class_name, *field) if class_name else {"name": "random"}
    space = source.look(*field, "space")
    space_function = space.get("text", "") if isinstance(space, dict) else ""
    if not space_function.isidentifier():
        return _Searcher(sampler, parallel, "")
    source.mark_read(*field, "space")
    return _Searcher(sampler, parallel, space_function)


def _pruner(source: Source, field: FieldPath) -> Any:
    """Return the pruner for a scheduler. None without a scheduler that ends trials, or if it has no counterpart."""
    if not isinstance(source.look(*field), dict):
        source.skip(_UNREADABLE, *field)
        return None
    class_name = source.text(*field, CALL)
    if class_name == "FIFOScheduler":
        return None
    if class_name not in _PRUNERS:
        advice = "population based training is not a pruner here; write population into job.yaml"
        reason = advice if class_name.startswith(("Population", "PB")) else "has no counterpart"
        source.note(f"{class_name}: {reason}; trials run to their end", *field)
        return None
    counterpart = _PRUNERS[class_name]
    pruner: dict[str, Any] = {"name": counterpart.name}
    if counterpart is _ASHA:
        pruner |= {"min_resource": 1, "reduction_factor": 4}  # Ray's defaults
    progress_unit = _progress_unit(source, field)
    for key, option in counterpart.options.items():
        if key in ("grace_period", "max_t") and progress_unit != _ITERATIONS:
            is_time = progress_unit.startswith("time_") and progress_unit.endswith("_s")  # such as time_total_s
            unit = "seconds" if is_time else progress_unit
            source.skip(
                f"is in {unit} there, and steps are counted here: write {option} of the pruner into job.yaml", *field, key
            )
        elif (value := source.integer(*field, key)) is not None:
            pruner[option] = value
    return search.short_form(pruner)


def _progress_unit(source: Source, scheduler: FieldPath) -> str:
    """Return the unit in which a scheduler counts progress."""
    is_median = source.look(*scheduler, CALL) == "MedianStoppingRule"
    return source.text(*scheduler, "time_attr") or ("time_total_s" if is_median else _ITERATIONS)


def _trial_limits(source: Source, scheduler: FieldPath, stop_field: FieldPath) -> _TrialLimits:
    """Return the limits of a trial: the bounds at `stop_field`, and a scheduler at its number of iterations `max_t`."""
    rules: list[dict[str, Any]] = []
    step_limits: list[int] = []
    timeout: float | str | None = None
    bounds = source.look(*stop_field)
    if bounds is not None and (not isinstance(bounds, dict) or CALL in bounds):
        source.skip(f"{_UNREADABLE}: a trial ends when its code returns, or after {_LONGEST_TRIAL}", *stop_field)
        bounds, timeout = None, _LONGEST_TRIAL
    for metric, value in (bounds or {}).items():
        field = (*stop_field, metric)
        if isinstance(value, bool):
            source.skip("is not a number: have the trainable return there", *field)
        elif (bound := source.number(*field)) is None:
            continue
        elif metric == _ITERATIONS:
            step_limits.append(max(0, math.ceil(bound)))
        elif metric == "time_total_s":
            timeout = bound
            source.note("ends a trial as complete there, and as failed here: see `budget.timeout`", *field)
        else:
            rules.append({"metric": metric, "above": bound})
    default_max_t = _DEFAULT_MAX_T.get(str(source.look(*scheduler, CALL)))
    if default_max_t and _progress_unit(source, scheduler) == _ITERATIONS:
        step_limits.append(source.integer(*scheduler, "max_t") or default_max_t)
    if step_limits:
        rules.append({"step": min(step_limits)})
    return _TrialLimits(rules, timeout)


def _is_trainer(value: Any) -> bool:
    """Return whether a trainable is a trainer of Ray Train with a function, such as `TorchTrainer(train_loop, …)`."""
    return isinstance(value, dict) and str(value.get(CALL)).endswith("Trainer") and "train_loop_per_worker" in value


def _registered(tree: ast.Module) -> dict[str, str]:
    """Return the trainables that a file registers under a name, as `tune.register_trainable("fit", fit)` does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    names_and_trainables = [call.args for call in calls if naming.last(call.func) == "register_trainable"]
    return {str(getattr(name, "value", "")): ast.unparse(trainable) for name, trainable in names_and_trainables}


def _trainable(source: Source, field: FieldPath, tree: ast.Module, defined_names: Collection[str]) -> _Trainable:
    """Return what a trial calls. Add a note, or refuse the file, if a trial cannot import that.

    Args:
        source: File of the search.
        field: Path of the trainable in it: code as a dict with its text, or the name with which it was registered.
        tree: Syntax tree of the file.
        defined_names: Names that the file defines at its top level.
    """
    trainable = _written_trainable(source, field, tree)
    name = trainable.name
    if not name.isidentifier():  # lambda config: 1
        description = f"{errors.shortened(name, 60)} is" if name else "the trainable is"
        remedy = "define one, and name it in the entrypoint"
        source.note(f"{description} not a function of this file by its name: {remedy}", *field)
        return _Trainable("")
    if trainable.partial_text and _searches_on_import(tree):
        source.refuse("would start its search when a trial imports it: put that below `if __name__ == '__main__':`")
    if naming.imported(tree).get(name, "").startswith("ray."):
        source.refuse(f"{name} is a class of Ray's, and a trial calls a function: write a function(config) that uses it")
    elif name not in defined_names:
        source.note(f"{name} is not defined at the top level of the file, where a trial finds it: move it there", CALL)
    return trainable


def _written_trainable(source: Source, field: FieldPath, tree: ast.Module) -> _Trainable:
    """Return the trainable as it is in the file. In place of a name, it may have the text of another expression."""
    value = source.take(*field)
    if _is_trainer(value):
        reason = "its function runs in one process: of ray.train, it may call report, get_checkpoint and get_context"
        source.note(reason, *field)
        value = value["train_loop_per_worker"]
    if not isinstance(value, dict):
        return _Trainable(_registered(tree).get(str(value), ""))
    if value.get(CALL) not in tune_call.BINDERS:
        return _Trainable(value.get("text", ""))
    # partial(function, …)
    function, partial_text = value.get("function"), value.get("text", "")
    name = function.get("text", "") if isinstance(function, dict) else ""
    if name.isidentifier() and not partial_text:
        remedy = f"write `def NAME(config): return {name}(config, …)` at its top level, and pass NAME"
        source.refuse(f"binds values that only running the file would show: {remedy}", *field)
    return _Trainable(name, partial_text)


def _resources(source: Source, field: FieldPath) -> dict[str, Any]:
    """Return the resources of a trial, from Ray's dict at a path; {} if there is none that can be read."""
    if source.look(*field) is None:
        return {}
    if not isinstance(source.look(*field), dict) or source.look(*field, CALL):
        source.skip(f"{_UNREADABLE}; write `resources` into job.yaml", *field)
        return {}
    resources: dict[str, Any] = {}
    for key in ("cpu", "CPU", "gpu", "GPU"):
        amount = source.number(*field, key) or 0
        if key.lower() == "gpu" and amount > 1 and amount != int(amount):  # a job may share one GPU, and not several
            source.note(f"{amount:g} GPUs become {math.ceil(amount)}", *field, key)
            amount = math.ceil(amount)
        if amount:
            resources[f"{key.lower()}s"] = int(amount) if amount == int(amount) else amount
    return resources
