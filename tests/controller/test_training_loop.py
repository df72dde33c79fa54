"""A training in the controller's loop: stopped gently, and what its status says.

The ledger is real; slots, MLflow and what the user wants are doubles. Not checked here: retries (test_training.py),
trainings with processes (tests/study/test_training.py).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.controller.loops import CANCELLED, PAUSED, Loop
from tests.controller.slots_double import Slots
from tests.controller.trainings import LOSS, SEARCH, Opened, asked, job

from trialplane.controller.desired import DesiredState
from trialplane.controller.endings import Ending
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState


def saves_itself(slots: Slots) -> None:
    slots.fail(0, FailureClass.LOST, "the user paused the run: stopped by SIGTERM after step 7, with a checkpoint")


@pytest.mark.parametrize("ending", [PAUSED, CANCELLED])
def test_a_training_that_the_user_ends_gets_the_time_to_save_itself(opened: Opened, ending: Ending) -> None:
    ledger = opened.open(job(retries={"lost": 0}))
    loop = Loop(ledger, opened.run, ending, saves_itself)
    assert loop.controller.run() == ending
    assert not loop.slots.killed
    ((request, told),) = list(ledger.attempts())
    assert told is not None
    assert (told.failure, told.retried) == (FailureClass.STOPPED, True)
    assert "with a checkpoint" in told.message
    again = asked(opened.open(job(retries={"lost": 0})))
    assert (again.trial, again.attempt, again.retry_of) == (0, 2, request.number), "and it cost no retry"


def test_a_loss_that_nobody_wanted_costs_a_retry(opened: Opened) -> None:
    ledger = opened.open(job(retries={"lost": 0}))
    loop = Loop(ledger, opened.run, None)
    start = loop.slots.start

    def start_and_lose(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.fail(slot, FailureClass.LOST, "the node was taken back")

    loop.slots.start = start_and_lose  # type: ignore[method-assign]
    ended = loop.controller.run()
    assert ended.state is RunState.FAILED
    assert ended.reason == "the training failed (lost): the node was taken back"


def test_a_second_signal_leaves_no_time(opened: Opened) -> None:
    ledger = opened.open(job())
    loop = Loop(ledger, opened.run, dataclasses.replace(PAUSED, hurry=True))
    assert loop.controller.run().state is RunState.PAUSED
    assert {failure for _, failure, _ in loop.slots.killed} == {FailureClass.STOPPED}


def test_two_signals_are_a_hurry(tmp_path: Path) -> None:
    stopped = [15]
    desired = DesiredState(RunPaths(tmp_path / "toy-1"), stopped, None)
    first = desired.ending()
    stopped.append(15)
    second = desired.ending()
    assert first is not None
    assert second is not None
    assert (first.hurry, second.hurry) == (False, True)


def test_a_search_without_checkpoints_is_killed_at_once(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH))
    loop = Loop(ledger, opened.run, PAUSED)
    assert loop.controller.run().state is RunState.PAUSED
    assert loop.slots.killed


def test_a_search_that_keeps_checkpoints_saves_them(opened: Opened) -> None:
    ledger = opened.open(job(**SEARCH, checkpoints={"grace": 10}))
    loop = Loop(ledger, opened.run, PAUSED, saves_itself)
    assert loop.controller.run().state is RunState.PAUSED
    assert not loop.slots.killed


def test_a_training_that_ends_in_the_time_it_got_has_succeeded(opened: Opened) -> None:
    ledger = opened.open(job())
    loop = Loop(ledger, opened.run, PAUSED, lambda slots: slots.end(0, metrics=LOSS))
    assert loop.controller.run() == Ending(RunState.SUCCEEDED, "the training ended", False)


def test_what_was_odd_about_its_end_is_said_with_it(opened: Opened) -> None:
    loop = Loop(opened.open(job()), opened.run, PAUSED, lambda slots: slots.end(0, metrics=LOSS, message="rank 1 hung"))
    assert loop.controller.run().reason == "the training ended; rank 1 hung"


def test_an_error_in_the_time_it_got_is_one(opened: Opened) -> None:
    ledger = opened.open(job())
    loop = Loop(ledger, opened.run, CANCELLED, lambda slots: slots.fail(0, FailureClass.ERROR, "ValueError: no"))
    assert loop.controller.run().state is RunState.CANCELLED
    assert ledger.counts.failures == {"error": 1}


def test_a_crash_while_it_stops_costs_no_retry(opened: Opened) -> None:
    ledger = opened.open(job(retries={"crashed": 0}))
    loop = Loop(ledger, opened.run, PAUSED, lambda slots: slots.fail(0, FailureClass.CRASHED, "killed by SIGKILL"))
    assert loop.controller.run().state is RunState.PAUSED
    assert not ledger.counts.failed


def test_an_attempt_that_was_paused_is_shown_so(opened: Opened) -> None:
    loop = Loop(ledger := opened.open(job()), opened.run, PAUSED, saves_itself)
    assert loop.controller.run().state is RunState.PAUSED
    assert ledger.newest[0].state is TrialState.PAUSED
    assert opened.open(job()).newest[0].state is TrialState.PAUSED, "to the next controller too"


def test_what_is_remarked_of_a_training_is_in_its_status(opened: Opened) -> None:
    loop = Loop(opened.open(job()), opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.say(slot, reports=(TrialReport(0, 1, LOSS, 1.0, "it started from scratch"), TrialReport(0, 2, LOSS, 2.0)))
        loop.slots.end(slot, metrics=LOSS)

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    assert loop.board.shown[-1].warnings == ("it started from scratch",)


def test_samples_of_system_metrics_are_no_steps_of_a_training(opened: Opened) -> None:
    loop = Loop(opened.open(job()), opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        use = TrialReport(0, 900, {"system/cpu_utilization_percentage": 50.0}, 2.0)
        loop.slots.say(slot, reports=(TrialReport(0, 2, LOSS, 1.0), use))
        loop.slots.end(slot, metrics=LOSS)

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    assert loop.board.shown[-1].progress == TrainingProgress(2, None, LOSS)


def test_the_status_says_how_far_it_is(opened: Opened) -> None:
    ledger = opened.open(job())
    loop = Loop(ledger, opened.run, None)
    answer = loop.slots.answer
    steps = iter(range(1, 4))

    def train(slot: int, prune: bool = False, suggested: None = None) -> None:
        answer(slot, prune)
        step = next(steps, None)
        if step is None:
            loop.slots.end(slot, metrics=LOSS)
        else:
            metrics = {"loss": 4.0 - step, "total_steps": 5.0}
            loop.slots.say(slot, reports=(TrialReport(0, 10 * step, metrics, 1e9 + step),))

    loop.slots.answer = train  # type: ignore[method-assign]
    start = loop.slots.start

    def start_training(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.say(slot)

    loop.slots.start = start_training  # type: ignore[method-assign]
    assert loop.controller.run().state is RunState.SUCCEEDED
    assert loop.board.shown[-1].progress == TrainingProgress(30, 5, {"loss": 1.0})
    assert any(status.eta is not None for status in loop.board.shown)
