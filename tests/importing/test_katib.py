"""Experiments of Katib as jobs: what each field becomes, and that what becomes nothing is named with its line.

Not checked here: the command and its folder (tests/cli/test_importing.py).
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import katib
from trialplane.importing.source import ImportResult

HEAD = """\
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: digits}
spec:
  objective: {type: maximize, goal: 0.9, objectiveMetricName: acc, additionalMetricNames: [loss]}
  maxTrialCount: 9
  parallelTrialCount: 4
  maxFailedTrialCount: 2
"""
ALGORITHM = "  algorithm: {algorithmName: random}\n"
PARAMETERS = """\
  parameters:
    - {name: rate, parameterType: double, feasibleSpace: {min: "0.1", max: "0.5"}}
    - {name: width, parameterType: int, feasibleSpace: {min: "8", max: "64", step: "8"}}
"""
TEMPLATE = """\
  trialTemplate:
    primaryContainerName: main
    trialParameters: [{name: speed, reference: rate}, {name: w, reference: width}]
    trialSpec:
      apiVersion: batch/v1
      kind: Job
      spec: {template: {spec: {containers: [
        {name: side, image: side:1, command: [log]},
        {name: main, image: "lab/fit:2", command: [fit, "--rate=${trialParameters.speed}"],
         args: ["${trialParameters.w}"]}]}}}
"""


def read(
    *, algorithm: str = ALGORITHM, parameters: str = PARAMETERS, template: str = TEMPLATE, more: str = "", **scripts: str
) -> ImportResult:
    text = HEAD + algorithm + parameters + textwrap.indent(more, "  ") + template
    return katib.read(text, "digits.yaml", {f"{name}.py": text for name, text in scripts.items()})


def test_an_experiment_is_a_job(loaded) -> None:
    made = read()
    job = loaded(made)
    assert job.command == ("fit", "--rate={rate}") and job.arguments.items == ("{width}",)
    assert (job.trials, job.parallel, job.budget.max_failed, job.budget.target) == (9, 4, 2, 0.9)
    assert job.objectives[0].model_dump() == {"metric": "acc", "direction": "maximize", "of": "best"}
    assert job.space["rate"].model_dump(include={"low", "high", "log"}) == {"low": 0.1, "high": 0.5, "log": False}
    assert job.space["width"].model_dump(include={"type", "step"}) == {"type": "int", "step": 8}
    assert job.cluster.image == "lab/fit:2" and job.sampler.name == "random"


def test_which_of_a_trials_values_counts(loaded) -> None:
    strategies = "metricStrategies: [{name: acc, value: latest}, {name: loss, value: min}]"
    head = HEAD.replace("additionalMetricNames: [loss]", strategies)
    made = katib.read(head + ALGORITHM + PARAMETERS + TEMPLATE, "digits.yaml", {})
    assert loaded(made).objectives[0].of == "last"
    assert "min of a trial's values of loss" in reasons(made)["spec.objective.metricStrategies.1"]


def test_what_is_not_mapped_is_named_with_its_line() -> None:
    made = read(more="resumePolicy: FromVolume\nnovelty: {deep: [1]}\n")
    found = reasons(made)
    assert "platform resume" in found["spec.resumePolicy"]
    assert found["spec.novelty"] == "a job has no field for it"
    assert "spec.objective.objectiveMetricName" not in found, "the best value of a trial counts in both"
    side = "spec.trialTemplate.trialSpec.spec.template.spec.containers.0"
    assert "cluster" in found[side]
    assert {note.field: note.line for note in made.notes}["spec.novelty"] == 14
    assert not any(field.startswith(("spec.parameters", "spec.algorithm")) for field in found)


@pytest.mark.parametrize(
    ("algorithm", "sampler", "part"),
    [
        ("{algorithmName: tpe, algorithmSettings: [{name: n_startup_trials, value: '4'}]}", ("tpe", 4), ""),
        (
            "{algorithmName: bayesianoptimization, algorithmSettings: [{name: base_estimator, value: GP}]}",
            ("tpe",),
            "base_est",
        ),
        ("{algorithmName: multivariate-tpe}", ("tpe", True), ""),
        ("{algorithmName: cmaes, algorithmSettings: [{name: sigma, value: '0.5'}]}", ("cmaes", 0.5), ""),
        ("{algorithmName: sobol}", ("qmc", "sobol"), ""),
        ("{algorithmName: pbt}", ("random",), "population based"),
        ("{algorithmName: oracle}", ("tpe",), "'oracle' has no counterpart"),
        ("{algorithmName: hyperband, algorithmSettings: [{name: eta, value: '3'}]}", ("random",), "by their reports"),
    ],
)
def test_algorithms(loaded, algorithm: str, sampler: tuple[Any, ...], part: str) -> None:
    made = read(algorithm=f"  algorithm: {algorithm}\n")
    job = loaded(made)
    assert (job.sampler.name, *job.sampler.options.values()) == sampler
    said = [reason for field, reason in reasons(made).items() if field.startswith("spec.algorithm")]
    assert any(part in reason for reason in said) if part else not said
    if "hyperband" in algorithm:
        assert (job.pruner.name, job.pruner.options) == ("hyperband", {"reduction_factor": 3})


@pytest.mark.parametrize(("eta", "factor"), [("3", 3), ("2.6", 3), ("0.5", 2)])
def test_a_changed_eta_is_said(loaded, eta: str, factor: int) -> None:
    made = read(algorithm=f"  algorithm: {{algorithmName: hyperband, algorithmSettings: [{{name: eta, value: '{eta}'}}]}}\n")
    assert loaded(made).pruner.options == {"reduction_factor": factor}
    said = [reason for reason in reasons(made).values() if "eta" in reason]
    assert said == ([] if eta == "3" else [f"eta: {eta} becomes {factor}, as it must be a whole number over 1"])


def test_a_seed_and_early_stopping(loaded) -> None:
    stopping = "earlyStopping: {algorithmName: medianstop, algorithmSettings: [{name: start_step, value: '7'}]}\n"
    settings = "[{name: random_state, value: '11'}]"
    made = read(algorithm=f"  algorithm: {{algorithmName: tpe, algorithmSettings: {settings}}}\n", more=stopping)
    job = loaded(made)
    assert job.seed == 11
    assert (job.pruner.name, job.pruner.options) == ("median", {"n_startup_trials": 3, "n_warmup_steps": 7})


def test_kinds_of_parameters(loaded) -> None:
    lines = """\
    - {name: a b, parameterType: double, feasibleSpace: {min: "1e-4", max: "1", distribution: logUniform, step: "0.1"}}
    - {name: n, parameterType: double, feasibleSpace: {min: "1", max: "2", distribution: normal}}
    - {name: d, parameterType: discrete, feasibleSpace: {list: ["1", "2.5"]}}
    - {name: c, parameterType: categorical, feasibleSpace: {list: [on, "2"]}}
