"""KubeRay's two statuses of a RayJob as a run's state: every one that KubeRay 1.6 has, and one that it has not."""

from __future__ import annotations

import itertools

import pytest

from trialplane.client import phases
from trialplane.wire.states import RunState

DEPLOYMENTS = (
    "",
    "Initializing",
    "Running",
    "Complete",
    "Failed",
    "ValidationFailed",
    "Suspending",
    "Suspended",
    "Retrying",
)
JOBS = ("", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED")


def ray_job(deployment="", job="", **status):
    return {"metadata": {"name": "a"}, "status": {"jobDeploymentStatus": deployment, "jobStatus": job, **status}}


@pytest.mark.parametrize(("deployment", "job"), list(itertools.product(DEPLOYMENTS, JOBS)))
def test_every_pair_that_can_be_has_a_state(deployment, job):
    state = phases.state(ray_job(deployment, job))
    if deployment == "Complete" and job in ("", "PENDING", "RUNNING"):  # KubeRay says Complete of an ended job only
        assert state is RunState.UNKNOWN
    else:
        assert state is not RunState.UNKNOWN


@pytest.mark.parametrize(
    ("deployment", "job", "state"),
    [
        ("", "", RunState.PENDING),
        ("Initializing", "", RunState.PENDING),
        ("Running", "", RunState.PENDING),
        ("Running", "RUNNING", RunState.RUNNING),
        ("Complete", "SUCCEEDED", RunState.SUCCEEDED),
        ("Complete", "FAILED", RunState.FAILED),
        ("Complete", "STOPPED", RunState.PAUSED),
        ("Failed", "FAILED", RunState.FAILED),
        ("Suspended", "", RunState.PENDING),
        ("Dreaming", "", RunState.UNKNOWN),
        ("Running", "DREAMING", RunState.UNKNOWN),
    ],
)
def test_the_state(deployment, job, state):
    assert phases.state(ray_job(deployment, job)) is state


def test_a_ray_job_without_a_status_has_not_been_seen():
    assert phases.state({"metadata": {"name": "a"}}) is RunState.PENDING


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_what_is_over(deployment):
    assert phases.is_over(ray_job(deployment)) is (deployment in ("Complete", "Failed", "ValidationFailed"))


def test_one_that_is_being_deleted_is_over():
    going = ray_job("Running", "RUNNING")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T09:58:29Z"
    assert phases.is_over(going)


def test_why_it_failed():
    failed = ray_job("Failed", reason="PreRunningDeadlineExceeded", message="The RayJob has been\n waiting")
    assert phases.explanation(failed) == (
        "its pods did not start in time (preRunningDeadlineSeconds): The RayJob has been waiting"
    )
    assert phases.explanation(ray_job("Failed", reason="Whatever", message="")) == "Whatever"
    assert phases.explanation(ray_job("Running", "RUNNING", message="fine")) == ""


def test_the_log_in_a_message_is_left_out_but_for_its_exception():
    log = (
        "10:41:09 INFO the study begins\nTraceback (most recent call last):\n"
        '  File "/app/session.py", line 44, in drive\n    job = read(run)\nValueError: no job\n  of that name\n'
    )
    head = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
    assert phases.explanation(ray_job("Failed", reason="AppFailed", message=head + log)) == (
        "the controller failed: Job entrypoint command failed with exit code 1: ValueError: no job of that name"
    )
    plain = phases.explanation(ray_job("Failed", reason="AppFailed", message=head + "x\n" * 1000 + "the end"))
    assert plain.endswith("the end")
    assert len(plain) < 600


def test_times_are_seconds_since_the_epoch():
    assert phases.moment("1970-01-01T00:01:40Z") == 100.0
    assert phases.ended(ray_job("Complete", "SUCCEEDED", endTime="1970-01-01T00:01:40Z")) == 100.0
    assert phases.ended(ray_job()) is None
