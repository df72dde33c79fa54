"""A training in the controller: one trial without anything to draw, tried again under its number, and stopped gently.

The ledger is real; slots, MLflow and what the user wants are doubles. Not checked here: trainings with processes
(tests/study/test_training.py), several nodes (test_gangs.py), the fields of the job (tests/spec).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.slots_double import Slots

from trialplane.controller.ledger import Ledger
from trialplane.controller.loop import Controller, Ending
from trialplane.controller.session import Session
from trialplane.controller.setting import Setting
from trialplane.controller.wishes import Wishes
from trialplane.spec.job import Job
from trialplane.wire import labels
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

SEARCH: dict[str, Any] = {"kind": "hpo", "objectives": [{"metric": "loss", "direction": "minimize"}], "trials": 1}
LOSS = {"loss": 0.5}


def job(**fields: Any) -> Job:
    return Job.model_validate({"name": "toy", "kind": "train", "params": {"width": 8}, **fields})


class Opened:
    """Ledgers over one study's file; each `open` is another controller."""

    def __init__(self, folder: Path) -> None:
        self.run = RunPaths(folder / "runs" / "toy-1")
        self.run.root.mkdir(parents=True)
        self._ledger: Ledger | None = None

    def open(self, of: Job, left_at: int = 0) -> Ledger:
        self.close()
        url = f"sqlite:///{self.run.ledger}"
        self._ledger = Ledger(url, of, "toy-1", self.run.code, self.run.lock, left_at=left_at)
        return self._ledger

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    made.close()


def asked(ledger: Ledger) -> TrialRequest:
    request = ledger.ask()
    assert request is not None
    return request


def failed(request: TrialRequest, failure: FailureClass) -> TrialOutcome:
    return outcome(request.number, state=TrialState.FAILED, failure=failure, metrics={})


def test_a_training_is_one_trial_with_the_parameters_it_was_given(opened: Opened) -> None:
    ledger = opened.open(job(resume="earlier"))
    request = asked(ledger)
    assert (request.trial, dict(request.params), request.metrics) == (0, {"width": 8}, ("loss",))
    assert (request.resume, request.prunable) == ("earlier", False)
    assert ledger.ask() is None
    assert not ledger.exhausted, "nothing to draw is not everything drawn"
    ledger.tell(outcome(request.number, metrics=LOSS))
    assert ledger.best is not None
    assert ledger.best.values == (0.5,)
    assert (ledger.counts.ended, ledger.counts.complete) == (1, 1)


def test_each_attempt_is_at_the_same_trial_until_retries_are_spent(opened: Opened) -> None:
    ledger = opened.open(job(retries={"crashed": 2, "lost": 1}))
    numbers = []
    for attempt, failure in enumerate([FailureClass.CRASHED, FailureClass.LOST, FailureClass.CRASHED], start=1):
        request = asked(ledger)
        assert (request.trial, request.attempt) == (0, attempt)
        told = ledger.tell(failed(request, failure))
        assert told is not None
        assert told.retried
        numbers.append(request.number)
        ledger = opened.open(job(retries={"crashed": 2, "lost": 1}))  # whoever drives it
    request = asked(ledger)
    assert (request.trial, request.attempt, request.retry_of) == (0, 4, numbers[-1])
    told = ledger.tell(failed(request, FailureClass.CRASHED))
    assert told is not None
    assert not told.retried
    assert ledger.ask() is None
    assert ledger.counts.failed == 1


def ends(opened: Opened, of: Job, failure: FailureClass, steps: list[int]) -> list[bool]:
    """Whether each of the attempts that failed after so many steps is tried again; each has a controller of its own."""
    retried = []
    for step in steps:
        ledger = opened.open(of)
        told = ledger.tell(dataclasses.replace(failed(asked(ledger), failure), step=step))
        assert told is not None
        retried.append(told.retried)
    return retried


def test_a_lost_machine_costs_nothing_while_the_training_gets_on(opened: Opened) -> None:
    of = job(retries={"lost": 2})
    week = ends(opened, of, FailureClass.LOST, [10, 20, 15, 30, 30, 40])
    assert week == [True] * 6, "each time it came further, the count began anew"
    assert ends(opened, of, FailureClass.LOST, [40, 39]) == [True, False]


def test_what_fails_again_and_again_at_one_step_is_over_when_its_retries_are(opened: Opened) -> None:
    assert ends(opened, job(retries={"crashed": 2}), FailureClass.CRASHED, [7, 7, 7]) == [True, True, False]


def test_getting_on_is_no_retry_where_there_is_to_be_none(opened: Opened) -> None:
    assert ends(opened, job(retries={"lost": 0}), FailureClass.LOST, [7]) == [False]


