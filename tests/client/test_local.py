"""The local target: what is written when, who is believed to be alive, and what becomes of a name that is taken.

Controllers are doubles (controller_double.py) with the real one's lock, signals and exit codes. Not checked here: real
studies (tests/study), and messages as the command line shows them (tests/cli).
"""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from tests.client.conftest import ORIGIN, complete, failed

from trialplane.client import folder, process
from trialplane.client.run import RunHandle, SubmissionOutcome, submit
from trialplane.client.sdk import Platform
from trialplane.errors import InputError, RunDamaged, RunExists, RunNotFound, SpecError
from trialplane.job import load
from trialplane.ledger import results
from trialplane.plan import plan as planning
from trialplane.wire import earlier, records
from trialplane.wire.costs import Usage
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, RunState


def planned(runs, name, **overrides):
    source = runs.jobs / "demo"
    return planning.plan(load.load_job(source, overrides=overrides), source, name, ORIGIN)


# A new run


def test_a_submitted_run_has_everything_in_its_folder(runs, home, double):
    assert submit(runs.target, planned(runs, "a")) is SubmissionOutcome.NEW
    run = RunPaths.of(home, "a")
    double(run)
    assert folder.load_job(run) == planned(runs, "a").job
    assert (run.code / "train.py").exists()
    facts = json.loads(run.submission.read_bytes())
    assert facts["code_hash"] == planned(runs, "a").pack.sha256
    assert abs(facts["submitted"] - time.time()) < 600
    assert RunHandle("a", runs.target).status().state is RunState.RUNNING
    assert ([path.name for path in run.root.parent.iterdir()], home.stat().st_mode & 0o777) == (["a"], 0o700)


def test_nothing_of_a_failed_try_is_left(runs, home):
    home.mkdir()
    (home / "runs").write_text("a file in the way")
    with pytest.raises(InputError, match="nothing was started"):
        submit(runs.target, planned(runs, "a"))
    assert (home / "runs").read_text() == "a file in the way"


def test_a_controller_that_is_starting_counts_as_alive(runs, home, double):
    submit(runs.target, planned(runs, "a"))
    assert runs.target.is_active("a")  # long before it holds the lock
    assert RunHandle("a", runs.target).status().state in (RunState.PENDING, RunState.RUNNING)


def test_a_run_with_damaged_earlier_trials_is_no_user_of_a_checkpoint(runs, home):
    submit(runs.target, planned(runs, "a"))
    (RunPaths.of(home, "a").code / earlier.FILE).write_text("{")
    assert runs.target.checkpoint_users("b") == []


# A change while it runs


def test_a_running_run_is_changed_and_goes_on(runs, double):
    handle = going(runs, double)
    handle.edit(["trials=9", "space.lr.high=3"])
    assert handle.is_active()
    assert (handle.job.trials, handle.job.search.parameters["lr"].high) == (9, 3.0)


def test_a_change_that_fits_no_more_after_the_pause_leaves_a_run_as_it_was(runs, double, monkeypatch):
    handle, pause = going(runs, double), RunHandle.pause

    def late(handle):
        status = pause(handle)
        runs.drive(RunPaths.of(runs.home, handle.name), complete, asks=2)  # trials that started before it
        return status

    monkeypatch.setattr(RunHandle, "pause", late)
    with pytest.raises(InputError, match=r"a continues unchanged: .*trials: 5 have already started; set at least"):
        handle.edit(["trials=4"])
    assert handle.is_active()
    assert handle.job.trials == 6


def going(runs, double) -> RunHandle:
    """A run of six trials that goes on after three."""
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.PAUSED)
    handle = RunHandle("a", runs.target)
    handle.resume()
    double(run)
    return handle


# A name that is taken


def test_the_same_spec_goes_on(runs, home, double):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.PAUSED)
    assert submit(runs.target, planned(runs, "a")) is SubmissionOutcome.RESUMED
    double(run)
    assert submit(runs.target, planned(runs, "a")) is SubmissionOutcome.RUNNING


def test_a_finished_run_is_left_as_it_is(runs):
    run = runs.make("a", tell=complete)
    runs.say(run, RunState.SUCCEEDED)
    before = run.status.read_bytes()
    assert submit(runs.target, planned(runs, "a")) is SubmissionOutcome.FINISHED
    assert run.status.read_bytes() == before


def test_another_spec_is_refused_with_the_difference(runs):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.PAUSED)
    before = run.job.read_bytes()
    with pytest.raises(RunExists) as caught:
        submit(runs.target, planned(runs, "a", trials=7))
    assert all(word in str(caught.value) for word in ("trials: 6 → 7", "platform resume a", "--name"))
    assert run.job.read_bytes() == before


