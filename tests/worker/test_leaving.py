"""The preStop hook: it finds the trials of slots, lets them stop, and waits until they are gone.

Not checked here: what a trial does about it (test_ranks.py), Kubernetes' part (tests/e2e).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, alive, wait_until

from trialplane.training import process
from trialplane.wire.states import FailureClass
from trialplane.worker import leaving

MODULES = {"train": (Path(__file__).parent / "ranks" / "train.py").read_text()}
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
COMMAND = [sys.executable, "-m", "trialplane.worker.leaving"]
BELOW = ["--below", str(os.getpid())]


def test_nothing_to_wait_for(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES):
        assert leaving.trial_parents(os.getpid()) == {}
        assert subprocess.run([*COMMAND, *BELOW], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(("ranks", "spawned"), [(1, False), (1, True), (3, False)])
def test_a_trial_saves_itself_before_its_pod_ends(tmp_path: Path, ranks: int, spawned: bool) -> None:
    code = MODULES["train"] + (THREAD if spawned else "")
    with Bench(tmp_path, {"train": code}, ranks=ranks) as bench:
        event = bench.slot.run(bench.request("stops"))
        (trial,) = leaving.trial_parents(os.getpid())
        done = subprocess.run([*COMMAND, "50", *BELOW], check=False, timeout=300, capture_output=True, text=True)
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
        (trial,) = leaving.trial_parents(os.getpid())
        done = subprocess.run([*COMMAND, "0.2", *BELOW], check=False, timeout=300, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"1 trial(s) had not ended after 0.2 s: pid {trial}\n")
        bench.slot.kill(FailureClass.STOPPED, "enough")
        assert bench.slot.answer().outcome is not None


SLOW_SAVE = """
import os, time
from pathlib import Path

def run(ctx):
    ctx.stopping
    ctx.report(1, score=0.5)
    while not ctx.stopping:
        time.sleep(0.01)
    Path(ctx.params["file"] + ".told").touch()
    while os.path.exists(f"/proc/{ctx.params['slot']}/cwd"):  # not of a zombie
        time.sleep(0.01)
    time.sleep(ctx.params["saving"])
    Path(ctx.params["file"]).touch()
    raise ctx.stopped(7)
"""
SLOT = """
import os, sys
from trialplane.worker.slot import Slot
from trialplane.wire.records import SlotConfig, TrialRequest

root, saving, file = sys.argv[1:]
slot = Slot(SlotConfig(run="toy", code=root + "/code", entrypoint="train:run", root=root + "/run", cache=root), "0-1")
slot.start()
slot.run(TrialRequest("toy", 0, 1, 0, {"file": file, "saving": float(saving), "slot": os.getpid()}, 1, ("score",)))
print("reported", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("told", [True, False])
def test_a_trial_that_was_told_saves_itself_though_its_slot_is_gone(tmp_path: Path, told: bool) -> None:
    """As Ray ends a slot whose head was removed with its pod; one that nobody told ends with its slot."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SLOW_SAVE)
    file = tmp_path / "saved"
    command = [sys.executable, "-c", SLOT, str(tmp_path), "2" if told else "100", str(file)]
    environ = {**os.environ, "TRIALPLANE_GRACE": "50" if told else "0.2", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as slot:
        assert slot.stdout is not None
        assert slot.stdout.readline() == "reported\n"
        ((trial, template),) = leaving.trial_parents(slot.pid).items()
        if told:
            hook = subprocess.Popen([*COMMAND, "50", "--below", str(slot.pid)])
        else:
            os.kill(trial, signal.SIGTERM)
        wait_until(Path(f"{file}.told").exists, "it was told")
        slot.kill()
        slot.wait()
    if told:
        again = [*command[:-1], str(tmp_path / "again")]
        with subprocess.Popen(again, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "reported\n"
            assert file.exists(), "the pod's next slot has begun beside a trial that saves itself"
            following.kill()
        assert hook.wait(300) == 0
    wait_until(lambda: not alive(template) and not alive(trial), "template and trial are gone")
    assert file.exists() is told


SESSIONS = """
import os, time

def run(ctx):
    child = os.fork()
    if not child:
        os.setsid()
        while True:
            time.sleep(1)
    ctx.report(1, score=0.5)
    while not ctx.stopping:
        time.sleep(0.01)
    time.sleep(0.5)  # what saving takes
    raise ctx.stopped(7)
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_a_trial_has_forked_into_a_session_of_its_own_is_no_trial(tmp_path: Path) -> None:
    """Else the trial is taken for a template, and dies of the signal for one before it has saved itself."""
    with Bench(tmp_path, {"train": SESSIONS}) as bench:
        bench.slot.run(bench.request(""))
        [trial] = leaving.trial_parents(os.getpid())
        wait_until(lambda: os.getsid(children(trial)[0]) == children(trial)[0], "its child has a session of its own")
        assert subprocess.run([*COMMAND, "50", *BELOW], check=False, timeout=300).returncode == 0
        outcome = bench.slot.answer().outcome
        assert outcome is not None
        assert outcome.message == "stopped by SIGTERM after step 7, with a checkpoint"


def test_a_slot_that_is_closed_ends_its_trial_at_once_and_all_that_this_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its template does not wait, as for one whose slot is lost, until it is killed before it can end the rest."""
    monkeypatch.setenv("TRIALPLANE_GRACE", "50")
    monkeypatch.setattr("trialplane.worker.slot.CLOSE_PATIENCE", 40.0)
    monkeypatch.setattr(process, "kill_tree", lambda *_: pytest.fail("its template has waited"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = SESSIONS + "\nimport sys\nsys.modules['__main__'].REMOVAL_NOTICE = 50.0  # of the template\n"
    with Bench(tmp_path, {"train": code}) as bench:
        bench.slot.run(bench.request(""))
        [trial] = [pid for pid, template in leaving.trial_parents(os.getpid()).items() if template in children(os.getpid())]
        [child] = children(trial)
        bench.slot.close()
        assert not alive(trial) and not alive(child)


def test_it_loads_nothing_heavy() -> None:
    program = "import sys, trialplane.worker.leaving; print(*(m for m in sys.modules if m.startswith('trialplane')))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert set(said) == {"trialplane", "trialplane.worker", "trialplane.worker.leaving"}
