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
    """The ledgers of all namespaces.

    Args:
        url: URL of the database.
        control: Namespace of the platform itself.
        namespaces: Namespaces that may have runs; `control` may be one of them.
        budgets: JSON with the budgets, see `budget.read`.

    Raises:
        InputError: A namespace cannot have a ledger, or the budgets cannot be read.

    Attributes:
        budgets: Budget of each namespace.
    """

    def __init__(self, url: str, control: str, namespaces: Sequence[str], budgets: str = "") -> None:
        if tables.DEFAULT_SCHEMA in namespaces and control != tables.DEFAULT_SCHEMA:
            raise InputError(
                "a team's namespace cannot be called public: PostgreSQL's default schema has this name and contains the "
                f"runs of {control}. Give the team another namespace"
            )
        self._urls = {name: url if name == control else tables.in_schema(url, name) for name in namespaces}
        self._connections = tables.Connections(url)
        # One of several namespaces must leave connections to the others.
        limit = tables.SHARE if len(namespaces) > 1 else tables.POOL - tables.CHECKS
        shares = {name: self._connections.share("" if name == control else name, limit) for name in namespaces}
        self.budgets = budget.read(budgets, namespaces)
        self._archives = {name: Archive(share, self.budgets[name]) for name, share in shares.items()}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that may have runs."""
        return tuple(self._urls)

    def of(self, namespace: str) -> Archive | None:
        """Return the ledger of a namespace; None if the namespace may have no runs."""
        return self._archives.get(namespace)

    def url(self, namespace: str) -> str:
        """Return the database URL of a namespace's schema."""
        return self._urls[namespace]

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()