def test_other_code_is_refused_with_the_files(runs):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.PAUSED)
    (runs.jobs / "demo" / "train.py").write_text("def run(ctx):\n    return 1.0\n")
    with pytest.raises(RunExists, match=r"code: train\.py: changed"):
        submit(runs.target, planned(runs, "a"))


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_a_run_that_ended_badly_is_not_taken_up_silently(runs, state):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, state)
    with pytest.raises(RunExists, match="platform resume a"):
        submit(runs.target, planned(runs, "a"))


def test_a_run_that_never_started_a_trial_is_replaced(runs, double):
    run = runs.make("a", tell=complete, asks=0)
    runs.say(run, RunState.FAILED)
    assert submit(runs.target, planned(runs, "a", trials=7)) is SubmissionOutcome.REPLACED
    assert folder.load_job(run).trials == 7


def test_a_run_whose_ledger_is_elsewhere_is_not_replaced(runs):
    run = runs.make("a")
    runs.say(run, RunState.PAUSED, complete=2)
    with pytest.raises(RunExists):
        submit(runs.target, planned(runs, "a", trials=7))


# Who is alive


def test_a_killed_controller_leaves_a_paused_run_with_exact_counts(runs):
    run = runs.make("a", tell=lambda r: None if r.trial == 3 else complete(r), asks=4)
    runs.say(run, RunState.RUNNING, complete=1, running=1, slots_ready=2, eta=3.0)
    status = RunHandle("a", runs.target).status()
    assert (status.state, status.complete, status.running, status.eta) == (RunState.PAUSED, 3, 0, None)
    assert "platform resume a" in status.reason
    assert status.best is not None


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED, RunState.PAUSED, RunState.SUCCEEDED])
def test_the_counts_of_a_run_that_ended_early_are_the_ledgers(runs, state):
    """A controller that broke told its counts before it broke."""
    run = runs.make("a", tell=complete, asks=4)
    told = runs.say(run, state, complete=1, running=2, ended=70.0)
    status = RunHandle("a", runs.target).status()
    assert (status.state, status.complete, status.running, status.ended) == (state, 4, 0, told.ended)
    assert status.best is not None


def test_a_run_that_the_user_has_paused_is_not_called_killed(runs):
    run = runs.make("a", tell=complete, asks=2)
    runs.say(run, RunState.PAUSED, reason="paused by the user", complete=2)
    observed = runs.target.observe("a")
    assert not observed.is_active
    assert (observed.status.state, observed.status.reason) == (RunState.PAUSED, "paused by the user")


@pytest.mark.parametrize(
    "told", ["recording in MLflow: 0 of 6 trials", "MLflow is away; `platform resume a` writes the rest"]
)
def test_the_command_for_results_that_mlflow_lacks_is_shown_once(runs, told):
    """A controller that was killed while it recorded them has not written it."""
    runs.say(runs.make("a", tell=complete), RunState.SUCCEEDED, reason="all ended", complete=6, unrecorded=True, mlflow=told)
    status = RunHandle("a", runs.target).status()
    assert (status.state, status.reason) == (RunState.SUCCEEDED, "all ended")
    assert status.mlflow.count("; `platform resume a` writes the rest") == 1 and "recording" not in status.mlflow


def test_a_whole_run_is_not_counted_again(runs, monkeypatch):
    run = runs.make("a", tell=complete)
    told = runs.say(run, RunState.SUCCEEDED, complete=6)
    monkeypatch.delattr(results, "attempts")
    assert RunHandle("a", runs.target).status() == told


def test_a_ledger_that_cannot_be_counted_spoils_no_status(runs):
    run = runs.make("a", tell=complete, asks=2)
    runs.say(run, RunState.FAILED, complete=2)
    run.ledger.write_bytes(b"not a database, whatever it was before" * 100)
    status = RunHandle("a", runs.target).status()
    assert (status.state, status.complete) == (RunState.FAILED, 2)
    assert "is damaged" in status.reason


def test_the_status_is_the_controllers_while_it_holds_the_lock(runs, held):
    run = runs.make("a", tell=complete, asks=3)
    held(run)
    told = runs.say(run, RunState.RUNNING, complete=1)
    assert RunHandle("a", runs.target).status() == told


def test_looking_never_writes(runs):
    run = runs.make("a")
    before = sorted(path.name for path in run.root.iterdir())
    RunHandle("a", runs.target).status()
    RunHandle("a", runs.target).attempts()
    runs.target.is_active("a")
    assert sorted(path.name for path in run.root.iterdir()) == before


def test_a_stale_pid_is_nobody(runs):
    run = runs.make("a")
    gone = dataclasses.replace(Holder.of_this_process(), pid=999999999)
    run.lock.write_text(records.to_json(gone))
    run.controller.write_text(json.dumps(gone.facts(started=time.time())))
    assert process.active_controller(run) is None


