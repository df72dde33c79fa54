"""Processes that are killed in the middle of a save, at every point of it: the newest complete checkpoint is found whole.

The processes are those of killed_while_saving.py, real ones with a real SIGKILL. Not checked: a machine that loses its
power, which would test the disk's promises about fsync; object stores (test_checkpoint.py has one in memory).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killed_while_saving.py")

pytestmark = pytest.mark.slow


def run(what: str, folder: Path) -> Any:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(folder)], capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_save_that_is_killed_at_any_point_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    found = {one.pop("point"): one for one in run("points", tmp_path / "run")}
    for point, one in found.items():
        complete = 2 if point in ("renamed", "old one hidden") else 1
        assert one == {"signal": 9, "step": complete, "value": complete, "left": ["step-0000000003"]}, point
    assert len(found) == 7


def test_ranks_save_beside_their_training_choose_together_and_learn_of_a_death(tmp_path: Path) -> None:
    (seen,) = run("ranks", tmp_path / "run")
    assert seen["steps"] == [10, 20, 30]
    (first, second) = seen["resumed"]
    assert first[:2] == [20, {"rank": 0}]
    assert second[:2] == [20, {"rank": 1}]
    assert "step-0000000030/rank-00001.pt has 6 bytes of" in first[2][0]
    assert second[2] == []  # rank 0 has looked for both
    assert "the ranks did not meet" in seen["said"]
    assert "the checkpoint of step 40" in seen["said"]
    assert seen["left"] == [10, 20, 30]


def test_a_job_that_ends_without_waiting_has_its_last_checkpoint(tmp_path: Path) -> None:
    assert run("forgets", tmp_path / "run") == [{"steps": [1]}]
