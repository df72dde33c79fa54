"""What each kind of run makes of its slots: answers to reports, how many slots it uses, when it ends, how far it is.

Slots and, where they do not matter, the ledger are doubles. Not checked here: a collection's units and results
(test_collection.py), the loop above (test_endings.py, test_training_loop.py).
"""

from __future__ import annotations

import types
from typing import Any

import pytest
from tests.controller import collecting
from tests.controller.conftest import request
from tests.controller.loops import Loop
from tests.controller.slots_double import Slots
from tests.controller.trainings import LOSS, SEARCH, Opened, job

from trialplane.controller import slots as pools
from trialplane.controller import workloads
from trialplane.controller.counts import Counts, SavedCheckpoints
from trialplane.controller.endings import Ending
from trialplane.controller.iteration import Iteration
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.controller.workloads.training import TrainingWorkload
from trialplane.job.kinds import Job
from trialplane.wire import messages
from trialplane.wire.progress import TrainingProgress
from trialplane.wire.records import SlotConfig, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState


class Ledger:
    """A ledger whose pruner prunes at odd steps."""

    def __init__(self, of: Job, *, running: int = 0, unstarted: int = 0, complete: int = 0, **counts: int) -> None:
        self.job = of
        self.run = "toy-1"
        self.counts = Counts(running=running, complete=complete, **counts)
        self.startable = unstarted
        self.newest: dict[int, Any] = {0: None} if complete else {}
        self.reported: list[int] = []
        self.promotion = None
        self.saved = SavedCheckpoints()
        self.workers: list[int] = []
        self.written: list[int] = []  # the reports in the database

    def write_reports(self, *, patient: bool = False) -> None:
        assert patient
        self.written = [*self.reported]

    def record_workers(self, number: int) -> None:
        self.workers.append(number)

    def report(self, report: TrialReport) -> bool:
        self.reported.append(report.step)
        return report.step % 2 == 1 and not self.job.is_sequential


def reports(*steps: int) -> tuple[TrialReport, ...]:
    return tuple(TrialReport(5, step, {"loss": 1.0}, 2000.0 + step) for step in steps)


def listen(work: Any) -> list[Any]:
    return list(work.events(0))


@pytest.mark.parametrize(("steps", "first"), [((0, 1), 2), ((0, 1, 2, 3), 2), ((1, 2), 1), ((0, 2), 2), ((), 0)])
def test_a_trial_ends_at_the_first_report_that_prunes_it(steps: tuple[int, ...], first: int) -> None:
    """Reports of a script come many at once; those after the first decision are not the trial's, as for a function."""
    slots, ledger = Slots(1), Ledger(job(**SEARCH))
    work: Any = StudyWorkload(ledger, slots)  # type: ignore[arg-type]  # doubles
    slots.warm(0)
    listen(work)
    assert work.idle == [0]
    work.start(0, request(5))
    slots.say(0, reports=reports(*steps), log=b"a line\n")
    (event,) = listen(work)
    assert (event.reports, ledger.reported) == (reports(*steps[:first]), [*steps[:first]])
    assert slots.answered == [(0, 1 if 1 in steps else None)]
    assert messages.LogGrown(b"a line\n") in event.messages


@pytest.mark.parametrize("confirm", [True, False])
def test_a_trial_that_is_about_to_save_is_answered_when_its_reports_are_written(confirm: bool) -> None:
    slots, ledger = Slots(1), Ledger(job(**SEARCH))
    work: Any = StudyWorkload(ledger, slots)  # type: ignore[arg-type]
    slots.warm(0)
    listen(work)
    work.start(0, request(5))
    slots.say(0, reports=reports(0, 2), confirm=confirm)
    for _ in work.events(0):
        assert not slots.answered
    assert ledger.written == ([0, 2] if confirm else [])
    assert slots.answered == [(0, None)]


def test_reports_that_come_with_the_end_of_a_trial_are_known_before_its_end_is_taken() -> None:
    slots, ledger = Slots(1), Ledger(job(**SEARCH))
    work: Any = StudyWorkload(ledger, slots)  # type: ignore[arg-type]
    slots.warm(0)
    listen(work)
    work.start(0, request(5))
    slots.end(0, reports=reports(0, 1, 2))
    for event in work.events(0):
        assert event.outcome is not None
        assert ledger.reported == [0, 1, 2], "it has run in full, so it is not pruned at step 1"
    assert not slots.answered


def test_the_reports_of_a_training_are_its_progress() -> None:
    slots, ledger = Slots(1), Ledger(job())
    work: Any = TrainingWorkload(ledger, slots)  # type: ignore[arg-type]
    slots.warm(0)
    listen(work)
    work.start(0, request(5))
    slots.say(0, reports=reports(1, 3))
    listen(work)
    assert (slots.answered, ledger.reported) == ([(0, None)], [1, 3])
    assert work.progress == TrainingProgress(3, None, {"loss": 1.0})


@pytest.mark.parametrize(
    ("parallel", "unstarted", "running", "size"), [(4, 9, 2, 4), (4, 1, 2, 3), (4, 0, 2, 2), (2, 0, 3, 2), (4, 0, 0, 1)]
)
def test_towards_the_end_there_are_as_many_slots_as_trials(parallel: int, unstarted: int, running: int, size: int) -> None:
    slots = Slots(4)
    work = StudyWorkload(Ledger(job(**SEARCH), running=running), slots)  # type: ignore[arg-type]
    work.resize(parallel, unstarted)
    assert slots.size == size


