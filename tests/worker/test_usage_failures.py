"""Failures that every trial of a study would have: arguments that its program never takes, modules that are missing.

Not checked here: what a study makes of them (tests/controller/test_alike.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire.states import FailureClass
from trialplane.worker.setup import usage

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--what")
parser.add_argument("--lr", type=float)
parser.add_argument("--opt", choices=["sgd"])
given = parser.parse_args()
if given.what == "conditional":
    import there_is_no_such_module
def late():
    import there_is_no_such_module
if given.what == "late":
    late()
print("score=1")
"""
LACKS = """
import there_is_no_such_module
"""
FUNCTION = """
def run(ctx):
    import there_is_no_such_module
"""


def program(**changes: Any) -> Program:
    return Program(arguments=("{flags}",), metrics=(MetricSource(source="stdout"),), names=("score",), cwd="code", **changes)


@pytest.fixture
def script(tmp_path: Path) -> Any:
    with Bench(tmp_path, {"train": SCRIPT}, program=program(script="train.py")) as bench:
        yield bench


@pytest.mark.parametrize(
    ("what", "params", "certain"),
    [
        ("fails", {"unknown": 1}, True),
        ("fails", {"lr": "high"}, False),
        ("fails", {"opt": "lion"}, False),
        ("conditional", {}, False),
        ("late", {}, False),
    ],
)
def test_of_a_script(script: Bench, what: str, params: dict[str, Any], certain: bool) -> None:
    outcome = script.outcome(what, **params)
    assert outcome.failure in (FailureClass.ERROR, FailureClass.INVALID), outcome.message
    assert outcome.certain is certain, outcome.message


def test_values_that_are_refused_are_alike_whatever_they_are(script: Bench) -> None:
    first, second = (script.outcome("fails", lr=value) for value in ("high", "low"))
    assert first.message != second.message
    assert first.fingerprint == second.fingerprint != ""


def test_a_module_that_is_missing_at_the_top_of_a_script(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": LACKS}, program=program(script="train.py")) as bench:
        assert bench.outcome("fails").certain


@pytest.mark.parametrize("prefix", [(), ("env", "SEED=1")])
def test_of_a_command(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    with Bench(tmp_path, {"train": SCRIPT}, program=program(command=(*prefix, "python", "train.py"))) as bench:
        outcome = bench.outcome("fails", unknown=1)
    assert (outcome.failure, outcome.certain) == (FailureClass.INVALID, True)
    assert ": python train.py does not take its arguments: error: unrecognized arguments: --unknown" in outcome.message


def test_of_a_function_only_where_no_parameter_may_choose_what_is_imported(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": FUNCTION}) as bench:
        assert not bench.outcome("a text").certain
        assert not bench.outcome(True).certain, "it may choose what is imported"  # type: ignore[arg-type]
        assert bench.outcome(0.5).certain  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("usage: a [-h]\na: error: the following arguments are required: --data", True),
        ("Usage: a [OPTIONS]\nTry 'a --help' for help.\n\nError: No such option: --x", True),
        ("Usage: a [OPTIONS]\n\nError: Missing option '--data'.", True),
        ("Usage: a [OPTIONS]\n\nError: Invalid value for '--lr': 'x' is not a valid float.", False),
        ("usage: a [-h]\na: error: argument --lr: expected one argument", False),
    ],
)
def test_what_a_parser_says(text: str, certain: bool) -> None:
    assert usage.refusal_error("a", text).certain is certain


def test_an_option_without_its_value_is_a_boolean_that_another_format_writes() -> None:
    usage_text = f"usage: a [-h] {'[--width WIDTH] ' * 40}[-d DOUBLE]"
    error = usage.refusal_error("a", f"{usage_text}\na: error: argument -d/--double: expected one argument")
    assert "`--set 'arguments={items: flags, booleans: value}'` writes --double=True and --double=False" in str(error)
    error = usage.refusal_error("a", f"{usage_text}\na: error: argument --width: invalid int value: 'x'")
    assert "[--width WIDTH] [--width …; see" in str(error)


def test_a_message_of_typer_has_no_box_and_the_option_that_was_meant() -> None:
    rule = "─" * 30
    text = (
        "Usage: a [OPTIONS] {data}\nTry 'a --help' for help.\n"
        f"╭─ Error {rule}╮\n│ No such option: --learning_rate (Possible options: --learning-rate)   │\n╰{rule}╯\n"
    )
    error = usage.refusal_error("a", text)
    assert error.certain
    assert "a does not take its arguments: Error No such option: --learning_rate" in str(error)
    assert "did you mean --learning-rate?" in str(error) and "─" not in str(error), error


def test_a_nested_message_is_that_of_its_deepest_line() -> None:
    tried = "".join(f"    - Expected one of {name}\n" for name in "abcdefghij" * 5)
    text = f"usage: a [-h]\nerror: Parser key x:\n  Errors:\n{tried}        Option y is not accepted\n  Value: 3"
    error = usage.refusal_error("a", text)
    assert "a does not take its arguments: error: Parser key x: Option y is not accepted; " in str(error)


def test_the_dashes_of_an_option_make_no_other_similar() -> None:
    error = usage.refusal_error("a", "usage: a [--model M] [--lr_decay D]\na: error: unrecognized arguments: --lr=0.01")
    assert "did you mean" not in str(error) and "usage: a [--model M]" in str(error)
