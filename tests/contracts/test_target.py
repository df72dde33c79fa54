"""The contract of a target (`client/target.py`), on each place: this machine, a namespace's double, a real namespace.

The real one is that of TRIALPLANE_E2E_CONTEXT and TRIALPLANE_E2E_NAMESPACE (marker e2e; TRIALPLANE_E2E_PATIENCE is how many
seconds it may take to start a run). What one kind of place alone does is in tests/client.
"""

from __future__ import annotations

import os
import threading

import pytest
from tests.client.conftest import double, home, namespace, runs, started, workplace
from tests.contracts.target_places import TRIALS, Double, RealCluster, ThisMachine, until

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle, SubmissionOutcome, submit
from trialplane.errors import InputError, RunExists, RunNotFound, SpecError
from trialplane.wire.states import RunState, TrialState

__all__ = ["double", "home", "namespace", "runs", "started", "workplace"]

KUBECONFIG = os.environ.get("KUBECONFIG")  # before a test hides it


@pytest.fixture(params=["local", "double", pytest.param("cluster", marks=pytest.mark.e2e)])
def place(request, monkeypatch):
    if request.param == "local":
        yield ThisMachine(request.getfixturevalue("runs"), request.getfixturevalue("double"))
        return
    jobs = request.getfixturevalue("workplace") / "jobs"
    if request.param == "double":
        yield Double(KubernetesTarget(), jobs, request.getfixturevalue("namespace"))
        return
    context = os.environ.get("TRIALPLANE_E2E_CONTEXT")
    if not context:
        pytest.skip("TRIALPLANE_E2E_CONTEXT names no cluster")
    if KUBECONFIG is None:
        monkeypatch.delenv("KUBECONFIG")
    else:
        monkeypatch.setenv("KUBECONFIG", KUBECONFIG)
    real = RealCluster(KubernetesTarget(context, os.environ.get("TRIALPLANE_E2E_NAMESPACE")), jobs)
    yield real
    real.close()


def test_a_new_run_is_there_at_once(place):
    a = place.name("a")
    plan = place.plan(a)
    assert submit(place.target, plan) is SubmissionOutcome.NEW
    assert a in place.target.runs()
    assert place.target.is_active(a)
    assert place.target.job(a) == plan.job
    status = RunHandle(a, place.target).status()
    assert status.state in (RunState.PENDING, RunState.RUNNING)
    assert (status.run, status.job, status.trials) == (a, "demo", TRIALS)
    assert RunHandle(a, place.target).attempts() == []
    assert place.target.ended_rows(a, 0) == (0, [])
    place.settle(a)


def test_the_same_submission_again_starts_nothing(place):
    a = place.name("a")
    place.running(a)
    assert submit(place.target, place.plan(a)) is SubmissionOutcome.RUNNING


def test_another_spec_or_other_code_under_the_name_is_refused_with_the_difference(place):
    a = place.name("a")
    place.running(a)
    with pytest.raises(RunExists, match=f"trials: {TRIALS} → 7"):
        submit(place.target, place.plan(a, trials=7))
    (place.jobs / "demo" / "train.py").write_text("def run(ctx):\n    return 1.0\n")
    with pytest.raises(RunExists, match=r"code: train\.py: changed"):
        submit(place.target, place.plan(a))


def test_a_stopped_run_is_paused_and_goes_on(place):
    a = place.name("a")
    handle = place.running(a)
    status = handle.pause()
    assert status.state is RunState.PAUSED
    assert not handle.is_active()
    assert handle.exit_code == 130
    with pytest.raises(InputError, match=f"platform resume {a}"):
        handle.pause()
    handle.resume(changes={"trials": TRIALS + 2}, sets=["budget.time=2h"])
    assert handle.is_active()
    place.settle(a)
    until(lambda: handle.status().state is RunState.RUNNING)
    assert (handle.job.trials, handle.job.budget.time, handle.status().trials) == (TRIALS + 2, 7200.0, TRIALS + 2)


def test_a_running_run_is_not_resumed(place):
    a = place.name("a")
    handle = place.running(a)
    with pytest.raises(InputError, match="is running"):
        handle.resume()


def test_what_would_make_another_study_is_refused(place):
    a = place.name("a")
    handle = place.running(a)
    handle.pause()
    with pytest.raises(SpecError) as caught:
        handle.resume(changes={"parallel": 0}, sets=["seed=2", "x"])
    assert {"parallel", "seed", "--set"} <= {issue.field for issue in caught.value.issues}
    assert not handle.is_active()


def test_a_cancelled_run_ends_so_and_can_be_resumed(place):
    a = place.name("a")
    handle = place.running(a)
    assert handle.cancel().state is RunState.CANCELLED
    assert not handle.is_active()
    assert handle.exit_code == 4
    with pytest.raises(InputError, match="ended already"):
        handle.cancel()
    handle.resume()
    place.settle(a)
    until(lambda: handle.status().state is RunState.RUNNING)


