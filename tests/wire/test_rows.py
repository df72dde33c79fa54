"""Rows of logical trials, their order from best to worst, and the front; against a slow definition written down again.

Not checked here: tables on a screen (tests/cli).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire import rows, states
from trialplane.wire.records import TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, TrialState


def make_job(*directions: str, constraints: Any = ()) -> Job:
    objectives = [{"metric": f"m{index}", "direction": direction} for index, direction in enumerate(directions)]
    return kinds.read({"name": "toy", "kind": "hpo", "objectives": objectives, "constraints": constraints})


ONE = make_job("maximize")
TWO = make_job("maximize", "minimize")


def complete(trial: int, *values: float, feasible: bool = True) -> TrialRow:
    return TrialRow(trial, TrialState.COMPLETE, 1, trial, values=values, feasible=feasible)


def request(trial: int, attempt: int = 1) -> TrialRequest:
    return TrialRequest("toy", trial, attempt, 10 * attempt + trial, {}, 0, ("m0",))


def test_a_row_of_a_running_attempt() -> None:
    row = rows.row(ONE, request(3), {"x": 1}, None)
    assert (row.trial, row.state, row.attempt, row.params, row.values, row.seconds) == (
        3,
        TrialState.RUNNING,
        1,
        {"x": 1},
        (),
        None,
    )
    assert (row.started, row.slot) == (None, None), "it is not in the ledger yet"


def test_a_row_of_a_running_attempt_has_its_start_and_its_slot() -> None:
    row = rows.row(ONE, dataclasses.replace(request(3), begun=100.0, slot=2), {}, None)
    assert (row.started, row.slot, row.ended) == (100.0, 2, None)


def test_a_row_of_a_result() -> None:
    job = make_job("maximize", "minimize", constraints=[{"metric": "size", "max": 3}])
    outcome = TrialOutcome(13, TrialState.COMPLETE, metrics={"m1": 2.0, "m0": 1.0, "size": 4.0}, started=5.0, ended=7.5)
    row = rows.row(job, request(3), {}, outcome)
    assert (row.values, row.feasible, row.seconds) == ((1.0, 2.0), False, 2.5)


def test_a_row_of_a_failure_and_of_one_that_is_tried_again() -> None:
    failed = TrialOutcome(13, TrialState.FAILED, failure=FailureClass.LOST, message="gone", metrics={"m0": 0.5})
    row = rows.row(ONE, request(3), {}, failed)
    assert (row.state, row.failure, row.message, row.values, row.metrics) == (
        TrialState.FAILED,
        FailureClass.LOST,
        "gone",
        (),
        {"m0": 0.5},
    )
    again = TrialOutcome(13, TrialState.FAILED, failure=FailureClass.LOST, retried=True)
    assert rows.row(ONE, request(3), {}, again).state is TrialState.LOST
    paused = TrialOutcome(13, TrialState.FAILED, failure=FailureClass.STOPPED, retried=True)
    assert rows.row(ONE, request(3), {}, paused).state is TrialState.PAUSED
    with_its_run = dataclasses.replace(paused, message=states.RUN_FAILED)
    assert rows.row(ONE, request(3), {}, with_its_run).state is TrialState.FAILED


def test_the_newest_attempt_of_each_trial() -> None:
    attempts = [
        TrialRow(trial, TrialState.RUNNING, attempt, number)
        for trial, attempt, number in [(1, 1, 1), (0, 2, 3), (0, 1, 0), (2, 1, 2)]
    ]
    assert [(row.trial, row.attempt) for row in rows.newest_attempts(attempts)] == [(0, 2), (1, 1), (2, 1)]


def test_a_promoted_trial_took_as_long_as_all_of_its_segments() -> None:
    attempts = [
        TrialRow(0, TrialState.LOST, 1, 0, seconds=9.0, started=100.0),
        TrialRow(0, TrialState.PAUSED, 2, 1, seconds=1.0, started=110.0),
        TrialRow(0, TrialState.PAUSED, 3, 3, seconds=2.0, started=120.0, series=1),
        TrialRow(1, TrialState.PAUSED, 1, 2, seconds=1.0, started=115.0),
        TrialRow(0, TrialState.COMPLETE, 4, 4, seconds=4.0, started=130.0, series=1),
    ]
    trial, other = rows.newest_attempts(attempts)
    assert (trial.attempt, trial.started, trial.seconds) == (4, 110.0, 7.0), "without the attempt that was lost"
    assert other.seconds == 1.0


def test_a_promoted_trial_that_runs_began_with_its_first_segment() -> None:
    attempts = [
        TrialRow(0, TrialState.PAUSED, 1, 0, seconds=2.0, started=110.0),
        TrialRow(0, TrialState.RUNNING, 2, 1, started=120.0, series=0),
        TrialRow(1, TrialState.LOST, 1, 2, seconds=2.0, started=130.0),
        TrialRow(1, TrialState.RUNNING, 2, 3, started=140.0),
    ]
    assert [(row.started, row.seconds) for row in rows.newest_attempts(attempts)] == [(110.0, None), (140.0, None)]


def test_from_best_to_worst() -> None:
    table = [
        TrialRow(0, TrialState.RUNNING, 1, 0),
        TrialRow(1, TrialState.FAILED, 1, 1),
        complete(2, 0.9, feasible=False),
        complete(3, 0.1),
        TrialRow(4, TrialState.PRUNED, 1, 4),
        complete(5, 0.5),
        complete(6, 0.5),
        TrialRow(7, TrialState.LOST, 1, 7),
    ]
    assert [row.trial for row in rows.ranked(ONE, table)] == [5, 6, 3, 2, 4, 1, 7, 0]
    assert [row.trial for row in rows.ranked(make_job("minimize"), table)][:3] == [3, 5, 6]


def test_pruned_and_paused_trials_that_went_further_are_better() -> None:
    steps_and_values = [(1, 0.9), (4, 0.2), (None, 0.5), (4, 0.8), (4, float("nan")), (4, None)]
    for state in (TrialState.PRUNED, TrialState.PAUSED):
        table = [
            TrialRow(trial, state, 1, trial, step=step, metrics={} if value is None else {"m0": value})
            for trial, (step, value) in enumerate(steps_and_values)
        ]
        assert [row.trial for row in rows.ranked(ONE, table)] == [3, 1, 4, 5, 0, 2]
        assert [row.trial for row in rows.ranked(make_job("minimize"), table)] == [1, 3, 4, 5, 0, 2]


def test_the_best() -> None:
    assert rows.best_trial(ONE, []) is None
    assert rows.best_trial(ONE, [complete(0, 1.0, feasible=False), TrialRow(1, TrialState.FAILED, 1, 1)]) is None
    best = rows.best_trial(ONE, [complete(0, 0.5), complete(1, 1.0, feasible=False), complete(2, 0.7)])
    assert best is not None
    assert best.trial == 2


def test_the_front_of_one_objective_is_its_best() -> None:
    assert [row.trial for row in rows.pareto_front(ONE, [complete(0, 0.5), complete(1, 0.7), complete(2, 0.7)])] == [1, 2]


VALUES = st.sampled_from([0.0, 0.25, 0.5, 1.0, float("inf")])
TABLES = st.lists(st.tuples(VALUES, VALUES, st.booleans()), max_size=12).map(
    lambda values: [complete(index, first, second, feasible=ok) for index, (first, second, ok) in enumerate(values)]
)


def better(one: TrialRow, other: TrialRow) -> bool:
    """Whether `one` beats `other`: m0 is to be large, m1 small."""
    no_worse = one.values[0] >= other.values[0] and one.values[1] <= other.values[1]
    return no_worse and one.values != other.values


@settings(deadline=None)
@given(TABLES)
def test_the_front_is_what_nothing_beats(table: list[TrialRow]) -> None:
    feasible = [row for row in table if row.feasible]
    expected = [row for row in feasible if not any(better(other, row) for other in feasible)]
    assert rows.pareto_front(TWO, table) == expected
    best = rows.best_trial(TWO, table)
    assert best in expected if expected else best is None


@settings(deadline=None)
@given(TABLES, st.randoms())
def test_with_several_objectives_fronts_come_one_after_the_other(table: list[TrialRow], shuffle: Any) -> None:
    order = rows.ranked(TWO, table)
    assert sorted(row.trial for row in order) == [row.trial for row in table]
    feasible = [row for row in order if row.feasible]
    assert order[: len(feasible)] == feasible, "the infeasible ones come last"
    for before, after in itertools.combinations(feasible, 2):
        assert not better(after, before)
    mixed = list(table)
    shuffle.shuffle(mixed)
    assert rows.ranked(TWO, mixed) == order, "the order they came in does not matter"
