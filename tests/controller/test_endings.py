"""How a run ends when more than one thing would end it: budgets, a pause, a cancel, and impatience.

The ledger is real; slots, MLflow, the clock and the user are doubles. Not checked here: what becomes of trials that are
stopped (test_training_loop.py).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.controller import collecting
from tests.controller.loops import CANCELLED, PAUSED, Loop
from tests.controller.slots_double import Slots
from tests.controller.trainings import LOSS, SEARCH, Opened, job

from trialplane import errors
from trialplane.controller import endings
from trialplane.controller import loop as module
from trialplane.controller.desired import DesiredState
from trialplane.controller.endings import Ending
from trialplane.controller.gangs import GangPool
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotEvent
from trialplane.controller.session import Session
from trialplane.controller.setting import Setting
from trialplane.controller.status import write_status
from trialplane.controller.workloads.collection import CollectionWorkload, ObjectStores
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.ledger.attempts import Attempt
from trialplane.wire import records
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus, SlotConfig, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState

HURRIED = dataclasses.replace(PAUSED, hurry=True)
HOUR: dict[str, Any] = {"budget": {"time": "1h"}}


class Clock:
    """The loop's, which goes as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        self.wall = 2e9
        monkeypatch.setattr(module, "time", types.SimpleNamespace(time=lambda: self.wall, monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class User:
    """Lets two hours go by when the first trial runs, and then wants one thing after the other."""

    def __init__(self, clock: Clock, *wants: Ending | None) -> None:
        self._clock = clock
        self._wants = [None, *wants]  # the turn in which the budget is found to be used up

    def __call__(self) -> Ending | None:
        if len(self._wants) > 1:
            self._clock.now += 7200.0
            return self._wants.pop(0)
        return self._wants[0]


def stays(slots: Slots) -> None:
    """A trial that takes its time to save itself."""


def gang(ledger: Ledger, slots: Any) -> StudyWorkload:
    return StudyWorkload(ledger, GangPool(slots, SlotConfig("toy-1", "", "", "", "", nodes=2)))


def collection(ledger: Ledger, slots: Any) -> CollectionWorkload:
    workers: Any = Slots(2)
    exchange: Any = collecting.Exchange(slots, workers)
    return CollectionWorkload(ledger, slots, workers, exchange, ObjectStores(lambda: 0, lambda: 0))


@pytest.mark.parametrize(("before", "ended"), [(0.0, 2), (3000.0, 1)])
def test_a_time_budget_counts_what_former_controllers_worked(
    opened: Opened, clock: Clock, before: float, ended: int
) -> None:
    loop = Loop(opened.open(job(**{**SEARCH, "trials": 2}, **HOUR)), opened.run, None, worked=before)
    start = loop.slots.start

    def work(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        clock.now += 1000.0
        clock.wall += 86400.0  # somebody sets the machine's clock
        loop.slots.end(slot, metrics=LOSS)

    loop.slots.start = work  # type: ignore[method-assign]
    loop.controller.run()
    assert loop.controller._ledger.counts.ended == ended
    assert loop.controller.worked == before + 1000.0 * ended


def test_what_a_run_has_worked_is_in_every_status_of_its_next_controller(opened: Opened) -> None:
    opened.run.submission.write_text("{}")
    write_status(opened.run, RunStatus("toy-1", "toy", RunState.PAUSED, 1, worked=40.0))
    session = Session(opened.run, job(**SEARCH, **HOUR), [], Setting())
    assert session._status(RunState.PENDING, "the slots are warming up").worked == 40.0


@pytest.mark.parametrize("wanted", [PAUSED, CANCELLED])
def test_what_the_user_wants_ends_the_trials_that_a_used_up_budget_left_to_finish(
    opened: Opened, clock: Clock, wanted: Ending
) -> None:
    loop = Loop(opened.open(job(**SEARCH, **HOUR)), opened.run, User(clock, wanted))
    assert loop.controller.run() == wanted
    assert {(failure, message) for _, failure, message in loop.slots.killed} == {
        (FailureClass.STOPPED, f"the user {wanted.state.lower()} the run")
    }


def test_trials_of_several_nodes_are_ended_after_a_budget_too(opened: Opened, clock: Clock) -> None:
    of = job(**SEARCH, **HOUR, nodes=2)
    loop = Loop(opened.open(of), opened.run, User(clock, PAUSED), work=gang, size=2)
    assert loop.controller.run() == PAUSED
    assert {slot for slot, _, _ in loop.slots.killed} == {0, 1}


def test_an_iteration_gets_the_time_to_save_itself_after_a_budget_too(opened: Opened, clock: Clock) -> None:
    of = collecting.job().model_copy(update={"budget": job(**SEARCH, **HOUR).budget})

    def saves(slots: Slots) -> None:
        slots.fail(0, FailureClass.LOST, "stopped by SIGTERM, with a checkpoint")

    loop = Loop(opened.open(of), opened.run, User(clock, PAUSED), saves, collection)
    assert loop.controller.run() == PAUSED
    assert loop.heard and not loop.slots.killed
    progress = loop.board.shown[-1].progress
    assert isinstance(progress, CollectionProgress)
    assert progress.iteration == 0, "what the status showed of it is the collection's"


def test_a_used_up_budget_does_not_replace_what_the_user_wants(opened: Opened, clock: Clock) -> None:
    loop = Loop(opened.open(job(**SEARCH, **HOUR)), opened.run, PAUSED)
    kill = loop.slots.kill

    def late(slot: int, failure: FailureClass, message: str) -> None:
        clock.now += 7200.0
        kill(slot, failure, message)

    loop.slots.kill = late  # type: ignore[method-assign]
    assert loop.controller.run() == PAUSED


def test_a_budget_that_is_used_up_before_the_first_result_counts_the_results_that_come(opened: Opened, clock: Clock) -> None:
    def wants() -> None:
        if clock.now < 1e6 + 7200.0:
            clock.now += 7200.0
        elif clock.now < 1e6 + 7300.0:
            clock.now = 1e6 + 7300.0  # the turn after the one in which the budget was found to be used up
            loop.slots.end(0, metrics=LOSS)

    loop = Loop(opened.open(job(**{**SEARCH, "trials": 2}, **HOUR)), opened.run, wants)
    ended = loop.controller.run()
    assert ended.state is RunState.SUCCEEDED
    assert ended.reason == "the time budget of 3600 s is used, after 1 of 2 trials"


def test_a_cancel_replaces_a_pause_and_leaves_a_training_its_time(opened: Opened, clock: Clock) -> None:
    def wants() -> Ending:
        if len(loop.heard) == 2:
            loop.slots.fail(0, FailureClass.LOST, "stopped by SIGTERM, with a checkpoint")
        return CANCELLED if loop.heard else PAUSED

    loop = Loop(opened.open(job()), opened.run, wants, stays)
    assert loop.controller.run() == CANCELLED
    assert not loop.slots.killed


def test_a_pause_does_not_replace_a_cancel(opened: Opened, clock: Clock) -> None:
    loop = Loop(opened.open(job(**SEARCH)), opened.run, User(clock, CANCELLED, PAUSED))
    assert loop.controller.run() == CANCELLED


def test_of_two_budgets_the_one_that_was_used_up_first_counts() -> None:
    """A trial that was just ending reaches the target of a run that has failed."""
    failed = Ending(RunState.FAILED, "too many trials failed", kill=True)
    assert endings.select(failed, Ending(RunState.SUCCEEDED, "the target is reached", kill=True)) == failed


def test_what_a_run_warned_of_is_in_its_last_status_too(opened: Opened) -> None:
    opened.run.submission.write_text("{}")
    session = Session(opened.run, job(**SEARCH), [], Setting())
    session._loop = Loop(opened.open(job(**SEARCH)), opened.run, None).controller
    session._loop._warn("the pruner can never prune")
    assert session._status(RunState.SUCCEEDED, "all trials ended").warnings == ("the pruner can never prune",)


def test_the_ledger_has_the_slot_of_each_attempt(opened: Opened) -> None:
    ledger = opened.open(job(**{**SEARCH, "trials": 2}))
    loop = Loop(ledger, opened.run, None, size=2)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        if len(loop.slots.started) == 2:
            loop.slots.end(1, metrics=LOSS)
            loop.slots.end(0, metrics=LOSS)

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    assert {row.trial: row.slot for row in ledger.newest.values()} == {0: 0, 1: 1}


def test_the_advice_of_several_trials_is_given_once(opened: Opened) -> None:
    loop = Loop(opened.open(job(**{**SEARCH, "trials": 3})), opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.end(slot, metrics=LOSS, advice=f"{request.trial} s of imports")

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    [warning] = loop.board.shown[-1].warnings
    assert warning.endswith("s of imports")


def test_files_that_were_not_kept_are_told_once(opened: Opened) -> None:
    loop = Loop(opened.open(job(**{**SEARCH, "trials": 3})), opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.end(slot, metrics=LOSS, remark=f"could not copy {request.trial}.pt")

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    assert loop.board.shown[-1].warnings == ("trial 0: could not copy 0.pt",)


def test_a_repeated_warning_is_no_further_one(opened: Opened) -> None:
    loop = Loop(opened.open(job(**SEARCH)), opened.run, None)
    for number in (*range(100), 0):
        loop.controller._warn(f"warning {number}")
    assert loop.controller.warnings == tuple(f"warning {number}" for number in range(100))


def test_what_trials_say_is_bounded(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A trial's code may send remarks of any length, one with each report, and metrics without end."""
    many = {**LOSS, **{f"of class {number}": 0.5 for number in range(20_000)}}
    ledger = opened.open(job(**{**SEARCH, "trials": 1}))
    loop = Loop(ledger, opened.run, None)
    start = loop.slots.start

    def start_and_end(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        loop.slots.say(slot, reports=tuple(TrialReport(0, step, LOSS, 1.0, f"{step}:" + "z" * 2000) for step in range(200)))
        loop.slots.end(
            slot, metrics=many, remark="x" * 5000, advice="y" * 5000, message="z" * (1 << 20), fingerprint="p" * 5000
        )

    loop.slots.start = start_and_end  # type: ignore[method-assign,assignment]
    loop.controller.run()
    warnings = loop.board.shown[-1].warnings
    assert (len(warnings), max(map(len, warnings))) == (101, 1000)
    assert warnings[-1] == "there are more warnings, which are left out"
    loop.controller._warn("one more")
    loop.controller._warn("one more")
    assert caplog.text.count("more warnings") == 1 and "one more" not in caplog.text
    assert len(records.to_json(loop.board.shown[-1])) < 200_000
    (outcome,) = (outcome for _, outcome in ledger.attempts())
    assert outcome is not None and outcome.metrics == many and len(outcome.fingerprint) == 1000
    assert outcome is not None and (len(outcome.remark), len(outcome.advice)) == (1000, 1000)


def test_a_status_that_the_ledger_refuses_does_not_end_the_run(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each controller that went on would end the same way."""
    opened.run.submission.write_text("{}")
    session = Session(opened.run, job(**SEARCH), [], Setting(ledger="http://gateway"))
    ledger = session._ledger = opened.open(job(**SEARCH))
    written: list[dict[str, Any]] = []

    def describe(attributes: Mapping[str, Any], *, patient: bool = True) -> None:
        if attributes["status"]["warnings"]:
            raise errors.LedgerRefused("a run's status may have fewer bytes")
        written.append(attributes["status"])

    monkeypatch.setattr(ledger, "write_facts", describe)
    for _ in range(2):
        session._record_status(dataclasses.replace(session._status(RunState.RUNNING, "why"), warnings=("of a trial",)))
    assert [(one["state"], one["reason"]) for one in written] == [("RUNNING", "why")] * 2
    assert caplog.text.count("fewer bytes") == 1


@pytest.mark.parametrize("makes_room", [False, True])
def test_while_the_ledger_is_full_trials_that_run_end_and_none_is_started(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, makes_room: bool
) -> None:
    """Their results have cost what they have; the trial that had no room is the next one, once there is some."""
    ledger = opened.open(job(**{**SEARCH, "trials": 4}))
    loop = Loop(ledger, opened.run, None, size=3)
    begin, refused = ledger.storage.write_start, 0

    def begin_two(attempt: Attempt, kept: Mapping[str, Any] | None) -> None:
        nonlocal refused
        if attempt.request.number >= 2 and (not makes_room or loop.slots.started):
            refused += 1
            raise errors.LedgerFull("the runs in vision keep 2 GiB")
        begin(attempt, kept)

    def events(timeout: float) -> Iterator[SlotEvent]:
        """A trial goes on for some turns of the loop."""
        if (turns := len(loop.board.shown)) % 5 == 4 and loop.slots.started:
            loop.slots.end(min(loop.slots.started), metrics=LOSS)
        assert turns < 100
        return loop.slots.take(())

    monkeypatch.setattr(ledger.storage, "write_start", begin_two)
    monkeypatch.setattr(loop.slots, "events", events)
    if makes_room:
        loop.controller.run()
    else:
        with pytest.raises(errors.LedgerFull):
            loop.controller.run()
    trials = [request.trial for request, outcome in ledger.attempts() if outcome is not None]
    assert trials == ([0, 1, 2, 3] if makes_room else [0, 1])
    assert refused == 3, "once for each end of a trial, and not in each turn"
    assert loop.board.shown[-1].warnings == ("no further trial is started: the runs in vision keep 2 GiB",)
    assert not loop.slots.killed


@pytest.mark.parametrize(("first", "then"), [(PAUSED, HURRIED), (CANCELLED, HURRIED)])
def test_hurry_counts_whatever_the_ending_is(opened: Opened, clock: Clock, first: Ending, then: Ending) -> None:
    loop = Loop(opened.open(job()), opened.run, User(clock, first, then), stays)
    assert loop.controller.run().state is first.state
    assert loop.heard and loop.slots.killed


# Signals on a laptop


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "toy-1")
    made.root.mkdir()
    return made


def asked(desired: DesiredState) -> tuple[RunState, bool]:
    ending = desired.ending()
    assert ending is not None
    return ending.state, ending.hurry


def test_a_cancel_after_a_pause_is_no_hurry_and_a_second_one_is(run: RunPaths) -> None:
    stopped = [15]
    desired = DesiredState(run, stopped, None)
    assert asked(desired) == (RunState.PAUSED, False)
    run.cancelled.touch()
    stopped.append(15)
    assert asked(desired) == (RunState.CANCELLED, False)
    stopped.append(15)
    assert asked(desired) == (RunState.CANCELLED, True)


def test_two_cancels_are_a_hurry(run: RunPaths) -> None:
    run.cancelled.touch()
    stopped = [15]
    desired = DesiredState(run, stopped, None)
    assert asked(desired) == (RunState.CANCELLED, False)
    stopped.append(15)
    assert asked(desired) == (RunState.CANCELLED, True)
