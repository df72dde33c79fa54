"""Checkpoints of many ranks, here as threads: complete when all have written, and every rank learns when one could not.

Not checked here: ranks that are processes, and meet by torch.distributed (test_checkpoint_crashes.py).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training import trainings
from tests.training.trainings import in_ranks, names, small, steps

from trialplane import errors
from trialplane.training.checkpoint import Checkpoints
from trialplane.training.steps import stores


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run" / "trial-0") if request.param == "folder" else trainings.bucket()


def test_ranks_write_together_and_each_gets_its_own_back(place: str) -> None:
    def act(rank: int, meet: Callable[[], None]) -> None:
        with Checkpoints(place) as checkpoints:
            for step in (1, 2, 3):
                own = {"rank": rank, "step": step}
                checkpoints.save(step, small(step), rank_state=own, rank=rank, world_size=4, barrier=meet)

    assert in_ranks(4, act) == [None] * 4
    checkpoints = Checkpoints(place)
    assert steps(checkpoints) == [2, 3]
    for rank in range(4):
        found = checkpoints.resume(rank=rank, world_size=4)
        assert found is not None
        assert found.rank_state == {"rank": rank, "step": 3}
    newest = checkpoints.newest()
    assert newest is not None
    assert sorted(newest.parts) == [*(f"rank-{rank:05d}.pt" for rank in range(4)), "state.pt"]
    assert names(newest.location) == ["COMPLETE", *sorted(newest.parts)]


def test_nothing_is_complete_before_every_rank_has_written(tmp_path: Path) -> None:
    seen: list[int] = []

    def act(rank: int, meet: Callable[[], None]) -> None:
        def last() -> None:
            seen.append(len(Checkpoints(tmp_path).all()))
            meet()

        Checkpoints(tmp_path, background=False).save(1, small(), rank=rank, world_size=3, barrier=last)

    assert in_ranks(3, act) == [None] * 3
    assert seen[:3] == [0, 0, 0]


@pytest.mark.parametrize("bad", [0, 2])
def test_when_one_rank_cannot_write_every_rank_learns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    create = stores.FolderStore.create

    def failing(store: Any, name: str, file: str) -> Any:
        if file == f"rank-{bad:05d}.pt" and "0002" in name:
            raise OSError(errno.EIO, "the disk of this rank is broken")
        return create(store, name, file)

    monkeypatch.setattr(stores.FolderStore, "create", failing)

    def act(rank: int, meet: Callable[[], None]) -> None:
        with Checkpoints(tmp_path) as checkpoints:
            options: dict[str, Any] = {"rank_state": {"rank": rank}, "rank": rank, "world_size": 3, "barrier": meet}
            checkpoints.save(1, small(), **options)
            checkpoints.save(2, small(), **options)
            with pytest.raises(errors.CheckpointError, match=r"step 2 .* was not written.*The checkpoint of step 1") as told:
                checkpoints.wait()
            assert ("this rank is broken" in str(told.value)) == (rank == bad)
            checkpoints.save(3, small(), **options)

    assert in_ranks(3, act) == [None] * 3
    assert steps(Checkpoints(tmp_path)) == [1, 3]
    assert names(tmp_path) == ["step-0000000001", "step-0000000003"]


def test_a_machine_whose_list_of_the_folder_is_old_finds_the_checkpoint_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where the list may be half a minute old and a name that is looked up is not."""
    monkeypatch.setattr(stores.FolderStore, "complete", lambda store: [])

    def act(rank: int, meet: Callable[[], None]) -> None:
        Checkpoints(tmp_path, background=False).save(1, small(), rank=rank, world_size=2, barrier=meet)

    assert in_ranks(2, act) == [None] * 2
    assert names(tmp_path) == ["step-0000000001"]


def test_what_a_killed_attempt_of_more_ranks_left_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    """A draft of the same step with every rank's marker: none of it may count."""
    draft = tmp_path / ".step-0000000001.saving"
    draft.mkdir(parents=True)
    for rank in range(1, 8):
        (draft / f"rank-{rank:05d}.json").write_text("{}")
        (draft / f"rank-{rank:05d}.pt").write_bytes(b"old")

    def act(rank: int, meet: Callable[[], None]) -> None:
        checkpoints = Checkpoints(tmp_path, background=False)
        checkpoints.save(1, small(), rank_state={"rank": rank}, rank=rank, world_size=2, barrier=meet)

    assert in_ranks(2, act) == [None] * 2
    assert names(tmp_path / "step-0000000001") == ["COMPLETE", "rank-00000.pt", "rank-00001.pt", "state.pt"]
    assert getattr(Checkpoints(tmp_path).resume(rank=1, world_size=2), "rank_state", None) == {"rank": 1}


def test_ranks_without_a_way_to_meet_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match=r"needs a barrier: call torch.distributed.init_process_group first"):
        Checkpoints(tmp_path).save(1, small(), rank=0, world_size=2)


def test_parts_fit_only_as_many_ranks_and_a_whole_state_any_number(tmp_path: Path) -> None:
    for sharded in (True, False):
        place = tmp_path / str(sharded)
        in_ranks(2, lambda rank, meet, place=place, sharded=sharded: Checkpoints(place, background=False).save(
            3, small(rank), rank_state={"rank": rank}, rank=rank, world_size=2, barrier=meet, sharded=sharded
        ))  # fmt: skip
    with pytest.raises(errors.CheckpointMismatch, match=r"saved in 2 parts.*there are 4 ranks now"):
        Checkpoints(tmp_path / "True").resume(rank=0, world_size=4)
    part = Checkpoints(tmp_path / "True").resume(rank=1, world_size=2)
    assert part is not None
    assert (part.state["model"]["bias"][0], part.rank_state) == (1, {"rank": 1})
    whole = Checkpoints(tmp_path / "False").resume(rank=3, world_size=4)
    assert whole is not None
    assert (whole.state["model"]["bias"][0], whole.rank_state) == (0, None)
    assert "saved by 2 ranks, and there are 4 now" in whole.notes[1]
