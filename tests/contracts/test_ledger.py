"""The ledger's accounting, on SQLite and on PostgreSQL: what is asked, told, tried again and counted.

Not checked here: what Optuna sees (test_ledger_optuna.py), locks and crashes (test_ledger_crashes.py), the order of
parameters after a stop (test_ledger_resume.py), damage and a full disk (test_ledger_damage.py).
"""

from __future__ import annotations

import collections
import dataclasses
import random
import time

import pytest
from tests.contracts.conftest import Backend, ask, complete, drive, failed, make_job, points, report
from tests.controller.test_promotion import play

from trialplane.job.search import Ladder
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState


def test_exactly_as_many_trials_as_asked(backend: Backend) -> None:
    with backend.open(make_job(trials=5)) as ledger:
        attempts = drive(ledger)
        assert [request.trial for request in attempts] == [0, 1, 2, 3, 4]
        assert [request.attempt for request in attempts] == [1] * 5
        assert ledger.ask() is None
        assert (ledger.counts.complete, ledger.counts.ended, ledger.counts.running) == (5, 5, 0)
    with backend.open(make_job(trials=5)) as ledger:
        assert ledger.ask() is None
        assert ledger.counts.complete == 5


@pytest.mark.parametrize("seed", [1, 2])
def test_exactly_as_many_trials_as_asked_whatever_happens_to_attempts(backend: Backend, seed: int) -> None:
    """Three at a time, each ending in one of all ways, with a new controller now and then."""
    rng = random.Random(seed)
    job = make_job(trials=20, retries={"lost": 3, "crashed": 1})
    ledger = backend.open(job)
    final: collections.Counter[int] = collections.Counter()
    while True:
        while len(ledger.running()) < 3 and ledger.ask() is not None:
            pass
        if not ledger.running():
            break
        request = rng.choice(ledger.running())
        ways = [
            complete(request),
            TrialOutcome(request.number, TrialState.PRUNED),
            *(failed(request, f) for f in FailureClass),
        ]
        told = ledger.tell(rng.choice(ways))
        assert told is not None
        final[request.trial] += not told.retried
        if rng.random() < 0.15:
            before = ledger.counts
            running = len(ledger.running())
            ledger.close()
            ledger = backend.open(job)
            assert ledger.counts.complete == before.complete
            assert ledger.counts.pruned == before.pruned
            # What ran is lost and tried again, unless it had no try left.
            assert ledger.counts.retried - before.retried + ledger.counts.failed - before.failed == running
            for trial, row in ledger.newest.items():
                final[trial] = int(row.state.is_ended)
    assert ledger.counts.ended == 20
    assert final == dict.fromkeys(range(20), 1)
    assert sorted(ledger.newest) == list(range(20))


def test_a_request_carries_everything_a_trial_needs(backend: Backend) -> None:
    job = make_job(budget={"timeout": 30}, pruner="median", constraints=[{"metric": "size", "max": 5}])
    request = ask(backend.open(job))
    assert request.run == "toy"
    assert request.params.keys() == {"epochs", "x", "layers", "kind"}
    assert request.params["epochs"] == 2
    assert request.metrics == ("score", "size")
    assert request.timeout == 30
    assert request.prunable
    assert request.retry_of is None


def test_a_sampled_parameter_wins_over_a_fixed_one_of_the_same_name(backend: Backend) -> None:
    request = ask(backend.open(make_job(params={"x": 100, "epochs": 2})))
    assert 0 <= request.params["x"] <= 1


def test_a_retry_keeps_parameters_and_seed_and_numbers_the_attempts(backend: Backend) -> None:
    ledger = backend.open(make_job())
    first = ask(ledger)
    told = ledger.tell(failed(first, FailureClass.LOST))
    assert told is not None
    assert told.retried
    second = ask(ledger)
    assert (second.trial, second.attempt, second.retry_of) == (first.trial, 2, first.number)
    assert second.number != first.number
    assert second.params == first.params
    assert second.seed == first.seed
    assert ask(ledger).seed != first.seed, "another trial has another seed"


