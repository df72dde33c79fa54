"""The objective of the search that a script starts, without the rest of that search.

hyperopt is a double with the structure of its expressions. Checked by hand with the real libraries: hyperopt,
scikit-optimize, bayesian-optimization, keras-tuner and `OptunaSearchCV`.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import optuna
import pytest

from trialplane.integrations import drawing
from trialplane.integrations.searches import objective_of
from trialplane.worker import context

SCRIPT = """
import sys
import optuna
from optuna import create_study

def objective(trial, high):
    return trial.suggest_float("x", 0, high) * scale

def main():
    {assigned}
    study = {created}
    study.enqueue_trial({{"x": 0.5}})
    try:
        study.optimize({passed}, n_trials=9)
    except Exception:
        raise SystemExit(3)
    open("searched", "w")

if __name__ == "__main__":
    scale = len(sys.argv)
    main()
"""


@pytest.mark.parametrize(
    ("passed", "created"),
    [
        ("lambda trial: objective(trial, high)", "create_study(storage='sqlite:///none/a.db')"),
        ("__import__('functools').partial(objective, high=high)", "optuna.load_study(study_name='x', storage='none')"),
        ("func=lambda trial: objective(trial, high)", "optuna.study.create_study()"),
    ],
)
def test_the_objective_has_what_the_script_gives_it(tmp_path: Path, passed: str, created: str) -> None:
    (tmp_path / "search.py").write_text(SCRIPT.format(assigned="high = 4", created=created, passed=passed))
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    objective = objective_of(str(tmp_path / "search.py"))
    assert objective(optuna.trial.FixedTrial({"x": 3.0})) == 3.0
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    assert not Path("searched").exists()
    assert isinstance(optuna.create_study(), optuna.Study), "as before, outside of the script"


@pytest.mark.parametrize("functions", ["optuna", "optuna.study"])
def test_the_studies_of_the_user_are_as_before(tmp_path: Path, functions: str) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    optuna.create_study(study_name="own", storage=url).add_trial(optuna.trial.create_trial(value=1.0))
    (tmp_path / "search.py").write_text(
        f"import optuna\n{functions}.copy_study(from_study_name='own', from_storage='{url}', to_storage='{url}', "
        f"to_study_name='copy')\n{functions}.delete_study(study_name='own', storage='{url}')\n"
        f"optuna.create_study(study_name='own', storage='{url}').optimize(lambda trial: 1)\n"
    )
    objective_of(str(tmp_path / "search.py"))
    assert optuna.get_all_study_names(url) == ["own"]
    assert len(optuna.load_study(study_name="own", storage=url).trials) == 1


def test_a_script_without_a_search_has_no_objective(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(textwrap.dedent("x = 1\n"))
    with pytest.raises(LookupError, match="ended without starting a search"):
        objective_of(str(tmp_path / "search.py"))


def test_the_script_has_its_arguments_and_runs_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own" / "tuning"
    package.mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("7")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "bounds.py").write_text("LOW = 2\n")
    (package / "__init__.py").write_text("")
    (package / "more.py").write_text("HIGH = 5\n")
    (package / "search.py").write_text(
        "import sys, optuna, bounds\nfrom pathlib import Path\nfrom .more import HIGH\n"
        "rows, number = Path('rows.csv'), int(sys.argv[1])\nfirst = rows.read_text()\n"
        "optuna.create_study().optimize(lambda trial: (number, HIGH, bounds.LOW, rows.read_text(), first))\n"
    )
    monkeypatch.setenv("NUMBER", "0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "own")])
    objective = objective_of(
        str(package / "search.py"), arguments=["1$NUMBER"], folder=str(tmp_path), path=[str(tmp_path / "lib")]
    )
    assert objective(optuna.trial.FixedTrial({})) == (10, 5, 2, "7", "7")


def test_a_trial_runs_in_its_own_copy_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, copy = tmp_path / "code", tmp_path / "copy"
    for folder in (code, copy):
        (folder / "own").mkdir(parents=True)
        (folder / "own" / "rows.csv").write_text(folder.name)
    (code / "own" / "search.py").write_text(
        "import optuna\nfrom pathlib import Path\n"
        "optuna.create_study().optimize(lambda trial: Path('rows.csv').read_text())\n"
    )
    (code / "module.py").write_text(
        "from trialplane.integrations.searches import objective_of\nobjective = objective_of('own/search.py')\n"
    )
    monkeypatch.syspath_prepend(code)
    objective = importlib.import_module("module").objective
    monkeypatch.delitem(sys.modules, "module")
    assert objective(optuna.trial.FixedTrial({})) == "code"
    monkeypatch.chdir(copy)
    trial = context.Context({}, 0, "toy", 0, 1, 1, 0, code, code, copy, lambda *_: False, 0, 0, 1, "")
    with context.activate(trial):
        assert objective(optuna.trial.FixedTrial({})) == "copy"


GRID = """
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import {cls}
from sklearn.svm import SVC
from sklearn.pipeline import Pipeline
import numpy as np
from scipy import stats

