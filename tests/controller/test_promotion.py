"""Promotion: which trial trains next and up to which rung, the steps that this takes, and that a crash changes nothing.

The rule is checked by simulation, the ledger is real. Not checked here: how a trial is paused in its process
(tests/worker/test_saving.py), and a real run under kills (tests/study/test_promotion.py).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import random
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers._tpe import sampler as tpe
from tests.controller.conftest import outcome
from tests.controller.loops import PAUSED, Loop
from tests.controller.slots_double import Slots
from tests.controller.trainings import Opened, asked, failed, job, shown

from trialplane.controller import export
from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.promotion import Promotion, Stretch
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.job.search import Ladder
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import StudyOrder
from trialplane.wire.progress import RungProgress
from trialplane.wire.records import CheckpointSummary, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

TOP = 64
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "params": {"epochs": TOP},
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "sampler": "random",
    "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
    "trials": 64,
}


def steps(ladder: Ladder, trials: int) -> int:
    """The formula: n trials up to the first rung, of those at a rung one in `factor` up to the next one, or to the end."""
    total, done = 0, 0
    for rung in (*ladder.rungs(), ladder.top):
        total += trials * (rung - done)
        trials, done = trials // ladder.factor, rung
    return total


# The rule


def play(
    ladder: Ladder,
    trials: int,
    loss: Callable[[int, int], float],
    *,
    slots: int = 1,
    budget: int | None = None,
    pick: Callable[[int], int] = lambda running: 0,
) -> tuple[Promotion, list[Stretch], collections.Counter[TrialState]]:
    """A whole study in which segments end in the order that `pick` says."""
    rule = Promotion(ladder, trials, budget)
    drawn, running, history, ends = 0, list[Stretch](), list[Stretch](), collections.Counter[TrialState]()
    while True:
        while len(running) < slots and (stretch := rule.next_stretch(drawn if drawn < trials else None)) is not None:
            if stretch.trial is None:
                stretch, drawn = dataclasses.replace(stretch, trial=drawn), drawn + 1
            rule.record_start(stretch)
            running.append(stretch)
            history.append(stretch)
        if not running:
            ends[TrialState.PRUNED] += len(rule.paused)
            return rule, history, ends
        ended = running.pop(pick(len(running)))
        assert ended.trial is not None
        state = TrialState.PAUSED if ended.rung else TrialState.COMPLETE
        done = ended.rung or ladder.top
        rule.record_end(ended.trial, state, done, (loss(ended.trial, done),))
        ends[TrialState.COMPLETE] += state is TrialState.COMPLETE
        for trial in rule.find_hopeless():
            rule.drop(trial)
            ends[TrialState.PRUNED] += 1


@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 300), st.integers(1, 200))
@settings(deadline=None)
def test_the_steps_trained_are_those_of_the_formula(first: int, factor: int, top: int, trials: int) -> None:
    """On a planted problem: earlier trials are better, so nothing is promoted that is not among the best in the end."""
    ladder = Ladder(first, factor, top)
    rule, history, ends = play(ladder, trials, lambda trial, done: float(trial))
    rungs = ladder.rungs()
    if trials // factor ** len(rungs):
        assert rule.used_steps == steps(ladder, trials)
    else:  # then the best of the highest rung goes on to the end
        assert rule.used_steps >= steps(ladder, trials)
        assert ends[TrialState.COMPLETE] == 1
    assert sum(ends.values()) == trials
    for number, rung in enumerate(rungs):
        reached = [stretch for stretch in history if stretch.rung == rung]
        assert len(reached) >= trials // factor**number


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_whatever_trials_do_no_step_is_lost_and_each_ends_once(data: st.DataObject) -> None:
    ladder = Ladder(
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(2, 4)),
        data.draw(st.integers(1, 100)),
        data.draw(st.integers(1, 3)),
    )
    trials, slots = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 8))
    budget = data.draw(st.none() | st.integers(ladder.top, 2000))
    generator = random.Random(data.draw(st.integers(0, 2**32)))
    losses = collections.defaultdict[int, float](generator.random)
    rule, history, ends = play(
        ladder, trials, lambda trial, done: losses[trial], slots=slots, budget=budget, pick=generator.randrange
    )
    by_trial: dict[int, list[Stretch]] = collections.defaultdict(list)
    for stretch in history:
        assert stretch.trial is not None
        by_trial[stretch.trial].append(stretch)
    for stretches in by_trial.values():
        assert stretches[0].done == 0
        for before, after in itertools.pairwise(stretches):
            assert after.done == before.rung, "it continues where it was paused"
            assert after.rung == 0 or after.rung > before.rung
    assert rule.used_steps == sum((stretch.rung or ladder.top) - stretch.done for stretch in history)
    assert budget is None or rule.used_steps <= budget
    assert budget is not None or sum(ends.values()) == trials
    assert ends[TrialState.COMPLETE] >= 1
    if budget is not None and rule.is_budget_spent:
        assert budget - rule.used_steps < ladder.top, "nothing that fits is left out"


def test_a_trial_is_dropped_as_soon_as_it_cannot_be_promoted() -> None:
    rule = Promotion(Ladder(1, 4, 16), trials=8)
    for trial in range(4):
        rule.record_start(rule.first_stretch(trial))
        rule.record_end(trial, TrialState.PAUSED, 1, (float(trial),))
    assert rule.find_hopeless() == [2, 3], "of 8 trials 2 are promoted"
    assert rule.next_stretch(4) == Stretch(0, 4, 1)


def test_several_values_are_compared_by_fronts() -> None:
    rule = Promotion(Ladder(1, 2, 4), trials=4)
    for trial, losses in enumerate([(3.0, 3.0), (1.0, 4.0), (4.0, 1.0), (2.0, 5.0)]):
        rule.record_start(rule.first_stretch(trial))
        rule.record_end(trial, TrialState.PAUSED, 1, losses)
    first = rule.next_stretch(None)
    assert first == Stretch(1, 2, 1)
    rule.record_start(first)
    assert rule.next_stretch(None) == Stretch(0, 2, 1), "which nothing dominates, although 3 has the better first value"


def test_a_value_that_is_no_number_is_the_worst() -> None:
    rule = Promotion(Ladder(1, 2, 4), trials=2)
    for trial, loss in enumerate([math.nan, 5.0]):
        rule.record_start(rule.first_stretch(trial))
        rule.record_end(trial, TrialState.PAUSED, 1, (loss,))
    assert rule.next_stretch(None) == Stretch(1, 2, 1)


def test_a_trial_that_fails_at_its_rung_takes_no_place_there() -> None:
    """The best two fail after their report at the rung, as when their checkpoints cannot be written."""
    rule = Promotion(Ladder(1, 4, 16), trials=8)
    for trial in range(8):
        rule.record_start(rule.first_stretch(trial))
        state = TrialState.FAILED if trial < 2 else TrialState.PAUSED
        rule.record_end(trial, state, 1, (float(trial),))
    assert rule.next_stretch(None) == Stretch(2, 4, 1), "the best of those that can continue"
    assert rule.find_hopeless() == [3, 4, 5, 6, 7], "one of the six is promoted"
    assert next(rule.rung_progress()) == RungProgress(1, 6, 6)
    assert rule.used_steps == 8


def test_brackets_start_one_rung_higher_and_are_smaller() -> None:
    ladder = Ladder(1, 4, 64, brackets=3)
    brackets = collections.Counter(ladder.bracket(trial) for trial in range(2100))
    assert [brackets[bracket] for bracket in range(3)] == pytest.approx([1600, 400, 100], abs=2), "4 to 1, spread evenly"
    assert [ladder.next_rung(0, bracket) for bracket in range(3)] == [1, 4, 16]


# In the ledger


def planted(trial: int, done: int) -> float:
    """Earlier trials are better, at each step."""
    return trial + 1 - done / TOP


def crossing(trial: int, done: int) -> float:
    """At each rung another trial is the best."""
    return abs(trial - 3 * math.log2(done))


class Trainings:
    """What trials do: each trains `top` epochs."""

    def __init__(self, first: int = 1, loss: Callable[[int, int], float] = planted, top: int = TOP) -> None:
        self.trained: list[tuple[int, int]] = []
        self._first, self._loss, self._top = first, loss, top

    def run(self, ledger: Ledger, request: TrialRequest) -> None:
        """One attempt, up to the end of its segment."""
        segment = request.segment
        assert segment is not None
        last, metrics = segment.rung or self._top, {}
        for done in range(segment.done + 1, last + 1):
            metrics = {"loss": self._loss(request.trial, done), "size": request.trial * 7 % 11}
            ledger.report(TrialReport(request.number, done - 1 + self._first, metrics, time.time()))
            self.trained.append((request.trial, done))
        state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
        saved = CheckpointSummary(1, 100, f"digest of {request.trial} at {last}")
        ledger.tell(outcome(request.number, state=state, metrics=metrics, checkpoints=saved))


def study(**fields: Any) -> Any:
    return job(**{**SEARCH, **fields})


def snapshot(opened: Opened, of: Any, folder: Path) -> Ledger:
    """What a controller finds that starts now."""
    copy = Opened(folder)
    for file in opened.run.root.glob(f"{opened.run.ledger.name}*"):
        shutil.copy(file, copy.run.root)
    return copy.open(of)


@pytest.mark.parametrize("first", [0, 1], ids=["steps from 0", "steps from 1"])
def test_a_study_trains_the_steps_of_the_formula(opened: Opened, first: int) -> None:
    ledger, trainings = opened.open(study()), Trainings(first)
    while (request := ledger.ask()) is not None:
        trainings.run(ledger, request)
    assert ledger.is_done
    assert ledger.promotion is not None
    assert len(trainings.trained) == ledger.promotion.used_steps == steps(Ladder(1, 4, TOP), 64) == 64 + 48 + 48 + 48
    assert len(set(trainings.trained)) == len(trainings.trained), "no step twice"
    counts = ledger.counts
    assert (counts.complete, counts.pruned, counts.paused, counts.failed) == (1, 63, 0, 0)
    assert ledger.best is not None
    assert ledger.best.trial == 0
    for _, ended in ledger.attempts():
        assert ended is not None
    reopened = opened.open(study())
    assert reopened.is_done
    assert reopened.counts == counts
    assert reopened.ask() is None


def test_a_promoted_trial_names_the_checkpoint_that_it_continues_from(opened: Opened) -> None:
    ledger, trainings = opened.open(study()), Trainings()
    requests = []
    while len(requests) < 5 and (request := ledger.ask()) is not None:
        requests.append(request)
        trainings.run(ledger, request)
    first, promoted = requests[0], requests[4]
    assert (first.trial, promoted.trial, promoted.attempt, promoted.retry_of) == (0, 0, 2, 0)
    assert promoted.params == first.params
    assert promoted.segment is not None
    assert promoted.segment.parent is not None
    assert (promoted.segment.rung, promoted.segment.done, promoted.segment.offset) == (4, 1, 0)
    assert (first.series, promoted.series) == (0, 0)
    assert (promoted.segment.parent.step, promoted.segment.parent.digest) == (1, "digest of 0 at 1")


def unwanted(work: StudyWorkload) -> set[int]:
    """The trials whose checkpoints it removes."""
    assert work._remover is not None
    return {folder.trial for folder in work._remover.unwanted}


def test_a_promoted_trial_that_failed_and_is_tried_again_starts_over(opened: Opened) -> None:
    """Its checkpoints were removed when it failed. Those of the retry are not."""
    ledger, trainings = opened.open(study()), Trainings()
    for _ in range(4):
        trainings.run(ledger, asked(ledger))
    promoted = asked(ledger)
    ledger.tell(failed(promoted, FailureClass.ERROR))
    failed_only = StudyWorkload(ledger, Slots(1))
    ledger = opened.open(study(retries={"failed_before": 5}))
    retried = StudyWorkload(ledger, Slots(1))
    assert [unwanted(work) for work in (failed_only, retried)] == [{promoted.trial}, set()]
    again = asked(ledger)
    assert (again.trial, again.retry_of) == (promoted.trial, promoted.number)
    assert promoted.segment is not None
    assert again.segment == dataclasses.replace(promoted.segment, parent=None, series=None)


BOTH = [{"metric": "loss", "direction": "minimize"}, {"metric": "size", "direction": "minimize"}]


@pytest.mark.parametrize(
    ("fields", "loss", "first_rungs"),
    [
        ({}, planted, {1}),
        ({"sampler": {"name": "tpe", "n_startup_trials": 4}}, planted, {1}),
        ({"objectives": BOTH}, crossing, {1}),
        ({"pruner": {**SEARCH["pruner"], "brackets": 3}}, crossing, {1, 4, 16}),
        ({"pruner": {**SEARCH["pruner"], "max": "auto", "reduction_factor": 2}}, crossing, {1}),
    ],
    ids=["random", "tpe", "objectives", "brackets", "auto"],
)
def test_a_controller_that_is_killed_changes_no_decision(
    opened: Opened, tmp_path: Path, fields: dict[str, Any], loss: Callable[[int, int], float], first_rungs: set[int]
) -> None:
    """At each decision, one that starts from the ledger decides the same; half of the time with a trial at work."""
    of = study(**{"trials": 24, **fields})
    ledger, trainings, decisions = opened.open(of), Trainings(loss=loss), 0
    rungs, tops = set[int](), set[int]()
    while True:
        other = snapshot(opened, of, tmp_path / f"copy-{decisions}")
        request, again = ledger.ask(), other.ask()
        assert again == request
        assert other.counts == ledger.counts
        assert other.promotion is not None
        assert ledger.promotion is not None
        assert other.promotion.top == ledger.promotion.top
        assert list(other.promotion.rung_progress()) == list(ledger.promotion.rung_progress())
        tops.add(ledger.promotion.top)
        other.close()
        decisions += 1
        if request is None:
            break
        if decisions % 2:
            ledger = opened.open(of)  # the attempt was running, and is lost
            repeated = ledger.ask()
            assert repeated is not None
            assert (repeated.trial, repeated.params, repeated.retry_of) == (request.trial, request.params, request.number)
            assert repeated.series == repeated.number, "a retry begins another series"
            assert repeated.segment is not None
            assert request.segment is not None
            assert (repeated.segment.rung, repeated.segment.done) == (request.segment.rung, request.segment.done)
            request = repeated
        if request.segment is not None and request.segment.done == 0:
            rungs.add(request.segment.rung)
        trainings.run(ledger, request)
    assert ledger.promotion is not None
    assert ledger.promotion.used_steps == len(trainings.trained)
    assert decisions > 25
    assert rungs == first_rungs
    assert (len(tops) > 1) == ("auto" in str(fields)), "the top is raised"


@pytest.mark.parametrize(
    ("fields", "loss"),
    [
        ({"sampler": {"name": "tpe", "n_startup_trials": 4}}, planted),
        ({"objectives": BOTH}, crossing),
        ({"pruner": {**SEARCH["pruner"], "brackets": 3}}, crossing),
        ({"pruner": {**SEARCH["pruner"], "max": "auto", "reduction_factor": 2}}, crossing),
    ],
    ids=["tpe", "objectives", "brackets", "auto"],
)
def test_a_controller_that_is_killed_while_several_trials_train_decides_the_same(
    opened: Opened, tmp_path: Path, fields: dict[str, Any], loss: Callable[[int, int], float]
) -> None:
    """Three segments run, and end in a random order. After each end, one that starts from the ledger decides the same."""
    of, generator = study(**{"trials": 24, **fields}), random.Random(7)
    ledger, trainings = opened.open(of), Trainings(loss=loss)
    running = [asked(ledger) for _ in range(3)]
    tops, decisions, promotions = set[int](), 0, 0
    while running:
        trainings.run(ledger, running.pop(generator.randrange(len(running))))
        other = snapshot(opened, of, tmp_path / f"copy-{decisions}")
        repeated = [asked(other) for _ in running]
        assert list(map(decision, repeated)) == list(map(decision, running)), "they were lost with the controller"
        assert other.promotion is not None
        assert ledger.promotion is not None
        assert other.promotion.top == ledger.promotion.top
        assert other.promotion.used_steps == ledger.promotion.used_steps
        assert list(other.promotion.rung_progress()) == list(ledger.promotion.rung_progress())
        request, again = ledger.ask(), other.ask()
        assert (request and decision(request)) == (again and decision(again))
        other.close()
        tops.add(ledger.promotion.top)
        decisions += 1
        if request is not None:
            running.append(request)
            promotions += request.attempt > 1
    assert promotions > 4
    assert (len(tops) > 1) == ("auto" in str(fields)), "the top is raised"


def decision(request: TrialRequest) -> tuple[int, Any, int, int]:
    """What a decision starts: the trial, its parameters, its rung, and the steps done before."""
    assert request.segment is not None
    return request.trial, request.params, request.segment.rung, request.segment.done


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param({"name": "gp", "n_startup_trials": 6, "deterministic_objective": True}, marks=pytest.mark.slow),
        {"name": "cmaes", "n_startup_trials": 4},
        {"name": "nsgaii", "population_size": 4},
    ],
    ids=lambda sampler: sampler["name"],
)
def test_a_study_of_any_sampler_trains_the_steps_of_the_formula(tmp_path: Path, sampler: dict[str, Any]) -> None:
    """Also with restarts in between, before a decision or with a trial at work; then the same points are drawn."""
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in ("x", "y")}
    of = study(trials=16, params={"epochs": 16}, sampler=sampler, space=space)
    points = []
    for name, restarts in (("whole", set[int]()), ("parts", {5, 9, 12, 18})):
        opened, trainings = Opened(tmp_path / name), Trainings(top=16)
        ledger = opened.open(of)
        for decision in itertools.count():
            if decision in restarts and decision % 2:
                ledger = opened.open(of)
            request = ledger.ask()
            if decision in restarts and not decision % 2:
                ledger = opened.open(of)
                request = ledger.ask()
            if request is None:
                break
            trainings.run(ledger, request)
        assert len(set(trainings.trained)) == len(trainings.trained) == steps(Ladder(1, 4, 16), 16) == 16 + 12 + 12
        assert (ledger.counts.complete, ledger.counts.pruned) == (1, 15)
        points.append({trial: row.params for trial, row in ledger.newest.items()})
        opened.close()
    assert points[0] == points[1]


@pytest.mark.parametrize(
    ("sampler", "direction"),
    [
        ({"name": "tpe"}, "minimize"),
        pytest.param({"name": "gp", "deterministic_objective": True}, "maximize", marks=pytest.mark.slow),
        ({"name": "cmaes"}, "minimize"),
        ({"name": "nsgaii", "population_size": 10}, "maximize"),
    ],
    ids=["tpe", "gp", "cmaes", "nsgaii"],
)
def test_samplers_learn_from_paused_trials(tmp_path: Path, sampler: dict[str, Any], direction: str) -> None:
    """Of 48 trials, three are complete. A sampler that ignored the others would draw as `random` does."""

    def mean_distance(sampler: dict[str, Any]) -> float:
        """The mean distance to the optimum in the second half of the trials."""
        distances: dict[int, float] = {}
        sign = 1.0 if direction == "minimize" else -1.0
        trainings = Trainings(loss=lambda trial, step: sign * (distances[trial] + 1 / step), top=16)
        space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in ("x", "y")}
        objectives = [{"metric": "loss", "direction": direction}]
        opened = Opened(tmp_path / sampler["name"])
        ledger = opened.open(study(trials=48, params={"epochs": 16}, sampler=sampler, space=space, objectives=objectives))
        while (request := ledger.ask()) is not None:
            distances[request.trial] = abs(request.params["x"] - 0.3) + abs(request.params["y"] - 0.8)
            trainings.run(ledger, request)
        opened.close()
        return statistics.mean(distances[trial] for trial in range(24, 48))

    assert mean_distance(sampler) < 0.9 * mean_distance({"name": "random"})


@pytest.mark.parametrize("sampler", [{"name": "nsgaii", "population_size": 4}, {"name": "cmaes"}, {"name": "tpe"}], ids=str)
def test_a_promoted_trial_that_is_lost_is_shown_as_it_was_paused(opened: Opened, sampler: dict[str, Any]) -> None:
    """Genetic samplers would fail without the values of a parent."""
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in ("x", "y")}
    ledger = opened.open(study(trials=32, sampler=sampler, space=space, retries={"lost": 0}))
    trainings, lost = Trainings(), []
    while (request := ledger.ask()) is not None:
        if request.segment is not None and request.segment.done and not lost:
            lost.append(request.trial)
            before = shown(ledger)[request.trial]
            ledger.tell(failed(request, FailureClass.LOST))
            after = shown(ledger)[request.trial]
            assert (after.state, after.values, after.intermediate_values) == (
                before.state,
                before.values,
                before.intermediate_values,
            )
        else:
            trainings.run(ledger, request)
    assert lost and ledger.counts.failed == 1


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_a_trial_that_continues_is_shown_to_tpe_as_it_was_paused(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Also when its segment was lost with a controller and is repeated. It would count as bad, and is the best."""
    of = study(sampler={"name": "tpe", "n_startup_trials": 4})
    ledger, trainings = opened.open(of), Trainings()
    for _ in range(4):
        request = ledger.ask()
        assert request is not None
        trainings.run(ledger, request)
    for killed in range(kills + 1):
        ledger = opened.open(of) if killed else ledger
        promoted = ledger.ask()
        assert promoted is not None
        assert promoted.trial == 0
        ledger.report(TrialReport(promoted.number, 2, {"loss": 9.0}, time.time()))
        ledger.write_reports(patient=True)
    seen: list[list[tuple[int, float, str]]] = []  # for each draw, the trials: last step, its loss, state
    split = tpe._split_trials

    def spy(study: Any, trials: list[optuna.trial.FrozenTrial], n_below: int) -> Any:
        seen.append([(*max(trial.intermediate_values.items(), default=(0, 0.0)), trial.state.name) for trial in trials])
        return split(study, trials, n_below)

    monkeypatch.setattr(tpe, "_split_trials", spy)
    drawn = ledger.ask()
    assert drawn is not None
    assert drawn.trial == 4
    paused = [(1, trial + 1 - 1 / TOP, "PRUNED") for trial in range(4)]
    assert seen == [paused]
    trainings.run(ledger, promoted)
    assert ledger.ask() is not None
    assert seen[1] == [(4, 1 - 4 / TOP, "PRUNED"), *paused[1:], (0, 0.0, "RUNNING")], "a new trial is running"


