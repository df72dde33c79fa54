"""The reconciler killed after each single effect and called again: objects and ledger are those of an undisturbed one.

An effect is a request that changes something at the API server, or a write to the ledger.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client import kuberay_double
from tests.kube import cluster_double

from trialplane.wire.states import RunState

from .conftest import Team

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """Ends the reconciler where it is, as SIGKILL would."""


def _submit(team: Team) -> None:
    team.apply()


def _pause(team: Team) -> None:
    team.change(state="Paused")


def _cancel_now(team: Team) -> None:
    team.change(state="Cancelled", now=True)


def _go_on(team: Team) -> None:
    team.change(state="Running")


def _wider(team: Team) -> None:
    team.change(parallel=5)


def _end(team: Team) -> None:
    team.namespace.end("a", RunState.SUCCEEDED)


def _resume(team: Team) -> None:
    job = {**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 48}
    team.change(job=job, resumes=1)


def _lose_ray_cluster(team: Team) -> None:
    team.cluster.remove("rayclusters", "a")


def _pull(team: Team) -> None:
    for pod in team.cluster.objects["pods"].values():
        for box in [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]:
            box["imageID"] = f"{box['image'].partition(':')[0]}@sha256:{'a' * 64}"


LIVES: dict[str, list[Callable[[Team], None]]] = {
    "submitted": [_submit],
    "paused and continued": [_submit, _pause, _go_on],
    "resumed": [_submit, _end, _resume],
    "wider": [_submit, _wider],
    "pulled": [_submit, _pull, _end, _resume],
    "cancelled at once": [_submit, _cancel_now],
    "made again": [_submit, _lose_ray_cluster],
}


def _watched(team: Team, effect: Callable[[], None]) -> None:
    """Has `effect` called after each effect of the reconciler."""
    for name in ("record_run", "change_desired", "set_token", "record_change", "add_images", "delete"):
        original = getattr(team.archive, name)

        def after(*args: Any, original: Any = original, **named: Any) -> None:
            original(*args, **named)
            effect()

        setattr(team.archive, name, after)
    cluster = team.reconciler.cluster
    call = cluster.call

    def called(method: str, *args: Any, **named: Any) -> Any:
        answer = call(method, *args, **named)
        if method != "GET":
            effect()
        return answer

    cluster.call = called  # type: ignore[method-assign]


def _facts(team: Team) -> dict[str, Any]:
    """What there is, without what differs from one undisturbed time to the next."""
    study, status = team.namespace.studies["a"], team.status()
    secret = team.cluster.objects["secrets"]["a.token"]["data"]["token"]
    return {
        "objects": {plural: sorted(things) for plural, things in team.cluster.objects.items() if plural != "events"},
        "events": [(one["message"], one["count"]) for one in team.cluster.objects["events"].values()],
        "changes": [(one.description, one.generation) for one in study.changes],
        "made": team.made,
        "token": study.token and base64.b64decode(secret).decode() == study.token,  # in the ledger, and the Secret's
        "images": (study.images, status["images"]),
        "desired": (study.desired, study.parallel, study.status.trials),
        "status": {key: status.get(key) for key in ("state", "resumes", "total", "progress")},
        "conditions": [(one["type"], one["status"], one["reason"]) for one in status["conditions"]],
        "groups": [one["spec"]["workerGroupSpecs"][0]["replicas"] for one in team.cluster.objects["rayclusters"].values()],
    }


class Clock:
    """That of operator, controllers and API server. It moves only between changes, so a life always has the same effects."""

    def __init__(self) -> None:
        self.now = 2e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kuberay_double, "time", clock)
    monkeypatch.setattr(cluster_double, "now", lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.now)))
    return clock


def _begin(make_team: Callable[[], Team], clock: Clock, effect: Callable[[], None]) -> Team:
    team = make_team()
    team.reconciler.clock = clock.time
    _watched(team, effect)
    return team


@pytest.mark.parametrize("life", LIVES)
def test_killed_after_each_effect_it_makes_no_second_anything(
    life: str, make_team: Callable[[], Team], clock: Clock
) -> None:
    effects = [0]

    def count() -> None:
        effects[0] += 1

    team = _begin(make_team, clock, count)
    for change in LIVES[life]:
        clock.now += 2
        change(team)
        team.settle()
    expected, total = _facts(team), effects[0]
    assert total >= 6, "what it does is no longer counted"
    for last in range(1, total + 1):
        left = [last]

        def kill(left: list[int] = left, last: int = last) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed(last)

        team = _begin(make_team, clock, kill)
        for change in LIVES[life]:
            clock.now += 2
            change(team)
            try:
                team.settle()
            except Killed:
                team.settle()
        assert left[0] <= 0, f"effect {last} of {total} did not come"
        assert _facts(team) == expected, f"killed after effect {last} of {total}"
