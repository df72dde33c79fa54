"""Kind collect: its defaults, its slots, what it refuses (all at once, with the lines), and what users are told.

Not checked here: pods (tests/plan/test_collecting.py), flags and what verbs show (tests/cli), that it runs (tests/study).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.job import document, kinds, load, schema
from trialplane.job.kinds import Job

COLLECT: dict[str, Any] = {"units": 80, "iterations": 10, "workers": 8, "learner": "train:learn"}
GOOD = "kind: collect\ncollect: {units: 80, iterations: 10, workers: 8, learner: 'train:learn'}\n"


def a_job(collect: dict[str, Any] | None = None, **fields: Any) -> Job:
    return kinds.read({"name": "demo", "kind": "collect", "collect": {**COLLECT, **(collect or {})}, **fields})


@pytest.fixture
def place(folder: Path) -> Path:
    (folder / "train.py").write_text("def play(ctx): ...\n\n\ndef learn(ctx, results): ...\n")
    return folder


def write(folder: Path, text: str) -> None:
    (folder / "job.yaml").write_text(text)


def test_a_collection_needs_its_units_and_who_takes_them(place: Path) -> None:
    write(place, "kind: collect\ncollect: {units: 4, learner: train:learn}\n")
    job = load.load_job(place)
    collect = job.collect
    assert isinstance(job, kinds.Collection) and job.keeps_checkpoints
    assert not any(role.gang for role in job.roles())
    assert job.entrypoint == "train:play"
    assert [(one.metric, one.direction) for one in job.objectives] == [("units", "maximize")]
    assert (collect.iterations, collect.workers, collect.timeout, collect.most_failed) == (1, 1, 600.0, 0)
    assert collect.in_flight_bytes == 512 * 2**20
    assert (job.retries.crashed, job.retries.lost, job.budget.max_failed) == (1, 5, None)


def test_iterations_are_its_trials_and_workers_its_slots() -> None:
    job = a_job()
    assert (job.trials, job.slots, job.width) == (10, 9, 8)
    wider = job.widened(3)
    assert (wider.trials, wider.slots, wider.width) == (10, 4, 3)
    searched = kinds.read(
        {"name": "a", "kind": "hpo", "objectives": [{"metric": "a", "direction": "minimize"}], "parallel": 3}
    )
    assert (searched.width, searched.widened(5).parallel, searched.widened(5).slots) == (3, 5, 5)


def test_a_worker_is_one_process_whatever_gpus_it_has() -> None:
    job = a_job(resources={"gpus": 2})
    assert [(role.ranks, role.nodes, role.resources.gpus) for role in job.roles()] == [(1, 1, 2), (1, 1, 2)]
    assert list(job.advice()) == []


def test_shared_memory_has_room_for_what_is_in_flight() -> None:
    def shm(**fields: Any) -> list[int]:
        return [role.shm_bytes or 0 for role in a_job(**fields).roles()]

    assert min(shm()) > 512 * 2**20
    assert shm(collect={"in_flight": "4Gi"}) == [size + 4 * 2**30 - 512 * 2**20 for size in shm()]
    assert shm(resources={"shm": "1Gi"}) == [2**30, 2**30]


@pytest.mark.parametrize(("collect", "most"), [({}, 8), ({"units": 9}, 0), ({"max_failed": 0}, 0), ({"max_failed": 90}, 90)])
def test_a_tenth_of_the_units_may_fail(collect: dict[str, Any], most: int) -> None:
    job = a_job(collect=collect)
    assert job.collect.most_failed == most


@pytest.mark.parametrize("fields", [{}, {"seed": 3, "preload": ["torch"]}, {"collect": {"in_flight": 10**9}}])
def test_it_reads_back_from_its_json_and_names_no_field_of_a_search(fields: dict[str, Any]) -> None:
    job = a_job(**fields)
    assert kinds.read(job.model_dump_json()) == job
    assert not {"space", "sampler", "pruner", "enqueue", "constraints", "trials", "parallel"} & set(job.model_dump())
    searched = kinds.read({"name": "a", "kind": "hpo", "objectives": [{"metric": "a", "direction": "minimize"}]})
    assert "collect" not in searched.model_dump()


def test_results_may_be_written_instead(place: Path) -> None:
    write(place, "kind: collect\ncollect: {units: 4, write: {format: parquet, shard: 1Gi, to: s3://games/chess}}\n")
    collect = load.load_job(place).collect
    assert collect.write is not None
    assert (collect.write.format, collect.write.shard_bytes, collect.write.to) == ("parquet", 2**30, "s3://games/chess")
    assert collect.learner.entrypoint is None


def test_what_is_of_another_kind_is_refused_all_at_once(place: Path) -> None:
    write(
        place,
        "kind: collect\n"
        "collect: {units: 4, learner: 'train:learn'}\n"
        "space: {lr: {type: float, low: 0, high: 1}}\n"
        "enqueue: [{momentum: 0.5}]\n"
        "sampler: tpe\n"
        "pruner: median\n"
        "constraints: [{metric: size, max: 3}]\n"
        "trials: 24\n"
        "parallel: 2\n"
        "ranks: 2\n"
        "nodes: 2\n"
        "budget: {max_failed: 3}\n",
    )
    issues = {field: (line, message) for field, _, line, message in found(place)}
    assert set(issues) == {
        "space", "enqueue", "sampler", "pruner", "constraints", "trials", "parallel", "ranks", "nodes", "budget.max_failed",
    }  # fmt: skip
    assert [issues[field][0] for field in ("space", "trials", "nodes", "budget.max_failed")] == [3, 8, 11, 12]
    assert "write the values into params" in issues["space"][1]
    for field, cure in {
        "trials": "collect.iterations",
        "parallel": "collect.workers",
        "ranks": "collect.workers",
        "nodes": "collect.workers",
        "budget.max_failed": "collect.max_failed",
    }.items():
        assert cure in issues[field][1]


@pytest.mark.parametrize(
    ("text", "field", "line", "said"),
    [
        ("kind: collect\n", "collect", 1, "is missing; write collect: {units: 80"),
        ("kind: collect\ncollect: {learner: 'train:learn'}\n", "collect.units", 2, "is missing"),
        ("kind: collect\ncollect: {units: 4}\n", "collect", 2, "nothing reads the results; write learner: train:learn"),
        (
            "kind: collect\ncollect:\n  units: 4\n  learner: train:learn\n  write: {}\n",
            "collect.write", 5, "stands beside learner (train:learn)",
        ),
        ("kind: collect\ncollect: {units: 4, write: {to: here}}\n", "collect.write.to", 2, "'here' is not a place; write"),
        ("kind: collect\ncollect: {units: 4, write: {format: csv}}\n", "collect.write.format", 2, "'csv' is not 'npz'"),
        ("kind: collect\ncollect: {units: 4, worker: 2, write: {}}\n", "collect.worker", 2, "did you mean workers"),
        ("kind: collect\ncollect: {units: 4, write: {shards: 1Mi}}\n", "collect.write.shards", 2, "did you mean shard?"),
        ("kind: collect\ncollect: {units: 0, write: {}}\n", "collect.units", 2, "0 must be over 0"),
        ("kind: collect\ncollect: {units: 4, in_flight: 0, write: {}}\n", "collect.in_flight", 2, "must be more than 0"),
        ("kind: collect\ncollect: {units: 4, timeout: soon, write: {}}\n", "collect.timeout", 2, "is not a duration"),
        ("kind: collect\ncollect: {units: 4, learner: learn}\n", "collect.learner.entrypoint", 2, "must be module:function"),
        ("kind: collect\ncollect: {units: 4, learner: 'train:lern'}\n", "collect.learner.entrypoint", 2, "mean learn?"),
        ("kind: collect\nentrypoint: train:plya\ncollect: {units: 4, write: {}}\n", "entrypoint", 2, "did you mean play?"),
        ("kind: train\nentrypoint: train:play\ncollect: {units: 4, write: {}}\n", "collect", 3, "is for kind: collect"),
        ("kind: collet\nentrypoint: train:play\n", "kind", 1, "is not 'hpo', 'train' or 'collect'"),
        ("kind: collect\ncollect: {units: 4, learner: 'train:play'}\n", "collect.learner.entrypoint", 2, "is the entryp"),
        (GOOD + "workers: 4\n", "workers", 3, "there is no such field; did you mean collect.workers?"),
        (GOOD + "timeout: 4\n", "timeout", 3, "did you mean budget.timeout or collect.timeout?"),
        ("kind: train\nentrypoint: train:play\nworkers: 4\n", "workers", 3, "did you mean retries or ranks or nodes?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(place: Path, text: str, field: str, line: int, said: str) -> None:
    write(place, text)
    (issue,) = found(place)
    assert (issue[0], issue[2]) == (field, line)
    assert said in issue[3]


def test_a_wrong_collection_hides_nothing_else(place: Path) -> None:
    """And is not called missing because it is wrong."""
    write(place, "kind: collect\ncollect: {units: x, learner: 'train:learn'}\npruner: median\nnodes: 2\n")
    assert [(field, line) for field, _, line, _ in found(place)] == [("collect.units", 2), ("pruner", 3), ("nodes", 4)]


def test_two_readers_and_a_misspelt_function_are_told_beside_the_rest(place: Path) -> None:
    write(place, "kind: collect\nentrypoint: train:plya\ncollect:\n  units: 0\n  learner: train:learn\n  write: {}\n")
    assert [(field, line) for field, _, line, _ in found(place)] == [
        ("entrypoint", 2),
        ("collect.units", 4),
        ("collect.write", 6),
    ]


def test_flags_and_variables_set_its_fields(place: Path) -> None:
    write(place, GOOD + "environment: {GAMES: collect.units}\n")
    job = load.load_job(place, overrides={"collect.iterations": 3}, sets=["collect.workers=2"], environ={"GAMES": "800"})
    assert (job.collect.units, job.trials, job.slots) == (800, 3, 3)


def test_a_collection_starts_from_another_one(place: Path) -> None:
    write(place, GOOD)
    assert load.load_job(place, overrides={"resume": "older"}).resume == "older"


def test_the_learner_has_resources_nodes_and_an_image_of_its_own(place: Path) -> None:
    """What is left out is as the workers have it."""
    write(
        place,
        "kind: collect\n"
        "resources: {cpus: 500m, memory: 4Gi}\n"
        "cluster: {node_selector: {pool: cpu}}\n"
        "collect:\n"
        "  units: 4\n"
        "  workers: 3\n"
        "  learner: train:learn\n"
        "profiles:\n"
        "  gpu: {collect: {learner: {resources: {gpus: 1, cpus: 2.0}, image: 'a:b', node_selector: {pool: gpu}}}}\n",
    )
    workers, learner = load.load_job(place).roles()
    assert (workers.replicas, learner.replicas) == (3, 1)
    assert (workers.entrypoint, learner.entrypoint) == ("train:play", "train:learn")
    assert workers.resources == learner.resources and workers.cluster == learner.cluster
    assert (workers.resources.cpus, workers.resources.threads) == (0.5, 1)
    job = load.load_job(place, profile="gpu")
    same, learner = job.roles()
    assert same == workers
    assert (learner.entrypoint, learner.resources.cpus, learner.resources.memory) == ("train:learn", 2, "4Gi")
    assert (learner.resources.gpus, learner.cluster.image, learner.cluster.node_selector) == (1, "a:b", {"pool": "gpu"})
    assert kinds.read(job.model_dump_json()) == job


def test_what_writes_files_needs_no_gpu() -> None:
    job = a_job(collect={"learner": {}, "write": {}}, resources={"gpus": 2})
    assert [role.resources.gpus for role in job.roles()] == [2, 0]
    asked = {"learner": {"resources": {"gpus": 1}}, "write": {}}
    assert [role.resources.gpus for role in a_job(collect=asked, resources={"gpus": 2}).roles()] == [2, 1]


OWN = {"entrypoint": "train:learn", "resources": {"gpus": 1}, "image": "a:b"}


@pytest.mark.parametrize(
    "layer",
    [
        {"sets": ["collect.learner=train:read"]},
        {"overrides": {"collect.learner": "train:read"}},
        {"profile": "other"},
        {"environ": {"READER": "train:read"}},
    ],
)
def test_another_function_leaves_the_learner_what_it_has(place: Path, layer: dict[str, Any]) -> None:
    """From wherever it comes."""
    (place / "train.py").write_text("def play(ctx): ...\ndef learn(ctx, results): ...\ndef read(ctx, results): ...\n")
    text = f"kind: collect\nenvironment: {{READER: collect.learner}}\ncollect: {{units: 4, learner: {OWN}}}\n"
    write(place, text + "profiles: {other: {collect: {learner: 'train:read'}}}\n")
    job = load.load_job(place, **layer)
    assert isinstance(job, kinds.Collection)
    learner = job.collect.learner
    assert (learner.entrypoint, learner.resources.gpus, learner.image) == ("train:read", 1, "a:b")


def test_null_takes_the_function_away_for_files(place: Path) -> None:
    write(place, f"{GOOD}profiles: {{files: {{collect: {{learner: null, write: {{}}}}}}}}\n")
    job = load.load_job(place, profile="files")
    assert isinstance(job, kinds.Collection)
    assert job.collect.learner.entrypoint is None and job.collect.write is not None


def test_a_parameter_may_be_called_learner(folder: Path) -> None:
    write(folder, "kind: train\nparams: {learner: abc, model: {learner: x}}\nprofiles: {p: {params: {learner: {x: 1}}}}\n")
    assert load.load_job(folder, profile="p").params == {"learner": {"x": 1}, "model": {"learner": "x"}}
    assert "has no fields" in found(folder, sets=["params.learner.x=3"])[0][3]


def test_a_target_needs_one_objective(place: Path) -> None:
    both = "objectives: [{metric: a, direction: maximize}, {metric: b, direction: minimize}]\nbudget: {target: 1.0}\n"
    write(place, GOOD + both)
    assert [field for field, *_ in found(place)] == ["budget.target"]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "kind: collect\ncollect: {units: 4, write: {}}\n",
        "kind: collect\ncollect: {units: 4, write: {format: npz, shard: 64Mi, to: /data/games}, in_flight: 64Mi}\n",
        "kind: collect\ncollect: {units: 4, write: {to: games}}\n",
        "kind: collect\ncollect: {units: 4, write: {}}\nspace: {lr: {type: float, low: 0, high: 1}}\n",
        "kind: collect\ncollect: {units: 4.5, write: {}}\n",
        "kind: collect\ncollect: {unit: 4, write: {}}\n",
        "kind: collect\n",
        GOOD + "objective: {metric: rating, direction: maximize}\n",
        GOOD + "profiles: {small: {collect: {units: 4, iterations: 2}}}\n",
        "kind: train\ncollect: {units: 4, write: {}}\n",
        "kind: hpo\nobjective: {metric: f, direction: maximize}\ncollect: {units: 4, write: {}}\n",
    ],
)
def test_editors_and_the_loader_agree(place: Path, text: str) -> None:
    (place / "train.py").write_text("def play(ctx): ...\ndef learn(ctx, results): ...\ndef run(ctx): ...\n")
    write(place, text)
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    fits = not list(validator.iter_errors(document.read(place / "job.yaml").data))
    try:
        load.load_job(place)
        loads = True
    except load.SpecError:
        loads = False
    assert fits is loads
