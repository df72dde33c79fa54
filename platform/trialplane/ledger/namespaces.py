"""The ledgers of several namespaces in one database: each has a schema of its own, so that run names are unique within one.

A schema is named as its namespace and made when the first run is recorded. The control namespace's is the database's default
schema, in which all runs were before there were several namespaces. All share the connections of the process, however many
they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from trialplane.errors import InputError
from trialplane.ledger import budget, tables
from trialplane.ledger.archive import Archive
from trialplane.wire.mlflow import Scope


class Ledgers:
    """All runs, by namespace.

    Args:
        url: of the database.
        control: the namespace that the platform itself is in.
        namespaces: those that runs are in; it may be one of them.
        budgets: of them, as `budget.read` takes them.

    Raises:
        InputError: one of them cannot have a ledger, or the budgets cannot be read.

    Attributes:
        budgets: by namespace.
    """

    def __init__(self, url: str, control: str, namespaces: Sequence[str], budgets: str = "") -> None:
        if tables.DEFAULT_SCHEMA in namespaces and control != tables.DEFAULT_SCHEMA:
            raise InputError(
                "no run can be in a namespace called public: PostgreSQL's default schema has that name, and it holds the "
                f"runs of {control}; give the team another namespace"
            )
        self._control = control
        self._urls = {name: url if name == control else tables.in_schema(url, name) for name in namespaces}
        self._connections = tables.Connections(url)
        most = tables.SHARE if len(namespaces) > 1 else tables.POOL - tables.CHECKS
        shares = {name: self._connections.share("" if name == control else name, most) for name in namespaces}
        self.budgets = budget.read(budgets, namespaces)
        self._archives = {name: Archive(share, self.budgets[name]) for name, share in shares.items()}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Those that runs are in."""
        return tuple(self._urls)

    def of(self, namespace: str) -> Archive | None:
        """The runs of a namespace; None if no run can be there."""
        return self._archives.get(namespace)

    def url(self, namespace: str) -> str:
        """Of the schema of one of them."""
        return self._urls[namespace]

    def scope(self, namespace: str) -> Scope:
        """What of MLflow is one's own."""
        return Scope(namespace, namespace == self._control)

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()
