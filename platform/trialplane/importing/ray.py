"""A search of Ray Tune, from the Python file with `tune.Tuner(…)` or `tune.run(…)`, which is parsed and never run."""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError
from trialplane.importing import folding, guess, naming, search, tune_call, tune_partial
from trialplane.importing.source import CALL, ImportResult, Source
from trialplane.job import arguments
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
    file_name, module = PurePath(name).name, _module_name(name)
    defined_names = tune_call.module_names(tree)
    # What is searched, and how.
    searcher = _searcher(source, (*paths.settings, "search_alg"))
    sampler = searcher.sampler
    parameters, grids = _configuration(source, paths)
    space = parameters.space
    if grids and len(grids) == len(space) and source.look(*paths.settings, "search_alg") is None:
        sampler = {"name": "grid"}
    else:  # a job's grid needs choices for all parameters
        for grid_field in grids.values():
            source.note("every value is tried num_samples times there; here values are drawn", *grid_field)
    objectives = _objectives(source, paths.settings, _other_metric(tree))
    grid_values = [space[parameter]["choices"] for parameter in grids]
    trials = _trials(source, (*paths.settings, "num_samples"), grid_values, sampler, space)
    # What a trial calls, and when it ends.
    resources, trainable_field = _trial_resources(source, paths.trainable)
    trainable = _trainable(source, trainable_field, tree, defined_names)
    stop, budget = _stop_rules(source, (*paths.settings, "scheduler"), paths.stop)
    is_class = any(isinstance(node, ast.ClassDef) and node.name == trainable.name for node in tree.body)
    if is_class and not stop and not budget:
        source.note(f"a class without `stop` trains until its step returns done, here for {_LONGEST_TRIAL} at most", CALL)
        budget["timeout"] = _LONGEST_TRIAL
    budget["time"] = source.number(*paths.settings, "time_budget_s")
    saves_checkpoints = _saves_checkpoints(tree)
    if saves_checkpoints:
        remark = "with `checkpoints`, a paused, killed or lost trial continues from its newest one"
        source.note(f"saves checkpoints: {remark}", CALL)
    entrypoint = f"ray:{module}:{trainable.name or 'FUNCTION'}"  # in place of FUNCTION, the user writes the name
    files = {} if f"{module}.py" == file_name else {f"{module}.py": text}  # a copy that Python can import
    if trainable.partial_text:
        entrypoint = f"ray:{module}_trainable:trainable"
        module_text = _TRAINABLE.format(name=file_name, module=module, text=trainable.partial_text)
        files[f"{module}_trainable.py"] = module_text
    has_space_function = searcher.space_function in defined_names
    job = {
        "kind": "hpo",
        "params": {name: value for name, value in parameters.params.items() if name not in space},
        "space": space or (f"{module}:{searcher.space_function}" if has_space_function else {}),
        "objective": None if objectives[1:] else objectives[0],
        "objectives": objectives if objectives[1:] else None,
        "sampler": search.short_form(sampler),
        "pruner": _pruner(source, (*paths.settings, "scheduler")),
        "trials": trials,
        "parallel": source.integer(*paths.settings, "max_concurrent_trials") or searcher.parallel,
        "stop": stop,
        "budget": budget,
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


def _configuration(source: Source, paths: _Paths) -> tuple[search.Parameters, dict[str, FieldPath]]:
    """Return the parameters of the job, and the paths of those with a grid search by name.

    The function of a trainer, such as `TorchTrainer`, gets only the `train_loop_config` of the trainer and of the
    space. A parameter that is fixed in the former and searched in the latter is in both `params` and `space` of the result.
    """
    parameters = search.Parameters()
    grids: dict[str, FieldPath] = {}
    space_field = paths.space
    if _is_trainer(source.look(*paths.trainable)):
        space_field = (*paths.space, "train_loop_config")
        trainer_config = (*paths.trainable, "train_loop_config")
        if source.look(*trainer_config) is not None:  # a grid counts only in the space
            _add_parameters(source, trainer_config, parameters, keys=())
    if source.look(*space_field) is not None:
        grids = _add_parameters(source, space_field, parameters, keys=())
    return parameters, grids


def _searches_on_import(tree: ast.Module) -> bool:
    """Return whether a file starts its search also when it is imported, and not only when it is run as a script."""
    import_statements = [
        node
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not arguments.is_main(node)
    ]
    return not set(searches(tree)).isdisjoint(naming.executed_nodes(tree, import_statements))


def _trials(
    source: Source,
    samples_field: FieldPath,
    grid_values: Sequence[Sequence[Any]],
    sampler: Mapping[str, Any],
    space: Mapping[str, Any],
) -> int:
    """Return the number of trials of the job. One of Ray's samples is a trial at each point of the grids."""
    samples = source.integer(*samples_field)
    is_unlimited = source.look(*samples_field) is not None and (samples is None or samples < 1)  # -1 stands for no limit
    points = math.prod(map(len, grid_values))  # 1 without a grid
    requested = 0 if is_unlimited and not grid_values else max(1, samples or 1) * points  # 0 stands for the default
    trials = search.trials(requested, sampler, space)
    if is_unlimited:
        source.note(f"is unlimited there, or not known, but a study must end: trials is {trials}", *samples_field)
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
    try:
        tree = _parse(text, name="")
        return starts_search(tree, tree.body)
    except SpecError:
        return False


def has_search(text: str) -> bool:
    """Return whether a text is Python code with a search of Ray Tune, also in a function that it does not use."""
    try:
        return any(True for _ in searches(_parse(text, name="")))
    except SpecError:
        return False


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


def _add_parameters(
    source: Source, field: FieldPath, parameters: search.Parameters, *, keys: tuple[str, ...]
) -> dict[str, FieldPath]:
    """Add the values of a trial's configuration to the parameters of the job.

    Args:
        source: The file.
        field: Path of the configuration, or of a dict in it.
        parameters: Parameters of the job.
        keys: Keys of that dict in the configuration; () for the configuration itself.

    Returns:
        Paths of the parameters with a grid search, by name.
    """
    grids: dict[str, FieldPath] = {}
    if not isinstance(source.look(*field), dict) or CALL in source.keys(*field):
        source.refuse("is not a dict that can be read: write out its keys and values in the file", *field)
        return {}
    for key in source.keys(*field):
        value_field, value_keys = (*field, key), (*keys, key)
        value = source.look(*value_field)
        if isinstance(value, dict) and CALL not in value:
            grids |= _add_parameters(source, value_field, parameters, keys=value_keys)
            continue
        name = source.name(".".join(value_keys), *value_field)
        if tuple(name.split(".")) != value_keys:
            source.note(
                f"the function gets it as {_subscripts(name.split('.'))}, not as {_subscripts(value_keys)}; change that",
                *value_field,
            )
        if isinstance(value, list) and any(tune_call.has_call(element) for element in value):
            source.skip(
                "values are drawn in a list here; give each a key of its own, or a parameter in job.yaml", *value_field
            )
        elif not isinstance(value, dict):
            parameters.params[name] = source.take(*value_field)
        elif (parameter := _domain(source, value_field)) is not None:
            parameters.space[name] = parameter
            if value[CALL] == "grid_search":
                grids[name] = value_field
    return grids


def _subscripts(keys: Sequence[str]) -> str:
    """Return the expression that reads a value of the configuration, such as `config['opt']['lr']`, for messages."""
    return "config" + "".join(f"[{key!r}]" for key in keys)


def _domain(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return the parameter that a function of `tune` draws. None after a note or an issue."""
    function = source.text(*field, CALL)
    if function in ("choice", "grid_search"):
        key = "categories" if function == "choice" else "values"
        categories = source.look(*field, key)
        if not isinstance(categories, list) or tune_call.has_call(categories):
            source.refuse("needs a list of values that can be read: write them out in the file", *field)
            return None
        return search.categorical(source.take(*field, key))
    if function == "sample_from":
        reason = (
            "a function of the other values cannot be read; compute it in the trainable, or write space: module:function"
        )
        source.skip(reason, *field)
        return None
    if function.removeprefix("q") not in ("uniform", "loguniform", "randint", "lograndint", "randn"):
        source.skip(f"{_UNREADABLE}; write the parameter into job.yaml", *field)
        return None
    step = source.number(*field, "q") if function.startswith("q") else None
    # A normal distribution.
    if function.endswith("randn"):
        mean, deviation = source.number(*field, "mean"), source.number(*field, "sd")
        if step is not None:
            source.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *field)
        return search.normal(mean or 0.0, 1.0 if deviation is None else deviation, step=step)
    # A range between two bounds.
    low, high = source.number(*field, "lower"), source.number(*field, "upper")
    if low is None or high is None:
        source.refuse("needs two bounds that can be read", *field)
        return None
    is_integer, log = function.endswith("randint"), "log" in function
    source.mark_read(*field, "base")  # the base of the logarithm has no effect on the values that are drawn
    excludes_upper = is_integer and (step is None or step == 1)  # in Ray, a larger step includes the upper bound
    if excludes_upper:
        high -= 1
    return search.span_of_multiples(
        source, field, "int" if is_integer else "float", low, high, step=step, log=log, inward=True
    )


def _other_metric(tree: ast.Module) -> _Metric | None:
    """Return the metric that a file names outside of its search; None without one.

    It is that by which the file takes the best result, as `get_best_trial("loss", "min")` does, or else the best objective
    among the metrics that it reports.
    """
    reported_keys: list[Any] = []  # names of metrics, and values that are not constant, as None
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else naming.last(call.func)
        if name.startswith("get_best_"):
            by_name = naming.arguments_by_name(call, "metric", "mode")
            metric, mode = (getattr(by_name.get(key), "value", None) for key in ("metric", "mode"))
            if isinstance(metric, str) and mode in ("min", "max"):
                return _Metric(metric, mode)
        elif name == "report":
            by_name = naming.arguments_by_name(call, "metrics")
            metrics = by_name.get("metrics")
            if isinstance(metrics, ast.Dict) and metrics.keys:  # report({"loss": loss})
                reported_keys += [getattr(key, "value", None) for key in metrics.keys]
            else:  # report(loss=loss)
                reported_keys += [name for name in by_name if name != "metrics"]
    objective = guess.objective({key: 0.0 for key in reported_keys if isinstance(key, str)})
    if objective is None:
        return None
    return _Metric(objective["metric"], mode="max" if objective["direction"] == "maximize" else "min")


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


def _stop_rules(source: Source, scheduler: FieldPath, stop_field: FieldPath) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the fields `stop` and `budget` of the job, with the rules that end a trial. A scheduler ends it at `max_t`."""
    rules: list[dict[str, Any]] = []
    step_limits: list[int] = []
    budget: dict[str, Any] = {}
    limits = source.look(*stop_field)
    if isinstance(limits, dict) and CALL not in limits:
        for metric in limits:
            if isinstance(limits[metric], bool):
                source.skip("is not a number: have the trainable return there", *stop_field, metric)
                continue
            bound = source.number(*stop_field, metric)
            if bound is None:
                continue
            if metric == _ITERATIONS:
                step_limits.append(max(0, math.ceil(bound)))
            elif metric == "time_total_s":
                budget["timeout"] = bound
                source.note("ends a trial as complete there, and as failed here: see `budget.timeout`", *stop_field, metric)
            else:
                rules.append({"metric": metric, "above": bound})
    elif limits is not None:
        source.skip(f"{_UNREADABLE}: a trial ends when its code returns, or after {_LONGEST_TRIAL}", *stop_field)
        budget["timeout"] = _LONGEST_TRIAL
    default_max_t = _DEFAULT_MAX_T.get(str(source.look(*scheduler, CALL)))
    if default_max_t and _progress_unit(source, scheduler) == _ITERATIONS:
        step_limits.append(source.integer(*scheduler, "max_t") or default_max_t)
    if step_limits:
        rules.append({"step": min(step_limits)})
    return rules, budget


def _is_trainer(value: Any) -> bool:
    """Return whether a trainable is a trainer of Ray Train with a function, such as `TorchTrainer(train_loop, …)`."""
    return isinstance(value, dict) and str(value.get(CALL)).endswith("Trainer") and "train_loop_per_worker" in value


def _registered(tree: ast.Module) -> dict[str, str]:
    """Return the trainables that a file registers under a name, as `tune.register_trainable("fit", fit)` does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    names_and_trainables = [call.args for call in calls if naming.last(call.func) == "register_trainable"]
    return {str(getattr(name, "value", "")): ast.unparse(trainable) for name, trainable in names_and_trainables}


def _trial_resources(source: Source, field: FieldPath) -> tuple[dict[str, Any], FieldPath]:
    """Return a trial's resources, and the path of the trainable without the calls of `with_resources` around it."""
    resources = _resources(source, ("resources_per_trial",))
    while isinstance(source.look(*field), dict) and source.look(*field, CALL) == "with_resources":
        source.mark_read(*field, CALL)
        resources |= _resources(source, (*field, "resources"))
        field = (*field, "trainable")
    return resources, field


def _trainable(source: Source, field: FieldPath, tree: ast.Module, defined_names: Collection[str]) -> _Trainable:
    """Return what a trial calls. Add a note, or refuse the file, if a trial cannot import that.

    Args:
        source: File of the search.
        field: FieldPath of the trainable in it: code as a dict with its text, or the name with which it was registered.
        tree: Syntax tree of the file.
        defined_names: Names that the file defines at its top level.
    """
    value = source.take(*field)
    if _is_trainer(value):
        source.note(
            "its function runs in one process: of ray.train, it may call report, get_checkpoint and get_context", *field
        )
        value = value["train_loop_per_worker"]
    name, partial_text = "", ""  # of the function, and of the whole `partial(function, …)` that binds its arguments
    if not isinstance(value, dict):
        name = _registered(tree).get(str(value), "")
    elif value.get(CALL) not in tune_call.BINDERS:
        name = value.get("text", "")
    else:
        function, partial_text = value.get("function"), value.get("text", "")
        name = function.get("text", "") if isinstance(function, dict) else ""
        is_bound_at_run = not partial_text and name.isidentifier()
        if is_bound_at_run:
            definition = f"def NAME(config): return {name}(config, …)"
            source.refuse(
                f"binds values that only running the file would show: write `{definition}` at its top level, and pass NAME",
                *field,
            )
    if not name.isidentifier():  # lambda config: 1
        description = f"{errors.shortened(name, 60)} is" if name else "the trainable is"
        source.note(
            f"{description} not a function of this file by its name: define one, and name it in the entrypoint", *field
        )
        return _Trainable("")
    if partial_text and _searches_on_import(tree):
        source.refuse("would start its search when a trial imports it: put that below `if __name__ == '__main__':`")
    if naming.imported(tree).get(name, "").startswith("ray."):
        source.refuse(f"{name} is a class of Ray's, and a trial calls a function: write a function(config) that uses it")
    elif name not in defined_names:
        source.note(f"{name} is not defined at the top level of the file, where a trial finds it: move it there", CALL)
    return _Trainable(name, partial_text)


def _resources(source: Source, field: FieldPath) -> dict[str, Any]:
    """Return the resources of a trial, from Ray's dict at a path; {} if there is none that can be read."""
    if source.look(*field) is None:
        return {}
    if not isinstance(source.look(*field), dict) or source.look(*field, CALL):
        source.skip(f"{_UNREADABLE}; write `resources` into job.yaml", *field)
        return {}
    resources: dict[str, Any] = {}
    for key, option in (("cpu", "cpus"), ("CPU", "cpus"), ("gpu", "gpus"), ("GPU", "gpus")):
        amount = source.number(*field, key)
        if amount and option == "gpus" and amount > 1 and amount != int(amount):
            source.note(f"{amount:g} GPUs become {math.ceil(amount)}", *field, key)
            amount = math.ceil(amount)
        if amount:
            resources[option] = int(amount) if amount == int(amount) else amount
    return resources
