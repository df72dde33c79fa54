"""Which operator works, and in which order: the Lease on the double of an API server, and the queue of names.

Time is the tests' own: nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trialplane.client.cluster import Cluster
from trialplane.errors import LeaseLost, TargetError
from trialplane.reconciler import lease as leases
from trialplane.reconciler import workqueue
from trialplane.reconciler.lease import DURATION, Lease
from trialplane.reconciler.workqueue import WorkQueue

from .conftest import Team


class Candidates:
    """Two operators and their clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.one, self.other = (Lease(Cluster(), "operator", name, clock=lambda: self.now) for name in ("one", "other"))


@pytest.fixture
def candidates(team: Team) -> Candidates:
    return Candidates()


def test_one_holds_it_and_the_other_takes_over_when_it_is_no_longer_renewed(candidates: Candidates) -> None:
    assert candidates.one.hold()
    assert not candidates.other.hold()
    candidates.now += DURATION - 1
    assert candidates.one.hold(), "renewed"
    candidates.now += DURATION - 1
    assert not candidates.other.hold(), "seen to change just now"
    candidates.now += DURATION - 1
    assert not candidates.other.hold()
    candidates.now += 1
    assert candidates.other.hold()
    assert not candidates.one.hold()


def test_one_that_is_released_is_taken_at_once(candidates: Candidates) -> None:
    assert candidates.one.hold()
    candidates.other.release()
    assert not candidates.other.hold(), "it was not its to release"
    candidates.one.release()
    assert candidates.other.hold()


def test_of_two_at_the_same_moment_one_gets_it(candidates: Candidates, team: Team) -> None:
    assert candidates.one.hold()
    candidates.one.release()
    read = candidates.one._cluster.read
    candidates.one._cluster.read = lambda *args: (read(*args), candidates.other.hold())[0]  # type: ignore[method-assign]
    with pytest.raises(TargetError, match="changed concurrently"):
        candidates.one.hold()
    assert team.cluster.objects["leases"]["operator"]["spec"]["holderIdentity"] == "other"


class Scripted:
    """A Lease that answers as it is told."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)

    def hold(self) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "renewal", "message"),
    [
        ((False, TargetError("away"), True, TargetError("away"), True, False), 60.0, "another operator holds"),
        ((True,), 0.0, "was not renewed"),  # no answer is in time
    ],
)
def test_a_leader_that_loses_it_ends(answers: tuple[bool | Exception, ...], renewal: float, message: str) -> None:
    async def led() -> None:
        leads = asyncio.Event()
        if not renewal:
            leads.set()
        await leases.lead(Scripted(*answers), leads, pause=0.0, renewal=renewal)  # type: ignore[arg-type]

    with pytest.raises(LeaseLost, match=message):
        asyncio.run(led())


def _worked(reconcile: Callable[[WorkQueue, str], float | None], *names: str, until: Callable[[], bool]) -> None:
    async def run() -> None:
        queue = WorkQueue()
        for name in names:
            queue.add(name)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def one(name: str) -> float | None:
            try:
                return reconcile(queue, name)
            finally:
                loop.call_soon_threadsafe(lambda: done.set() if until() else None)

        task = asyncio.ensure_future(workqueue.work(queue, one))
        await asyncio.wait_for(done.wait(), 60)
        task.cancel()

    asyncio.run(run())


def test_a_name_waits_once_however_often_it_comes() -> None:
    seen: list[str] = []

    def reconcile(queue: WorkQueue, name: str) -> None:
        seen.append(name)

    _worked(reconcile, "a", "a", "b", "a", until=lambda: "b" in seen)
    assert seen == ["a", "b"]


def test_a_name_that_comes_while_somebody_works_on_it_comes_again() -> None:
    async def run() -> list[str]:
        queue = WorkQueue()
        queue.add("a")
        first = await queue.take()
        queue.add("a")
        queue.add("b")
        second = await queue.take()
        queue.done(first)
        return [first, second, await queue.take()]

    assert asyncio.run(run()) == ["a", "b", "a"]


def test_a_name_that_fails_comes_again_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "SLOWEST", 0.0)
    seen: list[str] = []

    def reconcile(queue: WorkQueue, name: str) -> None:
        seen.append(name)
        if seen.count("a") < 3 and name == "a":
            raise ZeroDivisionError("whatever it is")

    _worked(reconcile, "a", "b", until=lambda: seen.count("a") == 3)
    assert seen[:2] == ["a", "b"]


def test_the_earlier_of_two_times_counts() -> None:
    async def run() -> str:
        queue = WorkQueue()
        queue.add_after("a", 3600.0)
        queue.add_after("a", 0.0)
        queue.add_after("a", 3600.0)
        return await asyncio.wait_for(queue.take(), 60)

    assert asyncio.run(run()) == "a"