x = np.arange(40.0).reshape(20, 2)
{cls}(Pipeline([("model", SVC())]), {space}, cv=2, scoring=["accuracy", "f1"], refit="f1").fit(x, np.arange(20) % 2)
raise SystemExit("the search has started")
"""


@pytest.mark.parametrize(
    ("cls", "space", "point"),
    [
        (
            "GridSearchCV",
            '{"model": [SVC(), LogisticRegression()], "model__C": [1, 10]}',
            {"model": "SVC()", "model__C": 10},
        ),
        ("GridSearchCV", '{"model__C": (40, 1), "model__degree": (2, 5, 3)}', {"model__C": 1, "model__degree": 3}),
        ("GridSearchCV", '[{"model__C": [1]}, {"model__kernel": ["rbf", "poly"]}]', {"space": 1, "1.model__kernel": "rbf"}),
        (
            "RandomizedSearchCV",
            '{"model__C": stats.loguniform(1e-3, 10), "model__degree": stats.randint(2, 5), "model__gamma": stats.expon()}',
            {"model__C": 1e-3, "model__degree": 4, "model__gamma_quantile": 0.5},
        ),
    ],
)
def test_a_search_of_scikit_learn_fits_one_model(tmp_path: Path, cls: str, space: str, point: dict[str, Any]) -> None:
    (tmp_path / "search.py").write_text(GRID.format(cls=cls, space=space))
    objective = objective_of(str(tmp_path / "search.py"))
    scores = [objective(optuna.trial.FixedTrial(point)) for _ in range(2)]
    assert scores[0] == scores[1] and 0 <= scores[0] <= 1


HYPEROPT = """
class Node:
    def __init__(self, name, *pos_args, obj=None, **named_args):
        self.name, self.obj, self.o_len = name, obj, None
        self.pos_args, self.named_args = pos_args, [[key, value] for key, value in named_args.items()]

def fmin(fn, space, algo=None, max_evals=None):
    raise SystemExit("the search has started")

def literal(value):
    return Node("literal", obj=value)

def param(label, kind, *bounds, **named):
    named = {key: literal(value) for key, value in named.items()}
    return Node("hyperopt_param", literal(label), Node(kind, *map(literal, bounds), **named))

def choice(label, *options):
    return Node("switch", param(label, "randint", len(options)), *options)
"""
SPACE = """
from math import log
from hyperopt import Node, choice, fmin, literal, param
space = {
    "opt": choice("opt", literal("sgd"), literal("adam")),
    "net": choice("net", Node("dict", width=param("width", "quniform", 16, 64, q=16)), Node("dict", depth=literal(2))),
    "lr": param("lr", "loguniform", log(1e-4), log(1e-1)),
    "noise": param("noise", "normal", 0, 1),
    "seed": 3,
}
fmin(lambda config: {"loss": config["lr"], "status": "ok", "config": seen.append(config)}, space, max_evals=9)
""".replace("from math", "seen = []\nfrom math")


def test_a_space_of_hyperopt_is_drawn_by_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hyperopt.py").write_text(HYPEROPT)
    (tmp_path / "search.py").write_text(SPACE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective_of(str(tmp_path / "search.py")), n_trials=20)
    monkeypatch.delitem(sys.modules, "hyperopt")
    points = [trial.params for trial in study.trials]
    assert {point["opt"] for point in points} == {"sgd", "adam"} and all(1e-4 <= point["lr"] <= 0.1 for point in points)
    assert all(("width" in point) == (point["net"] == 0) for point in points), "of the chosen part alone"
    assert {point.get("width") for point in points} == {None, 16, 32, 48, 64}
    assert all(abs(point["noise"]) <= 3 for point in points) and study.best_value == study.best_params["lr"]


class Option:
    """A choice whose text has its address, which differs between processes."""


def test_choices_have_the_same_text_in_each_process() -> None:
    trial = optuna.create_study().ask()
    assert drawing.draw_choice(trial, "x", [Option(), print]) is not None
    assert "0x" not in str(trial.params)


@pytest.mark.parametrize(
    ("domain", "low"), [((1, 9), 1), ((1, 9, "uniform"), 1), ((1, 20, 40), None), ((True, False), None)]
)
def test_a_tuple_with_two_bounds_is_a_range(domain: tuple[Any, ...], low: int | None) -> None:
    trial = optuna.create_study().ask()
    assert drawing.draw_value(trial, "x", domain) in (range(1, 10) if low else domain)
    assert getattr(trial.distributions["x"], "low", None) == low