"""
    made = read(parameters=f"  parameters:\n{lines}")
    job = loaded(made)
    assert job.space["a_b"].log and job.space["a_b"].step is None
    assert job.space["d"].choices == (1, 2.5) and job.space["c"].choices == ("on", "2")
    found = reasons(made)
    assert "becomes the parameter a_b" in found["spec.parameters.0.name"]
    assert "no step here" in found["spec.parameters.0.feasibleSpace.step"]
    assert "drawn uniformly" in found["spec.parameters.1.feasibleSpace.distribution"]
    assert "'rate' is not one of the parameters" in found["spec.trialTemplate.trialParameters.0.reference"]


def test_a_grid_has_no_more_trials_than_points(loaded) -> None:
    lines = '    - {name: k, parameterType: int, feasibleSpace: {min: "1", max: "4"}}\n'
    made = read(algorithm="  algorithm: {algorithmName: grid}\n", parameters=f"  parameters:\n{lines}")
    assert loaded(made).trials == 4
    assert "more than the grid's 4 points" in reasons(made)["spec.maxTrialCount"]


@pytest.mark.parametrize(
    ("collector", "source", "pattern"),
    [
        ("source: {filter: {metricsFormat: ['(\\w+) is ([\\d.]+)']}}", "stdout", r"(\w+) is ([\d.]+)"),
        ("collector: {kind: File}\nsource: {fileSystemPath: {path: /logs/out.txt, kind: File}}", "file", None),
        (
            "collector: {kind: File}\nsource: {fileSystemPath: {path: /logs/out.txt, kind: File, format: JSON}}",
            "file",
            r'"(acc|loss)"\s*:\s*"?([-+.\deE]+)',
        ),
        ("collector: {kind: TensorFlowEvent}\nsource: {fileSystemPath: {path: /logs/out.txt}}", "tensorboard", None),
    ],
)
def test_where_metrics_are(loaded, collector: str, source: str, pattern: str | None) -> None:
    template = TEMPLATE.replace("args: [", 'args: ["--log=/logs/out.txt", ')
    more = f"metricsCollectorSpec:\n{textwrap.indent(collector, '  ')}\n"
    job = loaded(read(more=more, template=template))
    [found] = job.metrics
    assert found.source == source and found.pattern == (() if pattern is None else (pattern,))
    if source == "file":
        assert found.path == "out.txt" and job.arguments.items == ("--log=out.txt", "{width}")
    if source == "tensorboard":
        assert found.path == "logs/out.txt" and job.arguments.items == ("--log=logs/out.txt", "{width}")


def test_a_folder_of_events_at_the_root(loaded) -> None:
    template = TEMPLATE.replace("args: [", "args: [--log=/logs, /data/x.csv, ")
    more = "metricsCollectorSpec: {collector: {kind: TensorFlowEvent}, source: {fileSystemPath: {path: /logs}}}\n"
    job = loaded(read(more=more, template=template))
    assert job.metrics[0].path == "logs" and job.arguments.items == ("--log=logs", "/data/x.csv", "{width}")


def test_a_pattern_that_python_cannot_read_is_named(loaded) -> None:
    made = read(more="metricsCollectorSpec: {source: {filter: {metricsFormat: ['(\\pL+)=(\\d+)']}}}\n")
    assert loaded(made).metrics is None
    assert "not a regular expression" in reasons(made)["spec.metricsCollectorSpec.source.filter.metricsFormat.0"]


def test_what_a_container_has(loaded) -> None:
    more = (
        'env: [{name: A, value: "x{y}"}, {name: T, value: "${trialParameters.name}"}, '
        "{name: S, valueFrom: {secretKeyRef: {}}}, {name: API_KEY, value: hush1}], "
        "resources: {limits: {cpu: 500m, memory: 3Gi, nvidia.com/gpu: 2, lab/fpga: 1}}, args:"
    )
    template = TEMPLATE.replace("args:", more).replace("trialParameters: [", "trialParameters: [{name: name, reference: "
                                                       "'${trialSpec.Name}'}, ")  # fmt: skip
    made = read(template=template)
    job = loaded(made)
    assert job.command == ("env", "A=x{{y}}", "T={run}-{trial}", "fit", "--rate={rate}")
    assert (job.resources.cpus, job.resources.memory, job.resources.gpus, job.ranks) == (0.5, "3Gi", 2, 1)
    found = {field.rpartition("containers.1.")[2]: reason for field, reason in reasons(made).items()}
    assert "looks like a secret" in found["env.3.value"]
    assert "secrets" in found["env.2.valueFrom"] and "GPUs" in found["resources.limits.lab/fpga"]


def test_a_script_with_variables_stays_a_command_and_travels(loaded) -> None:
    env = "env: [{name: OMP_NUM_THREADS, value: '1'}], command: [python3, /opt/fit.py, "
    made = read(template=TEMPLATE.replace("command: [fit, ", env), fit="print(1)")
    assert loaded(made).command == ("env", "OMP_NUM_THREADS=1", "python3", "fit.py", "--rate={rate}")
    assert made.copies == ("fit.py",)


REPLICAS = """\
  trialTemplate:
    primaryContainerName: main
    trialParameters: [{name: speed, reference: rate}, {name: w, reference: width}]
    trialSpec:
      kind: KIND
      spec: {KEY: {Master: {replicas: 1, template: &pod {spec: {containers: [
        {name: main, image: a, command: [fit, "${trialParameters.speed}", "${trialParameters.w}"]}]}}},
        Worker: {replicas: 3, template: *pod}}}
