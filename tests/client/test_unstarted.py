"""A run on a cluster whose pods never started: it is known from its submission on, goes on, and is deleted.

On the doubles of an API server, KubeRay and the gateway, with the operator as it is. What that keeps:
tests/ledger/test_archive.py.
"""

from __future__ import annotations

import pytest
from tests.client.conftest import scaled

from trialplane.client.run import RunHandle, SubmissionOutcome, submit
from trialplane.errors import InputError, RunNotFound
from trialplane.wire.states import RunState


def pending(target, namespace, plan) -> RunHandle:
    """A run whose pods fit no node."""
    namespace.held = True
    assert submit(target, plan) is SubmissionOutcome.NEW
    handle = RunHandle(plan.run, target)
    assert handle.status().state is RunState.PENDING
    return handle


def is_there(handle: RunHandle, namespace, state: RunState) -> None:
    """Every verb knows it, and nothing of it holds pods."""
    assert (handle.status().state, handle.is_active()) == (state, False)
    assert (handle.target.runs(), handle.rows(), handle.job.name) == (["a"], [], "demo")
    assert namespace.cluster.objects["rayclusters"] == namespace.cluster.objects["pods"] == {}


def goes_on(handle: RunHandle, namespace) -> None:
    """With what it was submitted with, once there is room."""
    namespace.held = False
    handle.resume()
    assert handle.status().state is RunState.RUNNING
    assert (handle.job.trials, namespace.studies["a"].submission["user"]) == (6, "ann")


@pytest.mark.parametrize("kind", ["hpo", "train"])
def test_a_run_that_is_cancelled_before_it_started_is_known_and_goes_on(target, namespace, planned, workplace, kind):
    if kind == "train":
        (workplace / "jobs" / "demo" / "job.yaml").write_text("kind: train\n")
    handle = pending(target, namespace, planned())
    assert handle.job.kind == kind
    status = handle.cancel()
    assert (status.state, status.reason) == (RunState.CANCELLED, "cancelled by the user")
    is_there(handle, namespace, RunState.CANCELLED)
    assert handle.exit_code == 4
    with pytest.raises(InputError, match=r"ended already \(CANCELLED\)"):
        handle.cancel()
    namespace.held = False
    handle.resume()
    assert handle.status().state is RunState.RUNNING


def test_a_run_that_is_paused_before_it_started_is_known_and_goes_on(target, namespace, planned):
    handle = pending(target, namespace, planned())
    assert handle.pause().state is RunState.PAUSED
    paused = "paused by the user; `platform resume a` continues it"
    assert handle.status().reason == paused, "its pods are not lost"
    is_there(handle, namespace, RunState.PAUSED)
    goes_on(handle, namespace)


def test_a_run_that_failed_before_its_first_trial_is_known_and_goes_on(target, namespace, planned):
    handle = pending(target, namespace, planned())
    namespace.end("a", RunState.FAILED, "its code does not import")
    assert (handle.status().state, handle.target.runs(), handle.rows()) == (RunState.FAILED, ["a"], [])
    namespace.cluster.remove("rayclusters", "a")  # as the operator does with ended ones
    is_there(handle, namespace, RunState.FAILED)
    namespace.cluster.remove("runs", "a")  # as the operator does
    is_there(handle, namespace, RunState.FAILED)
    goes_on(handle, namespace)


def test_a_run_that_never_started_is_deleted(target, namespace, planned):
    handle = pending(target, namespace, planned())
    handle.cancel()
    handle.delete()
    assert target.runs() == []
    with pytest.raises(RunNotFound):
        handle.status()
    handle = pending(target, namespace, planned())
    handle.delete()
    assert (target.runs(), namespace.cluster.objects["rayclusters"]) == ([], {})


def test_what_a_run_was_resumed_with_is_known_when_it_is_cancelled_before_it_started(target, namespace, planned):
    handle = pending(target, namespace, planned())
    handle.cancel()
    handle.resume(changes={"trials": 9})
    handle.cancel()
    assert handle.job.trials == 9


def test_a_run_that_was_applied_by_other_means_is_known_when_it_is_cancelled_before_it_started(target, namespace, planned):
    namespace.held = True
    target.objects.apply(planned(), 1.0)
    handle = RunHandle("a", target)
    assert handle.status().state is RunState.PENDING
    assert handle.cancel().state is RunState.CANCELLED
    is_there(handle, namespace, RunState.CANCELLED)
    goes_on(handle, namespace)


def test_a_run_that_has_not_started_is_scaled_too(target, namespace, planned):
    handle = pending(target, namespace, planned())
    assert scaled(target, 2)
    assert handle.observe().desired.parallel == 2
    namespace.held = False
    handle.status()
    assert handle.status().parallel == 2


@pytest.mark.parametrize(("changes", "seconds"), [({}, 60), ({"checkpoints.grace": 400}, 460)])
def test_a_pause_waits_for_a_trial_that_saves_itself(runs, changes, seconds):
    runs.make("a", **changes)
    assert RunHandle("a", runs.target)._default_patience() == seconds
