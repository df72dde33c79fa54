"""What the pool of slots does about a slot whose pod ends, and about one that does not start.

Ray is a double that answers what a test wants. Not checked here: real slots (tests/study), gangs of them (test_gangs.py),
a Ray that does not start (test_ray_session.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import ray
from tests.controller.conftest import outcome, request

from trialplane import errors
from trialplane.controller import ray_session, slots
from trialplane.controller.slot_events import SlotFed, SlotFetched, SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.messages import SlotStarted
from trialplane.wire.records import SlotConfig
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Parcel

CONFIG = SlotConfig("toy", "/code", "train:run", "/root", "/cache", ship=True)
PARCELS = (Parcel(7, 2, 10, 30), Parcel(8, 2, 10, 30))
READY = SlotStarted("pod-0", 0.1, (), False)


@dataclasses.dataclass(eq=False)
class Call:
    """A call under way; `answer` once the test has given one."""

    actor: Actor
    method: str
    given: tuple[Any, ...] = ()
    answer: Any = None


class Actor:
    """An actor, whose calls the test answers."""

    def __init__(self, made: FakeRay) -> None:
        self.made = made
        self.is_killed = False

    def __getattr__(self, method: str) -> Any:
        def remote(*given: object) -> Any:
            call = Call(self, method, given)
            self.made.calls.append(call)
            return (call, f"result of {method}") if method == "fetch" else call

        return type("Method", (), {"remote": staticmethod(remote)})


class FakeRay:
    """As much of Ray as the pool uses."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.calls: list[Call] = []

    def remote(self, **_: object) -> Callable[[type], Any]:
        def remote(*_: object) -> Actor:
            self.actors.append(Actor(self))
            return self.actors[-1]

        return lambda cls: type("Factory", (), {"remote": staticmethod(remote)})

    def wait(self, calls: list[Call], *, num_returns: int, **_: object) -> tuple[list[Call], list[Call]]:
        return [call for call in calls if call.answer is not None][:num_returns], []

    def get(self, call: Call) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def called(self, method: str) -> int:
        return sum(call.method == method for call in self.calls)

    def kill(self, actor: Actor) -> None:
        actor.is_killed = True

    def answer(self, method: str, answer: Any) -> None:
        """Answers the newest call of that method."""
        next(call for call in reversed(self.calls) if call.method == method).answer = answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr(slots, "ray", made)
    monkeypatch.setattr(ray_session, "ray", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slots.time, "sleep", lambda seconds: None)
    return now


def running(fake: FakeRay, config: SlotConfig = CONFIG) -> SlotPool:
    """A pool of one slot in which a trial runs."""
    pool = SlotPool(config, 1)
    fake.answer("start", messages.encode(READY))
    (ready,) = pool.events(0)
    assert isinstance(ready, SlotReady)
    pool.start(0, request(5))
    return pool


def ended(fake: FakeRay, pool: SlotPool, exit_code: int | None) -> SlotTrial:
    """The trial is lost, and says so."""
    lost = outcome(5, state=TrialState.FAILED, failure=FailureClass.LOST, exit_code=exit_code)
    fake.answer("run", ([messages.encode(messages.TrialEnded(lost))], {}))
    (said,) = pool.events(0)
    assert isinstance(said, SlotTrial)
    return said


@pytest.mark.parametrize("exit_code", [0, -15])
def test_a_trial_that_its_pod_has_stopped_is_not_tried_again_in_that_pod(
    fake: FakeRay, clock: list[float], exit_code: int
) -> None:
    pool = running(fake)
    assert ended(fake, pool, exit_code).gone, "or the next attempt would be lost with the pod"
    assert [actor.is_killed for actor in fake.actors] == [True]
    assert (pool.ready, pool.size, pool.nodes) == (0, 1, ())
    assert not list(pool.events(0))
    assert len(fake.actors) == 1, "Ray might put a new slot into the pod that is not gone yet"
    clock[0] += slots.POD_GOES
    list(pool.events(0))
    fake.answer("start", messages.encode(dataclasses.replace(READY, node="pod-1")))
    (ready,) = pool.events(0)
    assert isinstance(ready, SlotReady)
    assert (ready.slot, ready.node) == (0, "pod-1")


