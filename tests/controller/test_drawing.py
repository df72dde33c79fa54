"""Drawing what Optuna cannot draw as it is, lists and normal numbers: the ledger has the user's values everywhere.

The ledger is real. Not checked here: how a value is put into Optuna's form (tests/job/test_choices.py), what else a ledger
draws (tests/contracts).
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import statistics
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, failed, job

from trialplane.client import exporting
from trialplane.controller import export
from trialplane.controller.ledger import Ledger
from trialplane.job import space
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import StudyOrder
from trialplane.wire import records
from trialplane.wire.states import FailureClass

LAYERS = [[64, 64], [128], {"wide": [2, None]}, "auto"]
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [{"metric": "score", "direction": "maximize"}],
    "space": {
        "layers": {"type": "categorical", "choices": LAYERS},
        "x": {"type": "normal", "mean": 5.0, "std": 2.0},
        "rate": {"type": "normal", "mean": -7.0, "std": 1.0, "log": True, "when": {"layers": [[64, 64]]}},
    },
    "trials": 12,
}
FINITE = {"layers": {"type": "categorical", "choices": LAYERS}, "n": {"type": "int", "low": 1, "high": 3}}


def drawn(ledger: Ledger) -> list[dict[str, Any]]:
    """The sampled parameters of all further trials."""
    points = []
    while (request := ledger.ask()) is not None:
        points.append(dict(request.params))
        ledger.tell(outcome(request.number, metrics={"score": float(len(points))}))
    return points


def attempts(opened: Opened) -> list[reading.Attempt]:
    with contextlib.closing(sqlite3.connect(opened.run.ledger)) as connection:
        return reading.attempts_since(lambda query, values: connection.execute(query, values).fetchall(), "toy-1")


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsgaii", "qmc", "random", {"name": "tpe", "multivariate": True}])
def test_every_sampler_draws_the_values_of_the_user(opened: Opened, sampler: Any) -> None:
    of = job(**SEARCH, params={}, sampler=sampler)
    points = drawn(opened.open(of))
    assert len(points) == 12
    for point in points:
        assert point["layers"] in LAYERS
        assert of.search.parameters["x"].contains(point["x"])
        assert ("rate" in point) == (point["layers"] == [64, 64]), "conditions see the user's values as well"
    assert any(point["x"] > 1 for point in points), "not the share of the distribution, which is below 1"


def test_numbers_come_from_their_distribution(opened: Opened) -> None:
    points = drawn(opened.open(job(**{**SEARCH, "trials": 300}, params={}, sampler="random")))
    numbers = [point["x"] for point in points]
    assert statistics.mean(numbers) == pytest.approx(5.0, abs=0.5)
    assert statistics.stdev(numbers) == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
def test_every_list_of_a_finite_space_is_tried_once(opened: Opened, sampler: str) -> None:
    ledger = opened.open(job(**{**SEARCH, "space": FINITE}, params={}, sampler=sampler))
    assert sorted(json.dumps(point) for point in drawn(ledger)) == sorted(
        json.dumps({"layers": layers, "n": n}) for layers in LAYERS for n in (1, 2, 3)
    )
    assert ledger.is_exhausted


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_choices_are_not_compared_each_with_each(opened: Opened, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    many = {"layers": {"type": "categorical", "choices": [[index] for index in range(500)]}}
    of, same, count = job(**{**SEARCH, "space": many, "trials": 3}, params={}, sampler=sampler), space.is_same, 0

    def counted(one: Any, other: Any) -> bool:
        nonlocal count
        count += 1
        return same(one, other)

    monkeypatch.setattr(space, "is_same", counted)
    assert len(drawn(opened.open(of))) == 3
    assert count < 10 * 500


def test_a_retry_and_the_next_controller_have_the_same_values(opened: Opened) -> None:
    of = job(**SEARCH, params={"epochs": 3})
    ledger = opened.open(of)
    first = asked(ledger)
    ledger.tell(failed(first, FailureClass.LOST))
    again = asked(ledger)
    assert (again.params, again.retry_of) == (first.params, 0)
    ledger = opened.open(of)  # it finds the retry running, and lost
    third = asked(ledger)
    assert (third.params, third.attempt) == (first.params, 3)
    ledger.tell(outcome(third.number, metrics={"score": 1.0}))
    assert ledger.best is not None
    assert ledger.best.params == {key: value for key, value in first.params.items() if key != "epochs"}
    assert opened.open(of).best == ledger.best


def test_a_study_that_was_resumed_draws_what_it_would_have_drawn(opened: Opened, tmp_path: Path) -> None:
    undisturbed = Opened(tmp_path / "other")
    of = job(**SEARCH, params={}, sampler={"name": "tpe", "n_startup_trials": 2})
    expected = drawn(undisturbed.open(of))
    undisturbed.close()
    points = []
    for number in range(12):
        request = asked(opened.open(of))
        points.append(request.params)
        opened._ledger.tell(outcome(request.number, metrics={"score": float(number + 1)}))  # type: ignore[union-attr]
    assert points == expected


def test_points_tried_first_are_exact(opened: Opened) -> None:
    point = {"layers": [64, 64], "x": 0.3, "rate": 1e-3}
    ledger = opened.open(job(**SEARCH, params={}, enqueue=[point, {"layers": {"wide": [2, None]}}]))
    assert asked(ledger).params == point
    assert asked(ledger).params["layers"] == {"wide": [2, None]}


def test_cmaes_starts_from_the_values_of_the_user(opened: Opened) -> None:
    both = {name: {"type": "normal", "mean": 100.0, "std": 5.0} for name in "ab"}
    start = {"name": "cmaes", "x0": {"a": 103.0, "b": 97.0}, "sigma0": 1e-6}
    points = drawn(opened.open(job(**{**SEARCH, "space": both, "trials": 4}, params={}, sampler=start)))
    assert [points[3]["a"], points[3]["b"]] == pytest.approx([103.0, 97.0], abs=0.01)


def test_an_exported_study_has_lists_as_text_and_normal_numbers_as_they_are(opened: Opened) -> None:
    of = job(**SEARCH, params={}, enqueue=[{"layers": [64, 64], "x": 0.3}])
    points = drawn(opened.open(of))
    order = records.from_json(StudyOrder, exporting.study_order_line("toy-1", of))
    storage = optuna.storages.InMemoryStorage()
    copy = export.Copy(storage, order)
    copy.add(attempts(opened), is_active=True)
    study = copy.study
    for trial, point in zip(study.get_trials(), points, strict=True):
        assert trial.params["layers"] == ("auto" if point["layers"] == "auto" else json.dumps(point["layers"]))
        assert (trial.params["x"], trial.params.get("rate")) == (point["x"], point.get("rate"))
        low, high = of.search.normal_parameters["x"].ends
        assert trial.distributions["x"] == optuna.distributions.FloatDistribution(low, high)
    assert study.best_value == 12.0
