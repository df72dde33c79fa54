"""What samplers are shown of trials that failed: the worst there is, where the trial itself is at fault.

The ledger and the samplers are real. Not checked here: that a stop changes nothing in it
(tests/contracts/test_ledger_resume.py), and that exports have such trials as failed (tests/contracts/test_ledger_optuna.py).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.trial import TrialState as OptunaState
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, failed, job, shown

from trialplane.controller.ledger import Ledger
from trialplane.wire import messages
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import FailureClass, TrialState

UNIT = {"type": "float", "low": 0.0, "high": 1.0}
SCORE = {"metric": "score", "direction": "maximize"}
COST = {"metric": "cost", "direction": "minimize"}
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [SCORE],
    "space": {"x": UNIT, "y": UNIT},
    "params": {},
    "retries": {"lost": 0, "crashed": 0},
    "trials": 60,
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {"name": "tpe", "n_startup_trials": 8},
    "gp": {"name": "gp", "n_startup_trials": 8},
    "cmaes": {"name": "cmaes", "n_startup_trials": 4},
    "nsgaii": {"name": "nsgaii", "population_size": 8},
    "nsgaiii": {"name": "nsgaiii", "population_size": 8},
}
LIMITED = {"metric": "size", "max": 0.5}


def metrics(request: TrialRequest) -> dict[str, float]:
    x, y = request.params["x"], request.params["y"]
    return {"score": x + y, "cost": y, "size": x}


@pytest.mark.parametrize("sampler", [pytest.param(n, marks=pytest.mark.slow) if n == "gp" else n for n in SAMPLERS])
def test_every_sampler_avoids_points_that_do_not_fit(opened: Opened, sampler: str) -> None:
    """The best points are beside those that fail; one that is not shown them would soon draw nothing else."""
    trials = 24 if sampler == "gp" else 60
    ledger = opened.open(job(**{**SEARCH, "trials": trials}, sampler=SAMPLERS[sampler]))
    drawn = []
    for _ in range(trials):
        request = asked(ledger)
        found = metrics(request)
        drawn.append(found["score"])
        fits = found["score"] <= 1
        ledger.tell(outcome(request.number, metrics=found) if fits else failed(request, FailureClass.OOM))
    later = drawn[trials // 2 :]
    assert sum(score > 1 for score in later) < 0.6 * len(later), later
    assert max(score for score in drawn if score <= 1) > 0.9


@pytest.mark.parametrize("constraints", [[], [LIMITED]], ids=["", "constrained"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("failure", FailureClass)
def test_every_sampler_is_shown_failures_of_the_trial_itself_as_the_worst(
    opened: Opened, sampler: str, failure: FailureClass, constraints: list[dict[str, Any]]
) -> None:
    ledger = opened.open(job(**SEARCH, sampler=SAMPLERS[sampler], constraints=constraints, pruner="median"))
    first, second = asked(ledger), asked(ledger)
    ledger.tell(outcome(first.number, metrics=metrics(first)))
    ledger.tell(failed(second, failure))
    for again in (False, True):
        if again:
            ledger = opened.open(ledger.job)
        good, bad = shown(ledger)
        assert good.values == [metrics(first)["score"]]
        if failure in (FailureClass.LOST, FailureClass.STOPPED):
            assert bad.state is OptunaState.FAIL, "which says nothing of the point"
        elif sampler == "tpe":
            assert (bad.state, bad.values, bad.intermediate_values) == (OptunaState.PRUNED, None, {})
        else:
            assert (bad.state, bad.values) == (OptunaState.COMPLETE, [-math.inf])
        if bad.state is not OptunaState.FAIL:
            assert bad.constraints == ({"size": math.inf} if constraints else {})
        assert [trial.state for trial in ledger._study.get_trials()] == [OptunaState.COMPLETE, OptunaState.FAIL], "pruners"


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsgaii", "nsgaiii"])
def test_a_trial_of_several_objectives_that_prunes_itself_is_bad_too(opened: Opened, sampler: str) -> None:
    ledger = opened.open(job(**{**SEARCH, "objectives": [SCORE, COST]}, sampler=SAMPLERS[sampler]))
    request = asked(ledger)
    ledger.tell(outcome(request.number, state=TrialState.PRUNED, metrics={}))
    (bad,) = shown(ledger)
    assert (bad.state, bad.values) == (
        (OptunaState.PRUNED, None) if sampler == "tpe" else (OptunaState.COMPLETE, [-math.inf, math.inf])
    )


def test_an_attempt_that_is_retried_is_not_shown(opened: Opened) -> None:
    ledger = opened.open(job(**{**SEARCH, "retries": {"crashed": 1}}, sampler="gp"))
    first = asked(ledger)
    ledger.tell(failed(first, FailureClass.CRASHED))
    assert [trial.state for trial in shown(ledger)] == [OptunaState.FAIL]
    again = asked(ledger)
    ledger.tell(failed(again, FailureClass.CRASHED))
    assert [trial.values for trial in shown(ledger)] == [[-math.inf]], "with its retries spent it is bad"


@pytest.mark.parametrize(
    ("sampler", "fields"),
    [
        *((name, {}) for name in SAMPLERS),
        *((name, {"constraints": [LIMITED]}) for name in SAMPLERS),
        *((name, {"objectives": [SCORE, COST]}) for name in SAMPLERS if name != "cmaes"),
    ],
    ids=str,
)
def test_no_sampler_stops_where_every_trial_fails(opened: Opened, sampler: str, fields: dict[str, Any]) -> None:
    trials = 11 if sampler == "gp" else 24
    ledger = opened.open(job(**{**SEARCH, "trials": trials, **fields}, sampler=SAMPLERS[sampler]))
    left = None
    for _ in range(trials):
        request = asked(ledger)
        if left is not None:
            ledger.tell(failed(left, FailureClass.ERROR))
        left = request
    assert ledger.ask() is None


def asked_for(ledger: Ledger, *names: str) -> TrialRequest:
    """A trial of an objective of Optuna that has asked for these parameters."""
    request = asked(ledger)
    for name in names:
        answer = ledger.suggest(request.number, messages.Suggest(name, "float", low=0.0, high=1.0))
        assert answer.value is not None
    return request


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsgaii"])
def test_an_objective_that_fails_before_it_has_asked_for_all_does_not_narrow_the_search(
    opened: Opened, sampler: str
) -> None:
    """Samplers draw together what all trials have in common."""
    of = job(**{**SEARCH, "space": {}}, entrypoint="optuna:search:objective", sampler=SAMPLERS[sampler])
    ledger = opened.open(of)
    early = asked_for(ledger, "x")
    ledger.tell(failed(early, FailureClass.ERROR))
    whole = asked_for(ledger, "x", "y")
    ledger.tell(outcome(whole.number, metrics={"score": 1.0}))
    later = asked_for(ledger, "x")
    ledger.tell(failed(later, FailureClass.ERROR))
    branch = asked_for(ledger, "x", "z")
    ledger.tell(failed(branch, FailureClass.OOM))
    for again in (False, True):
        if again:
            ledger = opened.open(of)
        assert [trial.state is OptunaState.FAIL for trial in shown(ledger)] == [True, False, True, False]
