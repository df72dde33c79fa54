"""Functions in `preload` are called once per slot, with the job's fixed parameters, and trials inherit what they load.

Not checked: modules in `preload` (test_template.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane import errors

TRAIN = """
import os
LOADED = []

def load(params, cache):
    LOADED.append((os.getpid(), params["size"], cache.name))

def run(ctx):
    ((pid, size, cache),) = LOADED
    return {"score": float(size), "by_template": float(pid == os.getppid()), "same": float(cache == ctx.cache.name)}
"""
FAILS = """
def load(params, cache):
    raise ValueError("no such model")

def run(ctx):
    return {"score": 1.0}
"""


def test_trials_inherit_what_a_function_has_loaded_in_the_template(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": TRAIN}, preload=("json", "train:load"), params={"size": 3}) as slot:
        for _ in range(2):
            assert slot.outcome("").metrics == {"score": 3.0, "by_template": 1.0, "same": 1.0}


def test_a_trial_in_a_new_process_calls_it_itself(tmp_path: Path) -> None:
    threads = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    with Bench(tmp_path, {"train": threads + TRAIN}, preload=("train:load",), params={"size": 3}) as slot:
        outcome = slot.outcome("")
        assert outcome.start_method == "spawn"
        assert outcome.metrics == {"score": 3.0, "by_template": 0.0, "same": 1.0}


@pytest.mark.parametrize(("code", "name", "said"), [(FAILS, "train:load", "no such model"), (TRAIN, "train:lode", "lode")])
def test_a_function_that_fails_ends_the_run_before_a_trial_starts(tmp_path: Path, code: str, name: str, said: str) -> None:
    with pytest.raises(errors.EntrypointError, match=said):
        Bench(tmp_path, {"train": code}, preload=(name,), params={"size": 3})
