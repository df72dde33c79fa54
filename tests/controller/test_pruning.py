"""Which metric the pruner compares trials by, and what is told when it does not come.

The ledger is real. Not checked here: Optuna's pruners, which decide (tests/contracts/test_ledger.py has one at work).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.controller.conftest import outcome
from tests.controller.loops import Loop
from tests.controller.trainings import Opened, asked, job

from trialplane.controller import pruning
from trialplane.controller.ledger import Ledger
from trialplane.wire.records import TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

SEARCH = {
    "kind": "hpo",
    "objectives": [{"metric": "accuracy", "direction": "maximize"}],
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "trials": 9,
}
MEDIAN = {"name": "median", "n_startup_trials": 2}


def report(ledger: Ledger, request: TrialRequest, step: int = 1, **metrics: float) -> bool:
    return ledger.report(TrialReport(request.number, step, metrics, time.time()))


def trial(ledger: Ledger, *reports: Mapping[str, float]) -> bool:
    """One trial that reports, and is pruned where the pruner wants it to; whether it was."""
    request = asked(ledger)
    for step, metrics in enumerate(reports):
        if report(ledger, request, step, **metrics):
            ledger.tell(outcome(request.number, state=TrialState.PRUNED, metrics=metrics))
            return True
    ledger.tell(outcome(request.number, metrics={"accuracy": 0.5}))
    return False


@pytest.mark.parametrize(
    ("watched", "better", "worse"),
    [
        ({"metric": "auc"}, 0.9, 0.1),
        ({"metric": "loss", "direction": "minimize"}, 0.1, 0.9),
    ],
)
@pytest.mark.parametrize(
    "pruner",
    [
        MEDIAN,
        {"name": "successive_halving", "min_resource": 1, "reduction_factor": 2},
        {"name": "asha", "min_resource": 1, "reduction_factor": 2},
        {"name": "hyperband", "min_resource": 1, "max_resource": 4, "reduction_factor": 2},
        {"name": "patient", "patience": 0, "wrapped_pruner": MEDIAN},
        {"name": "wilcoxon", "n_startup_steps": 0, "p_threshold": 0.4},
    ],
    ids=lambda pruner: pruner["name"],
)
def test_trials_are_compared_by_what_the_pruner_watches(opened: Opened, pruner, watched, better, worse) -> None:
    ledger = opened.open(job(**SEARCH, pruner={**pruner, **watched}))
    name = watched["metric"]
    good = [{name: better, "accuracy": 0.5}] * 6
    assert [trial(ledger, *good) for _ in range(4)] == [False] * 4
    bad = [{name: worse + 0.01 * step * (worse - better), "accuracy": 0.5} for step in range(6)]
    assert [trial(ledger, *bad) for _ in range(3)].count(True) >= 2, "one may be alone in its bracket"
    ledger = opened.open(ledger.job)
    assert not trial(ledger, *good), "nor are directions mixed up by the next controller"


@pytest.mark.parametrize(
    ("pruner", "mirrored"),
    [
        (MEDIAN, MEDIAN),
        (({"name": "percentile", "percentile": 25.0, "n_startup_trials": 2},) * 2),
        (({"name": "successive_halving", "min_resource": 1, "reduction_factor": 2},) * 2),
        (({"name": "hyperband", "min_resource": 1, "max_resource": 4, "reduction_factor": 2},) * 2),
        (({"name": "patient", "patience": 0, "wrapped_pruner": MEDIAN},) * 2),
        (({"name": "wilcoxon", "n_startup_steps": 0, "p_threshold": 0.4},) * 2),
        ({"name": "threshold", "lower": -0.2}, {"name": "threshold", "upper": 0.2}),
        ({"name": "threshold", "lower": -0.2, "upper": 5.0}, {"name": "threshold", "lower": -5.0, "upper": 0.2}),
        (
            {"name": "patient", "patience": 0, "wrapped_pruner": {"name": "threshold", "upper": -0.2}},
            {"name": "patient", "patience": 0, "wrapped_pruner": {"name": "threshold", "lower": 0.2}},
        ),
    ],
    ids=lambda pruner: f"{pruner['name']} {pruner.get('lower', '')}",
)
def test_a_metric_of_the_opposite_direction_prunes_and_ranks_as_its_negation(tmp_path: Path, pruner, mirrored) -> None:
    """TPE ranks pruned trials by their reports, so it draws the same points, also after another controller loaded them."""

    def searched(name: str, watched: Mapping[str, object]) -> list[tuple[float, int]]:
        of = job(**{**SEARCH, "trials": 20}, sampler={"name": "tpe", "n_startup_trials": 4}, pruner=watched)
        opened = Opened(tmp_path / name)
        drawn = []
        for first in (0, 10):
            ledger = opened.open(of)
            for number in range(first, first + 10):
                request = asked(ledger)
                x, step = request.params["x"], 0
                for step in range(4):
                    score = -abs(x - 0.3) * (1 + 0.05 * ((number + step) % 3))
                    if report(ledger, request, step, score=score, loss=-score, accuracy=score):
                        break
                pruned = {"state": TrialState.PRUNED} if number >= 2 else {}
                ledger.tell(outcome(request.number, metrics={"accuracy": -abs(x - 0.3)}, **pruned))
                drawn.append((x, step))
        opened.close()
        return drawn

    drawn = searched("opposite", {**mirrored, "metric": "loss", "direction": "minimize"})
    assert drawn == searched("same", {**pruner, "metric": "score"})
    assert any(step < 3 for _, step in drawn), "or nothing was pruned"


HALVING = {"name": "successive_halving", "min_resource": 1, "reduction_factor": 2}


def reported(ledger: Ledger, request: TrialRequest, steps: range, value: float) -> int | None:
    """The step at which a trial that reports the same value is pruned."""
    return next((step for step in steps if report(ledger, request, step, accuracy=value)), None)


@pytest.mark.parametrize("stopped", [False, True], ids=["", "another controller"])
@pytest.mark.parametrize("pruner", [HALVING, {"name": "hyperband", "min_resource": 1, "max_resource": 2}], ids=str)
def test_a_retry_that_starts_over_is_judged_from_its_first_report(opened: Opened, pruner, stopped: bool) -> None:
    ledger = opened.open(job(**SEARCH, pruner=pruner))
    for _ in range(4):
        request = asked(ledger)
        reported(ledger, request, range(1, 9), 0.5)
        ledger.tell(outcome(request.number, metrics={"accuracy": 0.5}))
    lost = asked(ledger)
    assert reported(ledger, lost, range(1, 9), 0.9) is None
    ledger.tell(outcome(lost.number, state=TrialState.FAILED, failure=FailureClass.LOST, metrics={}))
    if stopped:
        ledger = opened.open(ledger.job)
    again = asked(ledger)
    assert again.retry_of == lost.number
    assert reported(ledger, again, range(1, 9), 0.1) == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["", "another controller"])
def test_a_retry_that_continues_keeps_its_rungs_and_reports(opened: Opened, stopped: bool) -> None:
    """What it reports later does not count as what it had at an early step, against which others are compared."""
    ledger = opened.open(job(**SEARCH, pruner=HALVING))
    paused = asked(ledger)
    assert reported(ledger, paused, range(1, 5), 0.3) is None
    ledger.tell(outcome(paused.number, state=TrialState.FAILED, failure=FailureClass.STOPPED, metrics={}))
    if stopped:
        ledger = opened.open(ledger.job)
    if stopped:  # one that was lost before it reported anything changes nothing
        asked(ledger)
        ledger = opened.open(ledger.job)
    again = asked(ledger)
    assert reported(ledger, again, range(5, 8), 0.9) is None
    ledger.tell(outcome(again.number, metrics={"accuracy": 0.9}))
    assert ledger._frozen(0).intermediate_values == dict.fromkeys(range(1, 5), 0.3) | dict.fromkeys(range(5, 8), 0.9)
    other = asked(ledger)
    assert reported(ledger, other, range(1, 2), 0.4) is None, "better than 0.3 after its first step"


@pytest.mark.parametrize("wrapped", [False, True], ids=["", "patient"])
@pytest.mark.parametrize(
    ("pruner", "unit"),
    [
        ({"name": "hyperband", "reduction_factor": 2}, 1),
        ({"name": "hyperband", "max_resource": "auto", "min_resource": 2, "reduction_factor": 2}, 1),
        ({"name": "successive_halving", "reduction_factor": 2}, 60),
    ],
    ids=str,
)
def test_what_a_pruner_estimated_stays_the_same_under_the_next_controller(
    tmp_path: Path, pruner, unit: int, wrapped: bool
) -> None:
    """Optuna estimates `auto` by the trials that are complete at that moment, and later ones are longer here."""

    def pruned(name: str, reopens: bool) -> list[int | None]:
        opened = Opened(tmp_path / name)
        named = {"name": "patient", "patience": 0, "wrapped_pruner": pruner} if wrapped else pruner
        of = job(**{**SEARCH, "trials": 14}, pruner=named)
        ledger, steps = opened.open(of), []
        for number in range(14):
            request = asked(ledger)
            value = request.params["x"]
            steps_of = range(unit, unit * (4 + 4 * number), unit)
            at = next((step for step in steps_of if report(ledger, request, step, accuracy=value - step / 1e6)), None)
            state = {} if at is None else {"state": TrialState.PRUNED}
            ledger.tell(outcome(request.number, metrics={"accuracy": value}, **state))
            steps.append(at)
            if reopens:
                ledger = opened.open(of)
        opened.close()
        return steps

    undisturbed = pruned("undisturbed", False)
    assert any(undisturbed), "or nothing is compared"
    assert pruned("reopened", True) == undisturbed


def test_a_metric_that_never_comes_is_told_with_what_came_instead(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH, pruner=MEDIAN))
    trial(ledger, {"auc": 0.5, "loss": 1.0}, {"auc": 0.5})
    complaint = ledger.pruning.complaint
    assert complaint == (
        "nothing is pruned: the median pruner watches accuracy, and 2 reports had auc, loss; "
        "report it, ctx.report(step, accuracy=…), or write pruner: {name: median, metric: auc}"
    )
    trial(ledger, {"auc": 0.5})
    assert ledger.pruning.complaint == complaint, "it is one complaint"
    assert opened.open(ledger.job).pruning.complaint, "the next controller has it too"
    trial(opened.open(ledger.job), {"accuracy": 0.5})
    assert opened.open(ledger.job).pruning.complaint == ""


def test_a_study_without_reports_is_told(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH, pruner=MEDIAN))
    trial(ledger)
    assert "watches accuracy, and no trial has reported anything; report it" in ledger.pruning.complaint


def test_it_is_waited_for_as_long_as_it_may_still_come(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of days is not waited for."""
    monkeypatch.setattr(pruning, "MANY_UNWATCHED", 3)
    ledger = opened.open(job(**SEARCH, pruner={**MEDIAN, "metric": "auc"}))
    request = asked(ledger)
    told = []
    for step in range(4):
        report(ledger, request, step, loss=1.0)
        told.append(bool(ledger.pruning.complaint))
    assert told == [False, False, True, True]
    report(ledger, request, 4, auc=0.5)
    assert ledger.pruning.complaint == ""


def test_without_a_pruner_nothing_is_told(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH))
    trial(ledger, {"auc": 0.5})
    assert ledger.pruning.complaint == ""


def test_the_status_has_it(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    ledger = opened.open(job(**{**SEARCH, "trials": 3}, pruner=MEDIAN))
    loop = Loop(ledger, opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.say(slot, reports=(TrialReport(request.number, 0, {"auc": 0.5}, 1.0),))
        loop.slots.end(slot, metrics={"accuracy": 0.5})

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    assert loop.controller.run().state is RunState.SUCCEEDED
    (warning,) = loop.board.shown[-1].warnings
    assert "the median pruner watches accuracy, and 1 report had auc" in warning
    assert [record.message for record in caplog.records].count(warning) == 1
