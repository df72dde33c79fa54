"""A study that was stopped and goes on draws what it would have drawn undisturbed.

Not checked here: trials at once that end in another order than in the undisturbed study, which changes what is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from tests.contracts.conftest import Backend, ask, complete, drive, failed, make_job, points, report

from trialplane.controller import history
from trialplane.controller.ledger import Ledger
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

MIXED = {
    "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "layers": {"type": "int", "low": 1, "high": 6},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
}
NUMBERS = {"x": MIXED["x"], "y": {"type": "float", "low": -1.0, "high": 1.0}}
STEPS = {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.1}, "layers": {"type": "int", "low": 1, "high": 3}}
CASES: dict[str, dict[str, Any]] = {
    "tpe": {"sampler": {"name": "tpe", "n_startup_trials": 5}, "space": MIXED},
    "tpe-multivariate": {
        "sampler": {"name": "tpe", "n_startup_trials": 5, "multivariate": True, "group": True},
        "space": MIXED,
    },
    "cmaes": {"sampler": {"name": "cmaes", "n_startup_trials": 4, "popsize": 4}, "space": NUMBERS},
    "nsgaii": {"sampler": {"name": "nsgaii", "population_size": 4}, "space": MIXED},
    "nsgaiii": {"sampler": {"name": "nsgaiii", "population_size": 4}, "space": MIXED},
    "qmc": {"sampler": {"name": "qmc", "warn_independent_sampling": False}, "space": NUMBERS},
    "random": {"sampler": "random", "space": MIXED},
    "grid": {"sampler": "grid", "space": STEPS},
    "bruteforce": {"sampler": "bruteforce", "space": STEPS},
    "gp": {"sampler": {"name": "gp", "n_startup_trials": 4}, "space": NUMBERS},
}


def end(request: TrialRequest) -> TrialOutcome:
    params: Mapping[str, Any] = request.params
    return complete(
        request, score=float(params["x"]) - float(params.get("y", 0.0)) ** 2 + 0.1 * float(params.get("layers", 0))
    )


def whole(sqlite: Backend, job: Job) -> list[Mapping[str, Any]]:
    """What the study draws undisturbed."""
    place = dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/whole.db", door=None)
    with place.open(job, lock=sqlite.folder / "whole.lock") as ledger:
        return points(drive(ledger, end))


def assert_same(drawn: list[Mapping[str, Any]], wanted: list[Mapping[str, Any]]) -> None:
    """Equal but for the last digits of what several threads of a BLAS sum up."""
    assert len(drawn) == len(wanted)
    for one, other in zip(drawn, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == (pytest.approx(other[name], rel=1e-6) if isinstance(value, float) else other[name]), (
                drawn,
                wanted,
            )


@pytest.mark.parametrize("running", [False, True], ids=["between trials", "while one runs"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "gp" else n for n in CASES])
def test_a_stop_changes_nothing_in_what_is_drawn(sqlite: Backend, name: str, running: bool) -> None:
    trials = 9 if name == "gp" else 16
    job = make_job(**CASES[name], trials=trials)
    wanted = whole(sqlite, job)
    drawn: list[Mapping[str, Any]] = []
    for count in (3, 4, trials - 7):  # before the sampler knows anything, and when it does
        with sqlite.open(job) as ledger:
            drawn += points(drive(ledger, end, count))
            if running and ledger.counts.ended < trials:
                left = ask(ledger)
                assert_same([left.params], [wanted[len(drawn)]])
    assert_same(drawn, wanted)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "gp" else n for n in CASES])
def test_a_stop_changes_nothing_in_how_failed_points_are_avoided(sqlite: Backend, name: str) -> None:
    trials = 9 if name == "gp" else 16
    job = make_job(**CASES[name], trials=trials)

    def end_or_fail(request: TrialRequest) -> TrialOutcome:
        return failed(request, FailureClass.OOM) if request.params["x"] > 0.6 else end(request)

    place = dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/whole.db", door=None)
    with place.open(job, lock=sqlite.folder / "whole.lock") as ledger:
        wanted = points(drive(ledger, end_or_fail))
    drawn: list[Mapping[str, Any]] = []
    for count in (3, 4, trials - 7):
        with sqlite.open(job) as ledger:
            drawn += points(drive(ledger, end_or_fail, count))
    assert_same(drawn, wanted)


def test_a_stop_changes_nothing_on_either_database(backend: Backend) -> None:
    """Values come back from the database as they went in, to the last bit."""
    job = make_job(**CASES["tpe"], trials=14)
    wanted = whole(backend, job)
    drawn = []
    for count in (6, 8):
        with backend.open(job) as ledger:
            drawn += points(drive(ledger, end, count))
    assert drawn == wanted


def two_at_once(ledger: Ledger, pairs: int, disturbed: frozenset[int] = frozenset()) -> list[Mapping[str, Any]]:
    """Asks two, tells two; gives what each trial tried. The first attempt at a disturbed trial is lost, or stopped."""
    drawn = []
    for _ in range(pairs):
        pair = [ask(ledger), ask(ledger)]
        drawn += points(pair)
        again = [request for request in pair if request.trial in disturbed]
        for request in again:
            ledger.tell(failed(request, FailureClass.LOST if request.trial % 2 else FailureClass.STOPPED))
        for request in pair:
            if request not in again:
                ledger.tell(end(request))
        drive(ledger, end, len(again))
    return drawn


@pytest.mark.parametrize("name", [name for name in CASES if name != "gp"])
def test_attempts_that_were_lost_or_stopped_change_nothing_in_what_is_drawn(
    sqlite: Backend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once there are more trials than the sampler is shown, which here are 12 and not 1,000."""
    monkeypatch.setattr(history, "BOUNDS", {"tpe": history.Bound(12, 3)})
    job = make_job(**CASES[name], trials=32)
    place = dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/whole.db")
    with place.open(job, lock=sqlite.folder / "whole.lock") as ledger:
        wanted = two_at_once(ledger, 16)
    drawn: list[Mapping[str, Any]] = []
    for pairs in (8, 8):
        with sqlite.open(job) as ledger:
            drawn += two_at_once(ledger, pairs, disturbed=frozenset({2, 5, 6, 7, 11, 18, 20, 23, 27}))
    assert_same(drawn, wanted)


