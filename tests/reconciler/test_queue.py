"""The operator's queue: each namespace gets its part of the work, and a problem that stays is looked at ever less often.

Not here: that a name is worked on once at a time, and tried again when it fails (test_leading).
"""

from __future__ import annotations

import asyncio

import pytest

from trialplane.reconciler.__main__ import Name
from trialplane.reconciler.reconciler import LIVING, PATIENT
from trialplane.reconciler.workqueue import WorkQueue

from .conftest import Team


def queue() -> WorkQueue[Name]:
    return WorkQueue(lambda name: name.namespace)


def test_a_namespace_with_many_names_holds_up_no_other() -> None:
    async def taken() -> list[str]:
        names = queue()
        for number in range(4):
            names.add(Name("crowded", str(number)))
        names.add(Name("quiet", "a"))
        names.add(Name("quiet", "b"))
        found = []
        for _ in range(6):
            name = await names.take()
            found.append(str(name))
            names.done(name)
        return found

    assert asyncio.run(taken()) == ["crowded/0", "quiet/a", "crowded/1", "quiet/b", "crowded/2", "crowded/3"]


def test_a_namespace_whose_work_takes_long_gets_no_more_workers_than_others() -> None:
    """Those who are at work count, not only whose turn it is."""

    async def taken() -> list[str]:
        names = queue()
        for number in range(4):
            names.add(Name("slow", str(number)))
        first = await names.take()
        second = await names.take()
        assert (first.namespace, second.namespace) == ("slow", "slow")
        names.add(Name("quick", "a"))
        names.add(Name("quick", "b"))
        return [str(await names.take()) for _ in range(4)]

    assert asyncio.run(taken()) == ["quick/a", "quick/b", "slow/2", "slow/3"]


def test_who_waits_for_a_name_gets_the_next_one() -> None:
    async def taken() -> str:
        names = queue()
        waits = asyncio.ensure_future(names.take())
        await asyncio.sleep(0)
        names.add(Name("a", "b"))
        return str(await waits)

    assert asyncio.run(taken()) == "a/b"


def test_a_problem_that_stays_the_same_is_looked_at_ever_less_often(team: Team) -> None:
    team.apply()
    team.change(code={"configMaps": ["a-code"], "sha256": "0" * 64})
    waits = [team.reconciler.reconcile("a") for _ in range(8)]
    assert waits == [LIVING * 2**number if LIVING * 2**number < PATIENT else PATIENT for number in range(8)]
    assert team.condition("Accepted")[1] == "CodeMismatch"
    team.change(code={"configMaps": ["a-code"], "sha256": "1" * 64})
    assert team.reconciler.reconcile("a") == LIVING, "it is another problem"
    team.change(code={"configMaps": ["a-code"], "sha256": team.plan().pack.sha256})
    team.settle()
    assert team.status()["state"] == "Running"
    assert team.reconciler.reconcile("a") == LIVING


@pytest.mark.parametrize("name", ["a.ray", "a.token"])
def test_a_name_that_was_taken_is_looked_at_again(team: Team, name: str) -> None:
    """The operator is not told when what has it goes."""
    team.cluster.put("secrets", {"metadata": {"name": name}})
    team.apply()
    waits = [team.reconciler.reconcile("a") for _ in range(3)]
    assert waits == [LIVING, LIVING * 2, LIVING * 4]
    team.cluster.remove("secrets", name)
    assert team.settle()["state"] == "Running"
