"""Katib's Experiment, v1beta1, of which a trial is the primary container: https://www.kubeflow.org/docs/components/katib/."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.errors import Place
from trialplane.importing import katib_trial, search
from trialplane.importing.source import Imported, Source
from trialplane.job import document

# Setting of Katib → option of ours, by the sampler.
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "tpe": {
        "n_startup_trials": "n_startup_trials",
        "n_initial_points": "n_startup_trials",
        "n_ei_candidates": "n_ei_candidates",
    },
    "cmaes": {"sigma": "sigma0"},
}
_CONTAINER = "the platform sets these fields of a trial's pod; see `resources` and `cluster` in the job"
_REASONS = {
    "apiVersion": "is a field of Katib's own",
    "kind": "is a field of Katib's own",
    "metadata": "is given when the job is submitted: --namespace, --name; labels of its pods are in `cluster.labels`",
    "status": "is what became of the Experiment, not a part of it",
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
    "volumeMounts": "the chart mounts data at /data, and checkpoints have a place of their own: {checkpoints}",
    "volumes": "the chart mounts data at /data, and checkpoints have a place of their own: {checkpoints}",
    "serviceAccountName": "trials get no service account token",
    "collector.customCollector": "a trial has no second container; `metrics` in the job says where its metrics are",
    "httpGet": "metrics are not fetched from the trial: print them, or write them to a file",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> Imported:
    """The job of an Experiment.

    Args:
        text: of the file.
        name: of the file, for messages.
        scripts: Python files beside it, name → text.

    Raises:
        SpecError: it is no Experiment, searches an architecture, or has values of the wrong kind.
    """
    given = Source(document.parse(text, name))
    if given.look("kind") != "Experiment" or not isinstance(given.look("spec"), dict):
        given.refuse("is not a Katib Experiment: it needs `kind: Experiment` and a `spec`")
        return given.imported({}, {})
    if given.look("spec", "nasConfig") is not None:
        given.refuse("architecture search has no counterpart: a job searches parameters", "spec", "nasConfig")
        return given.imported({}, {})
    for field in ("kind", "apiVersion"):
        given.take(field)
    job: dict[str, Any] = {"kind": "hpo", "description": f"From Katib's Experiment {given.text('metadata', 'name')}."}
    space = _space(given)
    program = katib_trial.program(given, space)
    objective, target = _objective(given)
    program["metrics"], moved = _metrics(given, objective["metric"])
    if moved:
        for field in ("command", "arguments"):
            program[field] = [item.replace(*moved) for item in program.get(field, [])]
    sampler, pruner, seed = _algorithm(given)
    if (stopping := _stopping(given)) is not None:
        pruner = stopping
    trials = given.whole("spec", "maxTrialCount")
    if trials is None:
        given.note("is missing, but a study must end: see `trials`", "spec", "maxTrialCount")
    limit = given.whole("spec", "maxFailedTrialCount")
    job |= program
    job |= {
        "space": space,
        "objective": objective,
        "sampler": search.short(sampler),
        "pruner": search.short(pruner) if pruner else None,
        "trials": search.trials(trials, sampler, space),
        "parallel": given.whole("spec", "parallelTrialCount") or 3,
        "budget": {key: value for key, value in (("max_failed", limit), ("target", target)) if value is not None},
        "seed": seed,
    }
    if trials and job["trials"] < trials:
        given.note(f"is more than the grid's {job['trials']} points", "spec", "maxTrialCount")
    job, copies = katib_trial.runnable(job, scripts, given)
    return given.imported(job, _REASONS, copies=copies)


def _space(given: Source) -> dict[str, Any]:
    space: dict[str, Any] = {}
    for index in given.indices("spec", "parameters"):
        place: Place = ("spec", "parameters", index)
        name = given.name(given.text(*place, "name"), *place, "name")
        made = _parameter(given, place)
        if made is not None:
            space[name] = made
    if not space:
        given.refuse("has no parameters that a job could search", "spec", "parameters")
    return space


def _parameter(given: Source, place: Place) -> dict[str, Any] | None:
    kind, feasible = given.text(*place, "parameterType"), (*place, "feasibleSpace")
    if kind in ("categorical", "discrete"):
        texts = list(dict.fromkeys(given.texts(*feasible, "list")))
        return search.categorical([search.scalar(text) for text in texts] if kind == "discrete" else texts)
    if kind not in ("double", "int"):
        given.refuse(f"{kind!r} is not double, int, discrete or categorical", *place, "parameterType")
        return None
    low, high = given.number(*feasible, "min"), given.number(*feasible, "max")
    step, shape = given.number(*feasible, "step"), given.text(*feasible, "distribution")
    if low is None or high is None:
        given.refuse("needs min and max", *feasible)
        return None
    if kind == "int" and not all(one == int(one) for one in (low, high, step or 0)):
        given.refuse("needs whole numbers for min, max and step: it is an int", *feasible)
        return None
    if shape in ("normal", "logNormal"):
        given.note(f"{shape} is drawn uniformly between min and max here", *feasible, "distribution")
    elif shape not in ("", "uniform", "logUniform"):
        given.note(f"{shape!r} is not known; values are drawn uniformly", *feasible, "distribution")
    log = shape in ("logUniform", "logNormal") and low > 0
    if log and step is not None:
        given.note("a logarithmic range has no step here, so it is left out", *feasible, "step")
    elif shape == "logUniform" and not log:
        given.note("a logarithmic range must lie above 0; values are drawn uniformly", *feasible, "distribution")
    return search.span("int" if kind == "int" else "float", low, high, log=log, step=step)


def _objective(given: Source) -> tuple[dict[str, Any], float | None]:
    place = ("spec", "objective")
    metric = given.text(*place, "objectiveMetricName")
    direction = given.text(*place, "type") or "minimize"
    if not metric:
        given.refuse("is missing", *place, "objectiveMetricName")
    if direction not in ("minimize", "maximize"):
        given.refuse(f"{direction!r} is not minimize or maximize", *place, "type")
    given.take(*place, "additionalMetricNames")  # every metric that is found is recorded
    strategies: dict[str, tuple[str, Place]] = {}
    for index in given.indices(*place, "metricStrategies"):
        here = (*place, "metricStrategies", index)
        strategies[given.text(*here, "name")] = given.text(*here, "value"), here
    best = "min" if direction == "minimize" else "max"
    strategies.setdefault(metric, (best, (*place, "objectiveMetricName")))
    made = {"metric": metric, "direction": direction}
    for name, (strategy, at) in strategies.items():
        if name == metric and strategy == best:
            made["of"] = "best"
        elif strategy != "latest":
            given.note(f"Katib takes the {strategy} of a trial's values of {name}; here the last value counts", *at)
    return made, given.number(*place, "goal")


def _settings(given: Source, place: Place) -> dict[str, tuple[str, Place]]:
    """The values of a list of settings, with their places; each counts as read."""
    found = {}
    for index in given.indices(*place, "algorithmSettings"):
        at = (*place, "algorithmSettings", index)
        found[given.text(*at, "name")] = given.text(*at, "value"), (*at, "value")
    return found


def _algorithm(given: Source) -> tuple[dict[str, Any], dict[str, Any] | None, int | None]:
    """The sampler, a pruner where the algorithm is one, and the seed."""
    place = ("spec", "algorithm")
    word, settings = given.text(*place, "algorithmName"), _settings(given, place)
    seed: int | None = None
    pruner: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    sampler = search.sampler(word)
    if word == "hyperband":
        sampler, pruner = {"name": "random"}, {"name": "hyperband"}
        reason = "a trial's share of the resource is a parameter there; here bad trials are ended early, by their reports"
        given.note(reason, *place, "algorithmName")
        if "eta" in settings:
            _, at = settings.pop("eta")
            pruner["reduction_factor"] = max(2, round(given.number(*at) or 0))
    elif word == "pbt":
        sampler = {"name": "random"}
        given.note("population based training is not a sampler here; values are drawn at random", *place, "algorithmName")
    elif sampler is None:
        given.note(f"{repr(word) + ' has no counterpart' if word else 'is missing'}; tpe is used", *place, "algorithmName")
        sampler = {"name": "tpe"}
    for name, (value, at) in settings.items():
        option = _SETTINGS.get(sampler["name"], {}).get(name)
        if name == "random_state":
            seed = given.whole(*at)
        elif option is not None:
            number = given.number(*at) if option == "sigma0" else given.whole(*at)
            options |= {option: number}
        elif not (name == "restart_strategy" and value.lower() == "none"):
            given.note(f"{name}: {word} has no such setting here; `platform schema` lists those of {sampler['name']}", *at)
    return {**sampler, **options}, pruner, seed


def _stopping(given: Source) -> dict[str, Any] | None:
    place = ("spec", "earlyStopping")
    word, settings = given.text(*place, "algorithmName"), _settings(given, place)
    if not word:
        return None
    if word != "medianstop":
        given.note(f"{word!r} has no counterpart; trials run to their end", *place, "algorithmName")
        return None
    options = {"n_startup_trials": 3, "n_warmup_steps": 4}  # Katib's defaults
    for name, (_, at) in settings.items():
        option = {"min_trials_required": "n_startup_trials", "start_step": "n_warmup_steps"}.get(name)
        if option is None:
            given.note(f"{name}: the median pruner has no such option", *at)
        else:
            options[option] = given.whole(*at) or 0
    return {"name": "median", **options}


def _metrics(given: Source, objective: str) -> tuple[Any, tuple[str, str] | None]:
    """`metrics` of the job, and a path in the arguments with what it becomes below the trial's folder."""
    place = ("spec", "metricsCollectorSpec")
    files = (*place, "source", "fileSystemPath")
    kind = given.text(*place, "collector", "kind") or "StdOut"
    path, form = given.text(*files, "path"), given.text(*files, "format")
    given.take(*files, "kind")
    patterns = list(_patterns(given, (*place, "source", "filter", "metricsFormat")))
    if kind in ("None", "Push"):
        given.note(
            "the trial pushes its metrics to Katib; here they are read from what it prints", *place, "collector", "kind"
        )
    elif kind == "PrometheusMetric":
        given.note("metrics are not fetched from the trial: print them, or write a file", *place, "collector", "kind")
    elif kind not in ("StdOut", "File", "TensorFlowEvent", "Custom"):
        given.note(f"{kind!r} is not known; metrics are read from the output", *place, "collector", "kind")
    if not path or kind not in ("File", "TensorFlowEvent", "Custom"):
        return ({"from": "stdout", "pattern": patterns} if patterns else None), None
    inside = posixpath.basename(path.rstrip("/")) or "metrics"
    moved = None
    if posixpath.isabs(path):
        top = posixpath.dirname(path.rstrip("/")) if kind == "TensorFlowEvent" else path
        moved = (top, posixpath.basename(top.rstrip("/")) if top != "/" else inside)
        inside = moved[1] + path[len(top) :]
        given.note(f"must lie below the trial's folder: it becomes {inside}, in the arguments too", *files, "path")
    else:
        inside = path
    if kind == "TensorFlowEvent":
        return {"from": "tensorboard", "path": inside}, moved
    if form == "JSON" and not patterns:  # Katib's own logger writes numbers as strings
        names = [objective, *given.texts("spec", "objective", "additionalMetricNames")]
        patterns = [rf'"({"|".join(map(re.escape, names))})"\s*:\s*"?([-+.\deE]+)']
    return {"from": "file", "path": inside} | ({"pattern": patterns} if patterns else {}), moved


def _patterns(given: Source, place: Place) -> Iterator[str]:
    """The filters that work here: Go's expressions with a group for the name and one for the value."""
    for index in given.indices(*place):
        text = given.text(*place, index)
        try:
            made = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            given.note(f"is not a regular expression that Python understands: {error}", *place, index)
            continue
        if made.groups < 2 or made.groupindex:
            given.note("must have two unnamed groups: the name, then the value", *place, index)
            continue
        yield text
