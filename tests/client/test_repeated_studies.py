"""Studies that are submitted again with `reuse`: the same starts, reports, ends and decisions, and not one step of training.

The ledgers are real and driven in this process, by slots whose attempts end in a random order. Not checked here: what is
reused by other studies (test_earlier_runs.py), and a real run (tests/study/test_reuse.py).
"""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Mapping
from typing import Any

import pytest
from tests.client.conftest import Runs
from tests.client.test_earlier_runs import made, prepared, with_epochs

from trialplane.client import earlier_runs, folder
from trialplane.controller.ledger import Ledger
from trialplane.job.kinds import Job
from trialplane.job.resources import Retries
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
        stops: whether the running attempts save themselves before that, and end.
        early: whether every third trial is complete at step 3, below a rung.
        broken: how a trial fails at step 2 or at a rung before, by trial.
        healthy: number of steps that such a trial does before it may fail.
        job: the run's job, if it was changed.

    Attributes:
        trained: trial and step of each step that was trained, in order.
    """

    def __init__(
        self,
        run: RunPaths,
        seed: int,
        *,
        kills: bool = False,
        fails: int = -1,
        most: int = 10**6,
        stops: bool = False,
        early: bool = False,
        broken: Mapping[int, FailureClass] = types.MappingProxyType({}),
        healthy: int = 0,
        job: Job | None = None,
    ) -> None:
        self._run, self._random, self._fails, self._most, self._early = run, random.Random(seed), fails, most, early
        self._stops, self._broken, self._healthy, self._job = stops, broken, healthy, job
        self.trained: list[tuple[int, int]] = []
        while not self._work(self._random.randint(9, 25) if kills else 10**6):
            pass

    def _work(self, turns: int) -> bool:
        """A controller's work for some steps, and at most as many starts; whether it is the last one's."""
        run = self._run
        running: dict[int, tuple[TrialRequest, int]] = {}  # number → request, and steps done
        job = self._job or folder.load_job(run)
        with Ledger(f"sqlite:///{run.ledger}", job, run.root.name, run.code, run.lock) as ledger:
            before = len(list(ledger.attempts()))
            for _ in range(turns):
                while len(running) < SLOTS:
                    if len(list(ledger.attempts())) - before >= turns:
                        return False
                    self._end_answered(ledger)
                    request = ledger.ask()
                    if request is None and self._end_answered(ledger, is_stuck=True):
                        continue
                    if request is None:
                        break
                    if not ledger.answer(request):
                        running[request.number] = request, first_step(ledger, request)
                self._end_answered(ledger)
                if not running or len(self.trained) >= self._most:
                    for number, (request, step) in running.items():
                        if self._stops:
                            saved = CheckpointSummary(1, 10, f"{request.trial} at {step}") if step else None
                            failure = FailureClass.STOPPED
                            ledger.tell(TrialOutcome(number, TrialState.FAILED, failure, step=step, checkpoints=saved))
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
        rung = 0 if request.segment is None else request.segment.rung
        running[number] = request, step
        self.trained.append((request.trial, step))
        if request.trial == self._fails and request.attempt == 1:
            end = TrialOutcome(number, TrialState.FAILED, failure=FailureClass.LOST)
        elif request.trial in self._broken and step > self._healthy and step == min(2, rung or 2):
            failure = self._broken[request.trial]
            end = TrialOutcome(number, TrialState.FAILED, failure, message=f"{failure} of {request.trial}", fingerprint="x")
        else:
            start_step = step - 1 if request.start is not None and request.start.step < 0 else None
            is_pruned = ledger.report(TrialReport(number, step, {"loss": loss(request, step)}, 5.0, start_step=start_step))
            last_step = 3 if self._early and request.trial % 3 == 0 else TOP
            state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if step == last_step else TrialState.PAUSED
            if not is_pruned and step not in (rung, last_step):
                return
            summary = CheckpointSummary(1, 10, f"{request.trial} at {step}")
            end = TrialOutcome(number, state, metrics={"loss": loss(request, step)}, checkpoints=summary)
        ledger.tell(end)
        del running[number]


def first_step(ledger: Ledger, request: TrialRequest) -> int:
    """The step of the checkpoint from which an attempt continues; 0 without one."""
    outcomes = {attempt.number: outcome for attempt, outcome in ledger.attempts()}
    previous = None if request.retry_of is None else outcomes[request.retry_of]
    if previous is not None and previous.checkpoints is not None:
        return int(previous.checkpoints.digest.split()[-1])
    if request.start is not None:
        assert request.resume == "first"
        trial, _, step = request.start.digest.split()
        assert int(trial) == request.trial
        return int(step)
    has_checkpoint = request.segment is not None and request.segment.parent is not None
    return request.segment.done if has_checkpoint else 0


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
    return [starts, reports, [(row.trial, row.state, row.failure, row.values, row.metrics, row.step) for row in newest]]


REPEATED = {"space": SPACE, "trials": 24, "params.epochs": TOP, "reuse": True}


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
    texts = prepared(runs, "second", **REPEATED, pruner=pruner, sampler=sampler).warnings
    assert not any("unfinished" in text for text in texts), texts
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


OWN_FAULTS = {2: FailureClass.ERROR, 5: FailureClass.OOM, 9: FailureClass.INVALID}


@pytest.mark.parametrize("pruner", [PROMOTE, "median"], ids=["promote", "median"])
def test_failures_by_a_trials_own_fault_are_repeated(runs: Runs, pruner: Any) -> None:
    """TPE has learned from them, so it would draw others if they were still being trained."""
    fields = {"pruner": pruner, "sampler": {"name": "tpe", "n_startup_trials": 3}}
    Work(study(runs, "first", **fields), 1, broken=OWN_FAULTS)
    texts = prepared(runs, "second", **REPEATED, **fields).warnings
    assert not any("unfinished" in text for text in texts), texts
    second = study(runs, "second", reuse=True, **fields)
    assert not Work(second, 2).trained
    assert history(runs, "second") == history(runs, "first")
    failures = {row.trial: row.message for row in runs.target.rows("second") if row.failure}
    assert failures == {
        trial: f"{failure} of {trial}; answered by trial {trial} of first, which has the same parameters"
        for trial, failure in OWN_FAULTS.items()
    }
    note = "reuse: 3 of them failed, and fail again without training; if the cause was not the code, run `platform retry"
    texts = prepared(runs, "third", **REPEATED, **fields).warnings
    assert any(text.startswith(note) for text in texts), texts
    third = earlier.read(study(runs, "third", reuse=True, **fields).code)
    assert {attempt.run for attempt in third.followed} == {"second"}
    assert {attempt.outcome.message for attempt in third.followed if attempt.outcome} == {
        "",
        *(f"{failure} of {trial}" for trial, failure in OWN_FAULTS.items()),
    }, "a message does not get longer with each repetition"


def test_failures_that_may_come_from_the_machine_are_trained_again(runs: Runs) -> None:
    broken = {2: FailureClass.TIMEOUT, 5: FailureClass.CRASHED, 9: FailureClass.LOST, 12: FailureClass.ERROR}
    fields = {"retries": {"crashed": 0, "lost": 0}}
    Work(study(runs, "first", "none", **fields), 1, broken=broken)
    text = "reuse: 3 unfinished trials of first cannot be continued, because no checkpoint is left or recorded"
    assert text in prepared(runs, "second", **{**REPEATED, **fields, "pruner": "none"}).warnings
    trained = Work(study(runs, "second", "none", reuse=True, **fields), 2).trained
    assert {trial for trial, _ in trained} == {2, 5, 9}
    states = {row.trial: row.state for row in runs.target.rows("second")}
    assert [trial for trial, state in states.items() if state is not TrialState.COMPLETE] == [12]


def test_failures_of_a_study_without_a_success_are_trained_again(runs: Runs) -> None:
    """What all of its trials have in common may be the machine."""
    Work(study(runs, "first", "none", trials=4), 1, broken=dict.fromkeys(range(4), FailureClass.ERROR))
    trained = Work(study(runs, "second", "none", reuse=True, trials=4), 2).trained
    assert {trial for trial, _ in trained} == {0, 1, 2, 3}


def test_failures_are_trained_again_on_another_kind_of_machine(runs: Runs) -> None:
    Work(study(runs, "first", "none"), 1, broken=OWN_FAULTS)
    change = {"cluster.node_selector": {"gpu": "h100"}}
    trained = Work(study(runs, "second", "none", reuse=True, **change), 2).trained
    assert {trial for trial, _ in trained} == OWN_FAULTS.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"cluster.image": "ghcr.io/example/train:2"},
        {"requirements": "requirements.txt"},
        {"requirements": "requirements.txt", "install": True},
    ],
    ids=str,
)
def test_all_is_trained_again_with_another_image_or_packages(runs: Runs, change: dict[str, Any]) -> None:
    (runs.jobs / "demo" / "requirements.txt").write_text("pytest\n")
    before = {"requirements": "requirements.txt"} if "install" in change else {}
    Work(study(runs, "first", "none", **before), 1)
    trained = Work(study(runs, "second", "none", reuse=True, **change), 2).trained
    assert {trial for trial, _ in trained} == set(range(24))


@pytest.mark.parametrize("retried", ["first", "second"])
def test_a_repeated_failure_is_trained_if_the_user_has_it_tried_again(runs: Runs, retried: str) -> None:
    Work(study(runs, "first", "none"), 1, broken=OWN_FAULTS)
    if retried == "second":
        assert not Work(study(runs, "second", "none", reuse=True), 2).trained
    run = RunPaths.of(runs.home, retried)
    job = folder.load_job(run).model_copy(update={"retries": Retries(failed_before=99)})
    trained = Work(run, 3, job=job).trained
    assert {trial for trial, _ in trained} == OWN_FAULTS.keys()
    last = study(runs, "last", "none", reuse=True)
    assert not Work(last, 4).trained
    assert {row.state for row in runs.target.rows("last")} == {TrialState.COMPLETE}


@pytest.mark.parametrize("retried", ["first", "second"])
def test_a_promoted_trial_that_is_tried_again_starts_over(runs: Runs, retried: str) -> None:
    """Its checkpoints were removed when it failed, or the run has repeated all of it, and it never had any."""
    Work(study(runs, "first"), 1, broken=dict.fromkeys(range(12), FailureClass.ERROR), healthy=1)
    if retried == "second":
        assert not Work(study(runs, "second", reuse=True), 2).trained
    failed = {row.trial for row in runs.target.rows(retried) if row.failure}
    assert failed
    run = RunPaths.of(runs.home, retried)
    job = folder.load_job(run).model_copy(update={"retries": Retries(failed_before=99)})
    trained = Work(run, 3, job=job).trained
    assert {min(step for number, step in trained if number == trial) for trial in failed} == {1}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize(("pruner", "most"), [(PROMOTE, 33), (PROMOTE, 44), ("median", 60)], ids=str)
def test_a_stopped_study_is_continued_exactly_where_it_ended(runs: Runs, pruner: Any, most: int, sampler: str) -> None:
    """As if it had been resumed."""
    first = study(runs, "first", pruner, sampler=sampler)
    Work(first, 1, most=most, stops=True)
    second = study(runs, "second", pruner, sampler=sampler, reuse=True)
    rest = Work(first, 7).trained
    assert rest
    assert Work(second, 7).trained == rest
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
    """A trial that is promoted further than before has no checkpoint left, so it begins anew; the others train nothing."""
    first = Work(study(runs, "first"), 1).trained
    larger = study(runs, "second", reuse=True, trials=48)
    ends = {attempt.outcome.state for attempt in earlier.read(larger.code).followed if attempt.outcome}
    assert ends == {TrialState.PAUSED, TrialState.COMPLETE}, "those that were dropped later may continue here"
    second = Work(larger, 2).trained
    again = {(trial, step) for trial, step in second if (trial, step) in set(first)}
    promoted = {trial for trial, step in second if trial < 24}
    assert {trial for trial, _ in again} == promoted
    assert len(again) < 24
    messages = {row.trial: row.message for row in runs.target.rows("second") if "step 0" in row.message}
    reason = "trained from step 0, because first has no checkpoint of trial {} any more"
    assert {trial: message.partition("; ")[0] for trial, message in messages.items()} == {
        trial: reason.format(trial) for trial in promoted
    }
    states = [row.state for row in rows.newest_attempts(runs.target.rows("second"))]
    assert len(states) == 48
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize("has_failed", [False, True], ids=["first attempt", "retry"])
@pytest.mark.parametrize(
    ("is_left", "reason"),
    [
        (True, "because the checkpoint of trial {} of first is at or beyond the next rung, 4"),
        (False, "because first has no checkpoint of trial {} any more"),
    ],
    ids=["beyond", "gone"],
)
def test_a_paused_trial_that_is_trained_from_step_0_says_why(
    runs: Runs, is_left: bool, reason: str, has_failed: bool
) -> None:
    """The search decides otherwise before the start by which the earlier run had promoted the trial to the rung at 4."""
    Work(study(runs, "first"), 1, most=44, stops=True)
    second = study(runs, "second", reuse=True)
    content = earlier.read(second.code)
    trial = next(beginning.trial for beginning in content.beginnings if beginning.step > 4)
    starts = [(attempt.trial, attempt.rung) for attempt in content.followed]
    beginnings = content.beginnings if is_left else ()
    content = dataclasses.replace(content, followed=content.followed[: starts.index((trial, 4))], beginnings=beginnings)
    (second.code / earlier.FILE).write_bytes(content.pack())
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:

        def next_attempt() -> TrialRequest:
            """The next attempt at the trial, of those that are trained. Others are paused."""
            while True:
                request = ledger.ask()
                is_answered = request is not None and ledger.answer(request)
                for _, outcome in ledger.take_answers(is_stuck=request is None):
                    ledger.tell(outcome)
                if request is None or is_answered:
                    continue
                if request.trial == trial:
                    return request
                ledger.tell(TrialOutcome(request.number, TrialState.PAUSED, metrics={"loss": 9.0}))

        request = next_attempt()
        if has_failed:
            ledger.tell(TrialOutcome(request.number, TrialState.FAILED, failure=FailureClass.LOST))
            request = next_attempt()
        assert request.start is None and request.segment is not None and request.segment.rung == 4
        ended = ledger.tell(TrialOutcome(request.number, TrialState.PAUSED, metrics={"loss": 0.0}))
        assert ended is not None and ended.message == f"trained from step 0, {reason.format(trial)}"


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_trial_gets_its_earlier_reports_once_whatever_it_sends(runs: Runs, has_checkpoint: bool) -> None:
    """And only if it may start from a checkpoint."""
    Work(study(runs, "first", "median"), 1, most=60, stops=True)
    second = study(runs, "second", "median", reuse=True)
    if not has_checkpoint:
        content = dataclasses.replace(earlier.read(second.code), beginnings=())
        (second.code / earlier.FILE).write_bytes(content.pack())
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        request = ledger.ask()
        while request is not None and ledger.answer(request):
            request = ledger.ask()
        assert request is not None and (request.start is not None) is has_checkpoint
        for step in (TOP, TOP + 1):
            ledger.report(TrialReport(request.number, step, {"loss": 1.0}, 5.0, start_step=step - 1))
        ledger.write_reports(patient=True)
    steps = [report.step for report in runs.target.curves("second") if report.number == request.number]
    earlier_steps = [report.step for report in runs.target.curves("first") if report.trial == request.trial]
    assert earlier_steps
    assert steps == [*(earlier_steps if has_checkpoint else []), TOP, TOP + 1]


def test_another_pruner_repeats_no_decision(runs: Runs) -> None:
    Work(study(runs, "first", "median"), 1)
    second = study(runs, "second", {"name": "median", "n_startup_trials": 9}, reuse=True)
    assert earlier.read(second.code).followed == ()
    assert earlier.read(second.code).results


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
