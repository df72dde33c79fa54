"""Status of a run: the controller's last one, the desired state, whether a controller works, and the operator's view."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.contracts.conftest import make_job

from trialplane.ledger import run_status
from trialplane.ledger.run_status import LedgerView, OperatorView
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

PENDING, RUNNING, PAUSED = RunState.PENDING, RunState.RUNNING, RunState.PAUSED
SUCCEEDED, FAILED, CANCELLED = RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED


def status(state: RunState) -> RunStatus:
    return RunStatus(
        *("a", "demo", state, 6),
        reason="before",
        complete=2,
        running=3,
        slots_ready=3,
        nodes=("n",),
        updated=10.0,
        final_state=SUCCEEDED if state is RUNNING else None,
    )


@pytest.mark.parametrize(
    ("state", "desired", "shown"),
    [
        (PENDING, RUNNING, PENDING),
        (RUNNING, RUNNING, RUNNING),  # its controller was killed, and the next one comes
        (RUNNING, PAUSED, PAUSED),
        (RUNNING, CANCELLED, CANCELLED),
        (PENDING, PAUSED, PAUSED),
        (PENDING, CANCELLED, CANCELLED),
        (PAUSED, CANCELLED, CANCELLED),
        (PAUSED, PAUSED, PAUSED),
        (SUCCEEDED, CANCELLED, SUCCEEDED),
        (FAILED, PAUSED, FAILED),
        (RUNNING, FAILED, RUNNING),  # the operator ends it
    ],
)
def test_without_a_controller_a_stop_is_what_holds(state: RunState, desired: RunState, shown: RunState) -> None:
    now = run_status.current(LedgerView(status(state), desired, alive=False, begun=20.0))
    assert (now.state, now.complete) == (shown, 2)
    if shown is not state:
        assert (now.running, now.slots_ready, now.nodes, now.final_state) == (0, 0, (), None)
        assert ("`platform resume a`" in now.reason) == (shown is PAUSED)


def test_a_controller_says_itself_how_it_stops() -> None:
    assert run_status.current(LedgerView(status(RUNNING), CANCELLED, alive=True, begun=10.0)) == status(RUNNING)


def test_a_status_of_an_earlier_start_is_not_that_of_a_controller_that_begins() -> None:
    now = run_status.current(LedgerView(status(PAUSED), RUNNING, alive=True, begun=10.5))
    assert (now.state, now.reason, now.running, now.nodes) == (PENDING, "the controller is starting", 0, ())


RESTARTING = OperatorView(PENDING, "the controller is restarting", waits="a pod is Pending")


@pytest.mark.parametrize(
    ("state", "desired", "alive", "begun", "shown"),
    [
        (RUNNING, RUNNING, True, 10.0, (RUNNING, "before; a pod is Pending")),
        (RUNNING, RUNNING, False, 10.0, (PENDING, "the controller is restarting")),  # it was killed
        (SUCCEEDED, RUNNING, False, 10.0, (SUCCEEDED, "before")),
        (SUCCEEDED, RUNNING, False, 10.5, (PENDING, "the controller is restarting")),  # resumed since
        (PAUSED, RUNNING, True, 10.5, (PENDING, "the controller is restarting")),
        (RUNNING, CANCELLED, False, 10.0, (CANCELLED, "cancelled by the user")),
    ],
)
def test_the_operator_decides_when_no_controller_of_the_last_start_has_reported(
    state: RunState, desired: RunState, alive: bool, begun: float, shown: tuple[RunState, str]
) -> None:
    now = run_status.current(LedgerView(status(state), desired, alive, begun), RESTARTING)
    assert (now.state, now.reason) == shown


def test_the_end_is_the_operators_or_the_last_sign_of_a_cancelled_run() -> None:
    failed = OperatorView(FAILED, "its deadline is over", ended=12.0)
    assert run_status.current(LedgerView(status(RUNNING)), failed).ended == 12.0
    assert run_status.current(LedgerView(status(RUNNING), CANCELLED)).ended == 10.0
    assert run_status.current(LedgerView(status(RUNNING), PAUSED)).ended is None


def test_a_reason_of_both_sources_is_shown_once() -> None:
    assert run_status.join_reasons("a; b", "", "b; c") == "a; b; c"


def test_the_best_trial_has_the_start_and_the_duration_of_its_series() -> None:
    segments = [
        TrialRow(0, TrialState.PAUSED, 1, 0, seconds=5.0, started=100.0),
        TrialRow(1, TrialState.COMPLETE, 1, 1, values=(0.1,), params={"x": 0.1}, seconds=9.0, started=100.0),
        TrialRow(0, TrialState.COMPLETE, 1, 2, values=(0.9,), params={"x": 0.9}, series=0, seconds=7.0, started=200.0),
    ]
    best = run_status.recount(make_job(), segments).best
    assert best is not None
    assert (best.number, best.started, best.seconds, best.params) == (2, 100.0, 12.0, {"x": 0.9})


def test_a_recount_keeps_little_of_each_attempt() -> None:
    """The operator and the gateway count runs of any size in a pod of some hundred megabytes."""
    count, returned = 1000, 10_000
    attempts = (
        TrialRow(
            trial, TrialState.COMPLETE, 1, trial, values=(float(trial),), returned={"text": " " * returned + str(trial)}
        )
        for trial in range(count)
    )
    job = make_job()
    tracemalloc.start()
    counts = run_status.recount(job, attempts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.complete == count
    assert peak < count * returned / 5
