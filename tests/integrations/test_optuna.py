"""The objective that a script passes to `study.optimize`, without the rest of its search."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import optuna
import pytest

from trialplane.integrations.optuna import objective_of
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
    before = (sys.argv, list(sys.path), sys.modules["__main__"], optuna.create_study, optuna.study.load_study)
    objective = objective_of(str(tmp_path / "search.py"))
    assert objective(optuna.trial.FixedTrial({"x": 3.0})) == 3.0
    assert (sys.argv, sys.path, sys.modules["__main__"], optuna.create_study, optuna.study.load_study) == before
    assert not Path("searched").exists()


def test_a_script_without_a_search_has_no_objective(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(textwrap.dedent("x = 1\n"))
    with pytest.raises(LookupError, match=r"ended without a call of study\.optimize"):
        objective_of(str(tmp_path / "search.py"))


def test_each_trial_has_a_copy_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    for name in ("rows.csv", "data/more.csv"):
        (code / name).write_text("1")
    (code / "search.py").write_text(
        "import os, optuna\ndef objective(trial):\n    for name in ('rows.csv', 'data/more.csv'):\n"
        "        with open(name, 'a') as file: file.write('2')\n    return os.path.getsize('rows.csv')\n"
        "optuna.create_study().optimize(objective)\n"
    )
    objective = objective_of(str(code / "search.py"))
    for number in range(2):
        workdir = tmp_path / f"trial-{number}"
        workdir.mkdir()
        monkeypatch.chdir(workdir)
        trial = context.Context({}, number, "toy", 0, 1, 1, 0, code, code, workdir, lambda *_: False, 0, 0, 1, "")
        with context.activate(trial):
            assert objective(optuna.trial.FixedTrial({})) == 2
        assert (workdir / "data" / "more.csv").read_text() == "12"
    assert [(code / name).read_text() for name in ("rows.csv", "data/more.csv")] == ["1", "1"]
