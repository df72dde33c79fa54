"""Data files are checked before anything starts: presence, kind, columns, and of plain text how many lines.

Does not check the rows of tables.
"""

from __future__ import annotations

import gzip
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.job.conftest import found

from trialplane.job import kinds, load
from trialplane.job.inputs import check_inputs
from trialplane.job.kinds import Job


def job(value: object, *columns: str) -> Job:
    return kinds.read(
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
        ("a.csv", b"\xef\xbb\xbftext, label\r\nx,1"),
        ("a.tsv", b"text\tlabel\n\n\nx\t1\n"),
        ("a.jsonl", b'\n{"text": "x", "label": 1}\n'),
        ("a.json", b'{"text": "x", "label": 1}\n'),
        ("a.b.csv.gz", gzip.compress(b'"text",label\nx,1\n', mtime=0)),
        ("A.JSONL.GZ", gzip.compress(b'{"text": "x", "label": 1}', mtime=0)),
    ],
)
def test_good_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert check_inputs(job(name, "text", "label"), tmp_path) == []
    assert check_inputs(job(str(tmp_path / name), "text"), Path("/")) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\n", "has a header but no rows"),
        ("a.tsv", b"text\tlabel\n\n\n", "has a header but no rows"),
        ("a.csv", b"txt,label\nx,1\n", "lacks the column text; it has txt, label; did you mean txt?"),
        ("a.csv", b"a,b\nx,1\n", "lacks the columns text, label; it has a, b"),
        ("a.jsonl", b'{"txt": "x", "label": 1}\n', "lacks the column text; it has txt, label"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\xff\xfe", "UTF-8"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"[1, 2]\n", "one JSON object per line"),
        ("a.jsonl", b"text,label\n", "begins with 'text,label'"),
        ("a.csv.gz", b"text,label\n", "cannot be read"),
        ("a.csv.gz", gzip.compress(b"text,label\n", mtime=0)[:15], "cannot be read"),
        ("a.csv.gz", gzip.compress(b"text,label\nx,1\n", mtime=0)[:10] + b"\xff" * 30, "cannot be read"),
        ("a.csv", b"x" * 2**18, "is no CSV: field larger than field limit"),
        ("a.parquet", b"PAR1", "cannot be read (.parquet)"),
        ("a", b"text", "no suffix"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    [issue] = check_inputs(job(name, "text", "label"), tmp_path)
    assert (issue.field, issue.source) == ("params.data", str(tmp_path / name))
    assert message in issue.message


def test_missing_files_and_odd_values(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text\nx\n")
    (tmp_path / "folder.csv").mkdir()
    assert "did you mean train.csv" in check_inputs(job("trian.csv", "text"), tmp_path)[0].message
    assert "does not exist" in check_inputs(job("no/such.csv", "text"), tmp_path)[0].message
    assert "is a folder" in check_inputs(job("folder.csv", "text"), tmp_path)[0].message
    assert "must be the path" in check_inputs(job(3, "text"), tmp_path)[0].message
    several = check_inputs(job(["train.csv", "test.csv"], "text"), tmp_path)
    assert [Path(one.source).name for one in several] == ["test.csv"]


def test_null_names_no_file(tmp_path: Path) -> None:
    (issue,) = check_inputs(job(None, "text"), tmp_path)
    assert (issue.field, issue.message) == ("params.data", "is null, and must name a .csv, .tsv or .jsonl file")
    (of_text,) = check_inputs(training(None), tmp_path)
    assert of_text.message.endswith("must name a text file")
    assert check_inputs(training(None, optional=True), tmp_path) == []
    fields = job("a.csv").model_dump(exclude={"params"})
    searched = {"data": {"type": "categorical", "choices": ["a.csv", "b.csv"]}}
    for space in (searched, "train:define"):  # a trial gets a name; whether the file is there it sees itself
        params = {"data": None} if isinstance(space, str) else {}
        assert check_inputs(kinds.read({**fields, "space": space, "params": params}), tmp_path) == []


@pytest.mark.parametrize("away", [False, True])
def test_files_that_a_run_would_not_find(tmp_path: Path, away: bool) -> None:
    """A run has a copy of the job's folder; on a cluster it has nothing else of this machine."""
    folder = tmp_path / "job"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "a.csv", folder / "a.csv", folder / "sub" / "a.csv"):
        file.write_text("text\nx\n")

    def said(path: object) -> list[str]:
        return [one.message for one in check_inputs(job(str(path), "text"), folder, "/data", is_remote=away)]

    assert said("a.csv") == said("sub/../sub/a.csv") == []
    (outside,) = said("../a.csv")
    assert outside.startswith("is outside of the job's folder")
    assert ("write /data/…" in outside) if away else outside.endswith(f"write {tmp_path / 'a.csv'}")
    if not away:
        assert said(tmp_path / "a.csv") == said(folder / "a.csv") == []
        return
    (here,) = said(tmp_path / "a.csv")
    assert here.startswith("is on this machine only, and the trials are on a cluster; put it on the chart's data volume")
    (absolute,) = said(folder / "sub" / "a.csv")
    assert absolute == "is a path of this machine, and the trials are on a cluster; write sub/a.csv"
    assert said("/data/no/such.csv") == []  # the trials'


def test_a_file_of_the_data_volume_may_be_here_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    assert check_inputs(job(str(tmp_path / "a.csv"), "text"), Path("/jobs/demo"), str(tmp_path), is_remote=True) == []


def test_columns_that_parameters_name(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.csv").write_text("review,stars\nx,1\n")
    fields = job("a.csv").model_dump(exclude={"params", "inputs"})

    def said(**params: object) -> list[str]:
        wanted = {"data": {"columns": ["stars"], "columns_of": ["text", "more"]}}
        made = {**fields, "params": {"data": "a.csv", "text": "review", "more": None, **params}, "inputs": wanted}
        return [one.message for one in check_inputs(kinds.read(made), tmp_path)]

    assert said() == []
    assert said(text="text") == ["lacks the column text; it has review, stars"]
    assert said(more="revieww") == ["lacks the column revieww; it has review, stars; did you mean review?"]
    head = "kind: train\nparams: {data: a.csv, text: 3}\n"
    (folder / "job.yaml").write_text(f"{head}inputs: {{data: {{columns_of: [text, labl]}}}}\n")
    assert [(field, message.partition(";")[0]) for field, _, _, message in found(folder)] == [
        ("params.text", "must be the name of a column, not 3: inputs.data.columns_of needs it"),
        ("inputs.data.columns_of.1", "there is no 'labl' in params"),
    ]


# ------------------------------------------------------------------------------------------------- plain text


def training(value: object, ranks: int = 1, batch: int = 4, held_out: int = 8, **wanted: Any) -> Job:
    return kinds.read(
        {
            "name": "demo",
            "kind": "train",
            "params": {"corpus": value, "batch": batch, "held_out": held_out},
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
    assert told(tmp_path, content, at_least=32) == []
    assert told(tmp_path, b"one") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "is empty"),
        (gzip.compress(b"one\n" * 99, mtime=0), "is compressed, and lines are read directly from the file"),
        ("中文\n".encode("utf-16"), "is not UTF-8 text (line 1)"),
        (b"one\ntwo\n\xff\xfe\n", "is not UTF-8 text (line 3); convert it"),
    ],
)
def test_what_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    (said,) = told(tmp_path, content, at_least="batch")
    assert message in said


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        (15, {"at_least": 16}, "has 15 lines of text, and it needs 16; give more text"),
        (
            1,
            {"batch": 16, "at_least": "batch"},
            "has 1 line of text, and it needs batch 16; give more text, or lower",
        ),
        (
            *(15, {"batch": 10, "at_least": ["held_out", "batch"]}),
            "it needs held_out 8 + batch 10; give more text, or lower params.held_out or params.batch",
        ),
    ],
)
def test_too_few_lines(tmp_path: Path, lines: int, fields: dict[str, Any], message: str) -> None:
    (said,) = told(tmp_path, b"text\n\n" * lines, **fields)
    assert message in said


