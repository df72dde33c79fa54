"""The phase that follows from facts, and what every row of the operator's table must keep. Pure, without a cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trialplane.job import kinds
from trialplane.ledger.archive import Snapshot
from trialplane.plan import run as runs
from trialplane.reconciler import decisions
from trialplane.reconciler.decisions import Goal, Step
from trialplane.reconciler.observation import Observation, Phase
from trialplane.wire import labels
from trialplane.wire.records import Desired, RunStatus
from trialplane.wire.states import RunState

from .conftest import JOB

BEGUN = 1_800_000_000.0
RUN = {"metadata": {"name": "a", "uid": "u1"}, "spec": {}}
PAUSED = RunStatus("a", "demo", RunState.PAUSED, trials=24, updated=BEGUN + 1, started=BEGUN)
WORKS = dataclasses.replace(PAUSED, state=RunState.RUNNING)
FORMER = dataclasses.replace(PAUSED, updated=BEGUN - 1, started=BEGUN - 2)


def ray_cluster(owner: str = "u1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "ownerReferences": [{"kind": "Run", "name": "a", "uid": owner}], **metadata}}


def recorded(status: RunStatus, alive: bool = False) -> Snapshot:
    submission = {labels.UID: "u1", labels.BEGUN: BEGUN}
    return Snapshot(kinds.read(JOB), submission, status, Desired(RunState.RUNNING), alive)


@pytest.mark.parametrize(
    ("phase", "facts"),
    [
        (Phase.ABSENT, {}),
        (Phase.ABSENT, {"record": recorded(FORMER)}),
        (Phase.ABSENT, {"record": recorded(WORKS)}),  # somebody deleted its RayCluster
        (Phase.GONE, {"record": recorded(PAUSED)}),
        (Phase.LEAVING, {"leftovers": ("a-head",)}),
        (Phase.LEAVING, {"record": recorded(PAUSED), "leftovers": ("a-head",)}),
        (Phase.LEAVING, {"record": recorded(WORKS, alive=True)}),
        (Phase.LEAVING, {"ray_cluster": ray_cluster(owner="u0")}),
        (Phase.LEAVING, {"ray_cluster": ray_cluster(deletionTimestamp="2027-01-15T08:00:00Z")}),
        (Phase.STARTING, {"ray_cluster": ray_cluster()}),
        (Phase.STARTING, {"ray_cluster": ray_cluster(), "record": recorded(FORMER)}),
        (Phase.OPENING, {"ray_cluster": ray_cluster(), "record": recorded(FORMER), "controller_runs": True}),
        (Phase.RUNNING, {"ray_cluster": ray_cluster(), "record": recorded(FORMER, alive=True)}),
        (Phase.LOST, {"ray_cluster": ray_cluster(), "record": recorded(WORKS)}),
        (Phase.ENDED, {"ray_cluster": ray_cluster(), "record": recorded(PAUSED), "controller_runs": True}),
    ],
)
def test_a_phase_follows_from_facts(phase: Phase, facts: dict[str, Any]) -> None:
    assert Observation(RUN, runs.read(RUN), **facts).phase is phase


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("phase", Phase)
def test_a_row_of_the_table_keeps_what_a_crash_needs(phase: Phase, goal: Goal) -> None:
    steps = decisions.TABLE[phase][goal]
    if Step.START in steps:
        assert phase in (Phase.ABSENT, Phase.GONE), "one at a time"
        assert goal in (Goal.RUN, Goal.RESUME, Goal.RESTART)
    if Step.REMOVE in steps:
        assert goal not in (Goal.RUN, Goal.REFUSE)
        assert phase not in (Phase.OPENING, Phase.RUNNING) or goal is Goal.STOP_NOW, "the controller ends by itself"
        assert steps[-1] is Step.REMOVE, "it is in the ledger first"
    if goal in (Goal.STOP, Goal.STOP_NOW):
        assert steps[0] is Step.DESIRE_STOP
    if phase is Phase.LEAVING:
        assert not {*steps} - {Step.DESIRE_STOP}, "what leaves is waited for"
