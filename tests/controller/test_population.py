"""A population: who takes over whose state, the parameters that follow, and that a crash changes no decision.

The rule is checked by simulation, the ledger is real. Not checked here: how a trial takes over a state in its process
(tests/worker/test_population.py), and a real run under kills (tests/study/test_population.py).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.conftest import outcome
from tests.controller.slots_double import Slots
from tests.controller.test_promotion import snapshot
from tests.controller.trainings import Opened, failed, job

from trialplane.controller import population
from trialplane.controller.ledger import Ledger
from trialplane.controller.population import Members
from trialplane.controller.promotion import PausedTrial, Stretch
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.job import space
from trialplane.job.population import Intervals, Population
from trialplane.job.space import CategoricalParameter, FloatParameter, IntParameter, NormalParameter
from trialplane.pages import lineage as lineages
from trialplane.wire import rows
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import CheckpointSummary, TrialReport, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, TrialState

SETTINGS = Population(interval=4, steps=16)
SPACE: dict[str, space.AnyParameter] = {
    "kind": CategoricalParameter(type="categorical", choices=("small", "large", {"width": 3})),
    "rate": FloatParameter(type="float", low=1e-4, high=1.0, log=True),
    "step": FloatParameter(type="float", low=0.0, high=1.0, step=0.25),
    "layers": IntParameter(type="int", low=2, high=8, step=2),
    "units": IntParameter(type="int", low=1, high=512, log=True),
    "noise": NormalParameter(type="normal", mean=0.0, std=1.0),
    "drop": FloatParameter(type="float", low=0.0, high=0.5, when={"kind": ("large",)}),
}


def sample(seed: int) -> dict[str, Any]:
    """A point of the space."""
    generator, point = random.Random(seed), dict[str, Any]()
    for name, parameter in SPACE.items():
        if space.is_active(parameter, point):
            point[name] = population.draw(parameter, generator)
    return point


# Exploit


@given(st.dictionaries(st.integers(0, 40), st.floats(allow_nan=False), min_size=1), st.integers(0, 9), st.floats(0.05, 0.5))
@settings(deadline=None)
def test_only_the_worst_take_over_and_only_from_the_best(losses: dict[int, float], seed: int, share: float) -> None:
    rule = Population(interval=4, steps=16, share=share)
    order = sorted(losses, key=lambda member: (losses[member], member))
    number = max(1, int(share * len(order)))
    for member in losses:
        donor = population.choose_donor(rule, seed, member, 4, losses)
        reordered = dict(reversed(losses.items()))
        assert donor == population.choose_donor(rule, seed, member, 4, reordered), "a function of its values"
        if donor != member:
            assert member in order[-number:]
            assert donor in order[:number]
            assert losses[donor] < losses[member]
        elif member in order[-number:] and len(order) > 1:
            assert losses[order[0]] == losses[member] or any(losses[one] == losses[member] for one in order[:number])


@given(st.dictionaries(st.integers(0, 40), st.floats(allow_nan=False), min_size=1), st.integers(0, 9))
@settings(deadline=None)
def test_a_tournament_is_won_by_the_better_of_two(losses: dict[int, float], seed: int) -> None:
    rule = Population(interval=4, steps=16, exploit="tournament")
    for member in losses:
        donor = population.choose_donor(rule, seed, member, 4, losses)
        assert donor == member or losses[donor] < losses[member]


def test_the_worst_of_a_tournament_loses_to_whomever_it_meets() -> None:
    rule = Population(interval=4, steps=16, exploit="tournament")
    losses = {member: float(member) for member in range(8)}
    met = {population.choose_donor(rule, seed, 7, 4, losses) for seed in range(200)}
    assert met == set(range(7))
    assert {population.choose_donor(rule, seed, 0, 4, losses) for seed in range(50)} == {0}


# Restarts


@pytest.mark.parametrize(
    ("losses", "growth", "patience", "expected"),
    [
        ([], 2, 1, {}),
        ([9.0, 8.0, 7.0, 6.0], 2, 1, {4: False, 8: False, 12: False, 16: False}),
        ([9.0, 9.0, 5.0, 4.0], 2, 1, {4: False, 8: True, 16: False}),
        ([9.0, 9.0, 5.0, 4.0], 1, 1, {4: False, 8: False, 12: False, 16: False}),
        ([9.0, 9.5, 8.0, 8.0, 8.1, 8.1], 2, 2, {4: False, 8: False, 12: False, 16: False, 20: True}),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2, 1, {4: False, 8: True, 16: False, 24: True}),
        ([math.inf, math.inf], 3, 1, {4: False, 8: True}),
    ],
)
def test_a_population_restarts_after_comparisons_without_a_new_best(
    losses: list[float], growth: int, patience: int, expected: dict[int, bool]
) -> None:
    """Only losses since the restart before count, and only those of comparisons, whose interval grows."""
    rule = Population(interval=4, steps=64, growth=growth, patience=patience if growth > 1 else 3)
    assert population.restarts_by_comparison(rule, {4 * (index + 1): loss for index, loss in enumerate(losses)}) == expected


def test_all_but_the_best_restart_from_the_best() -> None:
    rule = Population(interval=4, steps=16, growth=2, fixed=("layers",), resample=0.0, factors=(1.25,))
    losses = {member: float(10 - member) for member in range(8)}
    assert population.choose_restart_donor(rule, 1, 7, 4, losses) is None
    donors = {population.choose_restart_donor(rule, seed, member, 4, losses) for seed in range(50) for member in range(7)}
    assert donors == {7, 6}, "the best quarter"
    state = Members(rule, Intervals(4, 16), 8, seed=5)
    donor = sample(1) | {"layers": 6, "rate": 0.1, "units": 100}
    rates = {}
    for member in range(7):
        params = state.params(Stretch(member, 8, 4, PausedTrial(7, 4), restart=True), SPACE, donor)
        assert params is not None
        assert params["layers"] == 6
        rates[member] = params["rate"]
    assert {rates[member] for member in (0, 2, 4, 6)} == {0.125}, "changed a little"
    assert len({rates[member] for member in (1, 3, 5)} | {0.1, 0.125}) == 5, "drawn anew"
    own = state.params(Stretch(6, 8, 4, PausedTrial(6, 4), restart=True), SPACE, donor)
    assert own is not None, "one that restarts from its own state has new parameters too"


# Explore


@given(st.integers(0, 2**32), st.integers(0, 2**32), st.floats(0, 1))
@settings(deadline=None)
def test_changed_parameters_are_in_the_space(seed: int, of: int, resample: float) -> None:
    rule = Population(interval=4, steps=16, resample=resample, factors=(0.5, 0.8, 1.25, 2.0))
    before = sample(of)
    after = population.explore(rule, seed, 3, 8, SPACE, before)
    assert after == population.explore(rule, seed, 3, 8, SPACE, before)
    assert list(after) == [name for name, parameter in SPACE.items() if space.is_active(parameter, after)]
    assert all(SPACE[name].contains(value) for name, value in after.items())


def test_a_number_is_multiplied_and_a_choice_moves_to_a_neighbor() -> None:
    rule = Population(interval=4, steps=16, resample=0.0, factors=(0.5, 2.0), explore={"rate": {"factors": [3.0]}})
    before = {"kind": "large", "rate": 0.1, "step": 0.5, "layers": 4, "units": 10, "noise": 1.0, "drop": 0.2}
    seen = collections.defaultdict[str, set[Any]](set)
    for seed in range(100):
        for name, value in population.explore(rule, seed, 0, 4, SPACE, before).items():
            seen[name].add(str(value))
    assert seen["kind"] == {"small", str({"width": 3})}
    assert seen["rate"] == {str(0.1 * 3.0)}
    assert seen["step"] == {"0.25", "1.0"}
    assert seen["layers"] == {"2", "8"}
    assert seen["units"] == {"5", "20"}
    assert seen["noise"] == {"0.5", "2.0"}


def test_a_small_whole_number_is_never_rounded_back() -> None:
    parameter = IntParameter(type="int", low=0, high=9)
    for value in (1, 2, 3):
        moved = {population.perturb(parameter, value, (0.8, 1.25), random.Random(seed)) for seed in range(50)}
        assert moved == {value - 1, value + 1}


def test_what_is_fixed_is_taken_over_unchanged() -> None:
    rule = Population(interval=4, steps=16, resample=1.0, fixed=("layers", "kind"))
    before = sample(1) | {"kind": "small", "layers": 6}
    for seed in range(20):
        after = population.explore(rule, seed, 0, 4, SPACE, before)
        assert (after["layers"], after["kind"]) == (6, "small")


def test_a_value_that_is_not_in_the_space_any_more_is_drawn_anew() -> None:
    narrow = {
        "kind": CategoricalParameter(type="categorical", choices=("small", "medium")),
        "layers": IntParameter(type="int", low=2, high=4, step=2),
    }
    rule = Population(interval=4, steps=16, resample=0.0, fixed=("layers",))
    for seed in range(20):
        after = population.explore(rule, seed, 0, 4, narrow, {"kind": "large", "layers": 8})
        assert (narrow["kind"].contains(after["kind"]), narrow["layers"].contains(after["layers"])) == (True, True)


def test_a_condition_that_changes_draws_or_drops_a_parameter() -> None:
    rule = Population(interval=4, steps=16, resample=0.0)
    small = {"kind": "small", "rate": 0.1, "step": 0.5, "layers": 4, "units": 10, "noise": 1.0}
    assert "drop" in population.explore(rule, 0, 0, 4, SPACE, small), "the only neighbor of small is large"
    assert "drop" not in population.explore(rule, 0, 0, 4, SPACE, {**small, "kind": "large", "drop": 0.2})


# The order of segments


def play(
    rule: Population,
    members: int,
    loss: Callable[[int, int], float],
    *,
    slots: int = 1,
    pick: Callable[[int], int] = lambda running: 0,
    fails: Callable[[Stretch], bool] = lambda stretch: False,
    top: int = 16,
    distance: int = 1,
) -> tuple[Members, list[Stretch], set[TrialFolder]]:
    """A whole population in which segments end in the order that `pick` says, and the folders that were released.

    Members report once every `distance` steps.
    """
    intervals = Intervals(rule.interval, top)
    state = Members(rule, intervals, members, seed=5)
    drawn, running, history, released = 0, list[Stretch](), list[Stretch](), set[TrialFolder]()
    while True:
        while len(running) < slots and (stretch := state.next_stretch(drawn if drawn < members else None)) is not None:
            if stretch.trial is None:
                stretch, drawn = dataclasses.replace(stretch, trial=drawn), drawn + 1
            if stretch.parent is not None:
                assert TrialFolder(*stretch.parent) not in released, "what it continues from is still kept"
            state.record_start(stretch)
            running.append(stretch)
            history.append(stretch)
        if not running:
            assert state.paused == []
            return state, history, released
        ended = running.pop(pick(len(running)))
        assert ended.trial is not None
        done = -(-(ended.rung or top) // distance) * distance
        if fails(ended):
            state.record_end(ended.trial, TrialState.FAILED, ended.done, (math.nan,))
        else:
            paused = TrialState.PAUSED if ended.rung else TrialState.COMPLETE
            state.record_end(ended.trial, paused, done, (loss(ended.trial, done),))
        released |= state.take_released()


def lineage(history: list[Stretch]) -> dict[tuple[int, int], tuple[tuple[int, int] | None, bool]]:
    """What each segment continues from and whether it is a restart, by member and steps done before."""
    return {(stretch.trial or 0, stretch.done): (stretch.parent, stretch.restart) for stretch in history}


@given(
    st.integers(2, 12),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.sampled_from(["truncation", "tournament"]),
    st.sampled_from([{}, {"growth": 2, "patience": 1}]),
)
@settings(deadline=None)
def test_with_a_barrier_the_order_in_which_segments_end_changes_nothing(
    members: int, slots: int, order: int, exploit: Any, growing: dict[str, int]
) -> None:
    rule = Population(interval=4, steps=16, exploit=exploit, **growing)
    generator = random.Random(order)
    loss = lambda member, done: math.sin(7.0 * member + done)  # noqa: E731
    one, one_history, _ = play(rule, members, loss)
    other, other_history, released = play(rule, members, loss, slots=slots, pick=generator.randrange)
    assert lineage(one_history) == lineage(other_history)
    assert one.used_steps == other.used_steps == 16 * members, "each member trains each step once"
    assert len(other_history) == 4 * members
    assert released == {TrialFolder(member, step) for member in range(members) for step in (4, 8, 12)}


@given(st.integers(2, 10), st.integers(1, 10), st.integers(0, 2**32), st.floats(0, 1), st.integers(0, 5))
@settings(deadline=None)
def test_every_member_ends_whatever_the_quorum_and_whoever_fails(
    members: int, slots: int, order: int, quorum: float, failing: int
) -> None:
    generator = random.Random(order)
    victims = {(generator.randrange(members), generator.choice([0, 4, 8, 12])) for _ in range(failing)}
    rule = Population(interval=4, steps=16, quorum=quorum)
    _, history, _ = play(
        rule,
        members,
        lambda member, done: generator.random(),
        slots=slots,
        pick=generator.randrange,
        fails=lambda stretch: (stretch.trial, stretch.done) in victims,
    )
    for member in range(members):
        steps = [stretch.done for stretch in history if stretch.trial == member]
        ends = min((done for victim, done in victims if victim == member), default=12)
        assert steps == list(range(0, ends + 1, 4))


@pytest.mark.parametrize("distance", [3, 4, 5, 6, 8, 11])
@pytest.mark.parametrize("growing", [{}, {"growth": 2, "patience": 3}])
def test_members_that_report_less_often_than_the_interval_are_compared_to_the_end(
    distance: int, growing: dict[str, int]
) -> None:
    """A member is paused at its first report at the step or beyond, so it may skip the next steps."""
    rule = Population(interval=4, steps=96, **growing)
    _, history, _ = play(rule, 8, lambda member, done: float(member - done), slots=8, top=96, distance=distance)
    compared = {stretch.done for stretch in history if stretch.parent is not None and stretch.parent[0] != stretch.trial}
    assert compared == {stretch.done for stretch in history if stretch.done}, "the worst take over a state at each step"


def test_a_schedule_names_the_steps_that_a_member_has_done() -> None:
    """A member that reports every 8 steps is paused at step 4 when it has done 8, and `best --schedule` prints 8."""
    schedule = [{"step": 0, "params": {"rate": 0.1}}, {"step": 8, "params": {"rate": 0.2}, "restart": True}]
    state = Members(Population(interval=4, steps=24, schedule=schedule), Intervals(4, 24), 1, seed=5)
    state.record_start(state.first_stretch(0))
    state.record_end(0, TrialState.PAUSED, 8, (1.0,))
    stretch = state.next_stretch(None)
    assert stretch == Stretch(0, 12, 8, (0, 4), restart=True)
    assert state.params(stretch, SPACE, {"rate": 0.1}) == {"rate": 0.2}


def test_after_a_restart_members_are_compared_less_often() -> None:
    """The best loss gets worse, so the population restarts at step 8, and its next comparison is at 16."""
    rule = Population(interval=4, steps=24, growth=2, patience=1)
    waits = collections.Counter[int]()

    def loss(member: int, done: int) -> float:
        return float(10 * done + member)

    state, running = Members(rule, Intervals(4, 24), 4, seed=5), list[Stretch]()
    for member in range(4):
        state.record_start(state.first_stretch(member))
        running.append(state.first_stretch(member))
    history = list[Stretch]()
    while running:
        ended = running.pop()  # the newest: a member that needs not wait runs ahead
        assert ended.trial is not None
        done = ended.rung or 24
        state.record_end(
            ended.trial, TrialState.PAUSED if ended.rung else TrialState.COMPLETE, done, (loss(ended.trial, done),)
        )
        started = []
        while (stretch := state.next_stretch(None)) is not None:
            state.record_start(stretch)
            started.append(stretch)
        waits[done] += not started
        running += started
        history += started
    assert waits == collections.Counter({4: 3, 8: 3, 16: 3, 24: 4}), "at 12 and 20 nobody waits"
    restarted = {(stretch.trial, stretch.done) for stretch in history if stretch.restart}
    assert restarted == {(1, 8), (2, 8), (3, 8)}, "all but the best"
    assert all(stretch.parent == (stretch.trial, stretch.done) for stretch in history if stretch.done in (12, 20))


def test_without_a_quorum_no_slot_waits() -> None:
    state = Members(Population(interval=4, steps=16, quorum=0.0), Intervals(4, 16), 2, seed=5)
    for member in range(2):
        state.record_start(state.first_stretch(member))
    assert state.next_stretch(None) is None
    state.record_end(1, TrialState.PAUSED, 4, (9.0,))
    assert state.next_stretch(None) == Stretch(1, 8, 4, (1, 4)), "nobody else has reached step 4"
    barrier = Members(SETTINGS, Intervals(4, 16), 2, seed=5)
    for member in range(2):
        barrier.record_start(barrier.first_stretch(member))
    barrier.record_end(1, TrialState.PAUSED, 4, (9.0,))
    assert barrier.next_stretch(None) is None
    barrier.record_end(0, TrialState.PAUSED, 4, (math.nan,))
    assert barrier.next_stretch(None) == Stretch(0, 8, 4, (1, 4)), "one that is not a number is the worst"


# In the ledger


JOB: dict[str, Any] = {
    "kind": "hpo",
    "params": {"epochs": 16},
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "space": {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
        "extra": {"type": "int", "low": 1, "high": 9, "when": {"kind": ["a"]}},
    },
    "sampler": "random",
    "population": {"interval": 4, "steps": "epochs"},
    "trials": 6,
    "seed": 11,
}


def study(**fields: Any) -> Any:
    return job(**{**JOB, **fields})


def train(ledger: Ledger, request: TrialRequest) -> None:
    """One segment; the loss follows from the parameters and the steps done."""
    segment = request.segment
    assert segment is not None
    last, metrics = segment.rung or 16, {}
    for done in range(segment.done + 1, last + 1):
        metrics = {"loss": abs(request.params["x"] - 0.5) + 1 / min(done, 4)}
        ledger.report(TrialReport(request.number, done, metrics, time.time()))
    saved = CheckpointSummary(1, 100, f"digest of {request.trial} at {last}")
    state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
    ledger.tell(outcome(request.number, state=state, metrics=metrics, checkpoints=saved))


def test_a_member_continues_from_the_checkpoint_of_a_better_one(opened: Opened) -> None:
    ledger, requests = opened.open(study()), list[TrialRequest]()
    while (request := ledger.ask()) is not None:
        requests.append(request)
        train(ledger, request)
    assert ledger.is_done
    assert ledger.promotion is not None
    assert (ledger.counts.complete, ledger.counts.paused, ledger.promotion.used_steps) == (6, 0, 96)
    by_number = {request.number: request for request in requests}
    copies = 0
    for request in requests[6:]:
        segment = request.segment
        assert segment is not None
        assert segment.parent is not None
        assert segment.parent.number is not None
        parent = by_number[segment.parent.number]
        assert parent.segment is not None
        assert (parent.trial, parent.folder) == (segment.parent.trial, segment.parent.folder)
        assert (parent.folder, segment.folder, segment.top) == (segment.done, segment.rung, 16)
        assert segment.parent.digest == f"digest of {parent.trial} at {segment.done}"
        assert request.retry_of is not None
        before = by_number[request.retry_of]
        assert (before.trial, before.attempt + 1, before.seed) == (request.trial, request.attempt, request.seed)
        if parent.trial == request.trial:
            assert (request.params, request.series) == (before.params, before.series)
            assert not segment.changed
        else:
            copies += 1
            assert request.params != parent.params
            assert segment.changed
            assert request.series == request.number, "MLflow has another run of it"
            assert ("extra" in request.params) == (request.params["kind"] == "a")
            assert {**JOB["params"], **ledger.newest[request.trial].params}.keys() >= {"x", "kind", "epochs"}
    assert copies >= 3
    reopened = opened.open(study())
    assert reopened.is_done
    assert (reopened.ask(), reopened.counts, reopened.best) == (None, ledger.counts, ledger.best)


GROWING = {"interval": 2, "steps": "epochs", "growth": 2, "patience": 1}  # restarts at 6 and 14, as losses fall until 4


@pytest.mark.parametrize(
    "fields",
    [
        {"exploit": "truncation", "quorum": 0.0},
        {"exploit": "tournament", "quorum": 0.0},
        {"exploit": "truncation"},
        {"exploit": "tournament"},
        GROWING,
    ],
)
def test_a_controller_that_is_killed_changes_no_decision(opened: Opened, tmp_path: Path, fields: dict[str, Any]) -> None:
    """At each decision, one that starts from the ledger decides the same; half of the time with a trial at work."""
    of = study(population={"interval": 4, "steps": "epochs", **fields})
    ledger, decisions = opened.open(of), 0
    while True:
        other = snapshot(opened, of, tmp_path / f"copy-{decisions}")
        request, again = ledger.ask(), other.ask()
        assert again == request
        assert other.counts == ledger.counts
        other.close()
        shutil.rmtree(tmp_path / f"copy-{decisions}")
        decisions += 1
        if request is None:
            break
        if decisions % 2:
            ledger = opened.open(of)  # the attempt was running, and is lost
            repeated = ledger.ask()
            assert repeated is not None
            assert (repeated.trial, repeated.params, repeated.retry_of) == (request.trial, request.params, request.number)
            assert repeated.segment is not None
            assert request.segment is not None
            assert repeated.segment.parent == request.segment.parent, "the same checkpoint, with its digest"
            request = repeated
        train(ledger, request)
    assert ledger.counts.complete == 6


@pytest.mark.parametrize("fields", [JOB["population"], GROWING])
def test_the_lineage_with_and_without_kills_is_the_same(opened: Opened, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Also with several slots whose segments end in another order, as there is a barrier."""
    of, lineages = study(population=fields), []
    for slots in (1, 3):
        place = Opened(tmp_path / f"slots-{slots}")
        ledger, running = place.open(of), list[TrialRequest]()
        segments = dict[tuple[int, int], Any]()
        generator = random.Random(slots)
        while True:
            while len(running) < slots and (request := ledger.ask()) is not None:
                assert request.segment is not None
                parent = request.segment.parent
                key = request.trial, request.segment.done
                source = None if parent is None else (parent.trial, parent.folder)
                found = source, dict(request.params), request.segment.restart
                assert segments.setdefault(key, found) == found
                running.append(request)
            if not running:
                break
            if slots > 1 and generator.random() < 0.3:
                ledger, running = place.open(of), []
                continue
            train(ledger, running.pop(generator.randrange(len(running))))
        place.close()
        lineages.append(segments)
    assert lineages[0] == lineages[1]
    restarts = [key for key, (_, _, is_restart) in lineages[0].items() if is_restart]
    assert len(restarts) == (10 if fields == GROWING else 0), "all but the best, twice"


