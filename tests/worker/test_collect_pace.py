"""What a worker has before it needs it, and what is heard of it, in real slots without Ray.

Not checked here: what comes of units and results (test_collect.py); when the controller hears (collect/test_exchange.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.collecting import CODE, Collecting
from tests.worker.conftest import wait_until

from trialplane.plan import pack
from trialplane.wire import env
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Unit
from trialplane.worker import running
from trialplane.worker.collect.worker import AHEAD_UNITS


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Collecting]:
    with Collecting(tmp_path, run="paced") as run:
        yield run


def test_of_the_units_that_a_killed_worker_had_those_it_had_begun_are_told(run: Collecting) -> None:
    (place,) = run.workers
    run.iteration = 0
    place.start(run.request(0, 1, 9, 0, play="killed", at=2))
    event = run.events.get(timeout=300)[1]
    place.slot.hand([Unit(number, 1) for number in range(6)], False)
    while event.outcome is None:
        event = run.events.get(timeout=300)[1]
    assert event.outcome.failure is FailureClass.CRASHED
    assert event.begun == (2,)


def test_a_quick_worker_asks_for_units_before_it_needs_them_and_a_slow_one_does_not(run: Collecting) -> None:
    asked: dict[str, int] = {}
    for play in ("quick", "slow"):
        wants: list[int] = []
        run.on_event = lambda place, event, wants=wants: wants.append(event.wants)  # type: ignore[misc]
        assert run.run(0, play=play, units=8).state is TrialState.COMPLETE
        asked[play] = max(wants)
    assert 1 < asked["quick"] <= 2 * AHEAD_UNITS
    assert asked["slow"] == 1


def test_one_slow_unit_ends_what_quick_ones_have_earned(run: Collecting) -> None:
    (place,) = run.workers
    run.iteration = 0
    place.start(run.request(0, 1, 99, 0, play="slow_at", at=40))
    had, before = 0, 0
    while had < 60:
        event = run.events.get(timeout=300)[1]
        if any(offer.unit == 40 for offer in event.offers):
            before = had
        place.slot.hand([Unit(had + number, 1) for number in range(event.wants)], False)
        had += event.wants
        place.slot.release([offer.unit for offer in event.offers])
    assert 41 < before <= 41 + 2 * AHEAD_UNITS, "so many it had to itself while that one took long"
    place.slot.kill(FailureClass.STOPPED, "enough")


def test_a_worker_that_waits_with_units_it_has_not_begun_is_not_late(run: Collecting) -> None:
    """Its function has returned, and its result has not been fetched yet."""
    run.timeout = 300.0
    (place,) = run.workers
    run.iteration = 0
    place.start(run.request(0, 1, 9, 0, play="once"))
    assert run.events.get(timeout=300)[1].wants
    place.slot.hand([Unit(0, 1), Unit(1, 1)], False)
    while not run.events.get(timeout=300)[1].offers:
        pass
    held = place.slot.exchange
    assert held is not None
    wait_until(lambda: held.deadline is None, "it has said that its function has returned")
    place.slot.release([0])
    event = run.events.get(timeout=300)[1]
    while event.outcome is None:
        event = run.events.get(timeout=300)[1]
    assert (event.outcome.state, event.begun) == (TrialState.COMPLETE, ())


def test_nothing_that_a_worker_says_is_lost_to_a_look_at_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOG_INTERVAL", 0.0)
    monkeypatch.setenv(env.HOME, str(tmp_path / "pod"))
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(pack.pack(CODE).data)
    with Collecting(tmp_path, run="paced", ship=True, pack=str(archive)) as run:
        assert run.run(0, units=6).state is TrialState.COMPLETE
        assert sorted(run.taken) == list(range(6))