def test_a_budget_of_steps_is_used_and_not_exceeded(opened: Opened) -> None:
    ledger, trainings = opened.open(study(trials=1000, budget={"steps": 300})), Trainings()
    while (request := ledger.ask()) is not None:
        trainings.run(ledger, request)
    assert ledger.is_done
    assert len(trainings.trained) == 300
    assert ledger.counts.paused == 0


def test_a_trial_that_fails_is_not_promoted(opened: Opened) -> None:
    ledger, trainings = opened.open(study(trials=8)), Trainings()
    for _ in range(4):
        request = ledger.ask()
        assert request is not None
        trainings.run(ledger, request)
    promoted = ledger.ask()
    assert promoted is not None
    assert promoted.trial == 0
    ledger.tell(failed(promoted, FailureClass.ERROR))
    while (request := ledger.ask()) is not None:
        assert request.trial != 0
        trainings.run(ledger, request)
    assert (ledger.counts.complete, ledger.counts.failed, ledger.counts.pruned) == (1, 1, 6)


def test_several_objectives(opened: Opened) -> None:
    ledger = opened.open(study(trials=16, objectives=BOTH, params={"epochs": 4}))
    while (request := ledger.ask()) is not None:
        segment = request.segment
        assert segment is not None
        assert segment.metrics == ("loss", "size")
        metrics = {"loss": float(request.trial), "size": -float(request.trial)}
        ledger.report(TrialReport(request.number, segment.rung or 4, metrics, time.time()))
        state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
        ledger.tell(outcome(request.number, state=state, metrics=metrics))
    assert (ledger.counts.complete, ledger.counts.pruned) == (4, 12)


