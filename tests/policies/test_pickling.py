"""A recipe crosses to another process, data does not: datasets that lose their items, and arguments that are too large.

Not checked here: that trials are started with the policy (tests/worker/test_slot.py).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.policies.conftest import Program

from trialplane import errors
from trialplane.policies import pickling


class InMemory:
    """The dataset that broke: all its lines are in its state."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)


class Emptied(InMemory):
    """Their first cure, without the second half: the workers woke up with nothing."""

    def __getstate__(self) -> dict[str, Any]:
        return {"lines": []}


class Recipe:
    """A path and a length."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length

    def __len__(self) -> int:
        return self.length


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_recipe_passes() -> None:
    pickling.check_dataset(Recipe(Path("/data/lines.txt"), 14_792_446))


def test_a_dataset_in_memory_is_too_large() -> None:
    with pytest.raises(errors.PolicyError, match=r"InMemory would send 1\.\d MiB .* limit is 1\.0 MiB.*Send a recipe"):
        pickling.check_dataset(InMemory([f"line {number} of the corpus" for number in range(50_000)]))


def test_a_dataset_that_comes_back_empty_is_found() -> None:
    with pytest.raises(errors.PolicyError, match=r"Emptied has 3 items here but 0 after pickling.*__setstate__"):
        pickling.check_dataset(Emptied(["a", "b", "c"]))


def test_a_dataset_that_cannot_be_pickled_is_found() -> None:
    with pytest.raises(errors.PolicyError, match=r"Locked cannot be pickled.*Keep open files and locks out of its state"):
        pickling.check_dataset(Locked())


def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pickling.LIMIT, "10")
    with pytest.raises(errors.PolicyError):
        pickling.check_dataset(Recipe(Path("/data"), 3))


WORKER = """
import multiprocessing, sys
from trialplane import errors, policies

def work(data):
    print("worker has", len(data), flush=True)

if __name__ == "__main__":
    policies.apply_all()
    process = multiprocessing.Process(target=work, args=(bytes(int(sys.stdin.read() or SIZE)),))
    try:
        process.start()
        process.join()
        print("exit", process.exitcode)
    except errors.PolicyError as error:
        print("refused:", error)
        print("alive:", process._popen is not None)
"""


def test_a_small_argument_reaches_a_spawned_worker(program: Program) -> None:
    assert program(WORKER.replace("int(sys.stdin.read() or SIZE)", "1000")) == "worker has 1000\nexit 0"


def test_a_large_argument_is_refused_before_it_is_sent(program: Program) -> None:
    said = program(WORKER.replace("int(sys.stdin.read() or SIZE)", str(3 << 20)))
    assert said.startswith("refused: the arguments of Process-1 would send 3.0 MiB to another process")
    assert "worker has" not in said


LOADER = """
from torch.utils.data import DataLoader
from trialplane import errors, policies

if __name__ == "__main__":
    policies.apply_all()
    loader = DataLoader([f"line {number:06d} of a corpus" for number in range(60_000)], batch_size=8, num_workers=2)
    try:
        print(next(iter(loader)))
    except errors.PolicyError as error:
        print(error)
"""


def test_the_workers_of_a_loader_are_refused_a_list_with_what_to_use_instead(program: Program) -> None:
    said = program(LOADER)
    assert said.startswith("the arguments of Process-1 would send ")
    assert "trialplane.training.lines.LineDataset for lines of text, a datasets.Dataset loaded from files for tables" in said


def test_without_the_policy_it_would_be_sent(program: Program) -> None:
    code = WORKER.replace("int(sys.stdin.read() or SIZE)", str(3 << 20)).replace(
        "policies.apply_all()", "multiprocessing.set_start_method('spawn')"
    )
    assert program(code) == f"worker has {3 << 20}\nexit 0"
