"""An objective that is the best of a trial's reports: which value counts, which step it has, and which attempts' reports.

The ledger, the loop and MLflow's store are real. Not checked here: what a trial's process makes of a result without the
metric (tests/worker/test_outcomes.py).
"""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.loops import Loop
from tests.controller.trainings import Opened, asked, failed, job

from trialplane.controller.ledger import Ledger
from trialplane.wire import earlier
from trialplane.wire.records import BestReport, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

BEST = {"metric": "score", "direction": "maximize", "of": "best"}
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [BEST],
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "trials": 3,
}


def report(ledger: Ledger, of: TrialRequest, *values: float, first: int = 0) -> None:
    for step, value in enumerate(values):
        ledger.report(TrialReport(of.number, first + step, {"score": value}, time.time()))


@pytest.mark.parametrize(
    ("direction", "reported", "returned", "value", "step"),
    [
        ("maximize", [0.2, 0.9, 0.4], 0.4, 0.9, 1),
        ("minimize", [0.2, 0.1, 0.4], 0.4, 0.1, 1),
        ("maximize", [0.2, 0.9, 0.9], 0.9, 0.9, 1),  # the first of equal ones, and returned as well
        ("maximize", [0.2, 0.9, 0.4], 0.95, 0.95, None),  # only returned
        ("maximize", [0.2, math.nan, math.inf], 0.1, 0.2, 0),
        ("maximize", [], 0.1, 0.1, None),
    ],
)
def test_the_best_of_the_reports_and_the_result_counts(opened: Opened, direction, reported, returned, value, step) -> None:
    ledger = opened.open(job(**{**SEARCH, "objectives": [{**BEST, "direction": direction}]}))
    first = asked(ledger)
    assert first.reported == ("score",)
    report(ledger, first, *reported)
    ended = ledger.tell(outcome(first.number, metrics={"score": returned, "size": 3.0}))
    assert ended is not None and ended.metrics == {"score": value, "size": 3.0}
    for again in (ledger, opened.open(ledger.job)):
        row = again.newest[0]
        assert (row.values, row.best_steps) == ((value,), {} if step is None else {"score": step})
        assert again.best == row, "it is what the sampler and the target see"


def test_the_last_one_counts_where_nothing_else_is_asked_for(opened: Opened) -> None:
    ledger = opened.open(job(**{**SEARCH, "objectives": [{**BEST, "of": "last"}]}))
    first = asked(ledger)
    report(ledger, first, 0.2, 0.9)
    ended = ledger.tell(outcome(first.number, metrics={"score": 0.4}))
    assert (first.reported, ended and ended.metrics, ended and ended.best) == ((), {"score": 0.4}, {})


def test_of_several_objectives_each_has_its_own(opened: Opened) -> None:
    of = [BEST, {"metric": "size", "direction": "minimize"}]
    ledger = opened.open(job(**{**SEARCH, "objectives": of}))
    first = asked(ledger)
    for step, (score, size) in enumerate([(0.9, 1.0), (0.5, 2.0)]):
        ledger.report(TrialReport(first.number, step, {"score": score, "size": size}, 1.0))
    ended = ledger.tell(outcome(first.number, metrics={"score": 0.5, "size": 2.0}))
    assert ended is not None and ended.metrics == {"score": 0.9, "size": 2.0}
    assert first.reported == ("score",)


@pytest.mark.parametrize("crash", [False, True], ids=["one controller", "two controllers"])
def test_a_training_that_goes_on_keeps_the_best_of_its_former_attempts(opened: Opened, crash: bool) -> None:
    of = job(objectives=[BEST])
    ledger = opened.open(of)
    first = asked(ledger)
    report(ledger, first, 0.1, 0.8, 0.3)
    ended = ledger.tell(failed(first, FailureClass.LOST))
    assert ended is not None and ended.best == {"score": BestReport(0.8, 1)}
    assert ended.metrics == {}, "it has no result"
    if crash:
        ledger = opened.open(of)
    second = asked(ledger)
    report(ledger, second, 0.4, first=2)
    last = ledger.tell(outcome(second.number, metrics={"score": 0.4}))
    assert last is not None and (last.metrics, last.best_steps) == ({"score": 0.8}, {"score": 1})


def test_a_trial_that_starts_anew_has_no_reports_before(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH))
    first = asked(ledger)
    report(ledger, first, 0.8)
    ledger.tell(failed(first, FailureClass.LOST))
    second = asked(ledger)
    assert second.trial == first.trial
    report(ledger, first, 0.9)  # a late one
    last = ledger.tell(outcome(second.number, metrics={"score": 0.4}))
    assert last is not None and (last.metrics, last.best) == ({"score": 0.4}, {})


@pytest.mark.parametrize("crash", [False, True], ids=["one controller", "two controllers"])
@pytest.mark.parametrize(("begun", "best"), [(7, BestReport(0.9, 4)), (-1, BestReport(0.5, 0))], ids=["continued", "anew"])
def test_reports_of_an_earlier_run_count_only_if_its_checkpoint_was_read(
    opened: Opened, begun: int, best: BestReport, crash: bool
) -> None:
    params = {"width": 8, "x": 0.5}
    beginning = earlier.Beginning("toy-0", 0, params, 1, "digest", 7, best={"score": BestReport(0.9, 4)})
    opened.run.code.mkdir()
    (opened.run.code / earlier.FILE).write_bytes(earlier.Earlier(beginnings=(beginning,)).pack())
    of = job(**{**SEARCH, "space": {"x": [0.5]}, "trials": 1}, reuse=True)
    ledger = opened.open(of)
    first = asked(ledger)
    assert first.start is not None and first.start.digest
    ledger.report(TrialReport(first.number, begun + 1, {"score": 0.5}, time.time(), start_step=begun))
    if crash:
        ledger.write_reports(patient=True)
        _, ended = next(opened.open(of).attempts())  # the next controller records that it is lost
    else:
        ended = ledger.tell(outcome(first.number, metrics={"score": 0.4}))
    assert ended is not None and ended.best == {"score": best}


def test_the_loop_passes_reports_on(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH))
    loop = Loop(ledger, opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, of: TrialRequest) -> None:
        start(slot, of)
        loop.slots.say(slot, reports=(TrialReport(of.number, 4, {"score": 0.7}, 1.0),))
        loop.slots.end(slot, metrics={"score": 0.5})

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    assert loop.controller.run().state is RunState.SUCCEEDED
    assert [row.values for row in ledger.newest.values()] == [(0.7,)] * 3
    assert {tuple(row.best_steps.items()) for row in ledger.newest.values()} == {(("score", 4),)}


def test_a_pruned_trial_has_no_value(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH))
    first = asked(ledger)
    report(ledger, first, 0.8)
    ended = ledger.tell(outcome(first.number, state=TrialState.PRUNED, metrics={"score": 0.8}))
    assert ended is not None and ended.best and not ended.best_steps
    assert (ledger.newest[0].values, ledger.newest[0].best_steps, ledger.best) == ((), {}, None)