# In Optuna


def read(opened: Opened, after: int = 0) -> tuple[list[reading.Attempt], list[tuple[int, int, float]]]:
    """The attempts that run and those that ended after a place, and all reports, as an export reads them."""
    with contextlib.closing(sqlite3.connect(opened.run.ledger)) as connection:
        select = lambda query, values: connection.execute(query, values).fetchall()  # noqa: E731
        reports = [(row.number, row.step, row.metrics["loss"]) for row in reading.reports(select, "toy-1", 0).rows]
        return reading.attempts_since(select, "toy-1", after), reports


def test_a_promoted_trial_is_one_trial_of_an_exported_study(opened: Opened) -> None:
    """Also in a copy that grows with the run: a paused trial is running there, until it is dropped or complete."""
    of = study(trials=16)
    ledger, trainings, place = opened.open(of), Trainings(), 0
    order = StudyOrder("toy-1", ("minimize",), ("loss",), {})
    live = export.Copy(optuna.storages.InMemoryStorage(), order)
    while (request := ledger.ask()) is not None:
        live.add(*read(opened, place), is_active=True)
        trainings.run(ledger, request)
        ledger.write_reports(patient=True)
        attempts, reports = read(opened, place)
        live.add(attempts, reports, is_active=True)
        place = reading.newest_end_number(attempts, place)
        state = live.study.get_trials(deepcopy=False)[request.trial].state
        is_paused = ledger.newest[request.trial].state is TrialState.PAUSED
        assert (state is optuna.trial.TrialState.RUNNING) == is_paused
    late = export.Copy(optuna.storages.InMemoryStorage(), order)
    late.add(*read(opened), is_active=False)
    live.add(*read(opened, place), is_active=False)
    for copy in (live, late):
        trials = copy.study.get_trials()
        assert [trial.user_attrs["trial"] for trial in trials] == list(range(16))
        assert [trial.state.name for trial in trials].count("COMPLETE") == ledger.counts.complete == 1
        assert [trial.state.name for trial in trials].count("PRUNED") == 15
        assert list(trials[0].intermediate_values) == list(range(1, TOP + 1)), "the reports of all segments"
        assert (trials[0].user_attrs["attempt"], "retry_of" in trials[0].user_attrs) == (4, False)
        assert copy.study.best_trial.number == 0