def test_a_search_without_checkpoints_does_not_get_on(opened: Opened) -> None:
    """Its trial begins anew each time, so that how far an attempt came is a matter of luck."""
    assert ends(opened, job(**SEARCH, retries={"lost": 1}), FailureClass.LOST, [10, 20]) == [True, False]


def test_a_search_that_keeps_checkpoints_gets_on_like_a_training(opened: Opened) -> None:
    kept = job(**SEARCH, checkpoints={"grace": 10}, retries={"lost": 1})
    assert ends(opened, kept, FailureClass.LOST, [10, 20, 20]) == [True, True, False]


def test_how_far_a_killed_controller_had_it_is_known_by_its_last_status(opened: Opened) -> None:
    of = job(retries={"lost": 1})
    for step in (10, 20, 30):
        asked(opened.open(of))
        ledger = opened.open(of, left_at=step)
        assert (ledger.counts.failed, len(ledger.running())) == (0, 0)
        assert list(ledger.attempts())[-1][1].step == step  # type: ignore[union-attr]
    asked(ledger)
    assert opened.open(of, left_at=30).counts.failed == 1, "nobody came further than step 30"


def test_the_status_in_the_database_is_newer_than_any_file(opened: Opened) -> None:
    ledger = opened.open(job())
    ledger.describe({labels.LEDGER_STATUS: {"progress": {"step": 40.0}}})
    asked(ledger)
    ((_, told),) = opened.open(job(), left_at=30).attempts()
    assert told is not None
    assert told.step == 40


def test_a_training_that_failed_for_good_is_taken_up_with_all_its_retries(opened: Opened) -> None:
    of = job(retries={"crashed": 1})
    assert ends(opened, of, FailureClass.CRASHED, [7, 7]) == [True, False]
    assert opened.open(of).ask() is None, "not by itself"
    ledger = opened.open(of)
    assert ledger.take_up()
    assert not ledger.take_up(), "it is taken up already"
    assert (ledger.counts.failed, ledger.counts.counted_failures, ledger.counts.failures) == (0, 0, {})
    request = asked(ledger)
    assert (request.trial, request.attempt, request.retry_of) == (0, 3, 1)
    assert ledger.ask() is None
    ledger.tell(outcome(request.number, metrics=LOSS))
    shown, attempts = ledger.counts.shown(), list(ledger.attempts())
    assert (shown["complete"], shown["failed"], shown["retried"]) == (1, 0, 2)
    assert [told.retried for _, told in attempts if told] == [True, False, False], "what was told stays"
    ledger = opened.open(of)
    assert (ledger.counts.shown(), list(ledger.attempts())) == (shown, attempts)
    assert not ledger.take_up(), "what succeeded has nothing to take up"


def test_its_retries_are_new_for_the_next_controller_too(opened: Opened) -> None:
    of = job(retries={"crashed": 1})
    assert ends(opened, of, FailureClass.CRASHED, [7, 7]) == [True, False]
    ledger = opened.open(of)
    assert ledger.take_up()
    ledger.tell(failed(asked(ledger), FailureClass.CRASHED))
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    assert opened.open(of).counts.shown()["failures"] == {"crashed": 1}


def test_taken_up_is_the_attempt_that_the_user_meant(opened: Opened) -> None:
    """A controller that is started again for a lost head finds the wish of before."""
    of = job(retries={"crashed": 0})
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    ledger = opened.open(of)
    assert ledger.take_up(0)
    ledger.tell(failed(asked(ledger), FailureClass.CRASHED))
    ledger = opened.open(of)
    assert not ledger.take_up(0)
    assert ledger.ask() is None
    assert ledger.take_up(1)


@pytest.mark.parametrize(("ray", "again", "left"), [("", None, 1), ("ray:1", None, 0), ("ray:1", 0, 1), ("ray:1", 5, 0)])
def test_in_a_cluster_only_the_users_word_takes_it_up(opened: Opened, ray: str, again: int | None, left: int) -> None:
    """A controller is started there for a lost head, too; on a laptop it is always the user who has it started."""
    of = job(retries={"crashed": 0})
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    ledger = opened.open(of)
    ledger.describe({labels.LEDGER_WISH: {"state": "RUNNING", "again": again}})
    opened.run.submission.write_text("{}")
    Session(opened.run, of, [], Setting(ray=ray))._take_up(ledger)
    assert ledger.unstarted == left


def test_a_trial_of_a_search_that_failed_stays_so(opened: Opened) -> None:
    of = job(**SEARCH)
    assert ends(opened, of, FailureClass.ERROR, [0]) == [False]
    assert not opened.open(of).take_up()


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
