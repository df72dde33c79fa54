"""The comparison of runs and of trials: which differences may be noise, and when a value is reached."""

from __future__ import annotations

import dataclasses

import pytest
from tests.pages import studies

from trialplane.pages import comparison
from trialplane.wire import rows
from trialplane.wire.states import TrialState


def verdicts(better: float) -> dict[str, str]:
    """Of a group of three runs against one whose values are smaller by some amount."""
    runs = []
    for sampler, shift in (("tpe", 0.0), ("random", better)):
        for seed in range(3):
            made = studies.study(40, seed=seed, sampler=sampler, run=f"{sampler}-{seed}")
            rows = [
                dataclasses.replace(row, values=tuple(value + shift + 0.001 * seed for value in row.values))
                for row in made.attempts
            ]
            runs.append(dataclasses.replace(made, attempts=rows))
    pairs = comparison.run_comparison(runs)["pairs"]
    return {pair["a"]: pair["verdict"] for pair in pairs}


def test_a_difference_beyond_the_noise_is_told_from_one_within():
    assert verdicts(0.5) == {"sampler.name=random": "differs"}
    assert list(verdicts(0.0001).values()) == ["may be noise"]


def test_trials_are_compared_with_their_curves_and_the_step_that_reached_a_value():
    recorded = studies.promoted(32)
    complete = [row.trial for row in recorded.attempts if row.values]
    dropped = next(row.trial for row in recorded.attempts if row.state is TrialState.PRUNED and row.step == 4)
    compared = comparison.trial_comparison([(recorded, complete[0]), (recorded, dropped)], goal=0.65)
    assert compared["differing"] and set(compared["differing"]) <= set(studies.SPACE)
    whole, part = compared["trials"]
    assert (whole["state"], whole["step"], part["state"], part["step"]) == ("COMPLETE", 64, "PRUNED", 4)
    assert [len(curve["points"]) for curve in compared["curves"]] == [64, 4]  # all segments of the promoted one
    steps = {point["value"]: point["steps"] for point in compared["curves"][0]["points"]}
    assert whole["steps"] == min(step for value, step in steps.items() if value <= 0.65)


def test_trials_with_the_same_parameters_are_repetitions():
    recorded = studies.study(40)
    chosen = [row.trial for row in rows.newest_attempts(recorded.attempts) if row.values][:5]
    same = {trial: {"lr": 0.1 if index < 3 else 0.2} for index, trial in enumerate(chosen)}
    attempts = [dataclasses.replace(row, params=same.get(row.trial, row.params)) for row in recorded.attempts]
    compared = comparison.trial_comparison([(dataclasses.replace(recorded, attempts=attempts), trial) for trial in chosen])
    assert sorted(len(group["members"]) for group in compared["groups"]) == [2, 3]
    assert {group["name"] for group in compared["groups"]} == {"lr=0.1", "lr=0.2"}
    assert compared["pairs"][0]["low"] is not None


def test_many_curves_have_fewer_points_each(monkeypatch: pytest.MonkeyPatch):
    recorded = studies.study(40, steps=200)
    complete = [row.trial for row in recorded.attempts if row.values and row.attempt == 1][:4]
    monkeypatch.setattr(comparison, "_MAX_TOTAL_POINTS", 400)
    compared = comparison.trial_comparison([(recorded, trial) for trial in complete])
    assert [len(curve["points"]) for curve in compared["curves"]] == [100] * 4


def test_the_time_to_a_value_is_that_of_the_first_trial_at_least_as_good():
    recorded = studies.study(40)
    compared = comparison.run_comparison([recorded, dataclasses.replace(recorded, attempts=[])], goal=0.2)
    (run, empty) = compared["runs"]
    first = min(row.ended for row in recorded.attempts if row.values and row.values[0] <= 0.2)
    begun = min(row.started for row in recorded.attempts)
    assert run["reached"] == pytest.approx(first - begun)
    assert run["steps"] == sum(report.time <= first for report in recorded.reports)
    assert (empty["best"], empty["reached"], empty["trial"]) == (None, None, None)