def test_reports_that_are_read_before_their_attempt_are_of_its_trial(opened: Opened) -> None:
    ledger, trainings = opened.open(study(trials=16)), Trainings()
    while (request := ledger.ask()) is not None:
        trainings.run(ledger, request)
    ledger.write_reports(patient=True)
    attempts, reports = read(opened)
    copy = export.Copy(optuna.storages.InMemoryStorage(), StudyOrder("toy-1", ("minimize",), ("loss",), {}))
    copy.add([], reports, is_active=True)
    copy.add(attempts, is_active=False)
    assert list(copy.study.get_trials()[0].intermediate_values) == list(range(1, TOP + 1)), "the reports of all segments"


# In the loop


def test_a_paused_trial_holds_no_slot_and_continues_in_any(opened: Opened) -> None:
    of = study(trials=16, params={"epochs": 16})
    ledger = opened.open(of)
    trial_slots: dict[int, set[int]] = collections.defaultdict(set)
    looped: list[Loop] = []

    def work() -> None:
        """Ends the segment of each slot, the last one first."""
        slots = looped[0].slots
        for slot, request in sorted(slots.running().items(), reverse=True):
            segment = request.segment
            assert segment is not None
            trial_slots[request.trial].add(slot)
            last = segment.rung or 16
            report = TrialReport(request.number, last, {"loss": float(request.trial)}, time.time())
            state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
            slots.end(slot, reports=(report,), state=state, metrics={"loss": float(request.trial)})

    looped.append(Loop(ledger, opened.run, work, size=3))
    ending = looped[0].controller.run()
    assert ending.state is RunState.SUCCEEDED
    assert (ledger.counts.complete, ledger.counts.pruned) == (1, 15)
    assert ledger.promotion is not None
    assert ledger.promotion.used_steps >= steps(Ladder(1, 4, 16), 16)
    assert any(len(used) > 1 for used in trial_slots.values())


