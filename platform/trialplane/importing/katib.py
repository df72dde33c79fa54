"""Katib's Experiment, v1beta1, of which a trial is the primary container: https://www.kubeflow.org/docs/components/katib/."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from trialplane.errors import FieldPath
from trialplane.importing import katib_trial, search
from trialplane.importing.source import ImportResult, Source
from trialplane.job import document

# Sampler → setting of Katib → option of the sampler.
_SAMPLER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "tpe": {
        "n_startup_trials": "n_startup_trials",
        "n_initial_points": "n_startup_trials",
        "n_ei_candidates": "n_ei_candidates",
    },
    "cmaes": {"sigma": "sigma0"},
}
_WITHOUT_EFFECT = {"restart_strategy": "none"}  # setting of an algorithm → its value that changes nothing
_IN_FILES = ("File", "TensorFlowEvent", "Custom")  # collectors that read metrics from a file or a folder
_PUSHES = "the trial pushes its metrics to Katib; here they are read from what it prints"
_COLLECTOR_REMARKS = {
    "None": _PUSHES,
    "Push": _PUSHES,
    "PrometheusMetric": "metrics are not fetched from the trial: print them, or write a file",
}
_CONTAINER = "the platform sets these fields of a trial's pod; see `resources` and `cluster` in the job"
_REASONS = {
    "apiVersion": "is a field of Katib's own",
    "kind": "is a field of Katib's own",
    "metadata": "is given when the job is submitted: --namespace, --name; labels of its pods are in `cluster.labels`",
    "status": "is the Experiment's state, not a part of its definition",
    "spec.resumePolicy": "a run can always be resumed: `platform resume`",
    "trialTemplate.retain": "pods are kept for `cluster.ttl` after the end, and logs as long as the run",
    "trialTemplate.primaryPodLabels": "a trial has one log, with the output of all its nodes",
    "trialTemplate.successCondition": "a trial succeeds when its program exits with 0 and the objective was found",
    "trialTemplate.failureCondition": "a trial fails when its program exits with a code other than 0",
    "trialTemplate.trialSpec": _CONTAINER,
    "metadata.annotations": "annotations of a job's pods are in `cluster.annotations`",
    "metadata.labels": "labels of a job's pods are in `cluster.labels`",
    "restartPolicy": "`retries` in the job says how often a crashed trial is tried again",
    "imagePullPolicy": _CONTAINER,
    "volumeMounts": "the chart mounts data at /data, and checkpoints have a folder of their own: {checkpoints}",
    "volumes": "the chart mounts data at /data, and checkpoints have a folder of their own: {checkpoints}",
    "serviceAccountName": "trials get no service account token",
    "collector.customCollector": "a trial has no second container; `metrics` in the job says where its metrics are",
    "httpGet": "metrics are not fetched from the trial: print them, or write them to a file",
}


class _Item(NamedTuple):
    """The value of an item in one of Katib's lists of names and values.

    Attributes:
        value: The value, as text.
        field: Path of the item in the file.
    """

    value: str
    field: FieldPath


class _Algorithm(NamedTuple):
    """The search algorithm of an Experiment.

    Attributes:
        sampler: Sampler of the job.
        pruner: Pruner of the job. None if no trial is ended early.
        seed: Seed of the sampler. None without one.
    """

    sampler: dict[str, Any]
    pruner: dict[str, Any] | None = None
    seed: int | None = None


class _MovedPath(NamedTuple):
    """An absolute path in the Experiment, and the path below the trial's folder that replaces it: /logs/out and out."""

    old: str
    new: str


