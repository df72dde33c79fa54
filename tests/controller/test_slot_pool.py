"""What the pool of slots does about a slot whose pod ends, and about one that does not start.

Ray is a double that answers what a test wants. Not checked here: real slots (tests/study), gangs of them (test_gangs.py),
a Ray that does not start (test_ray_session.py), results (test_exchange.py).
"""

from __future__ import annotations

import dataclasses

import pytest
import ray
from tests.controller.conftest import outcome, request
from tests.controller.ray_double import CONFIG, READY, Call, FakeRay, clock, fake, running

from trialplane import errors
from trialplane.controller import slots
from trialplane.controller.pool import SlotReady, SlotTrial
from trialplane.controller.ray_slots import RayHost
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.records import SlotConfig
from trialplane.wire.states import FailureClass, TrialState

__all__ = ["clock", "fake"]


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
    assert ended(fake, pool, exit_code).slot_lost, "or the next attempt would be lost with the pod"
    assert [actor.is_killed for actor in fake.actors] == [True]
    assert (pool.ready, pool.size, pool.nodes) == (0, 1, ())
    assert not list(pool.events(0))
    assert len(fake.actors) == 1, "Ray might put a new slot into the pod that is not gone yet"
    clock[0] += slots.POD_END_SECONDS
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
    assert not ended(fake, pool, None if by_us == "template" else 0).slot_lost
    assert [actor.is_killed for actor in fake.actors] == [False]
    pool.start(0, request(6))
    if by_us in ("stop", "kill"):  # the next one in it was not asked
        lost = outcome(6, state=TrialState.FAILED, failure=FailureClass.LOST, exit_code=0)
        fake.answer("run", ([messages.encode(messages.TrialEnded(lost))], {}))
        (said,) = pool.events(0)
        assert isinstance(said, SlotTrial)
        assert said.slot_lost


def test_a_slot_that_does_not_answer_a_kill_is_replaced(fake: FakeRay, clock: list[float]) -> None:
    """As one whose process was stopped."""
    pool = running(fake)
    clock[0] += 10 * slots.KILL_PATIENCE
    assert not list(pool.events(0)), "a trial may take as long as it wants"
    pool.kill(0, FailureClass.STOPPED, "cancelled")
    clock[0] += slots.KILL_PATIENCE / 2
    pool.kill(0, FailureClass.STOPPED, "cancelled")
    assert not list(pool.events(0))
    clock[0] += slots.KILL_PATIENCE / 2
    (said,) = pool.events(0)
    assert isinstance(said, SlotTrial)
    assert said.outcome is not None
    assert said.outcome.message == "slot 0 was lost with its trial: it did not answer for 300 s (stopped?)"
    assert [actor.is_killed for actor in fake.actors] == [True, False]
    fake.answer("run", ([messages.encode(messages.TrialEnded(outcome(5)))], {}))
    assert not list(pool.events(0)), "its answer comes too late"


def test_a_process_that_does_not_exit_is_told_until_it_has(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    assert pool.trouble == ""
    fake.answer("run", ([messages.encode(messages.Exiting())], {}))
    (said,) = pool.events(0)
    assert isinstance(said, SlotTrial)
    clock[0] += 12.0
    assert pool.trouble == (
        "slot 0: trial 5 has its result, but its process has not exited for more than 12 s (an exit hook?); it is killed "
        "after 300 s, see budget.exit_timeout"
    )
    pool.answer(0)
    fake.answer("answer", ([messages.encode(messages.TrialEnded(outcome(5)))], {}))
    assert len(list(pool.events(0))) == 1
    assert pool.trouble == ""


def test_a_slot_that_was_to_go_is_gone_for_good(fake: FakeRay, clock: list[float]) -> None:
    pool = running(fake)
    pool.resize(0)
    assert ended(fake, pool, 0).slot_lost
    clock[0] += slots.POD_END_SECONDS
    assert not list(pool.events(0))
    assert (len(fake.actors), pool.size) == (1, 0)


# Slots of another version

STRANGE = [
    (b'["Hibernated","9.9.9",{}]', "a slot of trialplane 9.9.9 sent 'Hibernated', which trialplane"),
    (b'["TrialEnded","9.9.9",{"outcome":3}]', "a slot "),
    (messages.encode(messages.UnitsWanted(3))[:-4], "a slot sent an invalid message"),
]


@pytest.mark.parametrize(("data", "said"), STRANGE)
def test_what_a_slot_sends_that_is_no_message_costs_the_slot_and_its_trial(
    fake: FakeRay, clock: list[float], data: bytes, said: str
) -> None:
    pool = running(fake)
    fake.answer("run", ([messages.encode(messages.LogGrown(b"log")), data], {}))
    (lost,) = pool.events(0)
    assert (lost.outcome.failure, lost.slot_lost, fake.actors[0].is_killed) == (FailureClass.LOST, True, True)
    assert lost.outcome.message.startswith(f"slot 0 was lost with its trial: {said}")


@pytest.mark.parametrize(("data", "said"), STRANGE)
def test_a_slot_of_another_version_does_not_start(fake: FakeRay, clock: list[float], data: bytes, said: str) -> None:
    pool = SlotPool(RayHost(), CONFIG, 1)
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
    pool = SlotPool(RayHost(), config, 3)
    starting(fake, 0).answer = messages.encode(READY)
    starting(fake, 1).answer = messages.encode(dataclasses.replace(READY, node="pod-1"))
    assert [said.slot for said in pool.events(0)] == [0, 1]
    return pool


def fail_newest(fake: FakeRay, pool: SlotPool, error: Exception = NO_IMPORT) -> None:
    starting(fake, -1).answer = error
    assert not list(pool.events(0))


def test_code_that_never_imported_ends_the_run_before_it_begins(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(RayHost(), CONFIG, 3)
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
    pool.resize(2)
    assert (pool.size, pool.ready, pool.trouble) == (2, 2, ""), "it is the first to go"
    assert pool.trouble == ""


def test_a_slot_that_starts_after_all_is_no_trouble(fake: FakeRay, clock: list[float]) -> None:
    pool = three(fake)
    fail_newest(fake, pool)
    starting(fake, -1).answer = messages.encode(READY)
    assert [said.slot for said in pool.events(0)] == [2]
    assert pool.trouble == ""


def test_where_pods_come_and_go_a_slot_is_given_up_after_some_time(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(RayHost(), CONFIG, 2, patience=600.0)
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
    pool = SlotPool(RayHost(), CONFIG, 2, has_begun=True)
    fail_newest(fake, pool)
    assert "slot 1 failed to start 1 time and is started again" in pool.trouble


def test_a_slot_that_goes_because_of_what_another_said_is_heard_no_more(fake: FakeRay, clock: list[float]) -> None:
    pool = SlotPool(RayHost(), CONFIG, 2)
    for call in fake.calls:
        call.answer = messages.encode(READY)
    ready = []
    for event in pool.events(0):
        ready.append(event.slot)
        pool.resize(1)
    assert ready == [0]
    assert (pool.size, pool.ready) == (1, 1)
