"""As much of Ray as the pool of slots and the exchange use: its calls are answered by the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import ray
from tests.controller.conftest import request

from trialplane.controller import exchange, ray_session, ray_slots, slots
from trialplane.controller.pool import SlotReady
from trialplane.controller.ray_slots import RayHost
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.messages import SlotStarted
from trialplane.wire.records import SlotConfig

CONFIG = SlotConfig("toy", "/code", "train:run", "/root", "/cache", ship=True)
READY = SlotStarted("pod-0", 0.1, ())


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

        called = type("Method", (), {"remote": staticmethod(remote)})
        return type("Method", (), {"remote": staticmethod(remote), "options": staticmethod(lambda **_: called)})


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
    ray = FakeRay()
    monkeypatch.setattr(ray_slots, "ray", ray)
    monkeypatch.setattr(exchange, "ray", ray)
    monkeypatch.setattr(ray_session, "ray", ray)
    return ray


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slots.time, "sleep", lambda seconds: None)
    return now


def running(fake: FakeRay, config: SlotConfig = CONFIG) -> SlotPool:
    """A pool of one slot in which a trial runs."""
    pool = SlotPool(RayHost(), config, 1)
    fake.answer("start", messages.encode(READY))
    (ready,) = pool.events(0)
    assert isinstance(ready, SlotReady)
    pool.start(0, request(5))
    return pool
