"""The objective that a script passes to `study.optimize`, without the rest of its search."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import optuna
import pytest

from trialplane.integrations.optuna import objective_of

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
    before = (sys.argv, list(sys.path), sys.modules["__main__"], optuna.create_study, optuna.study.load_study)
    objective = objective_of(str(tmp_path / "search.py"))
    assert objective(optuna.trial.FixedTrial({"x": 3.0})) == 3.0
    assert (sys.argv, sys.path, sys.modules["__main__"], optuna.create_study, optuna.study.load_study) == before
    assert not Path("searched").exists()


def test_a_script_without_a_search_has_no_objective(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(textwrap.dedent("x = 1\n"))
    with pytest.raises(LookupError, match=r"ended without a call of study\.optimize"):
        objective_of(str(tmp_path / "search.py"))