def test_workers_come_and_go_once_the_learner_has_its_place() -> None:
    run = collecting.Collecting()
    run.work.resize(5, 0)
    assert run.workers.size == 2, "none of them is to take the learner's place"
    run.learner.warm(0)
    run.learner.ready = 1
    run.listen()
    assert run.workers.size == 5
    run.work.resize(1, 0)
    assert run.workers.size == 1


def test_the_rest_of_a_collection_takes_as_long_as_its_iterations_did() -> None:
    run = collecting.Collecting(iterations=4)
    ledger: Any = Ledger(collecting.job(iterations=4), running=1, complete=1)
    run.work._ledger = ledger
    assert run.work.eta(0.0, None) is None
    assert run.work.eta(0.0, 0.5) == 6.0
    run.begin()
    run.want(0, 3)
    for unit in (6, 7, 8):
        run.pass_on(0, unit)
    assert run.work.eta(0.0, 0.5) == 5.0, "half of the second iteration is done"


def test_units_that_failed_are_done_too() -> None:
    iteration = Iteration(request(7, trial=0), collecting.job(units=80), 0)  # type: ignore[arg-type]  # a collection
    assert iteration.share_done == 0
    for unit in iteration.units.assign(0, 24):
        assert iteration.units.record_offer(0, unit.number)
        if unit.number:
            assert iteration.units.record_arrival(unit.number)
        else:
            assert iteration.units.refuse_result(unit.number, FailureClass.INVALID, "too large")
    assert iteration.share_done == 24 / 80


def test_an_iteration_that_failed_for_good_ends_the_run() -> None:
    run = collecting.Collecting()
    ledger: Any = Ledger(collecting.job(), complete=1)
    run.work._ledger = ledger
    assert run.work.failure_ending() is None
    ledger.counts.failed = 1
    ledger.newest = {
        0: types.SimpleNamespace(failure=None),
        1: types.SimpleNamespace(trial=1, attempt=2, failure="error", message="ValueError: no"),
    }
    text = "iteration 1 failed at attempt 2 (error): ValueError: no; `platform resume toy-1` retries it"
    assert run.work.failure_ending() == Ending(RunState.FAILED, text, kill=True)


# Which slots a run starts with


class Pool(Slots):
    """A pool that remembers how it was made."""

    made: list[tuple[str, int, float, bool]]

    def __init__(self, _host: object, config: SlotConfig, size: int, patience: float, *, has_begun: bool) -> None:
        super().__init__(size)
        self.made.append((config.role, size, patience, has_begun))


def started(monkeypatch: pytest.MonkeyPatch, ledger: Any, parallel: int | None) -> list[tuple[str, int, float, bool]]:
    """Role, size, patience and whether the code is known to import, of each pool."""
    monkeypatch.setattr(Pool, "made", [], raising=False)
    monkeypatch.setattr(workloads, "SlotPool", Pool)
    configs = {
        role.name: SlotConfig("toy-1", "", "", "", "", role=role.name, nodes=role.nodes) for role in ledger.job.roles()
    }
    workloads.start(ledger, configs, parallel, in_cluster=parallel is not None)
    return Pool.made


LONG = pools.START_PATIENCE


@pytest.mark.parametrize(
    ("of", "ledger", "parallel", "made"),
    [
        ({**SEARCH, "trials": 9, "parallel": 3}, {"unstarted": 9}, None, [("trial", 3, 0.0, False)]),
        ({**SEARCH, "trials": 9, "parallel": 3}, {"unstarted": 2, "complete": 7}, 5, [("trial", 2, LONG, True)]),
        ({**SEARCH, "trials": 9, "nodes": 2}, {"unstarted": 9}, 4, [("trial", 8, LONG, False)]),
        ({}, {"unstarted": 1}, 1, [("trial", 1, LONG, False)]),
    ],
)
def test_a_run_starts_with_as_many_slots_as_it_can_use(
    monkeypatch: pytest.MonkeyPatch, of: dict[str, Any], ledger: dict[str, int], parallel: int | None, made: list[Any]
) -> None:
    assert started(monkeypatch, Ledger(job(**of), **ledger), parallel) == made


def test_of_a_resumed_collection_one_bad_worker_is_one_bad_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    of = collecting.job()
    ledger = Ledger(of)
    assert started(monkeypatch, ledger, 3) == [("learner", 1, LONG, False), ("worker", 3, LONG, False)]
    assert ledger.workers == [3], "by which hours are counted"
    assert started(monkeypatch, Ledger(of, complete=1), 3) == [("learner", 1, LONG, True), ("worker", 3, LONG, True)]
    assert started(monkeypatch, Ledger(of), None) == [("learner", 1, 0.0, False), ("worker", 2, 0.0, False)]


# What the status shows of slots


@pytest.mark.parametrize(("parallel", "nodes"), [(1, ("pod-0",)), (None, ())])
def test_the_status_names_the_pods_where_slots_are_pods(
    opened: Opened, parallel: int | None, nodes: tuple[str, ...]
) -> None:
    loop = Loop(opened.open(job(**SEARCH)), opened.run, None)
    loop.parallel = lambda: parallel  # type: ignore[method-assign, assignment, return-value]
    start = loop.slots.start

    def work(slot: int, asked: TrialRequest) -> None:
        start(slot, asked)
        loop.slots.nodes = ("pod-0",)
        loop.slots.end(slot, metrics=LOSS)

    loop.slots.start = work  # type: ignore[method-assign]
    loop.controller.run()
    assert loop.board.shown[1].nodes == nodes, "of the turn in which the pod came"