class _Metrics(NamedTuple):
    """The metrics of a trial.

    Attributes:
        fields: Field `metrics` of the job. None for its default.
        moved_path: Path of the metrics that changes, also in the command. None if none changes.
    """

    fields: dict[str, Any] | None
    moved_path: _MovedPath | None = None


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of an Experiment.

    Args:
        text: Text of the file.
        name: Name of the file in messages.
        scripts: Texts of the Python files in the same folder, by name.

    Raises:
        SpecError: The file is no Experiment, searches an architecture, or has values of the wrong kind.
    """
    source = Source(document.parse(text, name))
    if source.look("kind") != "Experiment" or not isinstance(source.look("spec"), dict):
        source.fail("is not a Katib Experiment: it needs `kind: Experiment` and a `spec`")
    if source.look("spec", "nasConfig") is not None:
        source.fail("architecture search has no counterpart: a job searches parameters", "spec", "nasConfig")
    for field in ("kind", "apiVersion"):
        source.mark_read(field)
    space = _space(source)
    objective = _objective(source)
    program = katib_trial.program(source, space)
    metrics = _metrics(source, objective["metric"])
    if metrics.moved_path is not None:
        for field in ("command", "arguments"):
            program[field] = [item.replace(*metrics.moved_path) for item in program[field]]
    algorithm = _algorithm(source)
    pruner = _early_stopping(source) or algorithm.pruner
    requested_trials = source.integer("spec", "maxTrialCount")
    trials = search.trials(requested_trials, algorithm.sampler, space)
    if requested_trials is None:
        source.note("is missing, but a study must end: see `trials`", "spec", "maxTrialCount")
    elif trials < requested_trials:
        source.note(f"is more than the grid's {trials} points", "spec", "maxTrialCount")
    job = {
        "kind": "hpo",
        "description": f"From Katib's Experiment {source.text('metadata', 'name')}.",
        **program,
        "metrics": metrics.fields,
        "space": space,
        "objective": objective,
        "sampler": search.short_form(algorithm.sampler),
        "pruner": search.short_form(pruner) if pruner else None,
        "trials": trials,
        "parallel": source.integer("spec", "parallelTrialCount") or 3,  # Katib's default
        "budget": {
            "max_failed": source.integer("spec", "maxFailedTrialCount"),
            "target": source.number("spec", "objective", "goal"),
        },
        "seed": algorithm.seed,
    }
    job, copies = katib_trial.with_script(job, scripts, source)
    return source.result(job, _REASONS, copies=copies)


def _space(source: Source) -> dict[str, Any]:
    """Return the space of the Experiment's parameters. Add an issue if it is empty."""
    space: dict[str, Any] = {}
    for index in source.indices("spec", "parameters"):
        field: FieldPath = ("spec", "parameters", index)
        name = source.name(source.text(*field, "name"), *field, "name")
        parameter = _parameter(source, field)
        if parameter is not None:
            space[name] = parameter
    if not space:
        source.refuse("has no parameters that a job could search", "spec", "parameters")
    return space


def _parameter(source: Source, field: FieldPath) -> dict[str, Any] | None:
    """Return a parameter of the space. None after an issue."""
    kind, feasible = source.text(*field, "parameterType"), (*field, "feasibleSpace")
    if kind in ("double", "int"):
        return _range_parameter(source, feasible, "int" if kind == "int" else "float")
    if kind not in ("categorical", "discrete"):
        source.refuse(f"{kind!r} is not double, int, discrete or categorical", *field, "parameterType")
        return None
    texts = list(dict.fromkeys(source.texts(*feasible, "list")))
    return search.categorical([search.scalar(text) for text in texts] if kind == "discrete" else texts)


def _range_parameter(source: Source, field: FieldPath, type_name: Literal["int", "float"]) -> dict[str, Any] | None:
    """Return a parameter between two bounds, from its `feasibleSpace`. None after an issue."""
    low, high, step = (source.number(*field, key) for key in ("min", "max", "step"))
    if low is None or high is None:
        source.refuse("needs min and max", *field)
        return None
    if type_name == "int" and not all(number == int(number) for number in (low, high, step or 0)):
        source.refuse("needs whole numbers for min, max and step: it is an int", *field)
        return None
    log = _is_logarithmic(source, (*field, "distribution"), low)
    if log and step is not None:
        source.note("a logarithmic range has no step here, so it is left out", *field, "step")
    return search.span(type_name, low, high, log=log, step=step)


