"""Commands as trials of a real slot: how each of their ends is judged, and that all of a command ends with its trial.

Not checked here: scripts (test_programs.py), how arguments are made (tests/job/test_arguments.py).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, alive, prune_at, wait_until

from trialplane.job.program import MetricSource, Program
from trialplane.wire.states import FailureClass, TrialState

STDOUT = (MetricSource("stdout"),)
SHELL = """#!/bin/sh
echo "score=$1"
case "$2" in
  fails) echo "no disk left" >&2; exit 3 ;;
  killed) kill -9 $$ ;;
  slow) echo $$ > "$3"; i=0; while true; do echo "step $i score=$i"; i=$((i + 1)); sleep 0.02; done ;;
  python) python -c 'import sys; print("prefix", sys.prefix)' ;;
  saves) python saves.py "$3"; exit 1 ;;
esac
"""


SAVES = """
import signal, sys, time
from pathlib import Path

def save(*_):
    time.sleep(0.3)
    Path(sys.argv[1] + ".saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
Path(sys.argv[1]).touch()
while True:
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("shell")
    program = Program(command=("./go.sh", "{x}", "{what}"), arguments=("{file}",), metrics=STDOUT, names=("score",))
    made = Bench(root, {}, program=program)
    go = Path(made.config.code, "go.sh")
    go.write_text(SHELL)
    go.chmod(0o755)
    Path(made.config.code, "saves.py").write_text(SAVES)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("what", "failure", "message"),
    [
        ("works", None, ""),
        ("fails", FailureClass.ERROR, "CommandFailed: ./go.sh ended with exit code 3: no disk left"),
        ("killed", FailureClass.CRASHED, "the process was killed by SIGKILL"),
    ],
)
def test_how_a_command_ends(shell: Bench, what: str, failure: FailureClass | None, message: str) -> None:
    outcome = shell.outcome(what, x=0.5, file="")
    assert outcome.failure is failure and message in outcome.message
    assert outcome.metrics["score"] == 0.5


def test_a_parameter_in_a_command_is_no_flag_as_well(tmp_path: Path) -> None:
    program = Program(command=("echo", "score={x}"), arguments=("{flags}", "lr={lr}"), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {}, program=program) as bench:
        outcome = bench.outcome("works", x=0.5, lr=0.25, width=4)
        assert "score=0.5 --what=works --width=4 lr=0.25\n" in bench.log(outcome)


def test_a_file_that_the_job_does_not_read_is_named_for_every_trial(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo score=1 >run_{x}.log")
    program = Program(command=command, metrics=(MetricSource("file", path="run_48.log"),), names=("score",))
    with Bench(tmp_path, {}, program=program) as bench:
        outcome = bench.outcome("works", x=96)
        assert '{from: file, path: "run_*.log"}' in outcome.message


def test_a_command_finds_the_interpreter_of_the_trial(shell: Bench) -> None:
    outcome = shell.outcome("python", x=1, file="")
    assert f"prefix {sys.prefix}" in shell.log(outcome)


def test_what_a_command_has_started_may_save_itself(shell: Bench, tmp_path: Path) -> None:
    file = tmp_path / "begun"
    event = shell.slot.run(shell.request("saves", x=1, file=str(file)))
    wait_until(file.exists, "the script of the command runs")
    shell.slot.stop("the run was paused")
    outcome = prune_at(shell, 10**6, event)
    assert outcome.failure is FailureClass.LOST and file.with_suffix(".saved").exists(), outcome.message


@pytest.mark.parametrize("end", ["prune", "stop", "kill"])
def test_a_command_ends_with_its_trial(shell: Bench, tmp_path: Path, end: str) -> None:
    file = tmp_path / "pid"
    event = shell.slot.run(shell.request("slow", x=0, file=str(file), prunable=end == "prune"))
    wait_until(file.exists, "the command runs")
    ends: dict[str, Callable[[], object]] = {
        "prune": lambda: None,
        "stop": lambda: shell.slot.stop("the run was paused"),
        "kill": lambda: shell.slot.kill(FailureClass.TIMEOUT, "too long"),
    }
    thread = threading.Thread(target=ends[end])
    thread.start()
    outcome = prune_at(shell, 3 if end == "prune" else 10**6, event)
    thread.join()
    assert not alive(int(file.read_text()))
    assert (outcome.state, outcome.failure) == {
        "prune": (TrialState.PRUNED, None),
        "stop": (TrialState.FAILED, FailureClass.LOST),
        "kill": (TrialState.FAILED, FailureClass.TIMEOUT),
    }[end]
