"""Status of a run: the controller's last one, the desired state, whether a controller works, and the operator's view."""

from __future__ import annotations

import pytest

from trialplane.ledger import run_status
from trialplane.ledger.run_status import LedgerView, OperatorView
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

PENDING, RUNNING, PAUSED = RunState.PENDING, RunState.RUNNING, RunState.PAUSED
SUCCEEDED, FAILED, CANCELLED = RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED


def status(state: RunState) -> RunStatus:
    return RunStatus(
        "a", "demo", state, 6, reason="before", complete=2, running=3, slots_ready=3, nodes=("n",), updated=10.0
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
        assert (now.running, now.slots_ready, now.nodes) == (0, 0, ())
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
