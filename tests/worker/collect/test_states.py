"""What iterations leave to each other: the newest two stay, and a folder that cannot be deleted fails nobody.

Not checked: how states are written and damaged (test_checkpoint_failures.py: they are checkpoints), and what a run does
with them (tests/study/test_collection.py).
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from trialplane.policies import transport
from trialplane.worker.collect.states import WEIGHTS, Start, States


def kept(value: int) -> Start:
    return Start({WEIGHTS: transport.pack({"w": value})})


def refuse_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EBUSY, "device or resource busy", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_iteration_keeps_what_it_started_with_and_what_the_next_starts_with(tmp_path: Path) -> None:
    states = States(str(tmp_path))
    for iteration in (1, 2, 3):
        states.save(iteration, kept(iteration))
    assert names(tmp_path) == ["step-0000000002", "step-0000000003"]
    assert states.load(3).tree(WEIGHTS) == {"w": 3}


def test_old_states_that_cannot_be_deleted_fail_no_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = States(str(tmp_path))
    states.save(1, kept(1))
    states.save(2, kept(2))
    refuse_deletions(monkeypatch)
    with pytest.warns(UserWarning, match="could not be deleted .* still take space: .*busy"):
        states.save(3, kept(3))
    assert states.load(3).tree(WEIGHTS) == {"w": 3}
    assert [name for name in names(tmp_path) if name.startswith("step-")] == ["step-0000000002", "step-0000000003"]


def test_the_next_save_deletes_what_an_earlier_one_could_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = States(str(tmp_path))
    states.save(1, kept(1))
    states.save(2, kept(2))
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="could not be deleted"):
        refuse_deletions(patch)
        states.save(3, kept(3))
    states.save(4, kept(4))
    assert names(tmp_path) == ["step-0000000003", "step-0000000004"]