"""


@pytest.mark.parametrize(
    ("kind", "key", "nodes", "part"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", 4, ""),
        ("XGBoostJob", "xgbReplicaSpecs", 4, "torchrun's variables"),
        ("TFJob", "tfReplicaSpecs", 1, "TF_CONFIG"),
        ("MPIJob", "mpiReplicaSpecs", 1, "mpirun's hosts"),
    ],
)
def test_replicas(loaded, kind: str, key: str, nodes: int, part: str) -> None:
    made = read(template=REPLICAS.replace("KIND", kind).replace("KEY", key))
    assert loaded(made).nodes == nodes
    said = reasons(made).get(f"spec.trialTemplate.trialSpec.spec.{key}", "")
    assert (part in said) if part else not said


def test_a_template_that_is_elsewhere_leaves_a_gap_that_is_named(loaded) -> None:
    made = read(template="  trialTemplate: {configMap: {configMapName: t}}\n")
    assert loaded(made).command == ("the-program-of-the-image",)
    assert "write its command" in reasons(made)["spec.trialTemplate.configMap"]


def test_a_script_beside_the_file_is_one(loaded) -> None:
    template = TEMPLATE.replace("command: [fit,", "command: [python3, fit.py,")
    made = read(template=template, fit="")
    job = loaded(made, fit="")
    assert job.script == "fit.py" and job.command is None and made.copies == ("fit.py",)
    assert job.arguments.items == ("--rate={rate}", "{width}")


def test_a_script_of_the_image_is_the_one_beside_the_file(loaded) -> None:
    template = TEMPLATE.replace("command: [fit,", "command: [python3, /opt/code/fit.py,")
    made = read(template=template, fit="")
    assert loaded(made, fit="").script == "fit.py"
    assert any("/opt/code/fit.py lies in the image there; fit.py beside the file" in note.reason for note in made.notes)
    assert "script" not in read(template=template).job, "without one beside it"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1", "not a Katib Experiment"),
        ("kind: Experiment\nspec: [1]", "not a Katib Experiment"),
        (HEAD + "  nasConfig: {}\n", "spec.nasConfig: architecture search"),
        (HEAD, "no parameters"),
        (HEAD + PARAMETERS.replace('"0.1"', "[1]") + TEMPLATE, "spec.parameters.0.feasibleSpace.min: must be a number"),
        (HEAD + PARAMETERS.replace("int,", "inte,") + TEMPLATE, "'inte' is not double, int"),
        (HEAD + "  parameters: {a: 1}\n", "spec.parameters: must be a list"),
        ("{" * 100, "levels deep"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        katib.read(text, "x.yaml", {})
    assert part in str(caught.value)
