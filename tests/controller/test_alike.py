"""A study whose first trials fail alike stops, and no other does.

Not checked here: where the line of the job's code comes from (tests/worker/test_outcomes.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.controller.conftest import outcome
from tests.controller.loops import Loop
from tests.controller.slots_double import Slots
from tests.controller.trainings import LOSS, SEARCH, Opened, job

from trialplane.controller.counts import AlikeFailures
from trialplane.controller.endings import Ending
from trialplane.ledger import run_status
from trialplane.wire import rows
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState
from trialplane.worker import outcomes

STUDY = {**SEARCH, "trials": 40, "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}


def request(number: int) -> TrialRequest:
    return TrialRequest("toy", number, 1, number, {}, 0, ("loss",))


def ended(
    number: int, place: str = "train.py:7", failure: FailureClass = FailureClass.ERROR, **changes: object
) -> TrialOutcome:
    message = f"ValueError: no colour {number} ({place})"
    made = outcome(number, state=TrialState.FAILED, failure=failure, message=message, fingerprint=place, metrics={})
    return made if not changes else TrialOutcome(**{**vars(made), **changes})  # type: ignore[arg-type]


def found(
    *outcomes: TrialOutcome, most: int | None = 3, running: tuple[int, ...] = (), ended_well: bool = False
) -> list[int]:
    alike = AlikeFailures(most, ended_well)
    for one in outcomes:
        alike.record_end(request(one.number), one)
    return [attempt.number for attempt in alike.find_fatal(map(request, running))]


def test_the_same_line_is_alike_whatever_the_message() -> None:
    assert found(ended(0), ended(1)) == []
    assert found(ended(0), ended(1), ended(2)) == [0, 1, 2]


def test_without_a_line_the_message_must_be_the_same() -> None:
    same = [ended(number, "", FailureClass.INVALID, message="score is missing") for number in range(3)]
    assert found(*same) == [0, 1, 2]
    assert found(*(ended(number, "", FailureClass.INVALID, message=f"score is {number}") for number in range(3))) == []


def test_results_that_lack_the_same_are_alike_whatever_else_is_in_them(tmp_path: Path) -> None:
    failed = [outcomes.outcome_of_result(request(n), {"accuracy": n / 7}, tmp_path / "w") for n in range(3)]
    assert found(*failed) == [0, 1, 2]
    assert found(*failed[:2], outcomes.outcome_of_result(request(2), {"loss": math.nan}, tmp_path / "w")) == []


@pytest.mark.parametrize(
    "between",
    [
        outcome(9),
        outcome(9, state=TrialState.PRUNED),
        ended(9, "train.py:8"),
        ended(9, failure=FailureClass.INVALID),
        ended(9, failure=FailureClass.OOM),
        ended(9, failure=FailureClass.TIMEOUT),
    ],
    ids=["a result", "a pruned one", "another line", "another class", "out of memory", "too slow"],
)
def test_a_trial_that_ended_otherwise_begins_the_row_anew(between: TrialOutcome) -> None:
    assert found(ended(0), ended(1), between, ended(2)) == []
    later = found(ended(0), ended(1), between, ended(10), ended(11), ended(12))
    assert later == ([] if between.failure is None else [10, 11, 12])


def test_an_attempt_that_is_tried_again_is_no_end() -> None:
    lost = ended(1, failure=FailureClass.LOST, retried=True)
    assert found(ended(0), lost, ended(2), ended(3)) == [0, 2, 3]


def test_it_waits_for_those_that_began_before_and_take_their_time() -> None:
    assert found(ended(0), ended(2), ended(3), running=(1, 4)) == []
    assert found(ended(0), ended(2), ended(3), running=(4, 5)) == [0, 2, 3]


def test_a_failure_that_every_trial_would_have_is_enough_by_itself() -> None:
    assert found(ended(0), ended(1, certain=True), running=(0, 2, 3)) == [1]
    assert found(ended(1, certain=True), ended_well=True) == []
    assert found(ended(1, certain=True), most=None) == []
    assert found(ended(1, certain=True), outcome(0)) == [], "it was not certain"


def test_a_study_that_has_results_and_one_that_wants_none_of_it_go_on() -> None:
    assert found(ended(0), ended(1), ended(2), ended_well=True) == []
    assert found(ended(0), ended(1), ended(2), most=None) == []


def play(opened: Opened, end: Callable[[Slots, int, TrialRequest], None], size: int = 1, **fields: object) -> Ending:
    """Runs a study whose trials end as soon as they start."""
    loop = Loop(opened.open(job(**{**STUDY, **fields})), opened.run, None, size=size)
    start = loop.slots.start

    def start_and_end(slot: int, asked: TrialRequest) -> None:
        start(slot, asked)
        end(loop.slots, slot, asked)

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    return loop.controller.run()


def raises(slots: Slots, slot: int, asked: TrialRequest) -> None:
    slots.fail(slot, FailureClass.ERROR, f"KeyError: {asked.trial} (train.py:7)", fingerprint="train.py:7")


def completes(slots: Slots, slot: int, asked: TrialRequest) -> None:
    slots.end(slot, metrics=LOSS)


def test_by_default_a_study_stops_after_five(opened: Opened) -> None:
    ending = play(opened, raises)
    assert ending.state is RunState.FAILED
    assert ending.reason == (
        "5 trials in a row failed in the same way and none has succeeded, so the study was stopped: KeyError: 4 "
        "(train.py:7); `platform logs toy-1 4` shows more; budget.failed_alike (5) sets how many, null turns the check off"
    )
    ending = play(opened, raises)
    assert "`platform logs toy-1 9`" in ending.reason, "resumed as it is, it tries as many again"


def test_a_study_ends_with_the_first_failure_that_every_trial_would_have(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    def lacks_a_module(slots: Slots, slot: int, asked: TrialRequest) -> None:
        if asked.trial == 1:  # the others take their time
            slots.fail(slot, FailureClass.ERROR, "ModuleNotFoundError: No module named 'x'", certain=True)

    ending = play(opened, lacks_a_module, size=4, parallel=4)
    assert ending.state is RunState.FAILED
    assert ending.reason == (
        "trial 1 failed as every other would, so the study was stopped: ModuleNotFoundError: No module named 'x'"
        "; `platform logs toy-1 1` shows more; budget.failed_alike: null tries them all"
    )
    attempts = list(opened.open(job(**STUDY)).attempts())
    trials = [rows.row(job(**STUDY), asked, {}, outcome) for asked, outcome in attempts]
    assert [(row.state, row.failure) for row in trials if row.trial != 1] == 3 * [(TrialState.FAILED, FailureClass.STOPPED)]
    assert {row.message for row in trials if row.trial != 1} == {"the run had failed"}
    assert len(trials) == 4
    counts = run_status.recount(job(**STUDY), trials)
    assert (counts.failed, counts.failures, counts.retried) == (1, {"error": 1}, 3)
    assert sum("stopped: the run had failed" in line for line in caplog.messages) == 3
    assert not any("retried" in line for line in caplog.messages)


def test_a_resumed_study_with_results_goes_on_to_its_end(opened: Opened) -> None:
    play(opened, completes, trials=2)
    assert play(opened, raises, trials=12) == Ending(RunState.SUCCEEDED, "all 12 trials ended, 10 of them failed", False)


def test_null_tries_all(opened: Opened) -> None:
    assert play(opened, raises, trials=8, budget={"failed_alike": None}).reason == "none of 8 trials completed (8 error)"
