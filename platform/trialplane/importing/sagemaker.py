"""A tuning job of Amazon SageMaker: the JSON of CreateHyperParameterTuningJob or of its HyperParameterTuningJobConfig.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateHyperParameterTuningJob.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import Place
from trialplane.importing import search
from trialplane.importing.source import Imported, Source
from trialplane.job import document

_CONFIG, _DEFINITION = "HyperParameterTuningJobConfig", "TrainingJobDefinition"
_SCRIPT = "train.py"  # where the file names none
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)", re.DOTALL)  # an escape, a class, or the begin of a group
_REASONS = {
    "HyperParameterTuningJobName": "is given when the job is submitted: --name",
    "Tags": "labels of a job's pods are in `cluster.labels`",
    "Autotune": "ranges are not found automatically: write them into `space`",
    "WarmStartConfig": "trials of another search are not taken over; list points to try first in the job's `enqueue`",
    "AutoParameters": "ranges are not found automatically: write the parameter into `space`",
    "TrainingJobDefinitions": "a job has one script; import each definition from a file of its own",
    "TrainingImage": "the image of a trial must be built from trialplane's trial image; name it in `cluster.image`",
    "InputDataConfig": "data is named in `params` and mounted at /data; see `inputs` in the job",
    "OutputDataConfig": "results are in MLflow, and files that must stay go to {checkpoints}",
    "RoleArn": "trials have no role; what they may do is limited by their namespace",
    "InstanceType": "a trial has cpus, memory and GPUs, see `resources`; cluster.node_selector chooses the machines",
    "VolumeSizeInGB": "a trial's folder may grow as far as the node's disk has room",
    "CheckpointConfig": "checkpoints have a place of their own: {checkpoints}, or checkpoints.url",
    "EnableManagedSpotTraining": "a lost trial is tried again, see `retries`",
    "VpcConfig": "the trials' network is configured in the chart's values",
    "BestObjectiveNotImproving": "`trials` and `budget` say when a study ends",
    "ConvergenceDetected": "`trials` and `budget` say when a study ends",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> Imported:
    """The job of a tuning job.

    Args:
        text: of the file.
        name: of the file, for messages.
        scripts: Python files beside it, name → text.

    Raises:
        SpecError: it is no tuning job, or has values of the wrong kind.
    """
    given = Source(document.parse(text.replace("\t", " "), name))  # in JSON a tab is white space, in YAML it is none
    config: Place = (_CONFIG,) if given.look(_CONFIG) is not None else ()
    if not isinstance(given.look(*config, "ParameterRanges"), dict):
        given.refuse("is not a tuning job: it needs ParameterRanges, in a HyperParameterTuningJobConfig or at the top")
        return given.imported({}, {})
    definition: Place = (_DEFINITION,) if given.look(_DEFINITION) is not None else ()
    space = _space(given, (*config, "ParameterRanges"))
    params, script = _static(given, (*definition, "StaticHyperParameters"))
    metric, direction = _objective(given, config)
    patterns = _patterns(given, (*definition, "AlgorithmSpecification", "MetricDefinitions"))
    patterns += _patterns(given, (*definition, "MetricDefinitions"))
    sampler, pruner = _strategy(given, config)
    limits = (*config, "ResourceLimits")
    target = given.number(*config, "TuningJobCompletionCriteria", "TargetObjectiveMetricValue")
    budget = {
        "time": given.number(*limits, "MaxRuntimeInSeconds"),
        "target": target,
        "timeout": given.number(*definition, "StoppingCondition", "MaxRuntimeInSeconds"),
    }
    if script is None:
        script = _SCRIPT if _SCRIPT in scripts or len(scripts) != 1 else next(iter(scripts))
        given.note(f"the script is not in the file; {script} is taken", *definition, "StaticHyperParameters")
    nodes = given.whole(*definition, "ResourceConfig", "InstanceCount") or 1
    seed = given.whole(*config, "RandomSeed")
    job = {
        "kind": "hpo",
        "script": script,
        "arguments": {"items": "flags", "booleans": "value"},
        "metrics": {"from": "stdout", "pattern": patterns} if patterns else None,
        "params": params,
        "space": space,
        "objective": {"metric": metric, "direction": direction},
        "sampler": search.short(sampler),
        "pruner": pruner,
        "trials": search.trials(given.whole(*limits, "MaxNumberOfTrainingJobs"), sampler, space),
        "parallel": given.whole(*limits, "MaxParallelTrainingJobs"),
        "budget": {key: value for key, value in budget.items() if value is not None},
        "nodes": nodes if nodes > 1 else None,
        "seed": seed,
    }
    return given.imported(job, _REASONS, copies=[script])


def _space(given: Source, place: Place) -> dict[str, Any]:
    space: dict[str, Any] = {}
    for kind, form in (("ContinuousParameterRanges", "float"), ("IntegerParameterRanges", "int")):
        for index in given.indices(*place, kind):
            at = (*place, kind, index)
            low, high = given.number(*at, "MinValue"), given.number(*at, "MaxValue")
            scale = given.text(*at, "ScalingType") or "Auto"
            if low is None or high is None:
                given.refuse("needs MinValue and MaxValue", *at)
                continue
            if form == "int" and not (low == int(low) and high == int(high)):
                given.refuse("needs whole numbers as bounds: it is an integer", *at)
                continue
            if scale == "ReverseLogarithmic":
                given.note(
                    "values are drawn uniformly here: the only other scale is the logarithmic one", *at, "ScalingType"
                )
            elif scale == "Auto":
                given.note(
                    "values are drawn uniformly; for a logarithmic scale write log: true in `space`", *at, "ScalingType"
                )
            name = given.name(given.text(*at, "Name"), *at, "Name")
            space[name] = search.span("int" if form == "int" else "float", low, high, log=scale == "Logarithmic")
    for index in given.indices(*place, "CategoricalParameterRanges"):
        at = (*place, "CategoricalParameterRanges", index)
        name = given.name(given.text(*at, "Name"), *at, "Name")
        space[name] = search.categorical(list(dict.fromkeys(_decoded(one) for one in given.texts(*at, "Values"))))
    return space


def _decoded(text: str) -> str:
    """A text without the quotes in which the SDK puts it."""
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return made if isinstance(made, str) else text


def _static(given: Source, place: Place) -> tuple[dict[str, Any], str | None]:
    """The fixed parameters, and the script where they name it."""
    params: dict[str, Any] = {}
    script = None
    for key in given.keys(*place):
        if key == "sagemaker_program":
            script = _decoded(given.text(*place, key)).removeprefix("./")
        elif key.startswith("sagemaker_"):
            given.skip("is for SageMaker's own containers", *place, key)
        else:
            text = _decoded(given.text(*place, key))
            params[key] = search.scalar(text)
    return params, script


def _objective(given: Source, config: Place) -> tuple[str, str]:
    place = (*config, "HyperParameterTuningJobObjective")
    metric, kind = given.text(*place, "MetricName"), given.text(*place, "Type")
    if not metric or kind not in ("Minimize", "Maximize"):
        given.refuse("needs MetricName, and Type: Minimize or Maximize", *place)
    name = _group(metric)
    if name != metric:
        given.note(f"is called {name} here, as its pattern names it by a group", *place, "MetricName")
    return name or "loss", kind.lower()


def _group(metric: str) -> str:
    """A metric's name as the name of a group."""
    made = re.sub(r"\W", "_", metric, flags=re.ASCII)
    return f"_{made}" if made[:1].isdigit() or made in ("name", "value") else made


