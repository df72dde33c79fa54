"""Whose checkpoints of a study's trials stay, and that the others are removed once it is certain, by whatever slot is there.

Ray is a double. Not checked here: the removal itself (tests/training/test_checkpoint.py), and killed controllers of a real
run (tests/study/test_crashes.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.controller.ray_double import FakeRay, clock, fake, running
from tests.controller.trainings import SEARCH, job

from trialplane import errors
from trialplane.controller.keeping import CheckpointRemover
from trialplane.controller.ray_slots import RayHost
from trialplane.controller.slots import SlotPool
from trialplane.job.kinds import Study
from trialplane.wire import messages
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

__all__ = ["clock", "fake"]


def row(trial: int, loss: float | None, state: TrialState = TrialState.COMPLETE, **fields: Any) -> TrialRow:
    return TrialRow(trial, state, 1, trial, () if loss is None else (loss,), **fields)


def keeping(pool: SlotPool, *rows: TrialRow, best: int = 2) -> CheckpointRemover:
    made = job(**SEARCH, keep={"best": best})
    assert isinstance(made, Study)
    return CheckpointRemover(made, pool, rows)


def removed(fake: FakeRay) -> list[tuple[int, ...]]:
    """The trials whose folders each call removes."""
    orders = [messages.decode(call.given[0], messages.REMOVE).folders for call in fake.calls if call.method == "remove"]
    return [tuple(folder.trial for folder in folders) for folders in orders]


def test_a_trial_goes_once_so_many_better_ones_are_complete(fake: FakeRay) -> None:
    kept = keeping(running(fake), row(0, 0.5), row(1, 0.25))
    kept.advance()
    assert removed(fake) == []
    kept.record_end(row(2, 0.4))
    kept.advance()
    assert removed(fake) == [(0,)]
    kept.record_end(row(3, 0.25))
    kept.advance()
    assert removed(fake) == [(0,)], "one removal at a time"
    fake.answer("remove", True)
    kept.advance()
    assert removed(fake) == [(0,), (2,)], "of equal ones the earlier stays"


@pytest.mark.parametrize(
    ("ended", "goes"),
    [
        (row(0, None, TrialState.PRUNED), True),
        (row(0, None, TrialState.FAILED), True),
        (row(0, 0.1, feasible=False), True),
        (row(0, None, TrialState.PAUSED), False),
        (row(0, None, TrialState.LOST), False),
        (row(0, None, TrialState.RUNNING), False),
        (row(0, 0.1), False),
    ],
)
def test_only_a_trial_that_is_over_and_good_for_nothing_goes(fake: FakeRay, ended: TrialRow, goes: bool) -> None:
    kept = keeping(running(fake), ended)
    kept.advance()
    assert removed(fake) == ([(0,)] if goes else [])


def test_the_order_in_which_trials_end_does_not_matter(fake: FakeRay) -> None:
    """A controller that goes on reads them in another one, and must not remove what the former has kept."""
    pool = running(fake)
    ended = [row(0, 0.5), row(1, 0.25), row(2, 0.25), row(3, 0.25), row(4, None, TrialState.PRUNED)]
    for rows in (ended, ended[::-1]):
        keeping(pool, *rows).advance()
    assert removed(fake) == [(0, 3, 4), (0, 3, 4)]


def test_a_slot_that_dies_is_followed_by_another(fake: FakeRay) -> None:
    kept = keeping(running(fake), row(0, None, TrialState.FAILED))
    kept.advance()
    fake.answer("remove", fake.exceptions.ActorDiedError())
    kept.advance()
    assert removed(fake) == [(0,), (0,)]


def test_what_cannot_be_removed_is_left(fake: FakeRay, caplog: pytest.LogCaptureFixture) -> None:
    kept = keeping(running(fake), row(0, None, TrialState.FAILED))
    kept.advance()
    cause = errors.CheckpointError("/there/trial-0 cannot be removed: no permission")
    fake.answer("remove", fake.exceptions.RayTaskError("remove", "", cause))
    kept.advance()
    kept.advance()
    assert removed(fake) == [(0,)] and "/there/trial-0 cannot be removed" in caplog.text


def test_many_folders_are_removed_in_parts(fake: FakeRay) -> None:
    kept = keeping(running(fake), *(row(trial, None, TrialState.FAILED) for trial in range(2500)))
    for _ in range(4):
        kept.advance()
        if fake.calls[-1].method == "remove":
            fake.answer("remove", True)
    assert [len(trials) for trials in removed(fake)] == [1000, 1000, 500]
    assert [trial for trials in removed(fake) for trial in trials] == list(range(2500))


@pytest.mark.usefixtures("clock")
def test_a_run_ends_once_all_is_removed(fake: FakeRay) -> None:
    pool = SlotPool(RayHost(), running(fake)._config, 1)  # whose slot still starts
    kept = keeping(pool, row(0, None, TrialState.FAILED))
    kept.advance()
    assert removed(fake) == []
    polled = iter([lambda: fake.answer("start", messages.encode(messages.SlotStarted("pod-0", 0.1, ())))])
    original = pool.events

    def events(timeout: float) -> Any:
        if removed(fake):
            fake.answer("remove", True)
        next(polled, lambda: None)()
        return original(timeout)

    pool.events = events  # type: ignore[method-assign]
    kept.finish()
    assert removed(fake) == [(0,)] and not kept.unwanted
