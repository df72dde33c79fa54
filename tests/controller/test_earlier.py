"""What samplers do with trials of earlier studies: they learn from them, quickly, and the study's own numbers stay.

The ledger and the samplers are real. Not checked here: where the trials come from (tests/client/test_earlier_runs.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.loops import CANCELLED, Loop
from tests.controller.trainings import Opened, asked, job, shown

from trialplane.controller import history, samplers
from trialplane.controller.ledger import Ledger
from trialplane.wire import earlier
from trialplane.wire.earlier import Earlier, EarlierAttempt, EarlierTrial
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import RunState, TrialState

UNIT = {"type": "float", "low": 0.0, "high": 1.0}
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "params": {},
    "space": {"x": UNIT, "y": UNIT},
    "trials": 40,
}
BEST = (0.8, 0.2)


def loss(x: float, y: float) -> float:
    return math.dist((x, y), BEST)


def given(opened: Opened, number: int, bad: int = 0) -> None:
    """Gives the run's folder `number` trials of an earlier study, of which every `bad`-th has failed."""
    chance = random.Random(3)
    trials = []
    for trial in range(number):
        x, y = chance.random(), chance.random()
        values = () if bad and trial % bad == 0 else (loss(x, y),)
        trials.append(EarlierTrial("first", trial, {"x": x, "y": y}, values, {"loss": loss(x, y)}))
    write(opened, trials)


def write(opened: Opened, trials: list[EarlierTrial]) -> None:
    opened.run.code.mkdir(exist_ok=True)
    (opened.run.code / earlier.FILE).write_bytes(Earlier(tuple(trials)).pack())


def losses(ledger: Ledger, trials: int) -> list[float]:
    values = []
    for _ in range(trials):
        request = asked(ledger)
        values.append(loss(request.params["x"], request.params["y"]))
        ledger.tell(outcome(request.number, metrics={"loss": values[-1]}))
    return values


SMALL = {"name": "nsgaii", "population_size": 8}


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", SMALL, {"class": "optuna.samplers:TPESampler"}], ids=str)
def test_a_sampler_begins_where_the_earlier_study_was(opened: Opened, sampler: Any) -> None:
    """A quarter of all points is nearer than 0.3; without history the first ten trials are random."""
    given(opened, 120, bad=7)
    ledger = opened.open(job(**SEARCH, sampler=sampler))
    first = losses(ledger, 10)
    assert sorted(first)[5] < 0.3, first
    assert [trial.number for trial in ledger._study.get_trials()] == list(range(10))
    assert ledger.best is not None
    assert ledger.best.values == (min(first),)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii"])
def test_a_resumed_study_draws_the_same(tmp_path: Path, sampler: str) -> None:
    drawn = []
    for name, again in (("a", False), ("b", True)):
        opened = Opened(tmp_path / name)
        given(opened, 60)
        of = job(**SEARCH, sampler=sampler)
        values = losses(opened.open(of), 6)
        ledger = opened.open(of) if again else opened._ledger
        assert ledger is not None
        drawn.append([*values, *losses(ledger, 6)])
        opened.close()
    assert drawn[0] == drawn[1]


def test_cmaes_estimates_its_start_once_and_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's own class does so for each trial of the first generation, which has 6 trials here."""
    estimates: list[int] = []
    estimate = optuna.samplers.CmaEsSampler._init_optimizer

    def counted(sampler: Any, *arguments: Any) -> Any:
        estimates.append(1)
        return estimate(sampler, *arguments)

    monkeypatch.setattr(optuna.samplers.CmaEsSampler, "_init_optimizer", counted)
    drawn, counts = [], []
    for name in ("ours", "optuna"):
        opened = Opened(tmp_path / name)
        given(opened, 60)
        with monkeypatch.context() as patched:
            if name == "optuna":
                patched.delitem(samplers._OWN_CLASSES, "CmaEsSampler")
            drawn.append(losses(opened.open(job(**SEARCH, sampler="cmaes")), 20))
        counts.append(len(estimates))
        opened.close()
    assert drawn[0] == drawn[1]
    assert counts == [1, 1 + 7]


def test_cmaes_needs_ten_earlier_trials_to_start_from(opened: Opened) -> None:
    given(opened, 9)
    assert len(losses(opened.open(job(**SEARCH, sampler="cmaes")), 3)) == 3


def test_a_sampler_is_shown_a_bounded_part_of_a_long_history(opened: Opened) -> None:
    given(opened, 10_000)
    ledger = opened.open(job(**SEARCH, sampler="tpe"))
    losses(ledger, 2)
    trials = shown(ledger)
    assert len(trials) == history.BOUNDS["tpe"].trials
    assert {0, 1} & {trial.number for trial in trials}, "own trials are chosen like the others"
    assert min(trial.values[0] for trial in trials) == min(
        trial.values[0] for trial in earlier.read(opened.run.code).history
    )