def test_a_retry_survives_a_new_controller(backend: Backend) -> None:
    job = make_job()
    with backend.open(job) as ledger:
        first = ask(ledger)
        ledger.tell(failed(first, FailureClass.CRASHED))
    with backend.open(job) as ledger:
        second = ask(ledger)
        assert (second.trial, second.attempt, second.params, second.seed) == (0, 2, first.params, first.seed)
        told = ledger.tell(failed(second, FailureClass.CRASHED))
        assert told is not None
        assert not told.retried, "the one retry is spent, whoever was the controller then"
    with backend.open(job) as ledger:
        assert ask(ledger).trial == 1


def test_what_ran_when_the_controller_went_away_is_lost_and_tried_again(backend: Backend) -> None:
    job = make_job()
    with backend.open(job) as ledger:
        left = [ask(ledger), ask(ledger)]
    with backend.open(job) as ledger:
        assert ledger.running() == []
        assert ledger.counts.retried == 2
        outcomes = [outcome for _, outcome in ledger.attempts()]
        assert all(outcome is not None and outcome.failure is FailureClass.LOST and outcome.retried for outcome in outcomes)
        again = [ask(ledger), ask(ledger)]
    assert [(r.trial, r.attempt, r.params) for r in again] == [(r.trial, 2, r.params) for r in left]


def test_a_late_result_of_a_former_attempt_is_ignored(backend: Backend) -> None:
    ledger = backend.open(make_job())
    first = ask(ledger)
    ledger.tell(failed(first, FailureClass.LOST))
    second = ask(ledger)
    assert ledger.tell(complete(first, score=100.0)) is None
    assert ledger.report(report(first, 0, score=100.0)) is False
    assert ledger.running() == [second]
    ledger.tell(complete(second, score=0.5))
    assert ledger.best is not None
    assert ledger.best.values == (0.5,)


def test_an_end_is_told_once(backend: Backend) -> None:
    ledger = backend.open(make_job())
    request = ask(ledger)
    assert ledger.tell(complete(request, score=0.5)) is not None
    assert ledger.tell(complete(request, score=0.9)) is None
    assert ledger.tell(failed(request, FailureClass.ERROR)) is None
    assert ledger.tell(dataclasses.replace(complete(request, score=0.1), number=99)) is None
    assert ledger.counts.ended == 1
    assert ledger.best is not None
    assert ledger.best.values == (0.5,)


def test_lost_is_retried_five_times_and_does_not_count_against_the_budget(backend: Backend) -> None:
    ledger = backend.open(make_job(trials=1))
    attempts = drive(ledger, lambda request: failed(request, FailureClass.LOST))
    assert [request.attempt for request in attempts] == [1, 2, 3, 4, 5, 6]
    assert (ledger.counts.failed, ledger.counts.retried, ledger.counts.counted_failures) == (1, 5, 0)
    assert ledger.counts.failures == {"lost": 1}


def test_crashed_is_retried_once_and_then_counts(backend: Backend) -> None:
    ledger = backend.open(make_job(trials=1))
    attempts = drive(ledger, lambda request: failed(request, FailureClass.CRASHED))
    assert [request.attempt for request in attempts] == [1, 2]
    assert (ledger.counts.failed, ledger.counts.retried, ledger.counts.counted_failures) == (1, 1, 1)


def test_retries_are_counted_by_class(sqlite: Backend) -> None:
    """A crash does not use up what a lost machine may have."""
    ledger = sqlite.open(make_job(trials=1, retries={"lost": 1, "crashed": 1}))
    classes = iter([FailureClass.LOST, FailureClass.CRASHED, FailureClass.LOST])
    assert len(drive(ledger, lambda request: failed(request, next(classes)))) == 3
    assert ledger.counts.failures == {"lost": 1}


