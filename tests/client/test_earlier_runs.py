"""Earlier runs that a new study learns from, or takes results from, as the submitter reads them.

The ledgers are real and driven in this process. Not checked here: the mapping of single values (tests/plan/test_earlier.py),
and what samplers do with it (tests/controller/test_earlier.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import Runs, complete, failed

from trialplane import errors
from trialplane.client import folder
from trialplane.client.sdk import Platform, PreparedRun
from trialplane.controller.ledger import Ledger
from trialplane.wire import earlier
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import FailureClass, TrialState


def prepared(runs: Runs, name: str, **overrides: Any) -> PreparedRun:
    return Platform(runs.target).prepare("demo", name=name, overrides=overrides)


def made(runs: Runs, name: str, **overrides: Any) -> RunPaths:
    """A run as the platform submits it."""
    run = RunPaths.of(runs.home, name)
    folder.create(run, prepared(runs, name, **overrides).plan)
    return run


def driven(run: RunPaths) -> tuple[list[TrialRequest], list[str]]:
    """Work on a run; returns the trials that were trained, and the results that needed no training."""
    trained, answered = [], []
    with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), run.root.name, run.code, run.lock) as ledger:
        while request := ledger.ask():
            if answer := ledger.answer(request):
                answered.append(answer.message)
            else:
                trained.append(request)
            ledger.tell(answer or complete(request))
    return trained, answered


def test_a_repeated_study_trains_nothing(runs: Runs) -> None:
    runs.make("first", tell=complete)
    second = made(runs, "second", reuse=True)
    trained, answered = driven(second)
    assert not trained
    assert len(answered) == folder.load_job(second).trials
    assert answered[0] == "answered by trial 0 of first, which has the same parameters"
    rows = [runs.target.rows(name) for name in ("first", "second")]
    assert [(row.params, row.values) for row in rows[0]] == [(row.params, row.values) for row in rows[1]]


def test_answers_are_the_same_after_a_kill(runs: Runs) -> None:
    runs.make("first", tell=complete)
    second = made(runs, "second", reuse=True)
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        assert ledger.ask() is not None  # and dies before the answer is written
    trained, answered = driven(second)
    assert not trained
    assert len(answered) == folder.load_job(second).trials


@pytest.mark.parametrize(
    "change",
    [{"seed": 9}, {"params.epochs": 99}, {"resources.cpus": 2}, {"objective.direction": "maximize"}],
    ids=str,
)
def test_another_seed_setting_or_objective_is_not_reused(runs: Runs, change: dict[str, Any]) -> None:
    (runs.jobs / "demo" / "job.yaml").write_text(f"{(runs.jobs / 'demo' / 'job.yaml').read_text()}\nparams: {{epochs: 3}}\n")
    runs.make("first", tell=complete)
    _, answered = driven(made(runs, "second", reuse=True, **change))
    assert not answered


def test_other_code_is_not_reused(runs: Runs) -> None:
    runs.make("first", tell=complete)
    code = runs.jobs / "demo" / "train.py"
    code.write_text(f"{code.read_text()}\n# changed\n")
    assert not driven(made(runs, "second", reuse=True))[1]


def test_a_wider_search_reuses_what_it_repeats(runs: Runs) -> None:
    """The sampler, the number of trials and the space are not what a trial does."""
    runs.make("first", tell=complete)
    point = dict(runs.target.rows("first")[3].params)
    trained, answered = driven(made(runs, "second", reuse=True, enqueue=[point], sampler="qmc", trials=3, parallel=2))
    assert answered == ["answered by trial 3 of first, which has the same parameters"]
    assert [request.trial for request in trained] == [1, 2]


def test_another_job_file_is_reused(runs: Runs) -> None:
    """What a trial does is compared field by field, and the text of the file may change."""
    runs.make("first", tell=complete)
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"# more of the same\n{job.read_text().replace('trials: 6', 'trials: 4')}")
    trained, answered = driven(made(runs, "second", reuse=True))
    assert (len(trained), len(answered)) == (0, 4)


def test_changed_data_is_not_reused_and_reported(runs: Runs, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,2\n")
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"{job.read_text()}\nparams: {{data: {data}}}\n")
    folder.create(RunPaths.of(runs.home, "first"), prepared(runs, "first").plan)
    runs.drive(RunPaths.of(runs.home, "first"), complete)
    assert any(text == "reuse: 6 results of earlier runs with the same code, data and seed" for text in notes(runs)), notes(
        runs
    )
    data.write_text("a,b\n1,3\n")
    assert "reuse: nothing of first, because the data in data has changed since" in notes(runs)


def notes(runs: Runs) -> tuple[str, ...]:
    return prepared(runs, "second", reuse=True).warnings


def test_submitting_the_same_again_continues_it_though_there_are_more_results(runs: Runs) -> None:
    runs.make("first", tell=complete)
    made(runs, "second", reuse=True)
    runs.make("third", tell=complete)
    assert runs.target.differences(prepared(runs, "second", reuse=True).plan) == []


def test_history_travels_with_the_code(runs: Runs) -> None:
    runs.make("first", tell=lambda request: failed(request, FailureClass.OOM) if request.trial == 2 else complete(request))
    second = made(runs, "second", history=["first"], sampler="tpe")
    content = earlier.read(second.code)
    assert [trial.trial for trial in content.history] == list(range(6))
    assert [bool(trial.values) for trial in content.history] == [True, True, False, True, True, True]
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        with ledger._sampler_view():
            shown = ledger._study.get_trials(deepcopy=False)
        assert sorted(trial.number for trial in shown) == list(range(-6, 0))
        assert not ledger._study.get_trials(), "pruners, counts and results have only the study's own"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"history": ["first"], "sampler": "tpe", "objectives": [{"metric": "acc", "direction": "maximize"}]},
            "has other objectives",
        ),
        ({"history": ["nowhere"], "sampler": "tpe"}, "there is no run 'nowhere'"),
        ({"history": ["first"], "sampler": "random"}, "teaches random nothing"),
    ],
    ids=["objectives", "unknown", "sampler"],
)
def test_history_that_says_nothing_is_refused(runs: Runs, overrides: dict[str, Any], message: str) -> None:
    runs.make("first", tell=complete)
    with pytest.raises(errors.SpecError, match=message):
        prepared(runs, "second", **overrides)


def test_missing_and_ignored_parameters_are_reported(runs: Runs) -> None:
    runs.make("first", tell=complete)
    space = {"width": {"type": "int", "low": 1, "high": 4}, "lr": {"type": "float", "low": 0.0, "high": 1.0}}
    texts = prepared(runs, "second", history=["first"], space=space, sampler="tpe").warnings
    assert any(text.startswith("history: 6 trials of first, with lr") and "without width" in text for text in texts), texts
    texts = prepared(runs, "third", history=["first"], space=space, sampler="gp").warnings
    assert any("6 trials of first left out: it has no width, which gp needs of every trial" in text for text in texts), texts


def test_duplicates_are_drawn_again(runs: Runs) -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "name": None}
    run = made(runs, "small", space=space, duplicates="redraw", sampler="random", trials=6)
    trained, _ = driven(run)
    assert sorted(request.params["lr"] for request in trained) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    again = made(runs, "larger", space=space, duplicates="redraw", trials=8)
    assert len(driven(again)[0]) == 8, "a space without another point is no reason to stop"


def test_duplicates_are_answered(runs: Runs) -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.2]}, "name": None}
    run = made(runs, "small", space=space, duplicates="answer", sampler="random", trials=6)
    trained, answered = driven(run)
    assert len({request.params["lr"] for request in trained}) == len(trained) == 2
    assert len(answered) == 4
    rows = runs.target.rows("small")
    assert all(row.state is TrialState.COMPLETE and row.values == (row.params["lr"],) for row in rows)