@pytest.mark.parametrize(
    ("fields", "is_released"),
    [
        ({}, True),
        ({"budget": {"steps": 99}}, False),
        ({"objectives": [*SEARCH["objectives"], {"metric": "size", "direction": "minimize"}]}, False),
    ],
    ids=["promote", "budget", "several objectives"],
)
def test_paused_trials_hold_no_slots_when_no_other_can_start(
    opened: Opened, fields: dict[str, Any], is_released: bool
) -> None:
    """With autoscaling, each slot requests a pod. Trial 7 is slow, and its end lets one of the paused trials continue."""
    ledger = opened.open(study(trials=8, params={"epochs": 4}, **fields))
    looped, sizes = list[Loop](), list[int]()

    def end(slot: int, request: TrialRequest) -> None:
        segment = request.segment
        assert segment is not None
        metrics = {"loss": float(request.trial), "size": -float(request.trial)}
        state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
        report = TrialReport(request.number, segment.rung or 4, metrics, time.time())
        looped[0].slots.end(slot, reports=(report,), state=state, metrics=metrics)

    def work() -> None:
        running = looped[0].slots.running()
        others = {slot: request for slot, request in running.items() if request.trial != 7}
        for slot, request in (others or running).items():
            if not others and request.attempt == 1 and len(sizes) < 3:  # only trial 7 runs
                sizes.append(looped[0].slots.size)
                assert ledger.counts.paused
            else:
                end(slot, request)

    looped.append(Loop(ledger, opened.run, work, size=4))
    looped[0].parallel = lambda: 4  # type: ignore[method-assign]
    assert looped[0].controller.run().state is RunState.SUCCEEDED
    assert ledger.counts.complete >= 2
    assert (sizes[-1] == 1) is is_released, sizes


