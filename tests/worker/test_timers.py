"""Timers by a clock that goes as the test says: what is due, in which order, and what an action may do to the others."""

from __future__ import annotations

import types

import pytest

from trialplane.worker import timers as module
from trialplane.worker.timers import Timers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    made = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: made.now))
    return made


def run(timers: Timers[str], without: tuple[str, ...] = ()) -> list[str]:
    return [action() for action in timers.due(without)]


def scheduled(**moments: float) -> Timers[str]:
    made: Timers[str] = Timers()
    for name, moment in moments.items():
        made.set(name, moment, lambda name=name: name)  # type: ignore[misc]  # mypy knows no defaults of lambdas
    return made


def test_each_is_due_once_and_the_earliest_first(clock: types.SimpleNamespace) -> None:
    timers = scheduled(late=102.0, early=99.0, now=100.0)
    assert (timers.until_next(), run(timers), run(timers)) == (0.0, ["early", "now"], [])
    assert timers.until_next() == 2.0
    clock.now += 2.0
    assert (run(timers), timers.until_next()) == (["late"], None)


def test_one_that_is_set_again_postponed_or_cancelled_has_no_other_moment(clock: types.SimpleNamespace) -> None:
    timers = scheduled(a=100.0, b=100.0, c=100.0)
    timers.set("a", 101.0, lambda: "other")
    timers.postpone("b", 2.0)
    timers.postpone("unknown", 2.0)
    timers.cancel("c", "unknown")
    assert run(timers) == []
    clock.now += 2.0
    assert run(timers) == ["other", "b"]


def test_an_action_may_move_what_follows_and_schedule_itself(clock: types.SimpleNamespace) -> None:
    timers = scheduled(b=99.5, c=99.6)

    def act() -> str:
        timers.set("a", 99.0, act)
        timers.cancel("b")
        timers.postpone("c", 5.0)
        return "a"

    timers.set("a", 99.0, act)
    assert (run(timers), run(timers)) == (["a"], ["a"])
    clock.now += 5.0
    assert run(timers)[-1] == "a", "c moves each time"


def test_what_is_left_out_or_not_reached_stays_due(clock: types.SimpleNamespace) -> None:
    timers = scheduled(a=98.0, b=99.0, c=100.0)
    assert run(timers, without=("a",)) == ["b", "c"]
    timers = scheduled(a=98.0, b=99.0)
    assert next(timers.due())() == "a"
    assert run(timers) == ["b"]