def test_a_character_at_the_end_of_the_first_piece_is_no_error(tmp_path: Path) -> None:
    assert told(tmp_path, b"a" + "中".encode() * 2**19 + b"\n") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.jsonl", "must hold one JSON object per line; it begins with"),
        ("a.csv", "is no CSV: field larger than field limit"),
        ("a.txt", "has 1 line of text, and it needs 2"),
    ],
)
def test_a_file_of_one_huge_line_is_read_in_pieces(tmp_path: Path, name: str, message: str) -> None:
    file_bytes = 2**27
    with (tmp_path / name).open("wb") as file:
        file.truncate(file_bytes)  # zeros, which are text without a line end
    checked_job = training(name, at_least=2) if name == "a.txt" else job(name)
    tracemalloc.start()
    try:
        (issue,) = check_inputs(checked_job, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message in issue.message
    assert peak_bytes < file_bytes


def test_lines_of_several_files_are_added(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("x\n" * 8)
    assert check_inputs(training(["a", "b"], at_least=16), tmp_path) == []
    (issue,) = check_inputs(training(["a", "b"], at_least=17), tmp_path)
    assert issue.message.startswith("has 16 lines of text")


def test_what_only_trials_have_is_not_looked_at(tmp_path: Path) -> None:
    there = training("/data/no/such.txt", at_least=1)
    assert check_inputs(there, tmp_path, "/data") == []
    assert len(check_inputs(there, tmp_path)) == 1
    assert len(check_inputs(training("/dataset.txt"), tmp_path, "/data")) == 1


def test_amounts_name_parameters(folder: Path) -> None:
    head = "kind: train\nparams: {corpus: null, batch: 0.5}\n"
    (folder / "job.yaml").write_text(f"{head}inputs:\n  corpus: {{format: lines, at_least: [bacth, batch]}}\n")
    assert [(field, message.partition(";")[0]) for field, _, _, message in found(folder)] == [
        ("params.batch", "must be a whole number over 0, not 0.5: inputs.corpus.at_least needs it"),
        ("inputs.corpus.at_least", "there is no 'bacth' in params"),
    ]
    (folder / "job.yaml").write_text("kind: train\nparams: {corpus: null}\ninputs: {corpus: {at_least: 3}}\n")
    assert [(field, message) for field, _, _, message in found(folder)] == [
        ("inputs.corpus.at_least", "needs format: lines"),
    ]


@pytest.mark.parametrize(
    ("at_least", "message"),
    [
        ("[]", "is an empty sum"),
        ("[batch, 0]", "must be a whole number over 0, the name of a parameter or a list of these, not 0"),
        ("[batch, [8]]", "not [8]"),
        ("[batch, bacth]", "there is no 'bacth' in params; did you mean batch?"),
        ("[batch, corpus]", "must be a whole number over 0, not None"),
    ],
)
def test_sums_are_of_amounts(folder: Path, at_least: str, message: str) -> None:
    head = "kind: train\nparams: {corpus: null, batch: 8}\n"
    (folder / "job.yaml").write_text(f"{head}inputs: {{corpus: {{format: lines, at_least: {at_least}}}}}\n")
    ((_, _, _, said),) = found(folder)
    assert message in said


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "one.csv").symlink_to("two.csv")
    (tmp_path / "two.csv").symlink_to("one.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "a.csv").write_text("text\nx\n")
    for name, message in (
        ("one.csv", "cannot be read: Too many levels of symbolic links"),
        ("folder.csv", "is a folder"),
        ("a.csv/b.csv", "does not exist"),
        (f"{'a' * 300}.csv", "cannot be read: File name too long"),
        ("~nosuchuser/a.csv", "does not exist"),
    ):
        [issue] = check_inputs(job(name, "text"), tmp_path)
        assert issue.field == "params.data"
        assert message in issue.message, name


def linked(**targets: str) -> Job:
    fields = job("a.csv").model_dump(exclude={"params", "inputs"})
    return kinds.read({**fields, "links": targets})


def test_targets_of_links_exist_where_trials_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    here, gone = str(tmp_path / "data"), str(tmp_path / "gone")
    assert check_inputs(linked(data=here), tmp_path) == []
    (issue,) = check_inputs(linked(data=here, more=gone), tmp_path)
    assert (issue.field, issue.message) == ("links.more", f"{gone} does not exist")
    (issue,) = check_inputs(linked(data=here), tmp_path, "/data", is_remote=True)
    assert issue.message.startswith(
        f"{here} is on this machine only, and the trials are on a cluster; put it on the chart's"
    )
    assert issue.message.endswith("and write links: {data: /data/…}")
    assert check_inputs(linked(data="/data/mnist"), tmp_path, "/data", is_remote=True) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["/etc"], "/etc cannot be a link"),
        (["../x"], "../x cannot be a link"),
        ({"a/../..": "/x"}, ".. cannot be a link"),
        (["."], ". cannot be a link"),
        (["job.yaml"], "job.yaml cannot be a link"),
        (["data", "data/raw"], "data/raw is in another link"),
        ({"data": 3}, "must be a list of paths"),
        ([3], "must be a list of paths"),
        ([""], "must be a list of paths"),
        (7, "must be a list of paths"),
    ],
)
def test_a_link_is_a_path_in_the_folder(value: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        kinds.read({**job("a.csv").model_dump(), "links": value})


def test_targets_are_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def run(ctx): ...\n")
    text = "kind: hpo\nobjective: {metric: a, direction: minimize}\nspace: {x: {type: float, low: 0, high: 1}}\n"
    (tmp_path / "job.yaml").write_text(text + "links: [data/, ./more/x]\n")
    assert load.load_job(tmp_path).links == {"data": f"{tmp_path}/data", "more/x": f"{tmp_path}/more/x"}
    (tmp_path / "job.yaml").write_text(text + "links: {data: ../else, more: /mnt/x, home: ~/x}\n")
    links = {"data": f"{tmp_path}/../else", "more": "/mnt/x", "home": str(Path("~/x").expanduser())}
    assert load.load_job(tmp_path).links == links
    (tmp_path / "job.yaml").write_text(text + "links: {data: ~nobody-here/x}\n")
    assert load.load_job(tmp_path).links == {"data": f"{tmp_path}/~nobody-here/x"}


def test_a_link_has_no_file_that_each_trial_changes(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    fields = {**job("a.csv").model_dump(exclude={"params", "inputs", "entrypoint"}), "links": {"exp": str(tmp_path / "exp")}}
    for program in ({"script": "fit.py", "arguments": {"file": "exp/config.yaml"}}, {"script": "exp/fit.py"}):
        (issue,) = check_inputs(kinds.read({**fields, **program}), tmp_path)
        assert issue.field == "links.exp" and "of which each trial needs its own copy" in issue.message
    (issue,) = check_inputs(kinds.read({**fields, "packages": ["../src/exp"]}), tmp_path)
    assert issue.message == "is also the name of a package; drop one of the two"