def test_a_population_continues_in_a_narrower_space(opened: Opened) -> None:
    """A choice is removed; members that had it keep it until they take over from another one."""
    ledger, copies = opened.open(study()), 0
    for _ in range(12):
        request = ledger.ask()
        assert request is not None
        train(ledger, request)
    narrow = {**JOB["space"], "kind": {"type": "categorical", "choices": ["b", "c"]}}
    narrow["extra"] = {"type": "int", "low": 1, "high": 9, "when": {"kind": ["b"]}}
    ledger = opened.open(study(space=narrow))
    while (request := ledger.ask()) is not None:
        assert request.segment is not None
        assert request.segment.parent is not None
        if request.segment.parent.trial != request.trial:
            copies += 1
            assert request.params["kind"] in ("b", "c")
        train(ledger, request)
    assert copies
    assert ledger.counts.complete == 6


def test_the_status_counts_the_checkpoints_that_are_still_needed(opened: Opened) -> None:
    ledger = opened.open(study())
    work, most = StudyWorkload(ledger, Slots(1)), 0
    while (request := ledger.ask()) is not None:
        train(ledger, request)
        _, ended = list(ledger.attempts())[request.number]
        assert ended is not None
        work.record_end(request, ended)
        most = max(most, work.progress.checkpoints)
    assert most <= 12, "of the steps that some have not passed, and the next"
    assert (work.progress.checkpoints, work.progress.checkpoint_bytes) == (6, 600)
    reopened = StudyWorkload(opened.open(study()), Slots(1))
    assert reopened.progress == work.progress