def test_attempts_that_were_lost_change_nothing_in_what_is_pruned(sqlite: Backend) -> None:
    """Hyperband puts a trial into a bracket by its number, and halves among all that came as far."""
    pruner = {"name": "hyperband", "min_resource": 1, "max_resource": 9}
    job = make_job(**CASES["random"], trials=30, pruner=pruner)

    def run(ledger: Ledger, lost: range) -> list[int]:
        pruned = []
        while (request := ledger.ask()) is not None:
            if request.trial in lost and request.attempt == 1:
                ledger.report(report(request, 1, score=float(request.params["x"])))
                ledger.tell(failed(request, FailureClass.LOST))
                continue
            if any(ledger.report(report(request, step, score=float(request.params["x"]))) for step in range(10)):
                pruned.append(request.trial)
                ledger.tell(TrialOutcome(request.number, TrialState.PRUNED))
            else:
                ledger.tell(end(request))
        return pruned

    place = dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/whole.db")
    with place.open(job, lock=sqlite.folder / "whole.lock") as ledger:
        wanted = run(ledger, range(0))
    assert wanted, "or nothing is compared"
    with sqlite.open(job) as ledger:
        assert run(ledger, range(1, 30, 4)) == wanted


def test_another_seed_draws_other_points(sqlite: Backend) -> None:
    wanted = whole(sqlite, make_job(**CASES["tpe"], trials=4))
    with sqlite.open(make_job(**CASES["tpe"], trials=4, seed=8)) as ledger:
        assert points(drive(ledger, end)) != wanted


def test_more_trials_later_are_those_that_more_trials_at_once_would_have_been(sqlite: Backend) -> None:
    wanted = whole(sqlite, make_job(**CASES["tpe"], trials=14))
    drawn = []
    for trials in (6, 14):
        with sqlite.open(make_job(**CASES["tpe"], trials=trials)) as ledger:
            drawn += points(drive(ledger, end))
    assert drawn == wanted
