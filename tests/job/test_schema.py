"""The JSON schema for editors: valid itself, in step with the loader on what users write, and on what it refuses.

Does not check the wording of an editor's messages, nor what only the loader can tell (low > high, conditions).
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from trialplane.job import document, kinds, load, options, schema
from trialplane.plan import pack

JOBS = Path(__file__).parents[2] / "jobs"
SHIPPED = sorted(JOBS.glob("*/job.yaml"))
HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\n"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    made = schema.json_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("file", SHIPPED, ids=[file.parent.name for file in SHIPPED])
def test_shipped_jobs_fit(validator: jsonschema.Draft202012Validator, file: Path) -> None:
    assert [error.message for error in validator.iter_errors(document.read(file).data)] == []
    assert load.load_job(file.parent).name == file.parent.name


_FITS = [
    "trials: 3",
    "objective_: 0",
    "objectives: [{metric: a, direction: minimize}]",
    "sampler: tpe",
    "sampler: {name: tpe, n_startup_trials: 3, gamma: 'train:gamma'}",
    "sampler: {name: tpe, n_startup_trial: 3}",
    "sampler: {name: random, n_startup_trials: 3}",
    "sampler: {name: tpe, seed: 3}",
    "sampler: {name: tpe, multivariate: 3}",
    "sampler: tbe",
    "sampler: {name: nsgaii, crossover: sbx, mutation: {name: polynomial, eta: 3}}",
    "sampler: {name: nsgaii, crossover: {name: sbx, alpha: 3}}",
    "sampler: {name: nsgaiii, reference_points: [[0], [1]]}",
    "sampler: {name: gp, independent_sampler: {name: qmc, scramble: true}}",
    "sampler: {name: qmc, qmc_type: hilton}",
    "pruner: median",
    "pruner: percentile",
    "pruner: threshold",
    "pruner: {name: threshold, upper: 3}",
    "pruner: {name: percentile, percentile: 25.0}",
    "pruner: {name: hyperband, max_resource: auto}",
    "pruner: {name: hyperband, max_resource: car}",
    "pruner: {name: patient, patience: 3, wrapped_pruner: {name: median, n_warmup_steps: 2}}",
    "pruner: {name: patient, patience: 3, wrapped_pruner: null}",
    "pruner: {name: median, metric: auc}",
    "pruner: {name: percentile, percentile: 25.0, metric: loss, direction: minimize}",
    "pruner: {name: median, metric: loss, direction: down}",
    "pruner: {name: median, metric: 3}",
    "pruner: {name: patient, patience: 3, metric: auc, wrapped_pruner: {name: median}}",
    "pruner: {name: patient, patience: 3, wrapped_pruner: {name: median, metric: auc}}",
    "profiles: {max: {pruner: {name: median, metric: auc}}}",
    "budget: {time: 1h30m, timeout: 20, target: 0.9, max_failed: 3}",
    "budget: {time: 1 hour}",
    "budget: {time: 0}",
    "system_metrics: true",
    "system_metrics: 1m",
    "system_metrics: 0.01",
    "system_metrics: often",
    "resources: {cpus: 2, memory: 2Gi, shm: 512Mi}",
    "resources: {memory: 2GB}",
    "resources: {memory: 2000000}",
    "resources: {gpu: 1}",
    "space: {lr: {type: float, low: 1e-5, high: 1, log: true}}",
    "space: {lr: {type: float, low: 1e-5, hihg: 1}}",
    "space: {lr: {type: floot}}",
    "space: {a.b: {type: int, low: 1, high: 2}}",
    "space: {m: {type: categorical, choices: [a, 2, 2.5, true, null]}}",
    "space: {m: {type: categorical, choices: [[a]]}}",
    "space: {m: {type: int, low: 1, high: 2}, n: {type: int, low: 1, high: 2, when: {m: 1}}}",
    "space: {m: {type: int, low: 1, high: 2}, n: {type: int, low: 1, high: 2, when: {m: [1, 2]}}}",
    "space: train:define",
    "space: train",
    "enqueue: [{}, {}]",
    "constraints: [{metric: size, max: 3}]",
    "retries: {crashed: 2, lost: 0}",
    "space: {m: {type: normal, mean: 0, std: 1, log: true, low: 0.5}}",
    "space: {m: {type: normal, mean: 0}}",
    "objectives: [{metric: a, direction: minimize, of: best}]",
    "objectives: [{metric: a, direction: minimize, of: first}]",
    "stop: {metric: loss, below: 0.1, after: 5}",
    "stop: [{metric: loss, above: 9}, {step: 100}]",
    "stop: {metric: loss, blow: 0.1}",
    "stop: 9",
    "stop: [9]",
    "stop: {step: 9}\nprofiles: {long: {stop: {step: 90}}, none: {stop: []}}",
    "cluster: {}",
    "cluster: {autoscale: true, idle: 5m, queue: team-a, image: 'team/job:3', deadline: 3d, backoff_limit: 1}",
    "cluster: {autoscale: 1}",
    "cluster: {image: ''}",
    "cluster: {queue: Team A}",
    "cluster: {node_selector: {pool: gpu, topology.kubernetes.io/zone: a-1, empty: ''}}",
    "cluster: {node_selector: {pool: true}}",
    "cluster: {labels: {cost/: a}}",
    "cluster: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]}",
    "cluster: {tolerations: [{key: a, effect: Never}]}",
    "cluster: {topology: {spread: topology.kubernetes.io/zone}}",
    "cluster: {topology: {spraed: zone}}",
    "cluster: {controller: {cpus: 500m, memory: 2Gi}}",
    "cluster: {controller: {cpus: 0.5}}",
    "cluster: {controller: {cpus: 0m}}",
    "cluster: {controller: {cpus: 0}}",
    "resources: {cpus: 0.001}",
    "resources: {cpus: 0.0001}",
    "resources: {cpus: 1e17}",
    "resources: {cpus: '0.001'}",
    "resources: {cpus: '0.0009'}",
    "resources: {cpus: '00.50'}",
    "resources: {cpus: 1.5m}",
    "resources: {cpus: 0.5m}",
    "cluster: {gpu_resource: nvidia.com/mig-1g.10gb}",
    "cluster: {gpu_resource: gpu}",
    "cluster: {backoff_limit: -1}",
    "profiles: {wide: {cluster: {autoscale: true}}}",
    "name: x",
    "sampler: tpe\nprofiles: {max: {trials: 800, sampler: {n_startup_trials: 9}, objective: {metric: x}}}",
    "profiles: {max: {trails: 800}}",
    "profiles: {max: {space: {}}}",
    "profiles: {one: {kind: train}}",
    "profiles: {one: {kind: train, nodes: 2, resume: other}}",
    "profiles: {games: {kind: collect, collect: {units: 3, write: {}}}}",
    "profiles: {same: {kind: hpo, trials: 2}}",
]


@pytest.mark.parametrize("text", _FITS)
def test_the_schema_and_the_loader_agree(validator: jsonschema.Draft202012Validator, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "train.py").write_text("run = gamma = define = None")
    head = "kind: hpo\n" if text.startswith("objectives:") else HEAD
    (folder / "job.yaml").write_text(head + text)
    try:
        load.load_job(folder)
        loads = True
    except load.SpecError:
        loads = False
    assert validator.is_valid(document.read(folder / "job.yaml").data) == loads


def test_every_option_of_every_sampler_is_offered() -> None:
    shapes = schema.json_schema()["$defs"]["Sampler"]["anyOf"][1:]
    offered = {shape["title"]: set(shape["properties"]) - {"name"} for shape in shapes}
    assert offered.pop("class") == {"class"}
    assert offered.pop("tune") == {"tune"}
    assert offered == {name: set(choice.options) for name, choice in options.SAMPLERS.items()}


def test_the_shipped_schema_is_this_one() -> None:
    """`platform schema > jobs/job.schema.json` makes it anew."""
    text = json.dumps(schema.json_schema(), indent=2, ensure_ascii=False)
    assert (JOBS / "job.schema.json").read_text() == f"{text}\n"


@pytest.mark.parametrize("file", SHIPPED, ids=[file.parent.name for file in SHIPPED])
def test_shipped_jobs_name_the_schema_and_do_not_carry_it(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../job.schema.json"
    assert "job.schema.json" not in pack.pack(file.parent).files


def test_every_field_is_described() -> None:
    made = schema.json_schema()
    for kind in kinds.CLASSES.values():
        properties = made["$defs"][kind.__name__]["properties"]
        assert set(properties) == {*kind.model_fields, "objective", "profiles"} - {"name"}
        assert all("description" in field for field in properties.values())