def paused_study(opened: Opened, pauses: Sequence[int]) -> tuple[Ledger, list[tuple[int, int]]]:
    """A study that the user pauses after these numbers of steps, within a segment, and resumes; and the steps trained.

    A trial that is stopped has a checkpoint of its last step.
    """
    of = study(trials=16, params={"epochs": 16}, sampler={"name": "tpe", "n_startup_trials": 4})
    done_steps, trained, waiting = dict[int, int](), list[tuple[int, int]](), list(pauses)

    def train(slots: Slots) -> Ending | None:
        """Train one step of the trial at work; at the end of its segment, end it."""
        ((slot, request),) = slots.running().items()
        trial, segment = request.trial, request.segment
        assert segment is not None
        last = segment.rung or 16
        done_steps[trial] = max(segment.done, done_steps.get(trial, 0)) + 1
        trained.append((trial, done_steps[trial]))
        metrics = {"loss": float(trial)}
        report = TrialReport(request.number, done_steps[trial], metrics, time.time())
        if done_steps[trial] < last:
            slots.say(slot, reports=(report,))
            return PAUSED if waiting and len(trained) >= waiting[0] else None
        state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
        saved = CheckpointSummary(1, 1, f"{trial} at {last}")
        slots.end(slot, reports=(report,), state=state, metrics=metrics, checkpoints=saved)
        return None

    def stop(slots: Slots) -> None:
        slots.fail(0, FailureClass.LOST, "stopped by SIGTERM, with a checkpoint")

    while True:
        looped, ledger = list[Loop](), opened.open(of)
        looped.append(Loop(ledger, opened.run, lambda loops=looped: train(loops[0].slots), stop))
        ending = looped[0].controller.run()
        if ending.state is not RunState.PAUSED:
            assert ending.state is RunState.SUCCEEDED
            return ledger, trained
        assert looped[0].heard, "the trial was told to save a checkpoint"
        waiting.pop(0)


def test_a_pause_by_the_user_changes_neither_decisions_nor_steps(tmp_path: Path) -> None:
    histories = []
    for name, pauses in (("whole", ()), ("parts", (5, 6, 17, 30))):
        opened = Opened(tmp_path / name)
        ledger, trained = paused_study(opened, pauses)
        stopped = {request.number for request, ended in ledger.attempts() if ended and ended.failure is FailureClass.STOPPED}
        assert len(stopped) == len(pauses)
        decisions = [
            (request.trial, request.params, request.segment.rung, request.segment.done)
            for request, _ in ledger.attempts()
            if request.segment is not None and request.retry_of not in stopped
        ]
        assert ledger.promotion is not None
        assert ledger.promotion.used_steps == len(trained) == len(set(trained)) == steps(Ladder(1, 4, 16), 16)
        histories.append((decisions, trained, ledger.counts.complete, ledger.counts.pruned))
        opened.close()
    assert histories[0] == histories[1]
