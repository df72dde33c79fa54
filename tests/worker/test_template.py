"""The warm template: what is imported once, when it is not forked, and what happens when it or its slot dies.

CUDA is played by a stub named torch in the job's folder: no machine of ours needs a GPU for this. Not checked here: the
ends of trials as such (test_slot.py), Ray's part (tests/study).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, alive, wait_until

from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import template

PLAIN = """
import os
import subprocess
import threading
from pathlib import Path

IMPORTED_BY = os.getpid()

def run(ctx):
    match ctx.params["what"]:
        case "hangs":
            child = subprocess.Popen(["sleep", "1000"])
            Path(ctx.params["file"]).write_text(f"{os.getpid()} {child.pid}")
            ctx.report(0, score=0.5)
            threading.Event().wait()
        case "leaves a thread":
            threading.Thread(target=threading.Event().wait).start()
        case "imported here":
            return float(IMPORTED_BY == os.getpid())
    return 1.0
"""

TORCH = """
import types

initialized = False
cuda = types.SimpleNamespace(is_initialized=lambda: initialized)

class Tensor: ...
class OutOfMemoryError(RuntimeError): ...
def set_num_threads(count): ...
def manual_seed(seed): ...
"""


def test_modules_are_imported_once(tmp_path: Path) -> None:
    with Bench(
        tmp_path,
        {"train": PLAIN, "slow_library": "import os\nprint('imported by', os.getpid())\n"},
        preload=("slow_library",),
    ) as bench:
        outcomes = [bench.outcome("imported here") for _ in range(3)]
        assert [outcome.metrics for outcome in outcomes] == [{"score": 0.0}] * 3
        assert {outcome.start_method for outcome in outcomes} == {"fork"}
        assert len({outcome.pid for outcome in outcomes}) == 3
        assert bench.slot_log().count("imported by") == 1


def test_a_slot_starts_without_the_models_of_a_job() -> None:
    """Pydantic would double the time that each slot and each template takes to start."""
    modules = "trialplane.worker.slot_process, trialplane.worker.template, trialplane.worker.ranks.rank"
    program = f"import sys, {modules}; print({{'pydantic', 'numpy', 'optuna'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def assert_spawned(bench: Bench, outcome: TrialOutcome, reason: str) -> None:
    assert outcome.state is TrialState.COMPLETE, outcome.message
    assert outcome.start_method == "spawn"
    assert f"attempt {outcome.number} was spawned, not forked: {reason}" in bench.slot_log()


def test_a_template_with_a_thread_is_not_forked(tmp_path: Path) -> None:
    code = PLAIN + "\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    with Bench(tmp_path, {"train": code}) as bench:
        assert len(bench.ready.unclean) == 1
        assert bench.ready.unclean[0].startswith("1 thread(s) are alive")
        assert_spawned(bench, bench.outcome("imported here"), "1 thread(s) are alive")
        assert bench.outcome("imported here").metrics == {"score": 1.0}, "a new interpreter, which imports for itself"


def test_a_template_that_initialized_cuda_is_not_forked(tmp_path: Path) -> None:
    code = PLAIN + "\nimport torch\ntorch.initialized = True\n"
    with Bench(tmp_path, {"train": code, "torch": TORCH}) as bench:
        assert bench.ready.unclean == ("CUDA is initialized",)
        assert_spawned(bench, bench.outcome("imported here"), "CUDA is initialized")


def test_torch_alone_does_not_hinder_a_fork(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": PLAIN + "\nimport torch\n", "torch": TORCH}) as bench:
        assert bench.ready.unclean == ()
        assert bench.outcome("imported here").start_method == "fork"


def test_cuda_out_of_memory_has_a_class_of_its_own(tmp_path: Path) -> None:
    code = "import torch\ndef run(ctx):\n    raise torch.OutOfMemoryError('CUDA out of memory')\n"
    with Bench(tmp_path, {"train": code, "torch": TORCH}) as bench:
        assert bench.outcome("").failure is FailureClass.OOM


@pytest.mark.parametrize("spawned", [False, True])
def test_a_thread_that_a_job_forgets_does_not_keep_its_trial(tmp_path: Path, spawned: bool) -> None:
    code = PLAIN + ("\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" if spawned else "")
    with Bench(tmp_path, {"train": code}) as bench:
        outcome = bench.outcome("leaves a thread", timeout=300)
        assert (outcome.state, outcome.exit_code) == (TrialState.COMPLETE, 0)
        assert outcome.start_method == ("spawn" if spawned else "fork")


def test_a_killed_template_loses_its_trial_and_the_slot_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with Bench(tmp_path, {"train": PLAIN}) as bench:
        first = bench.slot.run(bench.request("hangs", file=str(file)))
        assert first.outcome is None
        (template,) = bench.templates()
        trial, child = (int(pid) for pid in file.read_text().split())
        os.kill(template, signal.SIGKILL)
        outcome = bench.slot.answer().outcome
        assert outcome is not None
        assert (outcome.state, outcome.failure, outcome.exit_code) == (TrialState.FAILED, FailureClass.LOST, None)
        assert "template of slot 0-1" in outcome.message
        assert outcome.metrics == {"score": 0.5}
        wait_until(lambda: not alive(trial), "the trial is gone with its template")
        wait_until(lambda: not alive(child), "what the trial started is gone too")
        assert bench.outcome("imported here").state is TrialState.COMPLETE
        assert bench.templates() != [template]


def test_a_template_killed_between_trials_is_replaced(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": PLAIN}) as bench:
        (template,) = bench.templates()
        os.kill(template, signal.SIGKILL)
        wait_until(lambda: not alive(template), "the template is gone")
        assert bench.outcome("imported here").state is TrialState.COMPLETE


PROGRAM = """
import sys
from trialplane.worker.slot import Slot
from trialplane.wire.records import SlotConfig, TrialRequest

