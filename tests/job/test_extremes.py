"""Job files too deep, too large or too many to be meant: each ends in an issue, and none in the end of the process.

Not checked here: odd values in fields of a usual size (test_odd_files.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane import errors
from trialplane.job import document, load, space
from trialplane.job.draft import Draft, Origin

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\n"
DEEP = "[" * 30_000
DEEP_TEXTS = [DEEP, DEEP + "]" * 30_000, "{a: " * 30_000, "- " * 30_000 + "1", "? " * 30_000]


@pytest.mark.parametrize("deep", DEEP_TEXTS, ids=["[", "[]", "{", "-", "?"])
def test_depth_is_bounded_before_anything_is_built(folder: Path, deep: str) -> None:
    indent = "params:\n  " if deep[0] in "-?" else "params: "
    (folder / "job.yaml").write_text(HEAD + indent + deep + "\n")
    [(field, source, line, message)] = found(folder)
    assert (field, source) == ("file", "jobs/demo/job.yaml")
    assert line >= 3
    assert "is nested more than 50 levels deep" in message


def test_depth_is_bounded_in_set_and_in_the_environment(folder: Path) -> None:
    [(field, _, _, message)] = found(folder, sets=[f"params.epochs={DEEP}"])
    assert (field, "levels deep" in message) == ("params.epochs", True)
    [(field, source, _, message)] = found(folder, environ={"HPO_EPOCHS": DEEP})
    assert (field, source, "must be a number" in message) == ("params.epochs", "HPO_EPOCHS", True)


def test_what_is_nested_as_jobs_are_is_taken(folder: Path) -> None:
    (folder / "job.yaml").write_text(HEAD + "params: {a: " + "[" * 40 + "]" * 40 + "}\n")
    load.load_job(folder)


@pytest.mark.parametrize("number", ["9" * 400, "0x" + "f" * 400, "9" * 5000, "0x" + "f" * 5000, "-" + "1" * 5000])
def test_a_number_of_hundreds_of_digits_is_no_number(folder: Path, number: str) -> None:
    [(field, _, _, message)] = found(folder, sets=[f"trials={number}"])
    assert field == "trials"
    assert message.endswith("digits; put it in quotes"), "as 1e4999 it would be infinite, which is refused too"
    [(field, _, _, _)] = found(folder, sets=[f"enqueue.{number}.lr=1"])
    assert field.startswith("enqueue")


@pytest.mark.parametrize("amount", ["9" * 310, "0x" + "f" * 260, f"{'9' * 310}Gi", "9" * 299, f"0.{'1' * 400}Gi"])
def test_an_amount_of_hundreds_of_digits_is_refused(folder: Path, amount: str) -> None:
    [(field, _, _, message)] = found(folder, sets=[f"resources.memory={amount}"])
    assert field == "resources.memory"
    assert "digits; put it in quotes" in message or "is not an amount of memory" in message
    assert len(message) < 200


def test_a_place_of_a_thousand_levels_is_refused(folder: Path) -> None:
    for field in (".".join(["a"] * 1500), ".".join(["params", *["epochs"] * 1500])):
        (named, _, _, message), *_ = found(folder, sets=[f"{field}=1"])
        assert (named, message) == (field.partition(".")[0], "has a field more than 50 levels deep")


def test_a_variable_for_a_place_that_is_no_number(folder: Path) -> None:
    """As Python reads it, ² is a digit and no number."""
    (folder / "job.yaml").write_text(f"{HEAD}environment: {{SCORE: objectives.².metric}}\n")
    [(field, _, _, message)] = found(folder)
    assert field.startswith("environment")
    assert "'²'" in message


def test_a_file_without_an_end_is_no_job() -> None:
    with pytest.raises(errors.SpecError, match="more than 16 MiB"):
        document.read(Path("/dev/zero"))


def test_a_pipe_that_is_open_already_is_read() -> None:
    """`--params <(platform best)`."""
    read, write = os.pipe()
    os.write(write, b"lr: 0.1\n")
    os.close(write)
    assert document.read(Path(f"/dev/fd/{read}")).data == {"lr": 0.1}
    os.close(read)


@pytest.mark.parametrize("given", ["\udcff=1", "params.epochs=\udcff", "params.\udcff=1"])
def test_what_is_no_text_is_said(folder: Path, given: str) -> None:
    assert [message for *_, message in found(folder, sets=[given])] == ["is not UTF-8 text"]


class Compared(str):
    """A string that counts how often it is compared."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return super().__eq__(other)


def test_choices_are_not_compared_each_with_each() -> None:
    choices = [Compared(index) for index in range(2000)]
    space.CategoricalParameter.model_validate({"type": "categorical", "choices": choices})
    assert Compared.count < 10 * len(choices)


def test_layers_do_not_look_at_all_of_a_file_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many origins are looked at grows with the fields that are laid, and not with their square."""
    count = 300
    text = HEAD + "params: {x: 1}\n"
    layer = document.parse("params: {" + ", ".join(f"p{index}: 1" for index in range(count)) + "}", "layer")
    base = Draft.from_document(document.parse(text, "file"))
    looks = 0

    class Counted(dict):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looks
            looks += len(self)
            return super().__iter__()

    base.origins = Counted(base.origins)
    base.merge(layer.data, {place: Origin("layer", line) for place, line in layer.lines.items() if place})
    assert len(base.data["params"]) == count + 1
    assert looks < 10 * count


def test_many_complaints_are_counted() -> None:
    many = errors.SpecError([errors.Issue(("field",), "x", "job.yaml", line) for line in range(1, 61)])
    lines = str(many).splitlines()
    assert len(lines) == 1 + errors.MOST_ISSUES + 1
    assert lines[-1] == "  and 10 more"
    assert len(many.issues) == 60
