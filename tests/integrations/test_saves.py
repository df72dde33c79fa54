"""Checkpoints of one file: complete or absent, in a folder and at a URL, and which of them is gone on from.

Not checked here: what libraries make of the file (test_libraries.py), and the folders by themselves (tests/training).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from trialplane import errors
from trialplane.integrations import saves
from trialplane.integrations.saves import SavedFile, Saves
from trialplane.training.steps import stores
from trialplane.worker import context

CONTENT = {step: bytes([step]) * (step * 5_000_000 // 3) for step in range(1, 6)}  # larger than a piece, the last of them


def trial(
    tmp_path: Path, place: str, *, rank: int = 0, other: str | None = None, step: int | None = None
) -> context.Context:
    workdir = tmp_path / "workdir"
    workdir.mkdir(exist_ok=True)
    origin = context.Origin(other, step=step)
    given = context.Context({}, 1, "toy", 0, 1, 1, 0, tmp_path, tmp_path, workdir, lambda *_: False, rank, rank, 2, place)
    object.__setattr__(given, "_origin", origin)
    return given


def save(step: int, files: Saves) -> None:
    files.save(step, lambda file: file.write_bytes(CONTENT[step]))


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "checkpoints") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def test_the_newest_two_are_kept_and_the_newest_is_found(tmp_path: Path, place: str) -> None:
    files = Saves("model.bin")
    with context.activate(trial(tmp_path, place)):
        assert files.newest() is None
        for step in CONTENT:
            save(step, files)
        found = files.newest()
        assert found == SavedFile(5, tmp_path / "workdir" / "step-0000000005-model.bin")
        assert found.file.read_bytes() == CONTENT[5]
        assert stores.open_store(place).complete() == ["step-0000000004", "step-0000000005"]
        save(5, files)
        assert stores.open_store(place).complete() == ["step-0000000005", "step-0000000005.1"], "an attempt did it again"
        found = files.newest()
        assert found is not None
        assert found.file.name == "step-0000000005.1-model.bin"


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, how: str) -> None:
    files, place = Saves("model.bin"), tmp_path / "checkpoints"
    with context.activate(trial(tmp_path, str(place))):
        save(1, files)
        save(2, files)
        for step, is_last in ((2, False), (1, True)):
            file = place / f"step-000000000{step}" / "model.bin"
            data = file.read_bytes()
            file.write_bytes(data[:-1] if how == "cut" else data[:-1] + b"!")
            with pytest.warns(UserWarning, match=r"step-000000000\d/model.bin (has .* bytes of|was changed)"):
                if is_last:
                    with pytest.raises(errors.CheckpointDamaged, match=r"all checkpoints at .* are damaged"):
                        files.newest()
                else:
                    found = files.newest()
                    assert found is not None
                    assert found.step == 1


def test_another_runs_is_taken_while_there_is_none_here(tmp_path: Path) -> None:
    files, other = Saves("model.bin"), str(tmp_path / "other")
    with context.activate(trial(tmp_path, other)):
        save(3, files)
    resumed = trial(tmp_path, str(tmp_path / "mine"), other=other)
    with context.activate(resumed):
        found = files.newest()
        assert found is not None
        assert found.step == 3
        save(4, files)
        found = files.newest()
        assert found is not None
        assert found.step == 4
    assert resumed._origin.was_read
    unresumed = trial(tmp_path, str(tmp_path / "empty"), other=str(tmp_path / "nothing"))
    with context.activate(unresumed), pytest.raises(errors.CheckpointError, match="the run has saved none"):
        files.newest()


def test_a_given_step_of_another_run_is_not_replaced_by_the_newest(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    with context.activate(trial(tmp_path, other)):
        save(3, Saves("model.bin"))
    with (
        context.activate(trial(tmp_path, str(tmp_path / "mine"), other=other, step=1)),
        pytest.raises(errors.CheckpointError, match=r"the checkpoint of step 1 at .*, and only ctx\.restored reads"),
    ):
        Saves("model.bin").newest()


def test_rank_0_alone_writes(tmp_path: Path) -> None:
    with context.activate(trial(tmp_path, str(tmp_path / "checkpoints"), rank=1)):
        save(1, Saves("model.bin"))
    save(1, Saves("model.bin"))
    assert Saves("model.bin").newest() is None
    assert not (tmp_path / "checkpoints").exists(), "nor does anybody outside of a trial"


def test_another_librarys_checkpoint_is_refused(tmp_path: Path) -> None:
    with context.activate(trial(tmp_path, str(tmp_path / "checkpoints"))):
        save(1, Saves("model.ubj"))
        with pytest.raises(
            errors.CheckpointError, match=r"contains model\.ubj, but not model\.txt, which this library reads"
        ):
            Saves("model.txt").newest()


def test_one_that_cannot_be_written_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    files, place = Saves("model.bin"), tmp_path / "checkpoints"
    with context.activate(trial(tmp_path, str(place))):
        save(1, files)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            with pytest.raises(errors.CheckpointError, match=r"step 2 could not be written to .*: No space left"):
                save(2, files)
        found = files.newest()
        assert found is not None
        assert found.step == 1
        save(3, files)
        assert sorted(path.name for path in place.iterdir()) == ["step-0000000001", "step-0000000003"], "no half is left"


def test_a_library_of_folders_is_refused_a_url() -> None:
    assert saves.local_folder("file:///data/checkpoints", "it") == saves.local_folder("/data/checkpoints", "it")
    with pytest.raises(errors.InputError) as refused:
        saves.local_folder("s3://bucket/runs", "transformers' Trainer")
    assert str(refused.value) == (
        "the checkpoints of this run are at s3://bucket/runs, and transformers' Trainer only writes to folders. Remove "
        "checkpoints.url from job.yaml, have the chart store checkpoints on a volume (its value checkpoints), or save with "
        "trialplane.training.checkpoint, which writes to URLs"
    )