def _is_logarithmic(source: Source, field: FieldPath, low: float) -> bool:
    """Return whether a range is logarithmic, from the name of its distribution at a path. Add a note if that changes.

    Args:
        source: The file.
        field: Path of the name.
        low: Lower bound of the range.
    """
    distribution = source.text(*field)
    log = distribution in ("logUniform", "logNormal") and low > 0
    if distribution in ("normal", "logNormal"):
        source.note(f"{distribution} is drawn uniformly between min and max here", *field)
    elif distribution not in ("", "uniform", "logUniform"):
        source.note(f"{distribution!r} is not known; values are drawn uniformly", *field)
    elif distribution == "logUniform" and not log:
        source.note("a logarithmic range must lie above 0; values are drawn uniformly", *field)
    return log


def _objective(source: Source) -> dict[str, Any]:
    """Return the objective. Add an issue if its metric is missing."""
    field = ("spec", "objective")
    metric = source.text(*field, "objectiveMetricName")
    direction = search.direction(source, *field, "type")
    if not metric:
        source.refuse("is missing", *field, "objectiveMetricName")
    source.mark_read(*field, "additionalMetricNames")  # every metric that is found is recorded
    # Which of its values in a trial counts for each metric: latest, min or max.
    strategies = _items(source, (*field, "metricStrategies"))
    default_strategy = "min" if direction == "minimize" else "max"
    strategies.setdefault(metric, _Item(default_strategy, (*field, "objectiveMetricName")))
    objective = {"metric": metric, "direction": direction}
    for name, strategy in strategies.items():
        if name == metric and strategy.value == default_strategy:
            objective["of"] = "best"
        elif strategy.value != "latest":
            reason = f"Katib takes the {strategy.value} of a trial's values of {name}; here the last value counts"
            source.note(reason, *strategy.field)
    return objective


def _items(source: Source, field: FieldPath) -> dict[str, _Item]:
    """Return the items of a list such as `[{name: eta, value: "3"}]`, by name."""
    items = {}
    for index in source.indices(*field):
        item_field = (*field, index)
        items[source.text(*item_field, "name")] = _Item(source.text(*item_field, "value"), item_field)
    return items


def _algorithm(source: Source) -> _Algorithm:
    """Return the algorithm with its settings. Add a note on each setting that the job lacks."""
    field = ("spec", "algorithm")
    name_field = (*field, "algorithmName")
    algorithm = source.text(*name_field)
    sampler: dict[str, Any] = {"name": "random"}
    pruner: dict[str, Any] | None = None
    if algorithm == "hyperband":
        reason = "a trial's share of the resource is a parameter there; here bad trials are ended early, by their reports"
        source.note(reason, *name_field)
        pruner = {"name": "hyperband"}
    elif algorithm == "pbt":
        advice = "population based training is not a sampler here; write population into job.yaml"
        source.note(f"{advice}. Now values are drawn at random", *name_field)
    else:
        sampler = search.sampler_or_tpe(source, algorithm, *name_field)
    sampler_options = _SAMPLER_OPTIONS.get(sampler["name"], {})
    seed: int | None = None
    for name, setting in _items(source, (*field, "algorithmSettings")).items():
        value_field = (*setting.field, "value")
        option = sampler_options.get(name)
        if name == "random_state":
            seed = source.integer(*value_field)
        elif option is not None:
            sampler[option] = source.number(*value_field) if option == "sigma0" else source.integer(*value_field)
        elif name == "eta" and pruner is not None:
            pruner |= _reduction_factor(source, value_field)
        elif setting.value.lower() != _WITHOUT_EFFECT.get(name):
            reason = f"{algorithm} has no such setting here; `platform schema` lists those of {sampler['name']}"
            source.note(f"{name}: {reason}", *value_field)
    return _Algorithm(sampler, pruner, seed)


