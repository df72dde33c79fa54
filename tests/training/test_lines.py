"""LineDataset: which lines a text has, what is sent of it to another process, and what bad files are told.

Not checked: how the index is built and shared (test_line_index.py), speed (tests/benchmarks).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies

from trialplane import errors
from trialplane.policies import pickling
from trialplane.training.lines import LineDataset, scan

TEXT = "first\nzweite Zeile\n\n第三行\n \nlast"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus.txt", TEXT)


def write(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def texts(dataset: LineDataset) -> list[str]:
    return [row["text"] for row in dataset]


def sent(dataset: LineDataset) -> LineDataset:
    """The dataset as another process gets it."""
    received: LineDataset = pickle.loads(pickle.dumps(dataset))
    return received


def test_lines_are_what_lies_between_newlines(text: Path) -> None:
    dataset = LineDataset(text)
    assert texts(dataset) == ["first", "zweite Zeile", "第三行", " ", "last"]
    assert len(dataset) == 5
    assert dataset[-1] == {"text": "last"}
    assert dataset.__getitems__([2, 0]) == [{"text": "第三行"}, {"text": "first"}]
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"line {index} of 5"):
            dataset[index]


def test_empty_lines_are_skipped_or_kept(text: Path) -> None:
    assert texts(LineDataset(text, empty="keep")) == ["first", "zweite Zeile", "", "第三行", " ", "last"]
    assert len(LineDataset(text, empty="skip")) == 5
    with pytest.raises(errors.DataError, match="it must be skip or keep"):
        LineDataset(text, empty="error")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\n\r\nb\r\n\r\n", ["a", "", "b", ""]),
        ("a\rb\r\r\n", ["a\rb\r"]),  # one carriage return belongs to the line's end, others do not
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\na", ["", "a"]),
        ("a\n\r", ["a", ""]),
        ("\ufeffa\nb", ["a", "b"]),
        ("\ufeff\nb", ["", "b"]),
        ("a\u2028b\x0bc\x85d\n", ["a\u2028b\x0bc\x85d"]),  # what str.splitlines takes for ends is text
    ],
)
def test_line_ends(tmp_path: Path, content: str, kept: list[str]) -> None:
    file = write(tmp_path / "a.txt", content)
    assert texts(LineDataset(file, empty="keep")) == kept
    assert texts(LineDataset(file)) == [line for line in kept if line]


@hypothesis.given(
    pieces=strategies.lists(strategies.sampled_from(["\n", "\r\n", "\r", "a", "é", "行" * 5, "b" * 30]), min_size=1),
    block=strategies.integers(2, 40),
    span=strategies.integers(2, 90),
)
@hypothesis.settings(deadline=None, max_examples=100)
def test_any_text_is_read_as_python_splits_it(
    pieces: list[str], block: int, span: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever falls on the border of a block or of a thread's span."""
    content = "".join(pieces)
    lines = content.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    lines = [line.removesuffix("\r") for line in lines]
    full = [line for line in lines if line]
    hypothesis.assume(full)
    file = write(tmp_path_factory.mktemp("text") / "a.txt", content)
    with mock.patch.multiple(scan, BLOCK=block, SPAN=span):
        keep, skip = LineDataset(file, empty="keep"), LineDataset(file)
    assert texts(keep) == lines
    assert texts(skip) == full