@pytest.mark.parametrize("failure", [FailureClass.ERROR, FailureClass.OOM, FailureClass.INVALID, FailureClass.TIMEOUT])
def test_what_would_fail_again_is_not_retried(backend: Backend, failure: FailureClass) -> None:
    ledger = backend.open(make_job(trials=1))
    assert len(drive(ledger, lambda request: failed(request, failure))) == 1
    assert (ledger.counts.failed, ledger.counts.counted_failures, ledger.counts.failures) == (1, 1, {failure.value: 1})


def test_a_trial_the_user_stopped_runs_again_however_often(sqlite: Backend) -> None:
    ledger = sqlite.open(make_job(trials=1))
    assert len(drive(ledger, lambda request: failed(request, FailureClass.STOPPED), count=9)) == 9
    assert (ledger.counts.failed, ledger.counts.counted_failures, ledger.counts.retried) == (0, 0, 9)


def test_counts_and_rows_are_the_same_for_the_next_controller(backend: Backend) -> None:
    job = make_job(trials=7, pruner="median")
    ends = {
        2: lambda r: failed(r, FailureClass.ERROR, "went wrong"),
        3: lambda r: TrialOutcome(r.number, TrialState.PRUNED, metrics={"score": 0.1}),
        4: lambda r: failed(r, FailureClass.LOST),
        5: lambda r: failed(r, FailureClass.OOM),
    }
    with backend.open(job) as ledger:
        drive(ledger, lambda request: ends.get(request.trial, complete)(request))
        before = (ledger.counts, ledger.newest, ledger.best, list(ledger.attempts()))
    with backend.open(job) as ledger:
        assert (ledger.counts, ledger.newest, ledger.best, list(ledger.attempts())) == before
        assert ledger.counts.ended == 7


def test_trials_can_be_added_to_a_study_that_ended(backend: Backend) -> None:
    with backend.open(make_job(trials=3)) as ledger:
        drive(ledger)
    with backend.open(make_job(trials=5)) as ledger:
        assert [request.trial for request in drive(ledger)] == [3, 4]
        assert ledger.counts.complete == 5


def test_known_good_points_come_first_and_are_completed_by_the_sampler(backend: Backend) -> None:
    job = make_job(enqueue=[{"x": 0.25, "layers": 3, "kind": "b"}, {"x": 0.75}], trials=3)
    with backend.open(job) as ledger:
        first = ask(ledger)
        ledger.tell(complete(first))
    with backend.open(job) as ledger:
        second, third = drive(ledger)
    assert first.params == {"epochs": 2, "x": 0.25, "layers": 3, "kind": "b"}
    assert second.params["x"] == 0.75
    assert second.params.keys() == first.params.keys()
    assert third.params["x"] not in (0.25, 0.75)


def test_conditional_parameters_exist_only_when_their_condition_holds(sqlite: Backend) -> None:
    space = {
        "kind": {"type": "categorical", "choices": ["a", "b"]},
        "depth": {"type": "int", "low": 1, "high": 9, "when": {"kind": "b"}},
    }
    requests = drive(sqlite.open(make_job(space=space, trials=20)), lambda r: complete(r, score=1.0))
    assert {r.params["kind"] for r in requests} == {"a", "b"}
    assert all(("depth" in r.params) == (r.params["kind"] == "b") for r in requests)


def test_the_best_is_the_best_feasible_one(backend: Backend) -> None:
    job = make_job(constraints=[{"metric": "size", "max": 10}], trials=4)
    metrics = iter([(0.5, 5.0), (0.9, 11.0), (0.6, 10.0), (0.4, 1.0)])

    def end(request: TrialRequest) -> TrialOutcome:
        score, size = next(metrics)
        return complete(request, score=score, size=size)

    with backend.open(job) as ledger:
        drive(ledger, end)
        best = ledger.best
    assert best is not None
    assert (best.trial, best.values, best.feasible) == (2, (0.6,), True)
    assert not ledger.newest[1].feasible
    assert backend.open(job).best == best