def test_a_long_history_defines_the_space_that_is_drawn_jointly(opened: Opened) -> None:
    """Otherwise all trials that start before the first one has ended are random."""
    given(opened, 3000)
    ledger = opened.open(job(**SEARCH, sampler="gp"))
    trials = shown(ledger)
    assert len(trials) == history.BOUNDS["gp"].trials
    assert optuna.search_space.IntersectionSearchSpace().calculate(ledger._study) == {}, "no trial of its own"
    assert set(optuna.search_space.intersection_search_space(trials)) == {"x", "y"}


def test_tpe_learns_from_trials_that_lack_a_parameter(opened: Opened) -> None:
    """Few have both parameters, and all of these are far from the best `x`."""
    chance = random.Random(3)
    trials = []
    for trial in range(200):
        x = chance.random()
        trials.append(EarlierTrial("first", trial, {"x": x}, (abs(x - 0.8),), {"loss": abs(x - 0.8)}))
    for trial in range(12):
        x, y = 0.4 * chance.random(), chance.random()
        trials.append(EarlierTrial("second", trial, {"x": x, "y": y}, (loss(x, y),), {"loss": loss(x, y)}))
    write(opened, trials)
    ledger = opened.open(job(**SEARCH, sampler="tpe"))
    drawn = [asked(ledger).params["x"] for _ in range(8)]
    assert all(abs(x - 0.8) < 0.15 for x in drawn), drawn


def test_a_study_without_history_is_shown_its_own_trials(opened: Opened) -> None:
    opened.run.code.mkdir()
    ledger = opened.open(job(**SEARCH, sampler="tpe"))
    losses(ledger, 3)
    assert len(shown(ledger)) == 3


def test_a_run_that_is_cancelled_does_not_wait_for_the_order_of_an_earlier_one(opened: Opened) -> None:
    """Trial 0 is to end after trial 3 has started, which waits for a slot."""
    of = job(**SEARCH, sampler="random")
    ledger = opened.open(of)
    requests = [asked(ledger) for _ in range(3)]
    opened.close()
    opened.run.ledger.unlink()
    earlier_attempts = [EarlierAttempt("first", one.trial, one.params, one.seed, ended_before=()) for one in requests]
    ends = TrialOutcome(0, TrialState.COMPLETE, metrics={"loss": 1.0})
    earlier_attempts[0] = dataclasses.replace(earlier_attempts[0], outcome=ends)
    earlier_attempts.append(dataclasses.replace(earlier_attempts[2], trial=3))
    opened.run.code.mkdir()
    (opened.run.code / earlier.FILE).write_bytes(Earlier(followed=tuple(earlier_attempts)).pack())
    ledger = opened.open(of)
    loop = Loop(ledger, opened.run, CANCELLED, size=2)
    assert loop.controller.run().state is RunState.CANCELLED
    assert [ledger.newest[trial].state for trial in range(3)] == [TrialState.COMPLETE, TrialState.PAUSED, TrialState.PAUSED]
    assert ledger.newest[0].message == "answered by trial 0 of first, which has the same parameters"


def test_ends_that_are_due_at_once_do_not_keep_the_loop_from_its_other_work(opened: Opened) -> None:
    """No trial of the earlier run ended before the last one had started."""
    trials = 350
    of = job(**{**SEARCH, "trials": trials}, sampler="random")
    ledger = opened.open(of)
    requests = [asked(ledger) for _ in range(trials)]
    opened.close()
    opened.run.ledger.unlink()
    ends = TrialOutcome(0, TrialState.COMPLETE, metrics={"loss": 1.0})
    followed = [EarlierAttempt("first", one.trial, one.params, one.seed, outcome=ends) for one in requests]
    opened.run.code.mkdir()
    (opened.run.code / earlier.FILE).write_bytes(Earlier(followed=tuple(followed)).pack())
    loop = Loop(opened.open(of), opened.run, None)
    assert loop.controller.run().state is RunState.SUCCEEDED
    assert max(status.running for status in loop.board.shown) >= trials - 100, "they end after the last start"
    complete = [0, *(status.complete for status in loop.board.shown), trials]
    assert max(after - before for before, after in itertools.pairwise(complete)) <= 100


def test_bad_points_of_the_history_are_shown_as_the_worst(opened: Opened) -> None:
    given(opened, 4, bad=2)
    ledger = opened.open(job(**SEARCH, sampler="gp"))
    assert sorted(math.isinf(trial.values[0]) for trial in shown(ledger)) == [False, False, True, True]
