"""`platform explain`: what it prints of a field, and its examples, which are the documentation's.

Not checked here: the fields (tests/job/test_fields.py).
"""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner, Result

from trialplane.cli import main
from trialplane.job import document, fields, kinds, options


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(main.platform, ["explain", *arguments], standalone_mode=False)


def test_a_field_is_shown_with_an_example_of_the_guides() -> None:
    text = explain("budget").output
    assert text.startswith("budget: Limits on time and failures.\n\ntype     mapping\n")
    head, _, example = text.partition("\nExample:\n")
    assert "max_failed" in head
    assert "kinds" not in head.partition("\nfield ")[2].splitlines()[0], "all kinds have them all"
    example, _, more = example.partition("\n\n")
    assert set(yaml.safe_load(example)) == {"budget"}
    assert more.startswith("More: `platform docs ")


def test_all_fields_are_listed_with_their_kinds() -> None:
    lines = explain().output.splitlines()
    assert lines[0].split() == ["field", "type", "default", "kinds", "meaning"]
    assert any(line.startswith("trials") and " hpo " in line for line in lines)


def test_programs_can_read_it() -> None:
    field = json.loads(explain("trials", "-o", "json").output)
    assert (field["field"], field["type"], field["default"], field["kinds"]) == ("trials", "integer", "20", ["hpo"])
    assert field["example"]["trials"] > 0
    assert "studies" in field["pages"] or len(field["pages"]) == 3


@pytest.mark.parametrize("field", [field.path for field in fields.explain("").fields])
def test_the_loader_reads_each_example_as_it_is(field: str) -> None:
    example = json.loads(explain(field, "-o", "json").output)["example"]
    assert example is not None
    _, _, text = explain(field).output.partition("\nExample:\n")
    assert document.parse(text.partition("\n\n")[0], "job.yaml").data == example


@pytest.mark.parametrize(
    ("field", "example", "shown"),
    [
        ("start.run", "Example", "start"),  # in profiles only
        ("space.any.when", "Example", "space"),
        ("budget.exit_timeout", "Example of budget", "budget"),
    ],
)
def test_a_field_below_another_has_an_example_too(field: str, example: str, shown: str) -> None:
    _, _, text = explain(field).output.partition(f"\n{example}:\n")
    yaml_text, _, more = text.partition("\n\n")
    value = document.parse(yaml_text, "job.yaml").data
    assert list(value) == [shown] and value[shown]
    assert shown != "space" or [list(parameter) for parameter in value["space"].values()] == [["when"]]
    assert more.startswith("More: ")


def test_an_item_of_a_list_is_shown_whole() -> None:
    """A part of it would be refused, as a source of metrics without `from`."""
    for field in ("metrics.pattern", "metrics.path"):
        (item,) = json.loads(explain(field, "-o", "json").output)["example"]["metrics"]
        assert {"from", field.removeprefix("metrics.")} <= item.keys()


def test_only_a_name_of_your_choice_is_said_to_be_one() -> None:
    sentence = "A value with a name of your choice."
    assert f": {sentence}\n" in explain("environment.X").output
    for field, choices in (("sampler", options.SAMPLERS), ("pruner", options.PRUNERS)):
        # Of each set of options one is explained, as the others are in the same table.
        for name in {"name", *(min(choice.options) for choice in choices.values() if choice.options)}:
            assert sentence not in explain(f"{field}.{name}").output
    assert explain("pruner.promote").output.startswith("pruner.promote: Whether to pause trials at rungs")
    assert explain("pruner.asha.max").output.startswith("pruner.asha.max: auto: promote beyond")


def test_the_example_of_notifications_is_valid() -> None:
    job = {
        "name": "toy",
        "kind": "hpo",
        "entrypoint": "train:run",
        "objectives": [{"metric": "loss", "direction": "minimize"}],
    }
    example = json.loads(explain("notify", "-o", "json").output)["example"]
    assert kinds.read({**job, "space": {"x": {"type": "float", "low": 0, "high": 1}}, **example}).notify


def test_an_unknown_field_says_what_there_is() -> None:
    result = explain("trails")
    assert str(result.exception).startswith("a job has no field 'trails'; did you mean trials")