def test_constraints_reach_the_sampler(sqlite: Backend) -> None:
    """TPE stays away from what is infeasible, though it scores better there."""

    def feasible(**constraints: object) -> int:
        job = make_job(
            space={"x": {"type": "float", "low": 0.0, "high": 1.0}},
            sampler={"name": "tpe", "n_startup_trials": 8},
            trials=40,
            **constraints,
        )
        place = dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/{len(constraints)}.db")
        with place.open(job) as ledger:
            requests = drive(ledger, lambda r: complete(r, score=r.params["x"], size=r.params["x"]))
        return sum(request.params["x"] <= 0.5 for request in requests[20:])

    assert feasible(constraints=[{"metric": "size", "max": 0.5}]) >= feasible() + 8


def test_several_objectives(backend: Backend) -> None:
    objectives = [{"metric": "score", "direction": "maximize"}, {"metric": "cost", "direction": "minimize"}]
    job = make_job(objectives=objectives, sampler="nsgaii", trials=4)
    values = iter([(0.5, 5.0), (0.9, 9.0), (0.4, 6.0), (0.6, 5.0)])

    def end(request: TrialRequest) -> TrialOutcome:
        score, cost = next(values)
        return complete(request, score=score, cost=cost)

    with backend.open(job) as ledger:
        request = ask(ledger)
        assert ledger.report(report(request, 0, score=1.0)) is False, "there is no pruning with several objectives"
        ledger.tell(end(request))
        drive(ledger, end)
        assert ledger.newest[1].values == (0.9, 9.0)
        assert ledger.best is not None
        assert ledger.best.trial in (1, 3), "one of the front"
        best = ledger.best
    assert backend.open(job).best == best


def test_a_trial_of_several_objectives_that_prunes_itself_does_not_stop_the_study(backend: Backend) -> None:
    objectives = [{"metric": "score", "direction": "maximize"}, {"metric": "cost", "direction": "minimize"}]
    job = make_job(objectives=objectives, sampler={"name": "tpe", "n_startup_trials": 2}, trials=8)

    def end(request: TrialRequest) -> TrialOutcome:
        if request.trial == 3:
            return TrialOutcome(request.number, TrialState.PRUNED, metrics={"score": 0.5})
        return complete(request, score=float(request.params["x"]), cost=float(request.params["layers"]))

    with backend.open(job) as ledger:
        drive(ledger, end, count=5)
    with backend.open(job) as ledger:
        drive(ledger, end)
        assert (ledger.counts.complete, ledger.counts.pruned) == (7, 1)


