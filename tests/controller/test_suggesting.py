"""An objective of Optuna that asks the ledger for its parameters one by one: what is drawn, kept, refused and exported.

Ledger, Optuna and the trial's side of it are real; only what carries the messages is not. Not checked here: a whole run with
killed processes (tests/study/test_objective.py), the slot that passes the messages on (tests/worker/test_objective.py).
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, failed, job

from trialplane.controller import export
from trialplane.controller.ledger import Ledger
from trialplane.job.kinds import Job
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import StudyOrder
from trialplane.wire import messages
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.worker import context
from trialplane.worker.shims import objective

SAMPLERS = ["tpe", "cmaes", "nsgaii", "qmc", {"name": "tpe", "multivariate": True, "group": True, "n_startup_trials": 2}]


class Asking:
    """What a trial's process has in place of its channel: the ledger itself."""

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.attributes: dict[str, Any] = {}
        self._ledger, self._number = ledger, number

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        return False

    def suggest(self, wanted: messages.Suggest) -> messages.Suggested:
        return self._ledger.suggest(self._number, wanted)


def trial(ledger: Ledger, request: TrialRequest) -> objective.Trial:
    asking, place = Asking(ledger, request.number), Path("/nowhere")
    ctx = context.Context(dict(request.params), 1, "toy", request.trial, 1, 1, 0, place, place, place, asking)
    return objective.Trial(ctx, request.metrics, request.directions, asking)


def kernel(trial: objective.Trial) -> float:
    """An objective with a condition."""
    c = trial.suggest_float("c", 1e-3, 1e3, log=True)
    if trial.suggest_categorical("kernel", ["rbf", "linear", ["poly", 3]]) == "rbf":
        return c + trial.suggest_int("gamma", 1, 9)
    return c + trial.suggest_float("shift", 0.0, 1.0, step=0.25)


def search(**fields: Any) -> Job:
    plain = {"kind": "hpo", "entrypoint": "optuna:study:kernel", "params": {}, "trials": 8}
    return job(**{**plain, "objectives": [{"metric": "score", "direction": "minimize"}], **fields})


def drawn(ledger: Ledger) -> list[dict[str, Any]]:
    """The parameters of all further trials, each of which ends with its objective."""
    points = []
    while (request := ledger.ask()) is not None:
        asks = trial(ledger, request)
        ledger.tell(outcome(request.number, metrics={"score": kernel(asks)}))
        points.append(asks.params)
    return points


def attempts(opened: Opened) -> list[reading.Attempt]:
    with contextlib.closing(sqlite3.connect(opened.run.ledger)) as connection:
        return reading.attempts_since(lambda query, values: connection.execute(query, values).fetchall(), "toy-1")


