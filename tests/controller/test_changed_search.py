"""A study that goes on with another space, sampler or pruner, or whose failed trials are tried again.

The ledger and the samplers are real. Not checked here: which fields may change (tests/plan/test_changes.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, failed, job, shown

from trialplane.controller.ledger import Ledger
from trialplane.wire.records import TrialReport
from trialplane.wire.states import FailureClass, TrialState

SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "params": {},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}, "k": {"type": "categorical", "choices": ["a", "b"]}},
    "trials": 30,
    "retries": {"crashed": 0, "lost": 0},
}


def play(ledger: Ledger, trials: int) -> list[dict[str, Any]]:
    points = []
    for _ in range(trials):
        request = asked(ledger)
        points.append(dict(request.params))
        ledger.tell(outcome(request.number, metrics={"loss": request.params["x"]}))
    return points


def numbers(ledger: Ledger) -> list[int]:
    """The trials that the sampler is shown."""
    return [trial.number for trial in shown(ledger)]


def widened(**space: Any) -> dict[str, Any]:
    return {**SEARCH, "space": {**SEARCH["space"], **space}}


@pytest.mark.parametrize("sampler", ["tpe", {"name": "gp", "n_startup_trials": 4}, {"name": "tpe", "multivariate": True}])
def test_a_wider_space_keeps_all_that_was_learned(opened: Opened, sampler: Any) -> None:
    play(opened.open(job(**SEARCH, sampler=sampler)), 8)
    wider = widened(x={"type": "float", "low": -1.0, "high": 1.0}, k={"type": "categorical", "choices": ["a", "b", "c"]})
    ledger = opened.open(job(**wider, sampler=sampler))
    assert numbers(ledger) == list(range(8))
    later = play(ledger, 8)
    assert min(point["x"] for point in later) < 0, "the lowest is best, and below the former space"
    assert [row.values for row in (ledger.newest[0], ledger.newest[7])] == [
        (ledger.newest[trial].params["x"],) for trial in (0, 7)
    ]


def test_a_narrower_space_keeps_results_and_shows_the_sampler_what_is_in_it(opened: Opened) -> None:
    points = play(opened.open(job(**SEARCH, sampler="gp")), 8)
    ledger = opened.open(job(**widened(x={"type": "float", "low": 0.5, "high": 1.0}), sampler="gp"))
    assert numbers(ledger) == [trial for trial, point in enumerate(points) if point["x"] >= 0.5]
    assert len(ledger.newest) == ledger.counts.complete == 8
    assert all(point["x"] >= 0.5 for point in play(ledger, 4))


@pytest.mark.parametrize(("sampler", "count"), [("tpe", 6), ("gp", 0)])
def test_a_new_parameter(opened: Opened, sampler: str, count: int) -> None:
    """TPE learns the others from the former trials; a sampler of whole points begins anew."""
    play(opened.open(job(**SEARCH, sampler=sampler)), 6)
    ledger = opened.open(job(**widened(depth={"type": "int", "low": 1, "high": 4}), sampler=sampler))
    assert len(numbers(ledger)) == count
    assert all("depth" in point for point in play(ledger, 3))


def test_a_changed_study_is_resumed_as_it_is_then(tmp_path: Path) -> None:
    drawn = []
    for again in (False, True):
        opened = Opened(tmp_path / str(again))
        play(opened.open(job(**SEARCH, sampler="tpe")), 6)
        of = job(**widened(x={"type": "float", "low": -1.0, "high": 1.0}), sampler="tpe")
        ledger = opened.open(of)
        points = play(ledger, 6)
        ledger = opened.open(of) if again else ledger
        drawn.append([*points, *play(ledger, 6)])
        opened.close()
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("before", "after"), [("random", "gp"), ("tpe", "nsgaii"), ("gp", "cmaes")])
def test_another_sampler_goes_on(opened: Opened, before: str, after: str) -> None:
    play(opened.open(job(**SEARCH, sampler=before)), 12)
    ledger = opened.open(job(**SEARCH, sampler=after))
    play(ledger, 6)
    assert ledger.counts.complete == 18


def test_another_pruner_compares_with_earlier_reports(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH, sampler="random"))
    for loss in range(6):
        request = asked(ledger)
        ledger.report(TrialReport(request.number, 1, {"loss": float(loss)}, 1.0))
        ledger.tell(outcome(request.number, metrics={"loss": float(loss)}))
    ledger.close()
    ledger = opened.open(job(**SEARCH, sampler="random", pruner={"name": "median", "n_startup_trials": 3}))
    request = asked(ledger)
    assert ledger.report(TrialReport(request.number, 1, {"loss": 9.0}, 1.0))


def test_failed_trials_are_tried_again_once(opened: Opened) -> None:
    ledger = opened.open(job(**{**SEARCH, "trials": 4}))
    requests = [asked(ledger) for _ in range(4)]
    for request in requests:
        ledger.tell(
            failed(request, FailureClass.OOM) if request.trial % 2 else outcome(request.number, metrics={"loss": 1.0})
        )
    assert ledger.is_done
    again = job(**{**SEARCH, "trials": 4, "retries": {**SEARCH["retries"], "failed_before": 4}})
    ledger = opened.open(again)
    assert (ledger.counts.failed, ledger.is_done) == (0, False)
    retried = [asked(ledger) for _ in range(2)]
    assert [(one.trial, one.attempt, one.params, one.seed) for one in retried] == [
        (one.trial, 2, one.params, one.seed) for one in requests if one.trial % 2
    ]
    assert ledger.ask() is None
    ledger.tell(outcome(retried[0].number, metrics={"loss": 2.0}))
    ledger.tell(failed(retried[1], FailureClass.OOM))
    ledger = opened.open(again)
    assert (ledger.counts.complete, ledger.counts.failed, ledger.is_done) == (3, 1, True)
    assert ledger.newest[3].state is TrialState.FAILED


def test_a_retry_that_was_interrupted_continues(opened: Opened) -> None:
    ledger = opened.open(job(**{**SEARCH, "trials": 2}))
    for request in [asked(ledger) for _ in range(2)]:
        ledger.tell(failed(request, FailureClass.ERROR))
    again = job(**{**SEARCH, "trials": 2, "retries": {"crashed": 0, "lost": 3, "failed_before": 2}})
    asked(opened.open(again))  # and the controller dies
    ledger = opened.open(again)
    assert sorted(asked(ledger).trial for _ in range(2)) == [0, 1]
    assert ledger.ask() is None
