"""An objective of Optuna as entrypoint: what may stand beside it.

Not checked here: how they run (tests/worker), what a job may hold besides (test_job.py).
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialplane.errors import SpecError
from trialplane.job import load, program
from trialplane.job.kinds import Job

CODE = """
import optuna

def objective(trial):
    return trial.suggest_float("x", 0, 1)

if __name__ == "__main__":
    optuna.create_study().optimize(objective, n_trials=3)
"""
OPTUNA = {
    "kind": "hpo",
    "entrypoint": "optuna:study:objective",
    "objective": {"metric": "loss", "direction": "minimize"},
}


def loaded(folder: Path, fields: dict[str, Any], code: str = CODE) -> Job:
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy" / "study.py").write_text(code)
    (folder / "toy" / "job.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    return load.load_job(folder / "toy")


def complaints(folder: Path, fields: dict[str, Any], code: str = CODE) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loaded(folder, fields, code)
    return [f"{'.'.join(map(str, issue.field_path))}: {issue.message}" for issue in caught.value.issues]


def test_the_style_is_told_from_the_function() -> None:
    assert program.split_style("optuna:study:objective") == ("optuna", "study:objective")
    assert program.split_style("a.b:c") == ("", "a.b:c")
    assert program.split_style("optuna:objective") == ("", "optuna:objective"), "a module may have that name"


RAY = {**OPTUNA, "entrypoint": "ray:study:objective", "space": {"opt.lr": {"type": "float", "low": 0, "high": 1}}}


def test_a_function_of_ray_tune_has_the_jobs_space(tmp_path: Path) -> None:
    code = "def objective(config): ...\ntune.Tuner(objective).fit()\n"
    job = loaded(tmp_path, {**RAY, "params": {"opt": {"name": "sgd"}, "epochs": 3}}, code)
    assert (job.search.suggests, list(job.search.names)) == (False, ["opt.lr"])
    params = {**job.params, "opt.lr": 0.5}
    assert program.nested_config(params) == {"opt": {"name": "sgd", "lr": 0.5}, "epochs": 3}
    assert job.params["opt"] == {"name": "sgd"}, "a trial's config is its own"


@pytest.mark.parametrize(
    ("fields", "code", "found"),
    [
        ({"params": {"opt": "sgd"}}, "objective(config)", "but opt is one value, and opt.lr would be a part of it"),
        ({}, "objective(config, data)", "takes config, data, but is called with config"),
        ({"ranks": 2}, "objective(config)", "is called in one process, and a trial has 2 ranks"),
        ({"kind": "train"}, "objective(config)", "is called with what a search draws"),
    ],
)
def test_what_does_not_fit_a_function_of_ray_tune_is_said(
    tmp_path: Path, fields: dict[str, Any], code: str, found: str
) -> None:
    assert any(found in text for text in complaints(tmp_path, {**RAY, **fields}, f"def {code}: ...\n"))


def test_a_class_that_is_no_trainable_of_ray_tune_is_refused(tmp_path: Path) -> None:
    assert loaded(tmp_path, RAY, "from ray import tune\nclass objective(tune.Trainable): ...\n")
    (found,) = complaints(tmp_path, RAY, "class objective: ...\n")
    assert "objective is a class without a base; write a function(config)" in found


def test_an_objective_defines_its_parameters(tmp_path: Path) -> None:
    job = loaded(tmp_path, {**OPTUNA, "enqueue": [{"x": 0.5, "any": "thing"}], "params": {"epochs": 3}})
    assert (job.search.suggests, job.search.is_code, dict(job.search.parameters)) == (True, True, {})


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"space": {"x": {"type": "float", "low": 0, "high": 1}}}, "space: stands beside an objective of Optuna"),
        ({"sampler": "grid"}, "sampler: grid needs the space in the job file"),
        ({"resources": {"gpus": 2}}, "entrypoint: is called in one process, and a trial has 2 ranks; write ranks: 1"),
        ({"nodes": 2}, "write ranks: 1 and drop nodes"),
        ({"entrypoint": "optuna:study:objectiv"}, "entrypoint: study.py defines no objectiv; did you mean"),
        ({"entrypoint": "study:run"}, "study.py defines no run; write entrypoint: optuna:study:objective for an objective"),
        ({"entrypoint": "vizier:study:objective"}, "must be module:function"),
        ({"script": "study.py"}, "entrypoint: stands beside script"),
    ],
)
def test_what_does_not_fit_an_objective_is_said_at_its_field(tmp_path: Path, fields: dict[str, Any], found: str) -> None:
    assert any(found in text for text in complaints(tmp_path, {**OPTUNA, **fields}))


@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        (
            """
            booster = trial.suggest_categorical("booster", ["tree", "dart"]), trial.suggest_int(name="depth", low=1, high=9)
            trial.suggest_float("eta", 0, 1), trial.suggest_float("x", 0, 1)
            trial.suggest_categorical("size", choices=sizes)
            """,
            'fix the others in job.yaml, as `params: {booster: "tree", depth: …, size: …}`',
        ),
        (
            """
            trial.suggest_categorical("model: big", (True, False)), trial.suggest_categorical("n", [None, 3])
            trial.suggest_int(x, 1, 9)
            """,
            'as `params: {"model: big": true, n: …, NAME: VALUE}`',
        ),
        ('trial.suggest_categorical("width", [0.5, 2])', "as `params: {width: 0.5}`"),
        ('trial.suggest_float("eta", 0, 1)', "drop it, and for other ranges, change those in the code"),
        ("", "as `params: {NAME: VALUE}`"),
    ],
)
def test_the_parameters_to_fix_are_named_beside_a_space(tmp_path: Path, calls: str, advice: str) -> None:
    """Those whose names the text of the module shows, with the first choice of those with choices."""
    space = {"space": {"x": {"type": "float", "low": 0, "high": 1}, "eta": {"type": "float", "low": 0, "high": 1}}}
    code = f"def objective(trial):\n    pass\n{textwrap.indent(textwrap.dedent(calls), '    ')}\n"
    (found,) = complaints(tmp_path, {**OPTUNA, **space}, code)
    assert found.endswith(advice)


@pytest.mark.parametrize("sampler", ["bruteforce", {"name": "cmaes", "x0": {"x": 0.5}}, "gp", "nsgaii"])
def test_samplers_that_need_no_space_in_the_file_are_taken(tmp_path: Path, sampler: Any) -> None:
    assert loaded(tmp_path, {**OPTUNA, "sampler": sampler}).search.suggests


def test_a_training_has_nothing_drawn(tmp_path: Path) -> None:
    (found,) = complaints(tmp_path, {**OPTUNA, "kind": "train"})
    assert found.startswith("entrypoint: is called with what a search draws")


@pytest.mark.parametrize(
    "more", ["study = optuna.create_study()\nstudy.optimize(objective)", "if True:\n    make().optimize(objective)"]
)
def test_a_module_that_would_start_its_own_search_is_refused(tmp_path: Path, more: str) -> None:
    (found,) = complaints(tmp_path, OPTUNA, f"{CODE}\n{more}\n")
    assert 'put it below `if __name__ == "__main__":`' in found
    assert "would start a search of its own when study.py is imported" in found


MAIN = 'if __name__ == "__main__":\n    import json\n    data, other = [1], 2\n    objective(None)\n'


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("return trial.suggest_float('x', 0, 1) * data[0]", "data"),
        ("return help(trial)", "other"),
        ("return float(json.loads('1'))", "json"),
        ("data = [2]\n    return data[0]", ""),
        ("import json\n    return float(json.loads('1'))", ""),
        ("return sum(other for other in (1, 2)) + (lambda data: data)(1)", ""),
        ("def inner():\n        import json\n        return json.loads('1')\n    return inner()", ""),
        ("try:\n        return 1 / 0\n    except ZeroDivisionError as other:\n        return len(other.args)", ""),
        ("match [1]:\n        case [data]:\n            return data", ""),
        ("try:\n        return data[0]\n    except NameError:\n        return 1", ""),
        ("def inner():\n        return data\n    return inner()", "data"),
    ],
)
def test_a_name_that_only_a_run_as_a_script_sets_is_told(tmp_path: Path, line: str, lacks: str) -> None:
    code = f"import optuna\ndef help(trial):\n    return other\ndef objective(trial):\n    {line}\n{MAIN}"
    if not lacks:
        assert loaded(tmp_path, OPTUNA, code)
        return
    (found,) = complaints(tmp_path, OPTUNA, code)
    assert f"objective reads {lacks}, which study.py sets only when it is run itself" in found


def test_a_name_of_a_loop_of_the_module_is_not_missed(tmp_path: Path) -> None:
    code = f"import optuna\nfor data in [[1]]:\n    pass\ndef objective(trial):\n    return data[0]\n{MAIN}"
    assert loaded(tmp_path, OPTUNA, code)


def test_an_argument_of_another_name_is_fine_and_a_second_one_is_not(tmp_path: Path) -> None:
    assert loaded(tmp_path, OPTUNA, CODE.replace("objective(trial)", "objective(t)").replace("trial.sug", "t.sug"))
    (found,) = complaints(tmp_path, OPTUNA, CODE.replace("objective(trial)", "objective(trial, data)"))
    assert "takes trial, data, but is called with trial" in found