def test_a_member_that_fails_ends_and_the_others_continue(opened: Opened) -> None:
    ledger, seen = opened.open(study()), 0
    while (request := ledger.ask()) is not None:
        assert request.segment is not None
        if request.trial == 2 and request.segment.done == 4:
            ledger.tell(failed(request, FailureClass.ERROR))
            continue
        seen += 1
        train(ledger, request)
    assert (ledger.counts.complete, ledger.counts.failed) == (5, 1)
    assert seen == 1 + 5 * 4


def test_the_best_report_is_that_of_the_state_that_was_taken_over(opened: Opened) -> None:
    best = [{"metric": "loss", "direction": "minimize", "of": "best"}]
    ledger = opened.open(study(objectives=best))
    while (request := ledger.ask()) is not None:
        segment = request.segment
        assert segment is not None
        for done in range(segment.done + 1, (segment.rung or 16) + 1):
            metrics = {"loss": float(request.trial + done)}
            ledger.report(TrialReport(request.number, done, metrics, time.time()))
        state = TrialState.PAUSED if segment.rung else TrialState.COMPLETE
        saved = CheckpointSummary(1, 1, "digest")
        ledger.tell(outcome(request.number, state=state, metrics=metrics, checkpoints=saved))
        if segment.parent is not None and segment.parent.trial != request.trial:
            assert ledger.newest[request.trial].trial > segment.parent.trial
            _, ended = list(ledger.attempts())[request.number]
            assert ended is not None
            assert ended.best["loss"].value <= segment.parent.trial + 1


