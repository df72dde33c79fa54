"""Damaged checkpoints and failed saves: the one before is taken, and nothing old is lost.

Not checked: processes that are killed in the middle (test_checkpoint_crashes.py).
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.trainings import names, saved, small, steps

from trialplane import errors
from trialplane.training.checkpoint import Checkpoints
from trialplane.training.steps import stores


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("file", ["state.pt", "rank-00000.pt", "COMPLETE"])
def test_of_a_damaged_checkpoint_the_one_before_is_taken(
    tmp_path: Path, file: str, harm: Callable[[Path], None], recwarn: pytest.WarningsRecorder
) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    harm(tmp_path / "step-0000000002" / file)
    found = checkpoints.resume()
    assert found is not None
    assert found.step == 1
    assert found.state["model"]["bias"][0] == 1
    if (file, harm) != ("COMPLETE", Path.unlink):  # which is one that was never complete
        (warned,) = recwarn.list
        assert f"step-0000000002/{file}" in str(warned.message)


def test_an_old_checkpoint_that_cannot_be_deleted_fails_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, keep_last=1)

    def refuse(path: Path) -> None:
        raise OSError(errno.EBUSY, "device or resource busy", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(UserWarning, match="could not be deleted"):
        checkpoints.save(2, small(2))
    assert steps(checkpoints)[-1] == 2


def test_a_damaged_step_is_written_again_and_counts(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    flip(tmp_path / "step-0000000002" / "state.pt")
    checkpoints.save(2, small(22))
    found = checkpoints.resume()
    assert found is not None
    assert found.state["model"]["bias"][0] == 22
    assert steps(checkpoints) == [1, 2]


def test_when_none_is_whole_nobody_begins_again_in_silence(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    cut(tmp_path / "step-0000000001" / "state.pt")
    with (
        pytest.warns(UserWarning, match="bytes of"),
        pytest.raises(errors.CheckpointDamaged, match=r"all checkpoints at .* \(1 checkpoint\).* delete or move"),
    ):
        checkpoints.resume()


def test_loading_a_damaged_one_says_which_file(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    (found,) = checkpoints.all()
    flip(tmp_path / "step-0000000001" / "state.pt")
    with pytest.raises(errors.CheckpointDamaged, match=r"step-0000000001/state.pt was changed after it was written"):
        checkpoints.load(found)
    cut(tmp_path / "step-0000000001" / "state.pt")
    with pytest.raises(errors.CheckpointDamaged, match=r"state.pt cannot be read"):
        checkpoints.load(found, verify=False)


class Full:
    """A disk with room for so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, code: int = errno.ENOSPC) -> None:
        self.room, self.code = room, code
        write = stores.Sink.write
        disk = self

        class Limited:
            def __init__(self, target: Any) -> None:
                self.target = target

            def write(self, data: memoryview) -> int | None:
                if disk.room < len(data):
                    raise OSError(disk.code, os.strerror(disk.code))
                disk.room -= len(data)
                written: int | None = self.target.write(data)
                return written

        def limited(sink: Any, data: Any) -> int:
            if not isinstance(sink._target, Limited):
                sink._target = Limited(sink._target)
            return write(sink, data)

        monkeypatch.setattr(stores.Sink, "write", limited)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("room", [10, 5_000, 100_000])
def test_a_full_disk_leaves_the_old_checkpoint_good_and_says_what_was_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool, room: int
) -> None:
    saved(tmp_path, 1)
    disk = Full(monkeypatch, room)
    checkpoints = Checkpoints(tmp_path, background=background)
    large = {"model": {"weight": torch.zeros(1 << 20)}}
    says = (
        r"step 2 at .* was not written: the disk is full. It takes 4.0 MiB on rank 0, and .* are free. "
        "The checkpoint of step 1 is"
    )
    with pytest.raises(errors.CheckpointError, match=says):
        checkpoints.save(2, large)
        checkpoints.wait()
    assert names(tmp_path) == ["step-0000000001"]
    disk.room = 1 << 30
    checkpoints.save(3, large)
    checkpoints.close()
    found = checkpoints.resume()
    assert found is not None
    assert found.step == 3
    assert steps(checkpoints) == [1, 3]


def test_a_quota_is_not_called_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Full(monkeypatch, 10, errno.EDQUOT)
    with pytest.raises(errors.CheckpointError, match=r"the quota is used up.*There is no earlier checkpoint"):
        saved(tmp_path, 1)


def test_a_failed_write_is_told_by_the_next_save_which_then_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Full(monkeypatch, 10, errno.EIO)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, small())
    with pytest.raises(errors.CheckpointError, match=r"step 1 at .* was not written: OSError: .* Input/output error"):
        checkpoints.save(2, small())
    assert steps(checkpoints) == []
    disk.room = 1 << 30
    checkpoints.save(2, small())
    checkpoints.close()
    assert steps(checkpoints) == [2]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    try:
        checkpoints = Checkpoints(tmp_path, background=False)
        checkpoints.save(1, {"model": {"weight": torch.ones(1 << 18)}})
        says = (
            r"the disk is full. It takes 3.0 MiB on rank 0, and (1.9|2.0) MiB are free. The checkpoint of step 1 is complete"
        )
        with pytest.raises(errors.CheckpointError, match=says):
            checkpoints.save(2, {"model": {"weight": torch.ones(3 << 18)}})
        found = checkpoints.resume()
        assert found is not None
        assert found.state["model"]["weight"].sum() == 1 << 18
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
