"""The steps from a run's pods to its first trial, read from timestamps as Kubernetes, Ray and the controller write them.

Not checked: looking at a cluster, which `--only cluster` does.
"""

from __future__ import annotations

import dataclasses

import pytest
from tests.benchmarks import timeline
from tests.benchmarks.workplace import MeasurementFailed

from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

NOON = timeline.epoch("2026-11-21T12:00:00Z")
LOG = "12:00:40 INFO slot 1 is warm after 2.0 s of imports\n12:00:41 INFO slot 0 is warm after 2.1 s of imports\n"
SEEN = timeline.Seen(
    pods={
        "head": {"role": "controller", "PodScheduled": NOON, "Ready": NOON + 12},
        "worker": {"role": "trial", "PodScheduled": NOON + 1, "Ready": NOON + 22},
    },
    controller=NOON + 3,
    run={"metadata": {"name": "some", "creationTimestamp": "2026-11-21T11:59:59Z"}},
    status=RunStatus(run="some", job="job", state=RunState.SUCCEEDED, trials=1, started=NOON + 6.5),
)
ATTEMPTS = [{"started": NOON + 42.5, "ended": NOON + 43.5}, {"started": NOON + 41.25, "ended": NOON + 44.0}]


def test_steps_in_order() -> None:
    found = timeline.steps(SEEN, LOG, ATTEMPTS)
    assert [moment - NOON for moment in found.values()] == [1, 3, 6.5, 22, 40, 41.25]
    assert next(iter(found)) == "scheduled"
    assert list(found)[-1] == "first trial started"


def test_the_whole_way_begins_with_the_object_and_ends_with_a_result() -> None:
    found = timeline.way(SEEN, LOG, ATTEMPTS)
    assert [moment - NOON for moment in found.values()] == [-1, 3, 6.5, 12, 22, 40, 41.25, 43.5]
    assert list(found)[:3] == ["Run applied", "controller's container started", "controller's libraries imported"]
    assert list(found)[-1] == "first trial's result"


def test_a_way_without_a_trial_pod_is_no_figure() -> None:
    pods = {name: pod for name, pod in SEEN.pods.items() if name != "worker"}
    with pytest.raises(MeasurementFailed, match="no trial pod"):
        timeline.way(dataclasses.replace(SEEN, pods=pods), LOG, ATTEMPTS)


def test_what_was_before_the_last_pod_is_left_out() -> None:
    pods = {**SEEN.pods, "worker": {"role": "trial", "PodScheduled": NOON + 32, "Ready": NOON + 41}}
    found = timeline.steps(dataclasses.replace(SEEN, pods=pods), LOG, ATTEMPTS)
    named = {name: moment - NOON for name, moment in found.items()}
    assert list(named.items()) == [
        ("scheduled", 32),
        ("first slot warm", 40),
        ("pods ready", 41),
        ("first trial started", 41.25),
    ]


def test_a_slot_that_was_warm_before_midnight() -> None:
    late = [{"started": NOON + 12 * 3600 + 0.5, "ended": NOON + 12 * 3600 + 1}]
    found = timeline.steps(SEEN, "23:59:59 INFO slot 0 is warm after 0.0 s of imports\n", late)
    assert found["first slot warm"] == NOON + 12 * 3600 - 1


@pytest.mark.parametrize(
    ("change", "log"),
    [
        ({"pods": {"head": {"role": "controller", "PodScheduled": NOON}}}, LOG),
        ({"pods": {}}, LOG),
        ({"controller": None}, LOG),
        ({}, "12:00:39 INFO nothing of slots\n"),
    ],
)
def test_what_was_not_seen_is_no_figure(change: dict[str, object], log: str) -> None:
    seen = dataclasses.replace(SEEN, **change)  # type: ignore[arg-type]
    with pytest.raises(MeasurementFailed):
        timeline.steps(seen, log, ATTEMPTS)
