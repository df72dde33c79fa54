"""The fields of a job that the text of a script with a search by Optuna or another library shows.

Not checked here: the job and its trials (tests/cli/test_script_styles.py).
"""

from __future__ import annotations

import textwrap

import pytest

from trialplane.importing import script

OBJECTIVE = """
import optuna
def objective(trial): return trial.suggest_float("x", 0, 1)
"""


def read(text: str, *arguments: str) -> script.Script:
    """The facts that the text of a script shows."""
    return script.read(textwrap.dedent(text), "fit.py", given_arguments=arguments)


STUDIES = {
    "from settings import WAY\nstudy = optuna.create_study(direction=WAY)": None,
    "import sys\nstudy = optuna.create_study(direction='maximize' if sys.argv else 'minimize')": None,
    "study = optuna.load_study(study_name='s', storage='sqlite:///s.db')": None,
    "from settings import options\nstudy = optuna.create_study(**options)": None,
    "study = optuna.create_study(direction='maximize') if input() else optuna.create_study()": None,
    "options = {'direction': 'maximize'}\nstudy = optuna.create_study(**options)": ["maximize"],
    "WAYS = ['maximize', 'minimize']\nstudy = optuna.create_study(directions=WAYS)": ["maximize", "minimize"],
    "def earlier(): return optuna.create_study(direction='maximize')\nstudy = optuna.create_study()": ["minimize"],
    "def earlier(): study = optuna.create_study()\nstudy = optuna.create_study(direction='maximize')": ["maximize"],
    "try: study = optuna.load_study()\nexcept KeyError: study = optuna.create_study(direction='maximize')": ["maximize"],
    "study = optuna.create_study(direction=None)": ["minimize"],
}


@pytest.mark.parametrize("text", STUDIES)
def test_the_directions_are_those_of_the_study_that_is_optimized_or_noted_as_unknown(text: str) -> None:
    search = read(f"{OBJECTIVE}{text}\nstudy.optimize(objective, n_trials=3)")
    objectives = search.search.get("objectives") or [search.search["objective"]]
    assert [objective["direction"] for objective in objectives] == (STUDIES[text] or ["minimize"])
    assert any(note.startswith("direction: ") for note in search.notes) == (STUDIES[text] is None)


TUNERS = {
    "kt.Objective(METRIC, 'max')": ("val_loss", "maximize", True),
    "kt.Objective('val_f1', WAY)": ("val_f1", "minimize", True),
    "METRIC": ("val_loss", "minimize", True),
    "['val_f1', 'val_loss']": ("val_loss", "minimize", True),
    "'val_accuracy'": ("val_accuracy", "maximize", False),
    "None": ("val_loss", "minimize", False),
}


@pytest.mark.parametrize("objective", TUNERS)
def test_the_objective_of_a_keras_tuner_is_read_or_noted_as_unknown(objective: str) -> None:
    text = f"import keras_tuner as kt\nfrom settings import METRIC, WAY\nkt.RandomSearch(build, objective={objective})\n"
    search = read(text)
    metric, direction, is_noted = TUNERS[objective]
    assert search.search["objective"] == {"metric": metric, "direction": direction}
    assert any(note.startswith("objective: ") for note in search.notes) == is_noted


def test_a_search_that_needs_an_option_is_not_the_job_without_it() -> None:
    text = """
    import argparse
    from sklearn.model_selection import GridSearchCV
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--tune", action="store_true")
    args = parser.parse_args()
    if args.tune:
        GridSearchCV(None, {"C": [1, 2]}).fit([[1]], [1])
    print(f"loss={args.rate}")
    """
    assert read(text).style is script.Style.PARSED
    assert read(text, "--tune").style is script.Style.STUDY


SHORT = """
import argparse
import optuna
parser = argparse.ArgumentParser()
parser.add_argument("-n", "--n-trials", type=int, default=7)
args = parser.parse_args()
study = optuna.create_study()
study.optimize(objective, n_trials=args.n_trials)
"""


@pytest.mark.parametrize("words", [("-n", "5"), ("-n=5",), ("-n5",), ("--n-trials", "5"), ("--n-trials=5",)])
def test_a_short_flag_sets_the_number_of_trials(words: tuple[str, ...]) -> None:
    assert read(SHORT).search["trials"] == 7
    assert read(SHORT, *words).search["trials"] == 5


def test_a_number_that_the_script_adds_to_is_unknown() -> None:
    text = "import optuna\nn = 7\nn += 1\noptuna.create_study().optimize(objective, n_trials=n)"
    assert any(note.startswith("n_trials: ") for note in read(text).notes)


def test_the_dicts_of_a_grid_may_be_computed() -> None:
    text = """
    from sklearn.model_selection import GridSearchCV
    rate = 3
    grid = [{"C": [rate, 2], "weight": [{0: rate}, None]} for rate in (1, 2)]
    GridSearchCV(None, grid).fit([[1]], [1])
    """
    assert read(text).search["trials"] == 8


ODD = {
    "infinite": "study.optimize(objective, timeout=float('inf'))",
    "huge": "study.optimize(objective, timeout=1e400)",
    "no key": "study.enqueue_trial({[1]: 2})\nstudy.optimize(objective)",
    "None": "study.enqueue_trial({None: 1})\nstudy.optimize(objective)",
    "itself": "d = {'a': d}\nstudy.enqueue_trial(d)\nstudy.optimize(objective)",
    "each other": "B = C if C else B\nC = B if B else C\nstudy.optimize(objective, n_trials=B)",
    "conditions": "\n".join(f"v{i} = v{i + 1} if v{i + 1} else v{i + 1}" for i in range(40))
    + "\nv40 = 1\nstudy.optimize(objective, n_trials=v0)",
    "dicts": "\n".join(f"d{i} = {{'a': d{i + 1}, 'b': d{i + 1}}}" for i in range(40))
    + "\nd40 = 1\nstudy.enqueue_trial(d0)\nstudy.optimize(objective)",
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.timeout(600)
def test_odd_values_of_a_study_are_unknown(name: str) -> None:
    search = read(f"{OBJECTIVE}study = optuna.create_study()\n{ODD[name]}").search
    assert search["entrypoint"] == "optuna:fit:objective"
    assert not {"budget", "enqueue"} & set(search)
