"""Promotion whose top rung is raised while rankings disagree: the comparison, the steps that it saves, and that a crash
changes nothing.

The rule is checked by simulation, the ledger is real. Not checked here: rungs and promotions themselves
(test_promotion.py).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.conftest import outcome
from tests.controller.test_promotion import TOP, Trainings, snapshot, study
from tests.controller.trainings import Opened

from trialplane.controller import ranking
from trialplane.controller.ledger import Ledger
from trialplane.controller.promotion import Promotion
from trialplane.job.search import Ladder
from trialplane.wire.records import CheckpointSummary, TrialReport, TrialRequest
from trialplane.wire.states import TrialState

AUTO = Ladder(1, 4, 256, is_auto=True)


# The comparison


def test_rankings_agree_as_long_as_only_equal_trials_change_places() -> None:
    lower = {0: 1.0, 1: 1.1, 2: 3.0, 3: 9.0}
    assert ranking.is_same(lower, {2: 0.3, 1: 0.2, 0: 0.1}, 0.0)
    swapped = {0: 0.2, 1: 0.1, 2: 0.3}
    assert not ranking.is_same(lower, swapped, 0.05)
    assert ranking.is_same(lower, swapped, 0.2)
    assert not ranking.is_same(lower, {0: 0.3, 1: 0.2, 2: 0.1}, 0.2)
    assert ranking.is_same({0: math.inf, 1: math.inf}, {0: 2.0, 1: 1.0}, 0.0)


def test_noise_is_what_separates_trials_that_change_their_order_twice() -> None:
    once = [{0: 1.0, 1: 2.0}, {0: 2.0, 1: 1.0}, {0: 2.0, 1: 1.0}]
    assert ranking.estimate_noise(once) == 0.0
    twice = [{0: 1.0, 1: 2.0}, {0: 2.0, 1: 1.0}, {0: 1.0, 1: 1.5}]
    assert ranking.estimate_noise(twice) == 0.5
    assert ranking.estimate_noise([*twice, {0: 9.0, 1: 9.0}]) == 0.5, "measured when they had come back"
    assert ranking.estimate_noise([*twice, {0: 9.0, 1: 1.0}]) == 8.0, "the last time"
    assert ranking.estimate_noise(twice[:2]) == 0.0
    assert ranking.estimate_noise([{0: 1.0, 1: 2.0}, {0: 2.0, 1: 1.0}, {0: 1.0, 1: math.inf}]) == 0.0


def test_only_trials_that_are_in_all_rungs_are_compared() -> None:
    assert ranking.is_same({0: 1.0, 1: 2.0}, {1: 2.0, 0: 1.0, 2: 0.0}, 0.0)
    twice = [{0: 1.0, 1: 2.0, 2: 0.0}, {0: 2.0, 1: 1.0, 3: 9.0}, {0: 1.0, 1: 1.5, 2: 9.0, 3: 0.0}]
    assert ranking.estimate_noise(twice) == 0.5


def returned(first: list[float], second: list[float]) -> int | None:
    """The last index at which two losses are in an order that they had before, with the opposite one in between."""
    signs = [(a > b) - (a < b) for a, b in zip(first, second, strict=True)]
    triples = itertools.combinations(range(len(signs)), 3)
    return max((c for a, b, c in triples if signs[a] == signs[c] == -signs[b] != 0), default=None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7))
@settings(deadline=None)
def test_noise_is_measured_by_every_pair_at_its_last_return(curves: list[tuple[int, int, int]]) -> None:
    rungs = [dict(enumerate(map(float, losses))) for losses in curves]
    differences = []
    for first, second in itertools.combinations(range(3), 2):
        index = returned([rung[first] for rung in rungs], [rung[second] for rung in rungs])
        if index is not None:
            differences.append(abs(rungs[index][first] - rungs[index][second]))
    assert ranking.estimate_noise(rungs) == (
        sorted(differences)[math.ceil(0.9 * len(differences)) - 1] if differences else 0.0
    )


@given(st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=3, max_size=5))
@settings(deadline=None)
def test_noise_depends_on_no_order_of_trials(curves: list[list[float]]) -> None:
    rungs = [dict(enumerate(losses)) for losses in curves]
    turned = [dict(reversed(rung.items())) for rung in rungs]
    assert ranking.estimate_noise(rungs) == ranking.estimate_noise(turned) >= 0


# The rule


def play(rule: Promotion, ladder: Ladder, trials: int, loss: Any) -> collections.Counter[int]:
    """A whole study in one slot; returns how many segments have ended at each number of steps."""
    ends, drawn = collections.Counter[int](), 0
    while (stretch := rule.next_stretch(drawn if drawn < trials else None)) is not None:
        if stretch.trial is None:
            stretch, drawn = dataclasses.replace(stretch, trial=drawn), drawn + 1
        trial = stretch.trial
        assert trial is not None
        rule.record_start(stretch)
        done = stretch.rung or ladder.top
        losses = (loss(trial, done),)
        rule.raise_top(trial, done, losses)
        rule.record_end(trial, TrialState.PAUSED if stretch.rung else TrialState.COMPLETE, done, losses)
        ends[done] += 1
        for other in rule.find_hopeless():
            rule.drop(other)
    return ends


def test_stable_rankings_train_one_trial_beyond_the_second_rung() -> None:
    rule = Promotion(AUTO, 64)
    ends = play(rule, AUTO, 64, lambda trial, done: trial + 1 / done)
    assert ends == {1: 64, 4: 16, 16: 1, 64: 1, 256: 1}, "the best goes on to the end alone"
    assert rule.top == 4


def test_the_top_is_raised_as_often_as_rankings_change() -> None:
    rule = Promotion(AUTO, 256)
    ends = play(rule, AUTO, 256, lambda trial, done: float(trial if done < 4 else -trial))
    assert rule.top == 16, "the ranking at step 16 is that at step 4"
    assert ends[16] > 1
    assert ends[64] == 1


def test_a_ladder_of_one_rung_has_nothing_to_raise() -> None:
    ladder = Ladder(1, 4, 4, is_auto=True)
    assert play(Promotion(ladder, 8), ladder, 8, lambda trial, done: float(trial)) == {1: 8, 4: 2}


def skip_rung_4(loss: Any, skipping: range) -> tuple[Promotion, list[int]]:
    """Trials of which some report after 1, 5 and 16 steps, so that they skip the rung of 4 steps; and the steps done."""
    rule, drawn, ends = Promotion(AUTO, 64), 0, list[int]()
    while (stretch := rule.next_stretch(drawn if drawn < 64 else None)) is not None:
        if stretch.trial is None:
            stretch, drawn = dataclasses.replace(stretch, trial=drawn), drawn + 1
        trial = stretch.trial
        assert trial is not None
        rule.record_start(stretch)
        done = stretch.rung or AUTO.top
        done = 5 if trial in skipping and not stretch.done else done
        losses = (loss(trial, stretch.rung),)
        rule.raise_top(trial, done, losses)
        rule.record_end(trial, TrialState.PAUSED if stretch.rung else TrialState.COMPLETE, done, losses)
        ends.append(done)
        for other in rule.find_hopeless():
            rule.drop(other)
    return rule, ends


def test_the_top_is_raised_although_some_trials_skip_the_rung_below() -> None:
    rule, ends = skip_rung_4(lambda trial, rung: float(trial if rung < 4 else -trial), range(0, 64, 2))
    assert rule.top > 4
    assert ends.count(AUTO.top) >= 1


def test_the_top_is_raised_although_all_trials_skip_it() -> None:
    rule, ends = skip_rung_4(lambda trial, rung: float(trial if rung < 4 else -trial), range(64))
    assert (ends.count(4), rule.top) == (0, 64), "the rankings at 1 and 16 steps differ"
    stable, _ = skip_rung_4(lambda trial, rung: float(trial), range(64))
    assert stable.top == 4


# In the ledger


def crossing(ledger: Ledger, request: TrialRequest) -> None:
    """One segment of a trial; at each rung another trial is the best, and two trials change their order once at most."""
    segment = request.segment
    assert segment is not None
    last = segment.rung or TOP
    metrics = {"loss": abs(request.trial - 3 * math.log2(last))}
    ledger.report(TrialReport(request.number, last, metrics, time.time()))
    state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
    ledger.tell(outcome(request.number, state=state, metrics=metrics, checkpoints=CheckpointSummary(1, 1, f"{last}")))


def test_a_controller_that_is_killed_raises_the_top_rung_at_the_same_time(opened: Opened, tmp_path: Path) -> None:
    """At each decision, one that starts from the ledger decides the same."""
    pruner = {"name": "asha", "promote": True, "max_resource": "epochs", "reduction_factor": 2, "max": "auto"}
    of = study(trials=24, pruner=pruner)
    ledger, tops = opened.open(of), list[int]()
    assert ledger.promotion is not None
    while (request := ledger.ask()) is not None:
        crossing(ledger, request)
        tops.append(ledger.promotion.top)
        other = snapshot(opened, of, tmp_path / f"copy-{len(tops)}")
        assert other.promotion is not None
        assert (other.promotion.top, other.promotion.used_steps) == (tops[-1], ledger.promotion.used_steps)
        other.close()
    assert tops[0] == 2
    assert tops[-1] > tops[0], "rankings disagree"
    assert len(set(tops)) > 2, "and are compared again at the next rung"
    assert ledger.counts.complete >= 1


def test_stable_rankings_end_with_one_whole_trial(opened: Opened) -> None:
    pruner = {"name": "asha", "promote": True, "max_resource": "epochs", "max": "auto"}
    ledger, trainings = opened.open(study(pruner=pruner)), Trainings()
    while (request := ledger.ask()) is not None:
        trainings.run(ledger, request)
    assert ledger.is_done
    assert (ledger.counts.complete, ledger.counts.pruned) == (1, 63)
    assert len(trainings.trained) == 64 + 16 * 3 + 12 + 48
