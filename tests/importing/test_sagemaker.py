"""Tuning jobs of SageMaker as jobs: ranges, limits, and metrics whose expressions have one group, the value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import sagemaker
from trialplane.importing.source import ImportResult
from trialplane.worker.metrics import lines
from trialplane.worker.metrics.names import Names


def request(**more: Any) -> dict[str, Any]:
    config = {
        "Strategy": "Bayesian",
        "RandomSeed": 5,
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "validation:loss"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 10, "MaxParallelTrainingJobs": 2, "MaxRuntimeInSeconds": 600},
        "TrainingJobEarlyStoppingType": "Auto",
        "ParameterRanges": {
            "ContinuousParameterRanges": [
                {"Name": "lr", "MinValue": "0.001", "MaxValue": "1", "ScalingType": "Logarithmic"}
            ],
            "IntegerParameterRanges": [{"Name": "depth", "MinValue": "2", "MaxValue": "9", "ScalingType": "Linear"}],
            "CategoricalParameterRanges": [{"Name": "opt", "Values": ['"adam"', "sgd"]}],
        },
    }
    definition = {
        "StaticHyperParameters": {"epochs": "3", "sagemaker_program": '"fit.py"', "sagemaker_region": "x"},
        "AlgorithmSpecification": {
            "TrainingImage": "image:1",
            "MetricDefinitions": [{"Name": "validation:loss", "Regex": r"\(val\) [(]loss[)]: ([0-9.]+)( of (?:\d+))?"}],
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.x"},
    }
    return {"HyperParameterTuningJobConfig": {**config, **more}, "TrainingJobDefinition": definition}


def read(given: Any, **scripts: str) -> ImportResult:
    text = "\t" + json.dumps(given, indent="\t")  # which YAML does not take
    return sagemaker.read(text, "job.json", {f"{name}.py": text for name, text in scripts.items()})


def test_a_tuning_job_is_a_job(loaded) -> None:
    made = read(request())
    job = loaded(made, fit="")
    assert job.script == "fit.py" and job.params == {"epochs": 3} and made.copies == ("fit.py",)
    assert (job.sampler.name, job.pruner.name, job.trials, job.parallel, job.seed, job.nodes) == (
        "tpe",
        "median",
        10,
        2,
        5,
        2,
    )
    assert (job.budget.time, job.budget.timeout) == (600, 60)
    assert job.space["lr"].log and job.space["depth"].type == "int" and job.space["opt"].choices == ("adam", "sgd")
    assert job.objectives[0].model_dump() == {"metric": "validation_loss", "direction": "minimize", "of": "last"}
    found = reasons(made)
    assert "cluster.image" in found["TrainingJobDefinition.AlgorithmSpecification.TrainingImage"]
    assert "SageMaker's own" in found["TrainingJobDefinition.StaticHyperParameters.sagemaker_region"]
    assert "InstanceType" in " ".join(found)


def test_an_expression_finds_what_it_found_there(loaded) -> None:
    job = loaded(read(request()), fit="")
    [source] = job.metrics
    found = lines.LineParser(source.pattern, Names(("validation_loss",))).parse("epoch 3 (val) (loss): 0.25 of 10")
    assert found.metrics == {"validation_loss": 0.25}


def test_a_configuration_alone(loaded) -> None:
    made = read(request()["HyperParameterTuningJobConfig"], other="")
    assert loaded(made, other="").script == "other.py"
    assert "other.py is assumed" in reasons(made)["StaticHyperParameters"]


def test_hyperband_and_scales(loaded) -> None:
    ranges = {
        "ContinuousParameterRanges": [{"Name": "a", "MinValue": 0, "MaxValue": 1, "ScalingType": "ReverseLogarithmic"}]
    }
    hyperband = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    made = read(
        request(Strategy="Hyperband", StrategyConfig=hyperband, ParameterRanges=ranges, Autotune={"Mode": "Enabled"})
    )
    job = loaded(made, fit="")
    assert (job.pruner.name, job.pruner.options) == ("hyperband", {"min_resource": 1, "max_resource": 9})
    found = {field.rpartition("Config.")[2]: reason for field, reason in reasons(made).items()}
    assert "drawn uniformly" in found["ParameterRanges.ContinuousParameterRanges.0.ScalingType"]
    assert "write them into `space`" in found["Autotune"]


@pytest.mark.parametrize("regex", ["loss", "(", "(?:a)", r"\(x"])
def test_an_expression_that_does_not_work_is_named(regex: str) -> None:
    given = request()
    given["TrainingJobDefinition"]["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "a", "Regex": regex}]
    made = read(given)
    assert "metrics" not in made.job
    assert any(field.endswith("MetricDefinitions.0.Regex") for field in reasons(made))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "is not a tuning job"),
        ({"ParameterRanges": {}}, "needs MetricName, and Type"),
        (
            {"ParameterRanges": {"IntegerParameterRanges": [{"Name": "a", "MinValue": "1.5", "MaxValue": "2"}]}},
            "whole numbers",
        ),
        ({"ParameterRanges": {"IntegerParameterRanges": {"a": 1}}}, "must be a list"),
        ([1], "is not a tuning job"),
    ],
)
def test_what_is_refused(given: Any, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        read(given)
    assert part in str(caught.value)
