"""Which operator works, and in which order: the Lease on the double of an API server, and the queue of names.

Time is the tests' own: nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from trialplane.errors import LeaseLost, TargetError
from trialplane.kube.cluster import Cluster
from trialplane.reconciler import __main__ as operator
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
    read = candidates.one.cluster.read
    candidates.one.cluster.read = lambda *args: (read(*args), candidates.other.hold())[0]  # type: ignore[method-assign]
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
    ("answers", "lost_after", "message"),
    [
        ((False, TargetError("away"), True, TargetError("away"), True, False), 60.0, "another operator holds"),
        ((True,), 0.0, "was not renewed"),  # no answer is in time
    ],
)
def test_a_leader_that_loses_it_ends(answers: tuple[bool | Exception, ...], lost_after: float, message: str) -> None:
    async def led() -> None:
        leads = asyncio.Event()
        if not lost_after:
            leads.set()
        await leases.hold_lease(Scripted(*answers), leads, pause=0.0, lost_after=lost_after)  # type: ignore[arg-type]

    with pytest.raises(LeaseLost, match=message):
        asyncio.run(led())


def test_the_lease_is_held_until_what_a_thread_does_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a successor would work on the same Run at the same time."""
    monkeypatch.setattr(leases, "PAUSE", 0.01)
    begun, goes_on, renewals = threading.Event(), threading.Event(), 0

    class Held:
        def hold(self) -> bool:
            nonlocal renewals
            if begun.is_set():
                renewals += 1
            if renewals > 3:
                goes_on.set()
            return True

    def reconcile(name: str) -> None:
        begun.set()
        assert goes_on.wait(60)

    async def end() -> None:
        await asyncio.to_thread(begun.wait, 60)  # as kopf ends at SIGTERM

    async def run() -> None:
        queue = WorkQueue(lambda name: name)
        queue.add("a")
        with ThreadPoolExecutor(1) as threads:
            work = workqueue.work(queue, reconcile, threads)
            await leases.run_with_lease(Held(), asyncio.Event(), [work, end()], threads)  # type: ignore[arg-type]
        assert goes_on.is_set()

    asyncio.run(run())


def test_a_renewal_that_takes_long_is_no_task_that_kopf_would_cancel_when_it_ends() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        def hold(self) -> bool:
            begun.set()
            assert goes_on.wait(60)
            return True

    async def run() -> None:
        leads = asyncio.Event()
        holder = asyncio.ensure_future(leases.hold_lease(Slow(), leads, leases.PAUSE))  # type: ignore[arg-type]
        before = asyncio.all_tasks()
        while not begun.is_set():
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        goes_on.set()
        await asyncio.wait({holder, waits := asyncio.ensure_future(leads.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert waits.done() and not holder.done()
        holder.cancel()

    asyncio.run(run())


def test_a_lost_lease_ends_the_process_before_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a thread first would let it work beside another operator's."""
    begun, goes_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    class Lost:
        def hold(self) -> bool:
            return not begun.is_set()

    class Slow:
        def admitted(self) -> list[str]:
            return ["a"]

        def runs_to_remove(self) -> list[str]:
            return []

        def reconcile(self, name: str) -> None:
            begun.set()
            assert goes_on.wait(60)

    def end(code: int) -> None:
        ended.append(goes_on.is_set())
        goes_on.set()

    async def watch(**_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(operator.kopf, "operator", watch)
    monkeypatch.setattr(operator.os, "_exit", end)
    monkeypatch.setattr(leases, "PAUSE", 0.01)
    asyncio.run(operator.operate({"team": Slow()}, Lost()))  # type: ignore[arg-type]
    assert ended == [False]


def test_an_error_of_a_task_ends_what_is_led_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PAUSE", 0.01)

    async def fail() -> None:
        raise ZeroDivisionError("kopf gave up")

    async def run() -> None:
        with ThreadPoolExecutor(1) as threads:
            await leases.run_with_lease(Scripted(*[True] * 99), asyncio.Event(), [fail()], threads)  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError, match="kopf gave up"):
        asyncio.run(run())


def _worked(reconcile: Callable[[WorkQueue, str], float | None], *names: str, until: Callable[[], bool]) -> None:
    async def run() -> None:
        queue = WorkQueue(lambda name: name)
        for name in names:
            queue.add(name)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def one(name: str) -> float | None:
            try:
                return reconcile(queue, name)
            finally:
                loop.call_soon_threadsafe(lambda: done.set() if until() else None)

        with ThreadPoolExecutor(1) as threads:
            task = asyncio.ensure_future(workqueue.work(queue, one, threads))
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
        queue = WorkQueue(lambda name: name)
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
        queue = WorkQueue(lambda name: name)
        queue.add_after("a", 3600.0)
        queue.add_after("a", 0.0)
        queue.add_after("a", 3600.0)
        return await asyncio.wait_for(queue.take(), 60)

    assert asyncio.run(run()) == "a"