@pytest.mark.parametrize("fields", [JOB["population"], GROWING])
def test_a_schedule_is_replayed_with_its_parameters_and_the_seed_of_the_first_member(
    opened: Opened, tmp_path: Path, fields: dict[str, Any]
) -> None:
    ledger, requests = opened.open(study(population=fields)), list[TrialRequest]()
    while (request := ledger.ask()) is not None:
        requests.append(request)
        train(ledger, request)
    attempts = [row(request, ledger) for request in requests]
    complete = [each for each in attempts if each.state is TrialState.COMPLETE]
    best = max(complete, key=lambda each: len(lineages.schedule(attempts, each)))
    line = lineages.schedule(attempts, best)
    assert len(line) > 1
    assert any(each.restart for each in line) == (fields == GROWING)
    entries = [{"step": each.done, "trial": each.trial, "params": each.params, "restart": each.restart} for each in line]
    replay = study(trials=1, population={"interval": fields["interval"], "steps": "epochs", "schedule": entries})
    other = Opened(tmp_path / "replay")
    ledger, trained = other.open(replay), list[TrialRequest]()
    while (request := ledger.ask()) is not None:
        trained.append(request)
        train(ledger, request)
        ledger = other.open(replay)
    chain = [requests[each.number] for each in lineages.ancestors(attempts, best)]
    assert [request.params for request in trained] == [request.params for request in chain]
    assert [request.segment and request.segment.restart for request in trained] == [
        request.segment and request.segment.restart for request in chain
    ]
    assert trained[0].seed == chain[0].seed
    begins = [index for index, each in enumerate(chain) if not index or each.params != chain[index - 1].params]
    series = [max(begin for begin in begins if begin <= index) for index in range(len(chain))]
    assert [request.series for request in trained] == series, "MLflow has a run for each of its parameters"
    assert ledger.counts.complete == 1
    other.close()


def test_a_restart_with_the_same_parameters_is_in_the_schedule() -> None:
    """As where a value is at the end of its range. The optimizer begins anew there."""
    first = TrialRow(0, TrialState.PAUSED, 1, 0, params={"x": 1.0})
    second = TrialRow(0, TrialState.PAUSED, 2, 1, params={"x": 1.0}, done=4, parent=0)
    third = TrialRow(0, TrialState.COMPLETE, 3, 2, params={"x": 1.0}, done=8, parent=1, restart=True)
    assert lineages.schedule([first, second, third], third) == [first, third]


def row(request: TrialRequest, ledger: Ledger) -> TrialRow:
    """An attempt as a reader shows it."""
    ended = {asked.number: ended for asked, ended in ledger.attempts()}[request.number]
    params = {name: value for name, value in request.params.items() if name != "epochs"}
    return rows.row(ledger.job, request, params, ended)
