"""The status that holds now, from the last one of a controller, the desired state, and whether a controller lives."""

from __future__ import annotations

import pytest

from trialplane.ledger import standing
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
    now = standing.current(status(state), desired, alive=False, begun=20.0)
    assert (now.state, now.complete) == (shown, 2)
    if shown is not state:
        assert (now.running, now.slots_ready, now.nodes) == (0, 0, ())
        assert ("`platform resume a`" in now.reason) == (shown is PAUSED)


def test_a_controller_says_itself_how_it_stops() -> None:
    assert standing.current(status(RUNNING), CANCELLED, alive=True, begun=10.0) == status(RUNNING)


def test_a_status_of_an_earlier_start_is_not_that_of_a_controller_that_begins() -> None:
    now = standing.current(status(PAUSED), RUNNING, alive=True, begun=10.5)
    assert (now.state, now.reason, now.running, now.nodes) == (PENDING, "the controller is starting", 0, ())
