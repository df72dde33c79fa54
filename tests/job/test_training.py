"""Kind train: its defaults, its ranks, what of a search it refuses (all at once, with the lines), and what users are told.

Not checked here: pods (tests/plan/test_training.py), data files (test_inputs.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.errors import SpecError
from trialplane.job import document, kinds, load, schema
from trialplane.job.kinds import Job
from trialplane.plan.changes import changed_fields

BARE = {"name": "demo", "kind": "train"}
SEARCH = """\
kind: train
space: {lr: {type: float, low: 0.1, high: 1}}
enqueue: [{lr: 0.5}]
sampler: tpe
pruner:
  name: median
constraints: [{metric: size, max: 3}]
trials: 24
parallel: 2
budget:
  max_failed: 3
  time: 2h
  target: 0.5
  timeout: 1h
cluster: {autoscale: true}
"""


def a_job(**fields: Any) -> Job:
    return kinds.read({**BARE, **fields})


def write(folder: Path, text: str) -> None:
    (folder / "job.yaml").write_text(text)


def test_a_training_needs_its_kind_only(folder: Path) -> None:
    write(folder, "kind: train\n")
    job = load.load_job(folder)
    assert [(one.metric, one.direction) for one in job.objectives] == [("loss", "minimize")]
    assert (job.trials, job.width, job.nodes, job.slots, job.world_size) == (1, 1, 1, 1, 1)
    assert (job.retries.crashed, job.retries.lost) == (3, 5)
    assert isinstance(job, kinds.Training) and job.keeps_checkpoints and job.roles()[0].gang
    assert job.required_metrics == ("loss",)


@pytest.mark.parametrize(
    ("fields", "ranks", "world", "slots"),
    [
        ({"resources": {"gpus": 8}}, 8, 8, 1),
        ({"resources": {"gpus": 8}, "nodes": 4}, 8, 32, 4),
        ({"resources": {"gpus": 0}, "ranks": 4}, 4, 4, 1),
        ({"resources": {"gpus": 8}, "ranks": 2}, 2, 2, 1),
        ({"kind": "hpo", "objectives": [{"metric": "a", "direction": "minimize"}], "parallel": 3, "nodes": 2}, 1, 2, 6),
    ],
)
def test_ranks_are_gpus_unless_they_are_said(fields: dict[str, Any], ranks: int, world: int, slots: int) -> None:
    job = a_job(**fields)
    assert (job.ranks_per_node, job.world_size, job.slots) == (ranks, world, slots)


def test_resources_left_out_are_those_of_each_rank() -> None:
    assert (a_job(ranks=4).resources.cpus, a_job(ranks=4).resources.memory) == (4, "8Gi")
    assert a_job(resources={"gpus": 8, "cpus": 2}).resources.model_dump() == {
        "cpus": 2, "memory": "16Gi", "gpus": 8, "shm": None,
    }  # fmt: skip
    assert a_job(retries={"lost": 1}).retries.crashed == 3
    assert a_job(retries={"crashed": 0}).retries.crashed == 0


@pytest.mark.parametrize(
    ("given", "flags", "cpus", "memory", "shm"),
    [
        ("cpus: 2, memory: 4Gi, shm: 1Gi", {"resources.gpus": 8}, 16, "32Gi", "8Gi"),
        ("cpus: 32, memory: 128Gi, gpus: 8", {"resources.gpus": 3}, 12, "48Gi", None),
        ("cpus: 5, memory: 1.5Gi, shm: 4096, gpus: 2", {"resources.gpus": 1}, 3, "0.75Gi", "2048"),
        ("cpus: 8, memory: 32Gi, gpus: 8", {"resources.gpus": 8}, 8, "32Gi", None),  # as it is written
        ("cpus: 8, memory: 32Gi, gpus: 8", {"resources.gpus": 0, "ranks": 2}, 8, "32Gi", None),
        ("cpus: 2, memory: 4Gi", {"ranks": 4}, 2, "4Gi", None),
        ("cpus: 2, memory: 4Gi", {"resources.gpus": 8, "resources.cpus": 2}, 2, "32Gi", None),  # as it is asked
        ("cpus: 2", {"resources.gpus": 8, "ranks": 4}, 8, "8Gi", None),
        ("gpus: 1", {"resources.gpus": 8}, 8, "16Gi", None),
        ("gpus: 1, cpus: 2.5", {"resources.gpus": 8}, 20, "16Gi", None),
        ("gpus: 1, cpus: 500m", {"resources.gpus": 3}, 1.5, "6Gi", None),
    ],
)
def test_other_gpus_on_the_command_line_bring_each_rank_what_it_had(
    folder: Path, given: str, flags: dict[str, Any], cpus: int, memory: str, shm: str | None
) -> None:
    write(folder, f"kind: train\nresources: {{{given}}}\n")
    got = load.load_job(folder, overrides=flags).resources
    assert (got.cpus, got.memory, got.shm) == (cpus, memory, shm)
    as_sets = [f"{field}={value}" for field, value in flags.items()]
    assert load.load_job(folder, sets=as_sets).resources == got


def test_what_is_no_amount_is_refused_as_it_was_written(folder: Path) -> None:
    write(folder, "kind: train\nresources: {cpus: many, memory: much}\n")
    assert [(field, line) for field, _, line, _ in found(folder, overrides={"resources.gpus": 8})] == [
        ("resources.cpus", 2),
        ("resources.memory", 2),
    ]
    for cpus, gpus, wrong in (("true", 8, "resources.cpus"), ("0", 8, "resources.cpus"), ("2", "8", "resources.gpus")):
        write(folder, f"kind: train\nresources: {{cpus: {cpus}}}\n")
        assert [field for field, *_ in found(folder, overrides={"resources.gpus": gpus})] == [wrong]


def test_its_json_reads_back_and_names_no_search() -> None:
    job = a_job(nodes=2, resources={"gpus": 8}, checkpoints={"url": "s3://b/c", "grace": "2m"}, resume="a-1")
    again = kinds.read(job.model_dump_json())
    assert again == job
    assert again.model_dump_json() == job.model_dump_json()
    assert changed_fields(job, again) == []
    assert not {"space", "enqueue", "sampler", "pruner", "constraints"} & set(job.model_dump())
    assert changed_fields(job, a_job(nodes=2, resources={"gpus": 8})) == [
        'checkpoints.url: "s3://b/c" → null',
        "checkpoints.grace: 120.0 → null",
        'resume: "a-1" → null',
    ]


def test_all_of_a_search_is_refused_at_once_with_its_lines(folder: Path) -> None:
    write(folder, SEARCH)
    issues = found(folder)
    lines = {field: line for field, _, line, _ in issues}
    assert lines == {
        "space": 2,
        "enqueue": 3,
        "sampler": 4,
        "pruner": 5,
        "constraints": 7,
        "trials": 8,
        "parallel": 9,
        "budget.max_failed": 11,
        "budget.time": 12,
        "budget.target": 13,
        "cluster.autoscale": 15,
    }
    assert all("drop it" in message for *_, message in issues)


def test_a_flag_and_a_profile_cannot_make_it_a_search_either(folder: Path) -> None:
    write(folder, "kind: train\nprofiles:\n  wide:\n    trials: 8\n")
    assert [(field, line) for field, _, line, _ in found(folder)] == [("profiles.wide.trials", 4)]
    write(folder, "kind: train\n")
    (issue,) = found(folder, sets=["sampler=gp"])
    assert issue[:2] == ("sampler", "--set sampler=gp")


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("ranks: 8\nresources: {gpus: 4}", "ranks", "8 is more than the GPUs of a node (4), and ranks cannot share one"),
        ("ranks: 0", "ranks", "must be over 0"),
        ("nodes: 0", "nodes", "must be over 0"),
        ("nodes: two", "nodes", "must be a whole number"),
        ("resume: Not/A/Run", "resume", "must be the name of a run"),
        ("checkpoints: {url: bucket}", "checkpoints.url", "s3://bucket/path"),
        ("checkpoints: {grac: 5}", "checkpoints.grac", "did you mean grace"),
        ("checkpoints: {grace: soon}", "checkpoints.grace", "is not a duration"),
    ],
)
def test_bad_fields_are_explained(folder: Path, text: str, field: str, said: str) -> None:
    write(folder, f"kind: train\n{text}\n")
    (issue,) = found(folder)
    assert issue[0] == field
    assert said in issue[3]


def test_a_study_may_have_ranks_and_nodes_but_starts_from_no_run(folder: Path) -> None:
    head = "kind: hpo\nobjective: {metric: a, direction: minimize}\n"
    write(folder, f"{head}ranks: 2\nnodes: 2\ncheckpoints: {{grace: 1m}}\n")
    job = load.load_job(folder)
    assert (job.world_size, job.keeps_checkpoints, job.roles()[0].gang) == (4, True, True)
    write(folder, f"{head}resume: a-1\ncluster: {{autoscale: true}}\nnodes: 2\n")
    assert [field for field, *_ in found(folder)] == ["resume", "cluster.autoscale"]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            "ranks: 3",
            "32 cannot be divided evenly among 3 ranks: make it 30 or 33, or change the number of ranks, which can be 1, ",
        ),
        ("ranks: 8\nnodes: 5", "among 40 ranks: make it 40, or change the number of ranks, which can be 1, 2, 4, 8, 16, 32"),
        ("resources: {gpus: 8}\nnodes: 4", ""),
        ("ranks: 1", ""),
    ],
)
def test_ranks_share_a_batch_evenly_or_nothing_starts(folder: Path, ranks: str, said: str) -> None:
    write(folder, f"kind: train\nparams: {{batch: 32}}\ndivided: [batch]\n{ranks}\n")
    if not said:
        assert load.load_job(folder).divided == ("batch",)
        return
    ((field, _, line, message),) = found(folder)
    assert (field, line) == ("params.batch", 2)
    assert said in message


def test_what_ranks_cannot_share(folder: Path) -> None:
    write(folder, "kind: train\nparams: {batch: 0.5, data: null}\ndivided: [bacth, batch]\nranks: 3\n")
    assert [(field, message) for field, _, _, message in found(folder)] == [
        ("params.batch", "must be a whole number over 0, not 0.5: divided names it"),
        ("divided.0", "there is no 'bacth' in params; did you mean batch?"),
    ]
    both = "inputs: {data: {format: lines, at_least: batch}}\ndivided: [batch]"
    write(folder, f"kind: train\nparams: {{batch: 0.5, data: null}}\n{both}\n")
    assert len(found(folder)) == 1
    write(folder, "kind: train\nparams: {batch: 32}\ndivided: [batch]\nranks: three\n")
    assert [field for field, *_ in found(folder)] == ["ranks"]  # by how many is not known
    head = "kind: hpo\nobjective: {metric: a, direction: minimize}\nranks: 3\ndivided: [batch]\n"
    write(folder, head + "space: {batch: {type: int, low: 1, high: 9}}\n")
    assert load.load_job(folder).world_size == 3


@pytest.mark.parametrize(("is_", "not_"), [("train", "hpo"), ("hpo", "train")])
def test_a_job_of_another_kind_has_that_one_issue(folder: Path, is_: str, not_: str) -> None:
    write(folder, f"# a comment\nkind: {is_}\nobjective: {{metric: a, direction: minimize}}\n")
    assert load.load_job(folder, kind=is_).kind == is_
    with pytest.raises(SpecError) as caught:
        load.load_job(folder, kind=not_, overrides={"trials": 24, "nodes": 2, "resume": "x"})
    (issue,) = caught.value.issues
    assert (issue.field, issue.line) == ("kind", 2)
    assert issue.message == f"is {is_}, and not {not_}: `platform submit {is_} demo`"


def test_what_wastes_a_machine_is_told() -> None:
    assert list(a_job(resources={"gpus": 8}).advice()) == []
    (fewer,) = a_job(resources={"gpus": 8, "cpus": 8}, ranks=2).advice()
    assert "2 ranks for 8 GPUs" in fewer and "--ranks 8" in fewer
    (cores,) = a_job(ranks=8, resources={"cpus": 1}).advice()
    assert "8 ranks share 1 core (resources.cpus)" in cores


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("ranks: 4\nnodes: 2\nresume: a-1\ncheckpoints: {url: 's3://b/c', grace: 2m}", True),
        ("objective: {metric: perplexity, direction: minimize}", True),
        ("inputs: {corpus: {format: lines, at_least: batch}}\nparams: {corpus: null, batch: 8}", True),
        (
            "inputs: {corpus: {format: lines, at_least: [batch, 4]}}\nparams: {corpus: null, batch: 8}\ndivided: [batch]",
            True,
        ),
        ("inputs: {corpus: {format: lines, at_least: []}}\nparams: {corpus: null}", False),
        ("inputs: {corpus: {format: lines, at_least: 0}}\nparams: {corpus: null}", False),
        ("inputs: {corpus: {format: text}}\nparams: {corpus: null}", False),
        ("sampler: tpe", False),
        ("space: {}", False),
        ("checkpoints: {grac: 100}", False),
        ("checkpoints: {url: bucket}", False),
        ("ranks: 0", False),
        ("resume: A", False),
    ],
)
def test_the_schema_for_editors_agrees(folder: Path, text: str, fits: bool) -> None:
    write(folder, f"kind: train\n{text}\n")
    data = document.read(folder / "job.yaml").data
    assert jsonschema.Draft202012Validator(schema.json_schema()).is_valid(data) is fits
    if fits:
        load.load_job(folder)
    else:
        found(folder)
