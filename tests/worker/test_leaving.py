"""The preStop hook: it finds the trials of slots, lets them stop, and waits until they are gone.

Not checked here: what a trial does about it (test_ranks.py), Kubernetes' part (tests/e2e).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, alive

from trialplane.wire.states import FailureClass
from trialplane.worker import leaving

MODULES = {"train": (Path(__file__).parent / "ranks" / "train.py").read_text()}
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
COMMAND = [sys.executable, "-m", "trialplane.worker.leaving"]
BELOW = ["--below", str(os.getpid())]


def test_nothing_to_wait_for(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES):
        assert leaving.trials(os.getpid()) == []
        assert subprocess.run([*COMMAND, *BELOW], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(("ranks", "spawned"), [(1, False), (1, True), (3, False)])
def test_a_trial_saves_itself_before_its_pod_ends(tmp_path: Path, ranks: int, spawned: bool) -> None:
    code = MODULES["train"] + (THREAD if spawned else "")
    with Bench(tmp_path, {"train": code}, ranks=ranks) as bench:
        event = bench.slot.run(bench.request("stops"))
        (trial,) = leaving.trials(os.getpid())
        done = subprocess.run([*COMMAND, "50", *BELOW], check=False, timeout=60, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert not alive(trial)
        outcome = bench.slot.answer().outcome
        assert event.outcome is None
        assert outcome is not None
        assert outcome.start_method == ("spawn" if spawned else "fork")
        assert (outcome.failure, outcome.message) == (
            FailureClass.LOST,
            "stopped by SIGTERM after step 7, with a checkpoint",
        )
        assert outcome.pid == trial


def test_a_trial_that_does_not_end_is_named(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES) as bench:
        bench.slot.run(bench.request("asks_and_hangs"))
        (trial,) = leaving.trials(os.getpid())
        done = subprocess.run([*COMMAND, "0.2", *BELOW], check=False, timeout=60, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"1 trial(s) had not ended after 0.2 s: pid {trial}\n")
        bench.slot.kill(FailureClass.STOPPED, "enough")
        assert bench.slot.answer().outcome is not None


def test_it_loads_nothing_heavy() -> None:
    program = "import sys, trialplane.worker.leaving; print(*(m for m in sys.modules if m.startswith('trialplane')))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert set(said) == {"trialplane", "trialplane.worker", "trialplane.worker.leaving"}
