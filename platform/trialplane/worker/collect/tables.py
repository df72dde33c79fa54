"""The formats of shards: results as entries of an npz archive, or as rows of a Parquet file. Both are written to a stream.

Both accept any tree that was sent (`policies/transport.py`). The name of a leaf is its path in the tree: `states` or
`moves/0/from`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane import errors
from trialplane.worker import context
from trialplane.worker.collect.learner import Result


class Archive:
    """An npz file: `numpy.load(file)["17/states"]` is the array `states` of unit 17. Leaves that are None are left out."""

    def __init__(self, stream: Any) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED)

    def add(self, result: Result) -> int:
        """Write one result; return its number of rows, which is 1."""
        import numpy as np
        from numpy.lib import format as npy

        for name, leaf in leaves(result.value):
            if leaf is None:
                continue
            entry = zipfile.ZipInfo(f"{result.unit}/{name}.npy" if name else f"{result.unit}.npy")
            with self._zip.open(entry, "w", force_zip64=True) as file:
                npy.write_array(file, np.asarray(leaf), allow_pickle=False)
        return 1

    def close(self) -> None:
        """Write the table of contents."""
        self._zip.close()


class Table:
    """A Parquet file with a row for each item of each result, and the result's unit and worker in it.

    An array whose first dimension is the result's items has one entry per row; a single value, a number or a text, is
    repeated in all rows. Entries that are arrays are flat lists, with their `shape` in the column's metadata. The first
    result defines the columns.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._writer: Any = None

    def add(self, result: Result) -> int:
        """Write one result; return its number of rows, which is its number of items.

        Raises:
            Invalid: Its columns are not those of the first result, or the first dimension of an array is not its items.
        """
        import pyarrow as pa
        from pyarrow import parquet

        fields, columns = [], []
        for name, leaf in (("unit", result.unit), ("worker", result.worker), *leaves(result.value)):
            column, shape = _column(result, name, leaf)
            fields.append(pa.field(name or "value", column.type, metadata={"shape": ",".join(map(str, shape))}))
            columns.append(column)
        schema = pa.schema(fields)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(pa.PythonFile(self._stream, mode="w"), schema)
        elif not schema.equals(self._writer.schema, check_metadata=True):
            raise context.Invalid(
                f"unit {result.unit} has other columns than the first result of its shard: "
                f"{_difference(schema, self._writer)}; a table needs the same in all, write: {{format: npz}} does not"
            )
        self._writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        return result.items

    def close(self) -> None:
        """Write the file's footer."""
        if self._writer is not None:
            self._writer.close()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf of a tree; "" is the path of a tree that is a leaf itself."""
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)  # type: ignore[assignment]
    else:
        yield path, value
        return
    for key, child in children:
        yield from leaves(child, f"{path}/{key}" if path else str(key))


def _column(result: Result, name: str, leaf: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a leaf as a column with an entry for each item of the result, and the shape of an entry; () for single values.

    Raises:
        Invalid: The first dimension of an array is not the number of items.
    """
    import numpy as np
    import pyarrow as pa

    array = leaf if isinstance(leaf, np.ndarray) else None
    if array is None or array.ndim == 0:
        return pa.repeat(pa.scalar(leaf if array is None else array.item()), result.items), ()
    if array.shape[0] != result.items:
        raise context.Invalid(
            f"unit {result.unit} has {errors.counted(result.items, 'item')}, and {name or 'its array'} has the shape "
            f"{array.shape}: a table has a row for each item. Set the number in give(items=…), or write: {{format: npz}}"
        )
    shape = array.shape[1:]
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    if shape:  # each entry is an array itself
        column = pa.FixedSizeListArray.from_arrays(column, int(np.prod(shape)))
    return column, shape


def _difference(schema: Any, writer: Any) -> str:
    """Describe the first difference between a schema and the writer's, for a message."""
    current = {field.name: f"{field.type}" for field in schema}
    first = {field.name: f"{field.type}" for field in writer.schema}
    for name in sorted(current.keys() | first.keys()):
        if current.get(name) != first.get(name):
            return f"{name} is {current.get(name, 'missing')} and was {first.get(name, 'missing')}"
    return "shapes or order"
