"""Studies that are submitted again with `reuse`: the same starts, reports, ends and decisions, and not one step of training.

The ledgers are real and driven in this process, by slots whose attempts end in a random order. Not checked here: what is
reused by other studies (test_earlier_runs.py), and a real run (tests/study/test_reuse.py).
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from tests.client.conftest import Runs
from tests.client.test_earlier_runs import made, prepared, with_epochs

from trialplane.client import earlier_runs, folder
from trialplane.controller.ledger import Ledger
from trialplane.wire import earlier, rows
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import CheckpointSummary, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

TOP = 16
SLOTS = 3
PROMOTE = {"name": "asha", "promote": True, "max_resource": "epochs"}
SPACE = {"x": {"type": "float", "low": 0.0, "high": 1.0}, "lr": None, "name": None}


def loss(request: TrialRequest, step: int) -> float:
    return float(abs(request.params["x"] - 0.3) + request.params["x"] / step)


class Work:
    """The work on a run, until the study is over.

    Args:
        run: the run.
        seed: chooses which of the running attempts does the next step.
        kills: whether the controller is killed now and then.
        fails: trial whose first attempt is lost.
        most: number of steps after which the last controller is killed.
        early: whether every third trial is complete at step 3, below a rung.

    Attributes:
        trained: trial and step of each step that was trained, in order.
    """

    def __init__(
        self, run: RunPaths, seed: int, *, kills: bool = False, fails: int = -1, most: int = 10**6, early: bool = False
    ) -> None:
        self._run, self._random, self._fails, self._most, self._early = run, random.Random(seed), fails, most, early
        self.trained: list[tuple[int, int]] = []
        while not self._work(self._random.randint(9, 25) if kills else 10**6):
            pass

    def _work(self, turns: int) -> bool:
        """A controller's work for some turns; whether it is the last one's."""
        run = self._run
        running: dict[int, tuple[TrialRequest, int]] = {}  # number → request, and steps done
        with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), run.root.name, run.code, run.lock) as ledger:
            for _ in range(turns):
                while len(running) < SLOTS:
                    self._end_answered(ledger)
                    request = ledger.ask()
                    if request is None and self._end_answered(ledger, is_stuck=True):
                        continue
                    if request is None:
                        break
                    if not ledger.answer(request):
                        has_checkpoint = request.segment is not None and request.segment.parent is not None
                        running[request.number] = request, request.segment.done if has_checkpoint else 0
                self._end_answered(ledger)
                if not running or len(self.trained) >= self._most:
                    return True
                self._step(ledger, running)
        return False

    def _end_answered(self, ledger: Ledger, *, is_stuck: bool = False) -> int:
        answers = [ledger.tell(outcome) for _, outcome in ledger.take_answers(is_stuck=is_stuck)]
        return len(answers)

    def _step(self, ledger: Ledger, running: dict[int, tuple[TrialRequest, int]]) -> None:
        """One of the running attempts does a step, and ends if that was its last one."""
        number = self._random.choice(sorted(running))
        request, step = running[number][0], running[number][1] + 1
        running[number] = request, step
        self.trained.append((request.trial, step))
        if request.trial == self._fails and request.attempt == 1:
            end = TrialOutcome(number, TrialState.FAILED, failure=FailureClass.LOST)
        else:
            is_pruned = ledger.report(TrialReport(number, step, {"loss": loss(request, step)}, 5.0))
            rung = 0 if request.segment is None else request.segment.rung
            last_step = 3 if self._early and request.trial % 3 == 0 else TOP
            state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if step == last_step else TrialState.PAUSED
            if not is_pruned and step not in (rung, last_step):
                return
            summary = CheckpointSummary(1, 10, f"{request.trial} at {step}")
            end = TrialOutcome(number, state, metrics={"loss": loss(request, step)}, checkpoints=summary)
        ledger.tell(end)
        del running[number]


def history(runs: Runs, name: str) -> list[Any]:
    """What a run has in its ledger: its starts in order, its reports by trial and step, and the ends of its trials."""
    attempts = runs.target.attempts(name, 0)[0]
    failed = {attempt.request.number for attempt in attempts if attempt.outcome and attempt.outcome.failure}
    starts = [
        (request.trial, request.params, request.segment and (request.segment.rung, request.segment.done))
        for request in (attempt.request for attempt in attempts)
        if request.retry_of not in failed
    ]
    reports = {(report.trial, report.step): report.metrics for report in runs.target.curves(name)}
    newest = rows.newest_attempts(runs.target.rows(name))
    return [starts, reports, [(row.trial, row.state, row.values, row.metrics, row.step) for row in newest]]


def study(runs: Runs, name: str, pruner: Any = None, **fields: Any) -> RunPaths:
    """A run of a study with a pruner; by default one that promotes."""
    fields = {"space": SPACE, "pruner": pruner or PROMOTE, "trials": 24, "params.epochs": TOP, **fields}
    return made(runs, name, **fields)


@pytest.fixture(autouse=True)
def epochs(runs: Runs) -> None:
    with_epochs(runs)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize(
    "pruner",
    [
        PROMOTE,
        {**PROMOTE, "max": "auto"},
        {"name": "successive_halving", "min_resource": 1, "reduction_factor": 4},
        "median",
        "none",
    ],
    ids=["promote", "auto", "halving", "median", "none"],
)
def test_a_repeated_study_trains_no_step(runs: Runs, pruner: Any, sampler: str) -> None:
    assert len(Work(study(runs, "first", pruner, sampler=sampler), 1, fails=5).trained) > 24
    assert not Work(study(runs, "second", pruner, sampler=sampler, reuse=True), 2).trained
    assert history(runs, "second") == history(runs, "first")
    assert not Work(study(runs, "third", pruner, sampler=sampler, reuse=True), 3).trained, "a repetition can be repeated"
    assert history(runs, "third") == history(runs, "first")


def test_a_budget_of_steps_is_used_up_by_the_same_trials(runs: Runs) -> None:
    assert len(Work(study(runs, "first", **{"budget.steps": 40}), 1).trained) == 40
    assert not Work(study(runs, "second", reuse=True, **{"budget.steps": 40}), 2).trained
    assert history(runs, "second") == history(runs, "first")


def test_steps_of_trials_that_end_below_a_rung_are_in_the_budget(runs: Runs) -> None:
    trained = Work(study(runs, "first", **{"budget.steps": 40}), 1, early=True).trained
    assert 30 < len(trained) <= 40 and any(step == 3 for _, step in trained)
    assert not Work(study(runs, "second", reuse=True, **{"budget.steps": 40}), 2).trained
    assert history(runs, "second") == history(runs, "first")
    outcomes = [attempt.outcome for attempt in runs.target.attempts("second", 0)[0]]
    assert all(outcome is not None and outcome.started == outcome.ended for outcome in outcomes), "they use no time"


def test_a_run_that_decides_alike_is_followed_rather_than_a_larger_one(runs: Runs) -> None:
    Work(study(runs, "first", sampler="tpe"), 1)
    Work(study(runs, "larger", sampler="random", trials=48), 1)
    assert not Work(study(runs, "second", sampler="tpe", reuse=True), 2).trained
    assert history(runs, "second") == history(runs, "first")


def test_kills_of_either_controller_change_nothing(runs: Runs) -> None:
    lost = {"retries": {"lost": 99}}
    assert Work(study(runs, "first", sampler="tpe", **lost), 1, kills=True).trained
    assert not Work(study(runs, "second", sampler="tpe", reuse=True, **lost), 2, kills=True).trained
    assert history(runs, "second") == history(runs, "first")


@pytest.mark.parametrize(("pruner", "most"), [(PROMOTE, 25), ("median", 60)], ids=["promote", "median"])
def test_a_study_that_was_interrupted_trains_what_had_not_ended(runs: Runs, pruner: Any, most: int) -> None:
    trained = Work(study(runs, "first", pruner), 1, most=most).trained
    assert len(trained) == most
    attempts = [(attempt.request.trial, attempt.outcome) for attempt in runs.target.attempts("first", 0)[0]]
    unfinished = {trial for trial, outcome in attempts if outcome is None or outcome.state is TrialState.PAUSED}
    rest = Work(study(runs, "second", pruner, reuse=True), 2).trained
    assert {trial for trial, _ in set(trained) & set(rest)} <= unfinished < {trial for trial, _ in attempts}
    assert set(trained) | set(rest) == set(history(runs, "second")[1])


def test_more_trials_than_before(runs: Runs) -> None:
    """A trial that is promoted further than before has no checkpoint left, so it starts over; the others train nothing."""
    first = Work(study(runs, "first"), 1).trained
    larger = study(runs, "second", reuse=True, trials=48)
    ends = {attempt.outcome.state for attempt in earlier.read(larger.code).followed if attempt.outcome}
    assert ends == {TrialState.PAUSED, TrialState.COMPLETE}, "those that were dropped later may continue here"
    second = Work(larger, 2).trained
    again = {(trial, step) for trial, step in second if (trial, step) in set(first)}
    promoted = {trial for trial, step in second if trial < 24}
    assert {trial for trial, _ in again} == promoted
    assert len(again) < 24
    states = [row.state for row in rows.newest_attempts(runs.target.rows("second"))]
    assert len(states) == 48
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}


def test_another_pruner_repeats_no_decision(runs: Runs) -> None:
    Work(study(runs, "first", "median"), 1)
    second = study(runs, "second", {"name": "median", "n_startup_trials": 9}, reuse=True)
    assert earlier.read(second.code).followed == ()
    assert earlier.read(second.code).results


def test_a_ledger_of_an_older_version_has_no_order(runs: Runs) -> None:
    """Then attempts end one by one, which is what they did with one slot."""
    Work(study(runs, "first"), 1)
    second = study(runs, "second", reuse=True)
    content = earlier.read(second.code)
    followed = tuple(dataclasses.replace(attempt, ended_before=None) for attempt in content.followed)
    (second.code / earlier.FILE).write_bytes(dataclasses.replace(content, followed=followed).pack())
    Work(second, 2)
    newest = rows.newest_attempts(runs.target.rows("second"))
    assert len(newest) == 24


def test_too_many_reports_are_not_sent(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    Work(study(runs, "first", "median"), 1)
    assert (
        prepared(runs, "second", pruner="median", space=SPACE, trials=24, reuse=True, **{"params.epochs": TOP})
        .warnings[-1]
        .startswith("reuse: 24 attempts of first repeated without training")
    )
    monkeypatch.setattr(earlier_runs, "MAX_REPORTS", 30)
    second = prepared(runs, "second", pruner="median", space=SPACE, trials=24, reuse=True, **{"params.epochs": TOP})
    assert "reuse: the decisions of first are not repeated: it has more than 30 reports, or 300,000 values in them" in (
        second.warnings
    )