@pytest.mark.parametrize("sampler", [*SAMPLERS, "gp"])
def test_a_fixed_value_may_be_zero_in_a_logarithmic_range(opened: Opened, sampler: Any) -> None:
    """Samplers learn from the other parameters, and a retry gets it too."""
    ledger = opened.open(search(sampler=sampler, params={"c": 0.0}))
    request = asked(ledger)
    with pytest.warns(UserWarning, match="c is fixed at 0, which is out of its range"):
        assert trial(ledger, request).suggest_float("c", 1e-3, 1e3, log=True) == 0.0
    ledger = opened.open(search(sampler=sampler, params={"c": 0.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points = drawn(ledger)
    assert [point["c"] for point in points] == [0.0] * 8 and len({str(point) for point in points}) > 1
    assert {attempt.request.params["c"] for attempt in attempts(opened)} == {0.0}
    copy = export.Copy(optuna.storages.InMemoryStorage(), StudyOrder("toy-1", ("minimize",), ("score",), {}))
    copy.add(attempts(opened), is_active=False)
    for exported in copy.study.trials:
        assert exported.user_attrs["params.c"] == 0.0 and "c" not in exported.params, "Optuna could not store it"
        assert not {f"params.{name}" for name in exported.params} & exported.user_attrs.keys()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_study_that_was_stopped_draws_what_it_would_have_drawn(opened: Opened, tmp_path: Path, sampler: Any) -> None:
    of = search(sampler=sampler)
    undisturbed = Opened(tmp_path / "other")
    expected = drawn(undisturbed.open(of))
    undisturbed.close()
    points: list[dict[str, Any]] = []
    while len(points) < 8:
        ledger = opened.open(of)
        request = asked(ledger)
        asks = trial(ledger, request)
        asks.suggest_float("c", 1e-3, 1e3, log=True)
        ledger = opened.open(of)  # its controller is killed when one parameter is drawn
        again = asked(ledger)
        assert (again.trial, again.attempt) == (request.trial, 2)
        asks = trial(ledger, again)
        assert kernel(asks) is not None
        ledger.tell(outcome(again.number, metrics={"score": kernel(asks)}))
        points.append(asks.params)
    assert points == expected


def test_what_was_drawn_is_in_the_database_before_it_is_answered(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened.open(search())
    request = asked(ledger)
    assert dict(attempts(opened)[0].request.params) == {}
    answer = ledger.suggest(request.number, messages.Suggest("c", "float", 1.0, 2.0))
    (kept,) = attempts(opened)
    assert dict(kept.request.params) == {"c": answer.value}
    assert kept.optuna["params"]["c"][0] == answer.value


def test_a_retry_repeats_what_was_drawn_whatever_has_ended_meanwhile(opened: Opened) -> None:
    ledger = opened.open(search(sampler={"name": "tpe", "n_startup_trials": 1}))
    first = asked(ledger)
    before = trial(ledger, first)
    kernel(before)
    others = [asked(ledger) for _ in range(3)]
    for other in others:
        ledger.tell(outcome(other.number, metrics={"score": kernel(trial(ledger, other))}))
    ledger.tell(failed(first, FailureClass.LOST))
    again = asked(ledger)
    assert (again.trial, again.retry_of) == (first.trial, first.number)
    after = trial(ledger, again)
    kernel(after)
    assert after.params == before.params


def test_what_a_sampler_draws_together_stays_together_in_a_retry(opened: Opened) -> None:
    of = search(sampler={"name": "tpe", "multivariate": True, "n_startup_trials": 2}, seed=5)
    ledger = opened.open(of)
    for _ in range(4):
        request = asked(ledger)
        asks = trial(ledger, request)
        ledger.tell(
            outcome(request.number, metrics={"score": asks.suggest_float("a", 0, 1) + asks.suggest_float("b", 0, 1)})
        )
    request = asked(ledger)
    trial(ledger, request).suggest_float("a", 0, 1)
    (kept,) = [one for one in attempts(opened) if one.outcome is None]
    (inside, _) = kept.optuna["attributes"]["trialplane:together"]["b"]
    other = asked(ledger)
    trial(ledger, other).suggest_float("a", 0, 1)
    trial(ledger, other).suggest_float("b", 0, 1)
    ledger.tell(outcome(other.number, metrics={"score": -1.0}))  # what would be drawn together now is something else
    ledger = opened.open(of)
    asks = trial(ledger, asked(ledger))
    assert asks.suggest_float("b", 0, 1) == inside


def test_parameters_of_one_trial_do_not_share_their_random_numbers(opened: Opened) -> None:
    """A sampler that is made anew for each parameter must not begin with the same number each time."""
    ledger = opened.open(search(sampler="random", trials=80))
    pairs = []
    while (request := ledger.ask()) is not None:
        asks = trial(ledger, request)
        pairs.append((asks.suggest_float("a", 0, 1), asks.suggest_float("b", 0, 1)))
        ledger.tell(outcome(request.number, metrics={"score": 0.0}))
    assert abs(statistics.correlation(*zip(*pairs, strict=True))) < 0.4


def test_tpe_learns_from_conditional_parameters(opened: Opened) -> None:
    points = drawn(opened.open(search(trials=40, sampler={"name": "tpe", "n_startup_trials": 10})))
    assert statistics.median(p["c"] for p in points[25:]) < 0.5 * statistics.median(p["c"] for p in points[:10])
    assert all(("gamma" in p) == (p["kernel"] == "rbf") for p in points)


def test_brute_force_tries_every_branch_once_and_ends(opened: Opened) -> None:
    ledger = opened.open(search(sampler="bruteforce", trials=100))
    seen = []
    while (request := ledger.ask()) is not None:
        asks = trial(ledger, request)
        if asks.suggest_categorical("kernel", ["rbf", "linear"]) == "rbf":
            asks.suggest_int("gamma", 1, 3)
        seen.append(tuple(asks.params.values()))
        ledger.tell(outcome(request.number, metrics={"score": 0.0}))
    assert sorted(seen) == [("linear",), ("rbf", 1), ("rbf", 2), ("rbf", 3)]


def test_enqueued_points_and_fixed_parameters_are_given_and_not_drawn(opened: Opened) -> None:
    ledger = opened.open(search(enqueue=[{"c": 2.5, "kernel": ["poly", 3]}], params={"shift": 0.5, "epochs": 3}, trials=20))
    points = drawn(ledger)
    assert points[0] == {"c": 2.5, "kernel": ["poly", 3], "shift": 0.5}
    assert {point["shift"] for point in points if "shift" in point} == {0.5}
    assert len({point["c"] for point in points}) > 15
    row = ledger.newest[0]
    assert row.params == points[0], "in the results as the user knows them"


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (messages.Suggest("x", "float", 2.0, 1.0), "low"),
        (messages.Suggest("x", "float", 0.0, 1.0, log=True), "low"),
        (messages.Suggest("x", "int", 1, 8, step=2, log=True), "step"),
        (messages.Suggest("x", "categorical"), "choices"),
        (messages.Suggest("c", "int", 1, 2), "Cannot set different distribution kind"),
        (messages.Suggest("kernel", "categorical", choices=("other",)), "dynamic value space"),
        (messages.Suggest("a/../b", "float", 0.0, 1.0), "MLflow"),
        (messages.Suggest("b", "float", 0.0, 1e30, step=0.1), "DivisionImpossible"),  # raised by Optuna's own arithmetic
        (messages.Suggest("b", "categorical", choices=("x" * 70_000,)), "larger than 64 KiB"),
    ],
)
def test_what_optuna_refuses_is_refused_in_its_words_and_changes_nothing(
    opened: Opened, wanted: messages.Suggest, error: str
) -> None:
    ledger = opened.open(search())
    request = asked(ledger)
    kernel(trial(ledger, request))
    before = attempts(opened)
    answer = ledger.suggest(request.number, wanted)
    assert answer.value is None
    assert error in answer.error
    assert attempts(opened) == before


def test_bruteforce_goes_through_no_range_that_fills_the_memory(opened: Opened) -> None:
    ledger = opened.open(search(sampler="bruteforce"))
    request = asked(ledger)
    assert "1,000,000,001 points" in ledger.suggest(request.number, messages.Suggest("n", "int", 0, 10**9, step=1)).error
    assert ledger.suggest(request.number, messages.Suggest("n", "int", 0, 9, step=1)).error == ""


def test_another_range_of_a_known_parameter_is_remarked_on(opened: Opened) -> None:
    ledger = opened.open(search())
    asks = trial(ledger, asked(ledger))
    first = asks.suggest_float("c", 0.0, 1.0)
    with pytest.warns(UserWarning, match="Inconsistent parameter values"):
        assert asks.suggest_float("c", 0.0, 2.0) == first
    with pytest.raises(ValueError, match="Cannot set different distribution kind"):
        asks.suggest_int("c", 0, 2)


def test_a_trial_that_has_ended_draws_nothing(opened: Opened) -> None:
    ledger = opened.open(search())
    request = asked(ledger)
    ledger.tell(outcome(request.number, metrics={"score": 1.0}))
    assert ledger.suggest(request.number, messages.Suggest("x", "float", 0.0, 1.0)).value is None


def test_an_exported_study_has_the_distributions_of_each_branch(opened: Opened) -> None:
    ledger = opened.open(search(trials=15))
    points = drawn(ledger)
    storage = optuna.storages.InMemoryStorage()
    order = StudyOrder("toy-1", ("minimize",), ("score",), {})
    copy = export.Copy(storage, order)
    copy.add(attempts(opened), is_active=False)
    study = copy.study
    for exported, point in zip(study.trials, points, strict=True):
        assert exported.params.keys() == exported.distributions.keys() == point.keys()
        assert exported.params["c"] == point["c"]
        assert isinstance(exported.distributions["c"], optuna.distributions.FloatDistribution)
        assert ("gamma" in exported.params) == (exported.params["kernel"] == "rbf")


def test_what_a_running_trial_has_drawn_since_comes_into_a_study_that_is_shown_live(opened: Opened) -> None:
    ledger = opened.open(search())
    request = asked(ledger)
    storage = optuna.storages.InMemoryStorage()
    copy = export.Copy(storage, StudyOrder("toy-1", ("minimize",), ("score",), {}))
    copy.add(attempts(opened), is_active=True)
    study = copy.study
    asks = trial(ledger, request)
    ledger.tell(outcome(request.number, metrics={"score": kernel(asks)}))
    copy.add(attempts(opened), is_active=True)
    assert study.trials[0].params["c"] == asks.params["c"]
