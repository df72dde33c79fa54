"""A tuning job of Amazon SageMaker: the JSON of CreateHyperParameterTuningJob or of its HyperParameterTuningJobConfig.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateHyperParameterTuningJob.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import FieldPath
from trialplane.importing import search
from trialplane.importing.source import ImportResult, Source
from trialplane.job import document

_CONFIG, _DEFINITION = "HyperParameterTuningJobConfig", "TrainingJobDefinition"
_DEFAULT_SCRIPT = "train.py"
# A regular expression's escape, character class, or "(" of a group that captures text: `\(`, `[(]` and `(` of `\([(](\d)`.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)", re.DOTALL)
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
    "CheckpointConfig": "checkpoints have a folder of their own: {checkpoints}, or checkpoints.url",
    "EnableManagedSpotTraining": "a lost trial is tried again, see `retries`",
    "VpcConfig": "the trials' network is configured in the chart's values",
    "BestObjectiveNotImproving": "`trials` and `budget` say when a study ends",
    "ConvergenceDetected": "`trials` and `budget` say when a study ends",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of a tuning job.

    Args:
        text: Text of the file.
        name: Name of the file in messages.
        scripts: Texts of the Python files in the same folder, by name.

    Raises:
        SpecError: The file is not a tuning job, or has values of the wrong kind.
    """
    source = Source(document.parse(text.replace("\t", " "), name))  # YAML, unlike JSON, does not allow tabs
    config: FieldPath = (_CONFIG,) if source.look(_CONFIG) is not None else ()
    if not isinstance(source.look(*config, "ParameterRanges"), dict):
        source.fail("is not a tuning job: it needs ParameterRanges, in a HyperParameterTuningJobConfig or at the top")
    definition: FieldPath = (_DEFINITION,) if source.look(_DEFINITION) is not None else ()
    space = _space(source, (*config, "ParameterRanges"))
    params, script = _static_parameters(source, (*definition, "StaticHyperParameters"))
    metric, direction = _objective(source, config)
    # The API has metric definitions in the algorithm's specification, and a file written by hand often one level higher.
    patterns = [
        *_patterns(source, (*definition, "AlgorithmSpecification", "MetricDefinitions")),
        *_patterns(source, (*definition, "MetricDefinitions")),
    ]
    sampler, pruner = _strategy(source, config)
    limits = (*config, "ResourceLimits")
    target = source.number(*config, "TuningJobCompletionCriteria", "TargetObjectiveMetricValue")
    if script is None:
        script = _DEFAULT_SCRIPT if _DEFAULT_SCRIPT in scripts or len(scripts) != 1 else next(iter(scripts))
        source.note(f"the script is not in the file; {script} is assumed", *definition, "StaticHyperParameters")
    nodes = source.integer(*definition, "ResourceConfig", "InstanceCount") or 1
    seed = source.integer(*config, "RandomSeed")
    job = {
        "kind": "hpo",
        "script": script,
        "arguments": {"items": "flags", "booleans": "value"},
        "metrics": {"from": "stdout", "pattern": patterns} if patterns else None,
        "params": params,
        "space": space,
        "objective": {"metric": metric, "direction": direction},
        "sampler": search.short_form(sampler),
        "pruner": pruner,
        "trials": search.trials(source.integer(*limits, "MaxNumberOfTrainingJobs"), sampler, space),
        "parallel": source.integer(*limits, "MaxParallelTrainingJobs"),
        "budget": {
            "time": source.number(*limits, "MaxRuntimeInSeconds"),
            "target": target,
            "timeout": source.number(*definition, "StoppingCondition", "MaxRuntimeInSeconds"),
        },
        "nodes": nodes if nodes > 1 else None,
        "seed": seed,
    }
    return source.result(job, _REASONS, copies=[script])


def _space(source: Source, field: FieldPath) -> dict[str, Any]:
    """Return the space of the parameter ranges."""
    space: dict[str, Any] = {}
    for kind in ("ContinuousParameterRanges", "IntegerParameterRanges", "CategoricalParameterRanges"):
        for index in source.indices(*field, kind):
            range_field = (*field, kind, index)
            if kind == "CategoricalParameterRanges":
                choices = [_unquote(choice) for choice in source.texts(*range_field, "Values")]
                parameter: dict[str, Any] | None = search.categorical(list(dict.fromkeys(choices)))
            else:
                parameter = _range(source, range_field, is_int=kind == "IntegerParameterRanges")
            if parameter is not None:
                name = source.name(source.text(*range_field, "Name"), *range_field, "Name")
                space[name] = parameter
    return space