def test_a_damaged_status_says_what_to_do(runs):
    run = runs.make("a")
    run.status.write_text("{")
    with pytest.raises(RunDamaged, match=r"Removing that file repairs the run: .*, only the used budget\.time is lost"):
        RunHandle("a", runs.target).status()
    run.status.unlink()
    assert RunHandle("a", runs.target).status().state is RunState.PAUSED


# Ending and going on


def test_stop_pauses_and_resume_goes_on(runs, home, double):
    handle, _ = Platform(runs.target).start(planned(runs, "a"))
    run = RunPaths.of(home, "a")
    double(run)
    handle.stop()
    assert handle.wait(300).state is RunState.PAUSED
    assert handle.exit_code == 130
    (run.root / "ready").unlink()
    handle.resume(changes={"trials": 9, "budget.max_failed": None}, sets=["budget.time=2h"])
    double(run)
    job = handle.job
    assert (job.trials, job.budget.time) == (9, 7200.0)
    assert handle.status().trials == 9


def test_cancel_is_the_controllers_to_say(runs, home, double):
    handle, _ = Platform(runs.target).start(planned(runs, "a"))
    double(RunPaths.of(home, "a"))
    assert handle.cancel(patience=300).state is RunState.CANCELLED
    assert handle.exit_code == 4
    with pytest.raises(InputError, match="ended already"):
        handle.cancel()


def test_cancel_now_kills(runs, home, double):
    handle, _ = Platform(runs.target).start(planned(runs, "a"))
    double(RunPaths.of(home, "a"))
    assert handle.cancel(now=True, patience=300).state is RunState.CANCELLED


def test_cancel_without_a_controller(runs):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.RUNNING)
    status = RunHandle("a", runs.target).cancel()
    assert (status.state, status.complete) == (RunState.CANCELLED, 3)
    assert run.cancelled.exists()


def test_a_cancel_that_the_controller_had_no_time_to_hear_is_one(runs):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.PAUSED)  # its last word, while the cancel was on its way
    run.cancelled.touch()
    assert RunHandle("a", runs.target).status().state is RunState.CANCELLED


def test_a_cancelled_run_can_be_resumed(runs, double):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.CANCELLED)
    run.cancelled.touch()
    RunHandle("a", runs.target).resume()
    assert not run.cancelled.exists()
    double(run)


def test_a_killed_controller_is_an_interrupted_run(runs, home, double):
    handle, _ = Platform(runs.target).start(planned(runs, "a"))
    double(RunPaths.of(home, "a"))
    handle.stop(now=True)
    assert handle.wait(300).state is RunState.PAUSED
    assert handle.exit_code == 130


def test_a_running_run_is_not_resumed(runs, held):
    run = runs.make("a", tell=complete, asks=3)
    held(run)
    with pytest.raises(InputError, match="is running"):
        RunHandle("a", runs.target).resume()


def test_a_finished_run_needs_more_to_do(runs):
    run = runs.make("a", tell=complete)
    runs.say(run, RunState.SUCCEEDED)
    with pytest.raises(InputError, match="--trials N"):
        RunHandle("a", runs.target).resume()


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"budget.time": 50.0}, "budget.time (50) is used up, after 3 of 6 trials. `platform resume a --set budget.time="),
        (
            {"budget.cost": 8.0},
            "budget.cost (8) is used up, after 3 of 6 trials. `platform resume a --set budget.cost=16` raises",
        ),
        (
            {"budget.target": 2.0},
            "reached budget.target (2) after 3 of 6 trials; `platform resume a --set budget.target=null`",
        ),
        ({}, "all points of the space were tried, in 3 of 6 trials"),
    ],
)
def test_a_budget_that_ended_a_run_is_named(runs, monkeypatch, budget, said):
    monkeypatch.setenv("TRIALPLANE_CPU_PRICE", "1")
    run = runs.make("a", tell=complete, asks=3, **budget)
    runs.say(run, RunState.SUCCEEDED, worked=50.5, usage=Usage(cost=8.5))
    before = run.job.read_bytes()
    with pytest.raises(InputError) as caught:
        RunHandle("a", runs.target).resume()
    assert said in str(caught.value)
    assert run.job.read_bytes() == before


@pytest.mark.parametrize(
    ("budget", "changes", "sets"),
    [
        ({"budget.time": 50.0}, {}, ["budget.time=2h"]),
        ({"budget.time": 50.0}, {"trials": 9}, ["budget.time=51s"]),
        ({"budget.target": 2.0}, {}, ["budget.target=null"]),
        ({"budget.target": 2.0}, {}, ["budget.target=-1"]),
    ],
)
def test_with_a_longer_budget_it_goes_on(runs, double, budget, changes, sets):
    run = runs.make("a", tell=complete, asks=3, **budget)
    runs.say(run, RunState.SUCCEEDED, worked=50.5)
    RunHandle("a", runs.target).resume(changes=changes, sets=sets)
    double(run)


