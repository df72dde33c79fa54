"""Samplers that a job names by a class: what a job file may say of them, and what is refused without importing anything.

Not checked here: that they draw (tests/controller/test_sampler_classes.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane.job import kinds, load

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace:\n  x: {type: float, low: 0, high: 1}\n"
TUNE = "ray.tune.search.optuna:OptunaSearch"


def read(folder: Path, text: str) -> kinds.Study:
    (folder / "job.yaml").write_text(HEAD + text)
    job = load.load_job(folder)
    assert isinstance(job, kinds.Study)
    return job


def test_a_class_keeps_its_arguments(folder: Path) -> None:
    job = read(folder, "sampler: {class: optuna.samplers:TPESampler, n_startup_trials: 3}\n")
    sampler = job.sampler
    assert (sampler.class_path, sampler.is_tune_searcher, sampler.options) == (
        "optuna.samplers:TPESampler",
        False,
        {"n_startup_trials": 3},
    )
    assert kinds.read(job.model_dump_json()) == job
    assert job.facts()["sampler"] == "optuna.samplers:TPESampler"


def test_a_searcher_of_ray_tune(folder: Path) -> None:
    job = read(folder, f"sampler: {{tune: {TUNE}}}\n")
    assert (job.sampler.class_path, job.sampler.is_tune_searcher) == (TUNE, True)
    assert kinds.read(job.model_dump_json()) == job


def test_a_class_replaces_a_name_and_a_name_a_class(folder: Path) -> None:
    profile = "profiles: {other: {sampler: {class: optuna.samplers:GPSampler}}}\n"
    (folder / "job.yaml").write_text(HEAD + "sampler: {name: tpe, n_startup_trials: 3}\n" + profile)
    job = load.load_job(folder, profile="other")
    assert (job.search.sampler.class_path, job.search.sampler.options) == ("optuna.samplers:GPSampler", {})
    again = load.load_job(folder, profile="other", sets=["sampler.name=random"])
    assert (again.search.sampler.name, again.search.sampler.options) == ("random", {})
    third = load.load_job(folder, sets=["sampler.class=optuna.samplers:GPSampler"])
    assert third.search.sampler == job.search.sampler


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampler: {class: optuna}", "'optuna' must be package.module:Class, for example optuna.samplers:TPESampler"),
        ("sampler: {class: 3}", "'3' must be package.module:Class"),
        ("sampler: {class: a:B, name: tpe}", "cannot stand beside name; drop one of them"),
        (f"sampler: {{class: a:B, tune: {TUNE}}}", "cannot stand beside class; drop one of them"),
        (f"sampler: {{class: {TUNE}}}", f"{TUNE} is a searcher of Ray Tune; write tune: {TUNE}"),
        (f"sampler: {{tune: {TUNE}, metric: loss}}", "is set by the platform from the job's objective and space"),
        ("sampler: {name: qmc, independent_sampler: {class: a:B}}", "cannot be a class here; write a name"),
        ("sampler: {class: train:Missing}", "train.py defines no Missing"),
        (
            f"sampler: {{tune: {TUNE}}}\nparams: {{epochs: 9}}\npruner: {{name: asha, promote: true, max_resource: epochs}}",
            "is told each result once, and a paused trial has none yet",
        ),
    ],
)
def test_what_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "job.yaml").write_text(f"{HEAD}{text}\n")
    issues = found(folder)
    assert any(message in text for *_, text in issues), issues


def test_a_searcher_needs_the_space(folder: Path) -> None:
    (folder / "train.py").write_text("def run(ctx): ...\ndef define(trial): ...\n")
    head = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace: train:define\n"
    (folder / "job.yaml").write_text(f"{head}sampler: {{tune: {TUNE}}}\n")
    assert any("needs the space in the job file" in text for *_, text in found(folder))
