"""Budgets of GPU-hours and money: counted from the ledger's attempts, also across controllers that were killed.

The ledger is real; slots, MLflow and the clock are doubles. Not checked: hours of each kind of run (wire/test_costs.py).
"""

from __future__ import annotations

import types
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.loops import Loop
from tests.controller.trainings import LOSS, SEARCH, Opened, asked, failed, job

from trialplane.controller import ledger as module
from trialplane.controller.ledger import Ledger
from trialplane.controller.session import Session
from trialplane.controller.setting import Setting
from trialplane.controller.status import write_status
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.costs import Prices, Usage
from trialplane.wire.records import RunStatus, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

GPUS: dict[str, Any] = {**SEARCH, "trials": 9, "resources": {"gpus": 2}, "ranks": 1}


class Clock:
    """The ledger's, which goes as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 5e8
        monkeypatch.setattr(module, "time", types.SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def working(opened: Opened, clock: Clock, of: Job, seconds: float, prices: Prices) -> Loop:
    """A loop whose trials take this long, and fail every other time."""
    loop = Loop(opened.open(of), opened.run, None, prices=prices)
    start = loop.slots.start

    def work(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        clock.now += seconds
        times = {"started": clock.now - seconds, "ended": clock.now}
        if request.trial % 2:
            loop.slots.end(slot, state=TrialState.FAILED, failure=FailureClass.ERROR, metrics={}, **times)
        else:
            loop.slots.end(slot, metrics=LOSS, **times)

    loop.slots.start = work  # type: ignore[method-assign]
    return loop


def seconds_of(ledger: Ledger) -> float:
    """The time of all attempts, of one slot each."""
    return ledger.usage(Prices()).slot_hours * 3600


def workers_of(workers: int) -> Job:
    """A collection with a GPU for each worker, and none for the learner."""
    collect = {
        "units": 8,
        "iterations": 9,
        "workers": workers,
        "learner": {"entrypoint": "train:learn", "resources": {"gpus": 0}},
    }
    return kinds.read(
        {"name": "toy", "kind": "collect", "collect": collect, "resources": {"gpus": 1}, "retries": {"lost": 2}}
    )


def test_hours_are_those_of_the_workers_that_a_collection_had(opened: Opened, clock: Clock) -> None:
    hour, prices = 3600.0, Prices(gpu_hour=2.0)
    ledger = opened.open(workers_of(4))
    ledger.record_workers(4)
    first = asked(ledger)
    clock.now += hour
    ledger.record_workers(1)  # as `platform scale` does
    clock.now += hour
    assert ledger.usage(prices) == Usage(2 + 5.0, 5.0, 2 + 5.0, 10.0), "an hour of 4, and an hour of 1"
    ledger.tell(outcome(first.number, metrics={"units": 8.0}, started=clock.now - 2 * hour, ended=clock.now))
    clock.now += hour  # between two iterations, which does not count
    again = opened.open(workers_of(8))
    again.record_workers(8)
    assert again.usage(prices).gpu_hours == pytest.approx(5.0), "a resumed run with more workers counts as before"
    assert again.newest[0].workers == pytest.approx(2.5)
    asked(again)
    clock.now += hour
    assert again.usage(prices) == Usage(3 + 13.0, 13.0, 3 + 13.0, 26.0)


def test_the_iteration_of_a_killed_controller_counts_with_the_workers_at_its_start(opened: Opened, clock: Clock) -> None:
    ledger = opened.open(workers_of(4))
    ledger.record_workers(4)
    begun = clock.now
    asked(ledger)
    clock.now += 86_400.0
    again = opened.open(workers_of(2), last_alive=begun + 3600.0)
    assert again.usage(Prices()).gpu_hours == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("budget", "said", "ended"),
    [
        ({"gpu_hours": 5}, "budget.gpu_hours is used up: 6 of 5, after 3 of 9 trials", 3),  # 2 GPU-hours each
        ({"gpu_hours": 6}, "budget.gpu_hours is used up: 6 of 6, after 3 of 9 trials", 3),
        ({"cost": 10}, "budget.cost is used up: 12 of 10, after 2 of 9 trials", 2),  # 2 x 2.5 and 1 x 1 each
        ({"cost": 1000, "gpu_hours": 100}, "all 9 trials ended", 9),
    ],
)
def test_a_run_ends_when_its_attempts_have_used_the_budget(
    opened: Opened, clock: Clock, budget: dict[str, float], said: str, ended: int
) -> None:
    loop = working(opened, clock, job(**GPUS, budget=budget), 3600.0, Prices(gpu_hour=2.5, cpu_hour=1.0))
    ending = loop.controller.run()
    assert ending.reason.startswith(said)
    assert ending.state is RunState.SUCCEEDED
    assert loop.controller._ledger.counts.ended == ended
    assert loop.controller.usage == Usage(ended, 2.0 * ended, ended, 6.0 * ended)


def test_the_running_trial_gets_time_to_save_itself_and_is_no_failure(opened: Opened, clock: Clock) -> None:
    """Where no checkpoints are kept, there is nothing to save."""
    of = job(resources={"gpus": 1}, budget={"gpu_hours": 1})

    def time_flies() -> None:
        clock.now += 1800.0

    def saves(slots: Any) -> None:
        slots.fail(0, FailureClass.LOST, "stopped by SIGTERM, with a checkpoint")

    loop = Loop(opened.open(of), opened.run, time_flies, saves)
    ending = loop.controller.run()
    assert (ending.state, ending.reason) == (
        RunState.FAILED,
        "budget.gpu_hours is used up: 1 of 1, after 0 of 1 trials",
    )
    assert loop.heard and not loop.slots.killed
    row = loop.controller._ledger.newest[0]
    assert (row.state, row.failure) == (TrialState.PAUSED, FailureClass.STOPPED)


def test_a_training_that_completes_in_that_time_has_succeeded(opened: Opened, clock: Clock) -> None:
    of = job(resources={"gpus": 1}, budget={"gpu_hours": 1})

    def time_flies() -> None:
        clock.now += 1800.0

    loop = Loop(opened.open(of), opened.run, time_flies, lambda slots: slots.end(0, metrics=LOSS))
    assert loop.controller.run().state is RunState.SUCCEEDED


def test_what_former_controllers_used_counts_and_so_do_failed_and_lost_attempts(opened: Opened, clock: Clock) -> None:
    of = job(**GPUS, retries={"lost": 2})
    ledger = opened.open(of)
    ledger.tell(outcome(asked(ledger).number, metrics=LOSS, started=clock.now, ended=clock.now + 10.0))
    lost = failed(asked(ledger), FailureClass.LOST)
    ledger.tell(module.dataclasses.replace(lost, started=clock.now, ended=clock.now + 20.0))
    again = asked(ledger)
    assert (again.trial, again.attempt) == (1, 2)
    clock.now += 40.0
    assert seconds_of(ledger) == pytest.approx(70.0)
    assert seconds_of(opened.open(of)) == pytest.approx(30.0), "the attempt that ran has given no sign of life"


@pytest.mark.parametrize("sign", ["report", "status", "none"])
def test_an_attempt_of_a_killed_controller_lasted_until_the_last_sign_of_life(
    opened: Opened, clock: Clock, sign: str
) -> None:
    of = job(**GPUS)
    begun = clock.now
    ledger = opened.open(of)
    request = asked(ledger)
    if sign == "report":
        clock.now += 30.0
        ledger.report(TrialReport(request.number, 1, LOSS, clock.now))
        ledger.write_reports(patient=True)
    clock.now += 86_400.0  # nobody resumes it until the next day
    last_alive = begun + 30.0 if sign == "status" else 0.0
    again = opened.open(of, last_alive=last_alive)
    seconds = 0.0 if sign == "none" else 30.0
    assert seconds_of(again) == pytest.approx(seconds)
    assert again.newest[0].started == begun
    assert again.newest[0].ended == begun + seconds


def test_only_a_controller_that_works_is_a_sign_of_life(opened: Opened, clock: Clock) -> None:
    """`platform resume` and a controller that starts write a status too, long after the trials have ended."""
    opened.run.submission.write_text("{}")
    write_status(opened.run, RunStatus("toy-1", "toy", RunState.PENDING, 1, updated=9e8, alive=5e8))
    session = Session(opened.run, job(**GPUS), [], Setting())
    assert session._status(RunState.PENDING, "").alive == 5e8
    loop = working(opened, clock, job(**GPUS), 1.0, Prices())
    loop.controller.run()
    assert loop.board.shown[-1].alive > 9e8


def test_the_status_has_hours_and_prices_before_and_after_the_loop(opened: Opened) -> None:
    opened.run.submission.write_text("{}")
    before = RunStatus("toy-1", "toy", RunState.PAUSED, 1, usage=Usage(1.0, 2.0, 1.0, 6.0))
    write_status(opened.run, before)
    of, prices = job(**GPUS), Prices(gpu_hour=2.5, cpu_hour=1.0)
    session = Session(opened.run, of, [], Setting(prices=prices))
    status = session._status(RunState.PENDING, "")
    assert (status.usage, status.prices) == (before.usage, prices)
    ledger = session._ledger = opened.open(of)
    ledger.tell(outcome(asked(ledger).number, metrics=LOSS, started=100.0, ended=3700.0))
    assert session._status(RunState.SUCCEEDED, "").usage == Usage(1.0, 2.0, 1.0, 6.0)
