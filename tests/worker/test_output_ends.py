"""Where the output of a script ends: what it prints until it exits is its own, what it leaves running prints for nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire.states import FailureClass, TrialState

SCRIPT = """
import atexit, faulthandler, os, sys

def child_after_the_end():
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(writes)
        os.read(reads, 1)  # until the script is gone
        while True:
            os.write(1, b"score=99\\n")
    os.close(reads)
    print("score=0.5")

def hook():
    atexit.register(lambda: print("score=0.75"))
    print("score=0.5")

def hook_and_child():
    hook()
    child_after_the_end()

def unfinished_line():
    print("score=0.5", end="")

def fails_with_a_number():
    print("score=0.5")
    sys.exit(5)

def fails_later():
    print("step 1 score=0.5")
    print("step 2 loss=3")
    sys.exit(5)

def dumps_its_stacks():
    print("score=0.5")
    faulthandler.dump_traceback(all_threads=True)
    os.abort()

if __name__ == "__main__":
    globals()[sys.argv[1].removeprefix("--what=")]()
"""


def bench(root: pytest.TempPathFactory, **fields: object) -> Bench:
    program = Program(metrics=(MetricSource("stdout"),), names=("score",))
    return Bench(root.mktemp("slot"), {"train": SCRIPT}, program=dataclasses.replace(program, **fields))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory, script="train.py", arguments=("{flags}",)) as made:
        yield made


@pytest.mark.parametrize(
    ("what", "score"),
    [("child_after_the_end", 0.5), ("hook", 0.75), ("hook_and_child", 0.75), ("unfinished_line", 0.5)],
)
def test_a_script_prints_until_it_exits(shared: Bench, what: str, score: float) -> None:
    outcome = shared.outcome(what)
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": score})


def test_a_trial_that_fails_has_the_newest_value_of_each_metric(shared: Bench) -> None:
    assert shared.outcome("fails_later").metrics == {"score": 0.5, "loss": 3.0}


@pytest.mark.parametrize(
    ("what", "failure"), [("fails_with_a_number", FailureClass.ERROR), ("dumps_its_stacks", FailureClass.CRASHED)]
)
def test_how_a_script_fails_is_no_metric(shared: Bench, what: str, failure: FailureClass) -> None:
    """Neither `SystemExit: 5`, nor the `(total: 1)` of a dump of stacks; and what it printed before stays."""
    outcome = shared.outcome(what)
    assert (outcome.failure, outcome.metrics) == (failure, {"score": 0.5})
