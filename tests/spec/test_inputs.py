"""Data files are checked before anything starts: presence, kind, columns, and of plain text how many lines.

Does not check the rows of tables.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from tests.spec.conftest import found

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


# ------------------------------------------------------------------------------------------------- plain text


def training(value: object, ranks: int = 1, batch: int = 4, **wanted: Any) -> Job:
    return Job.model_validate(
        {
            "name": "demo",
            "kind": "train",
            "params": {"corpus": value, "batch": batch},
            "inputs": {"corpus": {"format": "lines", **wanted}},
            "ranks": ranks,
        }
    )


def told(tmp_path: Path, content: bytes, **fields: Any) -> list[str]:
    (tmp_path / "a.txt").write_bytes(content)
    return [one.message for one in check_inputs(training("a.txt", **fields), tmp_path)]


@pytest.mark.parametrize(
    "content",
    [b"one\n" * 32, b"\r\n".join([b"one"] * 32), b"\n\n".join([b"\xe4\xb8\xad\xe6\x96\x87"] * 32), b"\xef\xbb\xbfa\n" * 32],
)
def test_good_text(tmp_path: Path, content: bytes) -> None:
    assert told(tmp_path, content, ranks=8, per_rank="batch") == []
    assert told(tmp_path, content, ranks=2, per_rank=16, at_least=32) == []
    assert told(tmp_path, b"one", ranks=8) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "is empty"),
        (
            gzip.compress(b"one\n" * 99),
            "is compressed, and lines are read where they lie in the file; unpack it: gunzip < a.txt > NEW.txt",
        ),
        (b"PK\x03\x04\x00\x00", "is not text"),
        ("中文\n".encode("utf-16"), "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 a.txt"),
        (b"one\ntwo\n\xff\xfe\n", "is not UTF-8 text (line 3); convert it"),
    ],
)
def test_what_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    (said,) = told(tmp_path, content, ranks=8, per_rank="batch")
    assert message in said


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        (31, {"ranks": 8, "per_rank": "batch"}, "has 31 lines of text, and 8 ranks with batch 4 each need 32"),
        (31, {"ranks": 8, "per_rank": "batch"}, "give more text, or --set params.batch=3"),
        (1, {"ranks": 8, "per_rank": "batch"}, "has 1 line of text, and 8 ranks with batch 4 each need 32; give more text"),
        (15, {"ranks": 8, "at_least": 16}, "has 15 lines of text, and it needs 16; give more text"),
        (15, {"batch": 16, "at_least": "batch"}, "it needs batch 16; give more text, or --set params.batch=15"),
        (15, {"per_rank": 16}, "it needs 16"),
    ],
)
def test_too_few_lines(tmp_path: Path, lines: int, fields: dict[str, Any], message: str) -> None:
    (said,) = told(tmp_path, b"text\n\n" * lines, **fields)
    assert message in said


def test_a_character_at_the_end_of_the_first_piece_is_no_error(tmp_path: Path) -> None:
    assert told(tmp_path, b"a" + "中".encode() * 2**19 + b"\n") == []


def test_lines_of_several_files_are_added(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("x\n" * 8)
    assert check_inputs(training(["a", "b"], at_least=16), tmp_path) == []
    (complaint,) = check_inputs(training(["a", "b"], at_least=17), tmp_path)
    assert complaint.message.startswith("has 16 lines of text")


def test_what_only_trials_have_is_not_looked_at(tmp_path: Path) -> None:
    there = training("/data/no/such.txt", at_least=1)
    assert check_inputs(there, tmp_path, "/data") == []
    assert len(check_inputs(there, tmp_path)) == 1
    assert len(check_inputs(training("/dataset.txt"), tmp_path, "/data")) == 1


def test_amounts_name_parameters(folder: Path) -> None:
    head = "kind: train\nparams: {corpus: null, batch: 0.5}\n"
    (folder / "job.yaml").write_text(f"{head}inputs:\n  corpus: {{format: lines, at_least: bacth, per_rank: batch}}\n")
    assert [(field, message.partition(";")[0]) for field, _, _, message in found(folder)] == [
        ("params.batch", "must be a whole number over 0, not 0.5: inputs.corpus.per_rank needs it"),
        ("inputs.corpus.at_least", "there is no 'bacth' in params"),
    ]
    (folder / "job.yaml").write_text("kind: train\nparams: {corpus: null}\ninputs: {corpus: {at_least: 3, per_rank: 4}}\n")
    assert [(field, message) for field, _, _, message in found(folder)] == [
        ("inputs.corpus.at_least", "needs format: lines"),
        ("inputs.corpus.per_rank", "needs format: lines"),
    ]
