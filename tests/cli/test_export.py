"""`platform export`: a run here, and one on a cluster, as a study that Optuna opens, by the program that the verb starts.

Not checked here: every state and value of a trial, on both databases (tests/contracts/test_ledger_optuna.py).
"""

from __future__ import annotations

import subprocess

import optuna
import pytest
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from tests.client.conftest import complete, failed

from trialplane.client import exporting
from trialplane.client.run import RunHandle, submit
from trialplane.ledger import results
from trialplane.wire.records import ReportRow, TrialRow
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.slow

OPTUNA_STATES = {
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.LOST: OptunaState.FAIL,
    TrialState.RUNNING: OptunaState.RUNNING,
}


def end(request):
    """Ends trials in several ways, and leaves the last one running."""
    if request.trial == 1:
        return failed(request)
    if request.trial == 2 and request.attempt == 1:
        return failed(request, FailureClass.LOST)
    return None if request.trial == 5 else complete(request)


def assert_same(trials: list[FrozenTrial], rows: list[TrialRow]) -> None:
    assert [trial.number for trial in trials] == [row.number for row in rows]
    for trial, row in zip(trials, rows, strict=True):
        assert trial.state is OPTUNA_STATES[row.state]
        assert trial.params == row.params
        assert tuple(trial.values or ()) == row.values
        assert trial.distributions["lr"] == optuna.distributions.FloatDistribution(0.0, 1.0)
        assert trial.user_attrs["trial"] == row.trial
        assert {type(value) for value in trial.user_attrs.values()} <= {str, int, float}
        assert trial.datetime_start is not None
        assert (trial.datetime_complete is None) == (row.state is TrialState.RUNNING)


def test_a_run_here_is_a_study(platform, runs, workplace):
    runs.make("a", tell=end, asks=7)
    done = platform("export", "a", "sqlite:///study.db", "--local")
    assert done.exit_code == 0, done.stderr
    study = optuna.load_study(study_name="a", storage=f"sqlite:///{workplace}/study.db")
    rows = RunHandle("a", runs.target).attempts()
    assert len(rows) == 7
    assert_same(study.get_trials(), rows)
    assert (study.metric_names, [way.name for way in study.directions]) == (["loss"], ["MINIMIZE"])
    assert study.user_attrs["job"] == "demo"
    assert {type(value) for value in study.user_attrs.values()} == {str}


@pytest.mark.parametrize("active", [(True, False), (False, True)], ids=["ends", "begins"])
def test_while_a_controller_ends_or_begins_nothing_counts_as_lost(runs, monkeypatch, active):
    runs.make("a", tell=end, asks=7)
    answers = iter(active)
    monkeypatch.setattr(type(runs.target), "is_active", lambda target, run: next(answers))
    assert runs.target.attempts("a", 0)[1]


def test_a_study_of_that_name_is_left_alone(platform, runs, workplace):
    runs.make("a", tell=complete)
    other = optuna.create_study(study_name="a", storage=f"sqlite:///{workplace}/study.db")
    other.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=1)
    done = platform("export", "a", "sqlite:///study.db")
    assert done.exit_code == 2
    assert "there is a study a in sqlite:///study.db already; nothing was written" in done.stderr
    assert len(optuna.load_study(study_name="a", storage=f"sqlite:///{workplace}/study.db").trials) == 1
    runs.make("b", tell=complete)
    assert platform("export", "b", "sqlite:///study.db").exit_code == 0, "another study may be beside it"


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("study.db", 2, "study.db is not the URL of a database; for a file it is sqlite:///study.db"),
        ("sqlite:////none/such/study.db", 2, "there is no folder /none/such for study.db; create it, or export elsewhere"),
        ("sqlite+pysqlite:///such/study.db", 2, "there is no folder such for study.db"),
        ("sqlite:////dev", 3, "unable to open database file; nothing of the study is in it"),
        ("mysql+nodriver://ann:s3cret@x/y", 3, "mysql+nodriver://ann:***@x/y cannot be written"),
        ("postgresql+pg8000://ann:s3cret@x/y", 2, "postgresql+pg8000://ann:***@x/y cannot be opened: No module named"),
    ],
)
def test_a_url_that_leads_nowhere(platform, runs, url, code, said):
    runs.make("a", tell=complete)
    done = platform("export", "a", url)
    assert (done.exit_code, said in done.stderr, "s3cret" in done.stderr) == (code, True, False), done.stderr


def test_a_missing_folder_is_told_before_anything_starts(platform, runs, monkeypatch):
    runs.make("a", tell=complete)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: pytest.fail(f"{words} was started"))
    monkeypatch.setattr(type(runs.target), "attempts", lambda *_: pytest.fail("the attempts were read"))
    assert platform("export", "a", "sqlite:///none/study.db").exit_code == 2


def test_other_users_do_not_see_the_password_and_no_file_here_is_imported(platform, runs, workplace, monkeypatch):
    runs.make("a", tell=complete)
    (workplace / "optuna.py").write_text("raise SystemExit('not the library')")
    commands = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **given: commands.append(command) or run(command, **given))
    assert platform("export", "a", "sqlite:///study.db").exit_code == 0
    assert not [word for command in commands for word in command if "study.db" in word]


def test_without_optuna_it_says_what_to_install(platform, runs, monkeypatch):
    runs.make("a", tell=complete)
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    done = platform("export", "a", "sqlite:///study.db")
    assert (done.exit_code, "optuna cannot be found; pip install 'trialplane[local]'" in done.stderr) == (2, True)


def test_a_run_on_a_cluster_comes_through_the_gateway(platform, runs, target, namespace, planned, workplace):
    run = runs.make("here", tell=end, asks=7)
    submit(target, planned("a"))
    namespace.studies["a"].whole = results.attempts_since(run.ledger, "here", True, 0)
    namespace.studies["a"].rows = RunHandle("here", runs.target).attempts()
    namespace.studies["a"].curves = [
        ReportRow(mark, 0, 1, 0, step, {"loss": 1.0 / mark}, 1.0) for mark, step in enumerate(range(250), 1)
    ]
    done = platform("export", "a", "sqlite:///study.db", "--context", "lab")
    assert done.exit_code == 0, done.stderr
    trials = optuna.load_study(study_name="a", storage=f"sqlite:///{workplace}/study.db").get_trials()
    assert_same(trials[:-1], namespace.studies["a"].rows[:-1])
    assert trials[0].intermediate_values == {step: 1.0 / (step + 1) for step in range(250)}, "of several pages"
    assert trials[-1].state is OptunaState.RUNNING, "its controller lives"


def test_a_run_on_a_cluster_that_has_not_begun_is_a_study_without_trials(platform, target, namespace, planned, workplace):
    submit(target, planned("a"))
    done = platform("export", "a", "sqlite:///study.db", "--context", "lab")
    assert done.exit_code == 0, done.stderr
    assert optuna.load_study(study_name="a", storage=f"sqlite:///{workplace}/study.db").get_trials() == []
