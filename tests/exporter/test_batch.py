"""What a batch makes of names and values that MLflow refuses, and how arrays become a file; no MLflow is requests.

Not checked here: that MLflow takes the result (test_refusals).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    BAD_REQUEST,
    ENDPOINT_NOT_FOUND,
    INVALID_PARAMETER_VALUE,
    PERMISSION_DENIED,
    RESOURCE_DOES_NOT_EXIST,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
)
from mlflow.utils.rest_utils import verify_rest_response
from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name
from requests import HTTPError, Response

from trialplane import errors
from trialplane.exporter import files
from trialplane.exporter.batch import MAX_STEP, Batch, describe, is_refusal, key_of, write_log
from trialplane.policies import transport
from trialplane.wire.paths import RunPaths


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("eval/f1-macro: a.b_c", "eval/f1-macro: a.b_c"),
        ("recall@5", "recall_5"),
        ("a(b)", "a_b_"),
        ("++model.lr", "model.lr"),
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


def answered(status: int) -> HTTPError:
    """What a store of artifacts answers, as MLflow raises it."""
    response = Response()
    response.status_code = status
    return HTTPError(response=response)


def proxied(status: int) -> MlflowException:
    """What MLflow raises when a proxy answers a call, in words of its own."""
    response = Response()
    response.status_code = status
    response._content = b"<h1>no</h1>"
    with pytest.raises(MlflowException) as raised:
        verify_rest_response(response, "/api/2.0/mlflow/runs/log-batch")
    return raised.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((answered(status), True) for status in (400, 403, 404, 409, 413)),
        *((answered(status), False) for status in (401, 407, 408, 429, 500, 502, 503, 507)),
        (proxied(413), True),
        *((proxied(status), False) for status in (404, 405, 502)),
        (ConnectionError("refused"), False),
        (HTTPError("no answer"), False),
        (MlflowException("a name", INVALID_PARAMETER_VALUE), True),
        (MlflowException("a value that its database does not take", BAD_REQUEST), True),
        (MlflowException("no such run", RESOURCE_DOES_NOT_EXIST), True),
        (MlflowException("an expired token", UNAUTHENTICATED), False),
        (MlflowException("not ours", PERMISSION_DENIED), False),
        (MlflowException("a proxy without MLflow", ENDPOINT_NOT_FOUND), False),
        (MlflowException("too many", RESOURCE_EXHAUSTED), False),
        (MlflowException("anything"), False),
        (ValueError("ours"), False),
    ],
    ids=repr,
)
def test_what_mlflow_would_refuse_again_is_told_from_what_may_pass(error: Exception, expected: bool) -> None:
    assert is_refusal(error) is expected


def test_arrays_of_any_name_become_an_archive(tmp_path: Path) -> None:
    packed = RunPaths(tmp_path).packed(3)
    assert packed == tmp_path / "arrays" / "3.packed"
    packed.parent.mkdir()
    transport.pack({"file": np.arange(3), "a/b": {"self": np.ones((2, 2)), "none": None, "n": 3}}).tofile(packed)
    (archive,) = files.convert(packed)
    with np.load(archive) as arrays:
        np.testing.assert_array_equal(arrays["file"], np.arange(3))
        np.testing.assert_array_equal(arrays["a/b.self"], np.ones((2, 2)))
        assert (str(arrays["a/b.none"]), int(arrays["a/b.n"])) == ("None", 3)


def test_texts_and_lists_become_a_file_that_people_read(tmp_path: Path) -> None:
    packed = tmp_path / "3.packed"
    told = {"answers": ["yes", "no"], "scores": [0.5, None], "by": {"class": [1, 2]}}
    transport.pack({"logits": [np.ones(2)], **told}).tofile(packed)
    archive, text = files.convert(packed)
    assert (archive.name, text.name) == ("result.npz", "result.json")
    with np.load(archive) as arrays:
        assert list(arrays) == ["logits.0"]
    assert json.loads(text.read_text()) == told
    transport.pack(told).tofile(packed)
    assert files.convert(packed) == [text], "there is no archive without an array"


def test_the_first_line_of_an_error_that_says_nothing_is_its_class() -> None:
    assert errors.first_line(ValueError("one\ntwo")) == "one"
    assert errors.first_line(ValueError("\n ")) == "ValueError"


def test_the_password_of_mlflow_is_in_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError("API request to https://ann:s3cret@mlflow:5000/api/2.0 failed")
    assert describe(error) == "OSError: API request to https://ann:***@mlflow:5000/api/2.0 failed"
    write_log(f"left out: {error}")
    assert "s3cret" not in capsys.readouterr().err
