"""What a batch makes of names and values that MLflow refuses, and how arrays become a file; no MLflow is asked.

Not checked here: that MLflow takes the result (test_refusals).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

from trialplane import errors
from trialplane.controller import npz
from trialplane.controller.batch import MAX_STEP, Batch, key_of
from trialplane.policies import transport
from trialplane.wire.paths import RunPaths


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("eval/f1-macro: a.b_c", "eval/f1-macro: a.b_c"),
        ("recall@5", "recall_5"),
        ("a(b)", "a_b_"),
        ("größe", "größe"),
        ("line\n", "line_"),
        ("\ud800", "_"),
        ("", "_"),
        (".", "_."),
        ("../up", "_../up"),
        ("/root", "_root"),
        ("a//b/", "a__b_"),
        ("x" * 300, "x" * 250),
        ("x" * 249 + "/y", "x" * 249 + "_"),
    ],
)
def test_a_name_becomes_one_that_mlflow_takes(name: str, key: str) -> None:
    assert key_of(name) == key
    for validate in (_validate_metric_name, _validate_param_name, _validate_tag_name):
        validate(key)
    assert len(key) <= 250
    assert key_of(key) == key


def test_of_two_names_that_become_the_same_the_later_wins() -> None:
    batch = Batch()
    batch.add_params({"a(": 1, "a)": 2})
    batch.add_metrics({"a(": 1.0, "a)": 2.0}, 1.0, 0)
    assert batch.params == {"a_": "2"}
    assert [(metric.key, metric.value) for metric in batch.metrics] == [("a_", 2.0)]


def test_texts_and_steps_are_such_that_a_database_takes_them() -> None:
    batch = Batch()
    batch.add_tags({"message": "file \udcff\0 " + "x" * 9000})
    batch.add_metrics({"score": 1.0}, 1.0, 10**30)
    assert batch.tags["message"].startswith("file ? x")
    assert len(batch.tags["message"]) == 5000
    assert batch.metrics[0].step == MAX_STEP


def test_arrays_of_any_name_become_an_archive(tmp_path: Path) -> None:
    packed = RunPaths(tmp_path).packed(3)
    assert packed == tmp_path / "arrays" / "3.packed"
    packed.parent.mkdir()
    transport.pack({"file": np.arange(3), "a/b": {"self": np.ones((2, 2)), "none": None, "n": 3}}).tofile(packed)
    with np.load(npz.convert(packed)) as arrays:
        np.testing.assert_array_equal(arrays["file"], np.arange(3))
        np.testing.assert_array_equal(arrays["a/b.self"], np.ones((2, 2)))
        assert (str(arrays["a/b.none"]), int(arrays["a/b.n"])) == ("None", 3)


def test_the_first_line_of_an_error_that_says_nothing_is_its_class() -> None:
    assert errors.first_line(ValueError("one\ntwo")) == "one"
    assert errors.first_line(ValueError("\n ")) == "ValueError"