def test_a_paused_run_can_be_cancelled(place):
    a = place.name("a")
    handle = place.running(a)
    handle.pause()
    assert handle.cancel().state is RunState.CANCELLED


def test_stopping_what_nobody_works_on_does_nothing(place):
    a = place.name("a")
    handle = place.running(a)
    handle.pause()
    before = handle.status()
    RunHandle(a, place.target).stop()
    place.target.remove(a, forget=False)
    assert handle.status().state is before.state is RunState.PAUSED


def test_killing_leaves_nobody_at_work(place):
    a = place.name("a")
    handle = place.running(a)
    handle.stop(now=True)
    assert handle.wait(300).state is RunState.PAUSED
    assert handle.exit_code == 130


def test_a_run_is_observed_with_its_status_and_whether_it_goes_on(place):
    a = place.name("a")
    handle = place.running(a)
    seen = place.target.observe(a)
    assert (seen.status.state, seen.is_active) == (RunState.RUNNING, True)
    handle.pause()
    seen = place.target.observe(a)
    assert (seen.status.state, seen.is_active) == (RunState.PAUSED, False)
    assert place.target.observe(place.name("another")) is None


def test_a_run_that_succeeded_tells_its_trials(place):
    a = place.name("a")
    handle = place.done(a)
    status = handle.status()
    assert (status.state, status.complete, status.ended_trials) == (RunState.SUCCEEDED, TRIALS, TRIALS)
    assert handle.exit_code == 0
    attempts = handle.attempts()
    assert {row.trial for row in attempts} == set(range(TRIALS))
    assert all(row.state is TrialState.COMPLETE for row in attempts)
    end, rows = place.target.ended_rows(a, 0)
    assert sorted(row.number for row in rows) == sorted(row.number for row in attempts)
    assert place.target.ended_rows(a, end) == (end, [])
    assert handle.rows()[0].values == handle.best.values == min(row.values for row in attempts)


def test_a_run_that_succeeded_has_nothing_left_to_do(place):
    a = place.name("a")
    handle = place.done(a)
    assert submit(place.target, place.plan(a)) is SubmissionOutcome.FINISHED
    with pytest.raises(InputError, match="--trials N"):
        handle.resume()
    handle.resume(changes={"trials": TRIALS + 1})
    place.settle(a)
    assert handle.job.trials == TRIALS + 1


def test_logs(place):
    a = place.name("a")
    handle = place.done(a)
    assert list(handle.logs())
    assert any("trial 1" in line for line in handle.logs(1))
    assert list(handle.logs(1, 1, follow=True)) == list(handle.logs(1))
    with pytest.raises(InputError, match="trial 77"):
        handle.logs(77)


def test_a_followed_log_ends_with_its_run(place):
    a = place.name("a")
    handle = place.running(a)
    lines = handle.logs(follow=True)
    assert next(lines).endswith("\n")
    stopper = threading.Thread(target=handle.pause)
    stopper.start()
    list(lines)
    stopper.join()


def test_an_unknown_run_names_the_nearest(place):
    name = place.name("criteria-1")
    typo = name.replace("criteria", "critria")
    submit(place.target, place.plan(name))
    handle, target = RunHandle(typo, place.target), place.target
    asked = (
        *(handle.status, handle.is_active, handle.observe, handle.attempts, lambda: handle.exit_code, handle.stop),
        *(handle.cancel, handle.pause, handle.resume, lambda: target.remove(typo, forget=True), lambda: target.job(typo)),
        *(handle.logs, lambda: target.desire(typo, RunState.CANCELLED)),
    )
    for call in asked:
        with pytest.raises(RunNotFound, match=f"did you mean {name}"):
            call()
    place.settle(name)


def test_a_deleted_run_is_forgotten(place):
    a = place.name("a")
    handle = place.running(a)
    with pytest.raises(InputError, match=f"platform cancel {a}"):
        place.target.remove(a, forget=True)
    handle.delete()
    assert a not in place.target.runs()
    with pytest.raises(RunNotFound):
        RunHandle(a, place.target).status()
    assert submit(place.target, place.plan(a, trials=7)) is SubmissionOutcome.NEW
    place.settle(a)


def test_only_what_goes_on_is_scaled(place):
    a = place.name("a")
    handle = place.running(a)
    handle.pause()
    with pytest.raises(InputError, match=f"platform resume {a} --parallel 3"):
        list(handle.scale(3))


def test_runs_are_listed_newest_first(place):
    a = place.name("a")
    b = place.name("b")
    for name in (b, a):
        handle = place.done(name)
    assert [name for name in place.target.runs() if name in (a, b)] == [a, b]
    assert handle.status().created


def test_looking_works_from_several_threads(place):
    a = place.name("a")
    place.running(a)
    found: list[RunState] = []
    threads = [threading.Thread(target=lambda: found.append(RunHandle(a, place.target).status().state)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [RunState.RUNNING] * 8
