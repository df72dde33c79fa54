"""Data files are checked before anything starts: presence, kind, columns. Does not check the rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from trialplane.spec.inputs import check_inputs
from trialplane.spec.job import Job


def job(value: object, *columns: str) -> Job:
    return Job.model_validate(
        {
            "name": "demo",
            "kind": "hpo",
            "params": {"data": value},
            "inputs": {"data": {"columns": columns}},
            "objectives": [{"metric": "f1", "direction": "maximize"}],
        }
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"text,label\nx,1\n"),
        ("a.csv", b"\xef\xbb\xbftext, label\r\n"),
        ("a.tsv", b"text\tlabel\n"),
        ("a.jsonl", b'\n{"text": "x", "label": 1}\n'),
        ("a.json", b'{"text": "x", "label": 1}\n'),
        ("a.b.csv.gz", gzip.compress(b'"text",label\n')),
        ("A.JSONL.GZ", gzip.compress(b'{"text": "x", "label": 1}')),
    ],
)
def test_good_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert check_inputs(job(name, "text", "label"), tmp_path) == []
    assert check_inputs(job(str(tmp_path / name), "text"), Path("/")) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"txt,label\n", "lacks the column text; it has txt, label; did you mean txt?"),
        ("a.csv", b"a,b\n", "lacks the columns text, label; it has a, b"),
        ("a.jsonl", b'{"txt": "x", "label": 1}\n', "lacks the column text; it has txt, label"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\xff\xfe", "UTF-8"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"[1, 2]\n", "one JSON object per line"),
        ("a.jsonl", b"text,label\n", "begins with 'text,label'"),
        ("a.csv.gz", b"text,label\n", "cannot be read"),
        ("a.csv.gz", gzip.compress(b"text,label\n")[:15], "cannot be read"),
        ("a.parquet", b"PAR1", "cannot be read (.parquet)"),
        ("a", b"text", "no suffix"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    [complaint] = check_inputs(job(name, "text", "label"), tmp_path)
    assert (complaint.field, complaint.source) == ("params.data", str(tmp_path / name))
    assert message in complaint.message


def test_missing_files_and_odd_values(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text\n")
    (tmp_path / "folder.csv").mkdir()
    assert "did you mean train.csv" in check_inputs(job("trian.csv", "text"), tmp_path)[0].message
    assert "does not exist" in check_inputs(job("no/such.csv", "text"), tmp_path)[0].message
    assert "is a folder" in check_inputs(job("folder.csv", "text"), tmp_path)[0].message
    assert "must be the path" in check_inputs(job(3, "text"), tmp_path)[0].message
    assert check_inputs(job(None, "text"), tmp_path) == []
    several = check_inputs(job(["train.csv", "test.csv"], "text"), tmp_path)
    assert [Path(one.source).name for one in several] == ["test.csv"]