def _reduction_factor(source: Source, field: FieldPath) -> dict[str, int]:
    """Return the option of the hyperband pruner for a setting `eta`. Add a note if it is rounded."""
    eta = source.number(*field)
    if eta is None:
        return {}
    factor = max(2, round(eta))
    if factor != eta:
        source.note(f"eta: {eta:g} becomes {factor}, as it must be a whole number over 1", *field)
    return {"reduction_factor": factor}


def _early_stopping(source: Source) -> dict[str, Any] | None:
    """Return the pruner for Katib's early stopping. None without early stopping, or if it has no counterpart."""
    field = ("spec", "earlyStopping")
    algorithm, settings = source.text(*field, "algorithmName"), _items(source, (*field, "algorithmSettings"))
    if not algorithm:
        return None
    if algorithm != "medianstop":
        source.note(f"{algorithm!r} has no counterpart; trials run to their end", *field, "algorithmName")
        return None
    options = {"n_startup_trials": 3, "n_warmup_steps": 4}  # Katib's defaults
    for name, setting in settings.items():
        value_field = (*setting.field, "value")
        option = {"min_trials_required": "n_startup_trials", "start_step": "n_warmup_steps"}.get(name)
        if option is None:
            source.note(f"{name}: the median pruner has no such option", *value_field)
        else:
            options[option] = source.integer(*value_field) or 0
    return {"name": "median", **options}


def _metrics(source: Source, objective: str) -> _Metrics:
    """Return the metrics of a trial. Add a note if the job does not find them in the same place."""
    field = ("spec", "metricsCollectorSpec")
    kind_field = (*field, "collector", "kind")
    kind = source.text(*kind_field) or "StdOut"
    file_field = (*field, "source", "fileSystemPath")
    path, file_format = source.text(*file_field, "path"), source.text(*file_field, "format")
    source.mark_read(*file_field, "kind")
    patterns = list(_patterns(source, (*field, "source", "filter", "metricsFormat")))
    if kind not in ("StdOut", *_IN_FILES):
        source.note(_COLLECTOR_REMARKS.get(kind, f"{kind!r} is not known; metrics are read from the output"), *kind_field)
    if not path or kind not in _IN_FILES:
        return _Metrics({"from": "stdout", "pattern": patterns} if patterns else None)
    # A trial must write its metrics below its own folder.
    moved_path = _moved_path(kind, path) if posixpath.isabs(path) else None
    if moved_path is not None:
        path = path.replace(*moved_path, 1)
        source.note(f"must lie below the trial's folder: it becomes {path}, in the arguments too", *file_field, "path")
    if kind == "TensorFlowEvent":
        return _Metrics({"from": "tensorboard", "path": path}, moved_path)
    if file_format == "JSON" and not patterns:
        # Katib's logger writes numbers in quotes, so the pattern also finds these: "loss": "0.5".
        names = [objective, *source.texts("spec", "objective", "additionalMetricNames")]
        patterns = [rf'"({"|".join(map(re.escape, names))})"\s*:\s*"?([-+.\deE]+)']
    return _Metrics({"from": "file", "path": path} | ({"pattern": patterns} if patterns else {}), moved_path)


def _moved_path(kind: str, path: str) -> _MovedPath:
    """Return the change of the absolute path of a file with metrics, or of a folder with events of TensorBoard."""
    old_path = path.rstrip("/")
    parent = posixpath.dirname(old_path)
    if kind == "TensorFlowEvent" and parent != "/":
        old_path = parent  # because the arguments usually name the parent of the folder with events
    return _MovedPath(old_path, posixpath.basename(old_path))


def _patterns(source: Source, field: FieldPath) -> Iterator[str]:
    """Yield the regular expressions at a path that a job can use: those with two groups, for the name and the value.

    Add a note on any other.
    """
    for index in source.indices(*field):
        pattern = search.pattern(source, *field, index)
        if pattern is not None and (pattern.groups < 2 or pattern.groupindex):
            source.note("must have two unnamed groups: the name, then the value", *field, index)
        elif pattern is not None:
            yield pattern.pattern
