"""Values of a settings file, and its text with others in their place, as PyYAML and json read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from trialplane.job import settings

YAML = """\
# of all stages
base: &base
  seed: 1  # of Python's generators
train:
  lr: &lr 0.1 # of Adam
  name: 'a: b'
  sizes:
  - 1
  - 2 # the second

  act:
  text: |
    a
    b
  flow: [1, 2]
  empty: {}
  again: *lr
  <<: *base
other: x
"""
VALUES: dict[str, Any] = {
    "base.seed": 7,
    "train.lr": 1e-05,
    "train.name": "c\"d: 'é' #",
    "train.sizes": [3.5, 1e-7, "x"],
    "train.act": "relu",
    "train.text": "one",
    "train.flow": [True, None],
    "train.empty": {"a": 1e20},
    "other": False,
}


def test_each_value_is_replaced_where_it_is() -> None:
    assert set(settings.spans(YAML)) == set(VALUES)
    for name, value in VALUES.items():
        text = settings.replaced(YAML, {name: value})
        loaded = yaml.safe_load(text)
        for part in name.split("."):
            loaded = loaded[part]
        assert loaded == value and type(loaded) is type(value), text
    text = settings.replaced(YAML, VALUES | {"unknown": 1})
    loaded = yaml.safe_load(text)
    assert loaded["train"] == {name[6:]: value for name, value in VALUES.items() if name.startswith("train.")} | {
        "again": 1e-05,
        "seed": 7,
    }
    for comment in ("# of all stages", "# of Python's generators", "# of Adam"):
        assert comment in text


def test_json_stays_json() -> None:
    text = json.dumps({"lr": 0.1, "model": {"sizes": [1, 2], "name": "a"}}, indent=1)
    replaced = settings.replaced(text, {"lr": 1e-05, "model.sizes": [4], "model.name": 'b"'})
    assert json.loads(replaced) == {"lr": 1e-05, "model": {"sizes": [4], "name": 'b"'}}
    assert json.loads(settings.replaced('{"lr":1}', {"lr": 2})) == {"lr": 2}


@pytest.mark.parametrize("text", ["a: [1", "a: 1\n---\nb: 2", "[" * 5000, "a: *b", "a: \t- x"])
def test_what_is_no_settings_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings.spans(text)


@pytest.mark.parametrize("text", ["", "- 1", "x", "? [a]\n: 1"])
def test_a_file_without_names_has_no_values(text: str) -> None:
    assert settings.spans(text) == {} and settings.replaced(text, {"a": 1}) == text