def _patterns(given: Source, place: Place) -> list[str]:
    """Each definition's expression, its first group named like the metric."""
    made = []
    for index in given.indices(*place):
        name, text = given.text(*place, index, "Name"), given.text(*place, index, "Regex")
        start = next((match.start() for match in _GROUP.finditer(text) if match[0] == "("), None)
        if start is None or not name:
            given.note("has no group for the value", *place, index, "Regex")
            continue
        pattern = f"{text[:start]}(?P<{_group(name)}>{text[start + 1 :]}"
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            given.note(f"is not a regular expression that Python understands: {error}", *place, index, "Regex")
            continue
        made.append(pattern)
    return made


def _strategy(given: Source, config: Place) -> tuple[dict[str, Any], Any]:
    """The sampler and the pruner."""
    strategy = given.text(*config, "Strategy") or "Bayesian"
    stopping = given.text(*config, "TrainingJobEarlyStoppingType")
    pruner: Any = "median" if stopping == "Auto" else None
    if pruner:
        given.note("the median pruner is used in place of its rule", *config, "TrainingJobEarlyStoppingType")
    sampler = search.sampler(strategy)
    if strategy == "Hyperband":
        place = (*config, "StrategyConfig", "HyperbandStrategyConfig")
        least, most = given.whole(*place, "MinResource"), given.whole(*place, "MaxResource")
        pruner = {"name": "hyperband"} | ({"min_resource": least} if least else {})
        return {"name": "random"}, pruner | ({"max_resource": most} if most else {})
    if sampler is None:
        given.note(f"{strategy!r} has no counterpart; tpe is used", *config, "Strategy")
    return sampler or {"name": "tpe"}, pruner