@pytest.mark.parametrize("by_us", ["stop", "kill", "template", "laptop"])
def test_a_slot_stays_where_nothing_says_that_its_pod_ends(fake: FakeRay, clock: list[float], by_us: str) -> None:
    pool = running(fake, dataclasses.replace(CONFIG, ship=by_us != "laptop"))
    if by_us == "stop":
        pool.stop(0, "paused")
    elif by_us == "kill":
        pool.kill(0, FailureClass.LOST, "another node failed")
    assert not ended(fake, pool, None if by_us == "template" else 0).gone
    assert [actor.is_killed for actor in fake.actors] == [False]
    pool.start(0, request(6))
    if by_us in ("stop", "kill"):  # the next one in it was not asked
        lost = outcome(6, state=TrialState.FAILED, failure=FailureClass.LOST, exit_code=0)
        fake.answer("run", ([messages.encode(messages.TrialEnded(lost))], {}))
        (said,) = pool.events(0)
        assert isinstance(said, SlotTrial)
        assert said.gone


def test_a_slot_that_was_to_go_is_gone_for_good(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    pool.resize(0)
    assert ended(fake, pool, 0).gone
    clock[0] += slots.POD_GOES
    assert not list(pool.events(0))
    assert (len(fake.actors), pool.size) == (1, 0)


@pytest.mark.parametrize("answer", [(7, 8), (8,), (), ray.exceptions.RayActorError()])
def test_each_fetch_has_one_answer_whatever_becomes_of_the_slot(fake: FakeRay, clock: list[float], answer: Any) -> None:
    pool = running(fake)
    pool.fetch(0, (7, 8))
    assert len(pool.pending) == 2
    fake.answer("fetch", answer)
    (said,) = pool.events(0)
    there = answer if isinstance(answer, tuple) else ()
    gone = tuple(unit for unit in (7, 8) if unit not in there)
    assert said == SlotFetched(0, request(5), there, "result of fetch" if there else None, gone)
    released = [call.given for call in fake.calls if call.method == "control"]
    assert released == [(5, messages.encode(messages.ReleaseResults((7, 8))))], (
        "it has room for others only when these are in the store, or are made again"
    )
    assert pool.running() == {0: request(5)}, "the trial's own call tells of its end"


@pytest.mark.parametrize("answer", [True, False, ray.exceptions.RayActorError()])
def test_each_feed_has_one_answer(fake: FakeRay, clock: list[float], answer: Any) -> None:
    pool = running(fake)
    pool.feed(0, PARCELS, "results")
    fake.answer("feed", answer)
    (said,) = pool.events(0)
    assert said == SlotFed(0, request(5), (7, 8), lost=answer is not True)


def test_what_a_slot_could_not_do_is_told(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    no_room = ray.exceptions.RayTaskError("fetch", "Traceback", OSError("no room"))
    pool.fetch(0, (7,))
    fake.answer("fetch", no_room)
    assert list(pool.events(0)) == [SlotFetched(0, request(5), gone=(7,), why="no room")]
    pool.feed(0, PARCELS, "results")
    fake.answer("feed", no_room)
    assert list(pool.events(0)) == [SlotFed(0, request(5), (7, 8), lost=True, why="no room")]


# Slots of another version

STRANGE = [
    (b'["Hibernated","9.9.9",{}]', "a slot of trialplane 9.9.9 sent 'Hibernated', which trialplane"),
    (b'["TrialEnded","9.9.9",{"outcome":3}]', "a slot "),
    (messages.encode(messages.UnitsWanted(3))[:-4], "a slot sent what is no message"),
]


@pytest.mark.parametrize(("data", "said"), STRANGE)
def test_what_a_slot_sends_that_is_no_message_costs_the_slot_and_its_trial(
    fake: FakeRay, clock: list[float], data: bytes, said: str
) -> None:
    pool = running(fake)
    fake.answer("run", ([messages.encode(messages.LogGrown(b"log")), data], {}))
    (lost,) = pool.events(0)
    assert (lost.outcome.failure, lost.gone, fake.actors[0].is_killed) == (FailureClass.LOST, True, True)
    assert lost.outcome.message.startswith(f"slot 0 was lost with its trial: {said}")


@pytest.mark.parametrize(("data", "said"), STRANGE)
def test_a_slot_of_another_version_does_not_start(fake: FakeRay, clock: list[float], data: bytes, said: str) -> None:
    pool = SlotPool(CONFIG, 1)
    fake.answer("start", data)
    assert not list(pool.events(0))
    assert f"is started again: {said}" in pool.trouble


# Slots that do not start

NO_IMPORT = ray.exceptions.RayTaskError(
    "start", "Traceback", errors.EntrypointError("the job's code does not import: ModuleNotFoundError: torch\n  in /code")
)


def starting(fake: FakeRay, actor: int) -> Call:
    """The call that starts an actor."""
    return next(call for call in fake.calls if call.method == "start" and call.actor is fake.actors[actor])


def three(fake: FakeRay, config: SlotConfig = CONFIG) -> SlotPool:
    """A pool of three slots, two of which are warm."""
    pool = SlotPool(config, 3)
    starting(fake, 0).answer = messages.encode(READY)
    starting(fake, 1).answer = messages.encode(dataclasses.replace(READY, node="pod-1"))
    assert [said.slot for said in pool.events(0)] == [0, 1]
    return pool


def fail_newest(fake: FakeRay, pool: SlotPool, error: Exception = NO_IMPORT) -> None:
    starting(fake, -1).answer = error
    assert not list(pool.events(0))


def test_code_that_never_imported_ends_the_run_before_it_begins(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(CONFIG, 3)
    with pytest.raises(errors.EntrypointError, match=r"^no trial was started: the job's code does not import: Module"):
        fail_newest(fake, pool)


@pytest.mark.parametrize("error", [NO_IMPORT, ray.exceptions.RayActorError()])
def test_a_slot_that_does_not_start_beside_others_is_given_up_alone(
    fake: FakeRay, clock: list[float], error: Exception
) -> None:
    pool = three(fake)
    pool.start(0, request(5))
    for failed in range(1, slots.MAX_START_FAILURES):
        fail_newest(fake, pool, error)
        assert len(fake.actors) == 3 + failed, "it is replaced"
        times = "1 time" if failed == 1 else f"{failed} times"
        assert pool.trouble.startswith(f"slot 2 failed to start {times} and is started again: ")
    fail_newest(fake, pool, error)
    assert len(fake.actors) == 2 + slots.MAX_START_FAILURES
    assert pool.trouble.startswith("slot 2 failed to start 3 times and is not used until the run is paused and resumed: ")
    if error is NO_IMPORT:
        assert pool.trouble.endswith(": the job's code does not import: ModuleNotFoundError: torch")
    clock[0] += 3600.0
    assert not list(pool.events(0))
    assert len(fake.actors) == 2 + slots.MAX_START_FAILURES, "and it stays so"
    assert (pool.ready, pool.size, pool.slots, pool.running()) == (2, 3, {0, 1}, {0: request(5)})
    assert pool.resize(2) == {2}, "the first to go"
    assert pool.trouble == ""


def test_a_slot_that_starts_after_all_is_no_trouble(fake: FakeRay, clock: list[float]) -> None:
    pool = three(fake)
    fail_newest(fake, pool)
    starting(fake, -1).answer = messages.encode(READY)
    assert [said.slot for said in pool.events(0)] == [2]
    assert pool.trouble == ""


def test_where_pods_come_and_go_a_slot_is_given_up_after_some_time(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(CONFIG, 2, patience=600.0)
    starting(fake, 0).answer = messages.encode(READY)
    assert [said.slot for said in pool.events(0)] == [0]
    for _ in range(20):  # after pauses of 1 s, 2 s, ... and 30 s at last
        fail_newest(fake, pool)
        clock[0] += 30.0
        assert not list(pool.events(0)), "a new one is started"
        assert "is started again" in pool.trouble
    clock[0] += 30.0
    fail_newest(fake, pool)
    assert "is not used until" in pool.trouble


def test_a_run_with_too_few_slots_for_a_trial_ends_and_can_be_resumed(fake: FakeRay, clock: list[float]) -> None:
    pool = three(fake, dataclasses.replace(CONFIG, nodes=3))
    for _ in range(slots.MAX_START_FAILURES - 1):
        fail_newest(fake, pool)
    with pytest.raises(errors.SlotError, match="3 slots in a row could not be started: the job's code does not import"):
        fail_newest(fake, pool)


def test_of_a_resumed_run_one_bad_slot_is_one_bad_slot(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(CONFIG, 2, has_begun=True)
    fail_newest(fake, pool)
    assert "slot 1 failed to start 1 time and is started again" in pool.trouble


def test_all_that_was_said_is_heard_at_once(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    pool.fetch(0, (7,))
    pool.feed(0, PARCELS, "results")
    fake.answer("fetch", (7,))
    fake.answer("feed", True)
    assert [type(said) for said in pool.events(0)] == [SlotFetched, SlotFed]


def test_a_slot_that_goes_because_of_what_another_said_is_heard_no_more(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(CONFIG, 2)
    for call in fake.calls:
        call.answer = messages.encode(READY)
    ready = [said.slot for said in pool.events(0) if isinstance(said, SlotReady) and pool.resize(1)]
    assert ready == [0]
    assert (pool.size, pool.ready) == (1, 1)


def test_a_fetch_from_a_slot_that_has_gone_is_answered(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    pool.fetch(0, (7,))
    pool.resize(0)
    assert ended(fake, pool, 0).gone
    assert pool.size == 0
    fake.answer("fetch", ray.exceptions.RayActorError())
    (said,) = pool.events(0)
    assert isinstance(said, SlotFetched)
    assert (said.units, said.reference, said.gone) == ((), None, (7,))