def test_several_files_follow_each_other(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.txt", f"{number}a\n\n{number}b\n") for number in range(4)]
    dataset = LineDataset([str(file) for file in files])
    assert texts(dataset) == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"]
    assert texts(LineDataset(files, max_samples=3)) == ["0a", "0b", "1a"]


def test_max_samples_takes_the_first(text: Path) -> None:
    assert texts(LineDataset(text, max_samples=2)) == ["first", "zweite Zeile"]
    assert len(LineDataset(text, max_samples=99)) == 5
    with pytest.raises(errors.DataError, match="max_samples is 0"):
        LineDataset(text, max_samples=0)


def test_a_recipe_is_sent_and_no_text(tmp_path: Path) -> None:
    file = write(tmp_path / "corpus.txt", "line\n" * 100_000)
    dataset = LineDataset(file)
    dataset[0]  # open files are not sent along
    assert len(pickle.dumps(dataset)) < 1000
    pickling.check_dataset(dataset)
    received = sent(dataset)
    assert len(received) == 100_000
    assert received[99_999] == {"text": "line"}
    assert sent(received)[5] == {"text": "line"}


def test_the_recipe_of_many_files_is_a_file(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number:03d}-{'x' * 100}.txt", f"{number}\n") for number in range(50)]
    dataset = LineDataset(files, cache=tmp_path / "cache")
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    received = pickle.loads(data)
    assert texts(received) == [str(number) for number in range(50)]
    assert received.content == dataset.content
    assert len(pickle.dumps(received)) < 1000

    (manifest,) = (tmp_path / "cache").glob("*.files.json")
    manifest.write_text(manifest.read_text().replace("049", "048"))
    with pytest.raises(errors.DataError, match=r"files\.json, the list of this dataset's text files, was changed"):
        pickle.loads(data)[0]
    manifest.unlink()
    with pytest.raises(errors.DataError, match=r"cannot be read \(No such file"):
        pickle.loads(data)[0]


@pytest.mark.parametrize("how", ["gone", "shorter", "rewritten", "emptied", "in place"])
def test_a_text_that_changed_after_sending_is_an_error_and_never_an_empty_dataset(text: Path, how: str) -> None:
    received = sent(LineDataset(text))
    before = text.stat()
    if how == "gone":
        text.unlink()
    elif how == "rewritten":
        text.unlink()
        write(text, TEXT)
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    elif how == "in place":  # size and time as before, another content
        write(text, TEXT.replace("first", "First"))
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        write(text, TEXT[:9] if how == "shorter" else "")
    assert len(received) == 5
    says = r"existed when this dataset was created and cannot be read now" if how == "gone" else "has changed since"
    with pytest.raises(errors.DataError, match=rf"corpus\.txt {says}"):
        received[0]


def test_a_lost_index_is_built_again_where_it_is_needed(text: Path) -> None:
    received = sent(LineDataset(text))
    text.with_name(".corpus.txt.skip.lines").unlink()
    assert texts(received) == texts(LineDataset(text))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x1f\x8b\x08\x00rest", r"line 1: a NUL byte at offset 3, so this is a compressed or binary file, UTF-16"),
        ("a\nb\n".encode("utf-16-le"), "line 1: a NUL byte at offset 1,"),
        (b"ok\nok\n\x00\x00", r"line 3: a NUL byte at offset 6, so this is a compressed or binary file"),
        (b"", "is empty; was copying"),
        (b"\n\r\n\n", "all its lines are empty"),
        (b"\xef\xbb\xbf", "all its lines are empty"),
    ],
)
def test_what_is_no_text_is_refused_with_its_name(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(errors.DataError, match=rf"(?s)corpus\.txt.*{says}"):
        LineDataset(write(tmp_path / "corpus.txt", content))
    assert [file.name for file in tmp_path.iterdir() if ".part" in file.name or ".lock" in file.name] == []


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match=r"none\.txt: No such file or directory; see `ls -l"):
        LineDataset([tmp_path / "none.txt"])
    with pytest.raises(errors.DataError, match="is a folder; name the files in it"):
        LineDataset(tmp_path)
    with pytest.raises(errors.DataError, match="no text file was named"):
        LineDataset([])
    with pytest.raises(errors.DataError, match="empty is 'drop'"):
        LineDataset(tmp_path, empty="drop")  # type: ignore[arg-type]


def test_what_is_not_utf8_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path / "corpus.txt", b"one\n\ntwo\nb\xe4d\nfour\n")
    for empty, index in (("skip", 2), ("keep", 3)):
        dataset = LineDataset(file, empty=empty)  # type: ignore[arg-type]
        with pytest.raises(errors.DataError, match=r"corpus\.txt, line 4: not UTF-8 \(.* at byte 1 of the line, b'\\xe4'\)"):
            dataset[index]
        assert dataset[index + 1] == {"text": "four"}


def test_content_is_that_of_the_text_and_of_nothing_else(text: Path, tmp_path: Path) -> None:
    content = LineDataset(text).content
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = write(elsewhere / "copy.txt", TEXT)
    assert LineDataset(copy).content == content
    assert LineDataset(copy, cache=tmp_path / "cache").content == content
    assert sent(LineDataset(copy)).content == content
    others = [
        LineDataset(copy, empty="keep"),
        LineDataset(copy, max_samples=2),
        LineDataset([copy, text]),
        LineDataset(write(elsewhere / "other.txt", TEXT.replace("Zeile", "Seile"))),
    ]
    contents = {content, *(other.content for other in others)}
    assert len(contents) == 5
    write(copy, TEXT + "!")
    fresh = LineDataset(write(elsewhere / "fresh.txt", TEXT + "!")).content
    assert LineDataset(copy).content == fresh, "what was kept beside the index is of the old text"


def test_a_worker_needs_neither_numpy_nor_torch(text: Path) -> None:
    program = """
import pickle, sys
dataset = pickle.loads(bytes.fromhex(sys.argv[1]))
assert (len(dataset), dataset[3]) == (5, {"text": " "})
assert not {"numpy", "torch", "datasets"} & sys.modules.keys(), "imported"
"""
    data = pickle.dumps(LineDataset(text)).hex()
    ended = subprocess.run([sys.executable, "-c", program, data], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_torch_reads_it_in_workers(tmp_path: Path, context: str) -> None:
    from torch.utils.data import DataLoader

    file = write(tmp_path / "corpus.txt", "".join(f"line {number}\n" for number in range(100)))
    dataset = LineDataset(file)
    # A worker is enough: which one reads what is torch's, and each imports torch for seconds.
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 1, "multiprocessing_context": context, "collate_fn": list}
    read = [row["text"] for batch in DataLoader(dataset, **options) for row in batch]
    assert read == [f"line {number}" for number in range(100)]
    file.unlink()
    with pytest.raises(errors.DataError, match=r"corpus\.txt existed when this dataset was created"):
        list(DataLoader(dataset, **options))
