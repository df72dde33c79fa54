"""A training in the controller's loop: stopped gently, and what its status says.

The ledger is real; slots, MLflow and what the user wants are doubles. Not checked here: retries (test_training.py),
trainings with processes (tests/study/test_training.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.controller.slots_double import Slots
from tests.controller.trainings import LOSS, SEARCH, Opened, asked, job

from trialplane.controller.ledger import Ledger
from trialplane.controller.loop import Controller, Ending
from trialplane.controller.wishes import Wishes
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    made.close()


class Recorder:
    """MLflow's end, which is nobody's business here."""

    away = ""

    def __init__(self) -> None:
        self.reports: list[TrialReport] = []

    def run_id(self, patience: float) -> str:
        return "id"

    def reported(self, reports: tuple[TrialReport, ...]) -> None:
        self.reports += reports

    def last_step(self, number: int) -> int:
        return max((report.step for report in self.reports if report.number == number), default=0)

    def started(self, *_: Any) -> None:
        """Takes note."""

    ended = best = started

    def tick(self) -> None:
        """Goes on."""


class Board:
    """Keeps every status it is shown."""

    def __init__(self) -> None:
        self.shown: list[RunStatus] = []

    def show(self, status: RunStatus, *, now: bool = False) -> None:
        self.shown.append(status)


class Loop:
    """One controller whose only slot is warm, and a user who wants something as soon as the trial runs.

    Args:
        ledger: of the study.
        run: its files.
        wants: what the user wants.
        stop: what a trial does that is told to stop; None when it is not to be told.
    """

    def __init__(
        self, ledger: Ledger, run: RunPaths, wants: Ending | None, stop: Callable[[Slots], None] | None = None
    ) -> None:
        self.slots = Slots(1)
        self.slots.warm(0)
        self.board = Board()
        self.heard: list[str] = []

        def on_stop(slot: int, message: str) -> None:
            assert stop is not None, "it was to be killed"
            if not self.heard:  # each turn of the loop says it again
                stop(self.slots)
            self.heard.append(message)

        def on_kill(slot: int, failure: FailureClass, message: str) -> None:
            if not self.slots.killed:
                self.slots.fail(0, failure, message)
            self.slots.killed.append((slot, failure, message))

        self.slots.stop = on_stop  # type: ignore[method-assign]
        self.slots.kill = on_kill  # type: ignore[method-assign]
        base = RunStatus("toy-1", "toy", RunState.RUNNING, ledger.job.trials)
        parts: tuple[Any, ...] = (run, ledger, self.slots, Recorder(), self.board, base)
        self.controller = Controller(*parts, lambda: wants if self.slots.started else None)


PAUSED = Ending(RunState.PAUSED, "paused by the user", kill=True)
CANCELLED = Ending(RunState.CANCELLED, "cancelled by the user", kill=True)


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
    wishes = Wishes(RunPaths(tmp_path / "toy-1"), stopped, None, 1)
    first = wishes.ending()
    stopped.append(15)
    second = wishes.ending()
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


def test_the_status_says_how_far_it_is(opened: Opened) -> None:
    ledger = opened.open(job())
    loop = Loop(ledger, opened.run, None)
    answer = loop.slots.go_on
    steps = iter(range(1, 4))

    def train(slot: int, prune: bool = False) -> None:
        answer(slot, prune)
        step = next(steps, None)
        if step is None:
            loop.slots.end(slot, metrics=LOSS)
        else:
            metrics = {"loss": 4.0 - step, "total_steps": 5.0}
            loop.slots.say(slot, reports=(TrialReport(0, 10 * step, metrics, 1e9 + step),))

    loop.slots.go_on = train  # type: ignore[method-assign]
    start = loop.slots.start

    def start_training(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.say(slot)

    loop.slots.start = start_training  # type: ignore[method-assign]
    assert loop.controller.run().state is RunState.SUCCEEDED
    assert loop.board.shown[-1].progress == {"step": 30.0, "loss": 1.0, "total_steps": 5.0}
    assert any(status.eta is not None for status in loop.board.shown)
