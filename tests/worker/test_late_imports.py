"""What a trial imports that its template could have: which modules, which seconds count, and when it is worth a word.

Not checked here: that the advice comes into the run's status (tests/controller/test_endings.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import SlotConfig
from trialplane.worker import advice

CONFIG = SlotConfig("toy", "", "train:run", "", "", preload=("numpy",))


class Clock:
    """A clock that goes on by this much with each look at it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`late_one.part` and `late_two`, which import a module each."""
    (tmp_path / "late_one").mkdir()
    files = {
        "late_one/__init__": "import late_below_a",
        "late_one/part": "import late_below_b",
        "late_two": "import late_below_c",
    }
    for name, text in {**files, **{f"late_below_{letter}": "" for letter in "abc"}}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


def watch(monkeypatch: pytest.MonkeyPatch, step: float) -> advice.LateImports:
    clock = Clock(step)
    watched = advice.LateImports()
    with monkeypatch.context() as patched:
        patched.setattr(advice, "time", clock)
        with watched.watch():
            importlib.import_module("late_one.part")
            clock.now += 1000.0  # the job's own work
            importlib.import_module("late_two")
    return watched


@pytest.mark.usefixtures("packages")
def test_the_modules_that_were_asked_for_and_not_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    words = watch(monkeypatch, 0.5).advice(CONFIG)
    assert "`preload: [numpy, late_one.part, late_two]`" in words
    assert "spends 1.5 s on imports" in words, "three modules were imported by others; the work between is none"
    assert not any(isinstance(finder, advice.LateImports) for finder in sys.meta_path)


@pytest.mark.usefixtures("packages")
def test_little_is_not_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(monkeypatch, 0.2).advice(CONFIG) == ""


def test_a_trial_of_a_slot_is_watched(tmp_path: Path) -> None:
    code = """
import sys
def run(ctx):
    watching = any(type(finder).__name__ == "LateImports" for finder in sys.meta_path)
    return {"score": float(watching)}
"""
    with Bench(tmp_path, {"train": code}) as bench:
        assert bench.outcome("").metrics == {"score": 1.0}


def test_a_pool_that_each_trial_of_a_script_starts_anew_is_worth_a_word(tmp_path: Path) -> None:
    text = (
        "import joblib, sys\n"
        "joblib.Parallel(n_jobs=int(sys.argv[1]))(joblib.delayed(abs)(-1) for _ in range(4))\n"
        "print('score=1.0')\n"
    )
    program = Program(script="script.py", arguments=("{jobs}",), metrics=(MetricSource("stdout"),), names=("score",))
    with Bench(tmp_path, {"script": text}, program=program) as bench:
        words = [bench.outcome("", jobs=jobs).advice for jobs in (1, 2)]
    assert words[0] == "" and "each trial starts a pool of processes of its own (joblib, n_jobs)" in words[1]


def test_a_pool_that_each_trial_starts_anew_is_worth_a_word(tmp_path: Path) -> None:
    pool = (
        "import abc, joblib\n"
        "def run(ctx):\n"
        "    joblib.Parallel(n_jobs=ctx.params['jobs'])(joblib.delayed(abs)(-1) for _ in range(4))\n"
        "    return {'score': 1.0}\n"
    )
    with Bench(tmp_path, {"train": pool}) as bench:
        words = [bench.outcome("run", jobs=jobs).advice for jobs in (1, 2)]
    assert "pool of processes" not in words[0]
    assert "each trial starts a pool of processes of its own (joblib, n_jobs)" in words[1]
