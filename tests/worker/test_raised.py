"""Whatever a job raises is its error, with the line that raised it, and is not tried again: in trials, ranks and imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane import errors
from trialplane.job.program import Program
from trialplane.wire.states import FailureClass, TrialState

LINE = 41  # of the code below, which raises

CODE = """
import sys

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Number(Exception):
    def __str__(self):
        return 3

class Interrupts(BaseException):
    def __str__(self):
        raise KeyboardInterrupt

class Deep(Exception):
    def __str__(self):
        return str(self)

class Own(BaseException):
    pass

class Exits(Exception):
    def __str__(self):
        sys.exit(5)

RAISED = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "BaseException": lambda: BaseException("on purpose"),
    "GeneratorExit": GeneratorExit,
    "Own": Own,
    "Mute": Mute,
    "Number": Number,
    "Interrupts": Interrupts,
    "Deep": Deep,
    "Exits": Exits,
    "UnicodeError": lambda: UnicodeError("\\udcff\\x00\\x1b[31m"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), Mute()]),
}
def fails(what):
    raise RAISED[what]()

def run(ctx):
    if ctx.params["what"] == "well":
        return 1.0
    fails(ctx.params["what"])
"""
RAISED = (
    "KeyboardInterrupt", "BaseException", "GeneratorExit", "Own", "Mute", "Number", "Interrupts", "Deep", "Exits",
    "UnicodeError", "BaseExceptionGroup",
)  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("raised"), {"train": CODE}) as bench:
        yield bench


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("ranks"), {"train": CODE}, ranks=2, cpus=2) as bench:
        yield bench


def assert_told(outcome, name: str, place: str) -> None:
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.ERROR), outcome.message
    assert f"{name}" in outcome.message
    assert outcome.message.endswith(f"({place})")
    assert outcome.fingerprint == place
    assert "in fails" in outcome.traceback


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("which", ["bench", "ranks"])
def test_whatever_a_job_raises_is_its_error(request: pytest.FixtureRequest, which: str, name: str) -> None:
    one = request.getfixturevalue(which)
    assert_told(one.outcome(name), name, f"train.py:{LINE}")
    assert one.outcome("well").state is TrialState.COMPLETE


@pytest.mark.parametrize("name", RAISED)
def test_whatever_a_script_raises_is_its_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "code").mkdir()
    code = CODE + f"\nfails({name!r})\n"
    with Bench(tmp_path, {"train": code}, program=Program(script="train.py"), entrypoint="") as bench:
        assert_told(bench.outcome(""), name, f"train.py:{LINE}")


@pytest.mark.parametrize("name", RAISED)
def test_whatever_an_import_raises_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.EntrypointError, match=rf"{name}.*\(train.py:{LINE}\)"):
        Bench(tmp_path, {"train": CODE + f"\nfails({name!r})\n"})
