"""A Run as an object: what a plan becomes, and what is read of it, also after clients that drop every null.

The API server's part, schema and rules, is in test_crd.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from trialplane.errors import TargetError
from trialplane.job import kinds, load
from trialplane.kube.cluster import ApiResponse
from trialplane.plan import plan as planning
from trialplane.plan import run as runs
from trialplane.plan.plan import Provenance

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*/job.yaml"))
STUDY = {
    "kind": "hpo",
    "name": "demo",
    "objectives": [{"metric": "f1", "direction": "maximize"}],
    "space": {"x": {"type": "categorical", "choices": [None, 1]}},
}


def dropped(value: Any) -> Any:
    """What `kubectl apply` sends of a manifest, and what a merge patch makes of one: no field that is null."""
    if isinstance(value, dict):
        return {key: dropped(below) for key, below in value.items() if below is not None}
    return value


@pytest.mark.parametrize("file", JOBS, ids=[file.parent.name for file in JOBS])
def test_a_shipped_job_is_read_as_it_was_planned(file: Path) -> None:
    job = load.load_job(file.parent)
    run, code = runs.manifests(planning.plan(job, file.parent, "a", Provenance("", "", "")), "team", 0.0)
    for sent in (run, dropped(run)):
        found = runs.read(sent)
        assert found.issues == () and found.job == job
    assert [code["metadata"]["name"]] == run["spec"]["code"]["configMaps"] == ["a-code"]


@pytest.mark.parametrize(
    "fields",
    [
        {"script": "fit.py", "arguments": ["--x", "{x}"], "capture": ["wandb"], "keep": {"best": 3, "files": ["*.png"]}},
        {"command": ["./fit.sh", "{x}"], "metrics": [{"from": "stdout", "pattern": "f1=(?P<f1>[0-9.]+)"}], "cwd": "workdir"},
        {"kind": "train", "script": "fit.py", "ranks": 2, "objectives": [], "space": {}},
        {"entrypoint": "optuna:fit:objective", "space": {}, "requirements": "requirements.txt", "packages": ["lib"]},
    ],
    ids=["script", "command", "training", "objective"],
)
def test_a_job_is_read_as_it_was_planned_however_its_trials_run(fields: dict[str, Any]) -> None:
    given = {**STUDY, **fields}
    if given["kind"] == "train":
        given = {key: value for key, value in given.items() if value not in ([], {})}
    job = kinds.read(given)
    assert not list(job.check(frozenset()))
    run = {
        "metadata": {"name": "a"},
        "spec": {**runs.job_fields(job), "code": {"configMaps": ["a-code"], "sha256": "0" * 64}},
    }
    for sent in (run, dropped(run)):
        found = runs.read(sent)
        assert found.issues == () and found.job == job


def test_nulls_that_mean_something_are_kept() -> None:
    job = kinds.read(
        {**STUDY, "budget": {"failed_alike": None}, "params": {"rows": None, "net": {"a.b/c": None}, "lr": 1.0}}
    )
    fields = runs.job_fields(job)
    assert sorted(fields["nulls"]) == ["/budget/failed_alike", "/params/net/a.b~1c", "/params/rows"]
    run = {"metadata": {"name": "a"}, "spec": {**fields, "code": {"configMaps": ["a-code"], "sha256": "0" * 64}}}
    assert runs.read(dropped(run)).job == job
    run["spec"]["job"]["params"]["rows"] = 5
    found = runs.read(dropped(run)).job
    assert found is not None and found.params["rows"] == 5, "a field that was given wins"


def test_all_complaints_come_at_once_with_their_paths() -> None:
    job = {**STUDY, "trials": 0, "sampler": {"name": "tpee"}}
    run = {"metadata": {"name": "A"}, "spec": {"job": job, "code": {"configMaps": ["A-code", "b"], "sha256": "0" * 64}}}
    found = runs.read(run)
    assert found.job is None
    assert [issue.field for issue in found.issues] == [
        "name",
        "spec.code.configMaps.1",
        "spec.job.sampler.name",
        "spec.job.trials",
    ]


@pytest.mark.parametrize("field", ["submission", "job", "nulls"])
def test_a_run_nested_without_end_is_refused_by_its_field(field: str) -> None:
    deep: Any = 1
    for _ in range(9_000):  # the API server takes 10,000
        deep = {"a": deep}
    run = {"metadata": {"name": "deep"}, "spec": {"job": STUDY, field: deep}}
    assert [str(issue) for issue in runs.read(run).issues] == [f"spec.{field}: is nested more than 50 levels deep"]


def test_an_answer_nested_deeper_than_python_reads_is_an_error_of_ours() -> None:
    body = b"[" * 1_000_000
    limit = sys.getrecursionlimit()
    with pytest.raises(TargetError, match="nested too deep to be read"):
        ApiResponse(200, {}, body).json()
    assert sys.getrecursionlimit() == limit, "it is the user's, in whose process this may be"
