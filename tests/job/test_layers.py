"""Finding a job, and what is laid over its file: profile, environment, fixed parameters, `--set` and flags.

Does not check what can be wrong in the file itself (test_load.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.job.conftest import GOOD, found

from trialplane import errors
from trialplane.job import load


def test_each_layer_wins_over_those_before(folder: Path) -> None:
    environ = {"HPO_EPOCHS": "5"}
    epochs = "params.epochs"
    (folder / "job.yaml").write_text(GOOD.replace("max: {", "max: {params: {epochs: 4}, "))
    assert load.load_job(folder).params["epochs"] == 3
    assert load.load_job(folder, profile="max").params["epochs"] == 4
    assert load.load_job(folder, profile="max", environ=environ).params["epochs"] == 5
    layers: dict[str, Any] = {"profile": "max", "environ": environ, "params": {"epochs": 6}}
    assert load.load_job(folder, **layers).params["epochs"] == 6
    assert load.load_job(folder, **layers, sets=[f"{epochs}=7"]).params["epochs"] == 7
    assert load.load_job(folder, **layers, sets=[f"{epochs}=7"], overrides={epochs: 8}).params["epochs"] == 8


def test_profiles_merge_deeply(folder: Path) -> None:
    job = load.load_job(folder, profile="max")
    assert (job.trials, job.sampler.name, job.sampler.options) == (800, "tpe", {"n_startup_trials": 40})
    assert job.search.parameters["lr"].high == 0.1 and job.search.parameters["lr"].log  # type: ignore[union-attr]
    assert "layers" not in job.search.parameters
    other = load.load_job(folder, profile="other")
    assert other.sampler.options == {} and other.search.parameters["lr"].log is False  # type: ignore[union-attr]


def test_a_profile_may_change_a_part_of_the_objective(folder: Path) -> None:
    (folder / "job.yaml").write_text(GOOD.replace("max: {", "max: {objective: {metric: acc}, "))
    objective = load.load_job(folder, profile="max").objectives[0]
    assert (objective.metric, objective.direction) == ("acc", "maximize")


def test_sets(folder: Path) -> None:
    sets = ["space.lr.high=0.1", "enqueue.0.lr=1e-4", "objective.metric=acc", "sampler.n_startup_trials=2"]
    sets += ["pruner.n_warmup_steps=3", "budget.time=2h", "params.data={a: [1, 2]}", "enqueue.1={lr: 0.01}"]
    job = load.load_job(folder, sets=sets)
    assert job.search.parameters["lr"].high == 0.1  # type: ignore[union-attr]
    assert job.enqueue == ({"lr": 1e-4, "model": "bert"}, {"lr": 0.01})
    assert job.required_metrics == ("acc",) and job.budget.time == 7200 and job.params["data"] == {"a": [1, 2]}
    assert job.sampler.options == {"n_startup_trials": 2}
    assert (job.pruner.name, job.pruner.options) == ("median", {"n_warmup_steps": 3})
    assert load.load_job(folder, sets=["sampler.name=random"]).sampler.options == {}
    assert load.load_job(folder, sets=["space=train:define", "environment={}", "enqueue=[]"]).search.function


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("trials=0", "must be over 0"),
        ("trails=3", "did you mean trials"),
        ("space.lr.hi=1", "did you mean high"),
        ("space.lrr.high=1", "has no type"),
        ("trials.x=3", "has no fields"),
        ("enqueue.7.lr=1", "is not an index"),
        ("enqueue.x=1", "is not an index"),
        ("trials", "write field=value"),
        ("=3", "write field=value"),
        ("trials=[1", "is not YAML"),
        ("space.heads.when.model=[]", "needs at least 1"),
        ("space.layers.high=1e400", "whole number"),
        (f"space.layers.high={10**30}", "at most"),
        (f"sampler.n_startup_trials={10**30}", "more than 64 bits"),
        ("sampler={name: nsgaii, crossover: {name: sbx, options: 3}}", "must be a mapping"),
        ("sampler.n_startup=1", "did you mean n_startup_trials"),
    ],
)
def test_a_bad_set_is_named(folder: Path, given: str, part: str) -> None:
    [(_, source, line, message)] = found(folder, sets=[given])
    assert (source, line) == (f"--set {given}", 0)
    assert part in message


EDITED = "add new ones to params in job.yaml"


def test_a_parameter_that_the_job_does_not_have_is_refused(folder: Path) -> None:
    """Nothing would read it, and the run would go with the value that was to be changed."""
    (issue,) = found(folder, sets=["params.epcohs=7"])
    assert issue == (
        *("params.epcohs", "--set params.epcohs=7", 0),
        f"there is no such parameter; did you mean epochs; {EDITED}",
    )
    several = found(folder, sets=["params={epcohs: 7, epochs: 8}", "trials=0"], overrides={"params.modle": "x"})
    assert [field for field, *_ in several] == ["params.epcohs", "params.modle", "trials"]
    assert [source for _, source, *_ in several] == [
        "--set params={epcohs: 7, epochs: 8}",
        "--params.modle",
        "--set trials=0",
    ]


def test_parameters_of_the_profile_and_of_the_space_are_the_jobs(folder: Path) -> None:
    (folder / "job.yaml").write_text(GOOD.replace("max: {", "max: {params: {beams: 4}, "))
    assert load.load_job(folder, profile="max", sets=["params.beams=5"]).params["beams"] == 5
    ((*_, said),) = found(folder, sets=["params.beams=5"])
    assert said.startswith("there is no such parameter")
    assert len(found(folder, profile="mxa", sets=["params.beams=5"])) == 1  # max may have been meant
    sets = ["space.lr=null", "params.lr=0.1", "enqueue=[]"]
    assert load.load_job(folder, sets=sets).params["lr"] == 0.1
    assert load.load_job(folder, profile="max", sets=["params.layers=2"]).params["layers"] == 2  # max took it out
    ((field, _, _, message),) = found(folder, sets=["params.lr=0.1"])
    assert (field, message) == (
        "params.lr",
        "is searched, and what is drawn wins; --set space.lr=null removes it from the space",
    )


def test_flags_are_named(folder: Path) -> None:
    assert found(folder, overrides={"trials": 0})[0][:3] == ("trials", "--trials", 0)
    assert found(folder, overrides={"budget.time": load.Flag("x", "--time")})[0][:3] == ("budget.time", "--time", 0)
    assert load.load_job(folder, overrides={"trials": None}).trials == 24


def test_environment(folder: Path) -> None:
    environ = {"HPO_EPOCHS": " 7", "HPO_MODEL_CHOICES": "bert,microsoft/deberta-v3-base", "TRIALS": "1"}
    job = load.load_job(folder, environ=environ)
    assert job.params["epochs"] == 7 and job.trials == 24
    assert job.search.parameters["model"].choices == ("bert", "microsoft/deberta-v3-base")  # type: ignore[union-attr]
    assert load.load_job(folder, environ={"HPO_EPOCHS": ""}).params["epochs"] == 3
    assert found(folder, environ={"HPO_EPOCHS": "abc"}) == [
        ("params.epochs", "HPO_EPOCHS", 0, "must be a number like 3, not 'abc'")
    ]


def test_narrowing_choices_leaves_conditions_alone_but_not_points(folder: Path) -> None:
    environ = {"HPO_MODEL_CHOICES": "roberta"}
    [(field, _, line, message)] = found(folder, environ=environ)
    assert (field, line) == ("enqueue.0.model", 14) and "by HPO_MODEL_CHOICES" in message
    assert "heads" in load.load_job(folder, environ=environ, sets=["enqueue=[]"]).search.parameters


def test_fixed_parameters_leave_the_space(folder: Path) -> None:
    job = load.load_job(folder, params={"model": "roberta", "layers": 2, "epochs": 9})
    assert set(job.search.parameters) == {"lr"}  # heads existed with bert only
    assert job.params["model"] == "roberta" and job.params["layers"] == 2 and job.params["epochs"] == 9
    assert job.enqueue == ()
    job = load.load_job(folder, params={"model": "bert"})
    assert job.search.parameters["heads"].when == {} and job.enqueue == ({"lr": 0.001},)
    assert load.load_job(folder, params={"lr": 1.0, "model": "bert", "layers": 1, "heads": 2}).search.parameters == {}
    assert found(folder, params={"modle": 1})[0][:2] == ("modle", "--params")


def test_complaints_after_dropped_points_keep_their_lines(folder: Path) -> None:
    text = GOOD.replace("  - {lr: 0.001, model: bert}", "  - {model: bert}\n  - {model: roberta}\n  - {lr: 7}")
    (folder / "job.yaml").write_text(text)
    assert found(folder, params={"model": "roberta"})[0][:3] == ("enqueue.0.lr", "jobs/demo/job.yaml", 16)


def test_a_point_of_an_empty_space_is_near_to_nothing(folder: Path) -> None:
    (folder / "job.yaml").write_text("kind: hpo\nobjective: {metric: f1, direction: maximize}\nenqueue: [{lr: 1}]\n")
    assert [(field, message) for field, _, _, message in found(folder)] == [
        ("enqueue.0.lr", "there is no parameter 'lr' in the space")
    ]


# Finding


def test_find_job(folder: Path) -> None:
    root = folder.parent.parent
    (root / "a" / "b").mkdir(parents=True)
    assert load.find_job("demo", root) == folder
    assert load.find_job("demo", root / "a" / "b") == folder
    assert load.find_job("jobs/demo", root).samefile(folder)
    assert load.find_job("jobs/demo/job.yaml", root).samefile(folder)
    assert load.find_job(str(folder), Path("/")) == folder
    assert load.find_job(".", folder).samefile(folder)
    (folder / "a" / "b").mkdir(parents=True)
    with pytest.raises(errors.JobNotFound, match=rf"no job '\.': .*; {folder} is a job: write \.\./\.\. in place of \."):
        load.find_job(".", folder / "a" / "b")
    with pytest.raises(errors.JobNotFound, match=r"no job 'dmo': looked at .*jobs/dmo/job.yaml.*did you mean demo"):
        load.find_job("dmo", root)
    with pytest.raises(errors.JobNotFound, match="platform init"):
        load.find_job("demo", Path("/"))
    with pytest.raises(errors.JobNotFound, match=r"^there is no script \./trian\.py; did you mean train\.py\?$"):
        load.find_job("./trian.py", folder)
    with pytest.raises(
        errors.JobNotFound, match=r"train\.py is a file and no job; `platform init --from train\.py` makes one"
    ):
        load.find_job("train.py", folder)
    with pytest.raises(errors.JobNotFound, match=r"is a command and no job; `platform init --from 'make fit'` makes one"):
        load.find_job("make fit", folder)
    (folder / "svm-train").write_bytes(b"\x7fELF\0")
    (folder / "svm-train").chmod(0o755)
    remedy = r"`platform init --from '\./svm-train ARGUMENTS'` makes one, with the arguments that you type today"
    for name in ("svm-train", "./svm-train"):
        with pytest.raises(errors.JobNotFound, match=rf"^{name} is a program and no job; {remedy}"):
            load.find_job(name, folder)
    (folder / "svm-train").chmod(0o644)
    with pytest.raises(errors.JobNotFound, match="svm-train is a file and no job"):
        load.find_job("svm-train", folder)
    (folder / "odd.py").mkdir()
    (folder / "odd.py" / "job.yaml").write_text("kind: hpo\n")
    assert load.find_job("./odd.py", folder).samefile(folder / "odd.py")


def test_a_folder_name_becomes_a_jobs_name(folder: Path) -> None:
    assert load.load_job(folder.rename(folder.with_name("My Job.v2"))).name == "my-job-v2"
