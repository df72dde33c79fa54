"""Ledgers of several namespaces in one database. Each has its own schema, so run names are unique only within a namespace.

A schema is named after its namespace and created when the first run is recorded. The control namespace uses the database's
default schema. All ledgers share the connections of the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from trialplane.errors import InputError
from trialplane.ledger import budget, tables
from trialplane.ledger.archive import Archive


class Ledgers:
    """All runs, by namespace.

    Args:
        url: URL of the database.
        control: Namespace of the platform itself.
        namespaces: Namespaces with runs; may include `control`.
        budgets: JSON with the budgets, see `budget.read`.

    Raises:
        InputError: A namespace cannot have a ledger, or the budgets cannot be read.

    Attributes:
        budgets: Budgets by namespace.
    """

    def __init__(self, url: str, control: str, namespaces: Sequence[str], budgets: str = "") -> None:
        if tables.DEFAULT_SCHEMA in namespaces and control != tables.DEFAULT_SCHEMA:
            raise InputError(
                "a team's namespace cannot be called public: PostgreSQL's default schema has this name and contains the "
                f"runs of {control}. Give the team another namespace"
            )
        self._urls = {name: url if name == control else tables.in_schema(url, name) for name in namespaces}
        self._connections = tables.Connections(url)
        limit = tables.SHARE if len(namespaces) > 1 else tables.POOL - tables.CHECKS
        shares = {name: self._connections.share("" if name == control else name, limit) for name in namespaces}
        self.budgets = budget.read(budgets, namespaces)
        self._archives = {name: Archive(share, self.budgets[name]) for name, share in shares.items()}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces with runs."""
        return tuple(self._urls)

    def of(self, namespace: str) -> Archive | None:
        """Return the runs of a namespace; None if it has no ledger."""
        return self._archives.get(namespace)

    def url(self, namespace: str) -> str:
        """Return the database URL of a namespace's schema."""
        return self._urls[namespace]

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()