def _range(source: Source, field: FieldPath, *, is_int: bool) -> dict[str, Any] | None:
    """Return a parameter between two bounds. None after an issue: they are missing or invalid."""
    low, high = source.number(*field, "MinValue"), source.number(*field, "MaxValue")
    scale = source.text(*field, "ScalingType") or "Auto"
    if low is None or high is None:
        source.refuse("needs MinValue and MaxValue", *field)
        return None
    if is_int and not (low == int(low) and high == int(high)):
        source.refuse("needs whole numbers as bounds: it is an integer", *field)
        return None
    if scale == "ReverseLogarithmic":
        source.note("values are drawn uniformly here: the only other scale is the logarithmic one", *field, "ScalingType")
    elif scale == "Auto":
        source.note("values are drawn uniformly; for a logarithmic scale write log: true in `space`", *field, "ScalingType")
    return search.span("int" if is_int else "float", low, high, log=scale == "Logarithmic")


def _unquote(text: str) -> str:
    """Return a text without the JSON quotes that SageMaker's Python SDK adds to strings; any other text unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _static_parameters(source: Source, field: FieldPath) -> tuple[dict[str, Any], str | None]:
    """Return the fixed parameters by name, and the script; None for a script that they do not name."""
    params: dict[str, Any] = {}
    script = None
    for key in source.keys(*field):
        if key == "sagemaker_program":
            script = _unquote(source.text(*field, key)).removeprefix("./")
        elif key.startswith("sagemaker_"):
            source.skip("is for SageMaker's own containers", *field, key)
        else:
            params[key] = search.scalar(_unquote(source.text(*field, key)))
    return params, script


def _objective(source: Source, config: FieldPath) -> tuple[str, str]:
    """Return the metric and the direction of the objective. Add an issue if one of them is missing or invalid."""
    field = (*config, "HyperParameterTuningJobObjective")
    metric, direction = source.text(*field, "MetricName"), source.text(*field, "Type")
    if not metric or direction not in ("Minimize", "Maximize"):
        source.refuse("needs MetricName, and Type: Minimize or Maximize", *field)
    name = _group_name(metric)
    if name != metric:
        source.note(f"is called {name} here, as its pattern names it by a group", *field, "MetricName")
    return name, direction.lower()


def _group_name(metric: str) -> str:
    """Return a name of a metric that is also valid as the name of a group in a regular expression.

    "name" and "value" get an underscore, too: a job's pattern gives groups with these names another meaning.
    """
    group = re.sub(r"\W", "_", metric, flags=re.ASCII)
    return f"_{group}" if group[:1].isdigit() or group in ("name", "value") else group


def _patterns(source: Source, field: FieldPath) -> list[str]:
    """Return the regular expressions of metric definitions. The first group of each gets the name of the metric.

    An expression without a group, or one that Python does not understand, is left out, with a note.
    """
    patterns = []
    for index in source.indices(*field):
        regex_field = (*field, index, "Regex")
        name, pattern = source.text(*field, index, "Name"), search.pattern(source, *regex_field)
        if pattern is None:
            continue
        text = pattern.pattern
        start = next((match.start() for match in _GROUP.finditer(text) if match[0] == "("), None)
        if start is None or not name:
            source.note("has no group for the value", *regex_field)
            continue
        patterns.append(f"{text[:start]}(?P<{_group_name(name)}>{text[start + 1 :]}")  # loss: ([0-9.]+)
    return patterns


def _strategy(source: Source, config: FieldPath) -> tuple[dict[str, Any], Any]:
    """Return the sampler and the pruner of the tuning job's strategy. The pruner is None if trials are not ended early."""
    strategy = source.text(*config, "Strategy") or "Bayesian"
    ends_early = source.text(*config, "TrainingJobEarlyStoppingType") == "Auto"
    if ends_early:
        source.note("the median pruner is used in place of its rule", *config, "TrainingJobEarlyStoppingType")
    if strategy == "Hyperband":
        field = (*config, "StrategyConfig", "HyperbandStrategyConfig")
        pruner: dict[str, Any] = {"name": "hyperband"}
        if min_resource := source.integer(*field, "MinResource"):
            pruner["min_resource"] = min_resource
        if max_resource := source.integer(*field, "MaxResource"):
            pruner["max_resource"] = max_resource
        return {"name": "random"}, pruner
    sampler = search.sampler_or_tpe(source, strategy, *config, "Strategy")
    return sampler, "median" if ends_early else None
