"""All that MLflow's server has stored, read from its database and its folder of artifacts, whatever its endpoints show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

_WORKSPACE = "workspace"  # a column of the tables whose rows name their workspace
# An association belongs to its source, which its table names without a foreign key: by type, the table and its key.
_ASSOCIATIONS = "entity_associations"
_SOURCES = {
    "trace": ("trace_info", "request_id"),
    "run": ("runs", "run_uuid"),
    "evaluation_dataset": ("evaluation_datasets", "dataset_id"),
}


class _Tables:
    """The tables of MLflow's database at one moment.

    Args:
        store: URL of the database.
    """

    def __init__(self, store: str) -> None:
        engine = sa.create_engine(store)
        self._schema = sa.MetaData()
        self._schema.reflect(engine)
        with engine.connect() as connection:
            self._rows = {
                table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for table in self._schema.sorted_tables
            }
        engine.dispose()
        self._index: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {}  # by table and column: the rows by value

    def outside(self, workspace: str) -> dict[str, list[str]]:
        """By table, the rows that belong to another workspace or to none."""
        return {
            name: sorted(repr(row) for row in rows if self._workspace(name, row) != workspace)
            for name, rows in self._rows.items()
        }

    def _workspace(self, table: str, row: dict[str, Any]) -> str:
        """Return the workspace of a row, found by its foreign keys if it does not name it; "" for none."""
        if _WORKSPACE in row:
            return str(row[_WORKSPACE])
        if table == _ASSOCIATIONS and row["source_type"] in _SOURCES:
            other, column = _SOURCES[row["source_type"]]
            source = self._rows_by(other, column).get(row["source_id"])
            return "" if source is None else self._workspace(other, source)
        for key in sorted(self._schema.tables[table].foreign_keys, key=lambda key: key.target_fullname):
            other = key.column.table.name
            parent = self._rows_by(other, key.column.name).get(row[key.parent.name])
            if parent is not None:
                return self._workspace(other, parent)
        return ""

    def _rows_by(self, table: str, column: str) -> dict[Any, dict[str, Any]]:
        if (table, column) not in self._index:
            self._index[table, column] = {row[column]: row for row in self._rows[table]}
        return self._index[table, column]


def outside(workspace: str, store: str, artifacts: Path) -> dict[str, Any]:
    """Return all rows and files but those of one workspace.

    Args:
        workspace: Name of the workspace.
        store: URL of the server's database.
        artifacts: Folder of the server's artifacts.
    """
    own = artifacts / "workspaces" / workspace
    files = {
        str(file.relative_to(artifacts)): file.read_bytes()
        for file in sorted(artifacts.rglob("*"))
        if file.is_file() and not file.is_relative_to(own)
    }
    return {**_Tables(store).outside(workspace), "files": files}