def test_the_pruner_ends_a_bad_trial(backend: Backend) -> None:
    job = make_job(pruner={"name": "median", "n_startup_trials": 2, "n_warmup_steps": 1}, trials=4)
    with backend.open(job) as ledger:
        for _ in range(2):
            request = ask(ledger)
            assert [ledger.report(report(request, step, score=1.0, loss=3.0)) for step in range(3)] == [False] * 3
            ledger.tell(complete(request, score=1.0))
    with backend.open(job) as ledger:  # what the pruner knows of former trials is in the database
        bad = ask(ledger)
        assert ledger.report(report(bad, 0, score=0.1)) is False
        assert ledger.report(report(bad, 1, loss=9.0)) is False, "the pruner looks at the objective only"
        assert ledger.report(report(bad, 2, score=0.1)) is True
        ledger.tell(TrialOutcome(bad.number, TrialState.PRUNED, metrics={"score": 0.1}))
        assert ledger.counts.pruned == 1


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_point_of_a_finite_space_is_tried_once(sqlite: Backend, sampler: str, slots: int) -> None:
    space = {
        "x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    }
    ledger = sqlite.open(make_job(space=space, sampler=sampler, trials=50))
    tried = []
    while True:
        while len(ledger.running()) < slots and (request := ledger.ask()) is not None:
            tried.append((request.params["x"], request.params["kind"]))
        if not ledger.running():
            break
        ledger.tell(complete(ledger.running()[0]))
    assert ledger.is_exhausted
    assert sorted(tried) == [(x, kind) for x in (0.0, 0.5, 1.0) for kind in ("a", "b")]


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
@pytest.mark.parametrize("stopped_after", [0, 1, 4])
def test_every_point_is_tried_once_beside_those_that_are_tried_first(
    sqlite: Backend, sampler: str, stopped_after: int
) -> None:
    space = {
        "x": {"type": "float", "low": 0.0, "high": 0.9, "step": 0.1},
        "kind": {"type": "categorical", "choices": ["a", [1, 2]]},
        "n": {"type": "int", "low": 1, "high": 5, "step": 2},
    }
    first = [{"x": 0.3, "kind": [1, 2], "n": 3}, {"n": 5, "kind": "a", "x": 0.7}]
    job = make_job(space=space, sampler=sampler, trials=60, enqueue=first)
    with sqlite.open(job) as ledger:
        tried = points(drive(ledger, lambda r: complete(r, score=1.0), stopped_after)) if stopped_after else []
    with sqlite.open(job) as ledger:
        tried += points(drive(ledger, lambda r: complete(r, score=1.0)))
        assert ledger.is_exhausted
    known = [(pytest.approx(point["x"]), point["kind"], point["n"]) for point in first]
    assert [(point["x"], point["kind"], point["n"]) for point in tried[:2]] == known
    assert len(tried) == len({(round(p["x"], 9), str(p["kind"]), p["n"]) for p in tried}) == 60


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
def test_a_finite_space_is_tried_out_only_when_the_last_point_has_its_result(sqlite: Backend, sampler: str) -> None:
    job = make_job(space={"x": {"type": "int", "low": 0, "high": 1}}, sampler=sampler, trials=50)
    with sqlite.open(job) as ledger:
        drive(ledger, count=1)
        last = ask(ledger)
        ledger.tell(failed(last, FailureClass.LOST))
        assert not ledger.is_exhausted, "the last point is to be tried again"
        assert [r.params["x"] for r in drive(ledger)] == [last.params["x"]]
        assert ledger.is_exhausted
    with sqlite.open(job) as ledger:
        assert ledger.ask() is None, "the next controller knows it too"
        assert ledger.is_exhausted


def test_paused_trials_are_promoted_or_dropped_and_each_ends_once(backend: Backend) -> None:
    """With a new controller after each end."""
    job = make_job(trials=8, pruner={"name": "asha", "promote": True, "max_resource": 16, "reduction_factor": 2})
    segments = []
    while True:
        with backend.open(job) as ledger:
            request = ledger.ask()
            if request is None:
                counts = ledger.counts
                break
            assert request.segment is not None
            segments.append((request.trial, request.segment.rung, request.segment.done))
            last = request.segment.rung or 16
            ledger.report(TrialReport(request.number, last, {"score": 1.0 - request.trial / 10}, time.time()))
            state = TrialState.PAUSED if request.segment.rung else TrialState.COMPLETE
            ledger.tell(dataclasses.replace(complete(request), state=state, metrics={"score": 1.0 - request.trial / 10}))
    assert (counts.complete, counts.pruned, counts.paused) == (1, 7, 0)
    _, history, _ = play(Ladder(1, 2, 16), 8, lambda trial, done: float(trial))
    assert segments == [(stretch.trial, stretch.rung, stretch.done) for stretch in history]
    with backend.open(job) as ledger:
        assert ledger.is_done
        assert ledger.counts == counts
        assert {row.state for row in ledger.newest.values()} == {TrialState.COMPLETE, TrialState.PRUNED}
