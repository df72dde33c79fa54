"""The token of a run: made at each start, in the Run's own Secret, its hash in the ledger, and gone when the run has ended.

What a token opens at the gateway is in tests/contracts/test_ledger_gateway.py; an operator that is killed, in test_crashes.
"""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trialplane.reconciler import workqueue
from trialplane.reconciler.workqueue import WorkQueue
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState

from .conftest import Team


def secret(team: Team) -> dict[str, Any]:
    found: dict[str, Any] = team.cluster.objects["secrets"]["a.token"]
    return found


def token(team: Team) -> str:
    """As the controller's pod reads it."""
    return base64.b64decode(secret(team)["data"][names.TOKEN_KEY]).decode()


def test_a_start_has_a_token_in_a_secret_of_the_run_that_its_controller_mounts(team: Team) -> None:
    team.apply()
    team.settle()
    assert team.namespace.studies["a"].token == token(team)
    assert len(base64.urlsafe_b64decode(token(team) + "=")) == 32
    (owner,) = secret(team)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Run", team.cluster.objects["runs"]["a"]["metadata"]["uid"])
    head = team.ray_clusters["a"]["spec"]["headGroupSpec"]["template"]["spec"]
    assert [one["secret"]["secretName"] for one in head["volumes"] if "secret" in one] == ["a.token"]
    assert token(team) not in repr(team.ray_clusters["a"])


def test_two_starts_have_two_tokens(team: Team) -> None:
    team.apply()
    team.settle()
    first = token(team)
    team.namespace.end("a", RunState.SUCCEEDED)
    team.settle()
    job = {**team.cluster.objects["runs"]["a"]["spec"]["job"], "trials": 48}
    team.change(job=job, resumes=1)
    team.settle()
    assert token(team) != first
    assert team.namespace.studies["a"].token == token(team)


def test_a_run_that_goes_on_keeps_its_token(team: Team) -> None:
    """However often the operator looks, and while the controller is away for a moment, as with its head or the gateway."""
    team.apply()
    team.settle()
    first = token(team)
    team.namespace.studies["a"].alive = False
    for _ in range(3):
        team.reconciler.reconcile("a")
    assert (token(team), team.namespace.studies["a"].token) == (first, first)


@pytest.mark.parametrize("end", ["succeeded", "failed", "paused", "cancelled", "deleted"])
def test_a_run_that_has_ended_has_none(team: Team, end: str) -> None:
    team.apply()
    team.settle()
    assert team.namespace.studies["a"].token is not None
    match end:
        case "succeeded" | "failed":
            team.namespace.end("a", RunState(end.upper()))
            team.settle()
        case "paused" | "cancelled":
            team.change(state=end.title())
            team.settle()
        case "deleted":
            team.cluster.remove("runs", "a")
            assert "a.token" not in team.cluster.objects["secrets"]
            team.reconciler.reconcile("a")
    assert team.namespace.studies["a"].token is None


def test_a_token_that_is_gone_or_opens_nothing_is_replaced_while_no_controller_works(team: Team) -> None:
    """Somebody deleted the Secret, or the database was restored: the controller comes again, and reads it anew."""
    team.apply()
    team.settle()
    before = team.ray_clusters["a"]["metadata"]["uid"]
    team.namespace.studies["a"].alive = False
    team.cluster.remove("secrets", "a.token")
    team.cluster.remove("configmaps", "a.spec")
    team.reconciler.reconcile("a")
    first = token(team)
    assert team.namespace.studies["a"].token == first and "a.spec" in team.cluster.objects["configmaps"]
    team.namespace.studies["a"].token = "of a backup"
    team.reconciler.reconcile("a")
    assert team.namespace.studies["a"].token == token(team) != first
    assert team.ray_clusters["a"]["metadata"]["uid"] == before
    theirs = {"metadata": {"name": "a.token"}, "kind": "Secret", "data": {"HF_TOKEN": "eA=="}}
    team.cluster.objects["secrets"]["a.token"] = theirs
    team.reconciler.reconcile("a")
    assert secret(team)["data"] == {"HF_TOKEN": "eA=="}, "somebody else's is left as it is"


def test_runs_whose_deletion_nobody_saw_are_looked_at_when_an_operator_begins(team: Team) -> None:
    team.apply()
    team.settle()
    team.cluster.remove("runs", "a")
    seen: list[str] = []

    async def begin() -> None:
        queue = WorkQueue(lambda name: name)
        answers = iter([ConnectionError("the database is away")])

        def admitted() -> list[str]:
            for error in answers:
                raise error
            return team.reconciler.admitted()

        with ThreadPoolExecutor(1) as threads:
            await workqueue.sweep(queue, admitted, threads, pause=0.0)
        seen.append(await queue.take())

    asyncio.run(begin())
    assert seen == ["a"]
    team.reconciler.reconcile("a")
    assert team.namespace.studies["a"].token is None


def test_a_secret_of_somebody_else_is_left_as_it_is(team: Team) -> None:
    theirs = {"metadata": {"name": "a.token"}, "kind": "Secret", "data": {"HF_TOKEN": "eA=="}}
    team.cluster.objects["secrets"]["a.token"] = theirs
    team.apply()
    team.settle()
    assert not team.ray_clusters
    status, reason, message = team.condition("Accepted")
    assert (status, reason) == ("False", "NameTaken")
    assert message == "the Secret a.token does not belong to this Run; give the Run another name"
    assert secret(team)["data"] == {"HF_TOKEN": "eA=="}
