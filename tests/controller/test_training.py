"""A training in the ledger: one trial without anything to draw, tried again under its number until retries are spent.

The ledger is real. Not checked here: the loop (test_training_loop.py), trainings with processes
(tests/study/test_training.py), several nodes (test_gangs.py), the fields of the job (tests/job).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import LOSS, SEARCH, Opened, asked, failed, job

from trialplane import errors
from trialplane.controller.session import Session
from trialplane.controller.setting import Setting
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire import labels, records
from trialplane.wire.records import RunStatus, StopRule, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState


def test_a_training_is_one_trial_with_the_parameters_it_was_given(opened: Opened) -> None:
    ledger = opened.open(job(resume="earlier"))
    request = asked(ledger)
    assert (request.trial, dict(request.params), request.metrics) == (0, {"width": 8}, ("loss",))
    assert (request.resume, request.prunable) == ("earlier", False)
    assert ledger.ask() is None
    assert not ledger.is_exhausted, "nothing to draw is not everything drawn"
    ledger.tell(outcome(request.number, metrics=LOSS))
    assert ledger.best is not None
    assert ledger.best.values == (0.5,)
    assert (ledger.counts.ended, ledger.counts.complete) == (1, 1)


def test_its_request_has_the_rules_that_end_it_early(opened: Opened) -> None:
    rules = [{"metric": "loss", "below": 0.1, "after": 5}, {"step": 9}]
    request = asked(opened.open(job(stop=rules)))
    assert request.stop == (StopRule("loss", below=0.1, after=5), StopRule(step=9))
    assert records.from_json(TrialRequest, records.to_json(request)) == request


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


def test_how_far_a_killed_controller_had_it_is_known_by_its_reports(opened: Opened) -> None:
    of = job(retries={"lost": 1})
    ledger = opened.open(of)
    for step in (10, 20, 30, 30):
        request = asked(ledger)
        for one in (step - 1, step, step - 5):
            ledger.report(TrialReport(request.number, one, {"loss": 1.0}, 1.0))
        ledger.write_reports(patient=True)
        assert ledger._frozen(0).intermediate_values == {}, "which Optuna would copy for each new one"
        ledger = opened.open(of)
        assert not ledger.running()
        assert list(ledger.attempts())[-1][1].step == step  # type: ignore[union-attr]
    assert ledger.counts.failed == 1, "nobody came further than step 30"


def test_a_ledger_with_a_status_of_another_version_is_not_opened(opened: Opened) -> None:
    ledger = opened.open(job())
    status = records.to_dict(RunStatus("toy", "toy", RunState.RUNNING, 1))
    ledger.write_facts({labels.LEDGER_STATUS: {**status, "progress": {"kind": "population"}}})
    with pytest.raises(errors.LedgerCorrupt, match="another version wrote it"):
        opened.open(job())


def test_a_training_that_failed_for_good_is_taken_up_with_all_its_retries(opened: Opened) -> None:
    of = job(retries={"crashed": 1})
    assert ends(opened, of, FailureClass.CRASHED, [7, 7]) == [True, False]
    assert opened.open(of).ask() is None, "not by itself"
    ledger = opened.open(of)
    assert ledger.reopen_failure()
    assert not ledger.reopen_failure(), "it is taken up already"
    assert (ledger.counts.failed, ledger.counts.counted_failures, ledger.counts.failures) == (0, 0, {})
    request = asked(ledger)
    assert (request.trial, request.attempt, request.retry_of) == (0, 3, 1)
    assert ledger.ask() is None
    ledger.tell(outcome(request.number, metrics=LOSS))
    shown, attempts = ledger.counts.status_fields(), list(ledger.attempts())
    assert (shown["complete"], shown["failed"], shown["retried"]) == (1, 0, 2)
    assert [told.retried for _, told in attempts if told] == [True, False, False], "what was told stays"
    ledger = opened.open(of)
    assert (ledger.counts.status_fields(), list(ledger.attempts())) == (shown, attempts)
    assert not ledger.reopen_failure(), "what succeeded has nothing to take up"


def test_its_retries_are_new_for_the_next_controller_too(opened: Opened) -> None:
    of = job(retries={"crashed": 1})
    assert ends(opened, of, FailureClass.CRASHED, [7, 7]) == [True, False]
    ledger = opened.open(of)
    assert ledger.reopen_failure()
    ledger.tell(failed(asked(ledger), FailureClass.CRASHED))
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    assert opened.open(of).counts.status_fields()["failures"] == {"crashed": 1}


def test_taken_up_is_the_attempt_that_the_user_meant(opened: Opened) -> None:
    """A controller that is started again for a lost head finds the earlier desired state."""
    of = job(retries={"crashed": 0})
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    ledger = opened.open(of)
    assert ledger.reopen_failure(0)
    ledger.tell(failed(asked(ledger), FailureClass.CRASHED))
    ledger = opened.open(of)
    assert not ledger.reopen_failure(0)
    assert ledger.ask() is None
    assert ledger.reopen_failure(1)


@pytest.mark.parametrize(("ray", "again", "left"), [("", None, 1), ("ray:1", None, 0), ("ray:1", 0, 1), ("ray:1", 5, 0)])
def test_in_a_cluster_only_the_users_word_takes_it_up(opened: Opened, ray: str, again: int | None, left: int) -> None:
    """A controller is started there for a lost head, too; on a laptop it is always the user who has it started."""
    of = job(retries={"crashed": 0})
    assert ends(opened, of, FailureClass.CRASHED, [7]) == [False]
    ledger = opened.open(of)
    ledger.write_facts({labels.LEDGER_DESIRED: {"state": "RUNNING", "again": again}})
    opened.run.submission.write_text("{}")
    Session(opened.run, of, [], Setting(ray=ray))._reopen_failure(ledger)
    assert ledger.startable == left


def test_a_trial_of_a_search_that_failed_stays_so(opened: Opened) -> None:
    of = job(**SEARCH)
    assert ends(opened, of, FailureClass.ERROR, [0]) == [False]
    assert not opened.open(of).reopen_failure()


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        ({}, True),
        ({"ranks": 4}, True),
        ({"nodes": 2}, True),
        ({"resources": {"gpus": 2}}, False),
        ({**SEARCH, "ranks": 2}, True),
        (SEARCH, False),  # such trials may share a GPU that they find themselves
    ],
)
def test_ranks_that_were_given_no_gpus_see_none(opened: Opened, fields: dict[str, Any], hidden: bool) -> None:
    opened.run.submission.write_text("{}")
    wanted = job(**fields)
    (role,) = wanted.roles()
    config = Session(opened.run, wanted, [], Setting())._slot_config(role, "sqlite:///mlflow.db")
    assert config.env.get("CUDA_VISIBLE_DEVICES") == ("" if hidden else None)


def test_workers_on_cores_do_not_see_the_gpu_of_their_learner(opened: Opened) -> None:
    opened.run.submission.write_text("{}")
    learner = {"entrypoint": "train:learn", "resources": {"gpus": 1, "cpus": 4, "memory": "4Gi"}}
    wanted = kinds.read(
        {"name": "toy", "kind": "collect", "collect": {"units": 4, "learner": learner}, "resources": {"cpus": 0.5}}
    )
    session = Session(opened.run, wanted, [], Setting())
    workers, reader = (session._slot_config(role, "sqlite:///mlflow.db") for role in wanted.roles())
    assert (workers.role, workers.entrypoint, workers.gpus, workers.cpus) == ("worker", "train:play", 0, 1)
    assert (reader.role, reader.entrypoint, reader.gpus, reader.cpus) == ("learner", "train:learn", 1, 4)
    assert (workers.memory, reader.memory) == (2 * 2**30, 4 * 2**30)
    assert (workers.env.get("CUDA_VISIBLE_DEVICES"), reader.env.get("CUDA_VISIBLE_DEVICES")) == ("", None)


@pytest.mark.parametrize(
    ("fields", "file"),
    [({}, ""), ({"script": "fit.py"}, "fit.py"), ({"script": "fit.py", "requirements": "needs.txt"}, "needs.txt")],
)
def test_slots_know_the_file_that_says_what_is_needed(opened: Opened, fields: dict[str, Any], file: str) -> None:
    opened.run.submission.write_text('{"code_hash": "ab"}')
    wanted = job(**fields)
    (role,) = wanted.roles()
    config = Session(opened.run, wanted, [], Setting())._slot_config(role, "sqlite:///mlflow.db")
    assert (config.requirements, config.code_hash) == (file, "ab")