root, file = sys.argv[1:]
config = SlotConfig(run="toy", code=root + "/code", entrypoint="train:run", root=root + "/run", cache=root)
slot = Slot(config, "0-1")
slot.start()
print(slot.template.pid, flush=True)
slot.run(TrialRequest("toy", 0, 1, 0, {"what": "hangs", "file": file}, 1, ("score",)))
print("reported", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("template_too", [False, True])
def test_a_killed_slot_leaves_nothing_alive(tmp_path: Path, template_too: bool) -> None:
    """The slot is a process of its own here, as it is below Ray. Without both, the kernel alone ends the trial."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PLAIN)
    file = tmp_path / "pids"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slot:
        assert slot.stdout is not None
        template = int(slot.stdout.readline())
        assert slot.stdout.readline() == "reported\n"
        trial, child = (int(pid) for pid in file.read_text().split())
        assert alive(trial)
        if template_too:
            os.kill(template, signal.SIGSTOP)  # so that it cannot notice that its slot is gone
        slot.kill()
        slot.wait()
        if template_too:
            os.kill(template, signal.SIGKILL)
    wait_until(lambda: not alive(template) and not alive(trial), "template and trial are gone")
    if template_too:
        os.kill(child, signal.SIGKILL)  # nobody was left to know of it; in a pod it ends with the pod
    else:
        wait_until(lambda: not alive(child), "what the trial started is gone")


def test_the_environment_of_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies' variables, the threads of its cores, and what the config says."""
    monkeypatch.setenv("TRIALPLANE_PICKLE_LIMIT", "77")
    code = (
        "import json, os, pathlib\n"
        "def run(ctx):\n"
        "    pathlib.Path(ctx.params['file']).write_text(json.dumps(dict(os.environ)))\n"
        "    return 1.0\n"
    )
    file = tmp_path / "environment"
    with Bench(tmp_path, {"train": code}, cpus=3, env={"FROM_CONFIG": "yes"}) as bench:
        bench.run("", file=str(file))
    import json

    found = json.loads(file.read_text())
    wanted = {
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        "TRIALPLANE_START_METHOD": "spawn",
        "TRIALPLANE_TRANSPORT": "numpy",
        "TRIALPLANE_PICKLE_LIMIT": "77",  # the user's own
        "OPENBLAS_NUM_THREADS": "3",
        "OMP_NUM_THREADS": "3",
        "FROM_CONFIG": "yes",
        "TRIALPLANE_RUN": "toy",
        "TRIALPLANE_SEED": "42",
    }
    assert {name: found.get(name) for name in wanted} == wanted


def test_a_process_that_just_starts_may_be_a_resource_tracker() -> None:
    """Its command line is empty, as that of a process that has ended. Such trackers were killed with their trials."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert template._may_be_tracker(process.pid)
    process.wait()
    assert not template._may_be_tracker(os.getpid())