@pytest.mark.parametrize(
    ("state", "budget", "way"),
    [
        (RunState.SUCCEEDED, {"budget.target": 2.0}, "target=null` continues"),
        (RunState.FAILED, {"budget.time": 50.0}, "time=100` raises the limit"),
        (RunState.FAILED, {"budget.time": 1234567.0}, "time=2469134` raises the limit"),
    ],
)
def test_more_trials_do_not_lift_a_budget(runs, state, budget, way):
    run = runs.make("a", tell=complete, asks=3, **budget)
    runs.say(run, state, worked=budget.get("budget.time", 0.0) + 0.5)
    before = run.job.read_bytes()
    with pytest.raises(InputError, match=rf"--set budget\.{way}"):
        RunHandle("a", runs.target).resume(changes={"trials": 9})
    assert run.job.read_bytes() == before


def test_results_that_mlflow_lacks_are_something_to_do(runs, double):
    run = runs.make("a", tell=complete)
    runs.say(run, RunState.SUCCEEDED, complete=6, unrecorded=True)
    RunHandle("a", runs.target).resume()
    double(run)


def test_a_resumed_run_must_fit_the_machine(runs, monkeypatch):
    monkeypatch.setattr("trialplane.client.machine.visible_gpus", lambda: 2)
    run = runs.make("a", tell=complete, asks=3, **{"resources.gpus": 1})
    runs.say(run, RunState.PAUSED)
    before = run.job.read_bytes()
    with pytest.raises(SpecError, match="enough for 2 at a time"):
        RunHandle("a", runs.target).resume(changes={"parallel": 3})
    assert run.job.read_bytes() == before


def test_resume_refuses_what_makes_another_study_and_all_at_once(runs):
    run = runs.make("a", tell=complete, asks=4)
    runs.say(run, RunState.PAUSED)
    before = run.job.read_bytes()
    handle, sets = RunHandle("a", runs.target), ["seed=2", "objectives.0.metric=x", "budget.tim=3", "retries.lost=[", "x"]
    with pytest.raises(SpecError) as caught:
        handle.resume(changes={"trials": 2, "parallel": 0}, sets=sets)
    fields = {issue.field for issue in caught.value.issues}
    assert {"parallel", "seed", "objectives.0.metric", "budget.tim", "retries.lost", "--set"} <= fields
    assert run.job.read_bytes() == before
    with pytest.raises(SpecError, match="4 have already started"):
        handle.resume(changes={"trials": 2})


# Names and logs


def test_an_unknown_run_names_the_nearest(runs):
    runs.make("criteria-1")
    with pytest.raises(RunNotFound, match="did you mean criteria-1"):
        RunHandle("critria-1", runs.target).status()
    for odd in ("", "..", "../runs/criteria-1", ".hidden"):
        with pytest.raises(RunNotFound):
            RunHandle(odd, runs.target).status()


def test_runs_are_listed_newest_first_and_damaged_ones_last(runs):
    for name in ("a", "b", "c"):
        runs.make(name)
    RunPaths.of(runs.home, "b").submission.write_text("{")
    (runs.home / "runs" / ".partly").mkdir()
    assert runs.target.runs() == ["c", "a", "b"]


def test_logs_are_those_of_the_newest_attempt_or_the_one_named(runs):
    run = runs.make("a", tell=lambda r: failed(r, FailureClass.LOST) if r.attempt == 1 else complete(r), asks=12)
    for attempt in (1, 2):
        file = run.trial_log(3, attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"attempt {attempt}\nno end of line")
    assert list(RunHandle("a", runs.target).logs(3)) == ["attempt 2\n", "no end of line"]
    assert list(RunHandle("a", runs.target).logs(3, 1, follow=True)) == ["attempt 1\n", "no end of line"]
    newest = "3 of a has no attempt 99; its newest is 2"
    for words, says in (((77,), "no trial 77"), ((4,), r"no log .*attempt-2\.log; `platform"), ((3, 99), newest)):
        with pytest.raises(InputError, match=says):
            RunHandle("a", runs.target).logs(*words)


def test_a_followed_log_ends_with_its_run(runs, home, double):
    handle, _ = Platform(runs.target).start(planned(runs, "a"))
    double(RunPaths.of(home, "a"))
    lines = handle.logs(follow=True)
    assert next(lines) == "the double is here\n"
    handle.stop()
    assert list(lines) == []


def test_records_of_a_run_survive_json(runs):
    runs.make("a", tell=complete)
    for row in RunHandle("a", runs.target).attempts():
        assert records.from_json(type(row), records.to_json(row)) == row
    assert runs.target.ended_rows("a", 0)[1] == RunHandle("a", runs.target).attempts()
