"""Conversion of lines to and from Hugging Face `datasets`, through a file on disk, so that no data is sent to workers.

Only `dataset.py` uses this. `datasets` and pyarrow are imported inside the functions.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.training import building

if TYPE_CHECKING:
    import datasets

    from trialplane.training.lines import LineDataset

BATCH = 1000  # rows of a record batch, as in files of `datasets`


def to_hf(lines: LineDataset, folder: Path) -> datasets.Dataset:
    """Return the lines as a dataset over an Arrow file in `folder`.

    Raises:
        CacheError: The file cannot be written.
    """
    import datasets

    file = folder / f"lines-{lines.content[:32]}.arrow"
    try:
        building.build_once(file, lambda: _write_arrow(lines, file))
    except OSError as error:
        raise _write_error(file, error) from error
    return datasets.Dataset.from_file(str(file))


def write_column(dataset: datasets.Dataset, column: str, folder: Path) -> Path:
    """Write a column as a text file named after the dataset's fingerprint, unless it exists.

    Raises:
        DataError: There is no such column of strings, or one of the strings cannot be a line.
        CacheError: The file cannot be written.
    """
    if column not in dataset.column_names:
        raise errors.DataError(f"the dataset has no column {column!r}; it has: {', '.join(dataset.column_names)}")
    dtype = getattr(dataset.features[column], "dtype", "")
    if dtype not in ("string", "large_string"):
        raise errors.DataError(f"the dataset's column {column!r} is {dtype or dataset.features[column]}; lines are strings")
    if not len(dataset):
        raise errors.DataError("the dataset has no rows")
    safe_name = "".join(letter if letter.isalnum() else "-" for letter in column)[:40]
    file = folder / f"{dataset._fingerprint}-{safe_name}.txt"
    try:
        building.build_once(file, lambda: _write_text(dataset.select_columns([column]), file))
    except OSError as error:
        raise _write_error(file, error) from error
    return file


def _write_arrow(lines: LineDataset, file: Path) -> None:
    """Write lines to an Arrow file with the column `text`."""
    import pyarrow as pa

    schema = pa.schema([("text", pa.string())])
    with building.open_new(file) as out, pa.ipc.new_stream(out, schema) as stream:
        rows = iter(lines)
        while batch := list(itertools.islice(rows, BATCH)):
            stream.write_batch(pa.record_batch([pa.array([row["text"] for row in batch], pa.string())], schema=schema))


def _write_text(dataset: datasets.Dataset, file: Path) -> None:
    """Write the strings of a dataset's first column to a text file, one a line.

    Raises:
        DataError: A string cannot be a line.
    """
    with building.open_new(file) as out:
        written_rows = 0
        for table in dataset.with_format("arrow").iter(batch_size=10 * BATCH):
            texts: list[Any] = table.column(0).to_pylist()
            for row, text in enumerate(texts, start=written_rows):
                _check_line(text, row)
            if written_rows == 0 and texts[0].startswith("\ufeff"):
                out.write("\ufeff".encode())  # readers drop the first byte order mark, so write another one
            out.write("".join(f"{text}\n" for text in texts).encode())
            written_rows += len(texts)


def _check_line(text: Any, row: int) -> None:
    """Raise DataError if a text cannot be one line: readers end a line at LF or CR LF, and refuse a NUL byte."""
    if text is None:
        raise errors.DataError(f"row {row:,} of the dataset is None; drop such rows with dataset.filter(…)")
    if "\n" in text or "\0" in text or text.endswith("\r"):
        raise errors.DataError(
            f"row {row:,} of the dataset holds a line break or a NUL byte, so it is not one line: {text[:60]!r}; replace it "
            'first: dataset.map(lambda row: {"text": " ".join(row["text"].split())})'
        )


def _write_error(file: Path, error: OSError) -> errors.CacheError:
    return errors.CacheError(f"{file} cannot be written ({error.strerror}); make room, or name another folder")
