"""LineDataset from and to `datasets.Dataset`: the same texts, and as little to send on both sides.

Not checked: the lines themselves (test_lines.py).
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from trialplane import errors
from trialplane.training.lines import LineDataset, arrow

datasets = pytest.importorskip("datasets")

ROWS = ["\ufeffeins", "", "第二行", " three ", ""]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("".join(f"line {number}\n" for number in range(2500)))
    return file


def test_to_hf_is_a_dataset_over_a_file_on_disk(text: Path, tmp_path: Path) -> None:
    lines = LineDataset(text, max_samples=2345)
    made = lines.to_hf(tmp_path / "arrow")
    assert made["text"][:] == [row["text"] for row in lines]
    assert made[-1] == {"text": "line 2344"}
    (cached,) = made.cache_files
    assert Path(cached["filename"]).parent == tmp_path / "arrow"
    data = pickle.dumps(made)
    assert len(data) < 2000
    assert pickle.loads(data)[17] == lines[17]


def test_the_arrow_file_is_made_once_per_content(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LineDataset(text).to_hf(tmp_path / "arrow")
    monkeypatch.setattr(arrow, "_write_arrow", None)
    assert len(LineDataset(text).to_hf(tmp_path / "arrow")) == 2500
    with pytest.raises(TypeError):
        LineDataset(text, max_samples=3).to_hf(tmp_path / "arrow")
    assert len(list((tmp_path / "arrow").iterdir())) == 1


def test_from_hf_keeps_every_row_in_its_place(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"body": ROWS, "label": list(range(len(ROWS)))})
    lines = LineDataset.from_hf(rows, "body", folder=tmp_path)
    assert [row["text"] for row in lines] == ROWS
    assert len(pickle.dumps(lines)) < 1000
    picked = LineDataset.from_hf(rows.select([3, 0]), "body", folder=tmp_path)
    assert [row["text"] for row in picked] == [" three ", "\ufeffeins"]
    assert lines.to_hf(tmp_path)["text"][:] == ROWS


def test_from_hf_writes_a_dataset_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_dict({"text": ROWS})
    first = LineDataset.from_hf(rows, folder=tmp_path)
    monkeypatch.setattr(arrow, "_write_text", None)
    assert LineDataset.from_hf(rows, folder=tmp_path).content == first.content


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["a", "b\nc"], r"row 1 of the dataset holds a line break.*: 'b\\nc'"),
        (["b\r"], "row 0 of the dataset holds a line break"),
        (["a\0"], "NUL"),
        (["a", None], "row 1 of the dataset is None"),
        ([], "no rows"),
        ([1, 2], "column 'text' is int64; lines are strings"),
    ],
)
def test_what_cannot_be_a_line_is_refused(tmp_path: Path, rows: list[object], says: str) -> None:
    features = datasets.Features({"text": datasets.Value("string")}) if not rows else None
    with pytest.raises(errors.DataError, match=says):
        LineDataset.from_hf(datasets.Dataset.from_dict({"text": rows}, features=features), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match="no column 'text'; it has: body"):
        LineDataset.from_hf(datasets.Dataset.from_dict({"body": ROWS}), folder=tmp_path)
