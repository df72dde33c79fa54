"""The part of a long history that a sampler is shown: the best trials, and an even sample of the others.

Not checked here: that a stop changes nothing in it (tests/contracts/test_ledger_resume.py), nor what it costs in quality
(tests/benchmarks/search.py).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from tests.controller.trainings import job

from trialplane.controller import samplers
from trialplane.controller.history import BOUNDS, History
from trialplane.wire.earlier import EarlierTrial

LIMIT, BEST = BOUNDS["tpe"]

LOSS = {"metric": "loss", "direction": "minimize"}
SCORE = {"metric": "score", "direction": "maximize"}


def filled(trials: Sequence[Mapping[str, Any]], *objectives: dict[str, str], **fields: Any) -> History:
    """A history of finished trials, in a study of these objectives."""
    memory = History(job(**{"kind": "hpo", "objectives": list(objectives) or [LOSS], **fields}))
    study_id = memory.create_new_study(memory.directions, "toy")
    for number, trial in enumerate(trials):
        memory.create_new_trial(study_id, optuna.trial.create_trial(**trial))
        memory.record_end(memory.get_trial(number), False)
    return memory


def shown(memory: History) -> list[FrozenTrial]:
    with memory.sampler_view():
        return memory.get_all_trials(0)


def numbers(trials: Sequence[FrozenTrial]) -> set[int]:
    return {trial.number for trial in trials}


@pytest.mark.parametrize("count", [LIMIT, LIMIT + 1, LIMIT + 200, 1801, 2801])
def test_exactly_as_many_are_shown(count: int) -> None:
    rng = random.Random(count)
    memory = filled([{"value": rng.random()} for _ in range(count)])
    running = memory.create_new_trial(0)
    seen = shown(memory)
    assert [trial.number for trial in seen] == sorted(numbers(seen))
    assert len(seen) == min(count, LIMIT) + 1
    assert seen[-1].number == running, "beside those that are not finished"
    ranked = sorted(memory.get_all_trials(0)[:count], key=lambda trial: trial.value or 0.0)
    assert numbers(ranked[:BEST]) <= numbers(seen)
    others = sorted(trial.number for trial in ranked[BEST:])
    places = [place for place, number in enumerate(others) if number in numbers(seen)]
    assert max(after - before for before, after in itertools.pairwise(places)) <= -(-count // (LIMIT - BEST)), "evenly"


def test_what_no_sampler_reads_takes_no_room() -> None:
    failed = {"state": TrialState.FAIL}
    seen = shown(filled([{"value": float(number)} if number % 2 else failed for number in range(2 * LIMIT + 2)]))
    assert len(seen) == LIMIT
    assert {trial.state for trial in seen} == {TrialState.COMPLETE}


def test_trials_of_one_space_share_its_distributions() -> None:
    memory = filled([])
    for number in range(2):
        trial_id = memory.create_new_trial(0)
        for name in ("x", "y"):
            memory.set_trial_param(trial_id, name, 0.5, optuna.distributions.FloatDistribution(0, 1))
        memory.record_end(memory.get_trial(number), False)
    first, second = memory.get_all_trials(0, deepcopy=False)
    assert first.distributions is second.distributions
    assert first.distributions["x"] is first.distributions["y"]


def test_gp_has_room_for_all_that_completed() -> None:
    """It reads no pruned trials."""
    pruned = {"state": TrialState.PRUNED, "intermediate_values": {1: 0.5}}
    limit = BOUNDS["gp"].trials
    memory = filled([{"value": 1.0} if number % 2 else pruned for number in range(2 * limit)], sampler="gp")
    assert sum(trial.state is TrialState.COMPLETE for trial in shown(memory)) == limit
    memory = filled([{"value": float(number)} for number in range(LIMIT)], sampler="gp")
    assert len(shown(memory)) == limit, "fewer than TPE gets"


def front(count: int) -> list[dict[str, list[float]]]:
    """Points of which none dominates another, the second objective in the thousands."""
    return [{"values": [place / count, 1e4 * math.sqrt(place / count)]} for place in range(count)]


def dominated(count: int, rng: random.Random) -> list[dict[str, list[float]]]:
    """Points that the front dominates, though the sum of their objectives is better than that of most of its points."""
    return [{"values": [2.0 + rng.random(), 1e4 * (0.9 + 0.05 * rng.random())]} for _ in range(count)]


def test_the_whole_front_is_shown() -> None:
    rng = random.Random(0)
    trials = [*front(97), *dominated(1801 - 97, rng)]
    rng.shuffle(trials)
    memory = filled(trials, LOSS, SCORE)
    seen = numbers(shown(memory))
    assert len(seen) == LIMIT
    assert {number for number, trial in enumerate(trials) if trial["values"][0] <= 1.0} <= seen


def test_of_a_front_that_is_too_long_the_points_are_spread() -> None:
    trials = front(4 * LIMIT)
    seen = sorted(numbers(shown(filled(trials, LOSS, SCORE))))
    assert len(seen) == LIMIT
    assert {0, 4 * LIMIT - 1} <= set(seen), "the ends of the front"


@pytest.mark.parametrize("objectives", [[LOSS], [LOSS, SCORE]], ids=["one", "two"])
def test_infeasible_trials_are_shown_by_their_violation(objectives: list[dict[str, str]]) -> None:
    rng = random.Random(1)
    excesses = [rng.uniform(0.1, 9.0) for _ in range(2 * LIMIT)]
    values = [0.0] * len(objectives)
    memory = filled([{"values": values, "constraints": {"size": excess, "cost": -1.0}} for excess in excesses], *objectives)
    seen = numbers(shown(memory))
    assert len(seen) == LIMIT
    assert set(sorted(range(2 * LIMIT), key=excesses.__getitem__)[:BEST]) <= seen


def test_feasible_trials_come_before_infeasible_ones_and_pruned_ones_between() -> None:
    """The order in which TPE takes them for its good ones."""
    rng = random.Random(2)
    feasible = [{"value": rng.random()} for _ in range(100)]
    far = [{"state": TrialState.PRUNED, "intermediate_values": {0: 0.1, 9: 5.0 + rng.random()}} for _ in range(60)]
    near = [{"state": TrialState.PRUNED, "intermediate_values": {0: rng.random()}} for _ in range(1000)]
    beyond = [{"value": -1.0, "constraints": {"size": 1.0}} for _ in range(1000)]
    trials = [*beyond, *near, *far, *feasible]
    seen = numbers(shown(filled(trials)))
    assert len(seen) == LIMIT
    assert set(range(2000, 2160)) <= seen
    best = sorted(range(1000, 2000), key=lambda number: trials[number]["intermediate_values"][0])
    assert set(best[: BEST - 160]) <= seen


def test_a_trial_that_is_tried_again_gives_its_place_back() -> None:
    memory = filled([{"value": float(number)} for number in range(LIMIT + 1)])
    memory.replace(0, optuna.trial.create_trial(state=TrialState.RUNNING))
    assert len(shown(memory)) == LIMIT + 1, "all others, and itself"
    memory.set_trial_state_values(0, TrialState.COMPLETE, [5.0])
    memory.record_end(memory.get_trial(0), False)
    assert len(shown(memory)) == LIMIT


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_failures_of_earlier_studies_rank_behind_paused_trials(direction: str) -> None:
    fields: dict[str, Any] = {
        "kind": "hpo",
        "params": {"epochs": 16},
        "objectives": [{**LOSS, "direction": direction}],
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": "cmaes",
        "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
    }
    study = job(**fields)
    trials = [
        EarlierTrial("before", 0, {"x": 0.1}, values=(0.5,)),
        EarlierTrial("before", 1, {"x": 0.2}),
        EarlierTrial("before", 2, {"x": 0.3}, metrics={"loss": 0.5}, step=1, pruned=True),
    ]
    memory = History(study, samplers.earlier_trials(study, trials))
    memory.create_new_study(memory.directions, "toy")
    sign = 1 if direction == "minimize" else -1
    values = {trial.params["x"]: sign * (trial.value or 0.0) for trial in shown(memory)}
    assert sorted(values, key=lambda x: values[x]) == [0.1, 0.3, 0.2]
